"""What a report recommends, and how formats compare with fp32."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from helpers.report import Answer, analysis, answers_of, recommend, tables
from helpers.report.answers import Recommendation, facts
from helpers.results import Result, Results, Row, Score
from helpers.store import OUTPUTS_VARIABLE
from tests.report.test_answer import kept, report, results_of, row, with_clients

RATIO = "compared with fp32"
LINE = "triton-notebooks serve params/cpu.yaml --model tft --experiment"


def points(*rows: Row, budget: float | None = None) -> tuple[Recommendation, ...]:
    (answer,) = answers(*rows, budget=budget)
    return answer.choices


def answers(*rows: Row, budget: float | None = None) -> tuple[Answer, ...]:
    config, found = report(budget=budget), results_of(rows)
    return recommend.choose(config, found, analysis.frame(config, found))


def offline(experiment: str, throughput: float, size: int = 8, **fields: object) -> Row:
    own = {"experiment": experiment, "batch_size": size, "scenario": "offline", "precision": "FP32"}
    return row(throughput).model_copy(
        update={**own, "p50_latency_ms": 1000 * size / throughput} | fields
    )


def test_throughput_and_latency_may_be_different_experiments() -> None:
    small = offline("slow", 50, 1), offline("fast", 40, 1)
    fastest, prompt = points(*small, offline("fast", 200), offline("next", 100))

    assert (fastest.best, fastest.experiment) == ("for throughput", "fast")
    assert fastest.figures == (
        "200 samples/s, p99 20 ms: batch size 8, 1 client, offline; accuracy not checked"
    )
    assert fastest.why == "2.00× the throughput of the next, next."
    assert fastest.command == f"{LINE} fast"
    assert (prompt.best, prompt.experiment) == ("for latency at batch size 1", "slow")
    assert prompt.why == "Its p50 of 20 ms is the lowest of 2 experiments at this batch size."


def test_latency_is_compared_at_a_batch_size_that_several_experiments_have() -> None:
    alone, both = offline("one", 100, 1), [offline("one", 200), offline("two", 300)]

    *_, prompt = points(alone, *both)
    *_, only = points(alone)

    assert (prompt.best, prompt.experiment) == (
        "for throughput, for latency at batch size 8",
        "two",
    )
    assert only.why.endswith(
        "Its p50 is 10 ms. No other experiment was measured at this batch size."
    )


def test_one_that_is_best_for_both_is_named_once() -> None:
    (only,) = points(offline("one", 100))

    assert only.best == "for throughput, for latency at batch size 8"
    assert only.why.startswith("No other experiment has a known throughput. Its p50 is 80 ms.")


def test_experiments_without_a_clear_winner_are_said_to_be() -> None:
    fastest, *_ = points(offline("one", 100), offline("two", 99))

    assert fastest.why.startswith(
        "1.01× the throughput of the next, two. No clear winner: the 95% CIs overlap."
    )


def test_a_budget_that_no_point_is_known_to_keep_recommends_another() -> None:
    (answer,) = answers(offline("one", 100), budget=30)

    *_, within = answer.choices
    assert (within.best, within.experiment) == ("within 30 ms (p99)", "")
    assert (within.command, within.figures) == ("", "not confirmed")
    assert within.why == "No online throughput is known."
    assert answer.recommended == answer.choices[0]
    assert answer.recommended.experiment == "one"


def test_a_budget_that_is_not_confirmed_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OUTPUTS_VARIABLE, str(tmp_path))
    rows = with_clients(1, 2)
    kept(tmp_path, rows, {1: [1.0] * 100, 2: [100.0] * 400})
    config = report(budget=30.0)

    def why(*chosen: Row) -> str:
        found = results_of(chosen)
        (answer,) = recommend.choose(config, found, analysis.frame(config, found))
        return answer.choices[-1].why

    assert why(*rows) == (
        "Not enough requests to confirm: onnx has 100 of at least 368."  # 20 ms in its row
    )
    slow = rows[1].model_copy(update={"p99_latency_ms": 100.0})
    assert why(slow) == "The lowest p99 is 100 ms (onnx), the budget 30 ms."


def test_what_keeps_the_budget_is_recommended_before_what_is_fastest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OUTPUTS_VARIABLE, str(tmp_path))
    slow = row(100, experiment="onnx", source="onnx/perf_online.json", concurrency=1)
    kept(tmp_path, [slow], {1: [1.0] * 400})
    config, found = report(budget=5.0), results_of([slow, offline("fast", 300)])

    (answer,) = recommend.choose(config, found, analysis.frame(config, found))

    assert [each.best for each in answer.choices] == [
        "within 5 ms (p99)",
        "for throughput, for latency at batch size 8",
    ]
    assert answer.recommended
    assert answer.recommended.experiment == "onnx"
    assert answer.throughputs == {"onnx": 100.0, "fast": 300.0}


def test_workloads_are_answered_apart() -> None:
    found = answers(
        row(100, experiment="e", variant="electricity"), row(50, experiment="t", variant="traffic")
    )

    assert [(each.workload, each.throughputs) for each in found] == [
        ("electricity", {"e": 100.0}),
        ("traffic", {"t": 50.0}),
    ]
    assert "traffic: Best for throughput" in recommend.cards(found).html


def test_a_choice_says_whether_accuracy_is_kept() -> None:
    found = results_of([offline("one", 100)])
    score = Score(metric="top-1", framework=0.9, served=0.9, bound=0.89, better="higher")
    for served, said in ((0.9, "kept"), (0.5, "not kept")):
        scores = (score.model_copy(update={"served": served}),)
        deploy = Result(
            model="tft", experiment="one", stage="deploy", gpu="", state="done", scores=scores
        )
        stages = {"one": {**found["one"], "deploy": deploy}}
        (answer,) = recommend.choose(report(), stages, analysis.frame(report(), stages))
        assert answer.choices[0].accuracy == said


def test_a_report_keeps_its_answers_as_they_are() -> None:
    found = answers(offline("one", 100), offline("two", 50, p50_latency_ms=1.0), budget=30)
    report = Result(
        model="tft", experiment="", stage="report", gpu="", state="done", facts=facts(found)
    )

    assert answers_of(Result.model_validate_json(report.model_dump_json())) == found
    assert answers_of(report.model_copy(update={"facts": {"answers": [{"old": 1}]}})) == ()
    assert answers_of(report.model_copy(update={"facts": {}})) == answers_of(None) == ()


def test_without_a_known_point_the_card_says_so() -> None:
    assert "No throughput is known well enough" in recommend.cards(answers(lost())).html


def lost() -> Row:
    return offline("one", 100, throughput_low=None)


def test_without_any_row_the_card_says_so() -> None:
    config = report(budget=30)

    assert "not confirmed" in recommend.cards(answers(budget=30)).html
    assert tables.against_fp32(config, {}, analysis.frame(config, {})) == []


def test_a_card_escapes_what_it_shows() -> None:
    shown = recommend.cards(answers(offline("<b>", 100))).html

    assert "&lt;b&gt;" in shown
    assert "<b>" not in shown


def against(rows: Iterable[Row]) -> list[dict[str, object]]:
    rows = list(rows)
    config = report().model_copy(update={"experiments": tuple(each.experiment for each in rows)})
    found: Results = results_of(rows)
    return [
        dict(each) for each in tables.against_fp32(config, found, analysis.frame(config, found))
    ]


def test_formats_are_compared_with_the_first_in_fp32_with_an_interval() -> None:
    plain, other, unknown = against(
        [
            offline("plain", 100),
            offline("int8", 200, precision="INT8"),
            offline("lost", 150, throughput_low=None, quality="noisy", reason="a neighbour"),
        ]
    )

    assert plain[RATIO] == "1.00×"
    # both are known to 1.02 times: the square root of two times that, in logarithms
    assert other[RATIO] == "2.00× (95% CI 1.94 to 2.06)"
    assert unknown[RATIO] is None
    assert (unknown["quality"], unknown["reason"]) == ("noisy", "a neighbour")


def test_without_a_point_in_fp32_there_is_no_ratio() -> None:
    (only,) = against([offline("int8", 200, precision="INT8")])

    assert only[RATIO] is None
    assert only["throughput"] == 200
