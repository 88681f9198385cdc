"""Fidelity to NVIDIA's setup: the settings of the experiment that repeats a published table,
compared with NVIDIA's. These come from its documents, ours from the parameter files and the code.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from helpers import formats
from helpers.config import (
    PROTOCOLS,
    LoadConfig,
    OfflineConfig,
    Parameters,
    configure,
    file_for,
    read_file,
    releases,
)
from helpers.errors import DeploymentError
from helpers.hps import settings as stores
from helpers.inference import ensemble
from helpers.measure import analyzer
from helpers.report.nvidia.rows import ACCELERATORS, PublishedRow, everything, served_as, tables
from helpers.report.nvidia.settings import (
    ADAPTER,
    CAPTURED,
    NO_TF32,
    SENT,
    TF32,
    Settings,
    Value,
    published_settings,
)
from helpers.triton import docker, repository

HOST = "the host's"
BRIDGE = "Docker's bridge, at the container's address"  # see `containers.Container.address`
WINDOWS = {"time_windows": "by time", "count_windows": "by count"}
LISTS = ("server flags", "environment")  # of which only the differences are shown
NOTES = {  # on ours
    "dynamic batching": "offline there is one client, so there is nothing to batch",
    "network": "ours uses published ports if this host cannot reach that address",
    "stability": "ours keeps every measurement and judges its quality by the requests",
}


class Line(NamedTuple):
    """One setting of a table: NVIDIA's values, ours, and whether they are the same."""

    name: str
    theirs: list[Value]
    ours: list[Value]
    comparison: str  # same, differs or unknown
    note: str


@dataclass(frozen=True)
class Fidelity:
    """A published table, the experiments that repeat it, and every setting of both."""

    row: PublishedRow  # the table's first
    target: str = ""  # the parameter file's name
    experiments: tuple[str, ...] = ()
    lines: tuple[Line, ...] = ()
    fault: str = ""  # why there is no experiment

    def of(self, comparison: str) -> list[Line]:
        """Return the settings that are the same, differ or are unknown."""
        return [line for line in self.lines if line.comparison == comparison]


def fidelities() -> list[Fidelity]:
    """Compare the setup of every published table, in the order of the documents."""
    read = cache(_parameters)  # for many tables each
    return [_fidelity(table, read) for table in tables(everything())]


def _parameters(gpu: str) -> Parameters | None:
    path = file_for(gpu)
    return read_file(path) if path else None


def _fidelity(table: Sequence[PublishedRow], read: Callable[[str], Parameters | None]) -> Fidelity:
    """Compare the setup of a table's rows with that of the experiments that repeat them."""
    row = table[0]
    try:
        parameters = read(row.gpu)
        configs = reproducing_experiments(row, parameters) if parameters else []
        ours = _joined(experiment_settings(config) for config in configs)
    except DeploymentError as error:  # somebody's parameter file
        return Fidelity(row, fault=str(error))
    if not configs:
        return Fidelity(row, fault=f"no parameter file for {row.gpu} repeats it in a container")
    other = _joined(published_settings(row) for row in table)
    if other["TF32"] == [NO_TF32]:  # and ours has the same precision on the same GPU
        ours["TF32"] = [NO_TF32]
    notes = {name: note for row in table for name, note in row.setup.notes.items()}
    lines = [_line(name, other.get(name, []), ours[name], notes.get(name, "")) for name in ours]
    shown = tuple(line for line in lines if line.theirs or line.ours)
    return Fidelity(row, configs[0].target, tuple(config.experiment for config in configs), shown)


def reproducing_experiments(row: PublishedRow, parameters: Parameters) -> list[LoadConfig]:
    """Configure the experiments that repeat the table of a row, in containers as NVIDIA did."""
    names, stage = parameters.experiments(row.model), f"perf_{row.scenario}"
    configs = (configure(parameters, row.model, name, stage) for name in names)
    return [
        config
        for config in configs
        if isinstance(config, LoadConfig)
        and config.server.kind == "docker"
        and served(config) == served_as(row)
        and row.dataset in ("", config.variant)
    ]


def _joined(settings: Iterable[Settings]) -> Settings:
    """Join the settings of several rows or experiments, each value once."""
    merged: dict[str, dict[Value, None]] = {}
    for source in settings:
        for name, values in source.items():
            merged.setdefault(name, {}).update(dict.fromkeys(values))
    return {name: [*values] for name, values in merged.items()}


