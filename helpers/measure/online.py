"""Measure the scenario online: clients in a closed loop, and Poisson arrivals in an open loop."""

from collections.abc import Iterator
from dataclasses import replace
from math import ceil, isnan

from helpers.config import OnlineConfig
from helpers.errors import ParameterError
from helpers.measure import analyzer, sweep
from helpers.measure.analyzer import LoadPoint
from helpers.measure.rows import block_size
from helpers.measure.runs import Runs
from helpers.measure.statistics import MIN_RUNS
from helpers.measure.sweep import Point
from helpers.results import Measurement, Row
from helpers.triton import Server

REQUESTS_A_CLIENT = 5  # at least: fewer show more of the start than of the steady state
BISECTIONS = 6  # points, at most, that look for the highest rate within a budget
BUDGET_REQUESTS = 500  # at such a point, at least: it takes 368 to know without one that is late


def measure_online(config: OnlineConfig, server: Server) -> Measurement:
    """Measure each number of clients over HTTP, with `online_batch_size` samples per request. Then
    measure each of `rates`, as a share of the highest request rate of the clients. A point that
    cannot be measured is a row with the reason. Raises `ParameterError` without clients.
    """
    if not config.concurrency:
        raise ParameterError("concurrency is empty. Set the numbers of clients, such as [1, 4].")
    samples, size = sweep.distinct_samples(config), config.online_batch_size
    # of a request, at each point
    seconds = [sweep.warm_up(server, config, samples, max(config.concurrency))]

    def close_loop(load: LoadPoint, runs: Runs) -> None:
        runs.cut = True
        needed = _requests_needed(config, load.concurrency)
        # enough for an interval: each run that is too short costs a start of perf_analyzer
        fewest = max(needed, MIN_RUNS * block_size(load.concurrency)) + load.concurrency

        def send_load() -> None:
            interval = analyzer.interval_ms(fewest * 2 ** len(runs.served), 1, seconds[-1])
            run = runs.load(replace(load, interval_ms=interval))
            seconds.append(float(run.latencies_ms.mean()) / 1000 / load.concurrency)
            runs.served.append(run)

        runs.repeat([send_load], lambda: runs.is_done(config, needed))

    def points(rows: list[Row]) -> Iterator[Point]:
        for clients in config.concurrency:
            fields = {"batch_size": size, "concurrency": clients}
            yield Point(fields, close_loop, _requests_needed(config, clients))
        rates = [row.throughput / size for row in rows if row.throughput is not None]
        peak = max((rate for rate in rates if not isnan(rate)), default=0.0)
        if peak:
            yield from _open_loop(config, rows, peak)

    return sweep.run(config, server, samples, points)


def _open_loop(config: OnlineConfig, rows: list[Row], peak: float) -> Iterator[Point]:
    """Yield points at shares of the peak (requests/s), until the server is saturated. Then yield
    those that bisect the rates below it for the highest that keeps the budget.
    """
    budget_ms = config.max_rate_budget_ms
    low, high = 0.0, peak

    def at(rate: float, fewest: int) -> Point:
        count = max(fewest, ceil(rate * config.measurement_seconds))
        fields = {"batch_size": config.online_batch_size, "concurrency": 0}
        return Point({**fields, "rate": rate, "requests": count}, _send, count)

    for share in sorted(config.rates):
        yield at(share * peak, config.request_count)
        if rows[-1].quality == "failed":
            return
        low, high = _narrowed(rows[-1], budget_ms, low, high)
        if rows[-1].quality == "saturated":
            break
    for _ in range(BISECTIONS if budget_ms else 0):
        if high <= low * (1 + config.margin_of_error):
            return
        rate = (low + high) / 2
        yield at(rate, min(BUDGET_REQUESTS, ceil(4 * rate * config.measurement_seconds)))
        if rows[-1].quality == "failed":
            return
        low, high = _narrowed(rows[-1], budget_ms, low, high)


def _send(load: LoadPoint, runs: Runs) -> None:
    runs.repeat([lambda: runs.served.append(runs.load(load))], lambda: True)


def _narrowed(row: Row, budget_ms: float | None, low: float, high: float) -> tuple[float, float]:
    """Raise `low`, the highest rate within the budget, or reduce `high`, the lowest other rate.
    The measured p99 decides; the report states which rates are confirmed.
    """
    assert row.rate
    late = row.p99_latency_ms is None or row.p99_latency_ms > (budget_ms or 0)
    if late or row.quality == "saturated":
        return low, min(high, row.rate)
    return max(low, row.rate), high


def _requests_needed(config: OnlineConfig, clients: int) -> int:
    """Return how many requests a point needs, each client's first apart."""
    return max(config.request_count, REQUESTS_A_CLIENT * clients)
