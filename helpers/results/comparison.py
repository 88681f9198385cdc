"""Types of the stage `compare`: a model's experiments, measured next to each other."""

from collections.abc import Iterable
from math import inf
from typing import Literal, Self

from helpers.display import short
from helpers.results.row import Record, clients_of

BudgetState = Literal["met", "not met", "unconfirmed"]


class Estimate(Record):
    """A figure with its 95% CI, where there is one."""

    value: float
    low: float | None = None
    high: float | None = None

    @classmethod
    def of(cls, value: float, ends: tuple[float, float] | None) -> Self:
        """Return a figure with the ends of its CI, or without one."""
        low, high = ends or (None, None)
        return cls(value=value, low=low, high=high)

    @property
    def is_above_one(self) -> bool:
        """Return whether a ratio is known to be above 1."""
        return self.low is not None and self.low > 1

    @property
    def is_below_one(self) -> bool:
        """Return whether a ratio is known to be below 1."""
        return self.high is not None and self.high < 1

    @property
    def is_significant(self) -> bool:
        """Return whether a ratio is known not to be 1."""
        return self.is_above_one or self.is_below_one

    def shown(self, spec: str = "", unit: str = "", ci: str = "") -> str:
        """Return the figure with its CI: "1.04 (1.01 to 1.07)". `spec` formats each number."""
        value, *ends = (
            end if end is None else format(end, spec) if spec else short(end)
            for end in (self.value, self.low, self.high)
        )
        return f"{value}{unit}" + (f" ({ci}{ends[0]} to {ends[1]})" if all(ends) else "")

    @property
    def times(self) -> str:
        """Return a ratio with its CI: "1.04× (95% CI 1.01 to 1.07)"."""
        return self.shown(".2f", "×", "95% CI ")

    def in_words(self, unit: str) -> str:
        """Return a figure with its unit and CI: "9.5 ms (95% CI 9.41 to 9.6)"."""
        return self.shown("", f" {unit}", "95% CI ")

    def overlaps(self, other: "Estimate") -> bool:
        """Return whether the CIs overlap or one is unknown. A 1 without a CI is exact."""
        (low, high), (other_low, other_high) = self._ends, other._ends
        return low <= other_high and other_low <= high

    @property
    def _ends(self) -> tuple[float, float]:
        if self.low is None or self.high is None:
            return (1.0, 1.0) if self.value == 1 else (-inf, inf)
        return self.low, self.high


class BudgetCheck(Record):
    """Whether at most 1% of requests take longer than the latency budget, for a number of clients.

    It is "unconfirmed" if the requests do not decide it with 95% confidence.
    """

    state: BudgetState
    clients: int
    p99_latency_ms: float
    requests: int
    needed: int  # requests that would confirm it if no more took longer

    def in_words(self, budget_ms: float) -> str:
        """Return the outcome in one phrase."""
        p99, clients = f"p99 is {short(self.p99_latency_ms)} ms", clients_of(self.clients)
        if self.state == "met":
            return f"{p99} with {clients}: within the budget of {budget_ms:,g} ms"
        if self.state == "not met":
            return f"too slow: {p99} with {clients}"
        return f"not confirmed: {self.requests:,} of {self.needed:,} requests with {clients}"


class ComparedExperiment(Record):
    """What was measured of one experiment; with a `reason` it cannot be deployed."""

    experiment: str
    reason: str = ""
    group: int = 0  # the servers of a group ran at the same time
    rounds: int = 0
    throughput: Estimate | None = None  # samples/s
    ratio_to_baseline: Estimate | None = None  # of throughputs, from interleaved rounds
    ratio_to_fastest: Estimate | None = None
    p50_latency_ms: Estimate | None = None  # of one client with one sample per request
    p90_latency_ms: Estimate | None = None
    budgets: tuple[BudgetCheck, ...] = ()  # in the order in which they were tried
    server_peak_memory_mb: float | None = None
    cost_per_million: Estimate | None = None  # of inferences, in the currency of price_per_hour
    joules_per_inference: float | None = None  # of the whole machine
    background_cpu_cores: float | None = None  # that other processes used meanwhile

    @property
    def met(self) -> BudgetCheck | None:
        """Return the budget check that is met, if any."""
        return next((check for check in self.budgets if check.state == "met"), None)

    @property
    def check(self) -> BudgetCheck | None:
        """Return the budget check that counts: the one that is met, or else the last."""
        return self.met or next(reversed(self.budgets), None)

    @property
    def is_too_slow(self) -> bool:
        """Return whether the experiment is known to break the budget."""
        return self.check is not None and self.check.state == "not met"


