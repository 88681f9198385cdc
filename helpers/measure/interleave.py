"""Run candidates interleaved, and compare their figures as a ratio with its 95% CI.

A machine that drifts changes all candidates of a round alike, so their ratio does not drift.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import exp, sqrt
from typing import Generic, TypeVar

import numpy as np

from helpers.errors import DeploymentError
from helpers.measure.statistics import CONFIDENCE, MIN_RUNS, geometric_mean
from helpers.results import Estimate

SEED = 14
# The effect of others is removed from this standard deviation of their cores on, and from so many
# degrees of freedom: with fewer, a chance fit would give too narrow an interval
VARIED_CORES, FREEDOM = 0.05, 5
T = TypeVar("T")


def interleave(
    candidates: Sequence[Callable[[], T]],
    rounds: int,
    is_over: Callable[[list[list[T]]], bool] = lambda runs: False,
    random: np.random.Generator | None = None,
) -> list[list[T]]:
    """Run each candidate once per round, in reverse order in every second round, so that a constant
    drift cancels. Stop after `rounds` rounds, or once `is_over` is true for the runs so far. Return
    the runs of each candidate.

    `random` draws the order of each pair of rounds, so that a periodic load favours none.
    """
    runs: list[list[T]] = [[] for _ in candidates]
    order = [*range(len(candidates))]
    for number in range(rounds if candidates else 0):
        if random and number % 2 == 0:
            random.shuffle(order)
        for index in reversed(order) if number % 2 else order:
            runs[index].append(candidates[index]())
        if is_over(runs):
            break
    return runs


def paired_ratio(
    figures: Sequence[Sequence[float]],
    candidate: int,
    baseline: int,
    looks: int = 1,
    others_cores: Sequence[Sequence[float]] | None = None,
) -> Estimate:
    """Divide the geometric mean of a candidate's figures by that of the baseline's.

    `figures` has a sequence for each candidate, with a figure for each round. The intervals of all
    pairs of candidates hold together with 95% probability: Tukey's range test on the logarithms,
    in a randomized complete block design. For two candidates it is the paired t-test. `looks` is
    how often an interval is computed before one of them decides (Bonferroni). There is none for
    fewer than three rounds, or if a figure is not positive and finite.

    `others_cores` are the cores that other processes used during each run. If they varied, what
    they cost each candidate is estimated, and the ratio is that without them: the analysis of
    covariance (Fisher 1932), with a slope for each candidate.
    """
    array = np.asarray(figures, dtype=np.float64)
    count, rounds = array.shape
    value = geometric_mean(array[candidate]) / geometric_mean(array[baseline])
    if candidate == baseline or rounds < MIN_RUNS or not (np.isfinite(array) & (array > 0)).all():
        return Estimate(value=value)
    logs, own = np.log(array).ravel(), np.repeat(np.eye(count), rounds, axis=0)
    design = np.hstack([own, np.tile(np.eye(rounds)[:, 1:], (count, 1))])
    cores = np.zeros_like(logs) if others_cores is None else np.ravel(others_cores)
    if cores.std() > VARIED_CORES:
        loaded = np.hstack([design, own * cores[:, None]])
        is_known = len(logs) - loaded.shape[1] >= FREEDOM
        if is_known and np.linalg.matrix_rank(loaded) == loaded.shape[1]:
            design = loaded
    solved = np.linalg.lstsq(design, logs)[0]
    freedom = len(logs) - len(solved)
    contrast = np.zeros(len(solved))
    contrast[[candidate, baseline]] = 1, -1
    spread = contrast @ np.linalg.inv(design.T @ design) @ contrast / 2
    error = sqrt(((logs - design @ solved) ** 2).sum() / freedom * spread)
    value, reach = exp(contrast @ solved), error * _studentized_range(count, freedom, looks)
    return Estimate(value=value, low=value * exp(-reach), high=value * exp(reach))


@cache
def _studentized_range(candidates: int, freedom: int, looks: int) -> float:
    from scipy.stats import studentized_range

    return float(studentized_range.ppf(1 - (1 - CONFIDENCE) / looks, candidates, freedom))


@dataclass
class Race(Generic[T]):
    """The runs of candidates in interleaved rounds; one that is known to be slower ran in fewer."""

    figure: Callable[[T], float]  # of a run: the throughput
    looks: int  # how often candidates may be dropped
    runs: dict[str, list[T]]
    others_cores: Callable[[T], float] = lambda run: 0.0  # that other processes used during a run
    failures: dict[str, DeploymentError] = field(default_factory=dict)  # of those without runs

    def figures(self, name: str) -> list[float]:
        """Return the figure of each run of a candidate."""
        return [self.figure(run) for run in self.runs[name]]

    def ratio(self, candidate: str, baseline: str) -> Estimate:
        """Divide a candidate's figures by the baseline's, in the rounds that both ran in. The
        intervals of all candidates in these rounds hold together, at every look.
        """
        rounds = min(len(self.runs[candidate]), len(self.runs[baseline]))
        names = [name for name in self.runs if len(self.runs[name]) >= rounds]
        figures = [self.figures(name)[:rounds] for name in names]
        cores = [[*map(self.others_cores, self.runs[name][:rounds])] for name in names]
        pair = names.index(candidate), names.index(baseline)
        return paired_ratio(figures, *pair, self.looks, cores)

    @property
    def fastest(self) -> str:
        """Return the candidate with the highest ratio to the others, of those in all rounds."""
        most = max(map(len, self.runs.values()))
        names = [name for name in self.runs if len(self.runs[name]) == most]
        return max(names, key=lambda name: self.ratio(name, names[0]).value)

    def run(
        self,
        calls: Mapping[str, Callable[[], T]],
        blocks: Sequence[int],
        keep: Collection[str] = (),
        is_known: Callable[[], bool] = lambda: True,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        """Run blocks of so many rounds each. After a block drop those that are known to be slower
        than the fastest, but for `keep`. End when one is left and `is_known`, or when it `is_over`
        after a round.

        A candidate whose run fails leaves the race with the reason; the others go on.
        """
        random, running = np.random.default_rng(SEED), [*calls]

        def attempt(name: str) -> None:
            if name not in self.failures:
                try:
                    self.runs.setdefault(name, []).append(calls[name]())
                except DeploymentError as error:
                    self.failures[name] = error
                    self.runs.pop(name, None)

        for rounds in blocks:
            chosen = [lambda name=name: attempt(name) for name in running]
            interleave(chosen, rounds, lambda _: not self.runs or is_over(), random)
            running = [name for name in running if name in self.runs]
            if not running or is_over():
                break
            best = self.fastest
            kept = {best, *keep}
            slower = {name for name in running if self.ratio(name, best).is_below_one}
            running = [name for name in running if name not in slower or name in kept]
            if not {*running} - kept and is_known():
                break
