"""What a conversion changed: operators before and after, one timed call of each, and in words."""

import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pandas
import pytest

from helpers import formats
from helpers.config import resolve
from helpers.measure import changes
from helpers.measure.changes import Call, Changes, why_unavailable
from helpers.measure.parity_plot import describe, draw, points
from helpers.results import Operator, Profile
from helpers.store import Artifact


def cells(project, experiment):
    """All that the executed convert notebook shows and prints."""
    notebook = json.loads((project.target / f"dummy/{experiment}/convert.ipynb").read_text())
    outputs = [each for cell in notebook["cells"] for each in cell.get("outputs", [])]
    shown = [output.get("data", {}) | {"text": output.get("text", [])} for output in outputs]
    kinds = ("text", "text/html", "text/plain")
    return "".join("".join(map(str, each.get(kind, []))) for each in shown for kind in kinds)


@pytest.mark.slow
@pytest.mark.thorough
def test_a_converted_model_is_shown_beside_the_exported_one(finished):
    shown = cells(finished, "openvino-fp32")

    assert re.search(r"ONNX in fp32 \([\d.]+ MB\) was converted to OpenVINO IR in fp32", shown)
    for graph, runtime in (("exported", "ONNX Runtime"), ("converted", "OpenVINO")):
        row = re.search(rf"<td[^>]*>{graph}</td><td[^>]*>({runtime} [^<]*)</td>(.*?)</tr>", shown)
        median_ms, fastest_ms, slowest_ms = map(float, re.findall(r">([\d.]+)<", row[2]))
        assert 0 <= fastest_ms <= median_ms <= slowest_ms
    for title in ("exported: ONNX", "converted: OpenVINO IR", "executed: OpenVINO"):
        assert title in shown


