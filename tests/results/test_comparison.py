"""What a comparison recommends, and of which others it cannot be told apart."""

import pytest

from helpers.results import Comparison, Estimate
from tests.comparisons import TOO_SLOW, UNCONFIRMED, check, compared, known


def recommended(found):
    return found.recommended.experiment if found.recommended else ""


def rivals(found):
    return [one.experiment for one in found.rivals]


def test_the_fastest_that_meets_the_budget_comes_before_faster_ones_that_do_not():
    speeds = {"plain": 1.0, "half": 2.0, "int8": 3.0}

    assert recommended(compared(**speeds)) == "int8"
    met = {"plain": check(), "half": check(), "int8": TOO_SLOW}
    assert recommended(compared(200, met, **speeds)) == "half"
    assert recommended(compared(200, met | {"int8": UNCONFIRMED}, **speeds)) == "half"
    assert recommended(compared(200, {"int8": TOO_SLOW}, **speeds)) == "half"
    assert recommended(compared(200, {"int8": UNCONFIRMED}, **speeds)) == "int8"
    assert recommended(compared(200, dict.fromkeys(speeds, TOO_SLOW), **speeds)) == ""


def test_a_check_with_fewer_clients_that_is_met_counts_after_one_that_was_not():
    found = compared(200, {"plain": TOO_SLOW}, plain=1.0, other=0.5)
    first, other = found.experiments
    again = first.model_copy(update={"budgets": (TOO_SLOW, check(clients=1))})

    assert recommended(found.model_copy(update={"experiments": (again, other)})) == "plain"
    assert again.check == check(clients=1)


def test_experiments_whose_interval_has_the_speed_of_the_fastest_are_rivals():
    assert rivals(compared(plain=1.0, near=0.98, slow=0.9)) == ["near"]
    assert rivals(compared(plain=1.0, near=1.02, slow=0.9)) == ["plain"]
    assert rivals(compared(200, {"near": TOO_SLOW}, plain=1.0, near=0.98)) == []


def test_rivals_of_one_that_is_not_the_fastest_are_those_whose_intervals_overlap_its_own():
    found = compared(200, {"fast": TOO_SLOW, "plain": check()}, plain=1.0, fast=2.0, near=0.96)

    assert recommended(found) == "plain"
    assert rivals(found) == ["near"]
    unsure = {"fast": UNCONFIRMED, "plain": check()}  # known to be faster, so no rival
    assert rivals(compared(200, unsure, plain=1.0, fast=2.0, slow=0.9)) == []


def test_without_an_interval_nobody_knows():
    first, second = compared(plain=1.0, slow=0.5).experiments
    guess = second.model_copy(update={"ratio_to_fastest": Estimate(value=0.5)})

    assert rivals(Comparison(baseline="plain", clients=1, batch_size=1, experiments=(first, guess)))


def test_groups_are_compared_through_the_baseline():
    found = compared(plain=1.0, fast=3.0, other=2.95)
    *same, other = found.experiments
    apart = other.model_copy(update={"group": 1, "ratio_to_fastest": Estimate(value=1.0)})
    slower = apart.model_copy(update={"ratio_to_baseline": known(2.0)})

    assert rivals(found.model_copy(update={"experiments": (*same, apart)})) == ["other"]
    assert rivals(found.model_copy(update={"experiments": (*same, slower)})) == []


def test_without_its_baseline_a_comparison_ranks_by_what_it_has():
    found = compared(plain="died", one=1.0, two=2.0)
    bare = [one.model_copy(update={"ratio_to_baseline": None}) for one in found.experiments]
    alone = found.model_copy(update={"experiments": tuple(bare)})

    assert recommended(alone) == "two"
    assert alone.headline == "Deploy two: plain, the baseline, was not measured"


NONE = "no other experiment is faster"


@pytest.mark.parametrize(
    ("found", "line"),
    [
        (compared(plain=1.0, int8=3.6), "3.60× as fast as plain (95% CI 3.50 to 3.71)"),
        (compared(int8=1.0, other=0.5), NONE),
        (compared(int8=1.0, other="died"), "no other experiment was measured"),
        (
            compared(200, {"fast": TOO_SLOW, "int8": check()}, int8=1.0, fast=2.0),
            "no faster experiment is known to meet the budget, p99 55 ms with 4 clients, below the "
            "budget of 200 ms with 95% confidence",
        ),
        (
            compared(200, {"int8": UNCONFIRMED}, int8=1.0, other=0.5),
            f"{NONE}; the budget of 200 ms is not confirmed: 60 of 368 requests with 4 clients",
        ),
        (compared(200, int8=1.0, other=0.5), f"{NONE}; the budget of 200 ms is not measured"),
    ],
)
def test_the_headline_says_what_to_deploy(found, line):
    assert found.headline == f"Deploy int8: {line}"


def test_where_nothing_can_be_deployed_the_headline_says_why():
    slow = compared(200, {"plain": TOO_SLOW}, plain=1.0)

    assert slow.headline == "No experiment meets the budget of 200 ms at p99"
    assert compared(plain="died").headline == "Nothing can be deployed"


def test_a_figure_has_its_interval():
    assert known(1000, 0.1).in_words("ms") == "1,000 ms (95% CI 909 to 1,100)"
    assert Estimate(value=3.25).times == "3.25×"
    assert (known(1.1).is_above_one, known(0.9).is_above_one) == (True, False)
    assert (known(1.02).is_above_one, Estimate(value=2).is_above_one) == (False, False)
