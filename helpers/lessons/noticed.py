"""What a lesson measured, as a table and in sentences: a difference has its interval, and one that
is not known is said to be so.
"""

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pydantic import JsonValue

from helpers.display import ABSENT, digits
from helpers.perf import Point, interval, with_intervals
from helpers.results import Row

if TYPE_CHECKING:
    from pandas import DataFrame

COLUMNS = [
    *("configuration", "clients", "throughput", "times", "p50_latency_ms", "p99_latency_ms"),
    *("executed_batch", "server_peak_memory_mb", "requests", "verdict", "reason"),
]
TIMES = "times the first's throughput, 95 %"


def frame(points: Sequence[Point]) -> "DataFrame":
    """All that was measured, one row for each configuration and number of clients."""
    from pandas import DataFrame

    rows = []
    for point in points:
        times, bounds = point.times(_at(points, points[0].variant, point.row.concurrency))
        own = {"times": times, "times_low": bounds and bounds.low}
        own |= {"times_high": bounds and bounds.high}
        head = {"configuration": point.variant, "clients": point.row.concurrency}
        rows.append(head | own | point.row.model_dump(exclude={"concurrency"}, exclude_none=True))
    names = [each for each in Row.model_fields if any(each in row for row in rows)]
    first = [*COLUMNS[:3], "times_low", "times", "times_high"]
    return DataFrame(rows, columns=list(dict.fromkeys([*first, *names])))


def shown(points: Sequence[Point]) -> "DataFrame":
    """What a reader compares: the figures with their intervals."""
    rows = frame(points)
    low, high = rows.get("p50_low_ms"), rows.get("p50_high_ms")
    chosen = with_intervals(rows, [each for each in COLUMNS if each in rows])
    chosen["times"] = [
        _spelled(times, bounds)
        for times, *bounds in rows[["times", "times_low", "times_high"]].itertuples(index=False)
    ]
    if low is not None and high is not None:
        texts = [interval(*each) for each in zip(low, high, strict=True)]
        chosen.insert(chosen.columns.get_loc("p50_latency_ms") + 1, "p50, 95 %", texts)
    return chosen.rename(columns={"times": TIMES})


def _spelled(times: float, bounds: Iterable[float | None]) -> str:
    low, high = bounds
    known = low is not None and low == low and high is not None
    return f"{times:.2f} [{low:.2f}, {high:.2f}]" if known else f"{times:.2f}"


def facts(points: Sequence[Point]) -> dict[str, JsonValue]:
    """What the lesson's result keeps of them."""
    return {"points": json.loads(frame(points).to_json(orient="records"))}


def headline(points: Sequence[Point]) -> str:
    """The fastest configuration, in one line."""
    best = max(points, key=lambda point: point.row.throughput or 0.0)
    times, _ = best.times(_at(points, points[0].variant, best.row.concurrency))
    return (
        f"most images with {best.variant}: {digits(best.row.throughput or 0.0)} a second with "
        f"{_clients(best)}, {times:.2f} times those of {points[0].variant}"
    )


