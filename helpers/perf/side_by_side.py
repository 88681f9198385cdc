"""Several configurations served at once and loaded in turn, so that a machine that drifts changes
all of them alike.
"""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import numpy as np

from helpers.config import LessonConfig
from helpers.errors import MeasurementError
from helpers.perf import background, memory
from helpers.perf.contest import NO_REQUESTS, Contender, Contest, contest_of, served
from helpers.perf.rows import Window, measure_row
from helpers.perf.statistics import FEWEST_RUNS, Interval, geometric_mean, log_interval
from helpers.results import Row

# Each round loads every configuration once, every second round in the reverse order: as many as the
# time of a point allows, from what has an interval to what keeps a lesson below three minutes.
FEWEST_ROUNDS, MOST_ROUNDS, ROUND_SECONDS = FEWEST_RUNS, 4, 2.0


@dataclass(frozen=True)
class Variant:
    """One of the configurations that are compared."""

    name: str
    config: LessonConfig
    scenario: str = "online"  # "offline" is without the batcher


@dataclass(frozen=True)
class Ratio:
    """How many times as large one figure is as another, with its 95% interval if that is known."""

    value: float
    interval: Interval | None

    @property
    def is_known(self) -> bool:
        """Whether it is known to be above or below 1."""
        return self.interval is not None and not self.interval.low <= 1 <= self.interval.high

    @property
    def in_words(self) -> str:
        """The ratio with its 95% CI."""
        ends = self.interval
        bounds = f" (95% CI {ends.low:.2f} to {ends.high:.2f})" if ends else ""
        return f"{self.value:.2f}×{bounds}"


@dataclass(frozen=True)
class Point:
    """What was measured of a configuration with some clients."""

    variant: str
    row: Row
    throughputs: tuple[float, ...]  # of each round (samples/s)
    medians_ms: tuple[float, ...]  # the p50 latency of each round

    def throughput_over(self, other: "Point") -> Ratio:
        """How many times the other's throughput it has."""
        return ratio(self.throughputs, other.throughputs)

    def latency_over(self, other: "Point") -> Ratio:
        """How many times the other's p50 latency it has."""
        return ratio(self.medians_ms, other.medians_ms)


def ratio(values: Sequence[float], others: Sequence[float]) -> Ratio:
    """Divide round by round, so that what a round met cancels; 1 beside itself has no interval."""
    ratios = [own / its for own, its in zip(values, others, strict=True)]
    return Ratio(geometric_mean(ratios), None if values == others else log_interval(ratios))


def measure_interleaved(variants: Sequence[Variant], clients: Sequence[int]) -> list[Point]:
    """Load each configuration with each number of clients, the first configuration first.

    Raises `ServerError` if one cannot be served, and `MeasurementError` if one is not measured.
    """
    with ExitStack() as opened:
        servers = [  # they start side by side
            opened.enter_context(
                served(each.config, each.scenario, f"{each.config.stage}_server_{place}.log")
            )
            for place, each in enumerate(variants)
        ]
        contest = opened.enter_context(contest_of(variants[0].config, servers[0]))
        contenders = [
            contest.warm(server, each.config, max(clients))
            for server, each in zip(servers, variants, strict=True)
        ]
        background.wait_until_quiet()
        peaks = [memory.watch_peak(server.processes) for server in servers]
        others = background.monitor_background([pid for each in servers for pid in each.processes])
        runs = _in_turn(contest, contenders, clients)
        busy, memories = others(), [peak() for peak in peaks]
    found = []
    for (place, _), windows in runs.items():
        variant, config = variants[place].name, variants[place].config
        row = measure_row(
            windows,
            config.request_count,
            config.margin_of_error,
            background.cores(),
            others_cores=busy,
            figures={"server_peak_memory_mb": memories[place]},
        )
        if not row.requests:
            raise MeasurementError(f"{variant}: {NO_REQUESTS}")
        steady = [window.steady for window in windows]
        throughputs = tuple(each.throughput for each in steady)
        medians_ms = tuple(float(np.median(each.latencies_ms)) for each in steady)
        found.append(Point(variant, row, throughputs, medians_ms))
    return found


def _in_turn(
    contest: Contest, contenders: Sequence[Contender], clients: Sequence[int]
) -> dict[tuple[int, int], list[Window]]:
    """Give the runs of each contender, by its place, and number of clients."""
    places = [(place, count) for count in clients for place in range(len(contenders))]
    runs: dict[tuple[int, int], list[Window]] = {each: [] for each in places}
    wanted = int(contenders[0].config.measurement_seconds / ROUND_SECONDS)
    rounds = max(FEWEST_ROUNDS, min(MOST_ROUNDS, wanted))
    for turn in range(rounds):
        started = time.monotonic()
        for place, count in places if turn % 2 == 0 else reversed(places):
            runs[place, count].append(contest.load(replace(contenders[place], clients=count)))
        spent = time.monotonic() - started
        print(f"round {turn + 1} of {rounds}: {len(places)} runs in {spent:.0f} s")
    return runs
