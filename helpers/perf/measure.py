"""The two scenarios: offline with the bare runtime interleaved, online over a sweep of clients."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from timeit import timeit
from typing import Any

import numpy as np
from numpy.typing import NDArray

from helpers import models
from helpers.config import DeployConfig, LoadConfig, OfflineConfig, OnlineConfig
from helpers.errors import MeasurementError, ServerError
from helpers.formats import Session
from helpers.inference import ensemble, open_dataset, requests, require, threads
from helpers.models import Arrays
from helpers.perf import analyzer, background, gpu_monitor, statistics
from helpers.perf.analyzer import LoadPoint
from helpers.perf.gpu_monitor import GpuObservation, Observer
from helpers.perf.statistics import Window
from helpers.results import Measurement, Row
from helpers.triton import Server, apply_settings

REQUESTS_A_CLIENT = 5  # at least, online: fewer show more of the start than of the steady state
FEWEST_REQUESTS = 5  # in a run, for a throughput of its own
SHORTEST_INTERVAL_MS = 150
NOT_SHARED = "inputs sent over HTTP: a remote host shares no memory with this one"

NO_RATIO = dict.fromkeys(
    ("bare_throughput", "served_bare_ratio", "served_bare_low", "served_bare_high", "serving_ms")
)
PACE_CHANGED = "the machine's own pace went from"

Load = Callable[[LoadPoint], Window]  # puts the load of a point on the server


@dataclass(frozen=True)
class Bare:
    """The runtime in this process, with batches to call it with."""

    session: Session
    batches: list[Arrays]

    def run(self, seconds: float) -> float:
        """Call it without a server, over different batches in turn; return calls per second.

        A first call is not counted: after a pause, memory and threads must be woken.
        """
        self.session.run(self.batches[-1])
        calls, started = 0, time.perf_counter()
        while calls < 3 or time.perf_counter() - started < seconds:
            self.session.run(self.batches[calls % len(self.batches)])
            calls += 1
        return calls / (time.perf_counter() - started)


@dataclass
class Runs:
    """The runs of one point: served ones, and bare throughputs beside them."""

    cut: bool = False  # whether consecutive blocks of a run repeat one another
    served: list[Window] = field(default_factory=list)
    bare: list[float] = field(default_factory=list)  # inferences/s

    def missing(self, wanted: int) -> int:
        """Count the requests that are still missing, those of the ramp apart."""
        return wanted - sum(len(run.steady.requests) for run in self.served)

    def is_known(self, half_width: float) -> bool:
        """Whether the throughput is known within that."""
        repeated = statistics.repetitions([run.steady for run in self.served], self.cut)
        interval = statistics.log_interval(repeated)
        return interval is not None and interval.half_width <= half_width


Measure = Callable[[LoadPoint, Load, Runs], None]  # adds runs for as long as a point needs


def _samples(config: LoadConfig) -> Arrays:
    count = config.distinct_rows
    (samples,) = requests(config, open_dataset(config), count, count)
    return samples


def _count(samples: Arrays) -> int:
    return len(next(iter(samples.values())))


def _batch(samples: Arrays, start: int, size: int) -> Arrays:
    """Give `size` samples from `start` on, beginning again after the last."""
    chosen = range(start, start + size)
    return {name: array.take(chosen, axis=0, mode="wrap") for name, array in samples.items()}


def bare_session(config: DeployConfig) -> Session | None:
    """Load the artefact in this process as the server does; None if another runtime serves it."""
    if not ensemble.has_bare_runtime(config):
        return None
    repository = require(config, "deploy").folder
    return ensemble.load(
        config,
        config.format,
        lambda component: repository / component.part.name / "1",
        threads(config, "offline"),
        config.device,
    )


def interval_ms(request_count: int, runs: int, request_seconds: float) -> int:
    """Length of a window so that `runs` runs see `request_count` requests beside the first ones,
    and each enough for a throughput, with one to spare.
    """
    per_run = max(ceil(request_count / runs), FEWEST_REQUESTS) + 1
    wanted = (ceil(per_run / analyzer.WINDOWS) + 1 / analyzer.WINDOWS) * request_seconds * 1000
    return max(SHORTEST_INTERVAL_MS, ceil(1.1 * wanted / analyzer.WINDOW_STRETCH))


def measure_offline(config: OfflineConfig, server: Server) -> Measurement:
    """Measure each batch size at concurrency 1, bare and served runs in turn; served runs alone
    where there is nothing bare. What cannot be measured is a row with the reason.
    """
    refused = apply_settings()
    samples, session = _samples(config), bare_session(config)
    shared_memory = config.shared_memory if server.is_local else "none"
    points = [{"batch_size": size, "shared_memory": shared_memory} for size in config.batch_sizes]

    def measure(point: LoadPoint, load: Load, runs: Runs) -> None:
        size = point.batch_size
        batches = [_batch(samples, start, size) for start in range(0, _count(samples), size)]
        bare = Bare(session, batches) if session else None
        _offline_runs(config, server, bare, batches[0], point, load, runs)

    return _sweep(config, server, samples, points, measure, refused)


def _offline_runs(
    config: OfflineConfig,
    server: Server,
    bare: Bare | None,
    batch: Arrays,
    point: LoadPoint,
    load: Load,
    runs: Runs,
) -> None:
    """Run pairs that share no run, in turn: bare served, served bare, bare served, and so on, so
    that a steady drift cancels. Windows are sized by the requests that are still missing and by how
    long a served request took so far.

    It ends when there are enough requests and the throughput is known, or with the first whole pair
    after `point_seconds`; never before `pairs`.
    """
    server.infer(config.model, batch)  # the first call of a new shape is slow
    request_seconds = _seconds(lambda: server.infer(config.model, batch))
    if bare:
        bare.run(0)
    ends = time.monotonic() + config.point_seconds

    def serve() -> None:
        nonlocal request_seconds
        wanted = max(runs.missing(config.request_count), 1)
        remaining = max(config.pairs - len(runs.served), 1)
        interval = interval_ms(wanted, remaining, request_seconds)
        runs.served.append(load(replace(point, interval_ms=interval)))
        request_seconds = float(runs.served[-1].latencies_ms.mean()) / 1000

    def call() -> None:
        interval = interval_ms(config.request_count, config.pairs, request_seconds)
        expected = analyzer.WINDOWS * analyzer.WINDOW_STRETCH * interval / 1000
        seconds = runs.served[-1].seconds if runs.served else expected
        assert bare
        runs.bare.append(point.batch_size * bare.run(seconds))

    while not (
        len(runs.served) >= config.pairs
        and runs.missing(config.request_count) <= 0
        and runs.is_known(config.half_width)
    ):
        if len(runs.served) >= config.pairs and time.monotonic() > ends:
            break
        in_turn = [call, serve] if bare else [serve]
        for run in reversed(in_turn) if len(runs.served) % 2 else in_turn:
            run()


def measure_online(config: OnlineConfig, server: Server) -> Measurement:
    """Measure each number of clients over HTTP, each with `online_batch_size` samples a request.
    What cannot be measured is a row with the reason.
    """
    samples, size = _samples(config), config.online_batch_size
    together = min(max(config.concurrency), config.max_batch_size // size)
    for count in range(1, together + 1):  # each batch that the batcher can form
        server.infer(config.model, _batch(samples, 0, count * size))
    one = _batch(samples, 0, size)
    seconds = [_seconds(lambda: server.infer(config.model, one))]  # a request, at each point so far

    def measure(point: LoadPoint, load: Load, runs: Runs) -> None:
        ends = time.monotonic() + config.point_seconds
        runs.cut = True
        wanted = _wanted(config, point.concurrency)
        count = wanted + point.concurrency
        while True:
            run = load(replace(point, interval_ms=interval_ms(count, 1, seconds[-1])))
            seconds.append(float(run.latencies_ms.mean()) / 1000 / point.concurrency)
            runs.served.append(run)
            enough = runs.missing(wanted) <= 0 and runs.is_known(config.half_width)
            if enough or time.monotonic() > ends:
                return
            count *= 2

    points = [{"batch_size": size, "concurrency": clients} for clients in config.concurrency]
    return _sweep(config, server, samples, points, measure)


def _wanted(config: LoadConfig, clients: int) -> int:
    """How many requests a point is held to, each client's first apart."""
    each = 0 if isinstance(config, OfflineConfig) else REQUESTS_A_CLIENT
    return max(config.request_count, each * clients)


