"""Figures are those of closed forms, and intervals hold the truth as often as they say."""

from dataclasses import replace
from itertools import pairwise
from math import ceil, isnan, nan

import numpy as np
import pytest

from helpers.measure import rows, statistics
from helpers.measure.rows import Window, compare, measure_row, overhead_columns
from helpers.measure.statistics import check_budget, log_interval, percentile_interval
from helpers.results import Row

SECOND = 1_000_000_000  # ns


def closed_loop(clients, seconds, period):
    """Requests of clients that are all answered together every `period` seconds: a clump."""
    steps = ceil(seconds / period)
    ends = np.repeat(np.arange(1, steps + 1) * period, clients)
    return (np.stack([ends - period, ends], axis=1) * SECOND).astype(np.int64)


def client(seconds, period, count=1, **fields):
    """Runs of one client."""
    return [Window(closed_loop(1, seconds, period), 1, 1, **fields)] * count


@pytest.mark.parametrize("batch_size", [1, 8])
@pytest.mark.parametrize("clients", [1, 4, 16])
@pytest.mark.parametrize("period", [0.01, 0.19])
def test_throughput_is_the_known_rate_and_littles_law_is_one(batch_size, clients, period):
    run = Window(closed_loop(clients, 3, period), batch_size, clients)

    assert run.throughput == pytest.approx(clients * batch_size / period, rel=0.01)
    law = statistics.littles_law(run.throughput, run.mean_latency_ms, batch_size, clients)
    assert law == pytest.approx(1, rel=0.01)
    assert statistics.littles_law(100, 30, 2, 3) == pytest.approx(0.5)  # clients that paused


@pytest.mark.parametrize(("clients", "count"), [(1, 0), (1, 1), (1, 2), (8, 8)])
def test_few_requests_and_answers_that_all_came_at_once_have_no_throughput(clients, count):
    assert isnan(Window(closed_loop(clients, 1, 0.1)[:count], 1, clients).throughput)


def sequence(latencies):
    """Requests (ns) of one client that waits for each answer, from their latencies in seconds."""
    ends = np.concatenate([[0.0], np.cumsum(latencies)])
    return (np.array([*pairwise(ends)]) * SECOND).astype(np.int64)


def test_latencies_and_percentiles_are_those_of_a_closed_form():
    ends = np.arange(102) * SECOND // 10
    starts = ends - np.arange(102) * 1_000_000  # 1 to 101 ms, after a first one
    starts[0] = -SECOND
    requests = np.stack([starts, ends], axis=1)

    row = measure_row([Window(requests, 2, 1)], 101, 0.05, 2, cut=True)

    quantiles = {f"p{q}_latency_ms": 1 + q for q in (50, 90, 95, 99)}
    assert {name: getattr(row, name) for name in quantiles} == pytest.approx(quantiles)
    assert row.avg_latency_ms == pytest.approx(51)
    assert row.throughput == pytest.approx(20)
    assert row.littles_law == pytest.approx(20 * 0.051 / 2)
    assert (row.batch_size, row.concurrency, row.requests) == (2, 1, 101)
    assert row.margin_of_error == pytest.approx(0, abs=1e-6)
    assert (row.quality, row.reason) == ("stable", "")


def test_a_ramp_of_16_clients_does_not_move_the_mean_latency():
    """Their first requests queue behind one another; five more of each are answered steadily."""
    ramp = np.stack([np.zeros(16), np.arange(1, 17) * 0.1], axis=1)
    steady = closed_loop(16, 2.5, 0.5) / SECOND + [[1.6, 1.6]]
    requests = (np.concatenate([ramp, steady]) * SECOND).astype(np.int64)

    row = measure_row([Window(requests, 1, 16)], 80, 0.05, 2, cut=True)

    assert row.requests == 80
    assert row.avg_latency_ms == pytest.approx(500, rel=0.01)
    assert Window(requests, 1, 16).latencies_ms.mean() > 1.09 * 500


