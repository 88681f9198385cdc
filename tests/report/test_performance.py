"""What a performance notebook shows: tables without empty columns, and a request as a bar."""

from pathlib import Path
from typing import Any

import pytest

from helpers.display import Table
from helpers.report import analysis, latency_parts, performance, recommend, sections, text
from helpers.report.answers import Answer, Recommendation
from helpers.results import LATENCY_COMPONENTS
from helpers.store import OUTPUTS_VARIABLE
from tests.report.test_answer import report, results_of, row
from tests.report.test_describe import measurement, rows


def captions(shown: list[Any]) -> list[str]:
    return [each.caption for each in shown if isinstance(each, Table)]


BASELINE = {"in_process_throughput": 110.0, "relative_throughput": 0.9, "requests": 20}


def test_offline_is_compared_with_the_baseline_only_where_there_is_one(shown: list[Any]) -> None:
    performance.show_offline(measurement({"requests": 20}, {"batch_size": 4, "requests": 20}))
    without = captions(shown)
    shown.clear()
    performance.show_offline(measurement(BASELINE, BASELINE | {"batch_size": 4}))

    assert without == ["Offline, with 95% CIs", "Conditions of the measurement"]
    assert captions(shown) == [
        without[0],
        "Compared with the same model in-process, without a server",
        without[1],
    ]
    assert shown[-1].html.startswith("<details><summary>Conditions of the measurement</summary>")
    assert "different samples sent" in shown[-1].html


def test_the_two_modes_are_shown_apart(
    shown: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    rate = {"rate": 12.5, "concurrency": 0, "requests": 20}
    both = measurement({"concurrency": 4, "requests": 20}, rate)

    performance.show_online(both)
    performance.show_rates(both)

    clients, _, rates = [each for each in shown if isinstance(each, Table)]
    assert "12.5" not in clients.html
    assert "Request-rate mode" in rates.caption
    assert "12.5" in rates.html
    assert capsys.readouterr().out == ""

    performance.show_rates(measurement({"requests": 20}))
    assert "has no `rates`" in capsys.readouterr().out


def test_the_parts_of_a_bar_are_those_of_the_mean_latency() -> None:
    figure = latency_parts.draw_requests(rows({}, {"batch_size": 4}))

    (axes,) = figure.axes
    widths = [bar.get_width() for bar in axes.patches]
    assert len(widths) == 2 * len(LATENCY_COMPONENTS)
    assert sum(widths[::2]) == pytest.approx(100)
    assert [text.get_text() for text in axes.get_yticklabels()] == [
        "batch 1\n10 ms",
        "batch 4\n10 ms",
    ]
    written = [text.get_text() for text in axes.texts]
    assert written == [*["queue\n2 ms"] * 2, *["inference\n7 ms"] * 2]


def test_a_negative_network_is_drawn_on_the_left_of_nothing() -> None:
    figure = latency_parts.draw_requests(rows({"network_server_send_recv_ms": -1.0}))

    (axes,) = figure.axes
    assert min(bar.get_x() + bar.get_width() for bar in axes.patches) == pytest.approx(-10)
    assert axes.get_xlim()[0] < -10


def test_without_parts_nothing_is_drawn(
    shown: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    unknown = dict.fromkeys(LATENCY_COMPONENTS, None)

    performance.show_request(measurement(unknown))

    assert shown == []
    assert "no times of single steps" in capsys.readouterr().out


def test_the_picture_says_its_shares() -> None:
    said = latency_parts.describe(rows({"concurrency": 4}))

    assert "4 clients: 10 ms, of which client send 1%, network 4%, server queue 20%" in said


def test_the_report_leads_with_what_to_deploy() -> None:
    best = Recommendation(
        "for throughput", "onnx_fp32", "", 120.0, 33.0, "batch size 4, one client, offline"
    )
    nothing = Recommendation("within the budget", "", "")

    def said(*answers: Answer) -> str:
        return str(text.recommendation(answers).data)  # type: ignore[attr-defined]

    first = said(Answer("traffic", (nothing, best), {}))
    assert first.startswith("**traffic: Deploy onnx&#95;fp32**: 120 samples/s, p99 33 ms: batch")
    assert "can be recommended" in said(Answer("", (nothing,), {}))
    assert said() == "**Nothing was measured yet.**"


def test_every_section_of_a_report_is_shown_and_its_data_written(
    shown: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OUTPUTS_VARIABLE, str(tmp_path))
    config = report("resnet50")
    parts = dict.fromkeys(LATENCY_COMPONENTS, 1.0) | {"avg_latency_ms": 7.0}
    offline = row(90, scenario="offline", experiment="onnx-fp32", p50_latency_ms=9.0)
    online = row(100, experiment="onnx-fp32", p50_latency_ms=9.0).model_copy(update=parts)
    results = {name: {} for name in config.experiments} | dict(
        results_of([offline, online], "resnet50")
    )
    measured = analysis.frame(config, results)
    answers = recommend.choose(config, results, measured)

    sections.show_answer(config, results, measured, answers)
    sections.show_accuracy(config, results, measured)
    sections.show_offline(config, results, measured)
    sections.show_roofline(config, results, measured)
    sections.show_online(config, measured)
    sections.show_rates(config, results)
    sections.show_published(config, results)
    sections.show_origin(config, results)

    assert "**Deploy onnx-fp32**: 100 samples/s" in shown[0].data
    assert {"Offline, with 95% CIs", "The parity checks", "Provenance"} <= {*captions(shown)}
    assert "No experiment was measured in request-rate mode." in [
        getattr(each, "data", "") for each in shown if not isinstance(each, dict)
    ]
    written = {path.name for path in tmp_path.rglob("*.csv")}
    assert {
        "frontier.csv",
        "roofline.csv",
        "online_onnx-fp32.csv",
        "latency_over_batch.csv",
    } <= written
