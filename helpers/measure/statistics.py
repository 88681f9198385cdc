"""The statistics of measurements: 95% intervals and what they decide, with their sources."""

from bisect import bisect_left
from collections.abc import Sequence
from functools import cache
from math import ceil, floor, log, nan, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from helpers.results import BudgetState

CONFIDENCE = 0.95
MIN_RUNS = 3  # that bound anything: the interval of two is wider than any figure
BUDGET_SHARE = 0.01  # of requests, that may take longer than a latency budget
SLOWEST = 50  # requests whose correlation counts, at most a tenth of all


class Interval(NamedTuple):
    """A 95% interval of a figure."""

    low: float
    high: float

    @property
    def margin_of_error(self) -> float:
        """Return sqrt(high / low) - 1, half of the width on a logarithmic scale: 0.05 is ±5%."""
        return sqrt(self.high / self.low) - 1


def log_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval | None:
    """Bound the (geometric) mean of independent repetitions: Student's t on their logarithms.

    None for fewer than three values, or if one is not positive and finite. The interval of the
    inverse values is the inverse interval. Source: Student 1908.
    """
    from scipy.special import stdtrit  # Student's quantiles, without what scipy.stats checks

    array = np.asarray(values, dtype=np.float64)
    if len(array) < MIN_RUNS or not (np.isfinite(array) & (array > 0)).all():
        return None
    logs = np.log(array)
    reach = stdtrit(len(logs) - 1, (1 + confidence) / 2) * logs.std(ddof=1) / len(logs) ** 0.5
    return Interval(float(np.exp(logs.mean() - reach)), float(np.exp(logs.mean() + reach)))


def difference_interval(first: Sequence[float], second: Sequence[float]) -> Interval | None:
    """Bound the difference of means of repetitions, first less second; None for fewer than three
    of either. Source: Welch 1947.
    """
    from scipy.stats import ttest_ind

    if min(len(first), len(second)) < MIN_RUNS:
        return None
    bounds = ttest_ind(first, second, equal_var=False).confidence_interval(CONFIDENCE)
    return Interval(float(bounds.low), float(bounds.high))


def geometric_mean(values: Sequence[float] | NDArray[np.float64]) -> float:
    """Return the geometric mean, which `log_interval` bounds; NaN unless all are positive."""
    array = np.asarray(values, dtype=np.float64)
    return float(np.exp(np.log(array).mean())) if len(array) and (array > 0).all() else nan


def lag1_autocorrelation(values: NDArray[np.float64 | np.bool_]) -> float:
    """Return the correlation of each value's rank with the next's, 0 to 0.95 (Spearman's rho)."""
    from scipy.stats import rankdata

    ranks = rankdata(values)
    if len(ranks) < 3 or ranks[:-1].std() == 0 or ranks[1:].std() == 0:
        return 0.0
    return float(np.clip(np.corrcoef(ranks[:-1], ranks[1:])[0, 1], 0, 0.95))


def effective_sample_ratio(values: NDArray[np.float64 | np.bool_]) -> float:
    """Return the effective sample size of values in sequence as a share of their number, 0 to 1. It
    is (1 - rho) / (1 + rho) for a lag-1 correlation of rho (Bayley and Hammersley 1946).
    """
    rho = lag1_autocorrelation(values)
    return (1 - rho) / (1 + rho)


def requests_needed(quantile: float) -> int:
    """Return how many independent requests bound a quantile from above: 299 for the p99."""
    return ceil(log(1 - CONFIDENCE) / log(quantile))


def percentile_interval(values: NDArray[np.float64], quantile: float) -> Interval | None:
    """Bound a quantile (between 0 and 1) of values in the order of their sequence by two of them.

    Order statistics, whose ranks are binomial whatever the distribution (Conover 1999, section
    3.2), for as many values as the correlation leaves. None where the largest bounds nothing.
    """
    count = int(len(values) * effective_sample_ratio(values))
    if count < requests_needed(quantile):
        return None
    ranks = np.round(np.array(_ranks(count, quantile)) * len(values) / count).astype(int)
    low, high = np.sort(values)[np.clip(ranks, 1, len(values)) - 1]
    return Interval(float(low), float(high))


@cache
def _ranks(count: int, quantile: float) -> tuple[int, int]:
    """Return which two of `count` values, from 1, bound a quantile. Where even the largest bounds
    it with too little certainty for one side, the other side gets less.
    """
    from scipy.stats import binom

    error = 1 - CONFIDENCE
    high = min(int(binom.ppf(1 - error / 2, count, quantile)) + 1, count)
    return int(binom.ppf(error - binom.sf(high - 1, count, quantile), count, quantile)), high


def share_interval(count: float, total: float) -> tuple[float, float]:
    """Bound a share (0 to 1) that was seen `count` times of `total` (Clopper and Pearson 1934)."""
    from scipy.special import betaincinv

    error = (1 - CONFIDENCE) / 2
    low = float(betaincinv(count, total - count + 1, error)) if count else 0.0
    high = float(betaincinv(count + 1, total - count, 1 - error)) if count < total else 1.0
    return low, high


def check_budget(latencies_ms: NDArray[np.float64], budget_ms: float) -> tuple[BudgetState, int]:
    """Return whether at most 1% of requests, in sequence, take longer than a budget: "met", "not
    met" or "unconfirmed". Return too how many requests would confirm it if no more took longer.

    Slow requests come in bursts, so requests count for as many as the correlation of slow ones
    leaves: of those above the budget, or of the `SLOWEST` if that leaves fewer. Fast requests often
    follow one another too, but do not change how many are late.
    """
    count = len(latencies_ms)
    share = min(0.1, SLOWEST / max(count, 1))
    slow_ms = min(budget_ms, np.quantile(latencies_ms, 1 - share)) if count else budget_ms
    worth = min(effective_sample_ratio(latencies_ms > limit) for limit in (budget_ms, slow_ms))
    late, total = worth * float((latencies_ms > budget_ms).sum()), worth * len(latencies_ms)
    fewest, most = floor(late), ceil(late)
    low, high = share_interval(fewest, total)[0], share_interval(most, total)[1]
    unmet: BudgetState = "not met" if low > BUDGET_SHARE else "unconfirmed"
    enough = bisect_left(
        range(10**9), True, key=lambda n: share_interval(most, max(n, most))[1] <= BUDGET_SHARE
    )
    return "met" if high <= BUDGET_SHARE else unmet, ceil(enough / worth)


def growth(times: NDArray[np.float64], values: NDArray[np.float64]) -> float:
    """Return how fast values grow over time, in their unit per that of time; NaN for fewer than
    two. It is the median slope between pairs of at most 500 points, which a single stall does not
    move (Theil 1950, Sen 1968).
    """
    from scipy.stats import theilslopes

    step = ceil(len(times) / 500) or 1
    return float(theilslopes(values[::step], times[::step])[0]) if len(times) > 1 else nan


def littles_law(
    throughput: float, mean_latency_ms: float, batch_size: int, concurrency: int
) -> float:
    """Return throughput x latency / (batch x clients): 1 without pauses (Little 1961)."""
    return throughput * mean_latency_ms / 1000 / (batch_size * concurrency)
