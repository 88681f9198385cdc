"""A report compares what is comparable, and says what the measurements cannot show."""

import numpy as np
import pytest
from scipy.stats import binom

from helpers.measure import check_budget, interval, with_intervals
from helpers.report import analysis, describe, figures, text
from helpers.results import Row, read
from helpers.store import ROOT
from tests.report.builders import frame, keep_requests, report, results_of, row, words

OLD = ROOT / "tests/results/data/schema_2.json"
RATIO = {"relative_throughput": 0.9, "relative_throughput_low": 0.88}
RATIO |= {"relative_throughput_high": 0.92, "relative_quality": "stable"}
AROUND_1 = RATIO | {"relative_throughput": 0.96, "relative_throughput_high": 1.02}
NOOP = (
    {"batch_size": 1, "noop_latency_ms": 0.3, "residual_overhead_ms": 0.05},
    {"noop_latency_ms": 0.5, "residual_overhead_ms": -0.1},
    {"batch_size": 64, "noop_latency_ms": 2.5, "residual_overhead_ms": 0.25, "experiment": "ov"},
)
BOUNDS = {"residual_overhead_low_ms": 0.125, "residual_overhead_high_ms": 0.375}
FIXED = (
    "A no-op model with the same tensors takes 0.3 ms at batch size 1 to 2.5 ms at batch size 64: "
    "the fixed overhead of Triton, transport and adapter."
)
NO_POINT = "No measurement is stable or imprecise, so none is a Pareto point."
NO_RATIO = "No relative throughput was measured well enough."
NOISY = [{"quality": "noisy"}]
CAPTIONS = {
    describe.throughput: [
        (
            [{"throughput": 10 * size, "batch_size": size} for size in (4, 1, 16)],
            "Offline throughput in samples/s: onnx 10 at batch size 1 to 160 at batch size 16.",
        ),
        (NOISY, "No offline measurement is stable or imprecise."),
    ],
    describe.latency: [  # once for one batch size, and never as a power of ten
        ([{"p99_latency_ms": 1010.4}], "Offline p99 latency: onnx 1,010 ms at batch size 8."),
        (NOISY, "No offline p99 is stable or imprecise."),
    ],
    describe.frontier: [
        (
            [{"dataset": "a"}, {"experiment": "two", "dataset": "b", "p99_latency_ms": 9.0}],
            "Pareto points: no other measurement has both more throughput and a lower p99. "
            "a: onnx 1; b: two 1.",
        ),
        (NOISY, NO_POINT),
    ],
    describe.relative_throughput: [
        (
            [
                *(RATIO, RATIO | {"relative_throughput": 0.95, "relative_quality": "imprecise"}),
                {"relative_quality": "too few pairs", "relative_throughput": 0.5},
            ],
            "Triton reaches 92% of the in-process throughput (median of 2 measurements); the "
            "lowest is 90% (95% CI 88% to 92%), onnx at batch size 8.",
        ),
        (
            [AROUND_1],
            "Triton reaches 96% of the in-process throughput (median of 1 measurement); the lowest "
            "is 96% (95% CI 88% to 102%, no measurable difference), onnx at batch size 8.",
        ),
        ([RATIO | {"quality": "failed"}], NO_RATIO),
    ],
    describe.overhead: [
        (
            [*NOOP[:2], NOOP[2] | BOUNDS],
            f"{FIXED} The residual overhead is largest for ov at batch size 64: 0.25 ms (95% CI "
            "0.125 to 0.375).",
        ),
        (NOOP, FIXED),
        (
            [*NOOP[:2], NOOP[2] | BOUNDS | {"residual_overhead_low_ms": -0.1}],
            f"{FIXED} There is no measurable residual overhead.",
        ),
        ([{"noop_reason": "no model"}], "The no-op model was not measured: no model."),
        ([{}], "The no-op model was not measured."),
        (
            [{"noop_latency_ms": 1.0, "quality": "noisy"}],
            "The no-op model has no stable or imprecise measurement.",
        ),
    ],
    describe.machine_speed: [
        (
            [{"machine_gflops": 100.0 + i} for i in range(-20, 21)],
            "The speed of the machine (a reference kernel) was 81.0% to 119.0% of its median in "
            "95% of 41 measurements. Smaller differences may come from the machine.",
        ),
        ([{}, {}], "The machine's speed was not measured."),
    ],
    describe.qualities: [
        (
            [{}, {}, {"quality": "failed"}],
            "3 measurements: 2 stable, 1 failed. Findings use stable and imprecise ones.",
        ),
    ],
    describe.latency_parts: [([{}], "No online measurement is stable or imprecise.")],
    describe.rates: [([], "The request-rate mode was not measured.")],
}


