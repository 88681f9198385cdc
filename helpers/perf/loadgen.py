"""A second meter: LoadGen, the load generator of MLPerf's benchmarks, asks the server that
perf_analyzer measures, and some of the answers are checked. These are no MLPerf results.

LoadGen chooses the samples, keeps the time and logs answers; `tritonclient` sends the requests. One
of its samples is a request as clients send it online, of `online_batch_size` rows.
"""

import json
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from math import ceil
from queue import SimpleQueue
from timeit import timeit
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from helpers import models
from helpers.accuracy import reference_outputs, served_precision
from helpers.config import DeployConfig, Parameters, configure, results_folder
from helpers.errors import AccuracyError, MeasurementError
from helpers.inference import open_dataset, requests, require
from helpers.models import Arrays
from helpers.perf import analyzer, background
from helpers.perf.analyzer import LoadPoint
from helpers.perf.statistics import Window
from helpers.results import Result, timestamp, write
from helpers.store import temporary_folder
from helpers.triton import Server, serve

if TYPE_CHECKING:
    from mlperf_loadgen import QuerySample

ROUNDS = 5  # runs of each meter, in turn
SECONDS, FEWEST = 2.0, 8  # of a run, and its requests, at least
SERVER_SECONDS, SERVER_CLIENTS = 6.0, 16
SERVER_SHARE = 0.5  # of the requests that one client in a closed loop completes
LOGGED = 0.1  # the share of answers that LoadGen keeps
SEED = 14
CLOSE = 0.10  # meters agree within this, or where their intervals overlap
# in LoadGen's trace: the number of a sample, and the time from when it was due to its answer
SAMPLE = re.compile(r'"sample_seq":(\d+),.*?"complete_ns":(\d+)')
NO_LOADGEN = "crosscheck needs LoadGen: pip install 'mlcommons-loadgen>=6.0.17,<7'"

Values = NDArray[np.float64]


# For replacement by `helpers.perf.statistics`, which has these with the same signatures.
@dataclass(frozen=True)
class Interval:
    low: float
    high: float


def log_interval(values: Sequence[float]) -> Interval | None:
    from scipy.stats import t

    if len(values) < 3:
        return None
    logs = np.log(values)
    reach = t.ppf(0.975, len(logs) - 1) * logs.std(ddof=1) / len(logs) ** 0.5
    return Interval(float(np.exp(logs.mean() - reach)), float(np.exp(logs.mean() + reach)))


def percentile_interval(values: Values, quantile: float) -> Interval | None:
    from scipy.stats import binom

    count = len(values)
    if count < np.log(0.05) / np.log(quantile):
        return None
    ordered = np.sort(values)
    low, high = binom.ppf((0.025, 0.975), count, quantile).astype(int)
    return Interval(float(ordered[max(low - 1, 0)]), float(ordered[min(high, count - 1)]))


def geometric_mean(values: Sequence[float]) -> float:
    return float(np.exp(np.log(values).mean()))


Estimate = tuple[float, Interval | None]


@dataclass(frozen=True)
class Test:
    """What LoadGen is to do."""

    scenario: Literal["SingleStream", "Offline", "Server"]
    count: int  # samples
    seed: int = SEED
    clients: int = 1  # each has one request under way
    joined: int = 1  # samples in a request
    rate: float = 1.0  # samples per second (Server)
    bound_ms: float = 60_000.0  # of the latency (Server)


@dataclass(frozen=True)
class Trial:
    """What LoadGen recorded: each sample's latency since it was due, in order, and some answers."""

    latencies_ms: Values
    answers: Sequence[tuple[int, Values]]  # the index of a sample, and what `flat` makes of it


@dataclass(frozen=True)
class Comparison:
    """One figure by both meters, with 95 % intervals; None is not known."""

    scenario: str
    figure: str  # with its unit
    batch_size: int  # rows in a request
    loadgen: float
    loadgen_low: float | None
    loadgen_high: float | None
    perf_analyzer: float | None
    perf_analyzer_low: float | None
    perf_analyzer_high: float | None
    verdict: Literal["agree", "differ", "not compared"]
    reason: str

    def __str__(self) -> str:
        other = "not measured" if self.perf_analyzer is None else f"{self.perf_analyzer:.4g}"
        found = f"{self.loadgen:.4g} by LoadGen, {other} by perf_analyzer"
        what = f"{self.scenario} {self.figure}, batch {self.batch_size}: {found}: {self.verdict}"
        return f"{what} ({self.reason})" if self.reason else what


def flat(outputs: Arrays, names: Sequence[str], start: int, rows: int) -> Values:
    """All values of `rows` rows from `start` on, one output after the other."""
    parts = (np.asarray(outputs[name][start : start + rows], np.float64) for name in names)
    return np.concatenate([part.ravel() for part in parts])