class Comparison(Record):
    """The comparison of all experiments of one workload: one network variant and one data set."""

    workload: str = ""  # its name if the model has several
    baseline: str  # the first experiment in fp32
    clients: int  # of the throughputs
    batch_size: int  # samples per request
    latency_budget_ms: float | None = None
    seconds: float = 0.0  # of measurements
    groups: int = 1  # more if memory was too small for all servers at once
    experiments: tuple[ComparedExperiment, ...]

    @property
    def ranked(self) -> list[ComparedExperiment]:
        """Return what has a throughput and no reason against it, the fastest first."""

        def speed(one: ComparedExperiment) -> float:
            return _value(one.ratio_to_baseline or one.ratio_to_fastest or one.throughput)

        measured = [one for one in self.experiments if one.throughput and not one.reason]
        return sorted(measured, key=speed, reverse=True)

    @property
    def recommended(self) -> ComparedExperiment | None:
        """Return what to deploy: the fastest that meets the budget; without a budget, or if none is
        known to meet it, the fastest that is not known to break it; None if there is none.
        """
        met = [one for one in self.ranked if self.latency_budget_ms and one.met]
        possible = [one for one in self.ranked if not one.is_too_slow]
        return next(iter(met or possible), None)

    def rivals_of(self, best: ComparedExperiment) -> list[ComparedExperiment]:
        """Return the other experiments whose throughput may be equal to that of `best`."""
        return [one for one in self.ranked if one is not best and _may_be_equal(one, best)]

    @property
    def rivals(self) -> list[ComparedExperiment]:
        """Return the others that may be as fast as what to deploy and are not too slow."""
        best = self.recommended
        return [one for one in self.rivals_of(best) if not one.is_too_slow] if best else []

    @property
    def lowest_latency(self) -> ComparedExperiment | None:
        """Return the experiment with the lowest p50 of single requests."""
        timed = [one for one in self.ranked if one.p50_latency_ms]
        return min(timed, key=lambda one: _value(one.p50_latency_ms), default=None)

    @property
    def ties(self) -> str:
        """Return which others may be as fast as what to deploy."""
        return same_as(self.rivals)

    @property
    def limit(self) -> str:
        """Return the name of the latency budget; "" if there is none."""
        return f"the budget of {self.latency_budget_ms:,g} ms" if self.latency_budget_ms else ""

    @property
    def headline(self) -> str:
        """Return what to deploy, in one line."""
        best = self.recommended
        if best is None:
            measured = f"No experiment meets {self.limit} at p99"
            return measured if self.ranked else "Nothing can be deployed"
        line = f"Deploy {best.experiment}: {self.speed_of(best)}"
        if best.met:
            p99, clients = short(best.met.p99_latency_ms), clients_of(best.met.clients)
            return f"{line}, p99 {p99} ms with {clients}, below {self.limit} with 95% confidence"
        return f"{line}; {self.limit} is {self.budget_of(best)}" if self.limit else line

    def speed_of(self, one: ComparedExperiment) -> str:
        """Return how fast the best experiment for something is, compared with the baseline."""
        ratio = one.ratio_to_baseline
        if len(self.ranked) == 1:
            return "no other experiment was measured"
        if one.experiment == self.baseline:
            others = [other.ratio_to_baseline for other in self.ranked]
            if any(other and other.is_above_one for other in others):
                return "no faster experiment is known to meet the budget"
            return f"no other experiment is {'known to be ' if self.rivals_of(one) else ''}faster"
        if ratio is None:
            return f"{self.baseline}, the baseline, was not measured"
        return ratio.times.replace("×", f"× as fast as {self.baseline}", 1)

    def budget_of(self, one: ComparedExperiment) -> str:
        """Return how an experiment compares with the budget."""
        if not self.latency_budget_ms:
            return "no budget is set"
        return one.check.in_words(self.latency_budget_ms) if one.check else "not measured"


def same_as(rivals: Iterable[ComparedExperiment]) -> str:
    """Return a sentence that names experiments without a significant difference; "" if none."""
    names = ", ".join(one.experiment for one in rivals)
    return f"No significant difference from {names}." if names else ""


def _value(estimate: Estimate | None) -> float:
    return estimate.value if estimate else 0.0


def _may_be_equal(one: ComparedExperiment, best: ComparedExperiment) -> bool:
    """Return whether two throughputs may be equal: the CIs of their ratios overlap or are unknown.
    The ratios are those to the fastest, or between groups those to the baseline.
    """
    ratio, other = one.ratio_to_fastest, best.ratio_to_fastest
    if one.group != best.group or ratio is None or other is None:
        ratio, other = one.ratio_to_baseline, best.ratio_to_baseline
    return ratio is None or other is None or ratio.overlaps(other)
