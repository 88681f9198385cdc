"""Describe measurements in sentences: captions of charts, findings of a report and of a stage.

This module chooses the facts; `prose/sentences.md.j2` has the sentences. They use stable and
imprecise measurements. A caption is also the alternative text of its chart.
"""

import re
from collections.abc import Callable, Iterator
from functools import cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from helpers.config import OnlineConfig
from helpers.display import digits, short
from helpers.inference import physical_cores
from helpers.measure import interval
from helpers.report.analysis import TRUSTED, known, leaders, measured, pareto, workloads
from helpers.results import LATENCY_COMPONENTS, Estimate, Peaks, clients_of

if TYPE_CHECKING:
    from jinja2 import Template
    from pandas import DataFrame, Series

PROSE = Path(__file__).parent / "prose"
COMPANIONS = ("prose/sentences.md.j2", "prose/published.md.j2")
JOINED = 1.01  # average batch size over that of a request: above it, requests were batched


def say(sentence: str, **values: object) -> str:
    """Fill in a sentence of `prose/sentences.md.j2`."""
    return " ".join(str(getattr(_prose("sentences.md.j2").module, sentence)(**values)).split())


def fill_in(file: str, **values: object) -> str:
    """Fill in a text of `prose`, and return it as Markdown."""
    return _prose(file).render(values)


@cache
def _prose(file: str) -> "Template":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(loader=FileSystemLoader(PROSE), undefined=StrictUndefined)
    environment.filters.update(digits=digits, short=short, clients=clients_of, shown=escaped)
    environment.filters.update(percent="{:.0%}".format, whole="{:,.0f}".format)
    environment.globals.update(interval=interval, overlap=overlap)
    environment.globals["ratio"] = lambda one, other=1: Estimate(value=one / other).times
    environment.tests["positive"] = _is_positive
    return environment.get_template(file)


def escaped(text: str) -> str:
    """Return Markdown that shows a text as it is: nothing in it is markup, HTML or a formula."""
    one_line = escape(" ".join(text.split()), quote=False)
    return re.sub(r"[\\`*_\[\]|~$]", lambda match: f"&#{ord(match[0])};", one_line)


def per_workload(rows: "DataFrame", describe: "Callable[[DataFrame], str]") -> str:
    """Join the descriptions of all workloads, each with its name if there are several."""
    texts = [(name, describe(points)) for name, points in workloads(rows)]
    return "; ".join(f"{name}: {text}" if name else text for name, text in texts if text)


def _counted(rows: "DataFrame") -> str:
    """Return how many rows have each quality."""
    return ", ".join(f"{count} {word}" for word, count in rows["quality"].value_counts().items())


def _listed(rows: "DataFrame") -> "list[Series[float]]":
    return [row for _, row in rows.iterrows()]


def _ends(rows: "DataFrame") -> "list[Series[float]]":
    """Return the first row and the last, once if they are the same."""
    return _listed(rows.iloc[[0, -1]] if len(rows) > 1 else rows)


def frontier(rows: "DataFrame") -> str:
    """Return the caption of throughput against latency: how many Pareto points each has."""

    def front(points: "DataFrame") -> str:
        counts = pareto(points)["experiment"].value_counts()
        return ", ".join(f"{name} {count}" for name, count in counts.items())

    points = per_workload(rows, front)
    if not points:
        return "No measurement is stable or imprecise, so none is a Pareto point."
    return (
        f"Pareto points: no other measurement has both more throughput and a lower p99. {points}."
    )


def throughput(rows: "DataFrame") -> str:
    """Return the caption of offline throughput: at the smallest and at the largest batch size."""
    return _over_batch(rows, "throughput")


def latency(rows: "DataFrame") -> str:
    """Return the caption of offline p99 latency: at the smallest and at the largest batch size."""
    return _over_batch(rows, "p99_latency_ms")


def _over_batch(rows: "DataFrame", column: str) -> str:
    points = known(measured(rows, "offline", column))
    lines = [(name, _ends(line)) for name, line in points.groupby("experiment", sort=False)]
    return say("over_batch", lines=lines, column=column)


