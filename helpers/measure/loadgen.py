"""Measure a server with a second load generator: LoadGen, which MLPerf's benchmarks use.

LoadGen chooses the samples, measures the time and logs responses; `tritonclient` sends the
requests. One of its samples is a request as clients send it online, of `online_batch_size` rows.
Some of the responses are checked. These are not MLPerf results.
"""

import json
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import count
from math import ceil
from queue import SimpleQueue
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from helpers import models
from helpers.config import DeployConfig, Parameters, Value, configure, results_folder
from helpers.errors import AccuracyError, MeasurementError
from helpers.inference import open_dataset, requests, require
from helpers.measure import analyzer, background
from helpers.measure.analyzer import LoadPoint
from helpers.measure.checks import reference_outputs, served_precision
from helpers.measure.interleave import interleave
from helpers.measure.rows import Window
from helpers.measure.statistics import CONFIDENCE, geometric_mean, log_interval
from helpers.measure.sweep import batch, seconds
from helpers.models import Arrays
from helpers.results import timestamp
from helpers.store import temporary_folder, write_atomic
from helpers.triton import Server, serve

if TYPE_CHECKING:
    from mlperf_loadgen import QuerySample

ROUNDS = 5  # runs of each load generator, interleaved
SECONDS, FEWEST = 2.0, 12  # of a run, and its requests, at least
SERVER_SECONDS, SERVER_CLIENTS = 4.0, 16
SERVER_SHARE = 0.5  # of the requests that one client in a closed loop completes
LOGGED = 0.1  # the share of responses that LoadGen logs
SEED = 14
MARGIN = 1.10  # figures are equivalent up to this ratio
INSTALL = "pip install 'mlcommons-loadgen>=6.0.17,<7'"
# in LoadGen's trace: the number of a sample, and the time from when it was due to its response
SAMPLE = re.compile(r'"sample_seq":(\d+),.*?"complete_ns":(\d+)')

Values = NDArray[np.float64]
Ask = Callable[[Arrays], Arrays]
Row = dict[str, Value]  # of the table of both load generators
Scenario = Literal["SingleStream", "Offline", "Server"]


@dataclass(frozen=True)
class Test:
    """The settings of one test of LoadGen."""

    scenario: Scenario
    count: int  # samples
    seed: int = SEED
    joined: int = 1  # samples in a request (Offline)
    rate: float = 1.0  # samples per second (Server)


@dataclass(frozen=True)
class Trial:
    """LoadGen's record: each sample's latency since it was due, in order, and some responses."""

    latencies_ms: Values
    answers: Sequence[tuple[int, Values]]  # the index of a sample, and what `flat` makes of it


def flat(outputs: Arrays, names: Sequence[str], start: int, rows: int) -> Values:
    """Return all values of `rows` rows from `start` on, one output after the other."""
    parts = (np.asarray(outputs[name][start : start + rows], np.float64) for name in names)
    return np.concatenate([part.ravel() for part in parts])


def run(
    server: Server, model: str, samples: Sequence[Arrays], outputs: Sequence[str], test: Test
) -> Trial:
    """Send `samples` to `server`. Raises `ServerError` if a request failed.

    One connection sends one request after the other, but in the Server scenario.
    """
    from mlperf_loadgen import QuerySampleResponse, QuerySamplesComplete

    queue: SimpleQueue[Sequence[QuerySample]] = SimpleQueue()
    errors: list[Exception] = []
    clients = SERVER_CLIENTS if test.scenario == "Server" else 0  # besides the first
    rows = len(next(iter(samples[0].values())))

    def answer(ask: Ask, queries: "Sequence[QuerySample]") -> None:
        values = [np.empty(0)] * len(queries)
        try:
            if not errors:  # after one LoadGen still waits for all responses
                chosen = [samples[query.index] for query in queries]
                reply = ask({name: np.concatenate([c[name] for c in chosen]) for name in chosen[0]})
                values = [flat(reply, outputs, i * rows, rows) for i in range(len(queries))]
        except Exception as error:
            errors.append(error)
        pairs = zip(queries, values, strict=True)
        QuerySamplesComplete(  # which copies what is logged before it returns
            [QuerySampleResponse(query.id, data.ctypes.data, data.nbytes) for query, data in pairs]
        )

    def client(ask: Ask) -> None:
        while queries := queue.get():
            answer(ask, queries)

    def send_queries(ask: Ask) -> Trial:
        def issue(queries: "Sequence[QuerySample]") -> None:
            for start in range(0, len(queries), test.joined):
                chosen = queries[start : start + test.joined]
                queue.put(chosen) if clients else answer(ask, chosen)

        try:
            trial = _test(test, issue, len(samples))
        finally:
            for _ in range(clients):
                queue.put([])
        if errors:
            raise errors[0]
        return trial

    # not in the main thread, where Ctrl-C would be raised within LoadGen's calls
    with ThreadPoolExecutor(1 + clients) as pool:
        trial = pool.submit(server.with_client, model, send_queries)
        for _ in range(clients):
            pool.submit(server.with_client, model, client)
        return trial.result()


