"""A report says what a cold cache costs, and how a repeated batch flatters."""

from typing import Any

import pytest

from helpers.report import embedding_cache as cache
from helpers.report.describe import say
from helpers.results import LookupPass, Results
from tests.report.test_answer import results_of, row


def of_store(cold_defaults: float | None, **auc: float) -> Results:
    """An experiment with both passes, and a batch size with different samples and one batch."""
    common: dict[str, Any] = {"experiment": "hps", "scenario": "offline"}
    rows = [
        row(100, **common, hit_rate=0.8),
        row(150, **common, hit_rate=1.0, repeated=True),
        row(90, **common | {"experiment": "mapped"}),
    ]
    found = results_of(rows, "dlrm")
    hit_rate = None if cold_defaults is None else 0.5
    both = [
        LookupPass(
            name=name,
            batch_size=8,
            hit_rate=hit_rate,
            default_share=share,
            scores={"auc": auc[name]},
            p50_latency_ms=2.0,
            course=((8, hit_rate, share, 2.0),),
        )
        for name, share in (("cold", cold_defaults), ("warm", cold_defaults and 0.0))
    ]
    before = found["hps"]["perf_offline"]
    measured = before.measurement.model_copy(update={"passes": tuple(both)})
    stages = {"perf_offline": before.model_copy(update={"measurement": measured})}
    return {**found, "hps": stages}


def said_of(found: Results) -> str:
    return "\n".join(cache.sentences(found))


def test_a_cold_cache_costs_accuracy_where_vectors_are_defaults() -> None:
    found = of_store(0.25, cold=0.61, warm=0.72)

    assert [each["cache"] for each in cache.passes(found)] == ["cold", "warm"]
    said = said_of(found)
    assert "25.0% of the vectors are defaults (auc 0.6100 cold, 0.7200 warm)" in said


@pytest.mark.parametrize(
    ("share", "words"),
    [(0.0, "a cold cache only costs time."), (None, "The server does not count default vectors.")],
)
def test_where_no_vector_is_known_to_be_a_default(share: float | None, words: str) -> None:
    assert words in said_of(of_store(share, cold=0.72, warm=0.72))


def test_a_repeated_batch_stands_beside_different_ones() -> None:
    found = of_store(0.0, cold=0.72, warm=0.72)

    (one,) = cache.repeated_batches(found)
    assert (one["hit rate"], one["hit rate, repeated"]) == (0.8, 1.0)
    # both are known to 1.02 times: the square root of two times that, in logarithms
    assert one["ratio"] == "1.50× (95% CI 1.46 to 1.54)"
    assert "has 1.50× the throughput of different batches" in said_of(found)
    assert "(hit rate 100.0% instead of 80.0%)" in said_of(found)
    assert "clear winner" not in said_of(found)


def test_a_row_that_failed_after_a_complete_run_has_a_throughput_and_no_hit_rate() -> None:
    found = of_store(0.0, cold=0.72, warm=0.72)
    measured = found["hps"]["perf_offline"].measurement
    assert measured
    rows = [each.model_copy(update={"hit_rate": None}) for each in measured.rows if each.repeated]
    rows += [each for each in measured.rows if not each.repeated]
    measured = measured.model_copy(update={"rows": tuple(rows)})
    stage = found["hps"]["perf_offline"].model_copy(update={"measurement": measured})

    said = said_of({"hps": {"perf_offline": stage}})
    assert "has 1.50× the throughput of different batches" in said
    assert "hit rate" not in said


def test_a_repeated_batch_that_is_not_measurably_faster_is_said_to_be_no_winner() -> None:
    found = of_store(0.0, cold=0.72, warm=0.72)
    measured = found["hps"]["perf_offline"].measurement
    assert measured
    rows = [each.model_copy(update={"throughput_low": 70.0}) for each in measured.rows]
    measured = measured.model_copy(update={"rows": tuple(rows)})
    stage = found["hps"]["perf_offline"].model_copy(update={"measurement": measured})
    alike = {"hps": {"perf_offline": stage}}

    (one,) = cache.repeated_batches(alike)
    assert one["ratio"] == "1.50× (95% CI 0.97 to 2.31)"
    assert said_of(alike).endswith("there is no clear winner.")


def test_without_a_store_nothing_is_said() -> None:
    found = results_of([row(90, experiment="mapped", scenario="offline")], "dlrm")

    assert (cache.passes(found), cache.repeated_batches(found)) == ([], [])
    assert said_of(found) == ""


def test_a_stage_shows_how_its_cache_warms_up(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = of_store(0.25, cold=0.61, warm=0.72)["hps"]["perf_offline"].measurement
    assert measured
    shown: list[Any] = []
    monkeypatch.setattr(cache, "display", lambda *each: shown.extend(each))
    drawn: list[Any] = []
    monkeypatch.setattr(cache, "picture", lambda figure, text: drawn.extend((figure, text)))

    cache.show_warmup(measured.passes)
    cache.show_warmup(())

    assert "<caption" in shown[0].html
    assert len(shown) == 2
    figure, text = drawn
    assert text == (
        "First pass over the evaluation set: hit rate 50.0%, default vectors 25.00%. Last pass: "
        "hit rate 50.0%, default vectors 0.00%. Median request latency: 2.0 ms, then 2.0 ms."
    )
    shares, times = figure.axes
    assert shares.lines[1].get_xydata().tolist() == [[0.008, 25], [0.016, 0]]
    assert times.get_ylim()[0] == 0
    unknown = say("warmup", cold=of_pass(None), warm=of_pass(None))
    assert unknown.startswith("The server reports no hit rate. Median")


def of_pass(share: float | None) -> LookupPass:
    measured = of_store(share, cold=0.6, warm=0.7)["hps"]["perf_offline"].measurement
    assert measured
    return measured.passes[0]