def latency_parts(rows: "DataFrame") -> str:
    """Return the caption of the latency's parts: the largest, and where throughput peaks."""
    points = known(measured(rows, "online", "avg_latency_ms"))
    if points.empty:
        return "No online measurement is stable or imprecise."
    highest = leaders(points)
    low, high = highest["concurrency"].min(), highest["concurrency"].max()
    peak = say("highest_online", top=highest.iloc[0], low=low, high=high)
    return f"{_largest_part(points.iloc[-1], 'concurrency')} {peak}"


def _largest_part(row: "Series[float]", axis: str) -> str:
    """Return the mean latency of a measurement, and its largest part if the parts are known."""
    parts = row[list(LATENCY_COMPONENTS)].dropna().astype(float)
    label = LATENCY_COMPONENTS[parts.idxmax()] if len(parts) else ""
    return say("largest_part", row=row, axis=axis, label=label, ms=parts.max())


def rates(rows: "DataFrame", limit: float | None = None) -> str:
    """Return the caption of latency over request rate: the highest rate of each workload that is
    confirmed to meet the budget. Without a budget it is the highest that the server kept up with.
    """
    if rows.empty:
        return "The request-rate mode was not measured."

    def highest(points: "DataFrame") -> str:
        trusted = points[points["quality"].isin(TRUSTED)]
        trusted = trusted[trusted["budget"] == "met"] if limit else trusted
        top = _listed(trusted.sort_values("throughput").tail(1))
        return "".join(say("request_rate", row=row) for row in top)

    caption = per_workload(rows, highest)
    within = f" within {limit:g} ms (p99)" if limit else ""
    none = f"No request rate is confirmed{within}."
    return f"Highest request rate{within}: {caption}." if caption else none


def relative_throughput(rows: "DataFrame") -> str:
    """Return the caption of throughput relative to in-process: the median, and the lowest."""
    points = known(rows).dropna(subset=["relative_throughput", "relative_throughput_low"])
    if points.empty:
        return "No relative throughput was measured well enough."
    shares = points["relative_throughput"]
    low = points.loc[shares.idxmin()]
    return say("relative_throughput", median=shares.median(), count=len(points), low=low)


def overhead(rows: "DataFrame") -> str:
    """Return the latency of the no-op model, and where the residual overhead is largest."""
    points = known(rows).dropna(subset=["noop_latency_ms"])
    if points.empty and rows["noop_latency_ms"].notna().any():
        return "The no-op model has no stable or imprecise measurement."
    if points.empty:
        reasons = ", ".join(filter(None, rows["noop_reason"].dropna().unique()))
        return f"The no-op model was not measured{f': {reasons}' * bool(reasons)}."
    medians = [*points.groupby("batch_size")["noop_latency_ms"].median().items()]
    ends = dict.fromkeys((medians[0], medians[-1]))
    bounded = points.dropna(subset=["residual_overhead_low_ms"])
    above = bounded[bounded["residual_overhead_low_ms"] > 0].sort_values("residual_overhead_ms")
    largest, has_bounds = _listed(above.tail(1)), len(bounded) > 0
    return say("overhead", medians=[*ends], largest=largest, has_bounds=has_bounds)


def roofline(rows: "DataFrame", peaks: Peaks | None) -> str:
    """Return the caption of the roofline: the highest share of it for each experiment."""
    if peaks is None:
        return "The roofline was not measured."
    points = known(rows).dropna(subset=["roofline_share"])
    best = points.sort_values("roofline_share", ascending=False).drop_duplicates("experiment")
    unknown = sorted({*rows["experiment"]} - {*points["experiment"]})
    return say("roofline", highest=_listed(best.sort_index()), unknown=unknown)


def machine_speed(rows: "DataFrame") -> str:
    """Return the run-to-run variation: how much the machine's speed moved between measurements."""
    speeds = rows["machine_gflops"].dropna()
    if len(speeds) < 2:
        return "The machine's speed was not measured."
    low, high = 100 * (speeds / speeds.median()).quantile([0.025, 0.975])
    return say("machine_speed", low=low, high=high, count=len(speeds))


