"""A lesson's measurements as a table and in sentences: a difference has its 95% CI, and where that
contains no difference, the sentence says so.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from pydantic import JsonValue

from helpers.display import ABSENT, short
from helpers.measure import Point, interval, ratio_of, with_intervals
from helpers.results import clients_of

if TYPE_CHECKING:
    from pandas import DataFrame

COLUMNS = [  # of a table
    *("configuration", "clients", "throughput", "times", "p50_latency_ms", "p99_latency_ms"),
    *("average_batch_size", "server_peak_memory_mb", "requests", "quality", "reason"),
]
ENDS = [
    f"{name}_{end}"
    for name, unit in (("throughput", ""), ("times", ""), ("p50", "_ms"), ("p99", "_ms"))
    for end in (f"low{unit}", f"high{unit}")
]
TIMES = "throughput relative to the first"
Describe = Callable[[Sequence[Point], Point, Point], str]


def frame(points: Sequence[Point]) -> "DataFrame":
    """Return all measurements, one row for each configuration and number of clients."""
    from pandas import DataFrame

    rows: list[dict[str, object]] = []
    for point in points:
        times = ratio_of(points, point, _first(points, point))
        fields = {"configuration": point.variant, "clients": point.row.concurrency}
        ends = times.interval
        fields |= {"times": times.value, "times_low": ends and ends.low}
        rows.append(point.row.model_dump() | fields | {"times_high": ends and ends.high})
    columns = [*COLUMNS, *ENDS, "server_queue_ms", "client_overhead", "background_cpu_cores"]
    return DataFrame(rows, columns=columns).infer_objects()


def shown(points: Sequence[Point]) -> "DataFrame":
    """Return what a reader compares: the numbers with their 95% CIs."""
    rows = frame(points)
    chosen = with_intervals(rows, COLUMNS).drop(columns="reason")  # shown once: see `_conditions`
    chosen["times"] = [str(ratio_of(points, point, _first(points, point))) for point in points]
    texts = [
        interval(*bounds) for bounds in zip(rows["p50_low_ms"], rows["p50_high_ms"], strict=True)
    ]
    chosen.insert(chosen.columns.get_loc("p50_latency_ms") + 1, "p50, 95% CI", texts)
    return chosen.rename(columns={"times": TIMES})


def facts(points: Sequence[Point]) -> dict[str, JsonValue]:
    """Return the measurements for the metadata of the lesson's result."""
    return {"points": json.loads(frame(points).to_json(orient="records"))}


def headline(points: Sequence[Point]) -> str:
    """Return the fastest configuration with many clients compared with the first, in one line."""
    _, many = _counts(points)
    loaded = [point for point in points if point.row.concurrency == many]
    best = max(loaded, key=lambda point: point.row.throughput or 0.0)
    first = _first(points, best)
    if best is first:
        return f"{clients_of(many)}: none was faster than {first.variant}"
    return _compared(points, many, (first.variant, best.variant), _throughput).rstrip(".")


def notice_batching(points: Sequence[Point]) -> list[str]:
    """Return the effects of the delay and of the preferred sizes."""
    few, many = _counts(points)
    none, zero, *delays = dict.fromkeys(point.variant for point in points)
    longest = delays[len(delays) // 2 - 1]  # the other half prefers sizes
    preferring = delays[-1]
    joined = "; ".join(
        f"{short(_at(points, name, many).row.average_batch_size or 0.0)} with {name}"
        for name in (none, zero, longest, preferring)
    )
    idle, preferred = ", so there is nothing to batch", ", effect of preferred sizes"
    return [
        _compared(points, few, (zero, longest), _latency, idle),
        f"{clients_of(many)}, average batch size: {joined}.",
        _compared(points, many, (none, zero), _throughput, ", effect of batching"),
        _compared(points, many, (zero, longest), _throughput, ", effect of the delay"),
        _compared(points, many, (longest, preferring), _latency, preferred),
        _conditions(points),
    ]


def notice_instances(points: Sequence[Point]) -> list[str]:
    """Return the effects of instances and threads."""
    few, many = _counts(points)
    first, *others = dict.fromkeys(point.variant for point in points)
    pairs = [(first, name) for name in others]
    alone = [_compared(points, few, pair, _latency) for pair in pairs]
    if len(others) > 1:  # one instance with all cores, and two that share them
        pairs.append((others[0], others[1]))
    loaded = [_compared(points, many, pair, _throughput) for pair in pairs]
    return [*alone, *loaded, *_memory(points, first, others[-1:]), _conditions(points)]


def notice_precision(points: Sequence[Point]) -> list[str]:
    """Return the effects of lower precisions on the speed."""
    first, *others = dict.fromkeys(point.variant for point in points)
    sentences = [
        _compared(points, count, (first, name), _throughput)
        for name in others
        for count in _counts(points)
    ]
    return [*sentences, *_memory(points, first, others), _conditions(points)]


def _compared(
    points: Sequence[Point],
    clients: int,
    variants: tuple[str, str],
    describe: Describe,
    head: str = "",
) -> str:
    """Return how the second of two configurations differs from the first."""
    first, second = (_at(points, name, clients) for name in variants)
    return f"{clients_of(clients)}{head}: {describe(points, first, second)}"


def _at(points: Sequence[Point], variant: str, clients: int) -> Point:
    key = (variant, clients)
    return next(point for point in points if (point.variant, point.row.concurrency) == key)


def _first(points: Sequence[Point], point: Point) -> Point:
    """Return what the point is compared with: the first configuration with as many clients."""
    return _at(points, points[0].variant, point.row.concurrency)


def _counts(points: Sequence[Point]) -> list[int]:
    return sorted({point.row.concurrency for point in points})


def _throughput(points: Sequence[Point], first: Point, second: Point) -> str:
    """Return the second one's throughput relative to the first one's."""
    times = ratio_of(points, second, first)
    if times.is_significant:
        return f"{second.variant} has {times} the throughput of {first.variant}."
    return f"no measurable difference between {second.variant} and {first.variant}: {times}."


def _latency(points: Sequence[Point], first: Point, second: Point) -> str:
    """Return how p50 differs."""
    one, other = (short(point.row.p50_latency_ms or 0.0) for point in (first, second))
    times = ratio_of(points, second, first, "medians_ms")
    none = "" if times.is_significant else ", no measurable difference"
    return (
        f"p50 is {one} ms with {first.variant} and {other} ms with {second.variant}: {times}{none}."
    )


def _memory(points: Sequence[Point], first: str, others: Iterable[str]) -> list[str]:
    """Return the memory of the servers, where that could be measured."""
    rows = [(name, _at(points, name, points[0].row.concurrency).row) for name in (first, *others)]
    sizes = [
        f"{row.server_peak_memory_mb:,.0f} MB with {name}"
        for name, row in rows
        if row.server_peak_memory_mb
    ]
    return [f"Peak memory of the server: {', '.join(sizes)}."] if sizes else []


def _conditions(points: Sequence[Point]) -> str:
    """Return the load of other processes, and how many measurements are not stable."""
    busy = points[0].row.background_cpu_cores
    others = ABSENT if busy is None else f"{busy:.2f}"
    doubted = [point for point in points if point.row.quality != "stable"]
    sentence = (
        f"Other processes used {others} CPU cores. {len(points) - len(doubted)} of {len(points)} "
        "measurements are stable."
    )
    if not doubted:
        return sentence
    first = doubted[0]
    named = f"{first.variant} with {clients_of(first.row.concurrency)} is {first.row.quality}"
    return f"{sentence} For example, {named} ({first.row.reason})."
