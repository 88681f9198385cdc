"""What a report recommends, and how formats stand beside fp32."""

from collections.abc import Iterable

from helpers.report import choices, text
from helpers.results import Results, Row
from tests.report.test_answer import report, results_of, row

LINE = "triton-notebooks serve params/cpu.yaml --model tft --experiment"


def points(*rows: Row, budget: float | None = None) -> list[choices.Choice]:
    config = report(budget=budget)
    return choices.choose(config, text.frame(config, results_of(rows)))


def offline(experiment: str, throughput: float, size: int = 8, **fields: object) -> Row:
    own = {"experiment": experiment, "batch_size": size, "scenario": "offline", "precision": "FP32"}
    return row(throughput).model_copy(
        update={**own, "p50_latency_ms": 1000 * size / throughput} | fields
    )


def test_throughput_and_latency_may_be_different_experiments() -> None:
    fastest, prompt = points(offline("slow", 50, 1), offline("fast", 200), offline("next", 100))

    assert (fastest.best_for, fastest.experiment) == ("throughput", "fast")
    assert fastest.figures == "200 samples/s, p99 20 ms: batch size 8, one client, offline"
    assert fastest.why == "Its throughput is 2 times that of the next, next."
    assert fastest.command == f"{LINE} fast"
    assert (prompt.best_for, prompt.experiment) == ("latency", "slow")
    assert prompt.why.startswith("Half of its requests take 20 ms or less")


def test_one_that_is_best_for_both_is_named_once() -> None:
    (only,) = points(offline("one", 100))

    assert only.best_for == "throughput; latency"
    assert only.why.startswith("No other experiment has a known throughput. Half of ")


def test_experiments_that_are_not_told_apart_are_said_to_be() -> None:
    fastest, *_ = points(offline("one", 100), offline("two", 99))

    assert "1.01 times that of the next, two, and the two are not told apart." in fastest.why


def test_a_budget_that_no_point_is_known_to_keep_recommends_none() -> None:
    *_, within = points(offline("one", 100), budget=30)

    assert (within.best_for, within.experiment) == ("the budget of 30 ms at p99", "")
    assert within.command == ""


def test_without_a_known_point_the_card_says_so() -> None:
    config = report()
    rows = text.frame(config, results_of([offline("one", 100, throughput_low=None)]))

    assert "No point is known well enough" in choices.card(config, rows).html


def test_without_any_row_the_card_says_so() -> None:
    config = report(budget=30)

    assert "no point is known to keep it" in choices.card(config, text.frame(config, {})).html
    assert choices.against_fp32(config, {}, text.frame(config, {})) == []


def test_a_card_escapes_what_it_shows() -> None:
    config = report()
    rows = text.frame(config, results_of([offline("<b>", 100)]))

    assert "&lt;b&gt;" in choices.card(config, rows).html
    assert "<b>" not in choices.card(config, rows).html


def against(rows: Iterable[Row]) -> list[dict[str, object]]:
    rows = list(rows)
    config = report().model_copy(update={"experiments": tuple(each.experiment for each in rows)})
    found: Results = results_of(rows)
    return [dict(each) for each in choices.against_fp32(config, found, text.frame(config, found))]


def test_formats_stand_beside_the_first_in_fp32_with_an_interval() -> None:
    plain, other, unknown = against(
        [
            offline("plain", 100),
            offline("int8", 200, precision="INT8"),
            offline("lost", 150, throughput_low=None, verdict="disturbed", reason="a neighbour"),
        ]
    )

    assert plain["times fp32"] == "1"
    # 2 times, from 200 / 1.02 over 100 * 1.02 to 200 * 1.02 over 100 / 1.02
    assert other["times fp32"] == "2.00 (1.92 to 2.08)"
    assert unknown["times fp32"] is None
    assert (unknown["verdict"], unknown["reason"]) == ("disturbed", "a neighbour")


def test_without_a_point_in_fp32_there_is_no_ratio() -> None:
    (only,) = against([offline("int8", 200, precision="INT8")])

    assert only["times fp32"] is None
    assert only["throughput"] == 200
