"""What a measurement is: pure functions from the start and end of every request to a row of the
results.

perf_analyzer's own "Inferences/Second" counts the requests that lie whole within a window, which is
too few by up to one request a client and window: 20 % where a window holds five. Here throughput is
the slope of completed requests over time.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

STABLE_SPREAD = (
    0.10  # of throughput between windows; perf_analyzer's own default for --stability-percentage
)
LITTLE_BOUND = 0.10
WINDOWS = 3  # that one run is cut into
OTHERS_CORES = 0.2  # processor time that others may take in a window, in cores


@dataclass(frozen=True)
class Window:
    """The requests of one window: start and end of each in nanoseconds, shape [n, 2], in order of
    their end.
    """

    requests: NDArray[np.int64]
    batch_size: int
    concurrency: int
    others_cores: float = 0.0  # processor time taken by processes that are not ours

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
        ends = (
            (self.requests[:, 1] - self.requests[0, 1]) / 1e9
            if len(self.requests) > 2
            else np.zeros(1)
        )
        if ends[-1] <= 0:
            return float("nan")
        return float(np.polyfit(ends, np.arange(len(ends)), 1)[0] * self.batch_size)


def windows(whole: Window, count: int) -> list[Window]:
    """Cut one run into `count` windows of equal length by the time at which requests ended."""
    ends = whole.requests[:, 1]
    edges = np.linspace(ends[0], ends[-1], count + 1)[1:-1]
    return [
        replace(whole, requests=part)
        for part in np.split(whole.requests, np.searchsorted(ends, edges))
    ]


def spread(values: list[float]) -> float:
    """Interquartile range over the median: how far repeated measurements lie apart.

    For three windows it is half of (max - min) / median, which is what perf_analyzer holds against
    its own --stability-percentage. NaN for fewer than two values, or if one is NaN.
    """
    if len(values) < 2:
        return float("nan")
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
    """Each served run over the mean of the bare runs just before and after it: a slow drift of the
    machine cancels.
    """
    pairs = zip(served, bare[:-1], bare[1:], strict=True)
    return [each / ((before + after) / 2) for each, before, after in pairs]


def verdict(row: dict[str, Any], request_count: int) -> tuple[str, str]:
    """Judge a row: "stable", or the first thing that keeps it from being believed, with the reason
    and what to do.
    """
    if not row["requests"] >= request_count:
        return (
            "few requests",
            f"{row['requests']} of {request_count} requests: measure again on a freer machine",
        )
    if not row["others_load"] <= OTHERS_CORES:
        return (
            "disturbed",
            f"other processes used {row['others_load']:.2f} cores: end them and measure again",
        )
    if disturbance := row.get("gpu_disturbed"):
        return "disturbed", disturbance
    if not abs(row["littles_law"] - 1) <= LITTLE_BOUND:
        return (
            "unstable",
            f"throughput x latency is {row['littles_law']:.2f} of batch x clients: no steady load",
        )
    if not row["spread"] <= STABLE_SPREAD:
        return (
            "unstable",
            f"throughput varied by {row['spread']:.0%} between windows: raise request_count",
        )
    return "stable", ""


def measure_row(
    runs: list[Window], request_count: int, gpu: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Put the runs of one point together: throughput (median), latencies over all requests, spread.

    The spread is between the runs, or between `WINDOWS` windows of the one run there is.
    `gpu` holds what was seen of the GPU meanwhile.
    """
    first = runs[0]
    latencies = np.concatenate([run.latencies_ms for run in runs])
    parts = runs if len(runs) > 1 else windows(first, WINDOWS)
    row: dict[str, Any] = {
        "batch_size": first.batch_size,
        "concurrency": first.concurrency,
        "throughput": float(np.median([run.throughput for run in runs])),
        **{f"p{q}_latency_ms": float(np.percentile(latencies, q)) for q in (50, 90, 95, 99)},
        "avg_latency_ms": float(latencies.mean()),
        "requests": len(latencies),
        "spread": spread([part.throughput for part in parts]),
        "others_load": float(np.max([run.others_cores for run in runs])),
    }
    row["littles_law"] = littles_law(
        row["throughput"], row["avg_latency_ms"], first.batch_size, first.concurrency
    )
    row |= gpu or {}
    row["verdict"], row["reason"] = verdict(row, request_count)
    return row
