"""The settings of a measurement by name: NVIDIA's of a published row, and ours of an experiment as
the package passes them to Docker, Triton and perf_analyzer.

Each has a list of values, so that those of several rows or experiments can be put together; it is
empty where the setting does not apply or is not known.
"""

from collections.abc import Sequence
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from helpers import formats
from helpers.config import LoadConfig, OfflineConfig, releases
from helpers.inference import ensemble
from helpers.perf import analyzer
from helpers.report.nvidia.comparison import ACCELERATORS, ADAPTER, as_served
from helpers.triton import docker, repository

if TYPE_CHECKING:
    from helpers.report.nvidia.rows import PublishedRow

Settings = dict[str, list[str | int]]
TRT = "NVIDIA TensorRT"
FROM_ONNX = ("ONNX", TRT)  # formats
NO_TF32 = "not used: no fp32 arithmetic, or a GPU without TF32"
TF32 = {True: "used, as the runtime does by default", False: "not used: forbidden"}
CAPTURED = {True: "captured", False: "not captured"}
PLACES = {"host": "the host's", "bridge": "Docker's bridge", "private": "the container's own"}
PROTOCOLS = {"http": "HTTP", "grpc": "gRPC"}
SENT = {"none": "in the request", "system": "in shared memory", "cuda": "in CUDA's shared memory"}
STABILITY = "windows agree within {} %, {} of them at most"
WINDOWS = {"time_windows": "by time", "count_windows": "by count"}


def theirs(row: "PublishedRow") -> Settings:
    """NVIDIA's settings of a row."""
    said = row.document
    model_format, precision, accelerator = as_served(row)
    batcher = _batcher(said.preferred_batch_sizes, said.max_queue_delay_us)
    return {
        "Triton release": [said.release],
        "backend": [row.backend.removeprefix("NVIDIA Merlin HPS + ")],
        "format": [model_format],
        "exported as": [said.export_format],
        "ONNX opset": _known(said.opset, model_format in FROM_ONNX),
        "engine's smallest batch": _known(said.engine_smallest, model_format == TRT),
        "engine tuned for batch": _known(said.engine_batch, model_format == TRT),
        "precision": [precision],
        "TF32": [TF32[True] if said.tf32 else NO_TF32],
        "accelerator": [accelerator or "none"],
        "CUDA graphs": [CAPTURED[said.cuda_graph]],
        "instances": [said.instances or row.instances],
        "largest batch": [said.max_batch_size or row.max_batch_size],
        "dynamic batching": [batcher if said.batching else "none"],
        "embedding lookup": _known(said.lookup, bool(said.lookup)),
        "network": [PLACES[said.network]],
        "/dev/shm": [PLACES[said.ipc]],
        "server flags": [*said.flags],
        "environment": [*said.environment],
        "protocol": [said.protocol],
        "tensors": [SENT[said.shared_memory if row.scenario == "offline" else "none"]],
        "batch sizes": [row.batch_size],
        "clients": [row.concurrency],
        "samples sent": [said.inputs],
        "load generator": [said.generator],
        "windows": [said.windows],
        "stability": [STABILITY.format(10, 10)],  # perf_analyzer's defaults
        "runs of a point": [1],
        "warm-up": [said.warm_up],
        "data set": [said.dataset],
        "weights": [said.checkpoint or "none published"],
    }


def ours(config: LoadConfig) -> Settings:
    """Our settings of an experiment, in the scenario of its stage."""
    if isinstance(config, OfflineConfig):
        memory, runs, sizes, clients = config.shared_memory, config.pairs, config.batch_sizes, [1]
    else:
        memory, runs, sizes, clients = "none", 1, [config.online_batch_size], config.concurrency
    scenario = config.stage.removeprefix("perf_")
    *lookups, graph = ensemble.components(config, config.format)
    served = repository.model_config(config, scenario, graph, batched=True)
    before = [repository.model_config(config, scenario, each, batched=False) for each in lookups]
    backend, model_format = formats.get(config.format).SHOWN
    options, flags = ["--network=host", "--ipc=host"], ["as the embedded server's"]
    if config.server.kind == "docker":
        options = docker.options(config)
        flags = docker.command_line(releases.number(config.server.release))[1:]
    environment = _values(options, "--env")
    point = analyzer.LoadPoint(config.model, Path(), [], shared_memory=memory)
    program, *line = analyzer.arguments(point, "", Path())
    passed = dict(pairwise(line))
    batching = served.dynamic_batching
    batcher = _batcher(batching.preferred_batch_size, batching.max_queue_delay_microseconds)
    warmed = ", ".join(f"{each.batch_size:,}" for each in served.model_warmup)
    has_tf32 = config.format != "trt" and "NVIDIA_TF32_OVERRIDE=0" not in environment
    return {
        "Triton release": [config.server.release],
        "backend": [f"Triton's {ADAPTER}" if served.backend == "python" else backend],
        "format": [model_format],
        "exported as": [config.export_format],
        "ONNX opset": _known(config.opset, model_format in FROM_ONNX),
        "engine's smallest batch": _known(1, model_format == TRT),
        "engine tuned for batch": _known(config.max_batch_size, model_format == TRT),
        "precision": [config.precision.upper()],
        "TF32": [TF32[has_tf32]],
        "accelerator": [ACCELERATORS.get(config.accelerator, config.accelerator)],
        "CUDA graphs": [CAPTURED[served.optimization.cuda.graphs]],
        "instances": [sum(group.count for group in served.instance_group)],
        "largest batch": [served.max_batch_size],
        "dynamic batching": [batcher if served.HasField("dynamic_batching") else "none"],
        "embedding lookup": [f"{each.backend} backend, all rows in memory" for each in before],
        "network": [PLACES[name] for name in _values(options, "--network") or ["bridge"]],
        "/dev/shm": [PLACES[name] for name in _values(options, "--ipc") or ["private"]],
        "server flags": [flag for flag in flags if not flag.startswith("--model-repository=")],
        "environment": [*environment],
        "protocol": [PROTOCOLS[passed["-i"]]],
        "tensors": [SENT[passed.get("--shared-memory", "none")]],
        "batch sizes": [*sizes],
        "clients": [*clients],
        "samples sent": [f"{config.distinct_rows} samples of the data set, in turn"],
        "load generator": [f"{Path(program).name} {version('tritonclient')}"],
        "windows": [
            f"{WINDOWS[passed['--measurement-mode']]}: in all {config.request_count:,} requests or "
            "more"
        ],
        "stability": [STABILITY.format(passed["--stability-percentage"], passed["--max-trials"])],
        "runs of a point": [runs],
        "warm-up": [f"batches of {warmed} while Triton loads the model; a few single requests"],
        "data set": [config.dataset],
        "weights": [config.checkpoint],
    }


def _batcher(preferred: Sequence[int], delay_us: int) -> str:
    sizes = ", ".join(f"{size:,}" for size in preferred)
    return f"prefers {sizes or 'no size'}, waits {delay_us} us at most"


def _known(value: str | int | None, applies: bool) -> list[str | int]:
    return [value] if applies and value is not None else []


def _values(options: Sequence[str], name: str) -> list[str]:
    """Return the values of a docker option that may be given more than once."""
    return [each.partition("=")[2] for each in options if each.startswith(f"{name}=")]
