"""The runs of one point of a load, in rounds: kept where the machine kept its own pace, dropped
where it did not, for as long as there is patience.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from statistics import median_high

import numpy as np

from helpers.perf import background
from helpers.perf.analyzer import LoadPoint
from helpers.perf.rows import Window, repetitions
from helpers.perf.statistics import log_interval


@dataclass
class Pace:
    """The machine's own pace in a stage, and the patience for it to be the usual one again, which
    is spent by waiting and by measuring again.
    """

    within: float = 0.1  # of its usual pace the machine is to be
    patience: float = 0.0  # s, that are left
    seen: list[float] = field(default_factory=list)  # GFLOP/s
    waited_seconds: float = 0.0
    again_seconds: float = 0.0

    @property
    def usual(self) -> float:
        """The (upper) median of all that was seen (GFLOP/s): at least half of it was no quicker."""
        return median_high(self.seen)

    def measure(self) -> float:
        """Measure it now (GFLOP/s)."""
        self.seen.append(background.pace())
        return self.seen[-1]

    def now(self) -> float:
        """The one that was measured last (GFLOP/s), once it is no slower than the usual one."""
        wanted = (1 - self.within) * self.usual
        if self.seen[-1] < wanted and self.patience > 0:
            waited = background.wait_for_pace(wanted, self.patience)
            self.patience -= waited
            self.waited_seconds += waited
            self.measure()
        return self.seen[-1]

    def changed(self, before: float, after: float) -> str:
        """Say how it changed in a round (GFLOP/s), or differs there from the usual one; empty if it
        did not.
        """
        for value, other in ((after, before), ((before + after) / 2, self.usual)):
            if not abs(value / other - 1) <= self.within:
                speeds = f"reference kernel: {other:.0f}, then {value:.0f} GFLOP/s"
                return f"The machine's speed changed ({speeds}). Run again on an idle machine."
        return ""

    def repeats(self, seconds: float) -> bool:
        """Spend the patience on measuring again what took so long, if there is enough."""
        if seconds > self.patience:
            return False
        self.patience -= seconds
        self.again_seconds += seconds
        return True


@dataclass(frozen=True)
class Round:
    """One turn of a point: a served run, with a bare one and the floor's if it has them."""

    seconds: float
    paces: tuple[float, float]  # of the machine before and after it (GFLOP/s)


@dataclass
class Runs:
    """The runs of one point: served ones, and bare throughputs beside them."""

    load: Callable[[LoadPoint], Window]  # puts the load of a point on the server
    watched: Callable[[], AbstractContextManager[None]]  # watches the machine during a bare run
    cut: bool = False  # whether consecutive blocks of a run repeat one another
    served: list[Window] = field(default_factory=list)
    bare: list[float] = field(default_factory=list)  # samples/s
    floor: list[Window] = field(default_factory=list)  # of the identity model
    # by run: processor seconds that other processes took, and how long it was
    others: list[tuple[float, float]] = field(default_factory=list)
    pace: Pace = field(default_factory=Pace)  # of the stage
    rounds: list[Round] = field(default_factory=list)

    def round(self, *runs: Callable[[], None]) -> None:
        """Do these runs, which add to the lists above. Every round in which the machine had another
        pace than it usually has is dropped, for as long as there is patience to repeat it.
        """
        before = self.pace.now() if self.pace.seen else self.pace.measure()
        started = time.monotonic()
        for run in runs:
            run()
        after = self.pace.measure()
        self.rounds.append(Round(time.monotonic() - started, (before, after)))
        for i, done in reversed([*enumerate(self.rounds)]):
            if self.pace.changed(*done.paces) and self.pace.repeats(done.seconds):
                for each in (self.served, self.bare, self.floor, self.rounds):
                    del each[i : i + 1]

    @property
    def seconds(self) -> float:
        """How long the rounds that were kept took."""
        return sum(done.seconds for done in self.rounds)

    @property
    def paces(self) -> list[float]:
        """The machine's own pace (GFLOP/s) before and after each round that was kept."""
        return [pace for done in self.rounds for pace in done.paces]

    @property
    def pace_changed(self) -> str:
        """Say how the machine's own pace changed in a round that was kept; empty if in none."""
        return next(filter(None, (self.pace.changed(*done.paces) for done in self.rounds)), "")

    @property
    def others_cores(self) -> float:
        """What other processes took meanwhile. Of all runs together: the clock of processes ticks
        every 10 ms, and a few ticks are a large share of a short run.
        """
        taken, lasted = np.sum(self.others, axis=0)
        return float(taken / lasted)

    def missing(self, wanted: int) -> int:
        """Count the requests that are still missing, those of the ramp apart."""
        return wanted - sum(len(run.steady.requests) for run in self.served)

    def is_over(self, seconds: float, wanted: int) -> bool:
        """Whether a point has had its time: `seconds`, or three times as long while requests are
        missing, as the row would say nothing then.
        """
        return self.seconds > seconds * (1 if self.missing(wanted) <= 0 else 3)

    def is_known(self, margin_of_error: float) -> bool:
        """Whether the throughput is known within that."""
        repeated = repetitions([run.steady for run in self.served], self.cut)
        interval = log_interval(repeated)
        return interval is not None and interval.margin_of_error <= margin_of_error
