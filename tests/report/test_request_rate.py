"""What a report says of request-rate mode: apart from concurrency mode."""

from pathlib import Path

import numpy as np
import pytest

from helpers.report import analysis, describe, figures, text
from helpers.results import Row
from helpers.store import OUTPUTS_VARIABLE
from tests.report.test_answer import report, results_of, row
from tests.report.test_figures import words


def at_random(rate: float, p99_ms: float, **fields: object) -> Row:
    more = {"scenario": "request rate", "rate": rate, "concurrency": 0, "p99_latency_ms": p99_ms}
    more |= {"p50_latency_ms": p99_ms / 4, "throughput_low": None, "throughput_high": None}
    return row(8 * rate, experiment="onnx", source="onnx/perf_online.json", **more | fields)


def keep(folder: Path, latencies_ms: dict[float, float]) -> None:
    """Keep 400 equal requests of each rate where the report looks for them."""
    place = folder / report().target / "tft" / "onnx" / "perf_online_requests.npz"
    place.parent.mkdir(parents=True)
    due = np.arange(400) * 10**7
    arrays = {
        f"rate_{rate}_0": np.stack([due, due + int(ms * 1e6)], axis=1)
        for rate, ms in latencies_ms.items()
    }
    sent = {f"sent_{name}": found[:, 0] for name, found in arrays.items()}
    np.savez(place, **arrays, **sent)  # type: ignore[arg-type]


def test_the_answer_names_the_highest_rate_that_is_known_to_keep_the_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OUTPUTS_VARIABLE, str(tmp_path))
    keep(tmp_path, {10.0: 5.0, 20.5: 9.0, 30.0: 50.0})
    found = results_of(
        [
            row(500, experiment="onnx"),
            at_random(10.0, 5.0),
            at_random(20.5, 9.0),
            at_random(30.0, 50.0),
            at_random(40.0, 900.0, quality="saturated"),
        ]
    )
    config = report(budget=10.0)
    closed = analysis.frame(config, found)

    opened = analysis.frame(config, found, open_loop=True)

    assert list(closed["scenario"]) == ["online"]
    assert list(opened["budget"]) == ["met", "met", "not met", "unconfirmed"]
    assert describe.rates(opened, 10.0) == (
        "Highest request rate within 10 ms (p99): 20.5 requests/s of 8 samples with onnx (p50 2.25 "
        "ms, p99 9 ms)."
    )
    assert "Highest request rate: 30 requests/s of 8 samples" in describe.rates(opened)
    assert describe.rates(opened[2:3], 10.0) == ("No request rate is confirmed within 10 ms (p99).")
    said = str(text.answer(config, found, closed).data)  # type: ignore[attr-defined]
    assert "**Request-rate mode.** Highest request rate within 10 ms (p99): 20.5" in said
    assert "**Quality.** 5 measurements: 4 stable, 1 saturated." in said


def test_without_such_requests_it_says_so() -> None:
    found = results_of([row(500, experiment="onnx")])

    nothing = analysis.frame(report(), found, open_loop=True)

    assert describe.rates(nothing) == "The request-rate mode was not measured."
    assert words(figures.latency_over_rate(nothing)) == "Nothing was measured."


def test_rates_that_are_far_apart_have_a_logarithmic_axis() -> None:
    found = results_of([at_random(1.0, 5.0), at_random(31.0, 8.0)])

    (axes,) = figures.latency_over_rate(analysis.frame(report(), found, open_loop=True)).axes

    assert axes.get_xscale() == "log"
    assert axes.get_xlabel() == "rate (samples/s), log scale"


def test_the_figure_has_both_percentiles_over_the_rate_in_samples_and_the_budget() -> None:
    found = results_of([at_random(10.0, 5.0), at_random(20.0, 80.0, quality="saturated")])

    figure = figures.latency_over_rate(analysis.frame(report(), found, open_loop=True), 50.0)

    axes = figure.axes[0]
    assert (axes.get_xlabel(), axes.get_yscale()) == ("rate (samples/s)", "log")
    lines = [list(line.get_xydata().ravel()) for line in axes.lines if line.get_ls() in ("-", ":")]  # type: ignore[union-attr]
    assert lines == [[80, 5, 160, 80], [80, 1.25, 160, 20]]
    assert {"p99", "p50", "hollow: not stable", "budget 50 ms"} <= set(words(figure).split(" | "))