@pytest.mark.slow
@pytest.mark.thorough
def test_the_parity_plots_data_are_the_outputs_of_both(finished):
    page = finished.target / "dummy/openvino-fp32"
    table = pandas.read_csv(page / "convert_outputs.csv")
    artifact = finished.result("openvino-fp32", "convert").artifact
    file = finished.target / "artifacts" / artifact.folder / "model.xml"
    (saved,) = finished.root.glob("outputs/data/dummy-reference-*/samples.npz")
    (data,) = finished.root.glob("outputs/data/dummy-dataset-*/points.npz")
    with np.load(saved) as right, np.load(data) as samples:
        chosen = [place * len(samples["x"]) // 64 for place in range(64)]
        found = formats.get("openvino").load(file, 1, "cpu").run({"features": samples["x"][chosen]})
        expected = right["logits"]

    where = table["sample"], table["place"]
    assert len(table) == expected.size
    np.testing.assert_allclose(table["reference"], expected[where], rtol=1e-6)
    np.testing.assert_allclose(table["converted"], found["logits"][where], rtol=1e-4, atol=1e-5)
    html = (page / "convert.html").read_text()
    assert 'href="convert_outputs.csv"' in html
    assert 'alt="256 of 256 output values of OpenVINO IR in fp32' in html


def artifact(**counts):
    return Artifact(Path("made"), {}, {"operators": dict(counts)})


@pytest.fixture
def explained(monkeypatch):
    """What is found for given operators, without files or calls."""

    def found(exported, made, executed, **fields):
        monkeypatch.setattr(changes, "require", lambda *_: exported)
        monkeypatch.setattr(changes, "_called", lambda *_: (0, ()))
        operators = tuple(
            Operator(kind=kind, kernel="k", precision="fp32", calls=calls, ms=1)
            for kind, calls in executed.items()
        )
        config = resolve("resnet50", "convert", experiment="onnx-fp32", overrides=fields)
        return changes.what_changed(config, made, Profile(operators=operators))

    return found


def test_operators_stand_beside_one_another_the_most_frequent_first(explained):
    made = artifact(Convolution=2, Relu=3, Add=2)

    found = explained(artifact(Conv=2, Relu=3), made, {"Convolution": 2}, format="openvino")

    assert [(*line.values(),) for line in found.operators()] == [
        ("5 operators of 2 kinds", "7 operators of 3 kinds", "2 operators of 1 kind"),
        ("3 × Relu", "3 × Relu", "2 × Convolution"),
        ("2 × Conv", "2 × Convolution", changes.BLANK),
        (changes.BLANK, "2 × Add", changes.BLANK),
    ]
    graphs = ["exported: ONNX", "converted: OpenVINO IR", "executed: OpenVINO"]
    assert [*found.graphs] == [*found.operators()[0]] == graphs
    said = "The file has 7 operators instead of 5. OpenVINO executes 2 operators."
    assert found.findings[0].endswith(said)


def test_long_lists_end_with_how_many_others_there_are():
    counts = Counter({f"Op{place:02}": 50 - place for place in range(14)})

    lines = Changes({"exported: X": counts}, (), (), "").operators()

    assert len(lines) == changes.LINES + 2
    assert lines[-1] == {"exported: X": f"{40 + 39 + 38 + 37} of 4 other kinds"}


def test_the_marks_of_a_quantised_file_are_counted(explained):
    made = artifact(Conv=2, QuantizeLinear=3, DequantizeLinear=5)

    found = explained(artifact(Conv=2), made, {}, precision="int8")

    assert "8 of them convert to or from 8-bit integers." in found.findings[0]


def test_a_file_that_is_taken_as_it_is_says_what_the_runtime_makes_of_it(explained):
    found = explained(artifact(Conv=2, Relu=3), artifact(Conv=2, Relu=3), {"FusedConv": 2})

    assert found.findings == (
        "The exported file is served unchanged: ONNX in fp32. ONNX Runtime executes 2 operators; "
        "the file has 5.",
    )
    assert [*found.graphs] == ["exported: ONNX", "executed: ONNX Runtime"]
    assert (found.times(), found.caption) == ([], "Not timed: there is only one graph")


@pytest.mark.parametrize(
    ("exported", "converted", "said"),
    [
        ((4.0, 5.0, 6.1), (2.0, 2.5, 3.0), r" 2\.01× \(95% CI 1\.9\d to 2\.0\d\) the speed "),
        ((2.0, 3.0, 2.0), (1.0, 4.0, 1.0), r" has 1\.44× \(.*\) the speed .* one: inconclusive"),
    ],
)
def test_how_many_times_as_fast_a_graph_is_has_an_interval(exported, converted, said):
    calls = [Call("exported", "A", exported), Call("converted", "B", converted)]

    (found,) = changes._faster(calls)

    assert re.search(said, found)
    assert changes._faster([calls[0], Call("converted", "B", reason="not timed: x")]) == []


def config(device, server=None, **fields):
    fields = {"export_format": "onnx", "export_precision": "fp32", "max_batch_size": 8, **fields}
    models = {"resnet50": {"experiments": {"mine": fields}}}
    return resolve("resnet50", "convert", "Mine", device, server or {}, models=models)


@pytest.mark.parametrize(
    ("server", "device", "name", "said"),
    [
        ({}, "cpu", "trt", "not timed: trt does not run on a CPU"),
        ({}, "gpu", "openvino", "not timed: openvino does not run on a GPU"),
        ({"kind": "docker"}, "gpu", "trt", "not timed: only Triton's native backend runs it"),
        ({}, "cpu", "onnx", ""),
    ],
)
def test_why_a_graph_is_not_timed_is_said(server, device, name, said):
    assert why_unavailable(config(device, server, format="onnx", precision="fp32"), name) == said


def test_on_a_gpu_that_is_not_here_both_graphs_have_a_reason_and_no_time(tmp_path, monkeypatch):
    """No file is opened for a format that this process cannot run."""
    chosen = config("gpu", {"kind": "docker"}, format="trt", precision="fp16")
    nowhere = Artifact(tmp_path / "none", {}, {})
    monkeypatch.setattr(changes, "require", lambda *_: nowhere)
    monkeypatch.setattr(changes, "graph_batch", lambda *_: (1, {}))

    found = changes.what_changed(chosen, nowhere, Profile(operators=()))

    told = [(row["graph"], row["median_ms"], row["why not"][:11]) for row in found.times()]
    assert told == [(name, None, "not timed: ") for name in ("exported", "converted")]


def test_points_are_spread_evenly_and_have_the_one_furthest_off():
    right = {"a": np.zeros((40, 10, 20), np.float32), "b": np.ones((40, 3), np.float32)}
    found = {name: values.copy() for name, values in right.items()}
    found["a"][7, 3, 11] = 5

    drawn = points(right, found, most=100)

    a, b = drawn[drawn["output"] == "a"], drawn[drawn["output"] == "b"]
    assert (len(a), len(b)) == (51, 50)
    worst = a.loc[(a["converted"] - a["reference"]).idxmax()]
    assert (worst["sample"], worst["place"], worst["converted"]) == (7, 3 * 20 + 11, 5)
    assert {*np.diff(b["sample"] * 3 + b["place"])} <= {2, 3}


def test_a_parity_plot_says_how_far_the_values_are_off():
    right = {"a": np.array([[0.0, 1.0], [2.0, 3.0]], np.float32)}
    found = {"a": np.array([[0.0, 1.0], [2.0, 3.5]], np.float32)}
    drawn = points(right, found)

    assert describe(drawn, "ONNX in int8", 4) == (
        "4 of 4 output values of ONNX in int8 over the reference's: the mean difference is 0.125, "
        "the largest 0.5 (3.5 instead of 3, sample 1)."
    )
    figure = draw(drawn, "ONNX in int8")
    left, apart = figure.axes
    assert left.lines[0].get_xydata().tolist() == [[0, 0], [3.5, 3.5]]
    offsets = apart.collections[0].get_offsets()
    assert offsets.tolist() == [[0, 0], [1, 0], [2, 0], [3, 0.5]]
