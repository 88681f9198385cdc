"""Which published row a measurement is compared with."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import log2
from typing import TYPE_CHECKING

from helpers.config import ReportConfig, Value
from helpers.report import analysis
from helpers.report.nvidia.rows import (
    PublishedRow,
    accelerator,
    fastest,
    gpus,
    published,
    served_as,
    tables,
)
from helpers.report.nvidia.settings import reasons
from helpers.results import Results, Row

if TYPE_CHECKING:
    from pandas import DataFrame

SCENARIOS = ("offline", "online")


@dataclass(frozen=True)
class Pair:
    """A measurement and the published row that it is compared with."""

    measured: Row
    published: PublishedRow
    reasons: tuple[str, ...]  # why the comparison may be unfair

    @property
    def ratio(self) -> float:
        """Return our throughput over NVIDIA's."""
        return (self.measured.throughput or 0) / self.published.throughput


@dataclass(frozen=True)
class Comparison:
    """Our rows of a model, NVIDIA's, and the pairs of both."""

    model: str
    gpu: str  # the target's
    chosen: str  # NVIDIA's GPU to compare with; "" where nothing is published
    measured: "DataFrame"
    published: tuple[PublishedRow, ...]
    pairs: tuple[Pair, ...]

    @property
    def is_own(self) -> bool:
        """Return whether NVIDIA published the target's own GPU."""
        return self.gpu == self.chosen

    @property
    def scenarios(self) -> list[str]:
        """Return the scenarios that NVIDIA published."""
        return [name for name in SCENARIOS if any(row.scenario == name for row in self.published)]

    def of(self, scenario: str) -> list[Pair]:
        """Return the pairs of a scenario."""
        return [pair for pair in self.pairs if pair.published.scenario == scenario]

    def drawn(self, scenario: str) -> list[PublishedRow]:
        """Return NVIDIA's rows for a figure: the chosen GPU's tables that ours are compared with,
        or all without ours. If it is not the target's GPU, add each other GPU's fastest such table.
        """
        served = {pair.published.served for pair in self.of(scenario)}
        rows = [
            row
            for row in self.published
            if row.scenario == scenario and (not served or row.served in served)
        ]
        selected = [row for row in rows if row.gpu == self.chosen]
        if served and not self.is_own:
            for gpu in gpus([row for row in rows if row.gpu != self.chosen]):
                selected += max(tables(row for row in rows if row.gpu == gpu), key=fastest)
        return selected


def compare(config: ReportConfig, results: Results) -> Comparison:
    """Compare the measured rows of a model, those of a repeated batch apart, with NVIDIA's nearest.

    Raises `DataError` if the published rows cannot be read.
    """
    rows = published(config.model)
    chosen = choose_gpu(rows, config.gpu, config.device)
    pairs = (
        pair(row, result.fingerprint.config, rows, chosen)
        for _, result in analysis.stages(results)
        if result.fingerprint and result.measurement
        for row in result.measurement.rows
        if not row.repeated
    )
    ours = analysis.frame(config, results)
    return Comparison(config.model, config.gpu, chosen, ours, rows, tuple(filter(None, pairs)))


def choose_gpu(rows: Sequence[PublishedRow], gpu: str, device: str) -> str:
    """Return NVIDIA's GPU to compare with: the target's own if NVIDIA published it, otherwise the
    slowest for a CPU and the fastest for another GPU. Return "" if nothing is published.
    """
    names = gpus(rows) or [""]
    if gpu in names:
        return gpu
    return names[0] if device == "cpu" else names[-1]


def pair(
    ours: Row, settings: Mapping[str, Value], rows: Sequence[PublishedRow], gpu: str
) -> Pair | None:
    """Pair our row with the nearest published one on `gpu`; None if either does not exist."""
    if ours.throughput is None or not (theirs := nearest(ours, rows, gpu)):
        return None
    return Pair(ours, theirs, reasons(ours, settings, theirs))


def nearest(ours: Row, rows: Sequence[PublishedRow], gpu: str) -> PublishedRow | None:
    """Return the nearest published row. Its table has the same format, then precision, then
    accelerator, or is the fastest. In it the batch size is nearest, then the number of clients.
    """

    def to_table(table: Sequence[PublishedRow]) -> tuple[bool | float, ...]:
        pairs = zip(ours_served, served_as(table[0]), strict=True)  # most important first
        return (*(one != other for one, other in pairs), -fastest(table))

    def to_row(row: PublishedRow) -> tuple[float, float]:
        batches, clients = row.batch_size / ours.batch_size, row.concurrency / ours.concurrency
        return abs(log2(batches)), abs(log2(clients))

    ours_served = (ours.model_format, ours.precision, accelerator(ours))
    key, datasets = (gpu, ours.scenario), ("", ours.variant)
    candidates = [row for row in rows if (row.gpu, row.scenario) == key and row.dataset in datasets]
    return min(min(tables(candidates), key=to_table, default=()), key=to_row, default=None)


def common(pairs: Iterable[Pair]) -> list[str]:
    """Return the reasons that all of some pairs share, in order."""
    lists = [pair.reasons for pair in pairs]
    return [text for text in lists[0] if all(text in other for other in lists)] if lists else []


def by_experiment(pairs: Iterable[Pair]) -> dict[str, list[Pair]]:
    """Group pairs by our experiment; its pairs follow each other."""
    groups = groupby(pairs, lambda pair: pair.measured.experiment)
    return {name: list(group) for name, group in groups}