@pytest.mark.parametrize("caption", CAPTIONS, ids=lambda caption: caption.__name__)
def test_a_caption_says_what_was_found(caption):
    for given, said in CAPTIONS[caption]:
        assert (
            caption(frame(*(row(**{"scenario": "offline"} | fields) for fields in given))) == said
        )


def test_an_imprecise_row_takes_part_with_its_interval_and_no_other_does():
    words = ("noisy", "too few requests", "client-bound", "failed")
    given = [row(500, experiment=word, quality=word) for word in words]
    given.append(row(900, experiment="two runs", quality="imprecise", throughput_low=None))
    given += [row(100), row(120, relative=0.3, experiment="imprecise", quality="imprecise")]

    assert list(analysis.leaders(frame(*given))["experiment"]) == ["imprecise", "onnx"]


# The budget


LATE = {(0, 0): "unconfirmed", (0, 367): "unconfirmed", (0, 368): "met", (1, 368): "unconfirmed"}
LATE |= {(4, 1022): "met", (8, 400): "unconfirmed", (12, 400): "not met"}


@pytest.mark.parametrize(("late", "requests"), LATE)
def test_the_share_above_the_budget_is_met_not_met_or_not_known(late, requests):
    latencies = np.ones(requests)
    latencies[np.linspace(0, requests - 1, late).astype(int)] = 9.0

    found, needed = check_budget(latencies, 5.0)

    assert found == LATE[late, requests]
    if found != "met":  # the binomial distribution's own tail says when it would be
        assert binom.cdf(late, needed, 0.01) <= 0.025 < binom.cdf(late, needed - 1, 0.01)


def test_correlated_requests_tell_less_of_the_budget():
    latencies = np.repeat(np.random.default_rng(0).lognormal(0, 0.1, 100), 4)  # four at a time
    word, needed = check_budget(latencies, 5.0)

    assert (word, needed > 4 * 368) == ("unconfirmed", True)


def test_the_budget_of_a_row_is_known_from_its_requests_but_the_first(monkeypatch):
    rows = [row(100, concurrency=n, source="onnx/perf_online.json") for n in (1, 2, 4, 8)]
    slow = [9.0 if i % 20 == 0 else 1.0 for i in range(400)]
    taken_ms = {1: [9.0, *[1.0] * 368], 2: [9.0, *[1.0] * 100], 4: slow}
    ends = {n: (1e6 * np.cumsum(taken)).astype(int) for n, taken in taken_ms.items()}
    starts = {n: ends[n] - (1e6 * np.array(taken)).astype(int) for n, taken in taken_ms.items()}
    keep_requests("onnx", {f"clients_{n}_0": np.stack([starts[n], ends[n]], 1) for n in ends})

    table = frame(*rows, budget=5.0)
    monkeypatch.setattr("helpers.results.read_requests", None)  # not read without a budget
    unlimited = frame(*rows)

    assert list(table["budget"]) == ["met", "unconfirmed", "not met", "unconfirmed"]
    assert unlimited["budget"].isna().all()


# Intervals in words


def test_tables_show_intervals_and_how_many_requests_a_percentile_needs():
    rows = frame(
        row(1000, p99_low_ms=19.5, p99_high_ms=21.25),
        row(10),
        row(10, requests=400),
        Row(batch_size=1, concurrency=1, quality="failed"),
    )
    columns = ["throughput", "p50_latency_ms", "p99_latency_ms", "relative_throughput", "quality"]

    shown = with_intervals(rows, columns)

    assert shown.drop(columns=columns).to_dict("list") == {
        "throughput, 95% CI": ["980.4 to 1,020", "9.804 to 10.2", "9.804 to 10.2", "–"],
        "p99, 95% CI": ["19.5 to 21.25", "needs 299 requests", "needs 401 requests", "–"],
        "relative throughput, 95% CI": ["–"] * 4,
    }
    places = [list(shown).index(f"{name}, 95% CI") for name in ("throughput", "p99")]
    assert places == [1, 4]  # after its number
    assert "noop_reason" not in with_intervals(rows, ["noop_reason"])
    assert "noop_reason" in with_intervals(rows.assign(noop_reason="none"), ["noop_reason"])
    assert interval(None, None) == "–"


