"""Candidates run in a fair order, and their ratios have intervals that mean what they say."""

import numpy as np
import pytest
from scipy.stats import t, ttest_rel, tukey_hsd

from helpers.errors import MeasurementError
from helpers.measure.interleave import Race, interleave, paired_ratio
from helpers.results import Estimate

BLOCKS = (3, 3, 6)


def rounds_of(count, *options, **more):
    """The order in which three candidates run, by rounds."""
    order = []
    calls = [lambda name=name: order.append(name) for name in "ABC"]
    interleave(calls, count, *options, **more)
    return ["".join(order[at : at + 3]) for at in range(0, len(order), 3)]


def test_every_second_round_is_reversed_so_that_a_drift_cancels():
    assert rounds_of(4) == ["ABC", "CBA"] * 2
    assert rounds_of(4, lambda runs: len(runs[0]) == 2) == ["ABC", "CBA"]
    clock = iter(range(100))
    calls = [lambda: 100 * 0.99 ** next(clock)] * 2  # two equal ones on a machine that slows down
    assert paired_ratio(interleave(calls, 4), 1, 0).value == pytest.approx(1)
    drawn = rounds_of(8, random=np.random.default_rng(0))
    assert [each[::-1] for each in drawn[::2]] == drawn[1::2]
    assert len(set(drawn[::2])) > 1


def test_the_interval_of_two_is_that_of_the_paired_t_test():
    random = np.random.default_rng(0)
    figures = np.exp(random.normal([[0.0], [0.1]], 0.05, (2, 5)))

    for looks, confidence in ((1, 0.95), (2, 0.975)):
        found = paired_ratio(figures, 1, 0, looks=looks)
        right = ttest_rel(*np.log(figures)[::-1]).confidence_interval(confidence)
        assert (found.low, found.high) == pytest.approx(np.exp([*right]))
        assert paired_ratio(figures, 0, 1, looks=looks).low == pytest.approx(1 / found.high)


def test_the_intervals_of_many_are_those_of_tukeys_test_less_what_rounds_share():
    random = np.random.default_rng(0)
    own = random.normal(0, 0.05, (4, 50))
    own -= own.mean(axis=0)  # nothing of a round is left for SciPy to take as noise
    figures = np.exp(own + random.normal(0, 1, 50))

    found = paired_ratio(figures, 2, 1)

    right = tukey_hsd(*own).confidence_interval()
    reach = (right.high[2, 1] - right.low[2, 1]) / 2
    reach *= (196 / 147) ** 0.5  # by the degrees of freedom
    assert found.high / found.value == pytest.approx(np.exp(reach), rel=0.001)


def test_equal_candidates_are_told_apart_in_one_set_of_twenty():
    random, wrong = np.random.default_rng(0), 0
    for _ in range(400):
        figures = np.exp(random.normal(0, 0.05, (5, 4)) + random.normal(0, 0.5, 4))
        pairs = [(one, other) for one in range(5) for other in range(one)]
        wrong += any(paired_ratio(figures, *pair).is_significant for pair in pairs)

    assert 12 <= wrong <= 28


BOUND_NOTHING = {
    "two rounds": [[1.0, 2.0], [2.0, 3.0]],
    "not finite": [[1.0, 2.0, 3.0], [1.0, np.inf, 3.0]],
    "itself": [[1.0, 2.0, 3.0]],
}


@pytest.mark.parametrize("figures", BOUND_NOTHING.values(), ids=BOUND_NOTHING.keys())
def test_what_bounds_nothing_has_no_interval(figures):
    found = paired_ratio(figures, len(figures) - 1, 0)

    assert (found.low, found.is_significant) == (None, False)


def bursts(draw, rounds, slopes=(0.7, 0.7)):
    """Figures of 1.0 and 0.9, and the cores that others took, which cost each by its slope."""
    cores = draw.uniform(0, 1, (2, rounds))
    noise = draw.normal(0, 0.03, (2, rounds)) + draw.normal(0, 0.2, rounds)
    figures = np.array([[1.0], [0.9]]) * np.exp(noise - np.array(slopes)[:, None] * cores)
    return [*figures], [*cores]


def test_the_load_of_others_is_removed_as_by_a_regression_of_the_pairs():
    figures, cores = bursts(np.random.default_rng(5), 12, (0.9, 0.2))
    design = np.column_stack([np.ones(12), *cores])
    pairs = np.diff(np.log(figures), axis=0)[0]
    solved, residual, *_ = np.linalg.lstsq(design, pairs)
    variance = residual[0] / 9 * np.linalg.inv(design.T @ design)[0, 0]
    reach = t.ppf(0.975, 9) * np.sqrt(variance)

    found = paired_ratio(figures, 1, 0, others_cores=cores)

    right = np.exp(solved[0] + np.array([0, -reach, reach]))
    assert (found.value, found.low, found.high) == pytest.approx(right, rel=1e-4)


