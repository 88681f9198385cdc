"""Run candidates interleaved, and compare their figures as a ratio with its 95% CI.

A machine that drifts changes all candidates of a round alike, so their ratio does not drift.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from math import exp, sqrt
from typing import TypeVar

import numpy as np

from helpers.measure.statistics import CONFIDENCE, MIN_RUNS, Interval

T = TypeVar("T")


@dataclass(frozen=True)
class Ratio:
    """How many times as large one figure is as another, with its 95% CI if there is one."""

    value: float
    interval: Interval | None = None

    @property
    def is_above(self) -> bool:
        """Return whether the interval is above 1."""
        return self.interval is not None and self.interval.low > 1

    @property
    def is_below(self) -> bool:
        """Return whether the interval is below 1."""
        return self.interval is not None and self.interval.high < 1

    @property
    def is_significant(self) -> bool:
        """Return whether the interval excludes 1."""
        return self.is_above or self.is_below

    def __str__(self) -> str:
        ends = self.interval
        bounds = f" (95% CI {ends.low:.2f} to {ends.high:.2f})" if ends else ""
        return f"{self.value:.2f}×{bounds}"


def interleave(
    candidates: Sequence[Callable[[], T]],
    rounds: int,
    is_over: Callable[[list[list[T]]], bool] = lambda runs: False,
) -> list[list[T]]:
    """Run each candidate once per round, in reverse order in every second round, so that a constant
    drift cancels. Stop after `rounds` rounds, or once `is_over` is true for the runs so far.

    Return the runs of each candidate.
    """
    runs: list[list[T]] = [[] for _ in candidates]
    for number in range(rounds if candidates else 0):
        pairs = [*zip(candidates, runs, strict=True)]
        for run, candidate_runs in reversed(pairs) if number % 2 else pairs:
            candidate_runs.append(run())
        if is_over(runs):
            break
    return runs


def paired_ratio(
    figures: Sequence[Sequence[float]], candidate: int, baseline: int, looks: int = 1
) -> Ratio:
    """Divide the geometric mean of a candidate's figures by that of the baseline's.

    `figures` has a sequence for each candidate, with a figure for each round. The intervals of all
    pairs of candidates hold together with 95% probability: Tukey's range test on the logarithms,
    in a randomized complete block design. For two candidates it is the paired t-test. `looks` is
    how often an interval is computed before one of them decides (Bonferroni).

    There is no interval for fewer than three rounds, or if a figure is not positive and finite.
    """
    from scipy.stats import gmean

    array = np.asarray(figures, dtype=np.float64)
    value = float(gmean(array[candidate]) / gmean(array[baseline]))
    rounds = array.shape[1]
    if candidate == baseline or rounds < MIN_RUNS or not (np.isfinite(array) & (array > 0)).all():
        return Ratio(value)
    logs = np.log(array)
    rest = logs - logs.mean(axis=0) - logs.mean(axis=1, keepdims=True) + logs.mean()
    freedom = (rounds - 1) * (len(logs) - 1)
    error = sqrt((rest**2).sum() / freedom / rounds)
    reach = error * _studentized_range(len(logs), freedom, looks)
    return Ratio(value, Interval(value * exp(-reach), value * exp(reach)))


@cache
def _studentized_range(candidates: int, freedom: int, looks: int) -> float:
    from scipy.stats import studentized_range

    return float(studentized_range.ppf(1 - (1 - CONFIDENCE) / looks, candidates, freedom))
