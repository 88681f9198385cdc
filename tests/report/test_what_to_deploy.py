"""The first screen of a report: what to deploy, from the comparison of all experiments."""

import pytest

from helpers.report import Answer, answer, answers_of, text
from helpers.results import Estimate, Score
from helpers.store import outputs
from tests.comparisons import TOO_SLOW, UNCONFIRMED, check, compared
from tests.report import builders
from tests.report.builders import Page, parity, report

SPEEDS = {"plain": 1.0, "int8": 3.6}
MATCH = "predictions match in 100% of 160 samples"
DAY = "2025-01-02"


def result(stage, **fields):
    return builders.result(stage, **{"experiment": "", "finished": DAY} | fields)


def deployed(served=1.0, samples=160, difference=0.0, **more):
    score = Score(metric="match_rate", framework=1.0, served=served, bound=0.9, better="higher")
    load = parity(difference).model_copy(update={"samples": samples})
    return result("deploy", scores=(score,), checks=(load,), **more)


def answered(found, **more):
    return Answer(found, deployed=dict.fromkeys(SPEEDS, deployed()) | more, finished=DAY)


def changed(found, name, **fields):
    experiments = (
        one.model_copy(update=fields) if one.experiment == name else one
        for one in found.experiments
    )
    return found.model_copy(update={"experiments": tuple(experiments)})


def shown(found, config=None):
    return Page(text.what_to_deploy(config or report(), [found]).html).text


def figures(found):
    return [(card.experiment, card.figure) for card in found.cards]


def test_one_sentence_says_what_to_deploy_and_three_cards_why():
    found = answered(compared(200, {"int8": check(), "plain": TOO_SLOW}, **SPEEDS))

    assert found.sentence == (
        "Deploy int8: 3.60× as fast as plain (95% CI 3.50 to 3.71), p99 55 ms with 4 clients, "
        f"below the budget of 200 ms with 95% confidence; {MATCH}."
    )
    assert [(each.title, each.compared) for each in found.cards] == [
        ("Throughput: 4 clients, batch size 1", "3.60× as fast as plain (95% CI 3.50 to 3.71)."),
        ("Single requests: 1 client, batch size 1", "plain: p50 10 ms (95% CI 9.71 to 10.3)."),
        ("Within 200 ms at p99", "plain: too slow: p99 is 241 ms with 4 clients"),
    ]
    assert figures(found) == [
        ("int8", "360 samples/s (95% CI 350 to 371)"),
        ("int8", "p50 2.78 ms (95% CI 2.7 to 2.86), p90 3.06 ms (95% CI 2.97 to 3.15)"),
        ("int8", "p99 is 55 ms with 4 clients: within the budget of 200 ms (1,000 requests)"),
    ]
    assert shown(found).endswith(
        "triton-notebooks serve params/cpu.yaml --model tft --experiment int8"
    )


def test_where_all_are_too_slow_no_line_serves_one_and_each_p99_is_named():
    found = answered(compared(200, dict.fromkeys(SPEEDS, TOO_SLOW), **SPEEDS))

    assert found.sentence == "No experiment meets the budget of 200 ms at p99."
    assert list(found.remarks(200)) == [
        "int8 is 3.60× as fast as plain, but too slow: p99 is 241 ms with 4 clients.",
        "plain is the baseline, but too slow: p99 is 241 ms with 4 clients.",
    ]
    assert figures(found)[2] == ("all are too slow", "")
    assert "triton-notebooks serve" not in shown(found)


UNSURE = "not confirmed: 60 of 368 requests with 4 clients"


@pytest.mark.parametrize(
    ("states", "reason"),
    [
        ({"int8": TOO_SLOW}, "too slow: p99 is 241 ms with 4 clients"),
        ({"int8": UNCONFIRMED}, UNSURE),
        ({}, "its p99 was not measured"),
    ],
)
def test_a_faster_experiment_that_is_not_chosen_is_named_with_the_reason(states, reason):
    found = answered(compared(200, {"plain": check()} | states, **SPEEDS))

    assert list(found.remarks(200)) == [f"int8 is 3.60× as fast as plain, but {reason}."]


def test_experiments_that_may_be_as_fast_are_named_and_nothing_is_called_fastest():
    near = answered(compared(plain=1.0, int8=1.02, slow=0.5))
    far = answered(compared(**SPEEDS))

    assert "160 samples. No significant difference from plain. Throughput" in shown(near)
    assert [card.compared for card in near.cards[:2]] == [
        "1.02× as fast as plain (95% CI 0.99 to 1.05). No significant difference from plain.",
        "plain: p50 10 ms (95% CI 9.71 to 10.3). No clear difference from plain.",
    ]
    assert "significant" not in shown(far)
    assert "fastest" not in (shown(near) + shown(far)).lower()


@pytest.mark.parametrize(
    ("budget_ms", "states", "card"),
    [
        (None, {}, ("not set", "")),
        (200, {}, ("not measured", "")),
        (200, {"int8": UNCONFIRMED}, ("int8", UNSURE)),
    ],
)
def test_the_third_card_tells_apart_what_was_not_measured_or_confirmed(budget_ms, states, card):
    assert figures(answered(compared(budget_ms, states, **SPEEDS)))[2] == card


