"""What a conversion changed: operators before and after, one timed call of each, and in words."""

import json
import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from helpers.config import resolve
from helpers.formats import Arrays
from helpers.measure import changes
from helpers.measure.changes import Call, Changes, why_unavailable
from helpers.measure.parity_plot import POINTS, describe, draw, points
from helpers.results import Operator, Profile
from helpers.store import Artifact
from tests.conftest import Project


def cells(project: Project, experiment: str) -> str:
    """All that the executed convert notebook shows and prints."""
    notebook = json.loads((project.target / f"dummy/{experiment}/convert.ipynb").read_text())
    outputs = [each for cell in notebook["cells"] for each in cell.get("outputs", [])]
    return "\n".join("".join(str(part) for part in _texts(each)) for each in outputs)


def _texts(output: dict[str, Any]) -> list[str]:
    data = output.get("data", {})
    return [*output.get("text", []), *data.get("text/html", []), *data.get("text/plain", [])]


@pytest.mark.slow
def test_a_converted_model_is_shown_beside_the_exported_one(finished: Project) -> None:
    shown = cells(finished, "openvino-fp32")

    assert re.search(r"ONNX in fp32 \([\d.]+ MB\) was converted to OpenVINO IR in fp32", shown)
    for graph, runtime in (("exported", "ONNX Runtime"), ("converted", "OpenVINO")):
        row = re.search(rf"<td[^>]*>{graph}</td><td[^>]*>({runtime} [^<]*)</td>(.*?)</tr>", shown)
        assert row
        median_ms, fastest_ms, slowest_ms = map(float, re.findall(r">([\d.]+)<", row[2]))
        assert 0 <= fastest_ms <= median_ms <= slowest_ms
    assert "exported: ONNX" in shown
    assert "converted: OpenVINO IR" in shown
    assert "executed: OpenVINO" in shown