def qualities(rows: "DataFrame") -> str:
    """Return how many measurements have each quality."""
    total = f"{len(rows)} measurement{'s' * (len(rows) != 1)}"
    return f"{total}: {_counted(rows) or 'none'}. Findings use stable and imprecise ones."


def offline(rows: "DataFrame") -> list[str]:
    """Return what a larger batch gains and costs, what serving adds, and where the time goes."""
    every, axis = rows[~rows["repeated"].astype(bool)], "batch_size"
    points = known(every).sort_values(axis)
    if points.empty:
        return [_unknown(every, "batch size")]
    return [*_growth(points, axis), *_serving(points), _largest_part(points.iloc[-1], axis)]


def online(rows: "DataFrame", config: OnlineConfig, is_local: bool) -> list[str]:
    """Return where throughput stops growing, what the batcher did, where the time goes and how many
    clients the budget allows. With `is_local` the client shares the server's cores.
    """
    axis = "concurrency"
    points = known(rows).sort_values(axis)
    if points.empty:
        return [_unknown(rows, "number of clients"), cores(config, is_local)]
    return [
        *_growth(points, axis),
        *_batches(points),
        _largest_part(points.iloc[-1], axis),
        *_budget(points, config.latency_budget_ms),
        cores(config, is_local),
    ]


def _unknown(rows: "DataFrame", what: str) -> str:
    return f"No {what} has a known throughput ({_counted(rows)}). The table has the reasons."


def _growth(points: "DataFrame", axis: str) -> Iterator[str]:
    """Yield what the first point gains whose 95% CI overlaps with the highest's, and the last."""
    first, last = points.iloc[0], points.iloc[-1]
    enough = points[points.index.isin(leaders(points).index)].iloc[0]
    if len(points) == 1:
        yield say("only", row=first, axis=axis)
        return
    if enough.name != first.name:
        is_more = enough["throughput_low"] > first["throughput_high"]
        yield say("grows", enough=enough, first=first, axis=axis, is_measurable=is_more)
    if enough.name == last.name:
        yield say("still_grows", row=last, axis=axis)
    else:
        yield say("stops_growing", last=last, enough=enough, axis=axis)


def _serving(points: "DataFrame") -> Iterator[str]:
    """Return what serving adds to an in-process call at the smallest and largest batch size."""
    compared = points.dropna(subset=["relative_throughput", "serving_overhead_ms"])
    for index, row in enumerate(_ends(compared)):
        call_ms = 1000 * row["batch_size"] / row["in_process_throughput"]
        yield say("serving", row=row, call_ms=call_ms, is_first=index == 0)


def overlap(row: "Series[float]", other: "Series[float]") -> bool:
    """Return whether the 95% CIs of both p50 latencies are known and overlap."""
    lows, highs = ([one[f"p50_{end}_ms"] for one in (row, other)] for end in ("low", "high"))
    return all(map(_is_positive, lows + highs)) and max(lows) <= min(highs)


def _is_positive(value: float | None) -> bool:
    return value is not None and value > 0


def _batches(points: "DataFrame") -> Iterator[str]:
    """Return the average batch size with the fewest and the most clients."""
    counted = points.dropna(subset=["average_batch_size"])
    if len(counted):
        are_joined = (counted["average_batch_size"] > JOINED * counted["batch_size"]).any()
        yield say("batches", ends=_ends(counted), are_joined=are_joined)


def _budget(points: "DataFrame", limit: float | None) -> Iterator[str]:
    """Return with which numbers of clients the measured p99 is within the budget."""
    counted = points.dropna(subset=["p99_latency_ms"])
    if limit and len(counted):
        is_within = counted["p99_latency_ms"] <= limit
        in_budget, over_budget = _listed(counted[is_within]), _listed(counted[~is_within])
        yield say("budget", in_budget=in_budget, over_budget=over_budget, limit=f"{limit:g}")


def cores(config: OnlineConfig, is_local: bool) -> str:
    """Return whether the load generator takes cores from the server."""
    url = "" if is_local else config.server.url
    return say("cores", url=url, count=physical_cores(), has_gpu=config.device != "cpu")
