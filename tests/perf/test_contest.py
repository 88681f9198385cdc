"""Two servers in turn: in which order, for how long, and what is known of their ratio."""

from collections.abc import Callable

import numpy as np
import pytest

from helpers.perf.contest import in_turn, ratio_interval
from helpers.perf.rows import Window


def run(throughput: float, requests: int = 60, noise: float = 0.02, seed: int = 0) -> Window:
    """One client whose requests take as long as the throughput says."""
    spent = 1e9 / throughput * np.random.default_rng(seed).lognormal(0, noise, requests)
    ends = np.cumsum(spent)
    return Window(np.stack([ends - spent, ends], axis=1).astype(np.int64), 1, 1)


def contest(
    first: Callable[[int], float], second: Callable[[int], float], until_known: bool = True
) -> str:
    """The order in which throughputs that depend on the turn are asked for."""
    order: list[str] = []

    def call(name: str, throughput: Callable[[int], float]) -> Callable[[], Window]:
        def load() -> Window:
            order.append(name)
            return run(throughput(len(order)), seed=len(order))

        return load

    in_turn(call("A", first), call("B", second), 4, until_known)
    return "".join(order)


def test_pairs_alternate_so_that_a_drift_cancels() -> None:
    def drifting(turn: int) -> float:
        return 100 * 0.99**turn

    assert contest(drifting, drifting) == "ABBAABBA"


def test_a_large_difference_takes_a_pair_slower_takes_two_faster_three() -> None:
    assert contest(lambda turn: 100, lambda turn: 70) == "AB"
    assert contest(lambda turn: 100, lambda turn: 92) == "ABBA"
    assert contest(lambda turn: 100, lambda turn: 108) == "ABBAAB"
    assert contest(lambda turn: 100, lambda turn: 150) == "AB"
    assert contest(lambda turn: 100, lambda turn: 70, until_known=False) == "ABBAABBA"


def test_the_interval_is_that_of_the_pairs_and_of_fewer_than_three_that_of_blocks() -> None:
    one = [run(100, seed=seed) for seed in range(4)]
    other = [run(120, seed=seed) for seed in range(4, 8)]

    by_pairs, by_blocks = ratio_interval(one, other), ratio_interval(one[:1], other[:1])

    assert by_pairs
    assert by_blocks
    assert by_pairs.low < 1.2 < by_pairs.high
    assert by_blocks.low < 1.2 < by_blocks.high
    assert by_pairs.margin_of_error < 0.03
    assert by_blocks.margin_of_error < 0.05


def test_too_few_requests_bound_nothing() -> None:
    assert ratio_interval([run(100, 5)], [run(100, 5)]) is None


@pytest.mark.parametrize("seed", range(5))
def test_equal_ones_are_not_told_apart_by_pairs(seed: int) -> None:
    one = [run(100, seed=100 * seed + i) for i in range(4)]
    other = [run(100, seed=100 * seed + 50 + i) for i in range(4)]

    found = ratio_interval(one, other)

    assert found
    assert found.low < 1.01
    assert found.high > 0.99