def _test(test: Test, issue: "Callable[[Sequence[QuerySample]], None]", samples: int) -> Trial:
    """Run a test of LoadGen's to its end and read its logs."""
    import mlperf_loadgen as lg

    settings, logs = lg.TestSettings(), lg.LogSettings()
    settings.scenario = getattr(lg.TestScenario, test.scenario)
    settings.mode = lg.TestMode.PerformanceOnly
    settings.min_duration_ms, settings.min_query_count = 0, test.count
    settings.offline_expected_qps, settings.server_target_qps = 1.0, test.rate
    settings.accuracy_log_probability = LOGGED
    for name in ("qsl", "sample_index", "schedule", "accuracy_log"):
        setattr(settings, f"{name}_rng_seed", test.seed)
    sut = lg.ConstructSUT(issue, lambda: None)
    library = lg.ConstructQSL(samples, samples, lambda _: None, lambda _: None)
    try:
        with temporary_folder() as folder:
            logs.log_output.outdir, logs.enable_trace = str(folder), True
            lg.StartTestWithLogSettings(sut, library, settings, logs, f"{folder}/no-audit.config")
            trace = (folder / "mlperf_log_trace.json").read_text()
            logged = json.loads((folder / "mlperf_log_accuracy.json").read_text())
    finally:
        lg.DestroyQSL(library)
        lg.DestroySUT(sut)
    times = sorted((int(number), int(ns)) for number, ns in SAMPLE.findall(trace))
    answers = [(entry["qsl_idx"], np.frombuffer(bytes.fromhex(entry["data"]))) for entry in logged]
    return Trial(np.array([ns for _, ns in times]) / 1e6, answers)


def wrong_response(trial: Trial, right: Sequence[Values], bounds: Values) -> str:
    """Describe the first response with a value further from the reference than its bound."""
    for index, response in trial.answers:
        expected = right[index]
        if response.shape != expected.shape:
            return f"sample {index} has {response.size} values, the reference {expected.size}"
        apart = np.abs(response - expected) / bounds
        if not apart.max() <= 1:  # or it is not a number
            worst = int(apart.argmax())
            return (
                f"value {worst} of sample {index} is {response[worst]:.6g}, the reference is "
                f"{expected[worst]:.6g} (tolerance {bounds[worst]:.2g})"
            )
    return ""


