"""A search finds the optimum of a known function with few comparisons, and goes on where it was."""

import json
from itertools import product
from math import exp
from random import Random

import pytest

from helpers.compare import search as search_module
from helpers.compare.evaluation import Tuning
from helpers.compare.search import FINAL_PAIRS, STALE, Search, Trial, in_words, open_study
from helpers.compare.space import Space
from helpers.config import BoundFields
from helpers.errors import MeasurementError, ServerError
from helpers.measure import Comparison
from helpers.measure.candidates import EARLY_STOP_RATIO
from helpers.measure.statistics import Interval
from helpers.results import Estimate

SPACE = Space(
    values={
        "format": ("onnx", "openvino", "int8", "script"),
        "instances": (1, 2),
        "threads": (2, 1),
        "preferred_batch_sizes": ([4, 8], []),
        "max_queue_delay_us": (1000, 0),
        "concurrency": (4, 8),
    },
    formats={name: {"format": name} for name in ("onnx", "openvino", "int8", "script")},
    excluded={},
)
OF_FORMAT = {"onnx": 1.0, "openvino": 1.1, "int8": 3.0, "script": 0.7}
OF_CORES = {(1, 1): 0.6, (1, 2): 1.0, (2, 1): 1.12, (2, 2): 0.85}


def throughput(choice):
    """With an interaction: neither instances nor threads alone gain anything."""
    cores = OF_CORES[choice["instances"], choice["threads"]]
    delay = 0.9 if choice["max_queue_delay_us"] and not choice["preferred_batch_sizes"] else 1.0
    return 30 * OF_FORMAT[choice["format"]] * cores * delay


def highest():
    each = product(*SPACE.values.values())
    return max(throughput(dict(zip(SPACE.values, values, strict=True))) for values in each)


class Bench:
    """Measures that function with 2% of noise, a pair in five seconds of its own clock."""

    def __init__(self, throughput=throughput, latency_ms=None, memory_mb=None, fault=None):
        self.throughput, self.random, self.now = throughput, Random(0), 0.0
        self.compared = []
        self.latency_ms = latency_ms or (lambda choice: 50.0)
        self.memory_mb = memory_mb or (lambda choice: 500.0)
        self.failed_check = fault or (lambda choice: "")

    def compare(self, first, second, pairs, is_race=True):
        self.compared.append(second)
        right = self.throughput(second) / self.throughput(first)
        ratio = right * exp(self.random.gauss(0, 0.01))
        done = 1 if is_race and ratio < EARLY_STOP_RATIO else pairs
        self.now += 3 + 5 * done

        def bounded(value):
            return Interval(value / 1.02, value * 1.02) if done > 1 else None

        rate = self.throughput(second)
        told = Estimate.of(ratio, bounded(ratio)), done, rate, self.latency_ms(second)
        more = {"throughput_interval": bounded(rate), "peak_memory_mb": self.memory_mb(second)}
        return Comparison(*told, "unconfirmed", **more)


def by_format(usual, **others):
    return lambda choice: others.get(choice["format"], usual)


def search(bench, seconds=300, journal=None, budget_ms=100, space=SPACE, **bounds):
    study, limits = open_study(journal, "a study"), BoundFields(**bounds)
    tried = Search(space, bench, study, budget_ms, lambda: bench.now, lambda line: None, limits)
    tried.run(seconds)
    return tried


def test_it_finds_the_optimum_in_a_fifth_of_the_comparisons_of_a_grid():
    bench = Bench()
    tried = search(bench, 1e9)

    winner = tried.winner()

    best = highest()
    assert throughput(winner.choice) == best
    assert len(bench.compared) <= SPACE.size / 5
    assert winner.final.ratio == pytest.approx(best / throughput(SPACE.start), rel=0.05)
    assert winner.final.pairs == FINAL_PAIRS
    assert all(trial.state != "faster" for trial in tried.trials[-STALE:])


@pytest.mark.parametrize("pairs", [3, search_module.PAIRS])
def test_a_field_says_what_it_is_worth_and_goes_back_if_that_is_nothing(pairs, monkeypatch):
    monkeypatch.setattr(search_module, "WORTH_PAIRS", pairs)
    winner = search(Bench()).winner()

    changed = {name for name, value in winner.choice.items() if value != SPACE.start[name]}
    assert {"format", "instances", "threads"} <= set(winner.why) == changed - {"concurrency"}
    assert {each.pairs for each in winner.why.values()} == {pairs}  # no race, which ends early
    worth = winner.why["format"]
    assert worth.ratio == pytest.approx(3, rel=0.05)
    assert worth.low < worth.ratio < worth.high


