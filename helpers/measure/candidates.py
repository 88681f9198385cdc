"""Compare configurations on servers that run at the same time and are loaded interleaved."""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from helpers.config import LessonConfig, ServedConfig, artifact_folder, results_folder
from helpers.errors import DeploymentError, MeasurementError
from helpers.inference import require
from helpers.machine import why_lesson_unavailable
from helpers.measure import analyzer, background, memory, statistics, sweep
from helpers.measure.interleave import Race, interleave, paired_ratio
from helpers.measure.rows import Window, block_size, measure_row
from helpers.measure.statistics import MIN_RUNS, check_budget, geometric_mean
from helpers.models import Arrays
from helpers.results import Estimate, Row
from helpers.store import Artifact
from helpers.triton import Server, serve, write_repository

# Of the baseline's throughput: a candidate that slow does not become faster
EARLY_STOP_RATIO = 0.85
NO_REQUESTS = "a run has only the first request of each client: increase measurement_seconds"
RUN_SECONDS = 1.2  # of load; perf_analyzer takes about as long to begin and to end
SMALL_BYTES = 4096  # of a request that travels over HTTP
MOST_ROUNDS, ROUND_SECONDS = 4, 2.0  # of variants


@dataclass(frozen=True)
class Candidate:
    """A server, how its model is configured, and how many clients it has."""

    server: Server
    config: ServedConfig
    clients: int
    request_seconds: float = 0.0  # of a request that is alone


@dataclass(frozen=True)
class Comparison:
    """The measurements of a candidate, with the ratio of its throughput to the baseline's."""

    ratio: Estimate
    rounds: int
    throughput: float  # samples/s
    p99_latency_ms: float
    budget: str  # whether p99 is within it: "met", "not met", "unconfirmed"; empty without one
    background_cpu_cores: float = 0.0  # that other processes used meanwhile
    throughput_interval: statistics.Interval | None = None
    peak_memory_mb: float | None = None  # of the candidate's server; on a GPU its device memory


@dataclass(frozen=True)
class Variant:
    """A named configuration; the scenario "offline" has no dynamic batcher."""

    name: str
    config: LessonConfig
    scenario: str = "online"


@dataclass(frozen=True)
class Point:
    """The measurements of a variant with some number of clients."""

    variant: str
    row: Row
    throughputs: tuple[float, ...]  # of each round (samples/s)
    medians_ms: tuple[float, ...]  # the p50 latency of each round


@dataclass(frozen=True)
class LoadSession:
    """The requests with which servers are compared."""

    samples: Arrays
    data: Path  # the same for perf_analyzer

    def warm(self, server: Server, config: ServedConfig, clients: int) -> Candidate:
        """Warm up a server for so many clients' requests; return it as a candidate."""
        request_seconds = sweep.warm_up(server, config, self.samples, clients)
        return Candidate(server, config, clients, request_seconds)

    def load(self, candidate: Candidate, seconds: float = 0.0) -> Window:
        """Load a candidate for about so many seconds, by default `RUN_SECONDS` at most."""
        config, server = candidate.config, candidate.server
        seconds = seconds or min(RUN_SECONDS, config.measurement_seconds / 5)
        shortest = round(1000 * seconds / analyzer.WINDOWS / analyzer.WINDOW_STRETCH)
        count = candidate.clients + block_size(candidate.clients)
        point = replace(
            sweep.load_of(server, config, self.samples, self.data),
            batch_size=config.online_batch_size,
            concurrency=candidate.clients,
            interval_ms=max(shortest, analyzer.interval_ms(count, 1, candidate.request_seconds)),
            shared_memory=self.shared_memory(candidate),
        )
        with background.watch_others(server.processes) as cores_between:
            window = analyzer.run(point, server)
        first, last = window.requests[:, 0].min(), window.requests[:, 1].max()
        return replace(window, others_cores=cores_between(first, last))

    def shared_memory(self, candidate: Candidate) -> str:
        """Return how tensors travel. Without shared memory perf_analyzer writes all that it sent as
        text: 3 MB and 50 ms per image. With it, it may fail to write its record: see `analyzer`.
        """
        sent = sweep.batch(self.samples, 0, candidate.config.online_batch_size)
        is_large = sum(array.nbytes for array in sent.values()) > SMALL_BYTES
        return candidate.config.shared_memory if candidate.server.is_local and is_large else "none"

    def compare(
        self,
        baseline: Candidate,
        candidate: Candidate,
        rounds: int,
        is_race: bool = True,
        budget_ms: float | None = None,
    ) -> Comparison:
        """Compare a candidate with a baseline in so many rounds. A race ends once the candidate is
        known to be faster or slower, or is too slow to become faster. Raises `ServerError`, or
        `MeasurementError` if a run has too few requests.
        """
        if not is_race:  # else it would take longer than the comparison
            background.wait_until_quiet()
        blocks = (MIN_RUNS, *[1] * (rounds - MIN_RUNS)) if is_race else (rounds,)
        race = load_race(len(blocks))

        def is_hopeless() -> bool:
            if not is_race or race.failures:
                return False
            return race.ratio("candidate", "baseline").value < EARLY_STOP_RATIO

        processes = *baseline.server.processes, *candidate.server.processes
        others_cores = background.monitor_background(processes)
        peak_mb = memory.watch_bounded(candidate.config.device, candidate.server.processes)
        sides = {"baseline": baseline, "candidate": candidate}
        calls = {name: lambda side=side: self.load(side).steady for name, side in sides.items()}
        race.run(calls, blocks, is_over=is_hopeless)
        for error in race.failures.values():
            raise error
        runs, throughputs = race.runs["candidate"], race.figures("candidate")
        latencies = np.concatenate([run.latencies_ms for run in runs])
        if not len(latencies):
            raise MeasurementError(NO_REQUESTS)
        return Comparison(
            ratio=race.ratio("candidate", "baseline"),
            rounds=len(runs),
            throughput=geometric_mean(throughputs),
            p99_latency_ms=float(np.percentile(latencies, 99)),
            budget=check_budget(latencies, budget_ms)[0] if budget_ms else "",
            background_cpu_cores=others_cores(),
            throughput_interval=statistics.log_interval(throughputs),
            peak_memory_mb=peak_mb(),
        )


