"""Throughput, percentiles and verdicts hold against closed forms, and NaN is never stable."""

from math import ceil, isnan, nan
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from helpers.perf.statistics import (
    Window,
    littles_law,
    measure_row,
    ratios,
    spread,
    verdict,
    windows,
)
from helpers.results import Row

SECOND = 1_000_000_000  # ns


def closed_loop(clients: int, seconds: float, period: float) -> NDArray[np.int64]:
    """Requests of clients that are all answered together every `period` seconds: a clump."""
    steps = ceil(seconds / period)
    ends = np.repeat(np.arange(1, steps + 1) * period, clients)
    found: NDArray[np.int64] = (np.stack([ends - period, ends], axis=1) * SECOND).astype(np.int64)
    return found


def whole_within(requests: NDArray[np.int64], start: float, end: float) -> int:
    """Count requests as perf_analyzer does: those that begin and end inside the window."""
    inside = (requests[:, 0] >= start * SECOND) & (requests[:, 1] <= end * SECOND)
    return int(inside.sum())


@pytest.mark.parametrize("batch_size", [1, 8])
@pytest.mark.parametrize("clients", [1, 4, 16])
@pytest.mark.parametrize("period", [0.01, 0.19])
def test_throughput_is_the_known_rate_where_counting_whole_requests_is_not(
    batch_size: int, clients: int, period: float
) -> None:
    requests = closed_loop(clients, 3, period)
    rate = clients * batch_size / period

    found = Window(requests, batch_size, clients).throughput

    assert found == pytest.approx(rate, rel=0.01)
    if period > 0.1:  # a window of one second holds five of each client's, and a cut one
        counted = whole_within(requests, period / 2, period / 2 + 1) * batch_size
        assert counted < 0.9 * rate


def test_throughput_holds_within_a_percent_when_answers_jitter() -> None:
    random = np.random.default_rng(1)
    ends = np.sort(np.arange(1, 401) * 0.05 + random.uniform(-0.02, 0.02, 400))
    requests = (np.stack([ends - 0.05, ends], axis=1) * SECOND).astype(np.int64)

    assert Window(requests, 4, 1).throughput == pytest.approx(80, rel=0.01)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_fewer_than_three_requests_have_no_throughput(count: int) -> None:
    assert isnan(Window(closed_loop(1, 1, 0.1)[:count], 1, 1).throughput)


def test_answers_that_all_came_at_once_have_no_throughput() -> None:
    assert isnan(Window(closed_loop(8, 0.1, 0.1), 1, 8).throughput)


def test_latencies_and_percentiles_are_those_of_a_closed_form() -> None:
    ends = np.arange(1, 102) * SECOND // 10
    requests = np.stack([ends - np.arange(1, 102) * 1_000_000, ends], axis=1)  # 1 to 101 ms

    row = measure_row([Window(requests, 2, 1, 0.1)], 100)

    quantiles = {f"p{q}_latency_ms": 1 + q for q in (50, 90, 95, 99)}
    assert {name: getattr(row, name) for name in quantiles} == pytest.approx(quantiles)
    assert row.avg_latency_ms == pytest.approx(51)
    assert row.throughput == pytest.approx(20)
    assert row.littles_law == pytest.approx(20 * 0.051 / 2)
    assert (row.batch_size, row.concurrency, row.requests) == (2, 1, 101)
    assert row.background_cpu_cores == 0.1
    assert row.spread == pytest.approx(0, abs=1e-6)


def test_the_ratios_cancel_a_linear_drift() -> None:
    speed = [100 - 3 * time for time in range(7)]  # bare, served, bare, ..., bare
    bare, served = [float(s) for s in speed[::2]], [0.8 * s for s in speed[1::2]]

    assert ratios(bare, served) == pytest.approx([0.8, 0.8, 0.8], rel=1e-12)


def test_each_served_run_needs_a_bare_one_before_and_after() -> None:
    with pytest.raises(ValueError, match="shorter|longer"):
        ratios([1.0, 1.0], [1.0, 1.0])


@pytest.mark.parametrize(("clients", "batch_size"), [(1, 1), (1, 8), (16, 1), (5, 3)])
def test_littles_law_is_one_in_a_closed_loop(clients: int, batch_size: int) -> None:
    window = Window(closed_loop(clients, 3, 0.02), batch_size, clients)

    found = littles_law(window.throughput, float(window.latencies_ms.mean()), batch_size, clients)

    assert found == pytest.approx(1, rel=0.01)


def test_littles_law_shows_clients_that_paused() -> None:
    assert littles_law(100, 30, 2, 3) == pytest.approx(0.5)


def test_the_spread_is_the_interquartile_range_over_the_median() -> None:
    assert spread([90.0, 100.0, 120.0]) == pytest.approx(0.15)
    assert spread([100.0, 98.0, 102.0, 101.0, 10.0]) == pytest.approx(0.03)
    assert isnan(spread([100.0]))
    assert isnan(spread([]))