def notice_batching(points: Sequence[Point]) -> list[str]:
    """What the delay and the preferred sizes did."""
    few, many = _counts(points)
    none, zero, *delays = dict.fromkeys(point.variant for point in points)
    longest = delays[len(delays) // 2 - 1]  # the other half prefers sizes
    preferring = delays[-1]

    def at(name: str, clients: int) -> Point:
        return _at(points, name, clients)

    joined = ", ".join(
        f"{digits(at(name, many).row.executed_batch or 0.0)} with {name}"
        for name in (none, zero, longest, preferring)
    )
    return [
        f"{_clients(at(zero, few))}, who has nobody to wait for: "
        + _latency(at(zero, few), at(longest, few)),
        f"{_clients(at(zero, many))}, samples in an execution: {joined}.",
        f"{_clients(at(zero, many))}, what joining requests is worth: "
        + _throughput(at(none, many), at(zero, many)),
        f"{_clients(at(zero, many))}, what waiting for more of them is worth: "
        + _throughput(at(zero, many), at(longest, many)),
        f"{_clients(at(zero, many))}, what preferred sizes change: "
        + _latency(at(longest, many), at(preferring, many)),
        _conditions(points),
    ]


def notice_sharing(points: Sequence[Point]) -> list[str]:
    """What instances and threads did."""
    few, many = _counts(points)
    first, *others = dict.fromkeys(point.variant for point in points)
    found = [
        f"{_clients(_at(points, name, few))}: "
        + _latency(_at(points, first, few), _at(points, name, few))
        for name in others
    ]
    pairs = [(first, name) for name in others]
    if len(others) > 1:  # one instance with all cores, and two that share them
        pairs.append((others[0], others[1]))
    found += [
        f"{_clients(_at(points, second, many))}: "
        + _throughput(_at(points, one, many), _at(points, second, many))
        for one, second in pairs
    ]
    return [*found, *_memory(points, first, others[-1:]), _conditions(points)]


def notice_precision(points: Sequence[Point]) -> list[str]:
    """What lower precisions did to the speed."""
    first, *others = dict.fromkeys(point.variant for point in points)
    found = [
        f"{_clients(_at(points, name, count))}: "
        + _throughput(_at(points, first, count), _at(points, name, count))
        for name in others
        for count in _counts(points)
    ]
    return [*found, *_memory(points, first, others), _conditions(points)]


def _at(points: Sequence[Point], variant: str, clients: int) -> Point:
    wanted = (variant, clients)
    return next(each for each in points if (each.variant, each.row.concurrency) == wanted)


def _counts(points: Sequence[Point]) -> list[int]:
    return sorted({point.row.concurrency for point in points})


def _clients(point: Point) -> str:
    return f"{point.row.concurrency} client{'s' if point.row.concurrency > 1 else ''}"


def _throughput(first: Point, second: Point) -> str:
    """Say how many times the first one's throughput the second one has, as far as it is known."""
    times, bounds = second.times(first)
    ratio = _spelled(times, (bounds.low, bounds.high) if bounds else (None, None))
    if bounds is None or bounds.low <= 1 <= bounds.high:
        return f"{second.variant} is not told apart from {first.variant} ({ratio} times)."
    return f"{second.variant} has {ratio} times the throughput of {first.variant}."


def _latency(first: Point, second: Point) -> str:
    """Say how p50 differs, as far as the intervals tell."""
    one, other = first.row, second.row
    values = f"{digits(one.p50_latency_ms or 0.0)} ms with {first.variant}"
    values += f" and {digits(other.p50_latency_ms or 0.0)} ms with {second.variant}"
    ends = one.p50_low_ms, one.p50_high_ms, other.p50_low_ms, other.p50_high_ms
    if None in ends:
        return f"p50 is {values}, of too few requests to bound it."
    low, high, others_low, others_high = (end or 0.0 for end in ends)
    if others_low <= high and low <= others_high:
        return f"p50 is {values}, not told apart."
    return f"p50 is {values}: {'longer' if others_low > high else 'shorter'}."


def _memory(points: Sequence[Point], first: str, others: Iterable[str]) -> list[str]:
    """Say what the servers took, where that could be measured."""
    found = [(name, _at(points, name, points[0].row.concurrency).row) for name in (first, *others)]
    known = [
        f"{row.server_peak_memory_mb:,.0f} MB with {name}"
        for name, row in found
        if row.server_peak_memory_mb
    ]
    return [f"Peak memory of the server: {', '.join(known)}."] if known else []


def _conditions(points: Sequence[Point]) -> str:
    """Say what else used the machine, and how far the rows are to be believed."""
    busy = points[0].row.background_cpu_cores
    doubted = sum(point.row.verdict != "stable" for point in points)
    others = ABSENT if busy is None else f"{busy:.2f}"
    return (
        f"Other processes used {others} cores meanwhile, and {doubted} of {len(points)} rows are "
        "not stable: see their verdicts."
    )