def load_race(looks: int) -> Race[Window]:
    """Return a race by throughput, in which the load from other processes is accounted for."""
    return Race(lambda run: run.throughput, looks, {}, lambda run: run.others_cores)


@contextmanager
def served(
    config: ServedConfig, scenario: str = "online", log: Path | None = None
) -> Iterator[Server]:
    """Serve a configuration; `DeploymentError` if this package does not start the server."""
    if reason := why_lesson_unavailable(config):
        raise DeploymentError(reason)
    converted, folder = require(config, "convert"), artifact_folder(config, "deploy").parent
    with TemporaryDirectory(dir=folder, prefix=f".{config.stage}.") as name:
        repository = Artifact(Path(name), {}, {})
        write_repository(repository.folder, config, converted)
        with serve(config, repository, scenario, log=log) as server:
            yield server


@contextmanager
def prepared_requests(config: ServedConfig, server: Server) -> Iterator[LoadSession]:
    """Prepare the requests in the form that travels to `server`."""
    samples = sweep.distinct_samples(config)
    sent = sweep.sent(server, samples, config.online_batch_size)
    with analyzer.input_data(sent) as data:
        yield LoadSession(samples, data)


@contextmanager
def open_session(config: ServedConfig, server: Server) -> Iterator[LoadSession]:
    """Prepare the requests as above. No other measurement of this package runs meanwhile."""
    with background.exclusive_lock(), prepared_requests(config, server) as session:
        yield session


def measure_interleaved(variants: Sequence[Variant], clients: Sequence[int]) -> list[Point]:
    """Load all variants, interleaved, with each number of clients. Raises `ServerError` if one
    cannot be served, and `MeasurementError` if one is not measured.
    """
    first = variants[0].config
    with ExitStack() as opened:
        servers = []
        for number, variant in enumerate(variants):  # they start at the same time
            log = results_folder(variant.config) / f"{variant.config.stage}_server_{number}.log"
            server = opened.enter_context(served(variant.config, variant.scenario, log))
            servers.append(server)
        session = opened.enter_context(open_session(first, servers[0]))
        candidates = [
            session.warm(server, variant.config, max(clients))
            for server, variant in zip(servers, variants, strict=True)
        ]
        background.wait_until_quiet()
        peaks = [memory.watch_peak(server.processes) for server in servers]
        others = background.monitor_background([pid for one in servers for pid in one.processes])
        calls = [
            partial(session.load, replace(candidate, clients=count))
            for count in clients
            for candidate in candidates
        ]
        rounds = max(MIN_RUNS, min(MOST_ROUNDS, int(first.measurement_seconds / ROUND_SECONDS)))
        started = time.monotonic()

        def say(runs: list[list[Window]]) -> bool:
            done, seconds = len(runs[0]), time.monotonic() - started
            print(f"round {done} of {rounds}: {len(calls)} runs each, {seconds:.0f} s so far")
            return False

        runs = interleave(calls, rounds, say)
        busy, memories = others(), [peak() for peak in peaks]
    points = []
    for windows, (variant, memory_mb) in zip(runs, cycle(zip(variants, memories, strict=True))):
        wanted = first.request_count, first.margin_of_error, background.cores()
        peak = {"server_peak_memory_mb": memory_mb}
        row = measure_row(windows, *wanted, others_cores=busy, figures=peak)
        if not row.requests:
            raise MeasurementError(f"{variant.name}: {NO_REQUESTS}")
        steady = [window.steady for window in windows]
        throughputs = tuple(window.throughput for window in steady)
        medians_ms = tuple(float(np.median(window.latencies_ms)) for window in steady)
        points.append(Point(variant.name, row, throughputs, medians_ms))
    return points


def ratio_of(
    points: Sequence[Point], candidate: Point, baseline: Point, figure: str = "throughputs"
) -> Estimate:
    """Divide a candidate's `throughputs` or `medians_ms` by the baseline's, which has as many
    clients; the intervals of all such pairs among `points` hold together.
    """
    beside = [point for point in points if point.row.concurrency == candidate.row.concurrency]
    figures = [getattr(point, figure) for point in beside]
    return paired_ratio(figures, beside.index(candidate), beside.index(baseline))