TRIALS = 800  # the share of them that hold is known to ±0.015
TRUTH = {  # the mean, and the quantile of a standard normal value at which a latency lies (s)
    "normal": (0.01, lambda z: 0.01 * (1 + 0.1 * z)),
    "log-normal": (0.01 * np.exp(0.3**2 / 2), lambda z: 0.01 * np.exp(0.3 * z)),
}


def latencies(kind, correlation, shape):
    """Rows of latencies (s); each value follows the last by an autoregression of order one."""
    values = np.random.default_rng(5).standard_normal((shape[1] + 50, shape[0]))
    for i in range(1, len(values)):
        values[i] = correlation * values[i - 1] + (1 - correlation**2) ** 0.5 * values[i]
    return TRUTH[kind][1](values[50:].T)


@pytest.mark.slow
@pytest.mark.parametrize("count", [60, 1000])
@pytest.mark.parametrize(("correlation", "share"), [(0.0, 0.93), (0.5, 0.90)])
@pytest.mark.parametrize("kind", TRUTH)
def test_95_percent_intervals_hold_the_truth(kind, correlation, share, count):
    mean, quantile = TRUTH[kind]
    samples = latencies(kind, correlation, (TRIALS, count))
    held = {"throughput": [], "ratio": [], "p50": [], "p99": []}
    for mine, other in zip(samples, np.roll(samples, 1, axis=0), strict=True):
        run = Window(sequence(mine), 1, 1).steady
        rates, in_process = (
            np.array([len(part) / part.sum() for part in np.array_split(each, 5)])
            for each in (mine, other)
        )
        truth = {
            "throughput": (1 / mean, log_interval(rows.repetitions([run], cut=True))),
            "ratio": (0.8, log_interval(0.8 * rates / in_process)),
            "p50": (quantile(0), percentile_interval(mine, 0.5)),
            "p99": (quantile(2.3263), percentile_interval(mine, 0.99)),
        }
        for name, (value, interval) in truth.items():
            if interval:
                held[name].append(interval.low <= value <= interval.high)

    # 60 requests bound no 99th percentile, nor do 1,000 of which each is worth a third
    rare = held.pop("p99")
    assert count > 60 or not rare
    assert (count, correlation) != (1000, 0.0) or len(rare) >= 0.995 * TRIALS
    assert all(len(found) >= 0.995 * TRIALS for found in held.values())
    assert all(np.mean(found) >= share for found in [*held.values(), rare] if found)


def bursts(mean, shape):
    """Rows of latencies (ms) around 20, of which 1% are around 200, in bursts of a mean length."""
    random = np.random.default_rng(6)
    late, found = random.uniform(size=shape[0]) < 0.01, np.empty(shape)
    for column in found.T:
        drawn = random.uniform(size=shape[0])
        late = np.where(late, drawn > 1 / mean, drawn < 0.01 / 0.99 / mean)
        column[:] = np.where(late, 200, 20)
    return found * random.lognormal(0, 0.1, shape)


@pytest.mark.slow
@pytest.mark.parametrize("count", [400, 1000, 2000])
@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
def test_a_budget_that_exactly_1_percent_exceed_is_seldom_settled(correlation, count):
    samples = latencies("log-normal", correlation, (TRIALS, count))

    words = [check_budget(each, TRUTH["log-normal"][1](2.3263))[0] for each in samples]

    assert max(words.count("met"), words.count("not met")) <= 0.05 * TRIALS


