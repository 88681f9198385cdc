"""Two servers under the same load in turn: how many times as fast the second one is, measured for
no longer than it takes to know.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import exp, hypot, log
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from helpers import models
from helpers.config import ContestConfig, artifact_folder, results_folder
from helpers.errors import DeploymentError, MeasurementError
from helpers.inference import ensemble, require
from helpers.machine import contest_obstacle
from helpers.models import Arrays
from helpers.perf import analyzer, background, sweep
from helpers.perf.analyzer import LoadPoint
from helpers.perf.rows import Window, block_size, repetitions
from helpers.perf.statistics import (
    FEWEST_RUNS,
    Interval,
    geometric_mean,
    judge_budget,
    log_interval,
)
from helpers.store import Artifact
from helpers.triton import Server, serve, write_repository

MUCH = 0.85  # a drift between two runs is not as large
NO_REQUESTS = "a run has only the first request of each client: increase measurement_seconds"
RUN_SECONDS = 1.2  # of load; perf_analyzer takes about as long to begin and to end


@dataclass(frozen=True)
class Contender:
    """A server, how its model is configured, and how many clients it has."""

    server: Server
    config: ContestConfig
    clients: int
    request_seconds: float = 0.0  # of a request that is alone


@dataclass(frozen=True)
class Comparison:
    """What is known of the second contender."""

    ratio: float  # of its throughput to the first one's
    interval: Interval | None  # of the ratio, 95%
    pairs: int
    throughput: float  # samples/s
    p99_latency_ms: float
    budget: str  # whether p99 is within it: "met", "not met", "unconfirmed"; empty without one
    background_cpu_cores: float = 0.0  # that other processes used meanwhile

    @property
    def is_faster(self) -> bool:
        """Whether the second one is known to be faster."""
        return self.interval is not None and self.interval.low > 1

    @property
    def is_slower(self) -> bool:
        """Whether the second one is known to be slower."""
        return self.interval is not None and self.interval.high < 1


@dataclass(frozen=True)
class Contest:
    """The requests with which servers are compared."""

    samples: Arrays
    data: Path  # the same for perf_analyzer

    def warm(self, server: Server, config: ContestConfig, clients: int) -> Contender:
        """Send each batch that the batcher can form of so many clients' requests, as the first one
        of a shape is slow.
        """
        size = config.online_batch_size
        for count in range(1, max(1, min(clients, config.max_batch_size // size)) + 1):
            server.infer(config.model, sweep.batch(self.samples, 0, count * size))
        one = sweep.batch(self.samples, 0, size)
        return Contender(
            server, config, clients, sweep.seconds(lambda: server.infer(config.model, one))
        )

    def run(self, contender: Contender) -> Window:
        """Load one contender for a while, each client's first request apart."""
        return self.load(contender).steady

    def load(self, contender: Contender) -> Window:
        """Load one contender for a while."""
        config, server = contender.config, contender.server
        outputs = [tensor.name for tensor in models.get(config.model).outputs(config)]
        one = sweep.sent(server, sweep.batch(self.samples, 0, 1), 1)
        served = ensemble.served(config)
        seconds = min(RUN_SECONDS, config.measurement_seconds / 5)
        shortest = round(1000 * seconds / analyzer.WINDOWS / analyzer.WINDOW_STRETCH)
        count = contender.clients + block_size(contender.clients)
        point = LoadPoint(
            config.model,
            self.data,
            analyzer.shared_memory_patterns(list(one), outputs),
            batch_size=config.online_batch_size,
            concurrency=contender.clients,
            parts=[each.part.name for each in served] if len(served) > 1 else [""],
            interval_ms=max(shortest, analyzer.interval_ms(count, 1, contender.request_seconds)),
            flat=bool(server.wire),
            # without it perf_analyzer writes all that it sent as text: 3 MB and 50 ms an image
            shared_memory=config.shared_memory if server.is_local else "none",
        )
        return analyzer.run(point, server)

    def compare(
        self,
        first: Contender,
        second: Contender,
        pairs: int,
        until_known: bool = True,
        budget_ms: float | None = None,
    ) -> Comparison:
        """Compare two contenders by `in_turn`; raise `ServerError` or `MeasurementError`."""
        if not until_known:  # else it would take longer than the comparison
            background.wait_until_quiet()
        processes = {*first.server.processes, *second.server.processes}
        others_cores = background.monitor_background(tuple(processes))
        runs = in_turn(lambda: self.run(first), lambda: self.run(second), pairs, until_known)
        latencies = np.concatenate([run.latencies_ms for run in runs[1]])
        if not len(latencies):
            raise MeasurementError(NO_REQUESTS)
        throughputs = [geometric_mean([run.throughput for run in each]) for each in runs]
        return Comparison(
            ratio=throughputs[1] / throughputs[0],
            interval=ratio_interval(*runs),
            pairs=len(runs[1]),
            throughput=throughputs[1],
            p99_latency_ms=float(np.percentile(latencies, 99)),
            budget=judge_budget(latencies, budget_ms)[0] if budget_ms else "",
            background_cpu_cores=others_cores(),
        )


