"""Compute a row of the results from the start and the end of every request.

perf_analyzer 2.51's own numbers are not used. It misses the requests in flight at the end of a
window: up to one per client, which is 20% where a window holds five. It also calls a point stable
when half of (max - min) / mean of three windows is within its percentage.

Here throughput is the slope of completed requests over time. Every number has a 95% interval, or
none where the requests do not bound it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isnan, nan

import numpy as np
from numpy.typing import NDArray

from helpers.measure.statistics import (
    MIN_RUNS,
    difference_interval,
    geometric_mean,
    growth,
    littles_law,
    log_interval,
    percentile_interval,
)
from helpers.results import Quality, Row

BLOCKS = 10  # that a single run is cut into, at most
BLOCK_REQUESTS, BLOCK_ROUNDS = 6, 4  # in a block at least: requests, and of each client
OTHERS_SHARE = 0.05  # of all cores, that other processes may take
CLIENT_BOUND = 0.5  # of perf_analyzer's time, spent outside requests
GROWTH = 0.05  # of latency in an open loop, in seconds per second: above it the server is saturated
LATE_SHARE = 0.1  # of the gap between requests, by which 99% of them may be sent late
COUNT_BOUND = 0.01  # between the requests that Triton counted and those of perf_analyzer
NO_COMPONENTS = "no latency components: a model of the ensemble has no statistics"
QUANTILES = (50, 90, 95, 99)  # of latency, in percent


@dataclass(frozen=True)
class Window:
    """The requests of one run of the load, or of a part of it, in order of their end."""

    requests: NDArray[np.int64]  # start (in an open loop: when due) and end of each (ns), [n, 2]
    batch_size: int
    concurrency: int  # 0 in an open loop
    sent: NDArray[np.int64] | None = None  # in an open loop: when each was sent in fact (ns), [n]
    components: Mapping[str, float] = field(default_factory=dict)  # of the mean latency (ms)
    overhead: float = nan  # share of its time that the client spends outside requests
    counted: int | None = None  # requests that Triton counted meanwhile
    average_batch_size: float | None = None  # samples in an execution, on average
    others_cores: float = 0.0  # that other processes used meanwhile
    models: Mapping[str, float] = field(default_factory=dict)  # ms in each model of an ensemble

    @property
    def steady(self) -> "Window":
        """Return the run without each client's first request, which meets an idle server."""
        if not self.concurrency:
            return self
        first = np.argsort(self.requests[:, 0], kind="stable")[: self.concurrency]
        return replace(self, requests=np.delete(self.requests, first, axis=0))

    @property
    def latencies_ms(self) -> NDArray[np.float64]:
        return (self.requests[:, 1] - self.requests[:, 0]) / 1e6

    @property
    def mean_latency_ms(self) -> float:
        return float(self.latencies_ms.mean())

    @property
    def sent_latencies_ms(self) -> NDArray[np.float64]:
        """Return latencies since the requests were sent, which in an open loop may be too late."""
        start = self.requests[:, 0] if self.sent is None else self.sent
        return (self.requests[:, 1] - start) / 1e6

    @property
    def seconds(self) -> float:
        """Return the seconds from the first start to the last end."""
        return float(self.requests[:, 1].max() - self.requests[:, 0].min()) / 1e9

    @property
    def throughput(self) -> float:
        """Return samples per second: the least-squares slope of completed requests over time, times
        the batch size. Responses that arrive in batches do not bias it. NaN with fewer than three
        requests or two points in time.
        """
        ends = (self.requests[:, 1] - self.requests[:1, 1]) / 1e9
        if len(ends) < 3 or ends[-1] == 0:
            return nan
        return float(np.polyfit(ends, np.arange(len(ends)), 1)[0] * self.batch_size)


def windows(run: Window, count: int) -> list[Window]:
    """Cut one run into `count` windows of equal length by the time at which requests ended."""
    ends = run.requests[:, 1]
    edges = np.linspace(ends[0], ends[-1], count + 1)[1:-1]
    parts = np.split(run.requests, np.searchsorted(ends, edges))
    return [replace(run, requests=part) for part in parts]


def block_size(concurrency: int) -> int:
    """Return the fewest requests of a block: a shorter one would depend on single batches."""
    return max(BLOCK_REQUESTS, BLOCK_ROUNDS * concurrency)


