"""What a report says of NVIDIA's tables, in words and a table: ours beside theirs, or theirs alone
where nothing of ours was measured.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from helpers.config import ReportConfig
from helpers.display import Table, table
from helpers.report import nvidia_comparison, published, text
from helpers.report.nvidia_comparison import Pair
from helpers.report.published import PublishedRow
from helpers.results import Results

if TYPE_CHECKING:
    from IPython.display import Markdown
    from pandas import DataFrame

PAGE = "../../published.html"  # from the folder of a model's report
SCENARIOS = ("offline", "online")


@dataclass(frozen=True)
class Beside:
    """Our rows of a model, NVIDIA's, and the pairs of both."""

    model: str
    gpu: str  # the target's
    chosen: str  # NVIDIA's, which ours is compared with; "" where nothing is published
    ours: "DataFrame"
    published: tuple[PublishedRow, ...]
    pairs: tuple[Pair, ...]

    @property
    def is_own(self) -> bool:
        """Tell whether NVIDIA published the target's own GPU."""
        return self.gpu == self.chosen

    @property
    def scenarios(self) -> list[str]:
        """Name the scenarios that NVIDIA published."""
        return [name for name in SCENARIOS if any(row.scenario == name for row in self.published)]

    def of(self, scenario: str) -> list[Pair]:
        """Choose the pairs of a scenario."""
        return [pair for pair in self.pairs if pair.theirs.scenario == scenario]

    def drawn(self, scenario: str) -> list[PublishedRow]:
        """Choose NVIDIA's rows for a figure.

        The tables of the chosen GPU that ours are compared with, or all of them without any of
        ours; and where NVIDIA has not the target's own, the fastest such table of each other GPU.
        """
        served = {pair.theirs.served for pair in self.of(scenario)}
        rows = [
            row
            for row in self.published
            if row.scenario == scenario and (not served or row.served in served)
        ]
        found = [row for row in rows if row.gpu == self.chosen]
        for gpu in published.gpus(rows) if served and not self.is_own else ():
            others = published.tables(row for row in rows if row.gpu == gpu != self.chosen)
            found += max(others.values(), key=lambda t: max(r.throughput for r in t), default=[])
        return found


def compare(config: ReportConfig, found: Results) -> Beside:
    """Put every measured row of a model beside the nearest of NVIDIA's.

    Raises `DataError` if the published rows cannot be read.
    """
    rows = published.rows(config.model)
    chosen = nvidia_comparison.choose_gpu(rows, config.gpu, config.device)
    pairs = [
        nvidia_comparison.compare(
            row, result.fingerprint.config if result.fingerprint else {}, rows, chosen
        )
        for stages in found.values()
        for result in stages.values()
        for row in (result.measurement.rows if result.measurement else ())
    ]
    kept = tuple(pair for pair in pairs if pair)
    return Beside(config.model, config.gpu, chosen, text.frame(found), rows, kept)


def common(pairs: Iterable[Pair]) -> list[str]:
    """List the reasons that hold for every one of some pairs, in order."""
    found = [pair.reasons for pair in pairs]
    return [text for text in found[0] if all(text in each for each in found)] if found else []


def by_experiment(both: Beside) -> dict[str, list[Pair]]:
    """Group the pairs by our experiment."""
    groups: dict[str, list[Pair]] = {}
    for pair in both.pairs:
        groups.setdefault(pair.ours.experiment, []).append(pair)
    return groups


def in_words(both: Beside) -> "Markdown":
    """Say what is compared with what, the ratio, and why it may be unfair."""
    from IPython.display import Markdown

    return Markdown("\n\n".join(_lines(both)))  # type: ignore[no-untyped-call]


def _lines(both: Beside) -> list[str]:
    if not both.published:
        return [f"NVIDIA published nothing of {both.model}."]
    choice = (
        f"Beside NVIDIA's own figures of {both.gpu}."
        if both.is_own
        else f"NVIDIA published nothing of {both.model} on this target's {both.gpu}; "
        f"{both.chosen} was chosen to stand beside it."
    )
    link = f"{PAGE}#{urlencode({'model': both.model, 'gpu': both.chosen})}"
    lines = [f"**{choice}** [Browse NVIDIA's rows]({link})."]
    lines += (
        _unfair(both)
        if both.pairs
        else [f"Nothing of ours was measured on {both.gpu}: NVIDIA's rows stand alone."]
    )
    missing = [name for name in SCENARIOS if name not in both.scenarios]
    if missing:
        lines.append(f"NVIDIA published no {missing[0]} rows of {both.model}.")
    return lines


