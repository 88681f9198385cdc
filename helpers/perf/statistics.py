"""What a measurement is: pure functions from the start and end of every request to a row of the
results.

perf_analyzer's own "Inferences/Second" counts the requests that lie whole within a window, which is
too few by up to one request a client and window: 20 % where a window holds five. Here throughput is
the slope of completed requests over time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import nan

import numpy as np
from numpy.typing import NDArray

from helpers.results import Row, Verdict

# Of throughput between windows; perf_analyzer's own default for --stability-percentage.
STABLE_SPREAD = 0.10
LITTLE_BOUND = 0.10
WINDOWS = 3  # that one run is cut into
OTHERS_CORES = 0.2  # processor time that others may take in a window, in cores


@dataclass(frozen=True)
class Window:
    """The requests of one run of the load, or of a part of it, in order of their end."""

    requests: NDArray[np.int64]  # start and end of each (ns), [n, 2]
    batch_size: int
    concurrency: int
    others_cores: float = 0.0  # processor time taken by processes that are not ours
    components: Mapping[str, float] = field(default_factory=dict)  # of the mean latency (ms)

    @property
    def latencies_ms(self) -> NDArray[np.float64]:
        return (self.requests[:, 1] - self.requests[:, 0]) / 1e6

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


def spread(values: list[float]) -> float:
    """Interquartile range over the median: how far repeated measurements lie apart.

    For three windows it is half of (max - min) / median, which is what perf_analyzer holds against
    its own --stability-percentage. NaN for fewer than two values, or if one is NaN.
    """
    if len(values) < 2:
        return nan
    low, middle, high = np.percentile(values, (25, 50, 75))
    return float((high - low) / middle)


def littles_law(
    throughput: float, mean_latency_ms: float, batch_size: int, concurrency: int
) -> float:
    """throughput x mean latency / (batch size x concurrency): 1 in a closed loop without pauses
    (Little 1961).
    """
    return throughput * mean_latency_ms / 1000 / (batch_size * concurrency)


def ratios(bare: list[float], served: list[float]) -> list[float]:
    """Each served run over the mean of the bare runs before and after it: a slow drift cancels."""
    pairs = zip(served, bare[:-1], bare[1:], strict=True)
    return [each / ((before + after) / 2) for each, before, after in pairs]


def verdict(row: Row, request_count: int, disturbance: str = "") -> tuple[Verdict, str]:
    """Judge a row: "stable", or the first thing that keeps it from being believed, with the reason
    and what to do. `disturbance` says what disturbed the GPU meanwhile; empty if nothing did.
    """
    cores, law, varied = (
        nan if each is None else each
        for each in (row.background_cpu_cores, row.littles_law, row.spread)
    )
    if not (row.requests or 0) >= request_count:
        reason = f"{row.requests} of {request_count} requests: measure again on a freer machine"
        return "few requests", reason
    if not cores <= OTHERS_CORES:
        return "disturbed", f"other processes used {cores:.2f} cores: end them and measure again"
    if disturbance:
        return "disturbed", disturbance
    if not abs(law - 1) <= LITTLE_BOUND:
        reason = f"throughput x latency is {law:.2f} of batch x clients: no steady load"
        return "unstable", reason
    if not varied <= STABLE_SPREAD:
        reason = f"throughput varied by {varied:.0%} between windows: raise request_count"
        return "unstable", reason
    return "stable", ""


def measure_row(
    runs: Sequence[Window],
    request_count: int,
    figures: Mapping[str, float] | None = None,
    disturbance: str = "",
) -> Row:
    """Put the runs of one point together: throughput (median), latencies over all requests and
    their components, spread. `figures` are further columns, such as the GPU's load meanwhile.

    The spread is between the runs, or between `WINDOWS` windows of the one run there is.
    """
    first, counts = runs[0], [len(run.requests) for run in runs]
    latencies = np.concatenate([run.latencies_ms for run in runs])
    columns = {
        name: float(np.average([run.components[name] for run in runs], weights=counts))
        for name in first.components
    }
    columns |= {f"p{q}_latency_ms": float(np.percentile(latencies, q)) for q in (50, 90, 95, 99)}
    parts = runs if len(runs) > 1 else windows(first, WINDOWS)
    throughput, mean = float(np.median([run.throughput for run in runs])), float(latencies.mean())
    row = Row(
        batch_size=first.batch_size,
        concurrency=first.concurrency,
        throughput=throughput,
        avg_latency_ms=mean,
        verdict="stable",
        spread=spread([part.throughput for part in parts]),
        requests=sum(counts),
        background_cpu_cores=float(np.max([run.others_cores for run in runs])),
        littles_law=littles_law(throughput, mean, first.batch_size, first.concurrency),
    ).model_copy(update={**columns, **(figures or {})})
    word, reason = verdict(row, request_count, disturbance)
    return row.model_copy(update={"verdict": word, "reason": reason})
