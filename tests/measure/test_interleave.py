"""Candidates run in a fair order, and their ratios have intervals that mean what they say."""

import numpy as np
import pytest
from scipy.stats import ttest_rel, tukey_hsd

from helpers.measure.interleave import Ratio, interleave, paired_ratio


def ran(rounds: int, stop: int | None = None) -> str:
    """The order in which three candidates run."""
    order: list[str] = []
    calls = [lambda name=name: order.append(name) for name in "ABC"]
    interleave(calls, rounds, lambda runs: len(runs[0]) == stop)
    return "".join(order)


def test_every_second_round_is_reversed_so_that_a_drift_cancels() -> None:
    assert ran(4) == "ABCCBAABCCBA"
    assert ran(4, stop=2) == "ABCCBA"
    clock = iter(range(100))
    calls = [lambda: 100 * 0.99 ** next(clock)] * 2  # two equal ones on a machine that slows down

    assert paired_ratio(interleave(calls, 4), 1, 0).value == pytest.approx(1)


def test_the_interval_of_two_is_that_of_the_paired_t_test() -> None:
    random = np.random.default_rng(0)
    figures = np.exp(random.normal([[0.0], [0.1]], 0.05, (2, 5)))

    found = paired_ratio(figures, 1, 0)

    right = ttest_rel(*np.log(figures)[::-1]).confidence_interval()
    assert found.interval
    assert (found.interval.low, found.interval.high) == pytest.approx(np.exp([*right]))
    assert paired_ratio(figures, 0, 1).interval.low == pytest.approx(1 / found.interval.high)
    more = paired_ratio(figures, 1, 0, looks=2).interval
    right = ttest_rel(*np.log(figures)[::-1]).confidence_interval(0.975)
    assert (more.low, more.high) == pytest.approx(np.exp([*right]))


def test_the_intervals_of_many_are_those_of_tukeys_test_less_what_rounds_share() -> None:
    random = np.random.default_rng(0)
    own = random.normal(0, 0.05, (4, 50))
    own -= own.mean(axis=0)  # nothing of a round is left for SciPy to take as noise
    figures = np.exp(own + random.normal(0, 1, 50))

    found = paired_ratio(figures, 2, 1)

    right = tukey_hsd(*own).confidence_interval()
    reach = (
        (right.high[2, 1] - right.low[2, 1]) / 2 * (196 / 147) ** 0.5
    )  # by the degrees of freedom
    assert found.interval
    assert found.interval.high / found.value == pytest.approx(np.exp(reach), rel=0.001)


def test_equal_candidates_are_told_apart_in_one_set_of_twenty() -> None:
    random, wrong = np.random.default_rng(0), 0
    for _ in range(1000):
        figures = np.exp(random.normal(0, 0.05, (5, 4)) + random.normal(0, 0.5, 4))
        pairs = [(one, other) for one in range(5) for other in range(one)]
        wrong += any(paired_ratio(figures, *pair).is_significant for pair in pairs)

    assert 30 < wrong < 70


@pytest.mark.parametrize(
    ("figures", "candidate"),
    [
        ([[1.0, 2.0], [2.0, 3.0]], 1),
        ([[1.0, 2.0, 3.0], [1.0, np.inf, 3.0]], 1),
        ([[1.0, 2.0, 3.0]], 0),
    ],
    ids=["two rounds", "not finite", "itself"],
)
def test_what_bounds_nothing_has_no_interval(figures: list[list[float]], candidate: int) -> None:
    found = paired_ratio(figures, candidate, 0)

    assert found.interval is None
    assert not found.is_significant


def test_a_ratio_reads_with_its_interval() -> None:
    found = paired_ratio([[1.0, 1.0, 1.0], [2.0, 2.1, 2.0]], 1, 0)

    assert str(Ratio(1.5)) == "1.50×"
    assert str(found) == "2.03× (95% CI 1.90 to 2.18)"