def _sweep(
    config: LoadConfig,
    server: Server,
    samples: Arrays,
    points: Sequence[Mapping[str, Any]],
    measure: Measure,
    refused: str = "",
) -> Measurement:
    """Measure point after point, with the machine for this measurement alone."""
    outputs = [tensor.name for tensor in models.get(config.model).outputs(config)]
    regions = analyzer.shared_memory_patterns(list(samples), outputs)
    found = ensemble.parts(config)
    parts = [part.name for part in found] if len(found) > 1 else [""]
    rows: list[Row] = []
    requests: dict[str, NDArray[np.generic]] = {}
    before: list[float] = []
    paces: list[float] = []
    ended = ""
    with (
        background.exclusive_lock(),
        analyzer.input_data(samples) as data,
        gpu_monitor.observed(config.device, server) as observer,
    ):
        for fields in points:
            point = replace(LoadPoint(config.model, data, regions, parts=parts), **fields)
            size, clients = point.batch_size, point.concurrency
            for last in (False, True):
                own: dict[str, NDArray[np.generic]] = {}
                before.append(background.wait_until_quiet())
                try:
                    if ended:
                        raise MeasurementError(ended)
                    row, own = _measure_point(config, server, observer, point, measure, paces)
                except (MeasurementError, ServerError) as error:
                    row = Row(
                        batch_size=size, concurrency=clients, verdict="failed", reason=str(error)
                    )
                if row.verdict == "failed":
                    ended = "" if server.is_live() else "the server had ended before"
                if last or not row.reason.startswith(PACE_CHANGED):
                    break
            if refused and row.served_bare_ratio is not None:
                row = row.model_copy(update=NO_RATIO | {"ratio_verdict": refused})
            requests |= own
            rows.append(row)
            print(f"batch {size}, {clients} clients: {_in_words(row)}")
    try:
        counted = server.statistics(config.model)
    except ServerError:  # it has ended
        counted = None
    return Measurement(
        rows=tuple(rows),
        distinct_rows=_count(samples),
        background_before=max(before),
        server_samples=counted and counted["inference_count"],
        server_executions=counted and counted["execution_count"],
        gpu=observer.record,
        requests=requests,
    )


