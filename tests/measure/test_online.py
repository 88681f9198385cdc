"""Which rates an open loop tries: shares of the peak up to overload, then a bisection."""

from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from helpers.config import resolve
from helpers.errors import ParameterError
from helpers.measure import online
from helpers.measure.analyzer import LoadPoint, gaps_us
from helpers.measure.rows import Window, measure_row
from helpers.measure.runs import Runs

PEAK = 100.0


def tried(latency_ms, **overrides):
    """Go through an open loop on a server whose latency depends on the rate, and above 95 requests
    a second grows for as long as they are sent.
    """
    config = resolve("resnet50", "perf_online", overrides=overrides)

    def load(point):
        due = np.cumsum(gaps_us(point) * 1000)
        spent = np.full(len(due), latency_ms(point.rate) * 1e6)
        if point.rate > 95:
            spent += 0.2 * due
        return Window(np.stack([due, due + spent.astype(np.int64)], axis=1), 1, 0, due)

    rows = []
    for point in online._open_loop(config, rows, PEAK):
        runs = Runs(load, nullcontext)
        point.measure(LoadPoint("m", Path(), [], **point.fields), runs)
        rate = point.fields["rate"]
        rows.append(measure_row(runs.served, point.wanted, 0.05, 2, rate=rate))
    return rows


def test_rates_are_shares_of_the_peak_from_the_lowest_to_the_first_that_is_too_high():
    rows = tried(lambda _: 1.0, rates=[0.9, 0.1, 0.5], request_count=30, measurement_seconds=2)
    assert [(row.rate, row.requests) for row in rows] == [(10, 30), (50, 100), (90, 180)]

    rows = tried(lambda _: 1.0, rates=[0.5, 0.97, 1.2, 1.5])
    assert [row.quality for row in rows] == ["stable", "saturated"]


@pytest.mark.parametrize("shares", [[], [0.5, 0.7, 0.9]])
def test_the_highest_rate_within_the_budget_is_bisected(shares):
    rows = tried(lambda rate: 5 if rate < 83 else 20, rates=shares, max_rate_budget_ms=10)

    extra = rows[len(shares) :]
    assert 83 / 1.06 < max(row.rate for row in rows if row.p99_latency_ms <= 10) < 83
    assert len(extra) <= online.BISECTIONS
    assert all(row.requests >= 368 for row in extra)


def test_a_budget_that_no_rate_keeps_takes_six_points_at_most():
    rows = tried(lambda rate: 20.0, rates=[], max_rate_budget_ms=10)

    assert [row.rate for row in rows] == [50, 25, 12.5, 6.25, 3.125, 1.5625]


@pytest.mark.parametrize("shares", [[0], [-0.5], [2.1], [0.5, 3]])
def test_a_share_of_the_peak_is_above_0_and_at_most_2(shares):
    with pytest.raises(ParameterError, match=r"rates\.\d is .*\. It should be (greater|less) than"):
        resolve("resnet50", "perf_online", overrides={"rates": shares})


def test_without_clients_there_is_one_line():
    config = resolve("resnet50", "perf_online", overrides={"concurrency": []})

    with pytest.raises(ParameterError, match=r"^concurrency is empty\. Set the numbers of clients"):
        online.measure_online(config, None)