@pytest.mark.parametrize("slopes", [(0.7, 0.7), (0.9, 0.2)])
def test_intervals_hold_the_ratio_and_are_narrower_where_others_work_in_bursts(slopes):
    draw, held, narrower = np.random.default_rng(3), 0, 0
    for _ in range(300):
        figures, cores = bursts(draw, 12, slopes)
        found, plain = paired_ratio(figures, 1, 0, 1, cores), paired_ratio(figures, 1, 0)
        held += found.low < 0.9 < found.high
        narrower += found.high / found.low < plain.high / plain.low
    assert 273 <= held <= 297  # 285 expected
    assert narrower > 290


def test_a_load_that_is_the_same_in_all_runs_of_a_candidate_is_left_in():
    figures, _ = bursts(np.random.default_rng(1), 12)
    cores = [[0.5] * 12, [0.0] * 12]

    assert paired_ratio(figures, 1, 0, others_cores=cores) == paired_ratio(figures, 1, 0)


@pytest.mark.parametrize(("rounds", "share"), [(7, 1.0), (8, 0.05)])
def test_few_rounds_do_not_tell_the_load_of_others_and_a_quiet_machine_changes_nothing(
    rounds, share
):
    figures, cores = bursts(np.random.default_rng(1), rounds)
    cores = [share * each for each in cores]

    assert paired_ratio(figures, 1, 0, others_cores=cores) == paired_ratio(figures, 1, 0)


def test_a_ratio_reads_with_its_interval():
    found = paired_ratio([[1.0, 1.0, 1.0], [2.0, 2.1, 2.0]], 1, 0)

    assert Estimate(value=1.5).times == "1.50×"
    assert found.times == "2.03× (95% CI 1.90 to 2.18)"


def raced(speeds, seed, noise=0.02, keep=()):
    """Race planted speeds beside a load that takes a quarter of the machine in bursts."""
    random = np.random.default_rng(seed)
    clock, ends, is_busy = 0.0, 0.0, False

    def run(speed):
        nonlocal clock, ends, is_busy
        clock += 1.2
        while ends < clock:
            ends, is_busy = ends + random.exponential(2.0), not is_busy
        return speed * (0.75 if is_busy else 1.0) * float(random.lognormal(0, noise))

    race = Race(float, len(BLOCKS), {})
    race.run({name: lambda v=v: run(v) for name, v in speeds.items()}, BLOCKS, keep)
    return race


def test_a_race_ranks_planted_speeds_beside_bursts_in_nineteen_of_twenty():
    right = 0
    for seed in range(100):
        race = raced({"a": 1.0, "b": 0.9, "c": 0.7}, seed, keep=("c",))
        ranked = sorted(race.runs, key=lambda name: -race.ratio(name, "c").value)
        right += ranked == ["a", "b", "c"]

    assert right >= 95


def test_equal_speeds_beside_bursts_are_told_apart_in_one_of_twenty_at_most():
    races = [raced({"a": 1.0, "b": 1.0}, seed) for seed in range(200)]

    assert sum(race.ratio("a", "b").is_significant for race in races) <= 10


def test_the_fastest_is_so_without_the_load_of_others():
    """The slower one had a quieter machine by chance."""
    draw = np.random.default_rng(2)
    cores = {"a": draw.uniform(0.5, 1, 12), "b": draw.uniform(0, 0.5, 12)}
    runs = {
        name: [(speed * np.exp(draw.normal(0, 0.01) - 0.7 * used), used) for used in cores[name]]
        for name, speed in (("a", 1.0), ("b", 0.9))
    }
    race = Race(lambda run: run[0], 1, runs, lambda run: run[1])

    assert np.mean(race.figures("a")) < np.mean(race.figures("b"))
    assert race.fastest == "a"
    assert Race(lambda run: run[0], 1, runs).fastest == "b"


def test_clear_losers_are_dropped_early_and_close_ones_run_on():
    race = raced({"slow": 0.3, "a": 1.0, "b": 0.99, "base": 0.2}, 0, 0.01, keep=("base",))

    rounds = {name: len(runs) for name, runs in race.runs.items()}
    assert rounds["slow"] in (BLOCKS[0], sum(BLOCKS[:2]))
    assert rounds["a"] == rounds["b"] == rounds["base"] == sum(BLOCKS)
    assert race.fastest in ("a", "b")


def test_a_race_that_is_decided_and_known_ends():
    speeds, race = iter(np.linspace(1, 1.01, 100)), Race(float, len(BLOCKS), {})

    race.run({"a": lambda: 2.0 * next(speeds), "b": lambda: float(next(speeds))}, BLOCKS)

    assert [len(runs) for runs in race.runs.values()] == [BLOCKS[0]] * 2
    assert race.ratio("a", "b").value == pytest.approx(2, rel=0.01)


def test_a_candidate_that_fails_leaves_the_race_and_the_others_go_on():
    calls = iter(range(100))

    def dies():
        if next(calls) == 2:
            raise MeasurementError("it ended")
        return 1.0

    race = Race(float, 1, {})
    race.run({"a": dies, "b": lambda: 1.0, "c": lambda: 1.1}, (4,))

    assert {name: len(runs) for name, runs in race.runs.items()} == {"b": 4, "c": 4}
    assert str(race.failures["a"]) == "it ended"
