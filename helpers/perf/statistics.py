"""What a measurement is: pure functions from the start and end of every request to a row of the
results.

What perf_analyzer 2.51 does, and why its own figures are not used: it counts the requests that end
in a window (and so misses those under way at the end of the last), which is too few by up to one
request a client and window, 20 % where a window holds five; and it calls a point stable when half
of (max - min) / mean of three windows is within its percentage. Here throughput is the slope of
completed requests over time, and every figure has a 95 % interval, or none where it bounds none.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from math import ceil, isnan, log, nan, sqrt

import numpy as np
from numpy.typing import NDArray

from helpers.results import Row, Verdict

CONFIDENCE = 0.95
FEWEST_RUNS = 3  # that bound anything: the interval of two is wider than any figure
BLOCKS, BLOCK_REQUESTS = 10, 6  # a single run is cut into at most so many, of so many requests
OTHERS_SHARE = 0.05  # of all cores, that other processes may take
CLIENT_BOUND = 0.5  # of perf_analyzer's time, spent outside requests
BUDGET_SHARE = 0.01  # of requests, that may take longer than a latency budget
GROWTH = 0.05  # of latency in an open loop, in seconds per second: it is overloaded above
LATE_SHARE = 0.1  # of the gap between requests, by which 99 % of them may be sent late
COUNT_BOUND = 0.01  # between the requests that Triton counted and those of perf_analyzer
NO_COMPONENTS = "a part of the ensemble has no statistics, so no components"
QUANTILES = (50, 90, 95, 99)  # of latency, in percent


@dataclass(frozen=True)
class Interval:
    """A 95 % interval of a figure."""

    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Half of the width on a logarithmic scale: 0.05 means about +-5 %."""
        return sqrt(self.high / self.low) - 1


def log_interval(values: Sequence[float]) -> Interval | None:
    """Bound the (geometric) mean of independent repetitions: Student's t on their logarithms.

    None for fewer than three values, or if one is not positive and finite. The interval of the
    inverse values is the inverse interval. Source: Student 1908.
    """
    from scipy.stats import t

    array = np.asarray(values, dtype=np.float64)
    if len(array) < FEWEST_RUNS or not (np.isfinite(array) & (array > 0)).all():
        return None
    logs = np.log(array)
    reach = t.ppf((1 + CONFIDENCE) / 2, len(logs) - 1) * logs.std(ddof=1) / len(logs) ** 0.5
    return Interval(float(np.exp(logs.mean() - reach)), float(np.exp(logs.mean() + reach)))


def geometric_mean(values: Sequence[float]) -> float:
    """The figure that `log_interval` bounds; NaN without values, or if one is not positive."""
    array = np.asarray(values, dtype=np.float64)
    return float(np.exp(np.log(array).mean())) if len(array) and (array > 0).all() else nan


def lag1(values: NDArray[np.float64]) -> float:
    """Correlation of each value's rank with the next one's, from 0 to 0.95 (Spearman's rho)."""
    from scipy.stats import rankdata

    ranks = rankdata(values)
    if len(ranks) < 3 or ranks[:-1].std() == 0 or ranks[1:].std() == 0:
        return 0.0
    return float(np.clip(np.corrcoef(ranks[:-1], ranks[1:])[0, 1], 0, 0.95))


def independent_share(values: NDArray[np.float64]) -> float:
    """What one of the values in sequence is worth, from 0 to 1, beside an independent one:
    (1 - rho) / (1 + rho) for a lag-1 correlation of rho (Bayley and Hammersley 1946).
    """
    rho = lag1(values)
    return (1 - rho) / (1 + rho)


def requests_needed(quantile: float) -> int:
    """How many independent requests bound a quantile from above: 299 for the 99th percentile."""
    return ceil(log(1 - CONFIDENCE) / log(quantile))