@contextmanager
def served(config: ContestConfig, scenario: str = "online", log: str = "") -> Iterator[Server]:
    """Serve a configuration from a repository of its own, which goes with the block; `log` names
    the server's, where several run at a time. Raises `DeploymentError` if the target's server is
    one that is there already.
    """
    if reason := contest_obstacle(config):
        raise DeploymentError(reason)
    converted, place = require(config, "convert"), artifact_folder(config, "deploy").parent
    with TemporaryDirectory(dir=place, prefix=f".{config.stage}.") as name:
        repository, log = Artifact(Path(name), {}, {}), log or f"{config.stage}_server.log"
        write_repository(repository.folder, config, converted)
        with serve(config, repository, scenario, log=results_folder(config) / log) as server:
            yield server


@contextmanager
def contest_of(config: ContestConfig, server: Server) -> Iterator[Contest]:
    """Prepare the requests, in the form that travels to `server`, with the machine for this
    process' measurements alone.
    """
    samples = sweep.distinct_samples(config)
    sent = sweep.sent(server, samples, config.online_batch_size)
    with background.exclusive_lock(), analyzer.input_data(sent) as data:
        yield Contest(samples, data)


def in_turn(
    first: Callable[[], Window], second: Callable[[], Window], pairs: int, until_known: bool
) -> tuple[list[Window], list[Window]]:
    """Run pairs in turn, first second, second first and so on, so that a steady drift cancels: all
    of them, or until it is known which is faster. A large difference may be known after one pair,
    that the second one is slower after two, that it is faster after as many as have an interval.
    """
    calls = first, second
    runs: tuple[list[Window], list[Window]] = [], []
    for turn in range(pairs):
        for which in (0, 1) if turn % 2 == 0 else (1, 0):
            runs[which].append(calls[which]())
        found = ratio_interval(*runs)
        is_faster = found and found.low > (1 if turn + 1 >= FEWEST_RUNS else 1 / MUCH)
        is_slower = found and found.high < (1 if turn else MUCH)
        if until_known and (is_faster or is_slower):
            break
    return runs


def ratio_interval(first: Sequence[Window], second: Sequence[Window]) -> Interval | None:
    """Bound the ratio of the second's throughput to the first's: by the pairs, or where they are
    too few, by consecutive blocks of the runs (the logarithms' variances add up).
    """
    if len(first) >= FEWEST_RUNS:
        pairs = zip(first, second, strict=True)
        return log_interval([each.throughput / other.throughput for other, each in pairs])
    blocks = [repetitions(runs, True) for runs in (first, second)]
    low, high = (log_interval(each) for each in blocks)
    if low is None or high is None:
        return None
    ratio = geometric_mean(blocks[1]) / geometric_mean(blocks[0])
    reach = hypot(log(1 + low.margin_of_error), log(1 + high.margin_of_error))
    return Interval(ratio * exp(-reach), ratio * exp(reach))