@pytest.mark.slow
def test_the_parity_plots_data_are_the_outputs_of_both(finished: Project) -> None:
    import pandas

    from helpers import formats

    page = finished.target / "dummy/openvino-fp32"
    table = pandas.read_csv(page / "convert_outputs.csv")
    (saved,) = (finished.root / "outputs/data").glob("dummy-reference-*/samples.npz")
    artifact = finished.result("openvino-fp32", "convert").artifact
    assert artifact
    file = finished.target / "artifacts" / artifact.folder / "model.xml"
    (data,) = (finished.root / "outputs/data").glob("dummy-dataset-*/points.npz")
    with np.load(saved) as right, np.load(data) as samples:
        chosen = [place * len(samples["x"]) // 64 for place in range(64)]
        found = formats.get("openvino").load(file, 1, "cpu").run({"features": samples["x"][chosen]})
        expected = right["logits"]

    where = table["sample"], table["place"]
    assert len(table) == expected.size
    np.testing.assert_allclose(table["reference"], expected[where], rtol=1e-6)
    np.testing.assert_allclose(table["converted"], found["logits"][where], rtol=1e-4, atol=1e-5)
    assert 'href="convert_outputs.csv"' in (page / "convert.html").read_text()
    assert (
        'alt="256 of 256 output values of OpenVINO IR in fp32'
        in (page / "convert.html").read_text()
    )


@pytest.mark.slow
def test_a_file_that_is_served_as_exported_is_said_to_be(finished: Project) -> None:
    shown = cells(finished, "onnx-fp32")

    assert "The exported file is served unchanged: ONNX in fp32." in shown
    assert "Not timed: there is only one graph" in shown
    assert "converted: " not in shown
    assert not (finished.target / "dummy/onnx-fp32/convert_outputs.csv").exists()


def artifact(**counts: int) -> Artifact:
    return Artifact(Path("made"), {}, {"operators": dict(counts)})


@pytest.fixture
def explained(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What is found for given operators, without files or calls."""

    def found(
        exported: Artifact, made: Artifact, executed: dict[str, int], **fields: Any
    ) -> Changes:
        monkeypatch.setattr(changes, "require", lambda *_: exported)
        monkeypatch.setattr(changes, "_called", lambda *_: (0, ()))
        operators = tuple(
            Operator(kind=kind, kernel="k", precision="fp32", calls=calls, ms=1)
            for kind, calls in executed.items()
        )
        config: Any = resolve("resnet50", "convert", experiment="onnx-fp32", overrides=fields)
        return changes.what_changed(config, made, Profile(operators=operators))

    return found


def test_operators_stand_beside_one_another_the_most_frequent_first(explained: Any) -> None:
    found = explained(
        artifact(Conv=2, Relu=3),
        artifact(Convolution=2, Relu=3, Add=2),
        {"Convolution": 2},
        format="openvino",
    )

    assert found.operators() == [
        {
            "exported: ONNX": "5 operators of 2 kinds",
            "converted: OpenVINO IR": "7 operators of 3 kinds",
            "executed: OpenVINO": "2 operators of 1 kind",
        },
        {
            "exported: ONNX": "3 × Relu",
            "converted: OpenVINO IR": "3 × Relu",
            "executed: OpenVINO": "2 × Convolution",
        },
        {
            "exported: ONNX": "2 × Conv",
            "converted: OpenVINO IR": "2 × Convolution",
            "executed: OpenVINO": changes.BLANK,
        },
        {
            "exported: ONNX": changes.BLANK,
            "converted: OpenVINO IR": "2 × Add",
            "executed: OpenVINO": changes.BLANK,
        },
    ]
    assert found.findings[0].endswith(
        "The file has 7 operators instead of 5. OpenVINO executes 2 operators."
    )


def test_long_lists_end_with_how_many_others_there_are() -> None:
    counts = Counter({f"Op{place:02}": 50 - place for place in range(14)})

    lines = Changes({"exported: X": counts}, (), (), "").operators()

    assert len(lines) == changes.LINES + 2
    assert lines[-1] == {"exported: X": f"{40 + 39 + 38 + 37} of 4 other kinds"}


def test_the_marks_of_a_quantised_file_are_counted(explained: Any) -> None:
    quantised = artifact(Conv=2, QuantizeLinear=3, DequantizeLinear=5)

    found = explained(artifact(Conv=2), quantised, {}, precision="int8")

    assert "8 of them convert to or from 8-bit integers." in found.findings[0]


def test_a_file_that_is_taken_as_it_is_says_what_the_runtime_makes_of_it(explained: Any) -> None:
    found = explained(artifact(Conv=2, Relu=3), artifact(Conv=2, Relu=3), {"FusedConv": 2})

    assert found.findings == (
        "The exported file is served unchanged: ONNX in fp32. ONNX Runtime executes 2 operators; "
        "the file has 5.",
    )
    assert list(found.graphs) == ["exported: ONNX", "executed: ONNX Runtime"]
    assert found.times() == []


@pytest.mark.parametrize(
    ("exported", "converted", "said"),
    [
        (
            (4.0, 5.0, 6.1),
            (2.0, 2.5, 3.0),
            r"has 2\.01× \(95% CI 1\.9\d to 2\.0\d\) the speed of the",
        ),
        (
            (2.0, 3.0, 2.0),
            (1.0, 4.0, 1.0),
            r"has 1\.44× \(.*\) the speed of the .* one: inconclusive",
        ),
    ],
)
def test_how_many_times_as_fast_a_graph_is_has_an_interval(
    exported: tuple[float, ...], converted: tuple[float, ...], said: str
) -> None:
    calls = [Call("exported", "A", exported), Call("converted", "B", converted)]

    (found,) = changes._faster(calls)

    assert re.search(said, found)
    assert changes._faster([calls[0], Call("converted", "B", reason="not timed: x")]) == []


def test_timed_graphs_take_turns_at_coming_first() -> None:
    order: list[str] = []
    sessions: Any = [SimpleNamespace(run=lambda _, name=name: order.append(name)) for name in "AB"]

    exported, converted = changes._alternate(sessions, {})

    assert "".join(order).startswith("ABBAAB")
    assert len(exported) == len(converted) == order.count("A")


@pytest.mark.parametrize(
    ("server", "device", "name", "said"),
    [
        ({}, "cpu", "trt", "not timed: trt does not run on a CPU"),
        ({}, "gpu", "openvino", "not timed: openvino does not run on a GPU"),
        ({"kind": "docker"}, "gpu", "trt", "not timed: only Triton's native backend runs it"),
        ({}, "cpu", "onnx", ""),
    ],
)
def test_why_a_graph_is_not_timed_is_said(
    server: dict[str, Any], device: str, name: str, said: str
) -> None:
    fields = {"export_format": "onnx", "export_precision": "fp32", "format": "onnx"}
    sections = {"resnet50": {"experiments": {"mine": {**fields, "precision": "fp32"}}}}
    config: Any = resolve("resnet50", "convert", "Mine", device, server, models=sections)

    assert why_unavailable(config, name) == said


def test_on_a_gpu_that_is_not_here_both_graphs_have_a_reason_and_no_time(tmp_path: Path) -> None:
    """No file is opened for a format that this process cannot run."""
    fields = {"export_format": "onnx", "export_precision": "fp32", "max_batch_size": 8}
    sections = {
        "resnet50": {"experiments": {"mine": {**fields, "format": "trt", "precision": "fp16"}}}
    }
    config: Any = resolve("resnet50", "convert", "Mine", "gpu", {"kind": "docker"}, models=sections)
    nowhere = Artifact(tmp_path / "none", {}, {})
    batch: Arrays = {}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(changes, "graph_batch", lambda *_: (1, batch))
        _, calls = changes._called(config, nowhere, nowhere)

    assert [(each.graph, each.ms) for each in calls] == [("exported", ()), ("converted", ())]
    assert all(each.reason.startswith("not timed: ") for each in calls)
    rows = Changes({}, calls, (), "").times()
    assert [(row["median_ms"], row["why not"]) for row in rows] == [
        (None, each.reason) for each in calls
    ]


def test_points_are_spread_evenly_and_have_the_one_furthest_off() -> None:
    right = {"a": np.zeros((40, 10, 20), np.float32), "b": np.ones((40, 3), np.float32)}
    found = {name: values.copy() for name, values in right.items()}
    found["a"][7, 3, 11] = 5

    drawn = points(right, found, most=100)

    a, b = drawn[drawn["output"] == "a"], drawn[drawn["output"] == "b"]
    assert len(b) == 50
    assert len(a) == 51
    worst = a.loc[(a["converted"] - a["reference"]).idxmax()]
    assert (worst["sample"], worst["place"], worst["converted"]) == (7, 3 * 20 + 11, 5)
    steps = np.diff(b["sample"] * 3 + b["place"])
    assert set(steps) <= {2, 3}


def test_a_parity_plot_says_how_far_the_values_are_off() -> None:
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
    offsets: Any = apart.collections[0].get_offsets()
    assert offsets.tolist() == [[0, 0], [1, 0], [2, 0], [3, 0.5]]
    assert POINTS >= 1_000
