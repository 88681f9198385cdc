"""A lesson's measurements as a table and in sentences, which say if a CI has no difference."""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from pydantic import JsonValue

from helpers.display import ABSENT, short
from helpers.measure import Point, interval, ratio_of, with_intervals
from helpers.results import Estimate, clients_of

if TYPE_CHECKING:
    from pandas import DataFrame

COLUMNS = [  # of a table
    *("configuration", "clients", "throughput", "times", "p50_latency_ms", "p99_latency_ms"),
    *("average_batch_size", "server_peak_memory_mb", "requests", "quality", "reason"),
]
ENDS = [
    *("throughput_low", "throughput_high", "times_low", "times_high"),
    *("p50_low_ms", "p50_high_ms", "p99_low_ms", "p99_high_ms"),
]
TIMES = "throughput relative to the first"
Points = Sequence[Point]
Pair = tuple[str, str]  # the names of two configurations
Describe = Callable[[Points, Point, Point], str]


def frame(points: Points) -> "DataFrame":
    """Return all measurements, one row for each configuration and number of clients."""
    from pandas import DataFrame

    rows: list[dict[str, object]] = []
    for point in points:
        times = _times(points, point)
        fields = {"configuration": point.variant, "clients": point.row.concurrency}
        fields |= {"times": times.value, "times_low": times.low, "times_high": times.high}
        rows.append(point.row.model_dump() | fields)
    columns = [*COLUMNS, *ENDS, "server_queue_ms", "client_overhead", "background_cpu_cores"]
    return DataFrame(rows, columns=columns).infer_objects()


def shown(points: Points) -> "DataFrame":
    """Return what a reader compares: the numbers with their 95% CIs."""
    rows = frame(points)
    chosen = with_intervals(rows, COLUMNS).drop(columns="reason")  # shown once: see `_conditions`
    chosen["times"] = [_times(points, point).times for point in points]
    texts = [*map(interval, rows["p50_low_ms"], rows["p50_high_ms"])]
    chosen.insert(chosen.columns.get_loc("p50_latency_ms") + 1, "p50, 95% CI", texts)
    return chosen.rename(columns={"times": TIMES})


def facts(points: Points) -> dict[str, JsonValue]:
    """Return the measurements for the metadata of the lesson's result."""
    return {"points": json.loads(frame(points).to_json(orient="records"))}


def headline(points: Points) -> str:
    """Return the fastest configuration with many clients compared with the first, in one line."""
    _, many = _counts(points)
    loaded = [point for point in points if point.row.concurrency == many]
    best, first = max(loaded, key=lambda point: point.row.throughput or 0.0), points[0].variant
    if best.variant == first:
        return f"{clients_of(many)}: none was faster than {first}"
    return _compared(points, many, (first, best.variant), _throughput).rstrip(".")


def notice_batching(points: Points) -> list[str]:
    """Return the effects of the delay and of the preferred sizes."""
    few, many = _counts(points)
    none, zero, *delays = dict.fromkeys(point.variant for point in points)
    longest, preferring = delays[len(delays) // 2 - 1], delays[-1]  # half of them prefer sizes
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


def notice_instances(points: Points) -> list[str]:
    """Return the effects of instances and threads."""
    few, many = _counts(points)
    first, *others = dict.fromkeys(point.variant for point in points)
    pairs = [(first, name) for name in others]
    alone = [_compared(points, few, pair, _latency) for pair in pairs]
    if len(others) > 1:  # one instance with all cores, and two that share them
        pairs.append((others[0], others[1]))
    loaded = [_compared(points, many, pair, _throughput) for pair in pairs]
    return [*alone, *loaded, *_memory(points, first, others[-1:]), _conditions(points)]


def notice_precision(points: Points) -> list[str]:
    """Return the effects of lower precisions on the speed."""
    first, *others = dict.fromkeys(point.variant for point in points)
    cases = [(name, count) for name in others for count in _counts(points)]
    sentences = [_compared(points, count, (first, name), _throughput) for name, count in cases]
    return [*sentences, *_memory(points, first, others), _conditions(points)]


def notice_protocol(points: Points) -> list[str]:
    """Return the effects of gRPC and of shared memory."""
    http, http_shared, grpc, grpc_shared = dict.fromkeys(point.variant for point in points)
    few, many = _counts(points)
    pairs = [(http, grpc), (http_shared, grpc_shared), (http, http_shared), (grpc, grpc_shared)]
    alone = [_compared(points, few, pair, _latency) for pair in pairs]
    return [*alone, *(_compared(points, many, p, _throughput) for p in pairs), _conditions(points)]


def _compared(points: Points, clients: int, pair: Pair, describe: Describe, head: str = "") -> str:
    """Return how the second of two configurations differs from the first."""
    first, second = (_at(points, name, clients) for name in pair)
    return f"{clients_of(clients)}{head}: {describe(points, first, second)}"


def _at(points: Points, variant: str, clients: int) -> Point:
    key = (variant, clients)
    return next(point for point in points if (point.variant, point.row.concurrency) == key)


def _times(points: Points, point: Point) -> Estimate:
    """Return a throughput relative to the first configuration's with as many clients."""
    return ratio_of(points, point, _at(points, points[0].variant, point.row.concurrency))


def _counts(points: Points) -> list[int]:
    return sorted({point.row.concurrency for point in points})


def _throughput(points: Points, first: Point, second: Point) -> str:
    """Return the second one's throughput relative to the first one's."""
    ratio = ratio_of(points, second, first)
    if ratio.is_significant:
        return f"{second.variant} has {ratio.times} the throughput of {first.variant}."
    return f"no measurable difference between {second.variant} and {first.variant}: {ratio.times}."


def _latency(points: Points, first: Point, second: Point) -> str:
    """Return how p50 differs."""
    one, other = (short(point.row.p50_latency_ms or 0.0) for point in (first, second))
    ratio = ratio_of(points, second, first, "medians_ms")
    times = ratio.times if ratio.is_significant else f"{ratio.times}, no measurable difference"
    return f"p50 is {one} ms with {first.variant} and {other} ms with {second.variant}: {times}."


def _memory(points: Points, first: str, others: Iterable[str]) -> list[str]:
    """Return the memory of the servers, where that could be measured."""
    clients = points[0].row.concurrency
    sizes = [
        f"{size_mb:,.0f} MB with {name}"
        for name in (first, *others)
        if (size_mb := _at(points, name, clients).row.server_peak_memory_mb)
    ]
    return [f"Peak memory of the server: {', '.join(sizes)}."] if sizes else []


def _conditions(points: Points) -> str:
    """Return the load of other processes, and how many measurements are not stable."""
    busy = points[0].row.background_cpu_cores
    others = ABSENT if busy is None else f"{busy:.2f}"
    doubted = [point for point in points if point.row.quality != "stable"]
    stable = f"{len(points) - len(doubted)} of {len(points)} measurements are stable."
    sentence = f"Other processes used {others} CPU cores. {stable}"
    for first in doubted[:1]:
        named = f"{first.variant} with {clients_of(first.row.concurrency)} is {first.row.quality}"
        sentence += f" For example, {named} ({first.row.reason})."
    return sentence
