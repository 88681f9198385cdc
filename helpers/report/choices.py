"""What to deploy: the best configuration for throughput, for latency and within the budget, each
with the reason and the command that serves it; and every format compared with fp32.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from html import escape
from math import exp, hypot, log
from typing import TYPE_CHECKING

from helpers.config import ReportConfig, Value
from helpers.display import Table, short
from helpers.report import findings, text
from helpers.report.answers import Answer, Choice, facts
from helpers.report.findings import UNLIMITED
from helpers.results import Result, Results, clients_of

if TYPE_CHECKING:
    from pandas import DataFrame, Series

__all__ = ["against_fp32", "card", "choose", "facts"]

CAPTION = "What to deploy"
CARD = (
    "flex:1 1 17rem;max-width:26rem;border:1px solid #8a929c;border-radius:8px;padding:.7rem .9rem"
)
LINE = "white-space:pre-wrap;overflow-wrap:anywhere;margin:.4rem 0 0;font-size:.85em"


def choose(config: ReportConfig, found: Results, rows: "DataFrame") -> tuple[Answer, ...]:
    """Choose for each workload, among the rows whose throughput is known: the best within the
    budget if there is one, for throughput and for latency, in this order.
    """
    return tuple(
        Answer(workload, tuple(_merged(_choices(config, found, one))), _throughputs(one))
        for workload, one in findings.workloads(rows)
    )


def _choices(config: ReportConfig, found: Results, rows: "DataFrame") -> Iterator[Choice]:
    known, limit = findings.known(rows), config.latency_budget_ms or UNLIMITED
    in_time = f"within {limit:g} ms (p99)"
    within = findings.leaders(findings.measured(rows, "online"), limit)
    if limit < UNLIMITED:
        for _, row in within.head(1).iterrows():
            why = "The highest online throughput that is confirmed to meet the budget."
            yield _choice(config, found, in_time, row, why)
    for _, row in findings.leaders(rows).head(1).iterrows():
        yield _choice(config, found, "for throughput", row, _against_others(row, known))
    for _, row in _equal_sizes(known).head(1).iterrows():
        best = f"for latency at batch size {row['batch_size']:,.0f}"
        yield _choice(config, found, best, row, _lowest(row, known))
    if limit < UNLIMITED and within.empty:
        yield Choice(in_time, "", _unconfirmed(findings.measured(rows, "online"), limit))


def _equal_sizes(known: "DataFrame") -> "DataFrame":
    """Return rows of one batch size by their p50: the smallest that several experiments have."""
    rows = known.dropna(subset=["p50_latency_ms"]).sort_values("p50_latency_ms")
    shared = rows.groupby("batch_size")["experiment"].nunique()
    sizes = shared[shared > 1].index if (shared > 1).any() else shared.index
    return rows[rows["batch_size"] == min(sizes, default=0)]


def _lowest(row: "Series[float]", known: "DataFrame") -> str:
    """Return why a row is best for latency: among how many experiments."""
    same = known[known["batch_size"] == row["batch_size"]]["experiment"].nunique()
    p50 = f"{short(row['p50_latency_ms'])} ms"
    if same == 1:
        return f"Its p50 is {p50}. No other experiment was measured at this batch size."
    return f"Its p50 of {p50} is the lowest of {same} experiments at this batch size."


def _unconfirmed(online: "DataFrame", limit: float) -> str:
    """Return why no row is confirmed to meet the budget."""
    known = findings.known(online).dropna(subset=["p99_latency_ms"])
    below = known[(known["budget"] == "unconfirmed") & (known["p99_latency_ms"] <= limit)]
    for _, row in below.sort_values("throughput").tail(1).iterrows():
        return (
            f"Not enough requests to confirm: {row['experiment']} has {row['requests']:,.0f} of at "
            f"least {row['budget_needs']:,.0f}."
        )
    for _, row in known.sort_values("p99_latency_ms").head(1).iterrows():
        p99 = short(row["p99_latency_ms"])
        return f"The lowest p99 is {p99} ms ({row['experiment']}), the budget {limit:g} ms."
    return "No online throughput is known."


def _merged(choices: Iterable[Choice]) -> Iterator[Choice]:
    """Name a row that is best for several things once."""
    found: dict[tuple[str, str, float | None], Choice] = {}
    for choice in choices:
        key = choice.experiment, choice.load, choice.throughput
        if before := found.get(key):
            both = f"{before.best}, {choice.best}", f"{before.why} {choice.why}"
            choice = replace(before, best=both[0], why=both[1])
        found[key] = choice
    yield from found.values()


def _against_others(row: "Series[float]", known: "DataFrame") -> str:
    """Compare the fastest row with the best of the other experiments."""
    others = known[known["experiment"] != row["experiment"]]
    best = others.sort_values("throughput", ascending=False).drop_duplicates("experiment")
    for _, other in best.head(1).iterrows():
        share = row["throughput"] / other["throughput"]
        alike = other["throughput_high"] >= row["throughput_low"]
        winner = " No clear winner: the 95% CIs overlap." if alike else ""
        return f"{short(share)}× the throughput of the next, {other['experiment']}.{winner}"
    return "No other experiment has a known throughput."


def _choice(
    config: ReportConfig, found: Results, best: str, row: "Series[float]", why: str
) -> Choice:
    from pandas import isna

    name, p99 = str(row["experiment"]), row["p99_latency_ms"]
    clients = clients_of(row["concurrency"])
    line = f"triton-notebooks serve params/{config.target}.yaml --model {config.model}"
    return Choice(
        best,
        name,
        why,
        throughput=float(row["throughput"]),
        p99_latency_ms=None if isna(p99) else float(p99),
        load=f"batch size {row['batch_size']:,.0f}, {clients}, {row['scenario']}",
        accuracy=text.accuracy_kept(found[name]),
        command=f"{line} --experiment {name}",
    )


def _throughputs(rows: "DataFrame") -> dict[str, float]:
    """Return the highest known throughput of each experiment, in the order of the rows."""
    highest = findings.known(rows).groupby("experiment", sort=False)["throughput"].max()
    return {str(name): float(value) for name, value in highest.items() if value > 0}


def card(answers: Iterable[Answer]) -> Table:
    """Show the choices next to each other, or that nothing is known."""
    cards = [
        f'<section style="{CARD}"><div>{escape(_purpose(answer, each))}</div>'
        f'<div style="font-size:1.25em;font-weight:600">{escape(each.experiment or "none")}</div>'
        f"<div>{escape(each.figures)}</div><p>{escape(each.why)}</p>"
        f'<pre style="{LINE}">{escape(each.command)}</pre></section>'
        for answer in answers
        for each in answer.choices
    ]
    none = "<p>No throughput is known well enough to recommend a configuration.</p>"
    body = "".join(cards) or none
    return Table(f'<div style="display:flex;flex-wrap:wrap;gap:.8rem">{body}</div>', CAPTION)


def _purpose(answer: Answer, choice: Choice) -> str:
    best = f"Best {choice.best}" if choice.experiment else choice.best.capitalize()
    return f"{answer.workload}: {best}" if answer.workload else best


def against_fp32(config: ReportConfig, found: Results, rows: "DataFrame") -> list[dict[str, Value]]:
    """One row for each experiment of each workload: its metrics, its offline throughput relative to
    the first experiment in fp32, its latency, memory and size. Batch sizes are the largest that
    most experiments of a workload have.
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
        table += [_compared(name, found[name], points.get(name), base) for name in names]
    columns = dict.fromkeys(name for row in table for name in row)
    return [{name: row.get(name) for name in columns} for row in table]


def _compared(
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
        row["× fp32 (95% CI)"] = _ratio(point, base)
        row["p50_latency_ms"] = float(point["p50_latency_ms"])
        row |= {each: str(point[each]) for each in ("quality", "reason")}
        row["server_peak_memory_mb"] = point["server_peak_memory_mb"]
    row["size_mb"] = convert.artifact.size_mb if convert and convert.artifact else None
    return row


def _ratio(point: "Series[float]", base: "Series[float] | None") -> str | None:
    """Return a throughput relative to fp32 with its 95% CI: the logarithms' variances add up."""
    if base is None or not (point["throughput_low"] > 0 and base["throughput_low"] > 0):
        return None
    if point["experiment"] == base["experiment"]:
        return "1"
    ratio = point["throughput"] / base["throughput"]
    ends = (log(each["throughput_high"] / each["throughput_low"]) / 2 for each in (point, base))
    reach = exp(hypot(*ends))
    return f"{ratio:.2f} ({ratio / reach:.2f} to {ratio * reach:.2f})"