def test_it_ends_in_its_time_and_another_run_does_not_begin_again(tmp_path):
    bench = Bench()
    first = search(bench, 120, tmp_path / "journal.log").trials

    assert search(bench, 120, tmp_path / "journal.log").trials == first
    again = search(bench, 180, tmp_path / "journal.log").trials

    assert bench.now <= 180
    assert again[: len(first)] == first
    assert len(again) > len(first)
    choices = {json.dumps(trial.choice) for trial in again}
    assert len(choices) == len(again)


def test_a_space_that_is_all_tried_ends_the_search():
    space = Space({"format": ("onnx", "int8"), "concurrency": (4,)}, SPACE.formats, {})
    bench = Bench(lambda choice: OF_FORMAT[choice["format"]])

    tried = search(bench, 1e9, None, None, space)

    assert [trial.choice["format"] for trial in tried.trials] == ["onnx", "int8"]
    assert tried.winner().choice == {"format": "int8", "concurrency": 4}


@pytest.mark.parametrize("share", [0.02, 0.3, 0.97])
def test_a_journal_that_is_cut_off_anywhere_goes_on(share, tmp_path):
    bench, journal = Bench(), tmp_path / "journal.log"
    before = search(bench, 150, journal).trials
    text = journal.read_bytes()
    journal.write_bytes(text[: int(share * len(text))])

    kept = search(bench, -1, journal).trials  # without time for another
    again = search(bench, 300, journal)

    assert kept == before[: len(kept)]
    assert again.trials[0].choice == SPACE.start
    assert throughput(again.winner().choice) > 0.85 * highest()


def test_what_follows_a_broken_line_of_a_journal_is_left_out():
    for broken in (b'{"b"', b'{"b"\n{"c":1}\n', b'{"b":1}', b"\x00\xff"):
        assert search_module._whole_lines(b'{"a":1}\n' + broken) == b'{"a":1}\n'


HEAVY = "the server uses 912 MB, max_memory_mb is 800"
SLOW = "p99 is 150 ms, over the latency budget"
LIMITS = [("latency_ms", 50.0, 150.0, SLOW), ("memory_mb", 500.0, 912.0, HEAVY)]


over_a_limit = pytest.mark.parametrize(("figure", "low", "high", "reason"), LIMITS)


@over_a_limit
def test_what_is_over_a_limit_never_wins_and_says_why(figure, low, high, reason):
    tried = search(Bench(**{figure: by_format(low, int8=high)}), max_memory_mb=800)

    over = [trial for trial in tried.trials if trial.choice["format"] == "int8"]
    assert {(trial.state, trial.reason) for trial in over} == {("over budget", reason)}
    assert in_words(over[0]).endswith(f"trial 0, {reason}, over budget")
    winner = tried.winner()
    assert winner.choice["format"] == "openvino"
    assert winner.final.peak_memory_mb == 500


@over_a_limit
def test_an_experiment_over_a_limit_gives_way_to_one_within_it(figure, low, high, reason):
    tried = search(Bench(**{figure: by_format(high, script=low)}), max_memory_mb=800)

    assert tried.winner().choice["format"] == "script"


@over_a_limit
def test_without_any_within_the_limits_there_is_one_line(figure, low, high, reason):
    tried = search(Bench(**{figure: by_format(high)}), 100, max_memory_mb=800)

    line = rf"none of \d+ is within the limits. Trial 0: {reason}$"
    with pytest.raises(MeasurementError, match=line):
        tried.winner()


def test_what_is_over_the_budget_is_tried_with_fewer_clients():
    space = Space({**SPACE.values, "concurrency": (8, 4)}, SPACE.formats, {})
    tried = search(Bench(latency_ms=lambda choice: 20.0 * choice["concurrency"]), 100, space=space)

    assert [trial.state for trial in tried.trials[:2]] == ["over budget", "faster"]
    assert tried.trials[1].choice == {**space.start, "concurrency": 4}
    assert tried.winner().choice["concurrency"] == 4


