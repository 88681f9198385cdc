"""The roofline and its captions: each experiment's share of the machine's rates, and why."""

import pytest

from helpers.report import analysis, describe, figures, text
from helpers.results import Operator, Peaks, Profile
from helpers.results.types import ArtifactFacts
from tests.report.builders import fingerprint, frame, measurement, result, row, texts, words

GFLOPS = {"fp32": 300, "bf16": 1800, "int8": 3200}
PEAKS = Peaks(threads=2, gflops=GFLOPS, memory_gb_s=20, library="x", seconds=1)
RATES = "(measured rates of matrix multiplication and memory)"


def near(share, experiment, precision, **fields):
    columns = {"gflops": share * GFLOPS[precision.lower()], "intensity": 500.0}
    columns |= {"roofline_bound": "compute", "roofline_share": share, "precision": precision}
    return row(experiment=experiment, scenario="offline", **columns | fields)


@pytest.fixture
def rows():
    return frame(
        near(0.45, "onnx-fp32", "FP32", batch_size=1),
        near(0.5, "onnx-fp32", "FP32"),
        near(0.25, "openvino-bf16", "BF16", intensity=10.0, roofline_bound="memory"),
        near(0.9, "onnx-fp32", "FP32", quality="noisy"),
        row(experiment="ts", scenario="offline", precision="FP32"),
    )


def test_each_experiment_has_its_share_of_the_roofline(rows):
    assert describe.roofline(rows, PEAKS) == (
        f"Highest share of the roofline {RATES}: onnx-fp32 50% (compute bound, fp32, batch size 8, "
        "offline); openvino-bf16 25% (memory bound, bf16, batch size 8, offline); unknown for ts."
    )
    assert describe.roofline(rows[4:], PEAKS).endswith("and memory): unknown for ts.")
    fast = describe.roofline(frame(near(1.07, "onnx-fp32", "FP32")), PEAKS)
    assert f"{RATES}: onnx-fp32 107% " in fast
    assert describe.roofline(rows, None) == "The roofline was not measured."


def test_the_roofline_has_a_roof_for_each_precision_that_was_measured(rows):
    figure = figures.roofline(rows, PEAKS)

    (axes,) = figure.axes
    assert (axes.get_xscale(), axes.get_xlabel()) == ("log", "FLOP/byte, log scale")
    assert (axes.get_yscale(), axes.get_ylabel()) == ("log", "GFLOP/s, log scale")
    notes = [note.get_text() for note in axes.texts]
    assert notes == ["FP32 300 GFLOP/s", "BF16 1,800 GFLOP/s", "20 GB/s"]
    roofs = [line.get_xydata() for line in axes.lines if len(line.get_xydata()) == 3]
    corners = [tuple(roof[1]) for roof in roofs]
    assert corners[:2] == [(300 / 20, 300), (1800 / 20, 1800)]
    assert all(roof[0][1] == pytest.approx(20 * roof[0][0]) for roof in roofs[:2])
    assert texts(figure.legends[0])[:2] == ["onnx-fp32", "openvino-bf16"]
    assert words(figures.roofline(rows, None)) == "Nothing was measured."


def of_threads(threads):
    machine = {"host_processor_core_count": 1, "host_processors_per_node": 2}
    made_from = fingerprint(threads=threads, instances={"offline": 2, "online": 1})
    return {"perf_offline": result("perf_offline", fingerprint=made_from, machine=machine)}


def test_what_is_known_of_each_experiments_time_is_said():
    operators = (Operator(kind="Conv", kernel="k", precision="fp32", calls=1, ms=1),)
    profile = Profile(batch_size=8, threads=2, operators=operators, findings=("One.", "Two."))
    unknown = Profile(reason="not profiled: why")
    facts = {"folder": "", "sha256": "", "size_mb": 1, "files": {}}
    counted = ArtifactFacts(**facts, facts={"work": "not counted: a loop"})
    found = {
        "e": {"convert": result("convert", profile=profile)},
        "f": {"export": result("export", artifact=counted)},
        "g": {"convert": result("convert", profile=unknown)},
        "many": of_threads(2),
        "right": of_threads(1),
        "shared": of_threads(0),
    }

    assert text.reasons(found) == [
        "e: One. Two.",
        "f: operations not counted: a loop",
        "g: not profiled: why",
        "many: perf_offline used 4 threads on 2 physical cores. More than one thread per core does "
        "not compute faster.",
    ]
    assert "Nothing was profiled" in str(text.where_time_goes({}).data)


def test_the_peaks_of_a_report_are_the_highest_of_all_stages():
    found = {}
    for name, fp32 in (("a", 290.0), ("b", 310.0), ("none", None)):
        own = fp32 and PEAKS.model_copy(update={"gflops": GFLOPS | {"fp32": fp32}})
        found[name] = {"perf_offline": result("perf_offline", measurement=measurement(peaks=own))}

    assert analysis.peaks(found).gflops == {"fp32": 310, "bf16": 1800, "int8": 3200}
    assert analysis.peaks({"none": found["none"]}) is None