def repetitions(runs: Sequence[Window], cut: bool) -> list[float]:
    """Return repeated throughputs: of the runs, or if they are `cut`, of the blocks of each run."""
    if not cut:
        return [run.throughput for run in runs]
    blocks: list[Window] = []
    for run in runs:
        count = min(BLOCKS, len(run.requests) // block_size(run.concurrency))
        blocks += windows(run, count) if count >= MIN_RUNS else [run]
    return [block.throughput for block in blocks]


def compare(
    in_process: Sequence[float], served: Sequence[float], within: float
) -> dict[str, object]:
    """Return the columns of served over in-process throughput (samples/s), from pairs of runs. The
    ratio has a quality of its own: "stable" if at least three pairs know it within `within`.
    """
    ratios = [with_triton / alone for with_triton, alone in zip(served, in_process, strict=True)]
    interval, ratio = log_interval(ratios), geometric_mean(ratios)
    precise = interval is not None and interval.margin_of_error <= within
    return {
        "in_process_throughput": geometric_mean(in_process),
        "relative_throughput": None if isnan(ratio) else ratio,
        "relative_throughput_low": interval and interval.low,
        "relative_throughput_high": interval and interval.high,
        "relative_quality": "stable" if precise else "imprecise" if interval else "too few pairs",
    }


def overhead_columns(
    serving_overhead_ms: Sequence[float], noop_latency_ms: Sequence[float]
) -> dict[str, object]:
    """Return the columns of the no-op model; each argument has one value per run."""
    noop_ms = float(np.mean(noop_latency_ms))
    columns: dict[str, object] = {"noop_latency_ms": noop_ms}
    if serving_overhead_ms:
        bounds = difference_interval(serving_overhead_ms, noop_latency_ms)
        columns["residual_overhead_ms"] = float(np.mean(serving_overhead_ms)) - noop_ms
        columns["residual_overhead_low_ms"] = bounds and bounds.low
        columns["residual_overhead_high_ms"] = bounds and bounds.high
    return columns


def quality(
    row: Row, request_count: int, within: float, cores: int, disturbance: str = ""
) -> tuple[Quality, str]:
    """Judge a row: "stable", or the first reason against it and what to do."""
    others = nan if row.background_cpu_cores is None else row.background_cpu_cores
    overhead, half = row.client_overhead or 0.0, row.margin_of_error
    if not (row.requests or 0) >= request_count:
        reason = f"{row.requests} of {request_count} requests: re-run on an idle machine"
        return "too few requests", reason
    if overhead > CLIENT_BOUND:
        reason = f"the load generator itself took {overhead:.0%} of the time"
        return "client-bound", f"{reason}: increase the batch size"
    if not others <= OTHERS_SHARE * cores:
        return "noisy", f"other processes used {others:.2f} CPU cores: stop them and re-run"
    if disturbance:
        return "noisy", disturbance
    if half is None:
        reason = f"no 95% CI from fewer than {MIN_RUNS} runs: increase pairs or request_count"
        return "imprecise", reason
    if not half <= within:
        margin = "margin of error of p50" if row.rate else "margin of error"
        reason = f"{margin} ±{half:.1%}, target ±{within:.0%}: increase measurement_seconds"
        return "imprecise", reason
    return "stable", ""


def count_mismatch(runs: Sequence[Window]) -> str:
    """Return by how much Triton's count of requests differs from perf_analyzer's; empty if it
    agrees, but for `COUNT_BOUND` and each client's last request, which only one may have counted.
    """
    for run in runs:
        recorded, clients = len(run.requests), run.concurrency
        more = 0 if run.counted is None else run.counted - recorded
        if not -clients <= more <= COUNT_BOUND * recorded + clients:
            both = f"Triton counted {run.counted} requests, perf_analyzer {recorded}"
            return f"{both}: stop other clients of the server"
    return ""


def open_loop_columns(run: Window, rate: float) -> tuple[dict[str, object], Quality | None, str]:
    """Return the columns and the quality that only a row of an open loop has. The server may take
    less than `rate` requests/s, or the client may send too late.
    """
    assert run.sent is not None
    delays, sent = (run.sent - run.requests[:, 0]) / 1e6, run.sent_latencies_ms
    order, late = np.argsort(run.sent), float(np.percentile(delays, 99))
    grew = growth((run.sent[order] - run.sent.min()) / 1e6, sent[order])
    columns: dict[str, object] = {"send_delay_p99_ms": late}
    columns |= {f"p{q}_sent_ms": float(np.percentile(sent, q)) for q in (50, 99)}
    if grew > GROWTH:
        reason = f"latency grew by {grew * 1000:.0f} ms per second and is a lower bound"
        return columns, "saturated", reason
    if late > LATE_SHARE * 1000 / rate:
        share = f"more than {LATE_SHARE:.0%} of the time between two requests"
        reason = f"1% of requests were sent at least {late:.2g} ms late, {share}"
        return columns, "client-bound", reason
    return columns, None, ""


def measure_row(
    runs: Sequence[Window],
    request_count: int,
    within: float,
    cores: int,
    cut: bool = False,
    rate: float | None = None,
    others_cores: float = 0.0,
    figures: Mapping[str, object] | None = None,
    disturbance: str = "",
) -> Row:
    """Compute the row of one point from its runs, without each client's first requests. It has the
    throughput (geometric mean), latencies over all requests and their components, and intervals.

    The throughput's repetitions are the runs, or if these are `cut`, consecutive blocks of them. In
    an open loop, with a `rate` (requests/s), the throughput is that of the load, and the interval
    of p50 decides the quality. `figures` are further columns, such as the GPU's load.
    """
    steady = [run.steady for run in runs]
    first, counts = runs[0], [len(run.requests) for run in steady]
    latencies = np.concatenate([run.latencies_ms for run in steady])
    columns: dict[str, object] = {
        name: float(np.average([run.components[name] for run in runs], weights=counts))
        for name in first.components
        if sum(counts) and all(run.components for run in runs)
    }
    if columns and first.models:
        spent = {name: [run.models[name] for run in runs] for name in first.models}
        columns["models_ms"] = {
            name: float(np.average(s, weights=counts)) for name, s in spent.items()
        }
    for q in QUANTILES if len(latencies) else ():
        bounds = percentile_interval(latencies, q / 100)
        columns[f"p{q}_latency_ms"] = float(np.percentile(latencies, q))
        columns |= {f"p{q}_low_ms": bounds and bounds.low, f"p{q}_high_ms": bounds and bounds.high}
    repeated = repetitions(steady, cut)
    interval = None if rate else log_interval(repeated)
    throughput = geometric_mean(repeated)
    judged_interval = percentile_interval(latencies, 0.5) if rate else interval
    if isnan(throughput):  # a block without requests: the runs as they are
        throughput = geometric_mean([run.throughput for run in steady])
    mean = float(latencies.mean()) if len(latencies) else nan
    if isnan(throughput) and not rate:  # runs of a request or two: by Little's law
        throughput = 1000 * first.batch_size * first.concurrency / mean
    law = None if rate else littles_law(throughput, mean, first.batch_size, first.concurrency)
    executed = [run.average_batch_size for run in runs if run.average_batch_size is not None]
    row = Row(
        batch_size=first.batch_size,
        concurrency=first.concurrency,
        throughput=throughput,
        throughput_low=interval.low if interval else None,
        throughput_high=interval.high if interval else None,
        margin_of_error=judged_interval.margin_of_error if judged_interval else None,
        avg_latency_ms=mean,
        quality="stable",
        rate=rate,
        requests=sum(counts),
        client_overhead=float(np.max([run.overhead for run in runs])),
        average_batch_size=float(np.mean(executed)) if executed else None,
        background_cpu_cores=others_cores,
        littles_law=law,
    ).model_copy(update={**columns, **(figures or {})})
    word, reason = quality(row, request_count, within, cores, disturbance or count_mismatch(runs))
    if rate:
        more, worse, why = open_loop_columns(first, rate)
        row, word, reason = row.model_copy(update=more), worse or word, why or reason
    if any(run.counted is not None and not run.components for run in runs):
        reason = "; ".join(filter(None, (reason, NO_COMPONENTS)))
    return row.model_copy(update={"quality": word, "reason": reason})
