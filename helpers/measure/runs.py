"""The runs of one measurement, in rounds, and the machine's speed before and after each round."""

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from statistics import median_high

import numpy as np

from helpers.config import LoadConfig
from helpers.measure import background
from helpers.measure.analyzer import LoadPoint
from helpers.measure.interleave import interleave
from helpers.measure.rows import Window, repetitions
from helpers.measure.statistics import log_interval


@dataclass
class SpeedMonitor:
    """The speed of a reference kernel in a stage (GFLOP/s), and how much of a change is noise."""

    within: float = 0.1
    speeds: list[float] = field(default_factory=list)

    def measure(self) -> float:
        """Measure it now."""
        self.speeds.append(background.machine_speed())
        return self.speeds[-1]

    def changed(self, before: float, after: float) -> str:
        """Return how the speed changed in a round, or differs there from the stage's; or ""."""
        for value, other in ((after, before), ((before + after) / 2, median_high(self.speeds))):
            if not abs(value / other - 1) <= self.within:
                speeds = f"reference kernel: {other:.0f}, then {value:.0f} GFLOP/s"
                return f"The machine's speed changed ({speeds}). Run again on an idle machine."
        return ""


@dataclass
class Runs:
    """The runs of one measurement: served ones, and in-process throughputs next to them."""

    load: Callable[[LoadPoint], Window]  # puts the load of a point on the server
    watched: Callable[[], AbstractContextManager[None]]  # watches the machine in an in-process run
    cut: bool = False  # whether consecutive blocks of a run repeat one another
    served: list[Window] = field(default_factory=list)
    in_process: list[float] = field(default_factory=list)  # samples/s
    noop: list[Window] = field(default_factory=list)  # of the no-op model
    # by run: processor seconds that other processes took, and how long it was
    others: list[tuple[float, float]] = field(default_factory=list)
    speed: SpeedMonitor = field(default_factory=SpeedMonitor)  # of the stage
    rounds: list[tuple[float, float]] = field(default_factory=list)  # the speed before and after
    seconds: float = 0.0  # that the rounds took

    def repeat(self, candidates: Sequence[Callable[[], None]], is_over: Callable[[], bool]) -> None:
        """Run the candidates, which add to the lists above, interleaved until it is over."""
        before, started = self.speed.measure(), time.monotonic()

        def end_round(_: object) -> bool:
            nonlocal before, started
            self.seconds += time.monotonic() - started
            after = self.speed.measure()
            self.rounds.append((before, after))
            before, started = after, time.monotonic()
            return is_over()

        interleave(candidates, sys.maxsize, end_round)

    @property
    def speed_changed(self) -> str:
        """Return how the machine's speed changed in a round; empty if in none."""
        return next(filter(None, (self.speed.changed(*pair) for pair in self.rounds)), "")

    @property
    def others_cores(self) -> float:
        """Return the CPU cores that other processes took in all runs together: a tick of their
        clock, 10 ms, is a large share of a short run.
        """
        taken, lasted = np.sum(self.others, axis=0)
        return float(taken / lasted)

    def missing(self, wanted: int) -> int:
        """Count the requests that are still missing, without the first of each client."""
        return wanted - sum(len(run.steady.requests) for run in self.served)

    def is_over(self, seconds: float, wanted: int) -> bool:
        """Return whether a point's time has passed: `seconds`, or three times as long while
        requests are missing, because its row would have no result.
        """
        return self.seconds > seconds * (1 if self.missing(wanted) <= 0 else 3)

    def is_done(self, config: LoadConfig, wanted: int) -> bool:
        """Return whether there are enough requests for a known throughput, or the time is over."""
        is_complete = self.missing(wanted) <= 0 and self.is_known(config.margin_of_error)
        return is_complete or self.is_over(config.measurement_seconds, wanted)

    def is_known(self, margin_of_error: float) -> bool:
        """Return whether the throughput is known within a margin of error."""
        repeated = repetitions([run.steady for run in self.served], self.cut)
        interval = log_interval(repeated)
        return interval is not None and interval.margin_of_error <= margin_of_error