def test_results_of_the_older_schema_are_shown_without_intervals():
    rows = analysis.frame(report("resnet50"), {"onnx-fp32": {"perf_offline": read(OLD)}})

    assert (describe.frontier(rows), describe.relative_throughput(rows)) == (NO_POINT, NO_RATIO)
    assert describe.qualities(rows).startswith("2 measurements: 1 stable, 1 unstable.")
    (found,) = set(with_intervals(rows, ["p99_latency_ms"])["p99, 95% CI"])
    assert found == "needs 299 requests"
    for draw in (figures.throughput_over_batch, figures.relative_throughput, figures.frontier):
        assert "95% CI" not in words(draw(rows))


# Request-rate mode


def at_random(rate, p99_ms, **fields):
    more = {"scenario": "request rate", "rate": rate, "concurrency": 0, "p99_latency_ms": p99_ms}
    more |= {"p50_latency_ms": p99_ms / 4, "throughput_low": None, "throughput_high": None}
    return row(8 * rate, source="onnx/perf_online.json", **more | fields)


def test_the_report_names_the_highest_rate_that_is_known_to_keep_the_budget():
    due = np.arange(400) * 10**7
    runs = {
        f"rate_{rate}_0": np.stack([due, due + ms * 10**6], axis=1)
        for rate, ms in {10.0: 5, 20.5: 9, 30.0: 50}.items()
    }
    keep_requests("onnx", runs | {f"sent_{name}": run[:, 0] for name, run in runs.items()})
    rates = [at_random(10.0, 5.0), at_random(20.5, 9.0), at_random(30.0, 50.0)]
    given = [row(500), *rates, at_random(40.0, 900.0, quality="saturated")]

    closed = frame(*given, budget=10.0)
    opened = frame(*given, budget=10.0, open_loop=True)

    assert list(closed["scenario"]) == ["online"]
    assert list(opened["budget"]) == ["met", "met", "not met", "unconfirmed"]
    assert describe.rates(opened, 10.0) == (
        "Highest request rate within 10 ms (p99): 20.5 requests/s of 8 samples with onnx (p50 2.25 "
        "ms, p99 9 ms)."
    )
    assert "Highest request rate: 30 requests/s of 8 samples" in describe.rates(opened)
    assert describe.rates(opened[2:3], 10.0) == "No request rate is confirmed within 10 ms (p99)."
    said = str(text.details(report(budget=10.0), results_of(given), closed).data)
    assert "**Request-rate mode.** Highest request rate within 10 ms (p99): 20.5" in said
    assert "**Quality.** 5 measurements: 4 stable, 1 saturated." in said


def test_the_figure_has_both_percentiles_over_the_rate_in_samples_and_the_budget():
    slow = at_random(20.0, 80.0, quality="saturated")
    figure = figures.latency_over_rate(frame(at_random(10.0, 5.0), slow, open_loop=True), 50.0)
    far = figures.latency_over_rate(frame(at_random(1, 5.0), at_random(31, 8.0), open_loop=True))

    axes = figure.axes[0]
    assert (axes.get_xlabel(), axes.get_yscale()) == ("rate (samples/s)", "log")
    lines = [list(line.get_xydata().ravel()) for line in axes.lines if line.get_ls() in ("-", ":")]
    assert lines == [[80, 5, 160, 80], [80, 1.25, 160, 20]]
    assert {"p99", "p50", "hollow: not stable", "budget 50 ms"} <= set(words(figure).split(" | "))
    assert far.axes[0].get_xlabel() == "rate (samples/s), log scale"
    assert far.axes[0].get_xscale() == "log"
    assert words(figures.latency_over_rate(frame(open_loop=True))) == "Nothing was measured."
