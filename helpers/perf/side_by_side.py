"""Several configurations served at once and loaded in turn, so that a machine that drifts changes
all of them alike.
"""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from helpers.config import LessonConfig
from helpers.errors import MeasurementError
from helpers.perf import background, memory
from helpers.perf.contest import Contender, Contest, contest_of, served
from helpers.perf.rows import Window, measure_row
from helpers.perf.statistics import FEWEST_RUNS, Interval, geometric_mean, log_interval
from helpers.results import Row

ROUNDS = FEWEST_RUNS  # each loads every configuration once, every second in the reverse order


@dataclass(frozen=True)
class Variant:
    """One of the configurations that are compared."""

    name: str
    config: LessonConfig
    scenario: str = "online"  # "offline" is without the batcher


@dataclass(frozen=True)
class Point:
    """What was measured of a configuration with some clients."""

    variant: str
    row: Row
    rounds: tuple[float, ...]  # the throughput in each (samples/s)

    def times(self, other: "Point") -> tuple[float, Interval | None]:
        """How many times the other's throughput it has, and the interval of that, by the rounds."""
        ratios = [own / its for own, its in zip(self.rounds, other.rounds, strict=True)]
        return geometric_mean(ratios), log_interval(ratios)


def measure_side_by_side(variants: Sequence[Variant], clients: Sequence[int]) -> list[Point]:
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
            config.half_width,
            background.cores(),
            others_cores=busy,
            figures={"server_peak_memory_mb": memories[place]},
        )
        if not row.requests:
            raise MeasurementError(f"{variant}: a run saw no request but each client's first")
        found.append(Point(variant, row, tuple(each.steady.throughput for each in windows)))
    return found


def _in_turn(
    contest: Contest, contenders: Sequence[Contender], clients: Sequence[int]
) -> dict[tuple[int, int], list[Window]]:
    """Give the runs of each contender, by its place, and number of clients."""
    places = [(place, count) for count in clients for place in range(len(contenders))]
    runs: dict[tuple[int, int], list[Window]] = {each: [] for each in places}
    for turn in range(ROUNDS):
        started = time.monotonic()
        for place, count in places if turn % 2 == 0 else reversed(places):
            runs[place, count].append(contest.load(replace(contenders[place], clients=count)))
        spent = time.monotonic() - started
        print(f"round {turn + 1} of {ROUNDS}: {len(places)} runs in {spent:.0f} s")
    return runs