def test_the_baseline_is_compared_with_the_other_if_it_is_the_best():
    cards = answered(compared(plain=1.0, int8=0.98, slow=0.5)).cards[:2]

    assert {each.experiment for each in cards} == {"plain"}
    assert [each.compared for each in cards] == [
        "No other experiment is known to be faster. No significant difference from int8.",
        "int8: p50 10.2 ms (95% CI 9.91 to 10.5). No clear difference from int8.",
    ]


def test_a_latency_without_an_interval_is_not_called_near_the_best():
    slow = changed(compared(**SPEEDS), "plain", p50_latency_ms=Estimate(value=70.0))
    unknown = changed(changed(slow, "plain", p50_latency_ms=None), "int8", p50_latency_ms=None)

    card = answered(slow).cards[1]
    assert (card.experiment, card.compared) == ("int8", "plain: p50 70 ms.")
    assert figures(answered(unknown))[1] == ("not measured", "")


def test_what_has_no_throughput_or_is_over_a_bound_is_left_out_with_its_reason():
    one = answered(compared(plain=1.0, int8="its server ended"))
    over = answered(changed(compared(**SPEEDS), "int8", reason="its server takes 900 MB"))
    none = answered(compared(plain="no memory", int8="its server ended"))

    for found, reason in ((one, "its server ended"), (over, "its server takes 900 MB")):
        assert found.sentence.startswith("Deploy plain: no other experiment was measured;")
        assert list(found.remarks(None)) == [f"Left out: int8 ({reason})."]
        assert [card.experiment for card in found.cards] == ["plain", "plain", "not set"]
    assert (none.sentence, none.cards) == ("Nothing can be deployed.", ())
    assert "plain (no memory); int8 (its server ended)" in shown(none)


def test_a_reader_with_another_budget_and_a_later_deployment_are_told_of():
    found = answered(compared(200, {"int8": check()}, **SPEEDS))
    unlimited = answered(compared(**SPEEDS), int8=deployed(finished="2025-01-03"))

    assert list(found.remarks(200)) == []
    here = "Measured with the budget of 200 ms; here"
    assert f"{here} a budget of 50 ms applies." in shown(found, report(budget=50))
    assert list(found.remarks(None)) == [f"{here} no budget applies."]
    again = "Deployed again since this was measured: int8."
    assert list(unlimited.remarks(None)) == [again]
    other = "Measured with no budget; here a budget of 50 ms applies."
    assert list(unlimited.remarks(50)) == [other, again]


NOT_COMPARED = "predictions were not compared"


@pytest.mark.parametrize(
    ("deploy", "matches", "accuracy"),
    [
        (deployed(159 / 160), "predictions match in 99.3% of 160 samples", "kept"),
        (deployed(0.99996, samples=64), "match rate 99.9% (64 samples)", "kept"),
        (deployed(0.5), "predictions match in 50% of 160 samples", "not kept"),
        (deployed(difference=2.0), MATCH, "not kept"),
        (result("deploy"), NOT_COMPARED, "not checked"),
        (None, NOT_COMPARED, "not checked"),
    ],
)
def test_matching_predictions_are_never_rounded_up_and_accuracy_is_kept_or_not(
    deploy, matches, accuracy
):
    found = Answer(compared(plain=1.0), deployed={"plain": deploy} if deploy else {})

    assert found.sentence.rpartition("; ")[2] == f"{matches}."
    assert (found.accuracy, Answer().accuracy) == (accuracy, "not checked")


def write(folder, found):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{found.stage}.json").write_text(found.model_dump_json())


def test_answers_are_read_from_the_results_of_a_model():
    config, folder = report(), outputs() / "cpu/tft"
    small = compared(plain=1.0, int8=3.6).model_copy(update={"workload": "small"})

    assert answers_of(folder) == (Answer(),)
    write(folder, result("compare", comparisons=(small, compared(other=1.0))))
    write(folder / "int8", deployed())

    first, second = answer.of_model(config)
    assert first == Answer(small, "", {"int8": deployed()}, DAY)
    assert second.sentence.endswith(f"; {NOT_COMPARED}.")
    html = text.what_to_deploy(config, [first, second]).html
    assert "small: Deploy int8:" in Page(html).text
    assert html.count("--experiment") == 2
    assert answer.headline([first, second]).startswith("small: Deploy int8: 3.60×")


@pytest.mark.parametrize(("state", "said"), [("failed", "failed"), ("skipped", "is skipped")])
def test_without_a_comparison_nothing_is_recommended_and_the_reason_is_said(state, said, tmp_path):
    write(tmp_path / "tft", result("compare", state=state, reason="No server."))

    (found,) = answers_of(tmp_path / "tft")

    assert found.sentence == shown(found) == f"Not measured: the stage compare {said}: No server."
    assert answer.headline([found]) == "Not measured"
    assert Answer().sentence == "Not measured: the stage compare has not run."


def test_what_is_shown_is_escaped():
    found = compared(200, {"<b>plain": TOO_SLOW}, **{"<b>plain": 1.0, "<b>other": "<i>died</i>"})
    hostile = found.model_copy(update={"workload": "<u>"})

    html = text.what_to_deploy(report(), [answered(hostile)]).html

    assert "&lt;b&gt;plain" in html
    assert not {"<b>", "<i>", "<u>"} & {f"<{tag}>" for tag, _ in Page(html).tags}