def _unfair(both: Beside) -> list[str]:
    """Give the ratio, and the reasons against it from those of all rows to those of one
    experiment.
    """
    ratios, all_share = [pair.ratio for pair in both.pairs], common(both.pairs)
    bullets = [f"- {reason}\n" for reason in all_share]
    for name, pairs in by_experiment(both).items():
        labels = " or ".join(dict.fromkeys(pair.theirs.label for pair in pairs))
        own = "; ".join(text for text in common(pairs) if text not in all_share)
        bullets.append(f"- `{name}` beside {labels}{': ' if own else ''}{own}\n")
    return [
        f"**Ratio.** Our throughput is {min(ratios):.3g} to {max(ratios):.3g} times NVIDIA's, "
        f"{median(ratios):.3g} at the median of {len(ratios)} rows.",
        "**Why that may be unfair**, for every row and then for every experiment:",
        "".join(bullets),
        "What else speaks against a row stands in it. Both sides are judged by one rule, Little's "
        "law within 0.8 and 1.2, and compared by p99 rather than by average latency: where "
        "NVIDIA's tables have components, their average is the sum of those, not a measured mean.",
    ]


def as_table(both: Beside) -> Table:
    """Show the pairs, or NVIDIA's rows of the chosen GPU where nothing of ours was measured."""
    if not both.pairs:
        rows = [_theirs(row) for row in both.published if row.gpu == both.chosen]
        return table(_said(rows), f"NVIDIA's rows: {both.chosen or 'none'}")
    known = {name: common(pairs) for name, pairs in by_experiment(both).items()}
    lines = [_line(pair, known[pair.ours.experiment]) for pair in both.pairs]
    return table(lines, f"Ours ({both.gpu}) beside NVIDIA's ({both.chosen})", {"ratio": ".3g"})


def _said(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leave out the columns that say nothing in any row."""
    said = [name for name in (rows[0] if rows else ()) if any(row[name] for row in rows)]
    return [{name: row[name] for name in said} for row in rows]


def _line(pair: Pair, known: list[str]) -> dict[str, Any]:
    """Spell a pair; below the verdict on our row stand the reasons that are not `known`."""
    ours, theirs = pair.ours, pair.theirs
    verdict = ours.verdict or "stable"
    beside = [text for text in pair.reasons if text not in (*known, f"our row is {verdict}")]
    return {
        "experiment": ours.experiment,
        "scenario": ours.scenario,
        "batch x clients": f"{ours.batch_size:,} x {ours.concurrency:,}",
        "NVIDIA's": f"{theirs.batch_size:,} x {theirs.concurrency:,}",
        "ours (samples/s)": ours.throughput,
        "NVIDIA's (samples/s)": theirs.throughput,
        "ratio": pair.ratio,
        "our p99 (ms)": ours.p99_latency_ms,
        "NVIDIA's p99 (ms)": theirs.p99_latency_ms,
        "verdict": verdict,
        "reason": "; ".join(beside),
    }


def _theirs(row: PublishedRow) -> dict[str, Any]:
    law = f"breaks Little's law ({row.littles_law:.2f})" if row.breaks_littles_law else None
    return {
        "scenario": row.scenario,
        "data set": row.dataset,
        "served": row.label,
        "batch size": row.batch_size,
        "clients": row.concurrency,
        "throughput (samples/s)": row.throughput,
        "p50 (ms)": row.p50_latency_ms,
        "p99 (ms)": row.p99_latency_ms,
        "mind": law,
    }


def data(both: Beside, scenario: str) -> "DataFrame":
    """Give what the figure shows: the pairs, then NVIDIA's other rows that are drawn."""
    from pandas import DataFrame

    pairs = both.of(scenario)
    beside = {id(pair.theirs) for pair in pairs}
    rows: list[Mapping[str, Any]] = [pair.as_row() for pair in pairs]
    rows += [
        {"scenario": scenario, **nvidia_comparison.as_published(row)}
        for row in both.drawn(scenario)
        if id(row) not in beside
    ]
    return DataFrame(rows)
