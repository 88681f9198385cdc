"""A report says what a cold cache costs, and how a repeated batch flatters."""

import pytest

from helpers.report import embedding_cache as cache
from helpers.report.describe import say
from helpers.results import LookupPass
from tests.report.builders import measurement, result, results_of, row

OFFLINE = {"experiment": "hps", "scenario": "offline"}
DIFFERENT, FAILED = row(100, **OFFLINE, hit_rate=0.8), row(150, **OFFLINE, repeated=True)
AGAIN = FAILED.model_copy(update={"hit_rate": 1.0})


def of_pass(name, share, auc):
    hit_rate = None if share is None else 0.5
    known = {"hit_rate": hit_rate, "default_share": share, "p50_latency_ms": 2.0, "batch_size": 8}
    course = ((8, hit_rate, share, 2.0),)
    return LookupPass(name=name, scores={"auc": auc}, course=course, **known)


def of_store(share, rows=(DIFFERENT, AGAIN)):
    """An experiment with both passes, and a batch size with different samples and one batch."""
    passes = of_pass("cold", share, 0.61), of_pass("warm", share and 0.0, 0.72)
    own = {"experiment": "hps", "measurement": measurement(*rows, passes=passes)}
    mapped = results_of([row(90, experiment="mapped", scenario="offline")], "dlrm")
    return {**mapped, "hps": {"perf_offline": result("perf_offline", **own)}}


def said_of(found):
    return "\n".join(cache.sentences(found))


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (0.25, "25.0% of the vectors are defaults (auc 0.6100 cold, 0.7200 warm)"),
        (0.0, "a cold cache only costs time."),
        (None, "The server does not count default vectors."),
    ],
)
def test_a_cold_cache_costs_accuracy_where_vectors_are_defaults(share, words):
    found = of_store(share)

    assert [each["cache"] for each in cache.passes(found)] == ["cold", "warm"]
    assert words in said_of(found)


def test_a_repeated_batch_stands_beside_different_ones():
    found = of_store(0.0)

    (one,) = cache.repeated_batches(found)
    assert (one["hit rate"], one["hit rate, repeated"]) == (0.8, 1.0)
    # both are known to 1.02 times: the square root of two times that, in logarithms
    assert one["ratio"] == "1.50× (95% CI 1.46 to 1.54)"
    said = said_of(found)
    assert "has 1.50× the throughput of different batches" in said
    assert "(hit rate 100.0% instead of 80.0%)" in said
    assert "clear winner" not in said
    # a row that failed after a complete run has a throughput and no hit rate
    assert "hit rate 100" not in said_of(of_store(0.0, rows=(DIFFERENT, FAILED)))


def test_a_repeated_batch_that_is_not_measurably_faster_is_said_to_be_no_winner():
    rows = [each.model_copy(update={"throughput_low": 70.0}) for each in (DIFFERENT, FAILED)]
    alike = of_store(0.0, rows=rows)

    assert cache.repeated_batches(alike)[0]["ratio"] == "1.50× (95% CI 0.97 to 2.31)"
    assert said_of(alike).endswith("there is no clear winner.")


def test_without_a_store_nothing_is_said():
    found = results_of([row(90, experiment="mapped", scenario="offline")], "dlrm")

    assert (cache.passes(found), cache.repeated_batches(found), said_of(found)) == ([], [], "")


def test_a_stage_shows_how_its_cache_warms_up(monkeypatch, shown):
    drawn = []
    monkeypatch.setattr(cache, "picture", lambda figure, text: drawn.extend((figure, text)))

    cache.show_warmup([of_pass("cold", 0.25, 0.61), of_pass("warm", 0.0, 0.72)])
    cache.show_warmup(())

    assert "<caption" in shown[0].html
    figure, text = drawn
    assert text == (
        "First pass over the evaluation set: hit rate 50.0%, default vectors 25.00%. Last pass: "
        "hit rate 50.0%, default vectors 0.00%. Median request latency: 2.0 ms, then 2.0 ms."
    )
    shares, times = figure.axes
    assert shares.lines[1].get_xydata().tolist() == [[0.008, 25], [0.016, 0]]
    assert times.get_ylim()[0] == 0
    unknown = say("warmup", cold=of_pass("cold", None, 0.6), warm=of_pass("warm", None, 0.6))
    assert unknown.startswith("The server reports no hit rate. Median")
