"""Describe measurements in sentences: the captions of charts, the answer of a report, and the
findings of a performance stage.

This module chooses the facts; `prose/sentences.md.j2` has the sentences. They use stable and
imprecise measurements with the 95% CIs of their throughputs. A caption is also the alternative text
of its chart.
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
from helpers.measure import Ratio, interval
from helpers.report.analysis import TRUSTED, UNLIMITED, known, leaders, measured, workloads
from helpers.results import LATENCY_COMPONENTS, Peaks, clients_of

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
    environment.filters.update(digits=digits, short=short, clients=clients_of)
    environment.filters.update(percent="{:.0%}".format, whole="{:,.0f}".format)
    environment.globals.update(interval=interval, ratio=lambda one, other=1: Ratio(one / other))
    environment.filters["shown"] = escaped
    return environment.get_template(file)


def escaped(text: str) -> str:
    """Return Markdown that shows a text as it is: nothing in it is markup, HTML or a formula."""
    one_line = escape(" ".join(text.split()), quote=False)
    return re.sub(r"[\\`*_\[\]|~$]", lambda match: f"&#{ord(match[0])};", one_line)


def within(limit: float) -> str:
    """Return the name of a latency budget; "" if there is none."""
    return "" if limit == UNLIMITED else f" within {limit:g} ms (p99)"


def per_workload(
    rows: "DataFrame", describe: "Callable[[DataFrame], str]", between: str, after: str = ": "
) -> str:
    """Join the descriptions of all workloads, each with its name if there are several."""
    texts = [(name, describe(points)) for name, points in workloads(rows)]
    return between.join(f"{name}{after}{text}" if name else text for name, text in texts if text)


def _counted(rows: "DataFrame") -> str:
    """Return how many rows have each quality."""
    counts = [f"{count} {word}" for word, count in rows["quality"].value_counts().items()]
    return ", ".join(counts)


def _listed(rows: "DataFrame") -> "list[Series[float]]":
    return [row for _, row in rows.iterrows()]


def _ends(rows: "DataFrame") -> "list[Series[float]]":
    """Return the first row and the last, once if they are the same."""
    return _listed(rows.iloc[[0, -1]] if len(rows) > 1 else rows)


# Captions


def fastest(rows: "DataFrame", limit: float = UNLIMITED) -> str:
    """Return the fastest measurement of each workload within the budget and those that may be as
    fast. Add a faster one that needs more requests to be confirmed.
    """
    return per_workload(rows, lambda points: _fastest(points, limit), " ")


def _fastest(points: "DataFrame", limit: float) -> str:
    best = leaders(points, limit)
    shown = best if len(best) < 4 else best.drop_duplicates("experiment")
    unknown = known(points[points["budget"] == "unconfirmed"])
    faster = unknown[~(unknown["throughput"] <= best["throughput"].max())]
    is_limited = limit < UNLIMITED
    return say(
        "fastest",
        shown=_listed(shown),
        more=len(best) - len(shown),
        limit=f"{limit:g}" if is_limited else "",
        unconfirmed=_listed(faster.sort_values("throughput").tail(1 if is_limited else 0)),
    )


def frontier(rows: "DataFrame", limit: float = UNLIMITED) -> str:
    """Return the caption of throughput against latency."""
    head = "" if leaders(rows, limit).empty else f"Fastest{within(limit)}: "
    return f"{head}{fastest(rows, limit)}"


def throughput(rows: "DataFrame") -> str:
    """Return the caption of offline throughput: the highest of each workload."""
    offline = rows[rows["scenario"] == "offline"]
    none = "No offline throughput is known."
    return none if known(offline).empty else f"Highest offline throughput: {fastest(offline)}"


def latency(rows: "DataFrame") -> str:
    """Return the caption of offline p99 latency: at the smallest and at the largest batch size."""
    points = known(measured(rows, "offline", "p99_latency_ms"))
    lines = [(name, _ends(line)) for name, line in points.groupby("experiment", sort=False)]
    return say("latency", lines=lines)


def latency_parts(rows: "DataFrame") -> str:
    """Return the caption of the latency's parts: the largest, and where throughput peaks."""
    points = known(measured(rows, "online", "avg_latency_ms"))
    if points.empty:
        return "No online latency is known."
    highest = leaders(points)
    low, high = highest["concurrency"].min(), highest["concurrency"].max()
    peak = say("highest_online", top=highest.iloc[0], low=low, high=high)
    return f"{_largest_part(points.iloc[-1], 'concurrency')} {peak}"


