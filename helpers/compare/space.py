"""What a search may choose: the formats that pass the parity checks, and the values of fields."""

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import prod

from helpers import formats, models, results
from helpers.config import (
    ConvertConfig,
    DeployConfig,
    TuneConfig,
    Value,
    artifact_folder,
    changed,
    results_folder,
)
from helpers.errors import MeasurementError, ParameterError
from helpers.inference import physical_cores, threads
from helpers.machine import why_unavailable
from helpers.store import find_artifact

Choice = dict[str, Value]  # a value of each field that is searched; "format" is a candidate's name
PREFIX = "tune-"  # how the experiments of candidates are named
CHECK_STAGES = ("export", "convert", "deploy")
NOT_RUN = "{} has not run. Run triton-notebooks {} params/{}.yaml --model {} first"


def clients(choice: Choice) -> int:
    """Return the number of clients of a choice."""
    return int(str(choice["concurrency"]))


@dataclass(frozen=True)
class Space:
    """The values of each field, the experiment's own first, and the formats that are left out."""

    values: Mapping[str, tuple[Value, ...]]
    formats: Mapping[str, Choice]  # a candidate's name -> the fields of its experiment
    excluded: Mapping[str, str]  # a candidate's name -> the reason

    @property
    def start(self) -> Choice:
        """Return the experiment as it is."""
        return {name: values[0] for name, values in self.values.items()}

    @property
    def size(self) -> int:
        """Return how many configurations there are."""
        return prod(map(len, self.values.values()))

    def fields(self, choice: Choice) -> Choice:
        """Return the fields of an experiment that a choice stands for; the clients are none."""
        fields = {name: value for name, value in choice.items() if name != "concurrency"}
        return fields | self.formats[str(fields.pop("format"))]


def candidates(config: TuneConfig) -> tuple[dict[str, Choice], dict[str, str]]:
    """Return the experiment's fields for each format and precision that its model can be converted
    to, the experiment's own first. Return too why the others cannot run on this machine.
    """
    framework = models.get(config.model).FRAMEWORK
    direct = [name for name in formats.names() if framework in formats.get(name).SOURCES]
    exports = list(dict.fromkeys([config.export_format, *direct]))
    start = {f"{config.format}-{config.precision}": _making(config)}
    runnable, reasons = start.copy(), dict[str, str]()
    for name in formats.names():
        fmt = formats.get(name)
        sources = [source for source in exports if source == name or source in fmt.SOURCES]
        for precision in fmt.PRECISIONS.get(config.device, ()):
            label = f"{name}-{precision}"
            target: Choice = {"format": name, "precision": precision, "accelerator": "none"}
            target["accelerator_precision"] = None
            options: list[Choice] = [
                {**target, "export_format": source, "export_precision": first}
                for source in sources
                for first in dict.fromkeys(("fp32", precision))
            ]
            if label in start or label not in config.tune_space.get("format", [label]):
                continue
            if not (chosen := _first_valid(config, options)):
                continue
            if why := why_unavailable(chosen):
                reasons[label] = why
            else:
                runnable[label] = _making(chosen)
    return runnable, reasons


def _making(config: ConvertConfig) -> Choice:
    names = {"export_format", "export_precision", "format", "precision"}
    names |= {"accelerator", "accelerator_precision"}
    if config.calibration:  # else what a file says of it concerns other formats
        names |= {"calibration_samples", "calibration_seed"}
    return config.model_dump(include=names)


def _first_valid(config: TuneConfig, options: Iterable[Choice]) -> TuneConfig | None:
    for fields in options:
        with suppress(ParameterError):
            return changed(config, fields)
    return None


def choices(config: TuneConfig) -> Space:
    """Return what a search of the experiment may choose.

    Raises `MeasurementError` if the experiment itself did not pass its parity checks, and
    `ParameterError` for a wrong value in `tune_space`.
    """
    if not (config.concurrency or config.tune_space.get("concurrency")):
        name = f"{config.model} {config.experiment}"
        raise ParameterError(f"{name}: concurrency is empty. Set the clients in tune_space.")
    listed = {name: [*given] for name, given in config.tune_space.items() if name != "format"}
    for name, given in listed.items():
        for value in given:
            context = f"{config.model} {config.experiment}: tune_space"
            changed(config, {name: [value] if name == "concurrency" else value}, context)
    runnable, excluded = candidates(config)
    first = next(iter(runnable))
    for name, fields in runnable.items():
        experiment = config.experiment if name == first else PREFIX + name
        if why := fault(changed(config, {**fields, "experiment": experiment})):
            excluded[name] = why
    if first in excluded:
        raise MeasurementError(f"{config.model} {config.experiment}: {excluded[first]}")
    values = usual(config) | listed
    start: Choice = config.model_dump(include=set(values))
    start |= {"threads": threads(config, "online"), "instances": config.instances.online}
    values["concurrency"].sort(key=lambda count: -int(str(count)))
    start["concurrency"] = values["concurrency"][0]  # most clients: only the budget wants fewer
    passed = {name: fields for name, fields in runnable.items() if name not in excluded}
    tried = {name: _unique([start[name], *values[name]]) for name in values}
    return Space({"format": tuple(passed), **tried}, passed, excluded)


def fault(config: DeployConfig) -> str:
    """Return which parity check of a configuration did not pass, and why; empty if all did."""
    for stage in CHECK_STAGES:
        result = results.read(results_folder(config) / f"{stage}.json")
        if result and result.state != "done":
            return f"{stage} {result.state}: {result.reason}"
        artifact = find_artifact(artifact_folder(config, stage))
        if artifact is None:
            command = "tune" if config.stage == "tune" else "run"
            return NOT_RUN.format(stage, command, config.target, config.model)
        if artifact.failure:
            return f"{stage} failed: {artifact.failure}"
    return ""


def usual(config: TuneConfig) -> dict[str, list[Value]]:
    """Return the values of each field that are tried if the experiment does not say which."""
    largest, sent = config.max_batch_size, config.online_batch_size
    counts = [2**power for power in range(physical_cores().bit_length())]
    values: dict[str, list[Value]] = {"instances": [*counts]}
    if config.device == "cpu":
        values["threads"] = [*counts]
    values["preferred_batch_sizes"] = [[], [min(4 * sent, largest)], [largest]]
    values["max_queue_delay_us"] = [0, 1000, 5000]
    if models.lookups(config.model) and not config.server.is_native:
        values["composition"] = ["ensemble", "fused"]
    return values | {"concurrency": [*config.concurrency]}


def _unique(values: list[Value]) -> tuple[Value, ...]:
    return tuple({json.dumps(value): value for value in values}.values())