def test_memory_that_is_not_measured_excludes_nothing():
    tried = search(Bench(memory_mb=lambda choice: None), max_memory_mb=100)

    assert tried.winner().choice["format"] == "int8"


def test_a_price_changes_no_choice_and_gives_each_trial_its_cost():
    free, tried = search(Bench()), search(Bench(), price_per_hour=3.6)

    winner = tried.winner()

    assert winner.choice == free.winner().choice
    assert free.trials[0].cost == ""
    for trial in [*tried.trials, winner.final]:
        cost, right = trial.cost_per_million, 1000 / trial.throughput
        assert cost.value == pytest.approx(right)
        if trial.pairs > 1:
            assert (cost.low, cost.high) == pytest.approx((right / 1.02, right * 1.02))
    tuning = Tuning(tuple(tried.trials), winner, (), (), {})
    costs = [row["cost_per_million"] for row in tuning.rows()]
    assert costs == [trial.cost for trial in tried.trials]
    assert f", {winner.final.cost} per million inferences, " in tuning.headline


def test_what_is_known_to_cost_more_than_the_bound_does_not_win():
    best_cost, bench = 1000 / highest(), Bench()
    priced = {"price_per_hour": 3.6, "max_cost_per_million": best_cost / 1.01}
    assert throughput(search(Bench(), 1e9, **priced).winner().choice) == highest()

    priced["max_cost_per_million"] = best_cost / 1.03
    over = search(bench, 1e9, **priced)
    compared = len(bench.compared)
    with pytest.raises(MeasurementError, match=rf"cost per million is {best_cost:.4g} \(95% CI "):
        over.winner()
    assert len(bench.compared) == compared  # nothing is measured for it


def test_what_is_over_a_limit_in_the_end_is_passed_over():
    bench = Bench()
    tried = search(bench, max_memory_mb=800)
    bench.memory_mb = by_format(500.0, int8=912.0)
    winner = tried.winner()

    assert winner.choice["format"] != "int8"
    assert set(winner.passed_over.values()) == {HEAVY}


def test_what_costs_too_much_in_the_end_is_passed_over():
    bench = Bench()
    tried = search(bench, price_per_hour=3.6, max_cost_per_million=15)
    bench.throughput = lambda choice: throughput(choice) / 2  # the machine is slower by now

    with pytest.raises(MeasurementError, match=r"cost per million is .*, max_cost_per_million"):
        tried.winner()


def test_what_is_not_faster_than_the_experiment_in_the_end_does_not_win():
    bench = Bench()
    tried = search(bench, 1e9)
    fastest = {**tried.winner().choice, "concurrency": 0}
    start = {**SPACE.start, "concurrency": 0}
    by_choice = {str(start): 30, str(fastest): 29}
    # by now the machine is another one, and no field can be set back alone
    bench.throughput = lambda choice: by_choice.get(str({**choice, "concurrency": 0}), 10)

    winner = tried.winner()

    assert {**winner.choice, "concurrency": 0} == start
    assert next(iter(winner.passed_over.values())).startswith("not faster than the experiment (0.9")


def test_a_winner_whose_answers_are_wrong_is_passed_over():
    winner = search(Bench(fault=by_format("", int8="top1 is 0.1"))).winner()

    assert winner.choice["format"] != "int8"
    assert "top1 is 0.1" in winner.passed_over.values()


def dying(names):
    """A throughput; the servers of these formats end."""

    def measure(choice):
        if choice["format"] in names:
            raise ServerError("it ended")
        return throughput(choice)

    return measure


def test_a_configuration_that_cannot_be_served_is_a_trial_with_the_reason():
    tried = search(Bench(dying(["openvino"])))

    failed = [trial for trial in tried.trials if trial.state == "failed"]
    assert {trial.reason for trial in failed} == {"it ended"}
    assert tried.winner().choice["format"] == "int8"


def test_an_experiment_that_cannot_be_served_itself_is_one_line():
    with pytest.raises(MeasurementError, match="experiment itself could not be measured: it ended"):
        search(Bench(dying(OF_FORMAT)))


def test_a_trial_in_words_has_its_interval():
    trial = Trial(number=1, choice={}, state="measured", against=0, ratio=1.5, low=1.4, high=1.6)

    assert trial.ratio_in_words == "1.50× (95% CI 1.40 to 1.60)"