def percentile_interval(values: NDArray[np.float64], quantile: float) -> Interval | None:
    """Bound a quantile (between 0 and 1) of values in the order of their sequence by two of them.

    Order statistics, whose ranks are binomial whatever the distribution (Conover 1999, section
    3.2), for as many values as the correlation leaves. None where the largest bounds nothing.
    """
    count = int(len(values) * independent_share(values))
    if count < requests_needed(quantile):
        return None
    ranks = np.round(np.array(_ranks(count, quantile)) * len(values) / count).astype(int)
    low, high = np.sort(values)[np.clip(ranks, 1, len(values)) - 1]
    return Interval(float(low), float(high))


@cache
def _ranks(count: int, quantile: float) -> tuple[int, int]:
    """Which two of `count` values, from 1, bound a quantile. Where even the largest bounds it with
    too little certainty for one side, the other side gets less.
    """
    from scipy.stats import binom

    error = 1 - CONFIDENCE
    high = min(int(binom.ppf(1 - error / 2, count, quantile)) + 1, count)
    return int(binom.ppf(error - binom.sf(high - 1, count, quantile), count, quantile)), high


def share_interval(count: float, total: float) -> tuple[float, float]:
    """Bound a share (0 to 1) that was seen `count` times of `total` (Clopper and Pearson 1934)."""
    from scipy.stats import beta

    error = (1 - CONFIDENCE) / 2
    low = float(beta.ppf(error, count, total - count + 1)) if count else 0.0
    high = float(beta.ppf(1 - error, count + 1, total - count)) if count < total else 1.0
    return low, high


def judge_budget(latencies_ms: NDArray[np.float64], budget_ms: float) -> tuple[str, int]:
    """Say whether at most 1 % of requests, in sequence, take longer than a budget: "met", "not met"
    or "not known". And how many requests it would take to meet it if no more took longer. They
    count for as many as their correlation leaves.
    """
    worth = independent_share(latencies_ms)
    late, total = worth * float((latencies_ms > budget_ms).sum()), worth * len(latencies_ms)
    low, high = share_interval(late, total)
    found = "met" if high <= BUDGET_SHARE else "not met" if low > BUDGET_SHARE else "not known"
    enough = bisect_left(
        range(10**9), True, key=lambda n: share_interval(late, max(n, late))[1] <= BUDGET_SHARE
    )
    return found, ceil(enough / worth)


@dataclass(frozen=True)
class Window:
    """The requests of one run of the load, or of a part of it, in order of their end."""

    requests: NDArray[
        np.int64
    ]  # start and end of each (ns), [n, 2]; in an open loop when it was due
    batch_size: int
    concurrency: int  # 0 in an open loop
    sent: NDArray[np.int64] | None = None  # in an open loop: when each was sent in fact (ns), [n]
    components: Mapping[str, float] = field(default_factory=dict)  # of the mean latency (ms)
    overhead: float = nan  # share of its time that the client spends outside requests
    counted: int | None = None  # requests that Triton counted meanwhile
    executed_batch: float | None = None  # samples in an execution, on average

    @property
    def steady(self) -> "Window":
        """Without each client's first request, which meets an idle server."""
        if not self.concurrency:
            return self
        first = np.argsort(self.requests[:, 0], kind="stable")[: self.concurrency]
        return replace(self, requests=np.delete(self.requests, first, axis=0))

    @property
    def latencies_ms(self) -> NDArray[np.float64]:
        return (self.requests[:, 1] - self.requests[:, 0]) / 1e6

    @property
    def sent_latencies_ms(self) -> NDArray[np.float64]:
        """Latencies from when the requests were sent, which in an open loop may be too late."""
        start = self.requests[:, 0] if self.sent is None else self.sent
        return (self.requests[:, 1] - start) / 1e6

    @property
    def seconds(self) -> float:
        """From the first start to the last end."""
        return float(self.requests[:, 1].max() - self.requests[:, 0].min()) / 1e9

    @property
    def throughput(self) -> float:
        """Inferences per second: the least-squares slope of completed requests over time, times the
        batch size.

        A straight line through a staircase of equal steps has the staircase's own slope, so answers
        that arrive a batch at a time do not bias it. NaN with fewer than three requests or two
        points in time.
        """
        ends = (self.requests[:, 1] - self.requests[:1, 1]) / 1e9
        if len(ends) < 3 or ends[-1] == 0:
            return nan
        return float(np.polyfit(ends, np.arange(len(ends)), 1)[0] * self.batch_size)


