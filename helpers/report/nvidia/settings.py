"""The settings of a measurement by name: NVIDIA's of a published row, and ours of an experiment as
the package passes them to Docker, Triton and perf_analyzer.

Each has a list of values, so that those of several rows or experiments can be put together.
"""

from importlib.metadata import version
from itertools import pairwise
from pathlib import Path

from helpers import formats
from helpers.config import LoadConfig, OfflineConfig, releases
from helpers.hps import settings as stores
from helpers.inference import ensemble
from helpers.perf import analyzer
from helpers.report.nvidia.comparison import ACCELERATORS, ADAPTER, as_served
from helpers.report.nvidia.rows import PublishedRow
from helpers.triton import docker, repository

Value = str | int
Settings = dict[str, list[Value]]  # none where it does not apply
CAPTURED = {True: "captured", False: "not captured"}
TF32 = {True: "used, as the runtime does by default", False: "not used: forbidden"}
NO_TF32 = "not used: no fp32 arithmetic, or a GPU without TF32"
HOST = "the host's"
BRIDGE = "Docker's bridge, at the container's address"  # see `containers.Container.address`
PROTOCOLS = {"http": "HTTP", "grpc": "gRPC"}
SENT = {"none": "in the request", "system": "in shared memory", "cuda": "in CUDA's shared memory"}
WINDOWS = {"time_windows": "by time", "count_windows": "by count"}


def theirs(row: PublishedRow) -> Settings:
    """NVIDIA's settings of a row."""
    said = row.document
    model_format, precision, accelerator = as_served(row)
    settings = {
        "Triton release": said.release,
        "backend": row.backend.removeprefix("NVIDIA Merlin HPS + "),
        "format": model_format,
        "precision": precision,
        "TF32": TF32[True] if said.tf32 else NO_TF32,
        "accelerator": accelerator or "none",
        "CUDA graphs": CAPTURED[said.cuda_graph],
        "instances": said.instances or row.instances,
        "largest batch": row.max_batch_size,
        "protocol": said.protocol,
        "tensors": SENT[said.shared_memory if row.scenario == "offline" else "none"],
        "batch sizes": row.batch_size,
        "clients": row.concurrency,
        "samples sent": said.inputs,
        **said.settings,
    }
    return {name: [*v] if isinstance(v, list) else [v] for name, v in settings.items()}


def served(config: LoadConfig) -> tuple[str, str, str]:
    """Name format, precision and accelerator of an experiment, as `as_served` those of a row."""
    accelerator = "" if config.accelerator == "none" else ACCELERATORS[config.accelerator]
    return formats.get(config.format).SHOWN[1], config.precision.upper(), accelerator


def _rows(config: LoadConfig) -> str:
    """Return where a lookup has its rows."""
    if config.lookup != "hps":
        small = config.table_precision != "fp32"
        return f"all rows in memory{f', in {config.table_precision}' * small}"
    (model,) = stores.parse(stores.compose(config.hps, stores.ONE_TABLE)).models
    share = model.gpucacheper
    place = "GPU cache" if config.device == "gpu" else "cache"
    return f"hierarchical parameter server with a {place} of {100 * share:g}% of the rows"


def ours(config: LoadConfig) -> Settings:
    """Our settings of an experiment, in the scenario of its stage."""
    memory, runs, sizes, clients = "none", 1, [1], [1]
    if isinstance(config, OfflineConfig):
        memory, runs, sizes = config.shared_memory, config.pairs, config.batch_sizes
    else:
        sizes, clients = [config.online_batch_size], config.concurrency
    *lookups, graph = ensemble.components(config, config.format)
    scenario = config.stage.removeprefix("perf_")
    message = repository.model_config(config, scenario, graph, batched=True)
    before = [repository.model_config(config, scenario, each, batched=False) for each in lookups]
    batcher = message.dynamic_batching
    preferred = ", ".join(f"{size:,}" for size in batcher.preferred_batch_size)
    batching = f"prefers {preferred}, waits {batcher.max_queue_delay_microseconds} us at most"
    warmed = ", ".join(f"{each.batch_size:,}" for each in message.model_warmup)
    options = docker.options(config)
    environment = [each.removeprefix("--env=") for each in options if each.startswith("--env=")]
    flags = docker.command_line(releases.number(config.server.release))[1:]
    point = analyzer.LoadPoint(config.model, Path(), [], shared_memory=memory)
    program, *line = analyzer.arguments(point, "", Path())
    passed = dict(pairwise(line))
    model_format, precision, accelerator = served(config)
    is_engine = config.format == "trt"
    has_tf32 = not is_engine and "NVIDIA_TF32_OVERRIDE=0" not in environment
    return {
        "Triton release": [config.server.release],
        "backend": [formats.get(config.format).SHOWN[0]] if message.platform else [ADAPTER],
        "format": [model_format],
        "exported as": [config.export_format],
        "ONNX opset": [config.opset]
        if config.opset and (is_engine or model_format == "ONNX")
        else [],
        "engine's smallest batch": [1] if is_engine else [],
        "engine tuned for batch": [config.max_batch_size] if is_engine else [],
        "precision": [precision],
        "TF32": [TF32[has_tf32]],
        "accelerator": [accelerator or "none"],
        "CUDA graphs": [CAPTURED[message.optimization.cuda.graphs]],
        "instances": [sum(group.count for group in message.instance_group)],
        "largest batch": [message.max_batch_size or config.max_batch_size],  # 0 where it is flat
        "dynamic batching": [batching if message.HasField("dynamic_batching") else "none"],
        "embedding lookup": [f"{each.backend} backend, {_rows(config)}" for each in before],
        "network": [HOST if "--network=host" in options else BRIDGE],
        "/dev/shm": [HOST if "--ipc=host" in options else "the container's own"],
        "server flags": [flag for flag in flags if not flag.startswith("--model-repository=")],
        "environment": [*environment],
        "protocol": [PROTOCOLS[passed["-i"]]],
        "tensors": [SENT[passed.get("--shared-memory", "none")]],
        "batch sizes": [*sizes],
        "clients": [*clients],
        "samples sent": [f"{config.distinct_rows} different samples of the data set"],
        "load generator": [f"{Path(program).name} {version('tritonclient')}"],
        "windows": [
            f"{WINDOWS[passed['--measurement-mode']]}, at least {config.request_count:,} requests "
            "in all"
        ],
        "stability": [
            f"windows agree within {passed['--stability-percentage']}%, at most "
            f"{passed['--max-trials']} of them"
        ],
        "runs per measurement": [runs],
        "warm-up": [f"batches of {warmed} while Triton loads the model; a few single requests"],
        "data set": [config.dataset],
        "weights": [config.checkpoint],
    }