@pytest.mark.slow
def test_late_requests_in_bursts_count_as_few_although_the_others_are_independent():
    samples = bursts(8, (TRIALS // 4, 20_000))

    words = [check_budget(each, 80.0)[0] for each in samples]

    assert sum(word != "unconfirmed" for word in words) <= 0.05 * len(words)
    # which would settle half of them wrongly
    assert statistics.effective_sample_ratio(samples[0]) > 0.8


@pytest.mark.slow
def test_a_loaded_servers_budget_is_settled_although_each_latency_resembles_the_last():
    """0.2% are late. By the correlation of all ranks, 6,400 requests count for about 370."""
    samples, budget = latencies("log-normal", 0.9, (100, 6400)), TRUTH["log-normal"][1](2.878)

    found = [check_budget(each, budget) for each in samples]

    assert sum(word == "met" for word, _ in found) > 0.85 * len(found)
    assert np.median([*map(statistics.effective_sample_ratio, samples)]) < 400 / 6400


@pytest.mark.parametrize(("quantile", "needed"), [(0.5, 5), (0.9, 29), (0.95, 59), (0.99, 299)])
def test_the_requests_that_a_percentile_needs(quantile, needed):
    values = np.tile([1.0, 2.0], needed)[:needed]  # each is followed by another

    assert statistics.requests_needed(quantile) == needed
    assert percentile_interval(values, quantile) is not None
    assert percentile_interval(values[1:], quantile) is None


def test_a_constant_latency_is_not_correlated():
    assert statistics.lag1_autocorrelation(np.ones(9)) == 0
    assert statistics.lag1_autocorrelation(np.arange(50.0)) == 0.95


@pytest.mark.parametrize("values", [[], [10.0, 10.0], [1.0, 0.0, 1.0], [1.0, nan, 1.0]], ids=str)
def test_two_values_bound_nothing_nor_do_values_that_are_no_rates(values):
    assert log_interval(values) is None


def test_students_t_on_logarithms_is_that_of_a_table():
    found = log_interval([90.0, 100.0, 1e4 / 90])

    reach = 4.302653 * np.log(100 / 90) / 3**0.5  # t of two degrees of freedom
    assert found == pytest.approx((100 * np.exp(-reach), 100 * np.exp(reach)))
    assert found.margin_of_error == pytest.approx(np.exp(reach) - 1)


def test_clopper_and_pearsons_bounds_are_those_of_their_table():
    assert statistics.share_interval(0, 10) == pytest.approx((0, 0.3085), abs=1e-4)
    assert statistics.share_interval(5, 10) == pytest.approx((0.1871, 0.8129), abs=1e-4)
    assert statistics.share_interval(10, 10) == pytest.approx((0.6915, 1), abs=1e-4)


def test_swapping_each_served_run_with_its_in_process_one_inverts_ratio_and_interval():
    in_process, served = [10.0, 11.0, 9.5, 10.2], [8.0, 8.4, 8.1, 7.7]

    one, other = compare(in_process, served, 0.1), compare(served, in_process, 0.1)

    for name, inverse in (("", ""), ("_low", "_high"), ("_high", "_low")):
        inverted = 1 / float(str(other[f"relative_throughput{inverse}"]))
        assert one[f"relative_throughput{name}"] == pytest.approx(inverted, rel=1e-12)


@pytest.mark.parametrize(
    ("served", "word"),
    [([8.0, 8.1, 7.9], "stable"), ([8.0, 9.5, 6.5], "imprecise"), ([8.0, 8.0], "too few pairs")],
)
def test_a_ratio_has_a_quality_of_its_own(served, word):
    assert compare([10.0] * len(served), served, 0.05)["relative_quality"] == word


def test_the_residual_overhead_is_a_difference_of_means_with_welchs_interval():
    found = overhead_columns([1.1, 1.2, 1.3], [0.4, 0.5, 0.6])

    reach = 2.776445 * (2 * 0.1**2 / 3) ** 0.5  # t of four degrees of freedom
    ends = {"": 0.7, "low_": 0.7 - reach, "high_": 0.7 + reach}
    right = {f"residual_overhead_{end}ms": value for end, value in ends.items()}
    assert found == pytest.approx({"noop_latency_ms": 0.5, **right})


def test_without_an_in_process_runtime_there_is_no_residual_overhead():
    assert overhead_columns([], [0.4, 0.5, 0.6]) == pytest.approx({"noop_latency_ms": 0.5})
    assert overhead_columns([1.0, 2.0], [0.5, 0.5, 0.5])["residual_overhead_low_ms"] is None


@pytest.mark.parametrize("count", [2, 40, 4001])
def test_growth_is_the_slope_of_a_line_whatever_a_stall_adds(count):
    times = np.linspace(0, 10, count)
    values = 3 + 0.2 * times
    values[count // 2 : count // 2 + count // 10] += 100

    assert statistics.growth(times, values) == pytest.approx(0.2, abs=0.01)
    assert isnan(statistics.growth(times[:1], values[:1]))


@pytest.mark.parametrize(("clients", "batch"), [(16, 8), (8, 8), (4, 4), (16, 4)])
@pytest.mark.parametrize("seed", range(10))
def test_answers_that_come_a_batch_at_a_time_do_not_bias_the_throughput(clients, batch, seed):
    """A block of one burst would have the throughput of a moment, many times the true one."""
    noise, waiting, count = np.random.default_rng(seed), [0.0] * clients, 80
    found, now = [], 0.0
    while len(found) < count + clients:  # each batch takes 0.2 s
        now += 0.2 * noise.normal(1, 0.05)
        ends = now + np.sort(noise.uniform(0, 0.002, batch))
        found += zip(waiting[:batch], ends, strict=True)
        waiting = waiting[batch:] + list(ends)

    run = Window((np.array(found) * SECOND).astype(np.int64), 1, clients)
    row = measure_row([run], count, 0.5, 2, cut=True)

    assert row.throughput == pytest.approx(batch / 0.2, rel=0.08)


GOOD = Row(batch_size=1, concurrency=1, quality="stable", requests=50).model_copy(
    update={"client_overhead": 0.5, "background_cpu_cores": 0.2, "margin_of_error": 0.05}
)
LOADED = "the load generator itself took 51% of the time: increase the batch size"
OTHERS = "other processes used 0.21 CPU cores: stop them and re-run"
FEW_RUNS = "no 95% CI from fewer than 3 runs: increase pairs or request_count"
WIDE = "margin of error ±5.1%, target ±5%: increase measurement_seconds"
FAULTS = [
    ({"requests": 49}, "too few requests", "49 of 50 requests: re-run on an idle machine"),
    ({"client_overhead": 0.51}, "client-bound", LOADED),
    ({"background_cpu_cores": 0.21}, "noisy", OTHERS),
    ({"margin_of_error": None}, "imprecise", FEW_RUNS),
    ({"margin_of_error": 0.0512}, "imprecise", WIDE),
]


def judged(**figures):
    """Judge a row that is good but for `figures`, on a machine of four cores."""
    return rows.quality(GOOD.model_copy(update=figures), 50, 0.05, 4)


def test_a_row_at_all_its_bounds_is_stable_and_each_fault_has_its_quality_and_reason():
    assert judged() == ("stable", "")
    assert [(fault, *judged(**fault)) for fault, _, _ in FAULTS] == FAULTS


def test_the_first_fault_of_several_is_the_quality():
    faults = {}
    for fault, word, reason in reversed(FAULTS):
        faults |= fault
        assert judged(**faults) == (word, reason)


@pytest.mark.parametrize("name", ["requests", "background_cpu_cores", "margin_of_error"])
def test_a_figure_that_is_not_a_number_is_never_stable(name):
    word, reason = judged(**{name: nan})

    assert word != "stable"
    assert "nan" in reason
    row = measure_row(client(3, 0.1, 3), 10, 0.05, 2, others_cores=nan)
    assert (isnan(row.background_cpu_cores), row.quality) == (True, "noisy")


# four clients had a request under way, or an answer that was not counted yet
@pytest.mark.parametrize("counted", [25, 26, 30, 34, 35, None])
def test_tritons_count_of_requests_is_held_against_the_load_generators(counted):
    runs = [replace(*client(3, 0.1, counted=counted), concurrency=4)]

    said = f"Triton counted {counted} requests, perf_analyzer 30: stop other clients of the server"
    fault = said if counted in (25, 35) else ""
    assert rows.count_mismatch(runs) == fault
    row = measure_row(runs, 20, 0.5, 2, cut=True)
    assert row.quality == ("noisy" if fault else "imprecise")  # of one block


STOOD_STILL = np.concatenate([np.arange(1, 51), np.arange(101, 151)]) * SECOND // 10


@pytest.mark.parametrize(
    ("runs", "cut"),
    [
        (client(9, 0.1, 1), False),
        (client(9, 0.1, 2), False),
        ([*client(1, 0.1, 2), *client(0.2, 0.1)], False),
        ([Window(np.stack([[0, *STOOD_STILL[:-1]], STOOD_STILL], axis=1), 1, 1)], True),
    ],
    ids=["one run", "two runs", "one too short for a throughput", "one stood still for a third"],
)
def test_runs_that_bound_no_throughput_are_not_stable(runs, cut):
    row = measure_row(runs, 10, 0.05, 2, cut=cut)

    assert (row.quality, row.margin_of_error) == ("imprecise", None)


def test_several_runs_are_their_geometric_mean_and_its_interval():
    runs = [Window(closed_loop(1, 2, period), 2, 1) for period in (0.1, 0.125, 0.08)]

    row = measure_row(runs, 58, 0.05, 4)

    assert row.throughput == pytest.approx(20)
    reach = np.exp(4.302653 * np.log(1.25) / 3**0.5)  # t of two degrees of freedom
    assert row.margin_of_error == pytest.approx(reach - 1)
    assert (row.throughput_low, row.throughput_high) == pytest.approx((20 / reach, 20 * reach))
    assert (row.requests, row.quality) == (20 + 16 + 25 - 3, "imprecise")


def test_runs_of_two_requests_each_have_a_throughput_without_an_interval():
    """As on a machine that has become much slower since the length of a run was chosen."""
    runs = [Window(closed_loop(1, 0.6, 0.2), 4, 1)] * 6

    row = measure_row(runs, 12, 0.05, 2, figures=compare([25.0] * 6, [nan] * 6, 0.05))

    assert (row.requests, row.quality, row.margin_of_error) == (12, "imprecise", None)
    assert row.throughput == pytest.approx(20)
    assert (row.relative_throughput, row.relative_quality) == (None, "too few pairs")


def test_two_requests_and_first_requests_only_are_rows_that_say_so():
    row = measure_row(client(0.2, 0.1), 50, 0.05, 2)
    assert (row.requests, row.quality, row.throughput) == (1, "too few requests", pytest.approx(10))
    row = measure_row([Window(closed_loop(4, 0.1, 0.1), 1, 4)], 20, 0.05, 2, cut=True)
    assert (row.requests, row.quality, row.p99_latency_ms) == (0, "too few requests", None)


@pytest.mark.parametrize("seed", range(20))
def test_windows_cut_all_requests_exactly_once_and_in_order(seed):
    random = np.random.default_rng(seed)
    total, count = int(random.integers(1, 200)), int(random.integers(1, 6))
    ends = random.integers(0, 50, total) * SECOND  # many end together
    ends.sort()
    requests = np.stack([ends - random.integers(1, SECOND, total), ends], axis=1)

    parts = rows.windows(Window(requests, 3, 2, overhead=0.5), count)

    assert len(parts) == count
    assert (np.concatenate([part.requests for part in parts]) == requests).all()
    width = (ends.max() - ends.min()) / count
    for part in parts:
        assert (part.batch_size, part.concurrency, part.overhead) == (3, 2, 0.5)
        assert len(part.requests) == 0 or np.ptp(part.requests[:, 1]) <= width
