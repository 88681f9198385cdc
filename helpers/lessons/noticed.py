"""A lesson's measurements as a table and in sentences: a difference has its 95% CI, and where that
contains no difference, the sentence says so.
"""

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pydantic import JsonValue

from helpers.display import ABSENT, short
from helpers.perf import Point, interval, ratio_of, with_intervals
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


def frame(points: Sequence[Point]) -> "DataFrame":
    """All measurements, one row for each configuration and number of clients."""
    from pandas import DataFrame

    rows: list[dict[str, object]] = []
    for point in points:
        times = ratio_of(points, point, _first(points, point))
        own = {"configuration": point.variant, "clients": point.row.concurrency}
        ends = times.interval
        own |= {"times": times.value, "times_low": ends and ends.low}
        rows.append(point.row.model_dump() | own | {"times_high": ends and ends.high})
    columns = [*COLUMNS, *ENDS, "server_queue_ms", "client_overhead", "background_cpu_cores"]
    return DataFrame(rows, columns=columns).infer_objects()


def shown(points: Sequence[Point]) -> "DataFrame":
    """What a reader compares: the numbers with their 95% CIs."""
    rows = frame(points)
    chosen = with_intervals(rows, COLUMNS).drop(columns="reason")  # shown once: see `_conditions`
    chosen["times"] = [str(ratio_of(points, each, _first(points, each))) for each in points]
    texts = [interval(*each) for each in zip(rows["p50_low_ms"], rows["p50_high_ms"], strict=True)]
    chosen.insert(chosen.columns.get_loc("p50_latency_ms") + 1, "p50, 95% CI", texts)
    return chosen.rename(columns={"times": TIMES})


def facts(points: Sequence[Point]) -> dict[str, JsonValue]:
    """What the lesson's result keeps of them."""
    return {"points": json.loads(frame(points).to_json(orient="records"))}


def headline(points: Sequence[Point]) -> str:
    """The fastest configuration with many clients compared with the first, in one line."""
    _, many = _counts(points)
    loaded = [point for point in points if point.row.concurrency == many]
    best = max(loaded, key=lambda point: point.row.throughput or 0.0)
    first = _first(points, best)
    if best is first:
        return f"{_clients(best)}: none was faster than {first.variant}"
    return f"{_clients(best)}: {_throughput(points, first, best)}".rstrip(".")


def notice_batching(points: Sequence[Point]) -> list[str]:
    """Return what the delay and the preferred sizes did."""
    few, many = _counts(points)
    none, zero, *delays = dict.fromkeys(point.variant for point in points)
    longest = delays[len(delays) // 2 - 1]  # the other half prefers sizes
    preferring = delays[-1]

    def at(name: str, clients: int) -> Point:
        return _at(points, name, clients)

    joined = "; ".join(
        f"{short(at(name, many).row.average_batch_size or 0.0)} with {name}"
        for name in (none, zero, longest, preferring)
    )
    return [
        f"{_clients(at(zero, few))}, so there is nothing to batch: "
        + _latency(points, at(zero, few), at(longest, few)),
        f"{_clients(at(zero, many))}, average batch size: {joined}.",
        f"{_clients(at(zero, many))}, effect of batching: "
        + _throughput(points, at(none, many), at(zero, many)),
        f"{_clients(at(zero, many))}, effect of the delay: "
        + _throughput(points, at(zero, many), at(longest, many)),
        f"{_clients(at(zero, many))}, effect of preferred sizes: "
        + _latency(points, at(longest, many), at(preferring, many)),
        _conditions(points),
    ]


def notice_sharing(points: Sequence[Point]) -> list[str]:
    """Return what instances and threads did."""
    few, many = _counts(points)
    first, *others = dict.fromkeys(point.variant for point in points)
    found = [
        f"{_clients(_at(points, name, few))}: "
        + _latency(points, _at(points, first, few), _at(points, name, few))
        for name in others
    ]
    pairs = [(first, name) for name in others]
    if len(others) > 1:  # one instance with all cores, and two that share them
        pairs.append((others[0], others[1]))
    found += [
        f"{_clients(_at(points, second, many))}: "
        + _throughput(points, _at(points, one, many), _at(points, second, many))
        for one, second in pairs
    ]
    return [*found, *_memory(points, first, others[-1:]), _conditions(points)]


def notice_precision(points: Sequence[Point]) -> list[str]:
    """Return what lower precisions did to the speed."""
    first, *others = dict.fromkeys(point.variant for point in points)
    found = [
        f"{_clients(_at(points, name, count))}: "
        + _throughput(points, _at(points, first, count), _at(points, name, count))
        for name in others
        for count in _counts(points)
    ]
    return [*found, *_memory(points, first, others), _conditions(points)]


def _at(points: Sequence[Point], variant: str, clients: int) -> Point:
    wanted = (variant, clients)
    return next(each for each in points if (each.variant, each.row.concurrency) == wanted)


def _first(points: Sequence[Point], point: Point) -> Point:
    """Return what the point is compared with: the first configuration with as many clients."""
    return _at(points, points[0].variant, point.row.concurrency)


def _counts(points: Sequence[Point]) -> list[int]:
    return sorted({point.row.concurrency for point in points})


def _clients(point: Point) -> str:
    return clients_of(point.row.concurrency)


def _throughput(points: Sequence[Point], first: Point, second: Point) -> str:
    """Return the second one's throughput relative to the first one's."""
    times = ratio_of(points, second, first)
    if times.is_significant:
        return f"{second.variant} has {times} the throughput of {first.variant}."
    return f"no measurable difference between {second.variant} and {first.variant}: {times}."


def _latency(points: Sequence[Point], first: Point, second: Point) -> str:
    """Return how p50 differs."""
    one, other = (short(each.row.p50_latency_ms or 0.0) for each in (first, second))
    times = ratio_of(points, second, first, "medians_ms")
    none = "" if times.is_significant else ", no measurable difference"
    return (
        f"p50 is {one} ms with {first.variant} and {other} ms with {second.variant}: {times}{none}."
    )


def _memory(points: Sequence[Point], first: str, others: Iterable[str]) -> list[str]:
    """Return the memory of the servers, where that could be measured."""
    found = [(name, _at(points, name, points[0].row.concurrency).row) for name in (first, *others)]
    known = [
        f"{row.server_peak_memory_mb:,.0f} MB with {name}"
        for name, row in found
        if row.server_peak_memory_mb
    ]
    return [f"Peak memory of the server: {', '.join(known)}."] if known else []


def _conditions(points: Sequence[Point]) -> str:
    """Return what else used the machine, and how many measurements are not stable."""
    busy = points[0].row.background_cpu_cores
    others = ABSENT if busy is None else f"{busy:.2f}"
    doubted = [point for point in points if point.row.quality != "stable"]
    said = (
        f"Other processes used {others} CPU cores. {len(points) - len(doubted)} of {len(points)} "
        "measurements are stable."
    )
    if not doubted:
        return said
    first = doubted[0]
    named = f"{first.variant} with {_clients(first)} is {first.row.quality}"
    return f"{said} For example, {named} ({first.row.reason})."
