"""Point after point of a load: with the machine for this measurement alone, watched meanwhile, and
judged. How a point is loaded is its scenario's affair.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from timeit import timeit
from typing import Any

import numpy as np
from numpy.typing import NDArray

from helpers import models
from helpers.config import ContestConfig, LoadConfig
from helpers.errors import MeasurementError, ServerError
from helpers.inference import ensemble, exported_work, open_dataset, requests, threads
from helpers.models import Arrays
from helpers.perf import analyzer, background, gpu_monitor, limits, memory, peaks
from helpers.perf.analyzer import ANSWER_SECONDS, LoadPoint
from helpers.perf.gpu_monitor import GpuObservation, Observer
from helpers.perf.rows import Window, beyond_floor, compare, measure_row
from helpers.perf.runs import Pace, Runs
from helpers.results import Measurement, Row
from helpers.store import usable_cores
from helpers.triton import Server

IDENTITY = ("batch_size", "concurrency", "rate")
LOOKUPS = "hps_"  # how the counters of a store begin


@dataclass(frozen=True)
class Point:
    """A point, by the fields of its load, and what measures it: that adds runs for as long as it
    needs.
    """

    fields: dict[str, Any]
    measure: Callable[[LoadPoint, Runs], None]
    wanted: int  # requests, each client's first apart
    repeated: bool = False  # whether every request is the same one

    @property
    def identity(self) -> dict[str, Any]:
        """The columns by which its row is known."""
        own = {k: v for k, v in self.fields.items() if k in IDENTITY}
        return {"concurrency": 1, "repeated": self.repeated} | own


def distinct_samples(config: LoadConfig | ContestConfig) -> Arrays:
    """Give the different samples that are sent in turn."""
    count = config.distinct_rows
    (samples,) = requests(config, open_dataset(config), count, count)
    return samples


def count(samples: Arrays) -> int:
    """Count samples."""
    return len(next(iter(samples.values())))


def sent(server: Server, samples: Arrays, size: int) -> Arrays:
    """Give what travels: the samples, or requests of `size` of them each."""
    if server.wire is None:
        return samples
    starts = range(0, max(count(samples), size), size)
    requests = [server.wire.encode(batch(samples, start, size)) for start in starts]
    return {name: np.concatenate([each[name] for each in requests]) for name in requests[0]}


def batch(samples: Arrays, start: int, size: int) -> Arrays:
    """Give `size` samples from `start` on, beginning again after the last."""
    chosen = range(start, start + size)
    return {name: array.take(chosen, axis=0, mode="wrap") for name, array in samples.items()}


def seconds(call: Callable[[], object]) -> float:
    """Time a call, on average over three after a first one."""
    call()
    return timeit(call, number=3) / 3


def run(
    config: LoadConfig,
    server: Server,
    samples: Arrays,
    points: Callable[[list[Row]], Iterable[Point]],
) -> Measurement:
    """Measure the points; which they are may depend on the rows so far. One that cannot be measured
    is a row with the reason. What was measured while the machine had another pace than it usually
    has in this stage is measured again, and a slower machine is waited for: both together for as
    long as the patience for a quiet machine lasts.
    """
    outputs = [tensor.name for tensor in models.get(config.model).outputs(config)]
    regions = analyzer.shared_memory_patterns(list(sent(server, batch(samples, 0, 1), 1)), outputs)
    found = ensemble.served(config)
    parts = [each.part.name for each in found] if len(found) > 1 else [""]
    rows: list[Row] = []
    kept: dict[str, NDArray[np.generic]] = {}
    before: list[float] = []
    pace = Pace(config.margin_of_error, background.patience())
    measuring, waited, ended = 0.0, 0.0, ""
    asked = config.device, _cores_used(config), config.precision
    server.ready()  # while it starts the machine has another pace
    with (
        background.exclusive_lock(),
        ExitStack() as files,
        gpu_monitor.observed(config.device, server) as observer,
    ):
        data: dict[tuple[int, bool], Path] = {}
        others_cores: Callable[[], float] | None = background.monitor_background(server.processes)
        began = time.monotonic()
        at_first = peaks.measure(*asked) if server.is_local else None
        for point in points(rows):
            size = point.fields["batch_size"] if server.wire or point.repeated else 0
            chosen = batch(samples, 0, size) if point.repeated else samples
            if (size, point.repeated) not in data:
                made = analyzer.input_data(sent(server, chosen, size))
                data[size, point.repeated] = files.enter_context(made)
            load = LoadPoint(config.model, data[size, point.repeated], regions, parts=parts)
            load = replace(load, flat=bool(server.wire), **point.fields)
            asked_at = time.monotonic()
            before.append(background.wait_until_quiet(others_cores, asked_at - began))
            others_cores = None
            started, slower = time.monotonic(), pace.waited_seconds
            waited += max(0.0, started - asked_at - background.QUIET_SECONDS)
            own: dict[str, NDArray[np.generic]] = {}
            try:
                if ended:
                    raise MeasurementError(ended)
                row, own = _measure(config, server, observer, load, point, pace)
            except (MeasurementError, ServerError) as error:
                row = Row(**point.identity, quality="failed", reason=str(error))
            measuring += time.monotonic() - started - (pace.waited_seconds - slower)
            if row.quality == "failed":
                is_live = server.is_live(ANSWER_SECONDS)
                ended = "" if is_live else "the server ended in an earlier measurement"
            kept |= own
            rows.append(row)
            print(_in_words(row))
        at_last = peaks.measure(*asked) if server.is_local else None
    found_peaks, work = peaks.highest_peaks(at_first, at_last), exported_work(config)
    if found_peaks and work:
        rows = [limits.limited(row, work, found_peaks, config.precision) for row in rows]
    try:
        counted = server.statistics(config.model)
    except ServerError:  # it has ended
        counted = None
    return Measurement(
        rows=tuple(rows),
        distinct_rows=count(samples),
        background_before=max(before, default=None),
        measuring_seconds=round(measuring, 1),
        again_seconds=round(pace.again_seconds, 1),
        waited_seconds=round(waited + pace.waited_seconds, 1),
        server_samples=counted and counted["inference_count"],
        server_executions=counted and counted["execution_count"],
        gpu=observer.record,
        peaks=found_peaks,
        requests=kept,
    )


def _cores_used(config: LoadConfig) -> int:
    """Count the threads that compute in the experiment, at most one for each core."""
    scenario = config.stage.removeprefix("perf_")
    instances: int = getattr(config.instances, scenario)
    return min(instances * threads(config, scenario), usable_cores())


def _measure(
    config: LoadConfig,
    server: Server,
    observer: Observer,
    load: LoadPoint,
    point: Point,
    pace: Pace,
) -> tuple[Row, dict[str, NDArray[np.generic]]]:
    """Measure one point, and observe the machine meanwhile; give the row and all requests."""
    seen, failure = GpuObservation(), ""

    @contextmanager
    def watched() -> Iterator[None]:
        others_cores, started = background.monitor_background(server.processes), time.monotonic()
        with observer.watching(seen):
            yield
        lasted = time.monotonic() - started
        runs.others.append((lasted * others_cores(), lasted))

    def load_server(timed: LoadPoint) -> Window:
        with watched():
            return analyzer.run(timed, server)

    runs = Runs(load_server, watched, pace=pace)
    before = server.counters(LOOKUPS) if server.wire else {}
    pace.measure()
    peak_mb = memory.watch_peak(server.processes)
    try:
        point.measure(load, runs)
    except (MeasurementError, ServerError) as error:
        if not runs.served:
            raise
        failure = f"{error} (complete runs: {len(runs.served)})"
    memory_mb, paces = peak_mb(), runs.paces or pace.seen
    figures = seen.figures([run.requests for run in runs.served]) | compared(config, runs)
    figures |= {"machine_gflops": float(np.mean(paces)), "repeated": point.repeated}
    figures["server_peak_memory_mb"] = memory_mb
    if before:
        figures |= lookup_shares(before, server.counters(LOOKUPS))
    row = measure_row(
        runs.served,
        point.wanted,
        config.margin_of_error,
        background.cores(),
        cut=runs.cut,
        rate=load.rate,
        others_cores=runs.others_cores,
        figures=figures,
        disturbance=seen.disturbance() or runs.pace_changed,
    )
    if failure:
        row = row.model_copy(update={"quality": "failed", "reason": failure})
    name = row.point(config.stage.removeprefix("perf_"))
    kept: dict[str, NDArray[np.generic]] = {}
    for i, window in enumerate(runs.served):
        kept[f"{name}_{i}"] = window.requests
        if window.sent is not None:
            kept[f"sent_{name}_{i}"] = window.sent
    return row, kept | ({f"{name}_bare_0": np.array(runs.bare)} if runs.bare else {})


def lookup_shares(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """Give the share of different keys that the cache had, and that of default vectors."""
    met = {name.removeprefix(LOOKUPS): after[name] - before.get(name, 0) for name in after}
    if not met.get("keys"):
        return {}
    return {
        "hit_rate": met["hits"] / max(met["different"], 1),
        "default_share": met["defaults"] / met["keys"],
    }


def compared(config: LoadConfig, runs: Runs) -> dict[str, object]:
    """Compare each served run with its bare one, and all with the floor; empty without either."""
    columns: dict[str, object] = {}
    serving: list[float] = []  # ms
    if whole := min(len(runs.bare), len(runs.served)):
        served, bare = [run.steady for run in runs.served[:whole]], runs.bare[:whole]
        columns = compare(bare, [run.throughput for run in served], config.margin_of_error)
        calls = 1000 * served[0].batch_size / np.array(bare)
        serving = [run.mean_latency_ms - call for run, call in zip(served, calls, strict=True)]
        columns["serving_overhead_ms"] = float(np.mean(serving))
    if runs.floor:
        columns |= beyond_floor(serving, [run.steady.mean_latency_ms for run in runs.floor])
    return columns


def _in_words(row: Row) -> str:
    clients = f"{row.concurrency} client{'' if row.concurrency == 1 else 's'}"
    head = f"batch {row.batch_size}, {f'{row.rate:.4g} requests/s' if row.rate else clients}"
    if row.quality == "failed":
        return f"{head}: failed: {row.reason}"
    width = f" ±{row.margin_of_error:.1%}" if row.margin_of_error and not row.rate else ""
    found = f"{head}: {row.throughput:.1f} samples/s{width} ({row.quality})"
    ratio = row.relative_throughput
    share = f", {ratio:.0%} of the in-process throughput" if ratio else ""
    return f"{found}, p99 {row.p99_latency_ms:.0f} ms{share}"
