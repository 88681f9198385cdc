"""What to deploy: the best configuration for throughput, for latency and within the budget, each
with the reason and the command that serves it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from helpers.config import ReportConfig
from helpers.display import Table
from helpers.report import analysis, text
from helpers.report.analysis import UNLIMITED
from helpers.report.answers import Answer, Recommendation, facts
from helpers.report.describe import say
from helpers.report.site import render
from helpers.results import Results

if TYPE_CHECKING:
    from pandas import DataFrame, Series

__all__ = ["cards", "choose", "facts"]

COMPANIONS = ("template/cards.html.j2",)


def choose(config: ReportConfig, results: Results, rows: "DataFrame") -> tuple[Answer, ...]:
    """Choose for each workload among the rows whose throughput is known. The choices are the best
    within the budget if there is one, for throughput and for latency, in this order.
    """
    return tuple(
        Answer(workload, tuple(_merged(_candidates(config, results, one))), _throughputs(one))
        for workload, one in analysis.workloads(rows)
    )


def _candidates(
    config: ReportConfig, results: Results, rows: "DataFrame"
) -> Iterator[Recommendation]:
    trusted, limit = analysis.known(rows), analysis.budget(config)
    in_time = f"within {limit:g} ms (p99)"
    within = analysis.leaders(analysis.measured(rows, "online"), limit)
    if limit < UNLIMITED:
        for _, row in within.head(1).iterrows():
            why = "The highest online throughput that is confirmed to meet the budget."
            yield _recommendation(config, results, in_time, row, why)
    for _, row in analysis.leaders(rows).head(1).iterrows():
        yield _recommendation(config, results, "for throughput", row, _against_others(row, trusted))
    for _, row in _equal_sizes(trusted).head(1).iterrows():
        best = f"for latency at {say('load', row=row, axis='batch_size')}"
        yield _recommendation(config, results, best, row, _lowest(row, trusted))
    if limit < UNLIMITED and within.empty:
        yield Recommendation(in_time, "", _unconfirmed(analysis.measured(rows, "online"), limit))


def _equal_sizes(trusted: "DataFrame") -> "DataFrame":
    """Return rows of one batch size by their p50: the smallest that several experiments have."""
    rows = trusted.dropna(subset=["p50_latency_ms"]).sort_values("p50_latency_ms")
    shared = rows.groupby("batch_size")["experiment"].nunique()
    sizes = shared[shared > 1].index if (shared > 1).any() else shared.index
    return rows[rows["batch_size"] == min(sizes, default=0)]


def _lowest(row: "Series[float]", trusted: "DataFrame") -> str:
    """Return why a row is best for latency: among how many experiments."""
    same = trusted[trusted["batch_size"] == row["batch_size"]]
    return say("lowest_p50", row=row, count=same["experiment"].nunique())


def _unconfirmed(online: "DataFrame", limit: float) -> str:
    """Return why no row is confirmed to meet the budget."""
    trusted = analysis.known(online).dropna(subset=["p99_latency_ms"])
    if trusted.empty:
        return "No online throughput is known."
    below = trusted[(trusted["budget"] == "unconfirmed") & (trusted["p99_latency_ms"] <= limit)]
    if len(below):
        return say("too_few", row=below.sort_values("throughput").iloc[-1])
    return say("lowest_p99", row=trusted.sort_values("p99_latency_ms").iloc[0], limit=limit)


def _merged(choices: Iterable[Recommendation]) -> Iterator[Recommendation]:
    """Yield a row that is best for several things once."""
    merged: dict[tuple[str, str, float | None], Recommendation] = {}
    for choice in choices:
        key = choice.experiment, choice.load, choice.throughput
        if before := merged.get(key):
            best, why = f"{before.best}, {choice.best}", f"{before.why} {choice.why}"
            choice = replace(before, best=best, why=why)
        merged[key] = choice
    yield from merged.values()


def _against_others(row: "Series[float]", trusted: "DataFrame") -> str:
    """Compare the fastest row with the best of the other experiments."""
    others = trusted[trusted["experiment"] != row["experiment"]]
    if others.empty:
        return "No other experiment has a known throughput."
    return say("compared_with_next", row=row, other=others.loc[others["throughput"].idxmax()])


def _recommendation(
    config: ReportConfig, results: Results, best: str, row: "Series[float]", why: str
) -> Recommendation:
    from pandas import isna

    name, p99 = str(row["experiment"]), row["p99_latency_ms"]
    line = f"triton-notebooks serve params/{config.target}.yaml --model {config.model}"
    return Recommendation(
        best,
        name,
        why,
        throughput=float(row["throughput"]),
        p99_latency_ms=None if isna(p99) else float(p99),
        load=say("loads", row=row),
        accuracy=text.accuracy_kept(results[name]),
        command=f"{line} --experiment {name}",
    )


def _throughputs(rows: "DataFrame") -> dict[str, float]:
    """Return the highest known throughput of each experiment, in the order of the rows."""
    highest = analysis.known(rows).groupby("experiment", sort=False)["throughput"].max()
    return {str(name): float(value) for name, value in highest.items() if value > 0}


def cards(answers: Sequence[Answer]) -> Table:
    """Return the recommendations next to each other, or that nothing is known."""
    return Table(render("cards.html.j2", {"answers": answers}), "What to deploy")
