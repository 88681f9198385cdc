"""What a report's notebook shows, section by section, with the data of each chart as CSV."""

from helpers.report import Answer, analysis, sections
from helpers.results import LATENCY_COMPONENTS
from helpers.store import outputs
from tests.comparisons import check, compared
from tests.report.builders import captions, report, results_of, row


def test_every_section_of_a_report_is_shown_and_its_data_written(shown):
    config = report("resnet50")
    parts = dict.fromkeys(LATENCY_COMPONENTS, 1.0) | {"avg_latency_ms": 7.0}
    same = {"experiment": "onnx-fp32", "p50_latency_ms": 9.0}
    rows = [row(90, scenario="offline", **same), row(100, **same, **parts)]
    results = {name: {} for name in config.experiments} | results_of(rows, "resnet50")
    measured = analysis.frame(config, results)
    found = compared(200, {"onnx-fp32": check()}, **{"onnx-fp32": 1.0, "openvino-int8": 0.5})

    sections.show_answer(config, results, measured, [Answer(found)])
    sections.show_accuracy(config, results)
    sections.show_offline(config, results, measured)
    sections.show_roofline(config, results, measured)
    sections.show_online(config, measured)
    sections.show_rates(config, results)
    sections.show_published(config, results)
    sections.show_origin(config, results)

    assert "<strong>Deploy onnx-fp32: </strong>no other experiment is faster" in shown[0].html
    assert captions(shown)[:4] == [
        "What to deploy",
        "Interleaved rounds (4 clients, batch size 1), with 95% CIs",
        "Single requests (1 client, batch size 1), with 95% CIs",
        "Latency budget of 200 ms at p99, with 95% confidence",
    ]
    assert {"Offline, with 95% CIs", "The parity checks", "Provenance"} <= {*captions(shown)}
    rates = "No experiment was measured in request-rate mode."
    assert rates in [getattr(each, "data", "") for each in shown if not isinstance(each, dict)]
    written = {path.stem for path in outputs().rglob("*.csv")}
    assert {"frontier", "roofline", "online_onnx-fp32", "latency_over_batch"} <= written


def test_a_report_without_a_comparison_has_its_scenario_stages_and_says_what_is_missing(shown):
    results, config = results_of([row(100)], "resnet50"), report("resnet50")

    sections.show_answer(config, results, analysis.frame(config, results), [Answer()])

    assert "Not measured: </strong>the stage compare has not run." in shown[0].html
    assert captions(shown) == ["What to deploy"]
    assert "**Request-rate mode.**" in shown[-1].data
