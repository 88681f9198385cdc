"""A report says what a cold cache costs, and how a repeated batch flatters."""

from typing import Any

import pytest

from helpers.report import stores
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


def test_a_cold_cache_costs_accuracy_where_vectors_are_defaults() -> None:
    found = of_store(0.25, cold=0.61, warm=0.72)

    assert [each["cache"] for each in stores.passes(found)] == ["cold", "warm"]
    said = stores.in_words(found)
    assert "25.0% of the vectors are defaults (auc 0.6100 cold, 0.7200 warm)" in said


@pytest.mark.parametrize(
    ("share", "words"),
    [(0.0, "a cold cache only costs time."), (None, "The server does not count default vectors.")],
)
def test_where_no_vector_is_known_to_be_a_default(share: float | None, words: str) -> None:
    assert words in stores.in_words(of_store(share, cold=0.72, warm=0.72))


def test_a_repeated_batch_stands_beside_different_ones() -> None:
    found = of_store(0.0, cold=0.72, warm=0.72)

    (one,) = stores.repeated_batches(found)
    assert (one["ratio"], one["hit rate"], one["hit rate, repeated"]) == (1.5, 0.8, 1.0)
    assert "has 1.50× the throughput of different batches" in stores.in_words(found)
    assert "(hit rate 100.0% instead of 80.0%)" in stores.in_words(found)
    assert one["95% CIs"] == "do not overlap"
    assert "clear winner" not in stores.in_words(found)


def test_a_row_that_failed_after_a_complete_run_has_a_throughput_and_no_hit_rate() -> None:
    found = of_store(0.0, cold=0.72, warm=0.72)
    measured = found["hps"]["perf_offline"].measurement
    assert measured
    rows = [each.model_copy(update={"hit_rate": None}) for each in measured.rows if each.repeated]
    rows += [each for each in measured.rows if not each.repeated]
    measured = measured.model_copy(update={"rows": tuple(rows)})
    stage = found["hps"]["perf_offline"].model_copy(update={"measurement": measured})

    said = stores.in_words({"hps": {"perf_offline": stage}})
    assert "has 1.50× the throughput of different batches" in said
    assert "hit rate" not in said


def test_a_repeated_batch_that_is_not_measurably_faster_is_said_to_be_no_winner() -> None:
    found = of_store(0.0, cold=0.72, warm=0.72)
    measured = found["hps"]["perf_offline"].measurement
    assert measured
    rows = [each.model_copy(update={"throughput_low": 90.0}) for each in measured.rows]
    measured = measured.model_copy(update={"rows": tuple(rows)})
    stage = found["hps"]["perf_offline"].model_copy(update={"measurement": measured})
    alike = {"hps": {"perf_offline": stage}}

    assert [each["95% CIs"] for each in stores.repeated_batches(alike)] == ["overlap"]
    assert stores.in_words(alike).endswith("there is no clear winner.")


def test_without_a_store_nothing_is_said() -> None:
    found = results_of([row(90, experiment="mapped", scenario="offline")], "dlrm")

    assert (stores.passes(found), stores.repeated_batches(found)) == ([], [])
    assert stores.in_words(found) == ""
