"""The two scenarios: offline with the bare runtime interleaved, online over a sweep of clients."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
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
from helpers.triton import Server

REQUESTS_A_CLIENT = 5  # at least, online: fewer show more of the start than of the steady state
SHORTEST_INTERVAL_MS = 400
NOT_SHARED = "inputs sent over HTTP: a remote host shares no memory with this one"
BARE_SECONDS = 0.6  # a bare run takes at least this long and three calls
EXTRA_PAIRS = 2  # where the pairs saw too few requests

Load = Callable[[LoadPoint], Window]  # puts the load of a point on the server
Runs = tuple[list[Window], list[float]]  # of one point: served, and bare throughputs
Measure = Callable[[LoadPoint, Load], Runs]


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


def run_bare(session: Session, batches: list[Arrays], seconds: float) -> float:
    """Call the session without a server, over different batches in turn; return calls per second.

    A first call is not counted: after a pause, memory and threads must be woken.
    """
    session.run(batches[-1])
    calls, started = 0, time.perf_counter()
    while calls < 3 or time.perf_counter() - started < seconds:
        session.run(batches[calls % len(batches)])
        calls += 1
    return calls / (time.perf_counter() - started)


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
    """Length of a window so that `runs` runs see `request_count` requests, with one to spare."""
    per_window = ceil(request_count / runs / analyzer.WINDOWS)
    wanted = (per_window + 1 / analyzer.WINDOWS) * request_seconds * 1000 / analyzer.WINDOW_STRETCH
    return max(SHORTEST_INTERVAL_MS, ceil(wanted * 1.1))


def measure_offline(config: OfflineConfig, server: Server) -> Measurement:
    """Measure each batch size at concurrency 1, bare and served runs alternating; served runs alone
    where there is nothing bare. What cannot be measured is a row with the reason.
    """
    samples, session = _samples(config), bare_session(config)
    shared_memory = config.shared_memory if server.is_local else "none"
    points = [{"batch_size": size, "shared_memory": shared_memory} for size in config.batch_sizes]
    measure = partial(_offline_runs, config, server, session, samples)
    return _sweep(config, server, samples, points, measure)


def _offline_runs(
    config: OfflineConfig,
    server: Server,
    session: Session | None,
    samples: Arrays,
    point: LoadPoint,
    load: Load,
) -> Runs:
    """Run bare, served, bare, ..., bare; each served run is compared with its neighbours.

    Windows are sized by the requests that are still missing and by how long a served request took
    so far, at first by the bare time. Where requests are missing at the end, pairs are added.
    """
    size = point.batch_size
    batches = [_batch(samples, start, size) for start in range(0, _count(samples), size)]
    if session:
        run_bare(session, batches, 0)  # the first calls of a new shape are slow
        request_seconds = 1 / run_bare(session, batches, 0)
        server.infer(config.model, batches[0])  # likewise
    else:
        request_seconds = _seconds(lambda: server.infer(config.model, batches[0]))
    bare = [size * run_bare(session, batches, BARE_SECONDS)] if session else []
    runs: list[Window] = []
    missing = config.request_count
    while len(runs) < config.pairs or (missing > 0 and len(runs) < config.pairs + EXTRA_PAIRS):
        interval = interval_ms(max(missing, 1), max(config.pairs - len(runs), 1), request_seconds)
        runs.append(load(replace(point, interval_ms=interval)))
        missing -= len(runs[-1].requests)
        request_seconds = float(runs[-1].latencies_ms.mean()) / 1000
        if session:
            bare.append(size * run_bare(session, batches, BARE_SECONDS))
    return runs, bare


def measure_online(config: OnlineConfig, server: Server) -> Measurement:
    """Measure each number of clients over HTTP, each with `online_batch_size` samples a request.
    What cannot be measured is a row with the reason.
    """
    samples, size = _samples(config), config.online_batch_size
    one = _batch(samples, 0, size)
    seconds = [_seconds(lambda: server.infer(config.model, one))]  # a request, at each point so far

    def measure(point: LoadPoint, load: Load) -> Runs:
        count = max(config.request_count, point.concurrency * REQUESTS_A_CLIENT)
        run = load(replace(point, interval_ms=interval_ms(count, 1, seconds[-1])))
        seconds.append(float(run.latencies_ms.mean()) / 1000 / point.concurrency)
        return [run], []

    points = [{"batch_size": size, "concurrency": clients} for clients in config.concurrency]
    return _sweep(config, server, samples, points, measure)


def _sweep(
    config: LoadConfig,
    server: Server,
    samples: Arrays,
    points: Sequence[Mapping[str, Any]],
    measure: Measure,
) -> Measurement:
    """Measure point after point, with the machine for this measurement alone."""
    outputs = [tensor.name for tensor in models.get(config.model).outputs(config)]
    regions = analyzer.shared_memory_patterns(list(samples), outputs)
    rows: list[Row] = []
    requests: dict[str, NDArray[np.generic]] = {}
    before: list[float] = []
    ended = ""
    with (
        background.exclusive_lock(),
        analyzer.input_data(samples) as data,
        gpu_monitor.observed(config.device, server) as observer,
    ):
        for fields in points:
            point = replace(LoadPoint(config.model, data, regions), **fields)
            size, clients = point.batch_size, point.concurrency
            before.append(background.wait_until_quiet())
            try:
                if ended:
                    raise MeasurementError(ended)
                row, own = _measure_point(config, server, observer, point, measure)
                requests |= own
            except (MeasurementError, ServerError) as error:
                reason = str(error)
                row = Row(batch_size=size, concurrency=clients, verdict="failed", reason=reason)
                ended = "" if server.is_live() else "the server had ended before"
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
    config: LoadConfig, server: Server, observer: Observer, point: LoadPoint, measure: Measure
) -> tuple[Row, dict[str, NDArray[np.generic]]]:
    """Measure one point, and observe the machine meanwhile; give the row and all requests."""
    seen = GpuObservation()

    def load(timed: LoadPoint) -> Window:
        others_cores = background.monitor_background(server.processes)
        with observer.watching(seen):
            run = analyzer.run(timed, server)
        return replace(run, others_cores=others_cores())

    runs, bare = measure(point, load)
    figures = seen.figures([run.requests for run in runs]) | _compared(runs, bare)
    row = statistics.measure_row(runs, config.request_count, figures, seen.disturbance())
    name = f"clients_{point.concurrency}"
    if isinstance(config, OfflineConfig):
        name = f"batch_{point.batch_size}"
        if point.shared_memory != config.shared_memory:
            reason = "; ".join(filter(None, (row.reason, NOT_SHARED)))
            row = row.model_copy(update={"reason": reason})
    requests: dict[str, NDArray[np.generic]] = {
        f"{name}_{i}": run.requests for i, run in enumerate(runs)
    }
    return row, requests | ({f"{name}_bare_0": np.array(bare)} if bare else {})


def _compared(runs: list[Window], bare: list[float]) -> dict[str, float]:
    """Compare served runs with the bare ones around them; empty without bare ones."""
    if not bare:
        return {}
    ratios = statistics.ratios(bare, [run.throughput for run in runs])
    return {
        "bare_throughput": float(np.median(bare)),
        "served_bare_ratio": float(np.median(ratios)),
        "served_bare_min": min(ratios),
        "served_bare_max": max(ratios),
    }


def _seconds(call: Callable[[], object]) -> float:
    """Time a call, on average over three after a first one."""
    call()
    return timeit(call, number=3) / 3


def _in_words(row: Row) -> str:
    if row.verdict == "failed":
        return f"failed, {row.reason}"
    ratio = f", {row.served_bare_ratio:.3f} of bare" if row.served_bare_ratio else ""
    figures = f"{row.throughput:.1f} inferences/s, p99 {row.p99_latency_ms:.0f} ms{ratio}"
    return f"{figures}, {row.verdict}"
