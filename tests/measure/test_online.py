"""Which rates an open loop tries: shares of the peak up to overload, then a bisection."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.config import OnlineConfig, resolve
from helpers.errors import ParameterError
from helpers.measure import online
from helpers.measure.analyzer import LoadPoint, gaps_us
from helpers.measure.rows import Window, measure_row
from helpers.measure.runs import Runs
from helpers.results import Row

PEAK = 100.0


def tried(latency_ms: Callable[[float], float], **overrides: Any) -> list[Row]:
    """Go through an open loop on a server whose latency depends on the rate, and above 95 requests
    a second grows for as long as they are sent.
    """
    config = resolve("resnet50", "perf_online", overrides=overrides)
    assert isinstance(config, OnlineConfig)

    def load(point: LoadPoint) -> Window:
        assert point.rate
        due = np.cumsum(gaps_us(point) * 1000)
        spent = np.full(len(due), latency_ms(point.rate) * 1e6)
        if point.rate > 95:
            spent += 0.2 * due
        return Window(np.stack([due, due + spent.astype(np.int64)], axis=1), 1, 0, due)

    rows: list[Row] = []
    for point in online._open_loop(config, rows, PEAK):
        runs, fields = Runs(load, nullcontext), {"model": "m", "data": Path(), "regions": []}
        point.measure(LoadPoint(**fields, **point.fields), runs)
        rate = point.fields["rate"]
        rows.append(measure_row(runs.served, point.wanted, 0.05, 2, rate=rate))
    return rows


def rates(rows: list[Row]) -> list[float]:
    return [row.rate or 0 for row in rows]


def test_rates_are_shares_of_the_peak_from_the_lowest_on() -> None:
    rows = tried(
        lambda rate: 1 + rate / 100, rates=[0.9, 0.5], request_count=30, measurement_seconds=2
    )

    assert rates(rows) == [50, 90]
    assert [row.requests for row in rows] == [100, 180]
    assert [row.quality for row in rows] == ["stable", "stable"]


def test_at_a_low_rate_a_point_still_has_its_requests() -> None:
    rows = tried(lambda rate: 1.0, rates=[0.1], request_count=30, measurement_seconds=1)

    assert [row.requests for row in rows] == [30]


def test_the_sweep_ends_with_the_first_rate_that_is_too_high() -> None:
    rows = tried(lambda rate: 1.0, rates=[0.5, 0.97, 1.2, 1.5])

    assert [row.quality for row in rows] == ["stable", "saturated"]


@pytest.mark.parametrize("shares", [[], [0.5, 0.7, 0.9]])
def test_the_highest_rate_within_the_budget_is_bisected(shares: list[float]) -> None:
    rows = tried(lambda rate: 5 if rate < 83 else 20, rates=shares, max_rate_budget_ms=10)

    extra = rows[len(shares) :]
    kept = max(row.rate or 0 for row in rows if (row.p99_latency_ms or 99) <= 10)
    assert 83 / 1.06 < kept < 83
    assert len(extra) <= online.BISECTIONS
    assert all((row.requests or 0) >= 368 for row in extra)


def test_a_budget_that_no_rate_keeps_takes_six_points_at_most() -> None:
    rows = tried(lambda rate: 20.0, rates=[], max_rate_budget_ms=10)

    assert len(rows) == online.BISECTIONS
    assert rates(rows) == [50, 25, 12.5, 6.25, 3.125, 1.5625]


@pytest.mark.parametrize("shares", [[0], [-0.5], [2.1], [0.5, 3]])
def test_a_share_of_the_peak_is_above_0_and_at_most_2(shares: list[float]) -> None:
    with pytest.raises(ParameterError, match=r"rates\.\d is .*\. It should be (greater|less) than"):
        resolve("resnet50", "perf_online", overrides={"rates": shares})
