"""The scenario offline: one client with batches, interleaved with the in-process baseline."""

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

from helpers.config import DeployConfig, OfflineConfig
from helpers.formats import Session
from helpers.inference import ensemble, require, threads
from helpers.measure import analyzer, lookups, sweep
from helpers.measure.analyzer import LoadPoint
from helpers.measure.rows import Window
from helpers.measure.runs import Runs
from helpers.measure.statistics import MIN_RUNS
from helpers.measure.sweep import Point, batch
from helpers.models import Arrays
from helpers.results import Measurement, Row
from helpers.triton import Server, apply_settings

NOT_SHARED = "inputs are sent over HTTP, because a remote host shares no memory with this one"
NO_NOOP = "the no-op model exists only on the embedded server, for models of this package"
NOOP_INTERVAL_MS = 50  # of the no-op model, which responds in a millisecond or two
IN_PROCESS_SHARE = 0.6  # of a served run's time, for an in-process one: it has no windows to fill
COMPARED = ("in_process_", "relative_", "serving_", "residual_")  # with the in-process baseline
NO_RATIO = {name: None for name in Row.model_fields if name.startswith(COMPARED)}


@dataclass(frozen=True)
class OnDevice:
    """A session whose inputs and outputs stay on the GPU, as in CUDA's shared memory."""

    session: Session
    device: str = "cuda"  # as PyTorch names it

    def put(self, inputs: Arrays) -> Arrays:
        """Copy inputs to the GPU: they become PyTorch's tensors there."""
        import torch

        return {name: torch.as_tensor(array, device=self.device) for name, array in inputs.items()}

    def run(self, inputs: Arrays) -> Arrays:
        """Compute on the GPU, and wait for it."""
        import torch

        outputs: Arrays = self.session.run_on_device(inputs)  # type: ignore[attr-defined]
        torch.cuda.synchronize()
        return outputs


@dataclass(frozen=True)
class InProcessModel:
    """The runtime in this process, with batches to call it with."""

    session: Session
    batches: list[Arrays]

    def run(self, seconds: float) -> float:
        """Call it over different batches one after the other; return calls per second. A first call
        is not counted: after a pause, memory and threads must be woken.
        """
        self.session.run(self.batches[-1])
        calls, started = 0, time.perf_counter()
        while calls < 3 or time.perf_counter() - started < seconds:
            self.session.run(self.batches[calls % len(self.batches)])
            calls += 1
        return calls / (time.perf_counter() - started)


def load_in_process(config: DeployConfig) -> Session | None:
    """Load the artifact in this process as the server does; None if another runtime serves it."""
    if not ensemble.runs_in_process(config):
        return None
    place = partial(ensemble.place, config, require(config, "deploy").folder)
    return ensemble.load(config, config.format, place, threads(config, "offline"), config.device)


def measure_offline(config: OfflineConfig, server: Server) -> Measurement:
    """Measure each batch size at concurrency 1, in-process and served runs interleaved. Without the
    runtime in this process, measure served runs alone. A failed point is a row with the reason.
    """
    refused = apply_settings()
    samples, session = sweep.distinct_samples(config), load_in_process(config)
    passes = lookups.measure(config, server) if server.codec else ()
    shared_memory = config.shared_memory if server.is_local else "none"

    def points(_: list[Row]) -> Iterable[Point]:
        for size, repeated in product(config.batch_sizes, sorted({False, config.repeated_batch})):

            def measure(load: LoadPoint, runs: Runs, repeated: bool = repeated) -> None:
                starts = range(0, 1 if repeated else sweep.count(samples), load.batch_size)
                batches = [batch(samples, start, load.batch_size) for start in starts]
                in_process = InProcessModel(session, batches) if session else None
                if in_process and shared_memory == "cuda" and hasattr(session, "run_on_device"):
                    device = OnDevice(in_process.session)
                    in_process = InProcessModel(device, [device.put(inputs) for inputs in batches])
                if session and server.codec:
                    for inputs in batches:  # its own cache has to be as warm as the server's
                        session.run(inputs)
                run_rounds(config, server, in_process, batches[0], load, runs)

            fields = {"batch_size": size, "shared_memory": shared_memory}
            yield Point(fields, measure, config.request_count, repeated)

    measurement = sweep.run(config, server, samples, points)
    rows = []
    for row in measurement.rows:
        changes: dict[str, object] = {}
        if refused and row.relative_throughput is not None:
            changes |= NO_RATIO | {"relative_quality": refused}
        if not server.identity:
            changes["noop_reason"] = NO_NOOP
        if shared_memory != config.shared_memory and row.quality != "failed":
            changes["reason"] = "; ".join(filter(None, (row.reason, NOT_SHARED)))
        rows.append(row.model_copy(update=changes))
    return measurement.model_copy(update={"rows": tuple(rows), "passes": passes})


def _measure_noop(server: Server, load: LoadPoint, runs: Runs, one: Arrays) -> Window:
    """Load the no-op model with copies of one request: perf_analyzer starts sooner with few."""
    seconds = sweep.seconds(lambda: server.infer(server.identity, one))
    interval = analyzer.interval_ms(analyzer.FEWEST_REQUESTS, 1, seconds, NOOP_INTERVAL_MS)
    request = sweep.sent(server, one if server.codec else batch(one, 0, 1), load.batch_size)
    with analyzer.input_data(request) as data:
        noop = replace(load, model=server.identity, parts=("",), data=data, interval_ms=interval)
        return runs.load(noop)


def run_rounds(
    config: OfflineConfig,
    server: Server,
    in_process: InProcessModel | None,
    one: Arrays,
    load: LoadPoint,
    runs: Runs,
) -> None:
    """Run pairs of an in-process and a served run, interleaved; where the server has the no-op
    model, run it shortly in each of the first `MIN_RUNS` pairs. Windows are sized by the requests
    that are still missing and by how long a served request, the batch `one`, took so far.

    Stop when the point is done (see `Runs.is_done`), but never before `pairs`.
    """
    request_seconds = sweep.seconds(lambda: server.infer(config.model, one))
    if in_process:
        in_process.run(0)

    def send_load() -> None:
        nonlocal request_seconds
        missing = max(runs.missing(config.request_count), 1)
        remaining = max(config.pairs - len(runs.served), 1)
        interval = analyzer.interval_ms(missing, remaining, request_seconds)
        runs.served.append(runs.load(replace(load, interval_ms=interval)))
        request_seconds = float(runs.served[-1].latencies_ms.mean()) / 1000

    def call() -> None:
        interval = analyzer.interval_ms(config.request_count, config.pairs, request_seconds)
        expected = analyzer.WINDOWS * analyzer.WINDOW_STRETCH * interval / 1000
        seconds = runs.served[-1].seconds if runs.served else expected
        assert in_process
        with runs.watched():
            runs.in_process.append(load.batch_size * in_process.run(IN_PROCESS_SHARE * seconds))

    def measure_noop() -> None:
        if len(runs.noop) < MIN_RUNS:
            runs.noop.append(_measure_noop(server, load, runs, one))

    def is_done() -> bool:
        return len(runs.served) >= config.pairs and runs.is_done(config, config.request_count)

    candidates = [call] * bool(in_process) + [measure_noop] * bool(server.identity) + [send_load]
    runs.repeat(candidates, is_done)