def windows(whole: Window, count: int) -> list[Window]:
    """Cut one run into `count` windows of equal length by the time at which requests ended."""
    ends = whole.requests[:, 1]
    edges = np.linspace(ends[0], ends[-1], count + 1)[1:-1]
    parts = np.split(whole.requests, np.searchsorted(ends, edges))
    return [replace(whole, requests=part) for part in parts]


def repetitions(runs: Sequence[Window], cut: bool) -> list[float]:
    """Throughputs that repeat one another: of the runs, or if they are `cut`, of blocks of each
    that has enough requests.
    """
    if not cut:
        return [run.throughput for run in runs]
    counts = [min(BLOCKS, len(run.requests) // BLOCK_REQUESTS) for run in runs]
    cuts = [
        windows(run, count) if count >= FEWEST_RUNS else [run]
        for run, count in zip(runs, counts, strict=True)
    ]
    return [block.throughput for blocks in cuts for block in blocks]


def littles_law(
    throughput: float, mean_latency_ms: float, batch_size: int, concurrency: int
) -> float:
    """throughput x mean latency / (batch size x concurrency): 1 in a closed loop without pauses
    (Little 1961).
    """
    return throughput * mean_latency_ms / 1000 / (batch_size * concurrency)


def compare(bare: Sequence[float], served: Sequence[float], within: float) -> dict[str, object]:
    """Columns of served over bare throughput (inferences/s): pairs in which each run occurs once.

    The ratio has a verdict of its own: "stable" if at least three pairs know it within `within`.
    """
    found = [each / other for each, other in zip(served, bare, strict=True)]
    interval = log_interval(found)
    known = interval is not None and interval.half_width <= within
    return {
        "bare_throughput": geometric_mean(bare),
        "served_bare_ratio": geometric_mean(found),
        "served_bare_low": interval and interval.low,
        "served_bare_high": interval and interval.high,
        "ratio_verdict": "stable" if known else "wide" if interval else "few pairs",
    }


def verdict(
    row: Row, request_count: int, within: float, cores: int, disturbance: str = ""
) -> tuple[Verdict, str]:
    """Judge a row: "stable", or the first thing that keeps it from being believed, with the reason
    and what to do. `disturbance` says what disturbed the machine meanwhile; empty if nothing did.
    """
    others, overhead, half = (
        nan if each is None else each
        for each in (row.background_cpu_cores, row.client_overhead, row.half_width)
    )
    if not (row.requests or 0) >= request_count:
        reason = f"{row.requests} of {request_count} requests: measure again on a freer machine"
        return "few requests", reason
    if overhead > CLIENT_BOUND:
        return (
            "client-bound",
            f"the client itself took {overhead:.0%} of the time: send more in a request",
        )
    if not others <= OTHERS_SHARE * cores:
        return "disturbed", f"other processes used {others:.2f} cores: end them and measure again"
    if disturbance:
        return "disturbed", disturbance
    if row.half_width is None:
        return "wide", f"fewer than {FEWEST_RUNS} runs bound nothing: raise pairs or request_count"
    if not half <= within:
        what = "its p50 is known" if row.rate else "known"
        reason = f"{what} to +-{half:.1%}, not to +-{within:.0%}: raise point_seconds"
        return "wide", reason
    return "stable", ""


def miscounted(runs: Sequence[Window]) -> str:
    """Say by how much Triton's count of requests differs from perf_analyzer's; empty if it agrees
    within `COUNT_BOUND` plus the clients of each run, whose last requests have no record.
    """
    for run in runs:
        seen = len(run.requests)
        if run.counted is not None and not (
            0 <= run.counted - seen <= COUNT_BOUND * seen + run.concurrency
        ):
            return f"Triton counted {run.counted} requests, perf_analyzer {seen}: is it shared?"
    return ""


def latency_growth(run: Window) -> float:
    """How fast latency grows while requests of an open loop are sent, in seconds per second: about
    0 in a steady state, and rate / capacity - 1 above the capacity. The median of the slopes
    between pairs of requests, which a single stall does not move (Theil 1950, Sen 1968).
    """
    from scipy.stats import theilslopes

    assert run.sent is not None
    chosen = np.argsort(run.sent)[:: ceil(len(run.sent) / 500)]
    times = (run.sent[chosen] - run.sent.min()) / 1e6
    return float(theilslopes(run.sent_latencies_ms[chosen], times)[0]) if len(times) > 1 else nan


def open_loop_columns(run: Window, rate: float) -> tuple[dict[str, object], Verdict | None, str]:
    """Columns that only a row of an open loop has, and the verdict that only it can get: where the
    server takes less than `rate` requests/s, or the client sends too late.
    """
    assert run.sent is not None
    delays, sent = (run.sent - run.requests[:, 0]) / 1e6, run.sent_latencies_ms
    late, growth = float(np.percentile(delays, 99)), latency_growth(run)
    columns: dict[str, object] = {"send_delay_p99_ms": late}
    columns |= {f"p{q}_sent_ms": float(np.percentile(sent, q)) for q in (50, 99)}
    if growth > GROWTH:
        reason = f"latency grew by {growth * 1000:.0f} ms a second: it is a lower bound"
        return columns, "overloaded", reason
    if late > LATE_SHARE * 1000 / rate:
        reason = f"1 % of requests were sent {late:.2g} ms late or more, over a tenth of their gap"
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
    """Put the runs of one point together, without each client's first requests: throughput
    (geometric mean), latencies over all requests and their components, and their intervals.

    The throughput's repetitions are the runs, or if these are `cut`, consecutive blocks of them. In
    an open loop, with a `rate` (requests/s), it is what was asked for: what is to be known is p50.
    `others_cores` are those that other processes used meanwhile, at most in a run; `figures` are
    further columns, such as the GPU's load.
    """
    steady = [run.steady for run in runs]
    first, counts = runs[0], [len(run.requests) for run in steady]
    latencies = np.concatenate([run.latencies_ms for run in steady])
    columns: dict[str, object] = {
        name: float(np.average([run.components[name] for run in runs], weights=counts))
        for name in first.components
        if sum(counts) and all(run.components for run in runs)
    }
    for q in QUANTILES if len(latencies) else ():
        bounds = percentile_interval(latencies, q / 100)
        columns[f"p{q}_latency_ms"] = float(np.percentile(latencies, q))
        columns |= {f"p{q}_low_ms": bounds and bounds.low, f"p{q}_high_ms": bounds and bounds.high}
    repeated = repetitions(steady, cut)
    interval = None if rate else log_interval(repeated)
    throughput = geometric_mean(repeated)
    known = percentile_interval(latencies, 0.5) if rate else interval
    if isnan(throughput):  # a block without requests: the runs as they are
        throughput = geometric_mean([run.throughput for run in steady])
    mean = float(latencies.mean()) if len(latencies) else nan
    executed = [run.executed_batch for run in runs if run.executed_batch is not None]
    row = Row(
        batch_size=first.batch_size,
        concurrency=first.concurrency,
        throughput=throughput,
        throughput_low=interval.low if interval else None,
        throughput_high=interval.high if interval else None,
        half_width=known.half_width if known else None,
        avg_latency_ms=mean,
        verdict="stable",
        rate=rate,
        requests=sum(counts),
        client_overhead=float(np.max([run.overhead for run in runs])),
        executed_batch=float(np.mean(executed)) if executed else None,
        background_cpu_cores=others_cores,
        littles_law=None
        if rate
        else littles_law(throughput, mean, first.batch_size, first.concurrency),
    ).model_copy(update={**columns, **(figures or {})})
    word, reason = verdict(row, request_count, within, cores, disturbance or miscounted(runs))
    if rate:
        more, worse, why = open_loop_columns(first, rate)
        row, word, reason = row.model_copy(update=more), worse or word, why or reason
    if any(run.counted is not None and not run.components for run in runs):
        reason = "; ".join(filter(None, (reason, NO_COMPONENTS)))
    return row.model_copy(update={"verdict": word, "reason": reason})
