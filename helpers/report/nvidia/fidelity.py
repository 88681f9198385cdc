"""Fidelity to NVIDIA's setup: the settings of the experiment that repeats a published table,
compared with NVIDIA's. These come from its documents, ours from the parameter files and the code.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from helpers.config import LoadConfig, Parameters, configure, file_for, read_file
from helpers.errors import DeploymentError
from helpers.report.nvidia.comparison import as_served
from helpers.report.nvidia.rows import PublishedRow, everything, tables
from helpers.report.nvidia.settings import NO_TF32, Settings, Value, ours, served, theirs

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
        """The settings that are the same, differ or are unknown."""
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
        configs = makers(row, parameters) if parameters else []
        own = _joined(ours(config) for config in configs)
    except DeploymentError as error:  # somebody's parameter file
        return Fidelity(row, fault=str(error))
    if not configs:
        return Fidelity(row, fault=f"no parameter file for {row.gpu} repeats it in a container")
    other = _joined(theirs(each) for each in table)
    if other["TF32"] == [NO_TF32]:  # and ours has the same precision on the same GPU
        own["TF32"] = [NO_TF32]
    notes = {name: note for each in table for name, note in each.document.notes.items()}
    lines = [_line(name, other.get(name, []), own[name], notes.get(name, "")) for name in own]
    shown = tuple(line for line in lines if line.theirs or line.ours)
    return Fidelity(row, configs[0].target, tuple(each.experiment for each in configs), shown)


def makers(row: PublishedRow, parameters: Parameters) -> list[LoadConfig]:
    """Configure the experiments that repeat the table of a row, in containers as NVIDIA did."""
    names, stage = parameters.experiments(row.model), f"perf_{row.scenario}"
    configs = (configure(parameters, row.model, name, stage) for name in names)
    return [
        config
        for config in configs
        if isinstance(config, LoadConfig)
        and config.server.kind == "docker"
        and served(config) == as_served(row)
        and row.dataset in ("", config.variant)
    ]


def _joined(settings: Iterable[Settings]) -> Settings:
    """Put the settings of several rows or experiments together, each value once."""
    found: dict[str, dict[Value, None]] = {}
    for each in settings:
        for name, values in each.items():
            found.setdefault(name, {}).update(dict.fromkeys(values))
    return {name: [*values] for name, values in found.items()}


def _line(name: str, theirs: list[Value], ours: list[Value], note: str) -> Line:
    same = {*theirs} == {*ours}
    if name in LISTS and not same:
        both = {*theirs} & {*ours}
        theirs, ours = ([value for value in one if value not in both] for one in (theirs, ours))
    comparison = "same" if same else "differs" if theirs or name in LISTS else "unknown"
    notes = [note, NOTES.get(name, "") if comparison == "differs" else ""]
    return Line(name, theirs, ours, comparison, "; ".join(filter(None, notes)))