def _largest_part(row: "Series[float]", axis: str) -> str:
    """Return the mean latency of a measurement, and its largest part if the parts are known."""
    parts = row[list(LATENCY_COMPONENTS)].dropna().astype(float).nlargest(1)
    for part, ms in parts.items():
        return say("largest_part", row=row, axis=axis, label=LATENCY_COMPONENTS[str(part)], ms=ms)
    return say("largest_part", row=row, axis=axis, label="", ms=None)


def rates(rows: "DataFrame", limit: float = UNLIMITED) -> str:
    """Return the caption of latency over request rate: the highest rate of each workload that is
    confirmed to meet the budget. Without a budget it is the highest that the server kept up with.
    """
    if rows.empty:
        return "The request-rate mode was not measured."

    def highest(points: "DataFrame") -> str:
        trusted = points[points["quality"].isin(TRUSTED)]
        trusted = trusted if limit == UNLIMITED else trusted[trusted["budget"] == "met"]
        top = _listed(trusted.sort_values("throughput").tail(1))
        return "".join(say("request_rate", row=row) for row in top)

    caption = per_workload(rows, highest, "; ")
    none = f"No request rate is confirmed{within(limit)}."
    return f"Highest request rate{within(limit)}: {caption}." if caption else none


def relative_throughput(rows: "DataFrame") -> str:
    """Return the caption of throughput relative to in-process: the median, and the lowest."""
    points = known(rows).dropna(subset=["relative_throughput", "relative_throughput_low"])
    if points.empty:
        return "No relative throughput is known."
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
    bounded = points.dropna(subset=["residual_overhead_low_ms"])
    above = bounded[bounded["residual_overhead_low_ms"] > 0].sort_values("residual_overhead_ms")
    return say(
        "overhead",
        medians=[*dict.fromkeys((medians[0], medians[-1]))],
        largest=_listed(above.tail(1)),
        has_bounds=len(bounded) > 0,
    )


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


def headline(rows: "DataFrame") -> str:
    """Return the result of a report in one line, for an index."""

    def fastest_of(points: "DataFrame") -> str:
        best = leaders(points)
        names = best["experiment"].unique()
        several = " (no clear winner)" * (len(names) > 1)
        return "".join(
            f"{top:,.1f} samples/s: {' or '.join(names)}{several}"
            for top in best["throughput"].head(1)
        )

    nothing = "no throughput is known" if len(rows) else "nothing was measured"
    return per_workload(rows, fastest_of, "; ", " ") or nothing


# Findings of a stage


def offline(rows: "DataFrame") -> list[str]:
    """Return what a larger batch gains and costs, what serving adds to an in-process call, and
    where the time goes. A batch that is sent again and again is left out.
    """
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
    """Return how much more throughput the first point has whose 95% CI overlaps with the highest's,
    and what those beyond it have.
    """
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
        noop_ms = row["noop_latency_ms"] if index == 0 else None
        low, high = row["relative_throughput_low"], row["relative_throughput_high"]
        is_equal = _is_positive(low) and low <= 1 <= high
        yield say(
            "serving",
            row=row,
            call_ms=1000 * row["batch_size"] / row["in_process_throughput"],
            is_measurable=row["serving_overhead_ms"] > 0 and not is_equal,
            noop_ms=noop_ms if _is_positive(noop_ms) else None,
            residual_ms=row["residual_overhead_ms"]
            if _is_positive(row["residual_overhead_low_ms"])
            else None,
        )


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