def run(
    server: Server, model: str, samples: Sequence[Arrays], outputs: Sequence[str], test: Test
) -> Trial:
    """Let LoadGen send `samples` to `server`. Raises `ServerError` if a request failed."""
    from mlperf_loadgen import QuerySampleResponse, QuerySamplesComplete

    queue: SimpleQueue[Sequence[QuerySample]] = SimpleQueue()
    rows = len(next(iter(samples[0].values())))
    errors: list[Exception] = []

    def issue(queries: "Sequence[QuerySample]") -> None:
        for start in range(0, len(queries), test.joined):
            queue.put(queries[start : start + test.joined])

    def answer(ask: Callable[[Arrays], Arrays], queries: "Sequence[QuerySample]") -> None:
        values = [np.empty(0)] * len(queries)
        try:
            if not errors:  # after one LoadGen still waits for all that it asked
                chosen = [samples[query.index] for query in queries]
                found = ask({name: np.concatenate([c[name] for c in chosen]) for name in chosen[0]})
                values = [flat(found, outputs, i * rows, rows) for i in range(len(queries))]
        except Exception as error:
            errors.append(error)
        pairs = zip(queries, values, strict=True)
        QuerySamplesComplete(  # which copies what is logged before it returns
            [QuerySampleResponse(query.id, each.ctypes.data, each.nbytes) for query, each in pairs]
        )

    def client(ask: Callable[[Arrays], Arrays]) -> None:
        while queries := queue.get():
            answer(ask, queries)
        if errors:
            raise errors[0]

    def end(_: object) -> None:
        for _ in range(test.clients):
            queue.put([])

    # LoadGen has a thread of its own here, so that Ctrl-C is never raised within its calls
    with ThreadPoolExecutor(1 + test.clients) as pool:
        trial = pool.submit(_test, test, issue, len(samples))
        trial.add_done_callback(end)
        for each in [pool.submit(server.converse, model, client) for _ in range(test.clients)]:
            each.result()
        return trial.result()


def _test(test: Test, issue: "Callable[[Sequence[QuerySample]], None]", samples: int) -> Trial:
    """Run a test of LoadGen's to its end and read its logs."""
    import mlperf_loadgen as lg

    settings, logs = lg.TestSettings(), lg.LogSettings()
    settings.scenario = getattr(lg.TestScenario, test.scenario)
    settings.mode = lg.TestMode.PerformanceOnly
    settings.min_duration_ms, settings.min_query_count = 0, test.count
    settings.offline_expected_qps, settings.server_target_qps = 1.0, test.rate
    settings.server_target_latency_ns = int(test.bound_ms * 1e6)
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
    answers = [(each["qsl_idx"], np.frombuffer(bytes.fromhex(each["data"]))) for each in logged]
    return Trial(np.array([ns for _, ns in times]) / 1e6, answers)


def wrong_answer(trial: Trial, right: Sequence[Values], bounds: Values) -> str:
    """Describe the first answer with a value that is further than its bound from the right one."""
    for index, found in trial.answers:
        expected = right[index]
        if found.shape != expected.shape:
            return f"sample {index} has {found.size} values, the framework {expected.size}"
        apart = np.abs(found - expected) / bounds
        if not apart.max() <= 1:  # or it is not a number
            worst = int(apart.argmax())
            return (
                f"value {worst} of sample {index} is {found[worst]:.6g}, the framework's "
                f"{expected[worst]:.6g}; they may differ by {bounds[worst]:.2g}"
            )
    return ""


