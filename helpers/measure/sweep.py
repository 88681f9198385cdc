"""Measure the points of a load one after the other, observe the machine meanwhile, and judge each.

No other measurement of this package runs meanwhile. Each scenario decides how a point is loaded.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from timeit import timeit
from typing import Any

import numpy as np
from numpy.typing import NDArray

from helpers import models
from helpers.config import LoadConfig, OnlineConfig, ServedConfig
from helpers.errors import MeasurementError, ServerError
from helpers.inference import ensemble, exported_work, open_dataset, requests, threads
from helpers.measure import analyzer, background, gpu_monitor, memory, peaks
from helpers.measure.analyzer import ANSWER_SECONDS, LoadPoint
from helpers.measure.gpu_monitor import GpuObservation, Observer
from helpers.measure.rows import Window, compare, measure_row, overhead_columns
from helpers.measure.runs import Runs, SpeedMonitor
from helpers.models import Arrays
from helpers.results import Measurement, Row, clients_of
from helpers.store import usable_cores
from helpers.triton import Server

LOOKUPS = "hps_"  # the prefix of the parameter server's counters


@dataclass(frozen=True)
class Point:
    """A point: the fields of its load, and the function that measures it in several runs."""

    fields: dict[str, Any]
    measure: Callable[[LoadPoint, Runs], None]
    wanted: int  # requests, each client's first apart
    repeated: bool = False  # whether every request is the same one


def distinct_samples(config: LoadConfig | ServedConfig) -> Arrays:
    """Return the different samples that are sent, one after the other."""
    count = config.distinct_rows
    (samples,) = requests(config, open_dataset(config), count, count)
    return samples


def count(samples: Arrays) -> int:
    return len(next(iter(samples.values())))


def sent(server: Server, samples: Arrays, size: int) -> Arrays:
    """Return what is sent: the samples, or requests of `size` of them each."""
    if server.codec is None:
        return samples
    starts = range(0, max(count(samples), size), size)
    requests = [server.codec.encode(batch(samples, start, size)) for start in starts]
    return {name: np.concatenate([request[name] for request in requests]) for name in requests[0]}


def batch(samples: Arrays, start: int, size: int) -> Arrays:
    """Return `size` samples from `start` on, beginning again after the last."""
    chosen = range(start, start + size)
    return {name: array.take(chosen, axis=0, mode="wrap") for name, array in samples.items()}


def seconds(call: Callable[[], object]) -> float:
    """Time a call, on average over three after a first one."""
    call()
    return timeit(call, number=3) / 3


def warm_up(
    server: Server, config: OnlineConfig | ServedConfig, samples: Arrays, clients: int
) -> float:
    """Send each batch that the batcher can form of so many clients' requests, because the first
    request of a shape is slow. Return the seconds of a request that is alone.
    """
    size = config.online_batch_size
    for joined in range(1, max(1, min(clients, config.max_batch_size // size)) + 1):
        server.infer(config.model, batch(samples, 0, joined * size))
    one = batch(samples, 0, size)
    return seconds(lambda: server.infer(config.model, one))


def load_of(
    server: Server, config: LoadConfig | ServedConfig, samples: Arrays, data: Path = Path()
) -> LoadPoint:
    """Return the load of one client, with what every load of the server has in common."""
    inputs = sent(server, batch(samples, 0, 1), 1)
    outputs = [tensor.name for tensor in models.get(config.model).outputs(config)]
    regions = analyzer.shared_memory_patterns(list(inputs), outputs)
    served = ensemble.served(config)
    parts = [component.part.name for component in served] if len(served) > 1 else [""]
    load = LoadPoint(config.model, data, regions, parts=parts, flat=bool(server.codec))
    return replace(load, protocol=server.protocol)


def run(
    config: LoadConfig,
    server: Server,
    samples: Arrays,
    points: Callable[[list[Row]], Iterable[Point]],
) -> Measurement:
    """Measure the points, which may depend on the rows so far. Before each, wait until the machine
    is quiet, for as long as the retry budget lasts. One that fails is a row with the reason.
    """
    one_client = load_of(server, config, samples)
    rows: list[Row] = []
    all_requests: dict[str, NDArray[np.generic]] = {}
    before: list[float] = []
    speed = SpeedMonitor(config.margin_of_error)
    measuring, waited, ended = 0.0, 0.0, ""
    scenario = config.stage.removeprefix("perf_")
    computing = getattr(config.instances, scenario) * threads(config, scenario)
    peak_arguments = config.device, min(computing, usable_cores()), config.precision
    server.ready()  # while it starts the machine is slower
    with (
        background.exclusive_lock(),
        ExitStack() as files,
        gpu_monitor.observed(config.device, server) as observer,
    ):

        @cache
        def data(size: int, is_repeated: bool) -> Path:
            """Write the requests for perf_analyzer, once for all points that send the same."""
            chosen = batch(samples, 0, size) if is_repeated else samples
            return files.enter_context(analyzer.input_data(sent(server, chosen, size)))

        at_first = peaks.measure(*peak_arguments) if server.is_local else None
        for point in points(rows):
            size = point.fields["batch_size"] if server.codec or point.repeated else 0
            load = replace(one_client, data=data(size, point.repeated), **point.fields)
            asked_at = time.monotonic()
            before.append(background.wait_until_quiet())
            started = time.monotonic()
            waited += max(0.0, started - asked_at - background.QUIET_SECONDS)
            try:
                if ended:
                    raise MeasurementError(ended)
                row, point_requests = _measure(config, server, observer, load, point, speed)
                all_requests |= point_requests
            except (MeasurementError, ServerError) as error:
                columns = {"concurrency": 1, **point.fields, "requests": None}
                columns |= {"repeated": point.repeated, "quality": "failed", "reason": str(error)}
                row = Row.model_validate(columns)
            measuring += time.monotonic() - started
            if row.quality == "failed":
                is_live = server.is_live(ANSWER_SECONDS)
                ended = "" if is_live else "the server ended in an earlier measurement"
            rows.append(row)
            print(_in_words(row))
        at_last = peaks.measure(*peak_arguments) if server.is_local else None
    machine_peaks, work = peaks.highest_peaks(at_first, at_last), exported_work(config)
    if machine_peaks and work:
        rows = [peaks.limited(row, work, machine_peaks, config.precision) for row in rows]
    counted = None
    with suppress(ServerError):  # it has ended
        counted = server.statistics(config.model)
    return Measurement(
        rows=tuple(rows),
        distinct_rows=count(samples),
        background_before=max(before, default=None),
        measuring_seconds=round(measuring, 1),
        waited_seconds=round(waited, 1),
        server_samples=counted and counted["inference_count"],
        server_executions=counted and counted["execution_count"],
        gpu=observer.record,
        peaks=machine_peaks,
        requests=all_requests,
    )


def _measure(
    config: LoadConfig,
    server: Server,
    observer: Observer,
    load: LoadPoint,
    point: Point,
    speed: SpeedMonitor,
) -> tuple[Row, dict[str, NDArray[np.generic]]]:
    """Measure one point, and observe the machine meanwhile; return the row and all requests."""
    observation, failure = GpuObservation(), ""

    @contextmanager
    def watched() -> Iterator[None]:
        others_cores, started = background.monitor_background(server.processes), time.monotonic()
        with observer.watching(observation):
            yield
        lasted = time.monotonic() - started
        runs.others.append((lasted * others_cores(), lasted))

    def load_server(timed: LoadPoint) -> Window:
        with watched():
            return analyzer.run(timed, server)

    runs = Runs(load_server, watched, speed=speed)
    before = server.counters(LOOKUPS) if server.codec else {}
    peak_mb = memory.watch_peak(server.processes)
    try:
        point.measure(load, runs)
    except (MeasurementError, ServerError) as error:
        if not runs.served:
            raise
        failure = f"{error} (complete runs: {len(runs.served)})"
    memory_mb = peak_mb()
    figures = observation.figures([run.requests for run in runs.served]) | compared(config, runs)
    figures |= {"repeated": point.repeated, "server_peak_memory_mb": memory_mb}
    figures["machine_gflops"] = float(np.mean(runs.rounds)) if runs.rounds else None
    if before:
        figures |= cache_rates(before, server.counters(LOOKUPS))
    row = measure_row(
        runs.served,
        point.wanted,
        config.margin_of_error,
        background.cores(),
        cut=runs.cut,
        rate=load.rate,
        others_cores=runs.others_cores,
        figures=figures,
        disturbance=observation.disturbance() or runs.speed_changed,
    )
    if failure:
        row = row.model_copy(update={"quality": "failed", "reason": failure})
    name = row.point(config.stage.removeprefix("perf_"))
    recorded: dict[str, NDArray[np.generic]] = {}
    for i, window in enumerate(runs.served):
        recorded[f"{name}_{i}"] = window.requests
        if window.sent is not None:
            recorded[f"sent_{name}_{i}"] = window.sent
    if runs.in_process:
        recorded[f"{name}_in_process_0"] = np.array(runs.in_process)
    return row, recorded


def cache_rates(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """Return the share of different keys that the cache had, and that of default vectors."""
    deltas = {name.removeprefix(LOOKUPS): after[name] - before.get(name, 0) for name in after}
    if not deltas.get("keys"):
        return {}
    return {
        "hit_rate": deltas["hits"] / max(deltas["different"], 1),
        "default_share": deltas["defaults"] / deltas["keys"],
    }


def compared(config: LoadConfig, runs: Runs) -> dict[str, object]:
    """Compare each served run with its in-process run, and all with the no-op model."""
    columns: dict[str, object] = {}
    serving: list[float] = []  # ms
    if pairs := min(len(runs.in_process), len(runs.served)):
        served, in_process = [run.steady for run in runs.served[:pairs]], runs.in_process[:pairs]
        columns = compare(in_process, [run.throughput for run in served], config.margin_of_error)
        calls = 1000 * served[0].batch_size / np.array(in_process)
        serving = [run.mean_latency_ms - call for run, call in zip(served, calls, strict=True)]
        columns["serving_overhead_ms"] = float(np.mean(serving))
    if runs.noop:
        columns |= overhead_columns(serving, [run.steady.mean_latency_ms for run in runs.noop])
    return columns


def _in_words(row: Row) -> str:
    load = f"{row.rate:.4g} requests/s" if row.rate else clients_of(row.concurrency)
    head = f"batch {row.batch_size}, {load}"
    if row.quality == "failed":
        return f"{head}: failed: {row.reason}"
    width = f" ±{row.margin_of_error:.1%}" if row.margin_of_error and not row.rate else ""
    result = f"{head}: {row.throughput:.1f} samples/s{width} ({row.quality})"
    ratio = row.relative_throughput
    share = f", {ratio:.0%} of the in-process throughput" if ratio else ""
    return f"{result}, p99 {row.p99_latency_ms:.0f} ms{share}"
