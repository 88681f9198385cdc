"""What to deploy: the best configuration for throughput, for latency and within the budget, each
with the reason and the line that serves it; and every format and precision beside fp32.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from html import escape
from typing import TYPE_CHECKING

from helpers.config import ReportConfig, Value
from helpers.display import Table, short
from helpers.report import findings, text
from helpers.report.answers import Answer, Choice, facts
from helpers.report.findings import UNLIMITED
from helpers.results import Result, Results

if TYPE_CHECKING:
    from pandas import DataFrame, Series

__all__ = ["against_fp32", "card", "choose", "facts"]

CAPTION = "What to deploy"
CARD = (
    "flex:1 1 17rem;max-width:26rem;border:1px solid #8a929c;border-radius:8px;padding:.7rem .9rem"
)
LINE = "white-space:pre-wrap;overflow-wrap:anywhere;margin:.4rem 0 0;font-size:.85em"


def choose(config: ReportConfig, found: Results, rows: "DataFrame") -> tuple[Answer, ...]:
    """Choose for each workload, among the points whose throughput is known: the best within the
    budget if there is one, for throughput and for latency, in this order.
    """
    return tuple(
        Answer(workload, tuple(_merged(_choices(config, found, one))), _throughputs(one))
        for workload, one in findings.workloads(rows)
    )


def _choices(config: ReportConfig, found: Results, rows: "DataFrame") -> Iterator[Choice]:
    known, limit = findings.known(rows), config.latency_budget_ms or UNLIMITED
    in_time = f"within the budget of {limit:g} ms at p99"
    within = findings.leaders(findings.measured(rows, "online"), limit)
    if limit < UNLIMITED:
        for _, row in within.head(1).iterrows():
            why = "The highest throughput of clients over HTTP that is known to keep the budget."
            yield _choice(config, found, in_time, row, why)
    for _, row in findings.leaders(rows).head(1).iterrows():
        yield _choice(config, found, "for throughput", row, _against_others(row, known))
    answered = known.dropna(subset=["p50_latency_ms"])
    for _, row in answered.sort_values("p50_latency_ms").head(1).iterrows():
        why = (
            f"Half of its requests take {short(row['p50_latency_ms'])} ms or less; no other point "
        )
        yield _choice(config, found, "for latency", row, f"{why}has a lower median.")
    if limit < UNLIMITED and within.empty:
        few = "Too few requests were measured, or too many took longer: see the online table."
        yield Choice(in_time, "", few)


def _merged(choices: Iterable[Choice]) -> Iterator[Choice]:
    """Name a point that is best for several things once."""
    found: dict[tuple[str, str, float | None], Choice] = {}
    for choice in choices:
        key = choice.experiment, choice.load, choice.throughput
        if before := found.get(key):
            both = f"{before.best}, {choice.best}", f"{before.why} {choice.why}"
            choice = replace(before, best=both[0], why=both[1])
        found[key] = choice
    yield from found.values()


def _against_others(row: "Series[float]", known: "DataFrame") -> str:
    """Compare the fastest point with the best of each other experiment."""
    others = known[known["experiment"] != row["experiment"]]
    best = others.sort_values("throughput", ascending=False).drop_duplicates("experiment")
    for _, other in best.head(1).iterrows():
        share = row["throughput"] / other["throughput"]
        alike = other["throughput_high"] >= row["throughput_low"]
        told = ", and the two are not told apart" if alike else ""
        return (
            f"Its throughput is {short(share)} times that of the next, {other['experiment']}{told}."
        )
    return "No other experiment has a known throughput."


def _choice(
    config: ReportConfig, found: Results, best: str, row: "Series[float]", why: str
) -> Choice:
    from pandas import isna

    load = f"{row['concurrency']:,.0f} clients" if row["concurrency"] > 1 else "one client"
    name, p99 = str(row["experiment"]), row["p99_latency_ms"]
    line = f"triton-notebooks serve params/{config.target}.yaml --model {config.model}"
    return Choice(
        best,
        name,
        why,
        throughput=float(row["throughput"]),
        p99_latency_ms=None if isna(p99) else float(p99),
        load=f"batch size {row['batch_size']:,.0f}, {load}, {row['scenario']}",
        accuracy=text.accuracy_kept(found[name]),
        command=f"{line} --experiment {name}",
    )


def _throughputs(rows: "DataFrame") -> dict[str, float]:
    """Give the highest known throughput of each experiment, in the order of the rows."""
    highest = findings.known(rows).groupby("experiment", sort=False)["throughput"].max()
    return {str(name): float(value) for name, value in highest.items() if value > 0}


def card(answers: Iterable[Answer]) -> Table:
    """Show the choices side by side; a sentence says so where nothing is known."""
    cards = [
        f'<section style="{CARD}"><div>{escape(_purpose(answer, each))}</div>'
        f'<div style="font-size:1.25em;font-weight:600">{escape(each.experiment or "none")}</div>'
        f"<div>{escape(each.figures)}</div><p>{escape(each.why)}</p>"
        f'<pre style="{LINE}">{escape(each.command)}</pre></section>'
        for answer in answers
        for each in answer.choices
    ]
    none = "<p>No point is known well enough to recommend a configuration.</p>"
    body = "".join(cards) or none
    return Table(f'<div style="display:flex;flex-wrap:wrap;gap:.8rem">{body}</div>', CAPTION)


def _purpose(answer: Answer, choice: Choice) -> str:
    best = f"Best {choice.best}" if choice.experiment else choice.best.capitalize()
    return f"{answer.workload}: {best}" if answer.workload else best


def against_fp32(config: ReportConfig, found: Results, rows: "DataFrame") -> list[dict[str, Value]]:
    """One row for each experiment of each workload: what the server keeps of the framework's
    accuracy, its throughput offline relative to the first experiment in fp32, and what it takes.
    Batch sizes are the largest that most experiments of a workload have.
    """
    table: list[dict[str, Value]] = []
    for _, one in findings.workloads(rows):
        offline = findings.measured(one, "offline")
        shared = offline.groupby("batch_size")["experiment"].nunique()
        at_size = offline[offline["batch_size"] == shared[shared == shared.max()].index.max()]
        points = {str(row["experiment"]): row for _, row in at_size.iterrows()}
        names = [name for name in config.experiments if name in set(one["experiment"])]
        plain = [name for name in names if name in points and points[name]["precision"] == "FP32"]
        base = points[plain[0]] if plain else None
        table += [_beside(name, found[name], points.get(name), base) for name in names]
    columns = dict.fromkeys(name for row in table for name in row)
    return [{name: row.get(name) for name in columns} for row in table]


def _beside(
    name: str,
    stages: Mapping[str, Result],
    point: "Series[float] | None",
    base: "Series[float] | None",
) -> dict[str, Value]:
    deploy, convert = stages.get("deploy"), stages.get("convert")
    settings = deploy.fingerprint.config if deploy and deploy.fingerprint else {}
    row: dict[str, Value] = {"experiment": name}
    row |= {each: settings.get(each) for each in ("format", "precision")}
    row |= {each.metric: f"{each.served:.4f}" for each in (deploy.scores if deploy else ())}
    if point is not None:
        row |= {"batch_size": int(point["batch_size"]), "throughput": float(point["throughput"])}
        row["times fp32"] = _ratio(point, base)
        row["p50_latency_ms"] = float(point["p50_latency_ms"])
        row |= {each: str(point[each]) for each in ("quality", "reason")}
        row["server_peak_memory_mb"] = point["server_peak_memory_mb"]
    row["size_mb"] = convert.artifact.size_mb if convert and convert.artifact else None
    return row


def _ratio(point: "Series[float]", base: "Series[float] | None") -> str | None:
    """Write a throughput relative to that in fp32, between the ends of both intervals."""
    if base is None or not (point["throughput_low"] > 0 and base["throughput_low"] > 0):
        return None
    if point["experiment"] == base["experiment"]:
        return "1"
    low = point["throughput_low"] / base["throughput_high"]
    high = point["throughput_high"] / base["throughput_low"]
    return f"{point['throughput'] / base['throughput']:.2f} ({low:.2f} to {high:.2f})"