def _line(name: str, theirs: list[Value], ours: list[Value], note: str) -> Line:
    same = {*theirs} == {*ours}
    if name in LISTS and not same:
        shared = {*theirs} & {*ours}
        theirs, ours = ([value for value in one if value not in shared] for one in (theirs, ours))
    comparison = "same" if same else "differs" if theirs or name in LISTS else "unknown"
    notes = [note, NOTES.get(name, "") if comparison == "differs" else ""]
    return Line(name, theirs, ours, comparison, "; ".join(filter(None, notes)))


def served(config: LoadConfig) -> tuple[str, str, str]:
    """Return format, precision and accelerator of an experiment, as `served_as` those of a row."""
    accelerator = "" if config.accelerator == "none" else ACCELERATORS[config.accelerator]
    return formats.get(config.format).DISPLAY_NAMES[1], config.precision.upper(), accelerator


def _rows(config: LoadConfig) -> str:
    """Return where a lookup has its rows."""
    if config.lookup != "hps":
        small = config.table_precision != "fp32"
        return f"all rows in memory{f', in {config.table_precision}' * small}"
    (model,) = stores.compose(config.hps, stores.ONE_TABLE).models
    share = model.gpucacheper
    kind = "GPU cache" if config.device == "gpu" else "cache"
    return f"hierarchical parameter server with a {kind} of {100 * share:g}% of the rows"


def experiment_settings(config: LoadConfig) -> Settings:
    """Return our settings of an experiment, in the scenario of its stage."""
    memory, runs, sizes, clients = "none", 1, [1], [1]
    if isinstance(config, OfflineConfig):
        memory, runs, sizes = config.shared_memory, config.pairs, config.batch_sizes
    else:
        sizes, clients = [config.online_batch_size], config.concurrency
    *lookups, graph = ensemble.components(config, config.format)
    scenario = config.stage.removeprefix("perf_")
    message = repository.model_config(config, scenario, graph, batched=True)
    before = [repository.model_config(config, scenario, part, batched=False) for part in lookups]
    batcher = message.dynamic_batching
    preferred = ", ".join(f"{size:,}" for size in batcher.preferred_batch_size)
    batching = f"prefers {preferred}, waits {batcher.max_queue_delay_microseconds} us at most"
    warmed = ", ".join(f"{warmup.batch_size:,}" for warmup in message.model_warmup)
    options = docker.options(config)
    environment = [flag.removeprefix("--env=") for flag in options if flag.startswith("--env=")]
    flags = docker.command_line(releases.number(config.server.release), config.protocol)[1:]
    point = analyzer.LoadPoint(config.model, Path(), [], shared_memory=memory)
    program, *line = analyzer.arguments(point, "", Path())
    passed = dict(pairwise(line))
    model_format, precision, accelerator = served(config)
    is_engine = config.format == "trt"
    opset = config.opset if is_engine or model_format == "ONNX" else None
    has_tf32 = not is_engine and "NVIDIA_TF32_OVERRIDE=0" not in environment
    return {
        "Triton release": [config.server.release],
        "backend": [formats.get(config.format).DISPLAY_NAMES[0]] if message.platform else [ADAPTER],
        "format": [model_format],
        "exported as": [config.export_format],
        "ONNX opset": [opset] if opset else [],
        "engine's smallest batch": [1] if is_engine else [],
        "engine tuned for batch": [config.max_batch_size] if is_engine else [],
        "precision": [precision],
        "TF32": [TF32[has_tf32]],
        "accelerator": [accelerator or "none"],
        "CUDA graphs": [CAPTURED[message.optimization.cuda.graphs]],
        "instances": [sum(group.count for group in message.instance_group)],
        "largest batch": [message.max_batch_size or config.max_batch_size],  # 0 where it is flat
        "dynamic batching": [batching if message.HasField("dynamic_batching") else "none"],
        "embedding lookup": [f"{lookup.backend} backend, {_rows(config)}" for lookup in before],
        "network": [HOST if "--network=host" in options else BRIDGE],
        "/dev/shm": [HOST if "--ipc=host" in options else "the container's own"],
        "server flags": [flag for flag in flags if not flag.startswith("--model-repository=")],
        "environment": [*environment],
        "protocol": [PROTOCOLS[config.protocol]],
        "tensors": [SENT[passed.get("--shared-memory", "none")]],
        "batch size": [*sizes],
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
