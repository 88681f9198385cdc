"""A cost per million inferences has the closed form's value, and a bound says what is above it."""

import pytest

from helpers.config import BoundFields, resolve
from helpers.errors import ParameterError
from helpers.measure import Interval, cost_in_words, cost_per_million, over_cost, over_memory
from helpers.results import Estimate

BOUNDS = BoundFields(max_memory_mb=800, price_per_hour=3.6, max_cost_per_million=2)


def test_a_cost_is_the_price_of_the_hours_that_a_million_takes():
    # a thousand a second for 3.60 an hour: a million takes 1,000 seconds, which cost 1.00
    found = cost_per_million(3.6, 1000, Interval(800, 1250))
    assert found == Estimate(value=1.0, low=0.8, high=1.25)
    found = cost_per_million(0.97, 71.5, None)
    assert found.value == pytest.approx(0.97 * 1e6 / 71.5 / 3600, rel=1e-12)
    assert (found.low, found.high) == (None, None)


def test_a_cost_in_words_has_its_interval_and_without_a_price_there_is_none():
    assert cost_in_words(Estimate(value=1.0, low=0.8, high=1.25)) == "1 (95% CI 0.8 to 1.25)"
    assert cost_in_words(Estimate(value=1234.5)) == "1,234"
    assert cost_per_million(None, 1000, Interval(800, 1250)) is None
    assert cost_in_words(None) == over_cost(BOUNDS, None) == ""


def test_only_a_cost_that_is_known_to_be_above_the_bound_is_excluded():
    reason = "cost per million is 3 (95% CI 2.5 to 3.5), max_cost_per_million is 2"

    assert over_cost(BOUNDS, Estimate(value=3, low=2.5, high=3.5)) == reason
    assert over_cost(BOUNDS, Estimate(value=3, low=1.9, high=4.1)) == ""
    assert over_cost(BOUNDS, Estimate(value=3)) == ""
    assert over_cost(BoundFields(), Estimate(value=3, low=2.5, high=3.5)) == ""


def test_only_a_memory_that_is_known_to_be_above_the_bound_is_excluded():
    assert over_memory(BOUNDS, 912) == "the server uses 912 MB, max_memory_mb is 800"
    assert over_memory(BOUNDS, 800) == ""
    assert over_memory(BOUNDS, None) == ""
    assert over_memory(BoundFields(), 912) == ""


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"max_cost_per_million": 2.5}, "max_cost_per_million is 2.5. It needs price_per_hour."),
        ({"price_per_hour": 0}, "price_per_hour is 0. It should be greater than 0."),
        ({"price_per_hour": float("inf")}, "price_per_hour is inf. It should be a finite number."),
        ({"max_memory_mb": -1.0}, "max_memory_mb is -1.0. It should be greater than 0."),
        ({"max_memory_mb": "8 GB"}, "max_memory_mb is '8 GB'. It should be a valid number."),
    ],
)
def test_a_bound_that_means_nothing_is_one_line(fields, words):
    with pytest.raises(ParameterError) as raised:
        resolve("resnet50", "tune", overrides=fields)

    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_bounds_change_no_measured_row():
    fields = BOUNDS.model_dump()
    for stage in ("deploy", "perf_offline", "perf_online"):
        own, other = (resolve("resnet50", stage, overrides=given) for given in ({}, fields))
        assert own.cache_fields(stage) == other.cache_fields(stage)
    tuned = resolve("resnet50", "tune", overrides=fields).cache_fields("tune")
    assert {name: tuned[name] for name in fields} == fields
