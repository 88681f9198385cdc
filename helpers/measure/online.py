"""The scenario online: clients who each wait for their answer (a closed loop), and requests at
random times, whoever waits (an open loop).
"""

from collections.abc import Iterator
from dataclasses import replace
from math import ceil, isnan

from helpers.config import OnlineConfig
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
    """Measure each number of clients over HTTP, each with `online_batch_size` samples a request;
    then each of `rates` of the most requests per second that they got. What cannot be measured is
    a row with the reason.
    """
    samples, size = sweep.distinct_samples(config), config.online_batch_size
    # of a request, at each point
    seconds = [sweep.warm_up(server, config, samples, max(config.concurrency))]

    def close_loop(load: LoadPoint, runs: Runs) -> None:
        runs.cut = True
        wanted = _wanted(config, load.concurrency)
        # enough for an interval: each run that is too short costs a start of perf_analyzer
        fewest = max(wanted, MIN_RUNS * block_size(load.concurrency)) + load.concurrency

        def serve() -> None:
            interval = analyzer.interval_ms(fewest * 2 ** len(runs.served), 1, seconds[-1])
            run = runs.load(replace(load, interval_ms=interval))
            seconds.append(float(run.latencies_ms.mean()) / 1000 / load.concurrency)
            runs.served.append(run)

        def is_over() -> bool:
            known = runs.missing(wanted) <= 0 and runs.is_known(config.margin_of_error)
            return known or runs.is_over(config.measurement_seconds, wanted)

        runs.repeat([serve], is_over)

    def each(rows: list[Row]) -> Iterator[Point]:
        for clients in config.concurrency:
            fields = {"batch_size": size, "concurrency": clients}
            yield Point(fields, close_loop, _wanted(config, clients))
        rates = [row.throughput / size for row in rows if row.throughput is not None]
        peak = max((rate for rate in rates if not isnan(rate)), default=0.0)
        if peak:
            yield from _open_loop(config, rows, peak)

    return sweep.run(config, server, samples, each)


def _open_loop(config: OnlineConfig, rows: list[Row], peak: float) -> Iterator[Point]:
    """Yield points at shares of the peak (requests/s), until the server is overloaded. Then yield
    those that bisect the rates below it for the highest that keeps the budget.
    """
    budget_ms = config.max_rate_budget_ms
    kept, broken = 0.0, peak

    def at(rate: float, fewest: int) -> Point:
        count = max(fewest, ceil(rate * config.measurement_seconds))
        fields = {"batch_size": config.online_batch_size, "concurrency": 0}
        return Point({**fields, "rate": rate, "requests": count}, _send, count)

    for share in sorted(config.rates):
        yield at(share * peak, config.request_count)
        if rows[-1].quality == "failed":
            return
        kept, broken = _narrowed(rows[-1], budget_ms, kept, broken)
        if rows[-1].quality == "saturated":
            break
    for _ in range(BISECTIONS if budget_ms else 0):
        if broken <= kept * (1 + config.margin_of_error):
            return
        rate = (kept + broken) / 2
        yield at(rate, min(BUDGET_REQUESTS, ceil(4 * rate * config.measurement_seconds)))
        if rows[-1].quality == "failed":
            return
        kept, broken = _narrowed(rows[-1], budget_ms, kept, broken)


def _send(load: LoadPoint, runs: Runs) -> None:
    runs.repeat([lambda: runs.served.append(runs.load(load))], lambda: True)


def _narrowed(row: Row, budget_ms: float | None, kept: float, broken: float) -> tuple[float, float]:
    """Move the highest rate that keeps the budget up, or the lowest other one down: by the p99 that
    was seen, as "unconfirmed" leads nowhere. The report says which rates are known to keep it.
    """
    assert row.rate
    late = row.p99_latency_ms is None or row.p99_latency_ms > (budget_ms or 0)
    if late or row.quality == "saturated":
        return kept, min(broken, row.rate)
    return max(kept, row.rate), broken


def _wanted(config: OnlineConfig, clients: int) -> int:
    """Return how many requests a point needs, each client's first apart."""
    return max(config.request_count, REQUESTS_A_CLIENT * clients)
