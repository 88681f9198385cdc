"""A search finds the optimum of a known function with few comparisons, and goes on where it was."""

import json
from collections.abc import Callable
from math import exp
from pathlib import Path
from random import Random

import pytest

from helpers.compare import Search, Space, Trial, open_study
from helpers.compare import search as search_module
from helpers.compare.search import FINAL_PAIRS, STALE, _whole_lines
from helpers.compare.space import Choice
from helpers.errors import MeasurementError, ServerError
from helpers.measure import Comparison
from helpers.measure.candidates import EARLY_STOP_RATIO
from helpers.measure.interleave import Ratio
from helpers.measure.statistics import Interval

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


def throughput(choice: Choice) -> float:
    """With an interaction: neither instances nor threads alone gain anything."""
    cores = OF_CORES[int(str(choice["instances"])), int(str(choice["threads"]))]
    delay = 0.9 if choice["max_queue_delay_us"] and not choice["preferred_batch_sizes"] else 1.0
    return 30 * OF_FORMAT[str(choice["format"])] * cores * delay


class Bench:
    """Measures that function with 2% of noise, a pair in five seconds of its own clock."""

    def __init__(self, throughput: Callable[[Choice], float] = throughput) -> None:
        self.throughput, self.random, self.now = throughput, Random(0), 0.0
        self.compared: list[Choice] = []
        self.latency_ms: Callable[[Choice], float] = lambda choice: 50.0
        self.fault: Callable[[Choice], str] = lambda choice: ""

    def compare(
        self, first: Choice, second: Choice, pairs: int, is_race: bool = True
    ) -> Comparison:
        self.compared.append(second)
        right = self.throughput(second) / self.throughput(first)
        ratio = right * exp(self.random.gauss(0, 0.01))
        done = 1 if is_race and ratio < EARLY_STOP_RATIO else pairs
        self.now += 3 + 5 * done
        latency = self.latency_ms(second)
        found = Ratio(ratio, Interval(ratio / 1.02, ratio * 1.02) if done > 1 else None)
        return Comparison(found, done, self.throughput(second), latency, "unconfirmed")

    def failed_check(self, choice: Choice) -> str:
        return self.fault(choice)


def search(bench: Bench, journal: Path | None = None, budget_ms: float | None = 100) -> Search:
    study = open_study(journal, "a study")
    return Search(SPACE, bench, study, budget_ms, lambda: bench.now, lambda line: None)


def test_it_finds_the_optimum_in_a_fifth_of_the_comparisons_of_a_grid() -> None:
    bench = Bench()
    tried = search(bench)

    tried.run(1e9)
    winner = tried.winner()

    best = max(map(throughput, SPACE))
    assert throughput(winner.choice) == best
    assert len(bench.compared) <= SPACE.size / 5
    assert winner.final.ratio == pytest.approx(best / throughput(SPACE.start), rel=0.05)
    assert winner.final.pairs == FINAL_PAIRS
    assert all(trial.state != "faster" for trial in tried.trials[-STALE:])


@pytest.mark.parametrize("pairs", [3, search_module.PAIRS])
def test_a_field_says_what_it_is_worth_and_goes_back_if_that_is_nothing(
    pairs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_module, "WORTH_PAIRS", pairs)
    tried = search(Bench())
    tried.run(300)

    winner = tried.winner()

    assert set(winner.why) == {
        name for name, value in winner.choice.items() if value != SPACE.start[name]
    } - {"concurrency"}
    assert {each.pairs for each in winner.why.values()} == {pairs}  # no race, which ends early
    worth = winner.why["format"]
    assert worth.ratio == pytest.approx(3, rel=0.05)
    assert worth.low
    assert worth.high
    assert worth.low < worth.ratio < worth.high
    assert {"format", "instances", "threads"} <= set(winner.why)


def test_it_ends_in_its_time_and_another_run_does_not_begin_again(tmp_path: Path) -> None:
    bench = Bench()
    tried = search(bench, tmp_path / "journal.log")
    tried.run(120)
    first = tried.trials

    again = search(bench, tmp_path / "journal.log")
    again.run(120)
    assert again.trials == first
    again.run(180)

    assert bench.now <= 180
    assert again.trials[: len(first)] == first
    assert len(again.trials) > len(first)
    choices = [json.dumps(trial.choice) for trial in again.trials]
    assert len(set(choices)) == len(choices)