def _measure_point(
    config: LoadConfig,
    server: Server,
    observer: Observer,
    point: LoadPoint,
    measure: Measure,
    paces: list[float],
) -> tuple[Row, dict[str, NDArray[np.generic]]]:
    """Measure one point, and observe the machine meanwhile; give the row and all requests.

    Its paces are added to those of the stage so far.
    """
    seen, runs, failure = GpuObservation(), Runs(), ""

    def load(timed: LoadPoint) -> Window:
        others_cores = background.monitor_background(server.processes)
        with observer.watching(seen):
            run = analyzer.run(timed, server)
        return replace(run, others_cores=others_cores())

    start = background.pace()
    try:
        measure(point, load, runs)
    except (MeasurementError, ServerError) as error:
        if not runs.served:
            raise
        failure = f"{error} ({len(runs.served)} runs were whole)"
    end = background.pace()
    paces += [start, end]
    figures = seen.figures([run.requests for run in runs.served]) | _compared(config, runs)
    row = statistics.measure_row(
        runs.served,
        _wanted(config, point.concurrency),
        config.half_width,
        background.cores(),
        cut=runs.cut,
        figures={**figures, "pace": (start + end) / 2},
        disturbance=seen.disturbance() or _pace_changed(start, end, paces, config.half_width),
    )
    name = f"clients_{point.concurrency}"
    if isinstance(config, OfflineConfig):
        name = f"batch_{point.batch_size}"
        if point.shared_memory != config.shared_memory:
            reason = "; ".join(filter(None, (row.reason, NOT_SHARED)))
            row = row.model_copy(update={"reason": reason})
    if failure:
        row = row.model_copy(update={"verdict": "failed", "reason": failure})
    requests: dict[str, NDArray[np.generic]] = {
        f"{name}_{i}": run.requests for i, run in enumerate(runs.served)
    }
    return row, requests | ({f"{name}_bare_0": np.array(runs.bare)} if runs.bare else {})


def _pace_changed(start: float, end: float, paces: list[float], bound: float) -> str:
    """Say how the machine's own pace changed during a point or since the others; empty if not."""
    usual, mean = float(np.median(paces)), (start + end) / 2
    for value, other in ((end, start), (mean, usual)):
        if not abs(value / other - 1) <= bound:
            return f"{PACE_CHANGED} {other:.0f} to {value:.0f} GFLOP/s: measure again"
    return ""


def _compared(config: LoadConfig, runs: Runs) -> dict[str, object]:
    """Compare each served run with its bare one; empty without bare ones."""
    whole = min(len(runs.bare), len(runs.served))
    if not whole:
        return {}
    served = [run.steady for run in runs.served[:whole]]
    columns = statistics.compare(
        runs.bare[:whole], [run.throughput for run in served], config.half_width
    )
    latency = np.mean([run.latencies_ms.mean() for run in served])
    calls = 1000 * served[0].batch_size / np.array(runs.bare[:whole])
    return columns | {"serving_ms": float(latency - calls.mean())}


def _seconds(call: Callable[[], object]) -> float:
    """Time a call, on average over three after a first one."""
    call()
    return timeit(call, number=3) / 3


def _in_words(row: Row) -> str:
    if row.verdict == "failed":
        return f"failed, {row.reason}"
    ratio = f", {row.served_bare_ratio:.3f} of bare" if row.served_bare_ratio else ""
    width = f" +-{row.half_width:.1%}" if row.half_width else ""
    figures = f"{row.throughput:.1f} inferences/s{width}, p99 {row.p99_latency_ms:.0f} ms{ratio}"
    return f"{figures}, {row.verdict}"