def crosscheck(parameters: Parameters, model: str, experiment: str) -> list[Row]:
    """Measure a deployed experiment with both load generators, interleaved, on a server for clients
    online, over HTTP. Write `crosscheck.json`.

    Raises `AccuracyError` for a wrong response, `ArtifactError` if nothing is deployed yet, and
    `MeasurementError` without LoadGen.
    """
    if not find_spec("mlperf_loadgen"):
        raise MeasurementError(f"LoadGen is not installed. Run: {INSTALL}")
    config = configure(parameters, model, experiment, "deploy")
    assert isinstance(config, DeployConfig)
    repository, fields = require(config, "deploy"), parameters.experiment(model, config.experiment)
    reference, folder = reference_outputs(config), results_folder(config)
    outputs, size = list(reference), fields.online_batch_size
    number = len(reference[outputs[0]])
    (rows,) = requests(config, open_dataset(config), number, number)
    samples = [batch(rows, start, size) for start in range(number)]
    right = [flat(batch(reference, start, size), outputs, 0, size) for start in range(number)]
    largest, _ = models.get(model).TOLERANCES[served_precision(config)]
    deviations = {name: np.full(array.shape, array.std()) for name, array in reference.items()}
    bounds = largest * flat(batch(deviations, 0, size), outputs, 0, size)
    checked: list[int] = []
    with (
        background.exclusive_lock(),
        analyzer.input_data(rows) as data,
        serve(config, repository, log=folder / "crosscheck_server.log") as server,
    ):
        point = LoadPoint(model, data, [], size, protocol=server.protocol)

        def loadgen(test: Test) -> Trial:
            trial = run(server, model, samples, outputs, test)
            if wrong := wrong_response(trial, right, bounds):
                where = f"{model} {config.experiment}: wrong response in LoadGen's scenario"
                raise AccuracyError(f"{where} {test.scenario}: {wrong}")
            checked.append(len(trial.answers))
            return trial

        def closed_loop(batch_size: int) -> Window:
            one = batch(rows, 0, batch_size)
            needed = FEWEST * seconds(lambda: server.infer(model, one))
            interval_ms = ceil(1000 * max(SECONDS, needed) / analyzer.WINDOWS)
            load = replace(point, batch_size=batch_size, interval_ms=interval_ms)
            return analyzer.run(load, server)

        def open_loop(rate: float, requests: int) -> Window:
            load = replace(point, concurrency=0, rate=rate, requests=requests)
            return analyzer.run(load, server)

        joined = max(1, max(fields.batch_sizes) // size)
        compared = compare(loadgen, closed_loop, open_loop, size, joined, fields.latency_budget_ms)
    record = {"deployed": repository.sha256, "finished": timestamp(), "seed": SEED}
    record |= {"answers_compared": sum(checked), "rows": compared}
    write_atomic(folder / "crosscheck.json", json.dumps(record, indent=1))
    return compared


def compare(
    loadgen: Callable[[Test], Trial],
    closed_loop: Callable[[int], Window],
    open_loop: Callable[[float, int], Window],
    size: int,
    joined: int,
    budget_ms: float | None,
) -> list[Row]:
    """Interleave both load generators: LoadGen by `loadgen`, perf_analyzer by `closed_loop`, which
    takes the rows of a request, and `open_loop`, which takes requests per second and in all. A
    sample has `size` rows, an Offline request `joined` samples.
    """
    background.wait_until_quiet()
    seeds = count(SEED)

    def closed(scenario: Scenario, joined: int) -> tuple[list[Trial], list[Window]]:
        trials: list[Trial] = []
        windows: list[Window] = []

        def test() -> None:
            rate = windows[-1].throughput / size / joined  # requests/s
            requests = max(FEWEST, ceil(SECONDS * rate))
            trials.append(loadgen(Test(scenario, requests * joined, next(seeds), joined)))

        interleave([lambda: windows.append(closed_loop(size * joined)), test], ROUNDS)
        return trials, windows

    singles, one = closed("SingleStream", 1)
    offline, many = closed("Offline", joined)
    rate = SERVER_SHARE * geometric_mean([window.throughput for window in one]) / size
    queries = max(FEWEST, ceil(SERVER_SECONDS * rate))
    at_random: list[Callable[[], Trial | Window]] = [
        lambda: loadgen(Test("Server", queries, next(seeds), rate=rate)),
        lambda: open_loop(rate, queries),
    ]
    trials, due = interleave(at_random, ROUNDS)
    reason = f"{rate:.3g} requests/s (Poisson arrivals)"
    if budget_ms:
        latencies = np.concatenate([trial.latencies_ms for trial in trials])
        within = (latencies <= budget_ms).mean()
        reason += f"; {within:.1%} of {len(latencies)} requests within {budget_ms:g} ms"
    ours = [1000 * size * len(trial.latencies_ms) / max(trial.latencies_ms) for trial in offline]
    theirs, latency = [window.throughput for window in many], "p90 latency (ms)"
    return [
        _row("SingleStream", latency, size, _p90(singles), _p90(one)),
        _row("Offline", "throughput (samples/s)", size * joined, ours, theirs),
        _row("Server", latency, size, _p90(trials), _p90(due), reason),
    ]


def _p90(runs: Sequence[Trial | Window]) -> list[float]:
    """Return the p90 of each run, without its first request: it meets an idle server."""
    return [float(np.quantile(run.latencies_ms[1:], 0.9)) for run in runs]


def _row(
    scenario: str, figure: str, rows: int, ours: list[float], theirs: list[float], reason: str = ""
) -> Row:
    """Return the row of a figure, which each load generator measured once in each round."""
    ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
    quality, why = judge(ratios)
    row: Row = {"scenario": scenario, "batch_size": rows, "metric": figure}
    row |= {"LoadGen": _estimate(ours), "perf_analyzer": _estimate(theirs)}
    row |= {"ratio": _estimate(ratios, 0.90), "quality": quality}
    return row | {"reason": "; ".join(filter(None, (why, reason)))}


def _estimate(runs: Sequence[float], confidence: float = CONFIDENCE) -> str:
    """Return the geometric mean of runs with its interval, where there is one."""
    bounds = log_interval(runs, confidence)
    level = f"{confidence:.0%} CI " if confidence != CONFIDENCE else ""
    within = f" ({level}{bounds.low:.4g} to {bounds.high:.4g})" if bounds else ""
    return f"{geometric_mean(runs):.4g}{within}"


def judge(ratios: Sequence[float]) -> tuple[str, str]:
    """Return whether two load generators are "equivalent", "differ" or are "not decided", and why.
    `ratios` has one figure over the other for each round.

    They are equivalent if the 90% CI of the ratio lies within the margin: two one-sided t-tests
    (Schuirmann 1987). They differ if the 95% CI lies outside it. So noise decides nothing.
    """
    margin = f"{1 / MARGIN:.2f} to {MARGIN:.2f}"
    narrow, wide = log_interval(ratios, 0.90), log_interval(ratios)
    if not narrow or not wide:
        return "not decided", "too few runs"
    if narrow.low >= 1 / MARGIN and narrow.high <= MARGIN:
        return "equivalent", f"the ratio's 90% CI is within {margin}"
    if wide.low > MARGIN or wide.high < 1 / MARGIN:
        return "differ", f"the ratio's 95% CI is outside {margin}"
    return "not decided", f"too noisy: the ratio's CI crosses {margin.replace('to', 'or')}"