def test_a_space_that_is_all_tried_ends_the_search() -> None:
    space = Space({"format": ("onnx", "int8"), "concurrency": (4,)}, SPACE.formats, {})
    bench = Bench(lambda choice: OF_FORMAT[str(choice["format"])])
    study = open_study(None, "a study")
    tried = Search(space, bench, study, None, lambda: bench.now, lambda line: None)

    tried.run(1e9)

    assert [trial.choice["format"] for trial in tried.trials] == ["onnx", "int8"]
    assert tried.winner().choice == {"format": "int8", "concurrency": 4}


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.02, 0.3, 0.62, 0.97])
def test_a_journal_that_is_cut_off_anywhere_goes_on(share: float, tmp_path: Path) -> None:
    bench = Bench()
    tried = search(bench, tmp_path / "journal.log")
    tried.run(150)
    before, journal = tried.trials, tmp_path / "journal.log"
    text = journal.read_bytes()
    journal.write_bytes(text[: int(share * len(text))])

    again = search(bench, tmp_path / "journal.log")
    kept = again.trials
    again.run(300)

    assert kept == before[: len(kept)]
    assert again.trials[0].choice == SPACE.start
    assert throughput(again.winner().choice) > 0.85 * max(map(throughput, SPACE))


def test_what_follows_a_broken_line_of_a_journal_is_left_out() -> None:
    assert _whole_lines(b'{"a":1}\n{"b"') == b'{"a":1}\n'
    assert _whole_lines(b'{"a":1}\n{"b"\n{"c":1}\n') == b'{"a":1}\n'
    assert _whole_lines(b'{"a":1}\n{"b":1}') == b'{"a":1}\n'
    assert _whole_lines(b"\x00\xff") == b""


def test_what_is_over_the_budget_never_wins() -> None:
    bench = Bench()
    bench.latency_ms = lambda choice: 150.0 if choice["format"] == "int8" else 50.0
    tried = search(bench)

    tried.run(300)

    assert {trial.state for trial in tried.trials if trial.choice["format"] == "int8"} == {
        "over budget"
    }
    assert tried.winner().choice["format"] == "openvino"


def test_an_experiment_over_the_budget_gives_way_to_one_within_it() -> None:
    bench = Bench()
    bench.latency_ms = lambda choice: 50.0 if choice["format"] == "script" else 150.0
    tried = search(bench)

    tried.run(300)

    assert tried.winner().choice["format"] == "script"


def test_what_is_over_the_budget_is_tried_with_fewer_clients() -> None:
    bench = Bench()
    bench.latency_ms = lambda choice: 20.0 * int(str(choice["concurrency"]))
    study = open_study(None, "a study")
    space = Space({**SPACE.values, "concurrency": (8, 4)}, SPACE.formats, {})
    tried = Search(space, bench, study, 100, lambda: bench.now, lambda line: None)

    tried.run(100)

    assert [trial.state for trial in tried.trials[:2]] == ["over budget", "faster"]
    assert tried.trials[1].choice == {**space.start, "concurrency": 4}
    assert tried.winner().choice["concurrency"] == 4


def test_without_any_that_keeps_the_budget_there_is_one_line() -> None:
    tried = search(Bench(), budget_ms=10)
    tried.run(100)

    with pytest.raises(MeasurementError, match=r"none of \d+ meets the latency budget"):
        tried.winner()


def test_what_is_not_faster_than_the_experiment_in_the_end_does_not_win() -> None:
    bench = Bench()
    tried = search(bench)
    tried.run(1e9)
    fastest = {**tried.winner().choice, "concurrency": 0}
    start = {**SPACE.start, "concurrency": 0}
    by_choice = {str(start): 30, str(fastest): 29}
    # by now the machine is another one, and no field can be set back alone
    bench.throughput = lambda choice: by_choice.get(str({**choice, "concurrency": 0}), 10)

    winner = tried.winner()

    assert {**winner.choice, "concurrency": 0} == start
    assert next(iter(winner.passed_over.values())).startswith("not faster than the experiment (0.9")


def test_a_winner_whose_answers_are_wrong_is_passed_over() -> None:
    bench = Bench()
    bench.fault = lambda choice: "top1 is 0.1" if choice["format"] == "int8" else ""
    tried = search(bench)
    tried.run(300)

    winner = tried.winner()

    assert winner.choice["format"] != "int8"
    assert "top1 is 0.1" in winner.passed_over.values()


def test_a_configuration_that_cannot_be_served_is_a_trial_with_the_reason() -> None:
    class Broken(Bench):
        def compare(
            self, first: Choice, second: Choice, pairs: int, is_race: bool = True
        ) -> Comparison:
            if second["format"] == "openvino":
                raise ServerError("it ended")
            return super().compare(first, second, pairs, is_race)

    tried = search(Broken())
    tried.run(300)

    failed = [trial for trial in tried.trials if trial.state == "failed"]
    assert failed
    assert {trial.reason for trial in failed} == {"it ended"}
    assert tried.winner().choice["format"] == "int8"


def test_an_experiment_that_cannot_be_served_itself_is_one_line() -> None:
    class Broken(Bench):
        def compare(self, *_: object) -> Comparison:
            raise ServerError("it ended")

    with pytest.raises(
        MeasurementError, match="The experiment itself could not be measured: it ended"
    ):
        search(Broken()).run(300)


def test_a_trial_in_words_has_its_interval() -> None:
    trial = Trial(number=1, choice={}, state="measured", against=0, ratio=1.5, low=1.4, high=1.6)

    assert trial.ratio_in_words == "1.50× (95% CI 1.40 to 1.60)"