def crosscheck(given: Parameters, model: str, experiment: str) -> list[Comparison]:
    """Measure a deployed experiment with both meters in turn, and write `crosscheck.json`.

    The server is set up as for clients online, and all requests go over HTTP. Raises
    `AccuracyError` for a wrong answer, `ArtefactError` if nothing is deployed yet, and
    `MeasurementError` without LoadGen.
    """
    if not find_spec("mlperf_loadgen"):
        raise MeasurementError(NO_LOADGEN)
    config = configure(given, model, experiment, "deploy")
    assert isinstance(config, DeployConfig)
    repository, fields = require(config, "deploy"), given.experiment(model, config.experiment)
    reference = reference_outputs(config)
    outputs, size = list(reference), fields.online_batch_size
    count = len(reference[outputs[0]])
    (rows,) = requests(config, open_dataset(config), count, count)
    samples = [_rows(rows, start, size) for start in range(count)]
    right = [flat(_rows(reference, start, size), outputs, 0, size) for start in range(count)]
    largest, _ = models.get(model).BOUNDS[served_precision(config)]
    deviations = {name: np.full_like(each, each.std()) for name, each in reference.items()}
    bounds = largest * flat(_rows(deviations, 0, size), outputs, 0, size)
    checked: list[int] = []
    log = results_folder(config) / "crosscheck_server.log"
    with (
        background.exclusive_lock(),
        analyzer.input_data(rows) as data,
        serve(config, repository, log=log) as server,
    ):

        def loadgen(test: Test) -> Trial:
            trial = run(server, model, samples, outputs, test)
            if wrong := wrong_answer(trial, right, bounds):
                name = f"{model} {config.experiment}"
                raise AccuracyError(f"{name}: wrong answer in LoadGen's {test.scenario}: {wrong}")
            checked.append(len(trial.answers))
            return trial

        def closed_loop(batch_size: int) -> Window:
            batch = _rows(rows, 0, batch_size)
            seconds = timeit(lambda: server.infer(model, batch), number=3) / 3
            interval_ms = 1000 * max(SECONDS, FEWEST * seconds) / analyzer.WINDOWS
            point = LoadPoint(model, data, [], batch_size, interval_ms=ceil(interval_ms))
            return analyzer.run(point, server)

        joined = max(1, max(fields.batch_sizes) // size)
        compared = compare(loadgen, closed_loop, size, joined, fields.latency_budget_ms)
    facts: dict[str, JsonValue] = {"deployed": repository.sha256, "answers_compared": sum(checked)}
    facts |= {"seed": SEED, "rows": [asdict(row) for row in compared]}
    result = Result(
        model=model,
        experiment=config.experiment,
        stage="crosscheck",
        gpu=config.gpu,
        state="done",
        finished=timestamp(),
        facts=facts,
    )
    write(config.model_copy(update={"stage": "crosscheck"}), result)
    return compared


def _rows(arrays: Arrays, start: int, count: int) -> Arrays:
    """Give `count` rows from `start` on, beginning again after the last."""
    chosen = range(start, start + count)
    return {name: array.take(chosen, axis=0, mode="wrap") for name, array in arrays.items()}


def compare(
    loadgen: Callable[[Test], Trial],
    closed_loop: Callable[[int], Window],
    size: int,
    joined: int,
    budget_ms: float | None,
) -> list[Comparison]:
    """Let both meters measure in turn: LoadGen by `loadgen`, perf_analyzer by `closed_loop`, which
    takes the rows of a request. A sample has `size` rows, an Offline request `joined` samples.
    """
    one, many, stream, offline = [], [], [], []
    for seed in range(SEED, SEED + ROUNDS):
        background.wait_until_quiet()
        one.append(closed_loop(size))
        count = max(FEWEST, ceil(SECONDS * one[-1].throughput / size))
        stream.append(loadgen(Test("SingleStream", count, seed)))
        many.append(closed_loop(size * joined))
        count = max(FEWEST, ceil(SECONDS * many[-1].throughput / size / joined))
        offline.append(loadgen(Test("Offline", count * joined, seed, joined=joined)))
    rate = SERVER_SHARE * geometric_mean([each.throughput for each in one]) / size
    bound_ms, count = budget_ms or Test.bound_ms, max(FEWEST, ceil(SERVER_SECONDS * rate))
    served = loadgen(Test("Server", count, SEED, SERVER_CLIENTS, rate=rate, bound_ms=bound_ms))
    why = f"{rate:.3g} requests/s, which perf_analyzer's clients do not make"
    if budget_ms:
        kept = float((served.latencies_ms <= budget_ms).mean())
        why += f"; {kept:.1%} of {count} within the budget of {budget_ms:g} ms"
    rates = [1000 * size * len(each.latencies_ms) / each.latencies_ms.max() for each in offline]
    latency, batch = "p90 latency (ms)", size * joined
    closed = _mean([each.throughput for each in many])
    return [
        _judged("SingleStream", latency, size, _quantile(stream, 0.9), _quantile(one, 0.9)),
        _judged("Offline", "throughput (samples/s)", batch, _mean(rates), closed),
        _judged("Server", "p99 latency (ms)", size, _quantile([served], 0.99), None, why),
    ]


def _quantile(runs: Sequence[Trial | Window], quantile: float) -> Estimate:
    """Without the first request of each run: it meets an idle server."""
    latencies = np.concatenate([each.latencies_ms[1:] for each in runs])
    return float(np.quantile(latencies, quantile)), percentile_interval(latencies, quantile)


def _mean(rates: Sequence[float]) -> Estimate:
    return geometric_mean(rates), log_interval(rates)


def _judged(
    scenario: str, figure: str, rows: int, ours: Estimate, theirs: Estimate | None, reason: str = ""
) -> Comparison:
    """Compare an estimate of LoadGen's with perf_analyzer's, if there is one."""
    (own, one), (other, two) = ours, theirs or (None, None)
    overlap = one and two and one.low <= two.high and two.low <= one.high
    agree = overlap or (other and abs(own / other - 1) <= CLOSE)
    return Comparison(
        scenario,
        figure,
        batch_size=rows,
        loadgen=own,
        loadgen_low=one.low if one else None,
        loadgen_high=one.high if one else None,
        perf_analyzer=other,
        perf_analyzer_low=two.low if two else None,
        perf_analyzer_high=two.high if two else None,
        verdict=("agree" if agree else "differ") if other else "not compared",
        reason=reason,
    )