GOOD: dict[str, Any] = {
    "requests": 50,
    "background_cpu_cores": 0.2,
    "littles_law": 1.1,
    "spread": 0.1,
}
FAULTS: list[tuple[dict[str, Any], str, str]] = [
    (
        {"requests": 49},
        "few requests",
        "49 of 50 requests: measure again on a freer machine",
    ),
    (
        {"background_cpu_cores": 0.21},
        "disturbed",
        "other processes used 0.21 cores: end them and measure again",
    ),
    (
        {"littles_law": 0.89},
        "unstable",
        "throughput x latency is 0.89 of batch x clients: no steady load",
    ),
    (
        {"spread": 0.25},
        "unstable",
        "throughput varied by 25% between windows: raise request_count",
    ),
]


def judged(**figures: Any) -> tuple[str, str]:
    """Judge a row that is good but for `figures`."""
    fields = {**GOOD, "littles_law": 1.0, **figures}
    row = Row(batch_size=1, concurrency=1, verdict="stable")
    return verdict(row.model_copy(update=fields), 50)


def test_a_row_at_all_its_bounds_is_stable() -> None:
    assert judged(littles_law=1 + 0.0999) == ("stable", "")
    assert judged(littles_law=1 - 0.0999) == ("stable", "")


@pytest.mark.parametrize(("fault", "word", "reason"), FAULTS)
def test_each_fault_has_its_verdict_and_reason(
    fault: dict[str, Any], word: str, reason: str
) -> None:
    assert judged(**fault) == (word, reason)


def test_the_first_fault_of_several_is_the_verdict() -> None:
    found = []
    for first in range(len(FAULTS)):
        faults: dict[str, Any] = {}
        for fault, _, _ in FAULTS[first:]:
            faults |= fault
        found.append(judged(**faults))

    assert found == [(word, reason) for _, word, reason in FAULTS]


@pytest.mark.parametrize("name", GOOD)
def test_a_figure_that_is_not_a_number_is_never_stable(name: str) -> None:
    word, reason = judged(**{name: nan})

    assert word != "stable"
    assert "nan" in reason


@pytest.mark.parametrize("loads", [[nan, 0.0], [0.0, nan]])
def test_an_unknown_load_of_one_window_is_not_hidden_by_the_others(loads: list[float]) -> None:
    requests = closed_loop(1, 3, 0.1)

    row = measure_row([Window(requests, 1, 1, load) for load in loads], 10)

    assert row.background_cpu_cores is not None
    assert isnan(row.background_cpu_cores)
    assert row.verdict == "disturbed"


def test_a_run_that_stood_still_for_a_third_of_its_time_is_not_stable() -> None:
    ends = np.concatenate([np.arange(1, 51), np.arange(101, 151)]) * SECOND // 10
    starts = np.concatenate([[0], ends[:-1]])  # one client: it waits for each answer

    row = measure_row([Window(np.stack([starts, ends], axis=1), 1, 1)], 100)

    assert row.verdict == "unstable"


def test_a_run_too_short_for_a_throughput_keeps_its_row_from_being_stable() -> None:
    requests = closed_loop(1, 1, 0.1)

    row = measure_row([Window(part, 1, 1) for part in (requests, requests, requests[:2])], 20)

    assert row.verdict == "unstable"


def test_several_runs_are_their_median_and_their_range() -> None:
    runs = [Window(closed_loop(1, 2, period), 2, 1, 0.1) for period in (0.1, 0.125, 0.08)]

    row = measure_row(runs, 60)

    assert row.throughput == pytest.approx(20)
    assert row.spread == pytest.approx((22.5 - 18) / 20)
    assert row.requests == 20 + 16 + 25
    assert row.verdict == "unstable"


def test_two_requests_are_a_row_that_says_so() -> None:
    row = measure_row([Window(closed_loop(1, 0.2, 0.1), 1, 1)], 50)

    assert (row.requests, row.verdict) == (2, "few requests")
    assert row.throughput is not None
    assert isnan(row.throughput)


@pytest.mark.parametrize("seed", range(20))
def test_windows_cut_all_requests_exactly_once_and_in_order(seed: int) -> None:
    random = np.random.default_rng(seed)
    total, count = int(random.integers(1, 200)), int(random.integers(1, 6))
    ends = random.integers(0, 50, total) * SECOND  # many end together
    ends.sort()
    requests = np.stack([ends - random.integers(1, SECOND, total), ends], axis=1)

    parts = windows(Window(requests, 3, 2, 0.5), count)

    joined = np.concatenate([part.requests for part in parts])
    assert len(parts) == count
    assert (joined == requests).all()
    width = (ends.max() - ends.min()) / count
    for part in parts:
        assert (part.batch_size, part.concurrency, part.others_cores) == (3, 2, 0.5)
        if len(part.requests):
            assert np.ptp(part.requests[:, 1]) <= width
