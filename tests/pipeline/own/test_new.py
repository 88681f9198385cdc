"""What `triton-notebooks new` writes of a model, and what it says of one that it cannot take."""

import ast
import json
import logging
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import numpy as np
import onnx
import psutil
import pytest
import yaml
from onnx import TensorProto, helper, numpy_helper

from helpers.__main__ import main
from helpers.config import Gpu, parse, resolve
from helpers.config.checking import validated
from helpers.config.parameter_file import Experiment
from helpers.errors import DataError, DeviceError, ParameterError
from helpers.models._own import Own, TensorSpec, metrics
from helpers.models._own.graph import OnnxRuntime
from helpers.models._rounding import tolerances_for
from helpers.pipeline.own import creation, origin, rounding, writing
from helpers.pipeline.own.draft import draft
from helpers.store import ROOT
from tests.pipeline import test_prose as prose_rules
from tests.pipeline.own import sources
from tests.pipeline.test_notebooks import common_code, read
from tests.pipeline.test_try_it import EXPECTED, FEWEST_WORDS, OVERRIDES

FILES = ("dataset", "checkpoint", "labels")
STAGES = ("export", "convert", "deploy", "perf_offline", "perf_online", "report", "tune")
RUFF = (sys.executable, "-m", "ruff")


PACKAGE = '''\
"""The model `mine`: `model.yaml` describes it."""

from helpers.models._own import Own

COMPANIONS = ("model.yaml",)  # a change of it is a change here
MODEL = Own.load(__file__)
'''


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the command writes here, beside no other model; the shell is in its parent."""
    target = tmp_path / "project"
    monkeypatch.setattr(creation, "ROOT", target)
    monkeypatch.chdir(tmp_path)
    return target


def written(place: Path) -> list[str]:
    return sorted(str(path.relative_to(place)) for path in place.rglob("*") if path.is_file())


def new(*arguments: str) -> int:
    return main(["new", *map(str, arguments)])


def test_an_onnx_file_becomes_a_package_seven_notebooks_and_a_parameter_file(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sources.scores(place.parent / "scores.onnx")

    assert new("mine", "--from", "scores.onnx") == 0

    notebooks = [f"notebooks/mine/{stage}.ipynb" for stage in sorted(STAGES)]
    package = [f"helpers/models/mine/{name}" for name in ("__init__.py", "model.yaml")]
    assert written(place) == [*package, *notebooks, "params/mine.yaml"]
    said = capsys.readouterr().out.splitlines()
    assert said[:4] == [
        "input features: float32, 16",
        "output logits: float32, 4",
        "samples: random inputs",
        "experiments: onnx-fp32, openvino-fp32, openvino-bf16",
    ]
    assert said[-1].startswith("next: triton-notebooks run ")
    assert said[-1].endswith("params/mine.yaml")


def described(place: Path) -> dict[str, Any]:
    """What `new` says of the model."""
    content = yaml.safe_load((place / "helpers/models/mine/model.yaml").read_text())
    assert isinstance(content, dict)
    return content


def test_a_file_describes_the_model_and_its_package_loads_it(place: Path) -> None:
    sources.scores(place.parent / "scores.onnx")
    new("mine", "--from", "scores.onnx")
    package = place / "helpers/models/mine/__init__.py"

    assert package.read_text() == PACKAGE
    content = described(place)
    tolerances = content.pop("tolerances")
    assert content == {
        "source": "onnx",
        "framework": "onnxruntime",
        "inputs": [{"name": "features", "dtype": "float32", "shape": [16]}],
        "outputs": [{"name": "logits", "dtype": "float32", "shape": [4]}],
        "decision": "class",
    }
    narrow = tolerances_for([sources.FEATURES])
    for precision, (largest, mean) in tolerances.items():
        assert largest > 0.95 * narrow[precision][0]
        assert mean > 0.95 * narrow[precision][1]
    model = Own.load(str(package))
    assert model.TITLE == "mine"
    assert (model.FRAMEWORK, model.IS_BATCHED, model.METRICS) == ("onnxruntime", True, {})
    assert {name: tuple(pair) for name, pair in tolerances.items()} == model.TOLERANCES


DESCRIPTIONS = {
    "an unknown field": (
        "decision:",
        "decide:",
        "model.yaml: decide: Extra inputs are not permitted",
    ),
    "a wrong value": ("decision: class", "decision: both", "model.yaml: decision: Input should be"),
    "no YAML": ("decision: class", "decision: {", "model.yaml: while parsing a flow"),
}


@pytest.mark.parametrize(("old", "other", "line"), DESCRIPTIONS.values(), ids=list(DESCRIPTIONS))
def test_a_fault_in_a_description_is_one_clear_line(
    old: str, other: str, line: str, place: Path
) -> None:
    sources.scores(place.parent / "scores.onnx")
    new("mine", "--from", "scores.onnx")
    path = place / "helpers/models/mine/model.yaml"
    path.write_text(path.read_text().replace(old, other))

    with pytest.raises(ParameterError, match=line) as fault:
        Own.load(str(path.with_name("__init__.py")))
    assert "\n" not in str(fault.value)


def test_the_parameter_file_names_the_files_and_keeps_the_rules_of_all(place: Path) -> None:
    path = sources.scores(place.parent / "scores.onnx")
    given = sources.samples(place.parent / "samples.npz")

    options = ("--samples", "samples.npz", "--labels", "labels.npz", "--metric", "accuracy")
    assert new("mine", "--from", "scores.onnx", *options) == 0

    content = yaml.safe_load((place / "params/mine.yaml").read_text())
    section = content["models"].pop("mine")
    assert content["gpu"] == "CPU (mine)"
    files = {name: ROOT / section["defaults"].pop(name) for name in FILES}
    assert {name: each.resolve() for name, each in files.items()} == {
        "dataset": given,
        "checkpoint": path,
        "labels": given.with_name("labels.npz"),
    }
    assert list(section["experiments"]) == [
        *("onnx-fp32", "onnx-int8", "openvino-fp32", "openvino-bf16", "openvino-int8"),
    ]
    content["models"] = {"resnet50": section}  # a model that is there
    parsed = parse(content, "mine", "mine.yaml")
    for name in parsed.experiments("resnet50"):
        validated(Experiment, parsed.merged("resnet50", name), name, "resnet50")


@pytest.fixture
def books(place: Path) -> dict[str, Any]:
    """The notebooks of a model, whose sizes, samples and metric are said."""
    sources.scores(place.parent / "scores.onnx")
    sources.samples(place.parent / "samples.npz")
    options = ("--samples", "samples.npz", "--labels", "labels.npz", "--metric", "accuracy")
    assert new("mine", "--from", "scores.onnx", *options) == 0
    return {
        path.stem: nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
        for path in (place / "notebooks/mine").glob("*.ipynb")
    }


def test_the_notebooks_keep_the_rules_of_all_notebooks(books: dict[str, Any]) -> None:
    for stage, book in books.items():
        nbformat.validate(book)
        assert 6 <= len(book.cells) <= 15
        assert common_code(book, "mine") == common_code(read("resnet50", stage), "resnet50")
        text = "\n".join(cell.source for cell in book.cells if cell.cell_type == "markdown")
        figures = {" ".join(figure) for figure in prose_rules.FIGURE.findall(text)}
        assert figures <= set(prose_rules.SOURCES)
        assert prose_rules.MEASURED.findall(text) == []
        assert not re.search(r"(?<!overrides = )\{\w+\}", text), "a word is left open"
        ids = [cell.id for cell in book.cells]
        assert len(set(ids)) == len(ids)
        assert [c.outputs for c in book.cells if c.cell_type == "code" and c.outputs] == []


def test_each_notebook_ends_with_something_to_try(books: dict[str, Any]) -> None:
    for stage, book in books.items():
        last = book.cells[-1].source
        assert last.startswith("## Try it\n"), stage
        (first, *_) = OVERRIDES.findall(last)
        assert ast.literal_eval(first)
        words = OVERRIDES.split(last)[2]
        assert len(words.split()) >= FEWEST_WORDS
        assert EXPECTED.search(words)


def test_the_prose_says_shapes_samples_and_metric(books: dict[str, Any]) -> None:
    text = {
        stage: " ".join(" ".join(cell.source for cell in book.cells).split())
        for stage, book in books.items()
    }

    takes = "It takes `features` (float32, 16) and returns `logits` (float32, 4)."
    assert takes in text["export"]
    assert "The samples come from `samples.npz`." in text["export"]
    assert "The metric `accuracy` must keep 99% of the reference's" in text["deploy"]


def test_without_samples_every_stage_says_that_they_were_drawn(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sources.scores(place.parent / "scores.onnx")
    new("mine", "--from", "scores.onnx")

    book = (place / "notebooks/mine/report.ipynb").read_text()
    assert "*drawn at random* from type and shape" in " ".join(json.dumps(book).split())


def tree(*arguments: Any, **options: Any) -> Callable[[Path], object]:
    return lambda folder: sources.relu(folder / "model.onnx", *arguments, **options)


def junk(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text("this is no model")


def custom(folder: Path) -> None:
    """A graph with an operator that ONNX Runtime lacks."""
    node = helper.make_node("Nope", ["x"], ["y"], domain="com.acme")
    shape = [sources.tensor("x", ["n", 3])], [sources.tensor("y", ["n", 3])]
    sources.save(folder / "model.onnx", [node], *shape, domains=["com.acme"])


def lost(folder: Path) -> None:
    """A graph whose weights lie in another file, which is gone."""
    options: Any = {"save_as_external_data": True, "location": "beside", "size_threshold": 0}
    sources.scores(folder / "model.onnx", **options)
    (folder / "beside").unlink()


def mixing(folder: Path) -> None:
    """A graph that mixes the samples of a batch."""
    node = helper.make_node("Reshape", ["x", "shape"], ["y"])
    shape = numpy_helper.from_array(np.array([1, -1]), "shape")
    tensors = [sources.tensor("x", ["n", 4])], [sources.tensor("y", ["n", 4])]
    sources.save(folder / "model.onnx", [node], *tensors, [shape])


def meeting(folder: Path) -> None:
    """A graph in which a sample's output depends on the others of its batch."""
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["mean"], axes=[0], keepdims=1),
        helper.make_node("Sub", ["x", "mean"], ["y"]),
    ]
    tensors = [sources.tensor("x", ["n", 4])], [sources.tensor("y", ["n", 4])]
    sources.save(folder / "model.onnx", nodes, *tensors)


def picky(folder: Path) -> None:
    """A graph that takes 100, 101 and 102 only."""
    nodes = [
        helper.make_node("Sub", ["k", "hundred"], ["place"]),
        helper.make_node("Gather", ["table", "place"], ["y"]),
    ]
    constants = {"hundred": np.array(100), "table": np.zeros((3, 2), np.float32)}
    held = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    tensors = [sources.tensor("k", ["n"], TensorProto.INT64)], [sources.tensor("y", ["n", 2])]
    sources.save(folder / "model.onnx", nodes, *tensors, held)


def newest(folder: Path) -> None:
    """A graph of an opset that nobody has."""
    tensors = [sources.tensor("x", ["n", 4])], [sources.tensor("y", ["n", 4])]
    node = helper.make_node("Relu", ["x"], ["y"])
    sources.save(folder / "model.onnx", [node], *tensors, opset=99)


ONNX = ("--from", "model.onnx")
BAD: dict[str, tuple[Callable[[Path], object], tuple[str, ...], str]] = {
    "no such file": (lambda _: None, ("--from", "none.onnx"), "--from none.onnx: no such file"),
    "a folder": (lambda f: (f / "it").mkdir(), ("--from", "it"), "source 'it'. Use an .onnx"),
    "no ONNX": (junk("a.onnx"), ("--from", "a.onnx"), "a.onnx is not an ONNX model"),
    "no Keras": (junk("a.keras"), ("--from", "a.keras"), "a.keras is not a Keras file"),
    "no TorchScript": (junk("a.pt"), ("--from", "a.pt"), "a.pt is not a TorchScript file"),
    "no program": (junk("a.pt2"), ("--from", "a.pt2"), "a.pt2 is not a program that torch.export"),
    "another file": (junk("a.txt"), ("--from", "a.txt"), "source 'a.txt'. Use an .onnx"),
    "an operator": (custom, ONNX, "com.acme:Nope"),
    "lost weights": (lost, ONNX, "has weights in other files, and one of them is missing"),
    "a name": (
        tree(["n", 3], "x y"),
        ONNX,
        "has the input name 'x y'. Rename it: Triton's clients accept",
    ),
    "text": (tree(["n"], kind=TensorProto.STRING), ONNX, " is text. Use numeric inputs."),
    "a batch of one": (tree([1, 3]), ONNX, "is 1 x 3, with a fixed first dimension. Export"),
    "no batch": (tree([]), ONNX, "The input 'x' has no batch dimension. Use --batch none"),
    "free sizes": (
        *(tree(["n", "height", "width"]), ONNX),
        "The input 'x' has free dimensions: height, width. Use --samples",
    ),
    "a size": (
        *(tree(["n", "height"]), (*ONNX, "--dimension", "height=tall")),
        "Invalid --dimension height=tall. Use a name and a size",
    ),
    "another size": (
        *(tree(["n", 3]), (*ONNX, "--dimension", "height=3")),
        "Unknown --dimension height. The free dimensions are none.",
    ),
    "mixed samples": (mixing, ONNX, "The output 'y' of two samples has the shape 1 x 8, not a row"),
    "samples that meet": (meeting, ONNX, "Output 'y' changes when another sample is in the batch"),
    "certain values": (
        picky,
        ONNX,
        "k 1 x 1 (random inputs; use --samples if the model accepts only",
    ),
    "an opset": (newest, ONNX, "has opset 99, but this ONNX Runtime supports opset "),
    "a strange batch": (
        tree(["n", 3]),
        (*ONNX, "--batch", "2"),
        "Invalid --batch 2. Use 1 or none.",
    ),
    "a batch that is none": (
        *(tree([2, 3]), (*ONNX, "--batch", "1")),
        "--batch 1 does not match the input 'x', whose first dimension is 2",
    ),
}


@pytest.mark.parametrize(("prepare", "options", "line"), BAD.values(), ids=list(BAD))
def test_what_cannot_be_taken_is_one_clear_line(
    prepare: Callable[[Path], object],
    options: tuple[str, ...],
    line: str,
    place: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    prepare(place.parent)

    assert new("mine", *options) in (1, 2)

    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.splitlines()) == 1
    assert said.err.startswith("error: ")
    assert line in said.err
    assert written(place) == []


DRAWN = np.zeros((4, sources.FEATURES), np.float32)
NOT_FINITE = np.where(np.arange(64).reshape(4, 16) == 37, np.nan, DRAWN)
SAMPLES: dict[str, tuple[dict[str, Any], str]] = {
    "another name": ({"points": DRAWN}, "has no array 'features'"),
    "one too many": (
        {"features": DRAWN, "x": DRAWN},
        "has the array 'x'. The model's inputs are features.",
    ),
    "another type": ({"features": DRAWN.astype(float)}, "is float64, but the input takes float32"),
    "another shape": ({"features": DRAWN[:, :7]}, "are 4 x 7, but the input takes rows x 16"),
    "not a number": (
        {"features": NOT_FINITE.astype(np.float32)},
        "the array 'features' has a number that is not finite in row 2",
    ),
    "no rows": ({"features": DRAWN[:0]}, "has no rows"),
    "objects": ({"features": np.array([{}])}, "is not an .npz of plain arrays"),
}


@pytest.mark.parametrize(("arrays", "line"), SAMPLES.values(), ids=list(SAMPLES))
def test_samples_that_do_not_fit_are_one_clear_line(
    arrays: dict[str, Any], line: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sources.scores(place.parent / "model.onnx")
    np.savez(place.parent / "samples.npz", **arrays)

    assert new("mine", *ONNX, "--samples", "samples.npz") == 1

    said = capsys.readouterr().err
    assert line in said
    assert len(said.splitlines()) == 1
    assert written(place) == []


LABELLED = {
    "a metric alone": (("--metric", "f1"), "--metric f1 also needs --labels: an .npz file"),
    "labels alone": (
        ("--samples", "samples.npz", "--labels", "labels.npz"),
        "also needs --metric: ",
    ),
    "no samples": (
        ("--labels", "labels.npz", "--metric", "f1"),
        "--labels also needs --samples: labels",
    ),
    "too few": (
        ("--samples", "samples.npz", "--labels", "few.npz", "--metric", "f1"),
        "few.npz has 3 labels, but there are 64 samples",
    ),
    "no file": (
        ("--samples", "none.npz"),
        "none.npz: No such file or directory. Use an .npz file.",
    ),
    "no name": (
        ("--samples", "samples.npz", "--labels", "labels.npz", "--metric", "a-b"),
        "Invalid --metric a-b. Use accuracy, f1, auc, mae, or a name for your own.",
    ),
}


@pytest.mark.parametrize(("options", "line"), LABELLED.values(), ids=list(LABELLED))
def test_a_metric_and_its_labels_belong_together(
    options: tuple[str, ...], line: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sources.scores(place.parent / "model.onnx")
    sources.samples(place.parent / "samples.npz")
    np.savez(place.parent / "few.npz", label=np.zeros(3, int))

    assert new("mine", *ONNX, *options) in (1, 2)

    said = capsys.readouterr().err
    assert line in said
    assert len(said.splitlines()) == 1
    assert written(place) == []


@pytest.mark.parametrize("name", ["class", "2nd", "a-b", "_x", "größe", "lessons", "x" * 41])
def test_a_name_that_python_does_not_take_is_refused(
    name: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sources.scores(place.parent / "model.onnx")

    assert new(name, *ONNX) == 2
    assert capsys.readouterr().err.startswith(f"error: Invalid name '{name}'. ")
    assert written(place) == []


@pytest.mark.parametrize("taken", ["helpers/models/mine", "notebooks/mine", "params/mine.yaml"])
def test_nothing_is_overwritten(
    taken: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sources.scores(place.parent / "model.onnx")
    (place / taken).mkdir(parents=True)

    assert new("mine", *ONNX) == 2
    assert f"error: {taken} already exists. Choose another name." in capsys.readouterr().err
    assert written(place) == []


def test_a_model_that_needs_more_memory_than_there_is_is_refused(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A stage has the weights read, built, exported, and loaded by a runtime."""
    size = sources.scores(place.parent / "model.onnx").stat().st_size
    free = SimpleNamespace(available=4 * size - 1)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)

    assert new("mine", *ONNX) == 1
    assert "GB of weights. A stage needs about 4 times that, " in capsys.readouterr().err
    assert written(place) == []

    free.available += 1
    assert new("mine", *ONNX) == 0


def test_samples_that_need_more_memory_than_there_is_are_called_so(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sources.scores(place.parent / "model.onnx")
    sources.samples(place.parent / "samples.npz")
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=0))

    assert new("mine", *ONNX, "--samples", "samples.npz") == 1
    assert "samples.npz has 0.0 GB of samples. A stage needs" in capsys.readouterr().err


def test_if_a_file_cannot_be_written_none_is(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sources.scores(place.parent / "model.onnx")
    write, count = creation.write_atomic, 0

    def fails_late(path: Path, content: str) -> Path:
        nonlocal count
        count += 1
        if count == 4:
            raise OSError("the disk is full")
        return write(path, content)

    monkeypatch.setattr(creation, "write_atomic", fails_late)

    with pytest.raises(OSError, match="the disk is full"):
        new("mine", *ONNX)
    assert written(place) == []


def test_sizes_that_are_free_are_those_of_the_samples(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sources.relu(place.parent / "model.onnx", ["n", 3, "height", "width"])
    pixels = np.random.default_rng(0).standard_normal((4, 3, 8, 6)).astype(np.float32)
    np.savez(place.parent / "samples.npz", x=pixels)

    assert new("mine", *ONNX, "--samples", "samples.npz") == 0

    said = capsys.readouterr().out
    assert "input x: float32, 3 x height x width" in said
    assert "output y: float32, 3 x height x width" in said
    content = yaml.safe_load((place / "params/mine.yaml").read_text())
    assert content["models"]["mine"]["defaults"]["dimensions"] == {"height": 8, "width": 6}


def test_a_size_that_is_given_beside_samples_must_be_theirs(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sources.relu(place.parent / "model.onnx", ["n", "height"])
    np.savez(place.parent / "samples.npz", x=np.zeros((4, 256), np.float32))
    given = (*ONNX, "--samples", "samples.npz", "--dimension")

    assert new("mine", *given, "height=320") == 2
    fault = "--dimension height=320 does not match the samples, in which it is 256. Leave it out."
    assert fault in capsys.readouterr().err
    assert new("mine", *given, "height=256") == 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Keras with NumPy 2
def test_an_output_whose_size_only_happens_to_be_half_a_dimension_keeps_it(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from helpers.models._keras import keras

    k = keras()
    steps = k.Input((None, 8), name="steps")
    pooled = k.layers.Dense(10, name="pooled")(k.layers.GlobalAveragePooling1D()(steps))
    every = k.layers.AveragePooling1D(2, name="every")(steps)
    k.Model(steps, {"pooled": pooled, "every": every}).save(place.parent / "net.keras")

    assert new("mine", "--from", "net.keras", "--dimension", "steps_1=20") == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[1:3] == ["output pooled: float32, 10", "output every: float32, steps_1/2 x 8"]


@pytest.mark.slow
def test_the_tolerances_of_frozen_weights_are_those_of_their_sums(tmp_path: Path) -> None:
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    from helpers.models._keras import tensorflow

    tf = tensorflow()
    module = tf.Module()
    module.weights = tf.Variable(tf.ones((100, 4)))
    spec = tf.TensorSpec((None, 100), name="x")
    function = tf.function(lambda x: {"y": x @ module.weights}, [spec]).get_concrete_function()
    frozen = convert_variables_to_constants_v2(function)
    module = tf.Module()
    module.of = tf.function(lambda x: {"y": frozen(x)[0]}, [spec])
    tf.saved_model.save(module, str(tmp_path / "saved"), signatures=module.of)

    found = draft("mine", origin.read(str(tmp_path / "saved")), None, "", {}, ["fp32", "bf16"])

    assert found.terms == (100, 1)
    assert found.effects == {}


def test_an_output_may_have_a_part_of_a_dimension() -> None:
    axes = TensorSpec("map", "float32", ("height/4", 2))

    assert axes.sized({"height": 320}).shape == (80, 2)


def test_a_graph_without_a_batch_gets_one_of_a_sample(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sources.stateful(place.parent / "model.onnx")

    assert new("mine", *ONNX, "--batch", "none", "--dimension", "length=5") == 0

    assert "batch: one sample per request" in capsys.readouterr().out
    content = described(place)
    assert content["scalars"] == ["net/loud:0"]
    assert not content["has_batch"]
    assert not content["is_batched"]
    defaults = yaml.safe_load((place / "params/mine.yaml").read_text())["models"]["mine"][
        "defaults"
    ]
    assert (defaults["max_batch_size"], defaults["batch_sizes"]) == (1, [1])


def test_whole_numbers_are_drawn_below_the_rows_of_the_table_that_they_choose(place: Path) -> None:
    table = numpy_helper.from_array(np.ones((30, 4), np.float32), "table")
    nodes = [
        helper.make_node("Cast", ["ids"], ["imprecise"], to=TensorProto.INT64),
        helper.make_node("Gather", ["table", "imprecise"], ["vectors"]),
    ]
    ids = sources.tensor("ids", ["n", 5], TensorProto.INT32)
    sources.save(
        *(place.parent / "model.onnx", nodes, [ids], [sources.tensor("vectors", ["n", 5, 4])]),
        [table],
    )

    assert new("mine", *ONNX) == 0
    ids = {"name": "ids", "dtype": "int32", "shape": [5], "below": 30}
    assert described(place)["inputs"] == [ids]


def test_a_model_of_a_repository_has_the_notebooks_of_what_is_served(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sources.repository(place.parent / "repository", backend="onnxruntime")

    assert new("mine", "--from", "repository/doubler") == 0

    assert "output doubled: float32, 3" in capsys.readouterr().out
    found = {path.stem for path in (place / "notebooks/mine").iterdir()}
    assert found == {"deploy", "perf_offline", "perf_online", "report"}
    assert described(place)["backend"] == "onnxruntime"
    content = yaml.safe_load((place / "params/mine.yaml").read_text())
    assert content["server"]["kind"] == "docker"
    assert list(content["models"]["mine"]["experiments"]) == ["as-it-is"]


REPOSITORIES = {
    "no configuration": ("max_batch_size", "no_such_field", "is not a Triton model configuration"),
    "no batch": ("max_batch_size: 8", "max_batch_size: 0", "Give the model a batch dimension"),
    "no tensors": ("input {", "parameters { key:", "config.pbtxt"),
    "free size": ("dims: [ 3 ] }\ndyn", "dims: [ -1 ] }\ndyn", "has a free size"),
}


@pytest.mark.parametrize(
    ("old", "written_as", "line"), REPOSITORIES.values(), ids=list(REPOSITORIES)
)
def test_a_repository_that_cannot_be_measured_is_one_clear_line(
    old: str, written_as: str, line: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = sources.repository(place.parent / "repository") / "config.pbtxt"
    path.write_text(path.read_text().replace(old, written_as))

    assert new("mine", "--from", "repository/doubler") in (1, 2)

    said = capsys.readouterr().err
    assert line in said
    assert len(said.splitlines()) == 1
    assert written(place) == []


def test_a_format_whose_runtime_lacks_an_operator_is_left_out_with_the_reason(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = [
        helper.make_node("Det", ["x"], ["number"]),
        helper.make_node("Unsqueeze", ["number", "axis"], ["y"]),
    ]
    tensors = [sources.tensor("x", ["n", 3, 3])], [sources.tensor("y", ["n", 1])]
    axis = numpy_helper.from_array(np.array([1]), "axis")
    sources.save(place.parent / "model.onnx", nodes, *tensors, [axis])
    level = logging.root.level

    assert new("mine", *ONNX) == 0

    said = capsys.readouterr().out
    assert "experiments: onnx-fp32\n" in said
    assert re.search("left out: openvino: OpenVINO rejects it: .*Det", said)
    book = nbformat.read(place / "notebooks/mine/convert.ipynb", as_version=4)  # type: ignore[no-untyped-call]
    (override,) = OVERRIDES.findall(book.cells[-1].source)
    assert ast.literal_eval(override) == {"dataset": "samples.npz"}
    assert logging.root.level == level


OPSETS = (13, 21, 22, 23, 24, 25)


@pytest.mark.parametrize("opset", OPSETS)
def test_files_of_every_opset_are_taken(
    opset: int, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sources.scores(place.parent / "model.onnx", opset=opset)

    assert new("mine", *ONNX) == 0

    assert "experiments: onnx-fp32, openvino-fp32, openvino-bf16\n" in capsys.readouterr().out


@pytest.mark.parametrize("opset", OPSETS)
def test_rounding_is_seen_by_errors_of_its_size_in_weights_and_in_every_result(
    opset: int, tmp_path: Path
) -> None:
    error, rows = 0.01, 20_000
    weights = numpy_helper.from_array(np.diag(np.float32([1, 2, 3, 4])), "w")
    yes = numpy_helper.from_array(np.array(True), "yes")
    doubled = helper.make_graph(
        [helper.make_node("Add", ["product", "product"], ["twice"])],
        *("inner", [], [sources.tensor("twice", ["n", 4])]),
    )
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"]),
        helper.make_node("If", ["yes"], ["y"], then_branch=doubled, else_branch=doubled),
    ]
    tensors = [sources.tensor("x", ["n", 4])], [sources.tensor("y", ["n", 4])]
    path = sources.save(tmp_path / "m.onnx", nodes, *tensors, [weights, yes], opset=opset)
    noisy = OnnxRuntime(rounding.add_rounding_noise(onnx.load(path), error))

    off = noisy.run({"x": np.ones((rows, 4), np.float32)})["y"] / np.float32([2, 4, 6, 8]) - 1

    # of the product and of the sum, beside that of a weight, which is one for all samples
    # (numbers of ONNX Runtime's older operator by seeds 2 and 4 are related)
    assert off.std(0) == pytest.approx(np.full(4, error * 2**0.5), rel=0.05 if opset > 21 else 0.25)
    in_weights = np.abs(off.mean(0))
    assert (in_weights > error / 100).any()
    assert (in_weights < 1.1 * 3**0.5 * error).all()


def test_a_metric_of_ones_own_is_a_method_to_be_written(place: Path) -> None:
    sources.scores(place.parent / "model.onnx")
    sources.samples(place.parent / "samples.npz")
    options = ("--samples", "samples.npz", "--labels", "labels.npz", "--metric", "within_one")

    assert new("mine", *ONNX, *options) == 0

    text = (place / "helpers/models/mine/__init__.py").read_text()
    assert described(place)["metrics"] == {"within_one": "higher"}
    assert "def score(self, outputs: Arrays, labels: Array) -> dict[str, float]:" in text


def f1_of(found: Any, labels: Any) -> float:
    """The mean over all classes of 2 TP / (2 TP + FP + FN)."""
    classes = {*found.tolist(), *labels.tolist()}
    each = [
        2 * ((found == c) & (labels == c)).sum() / ((found == c).sum() + (labels == c).sum())
        for c in classes
    ]
    return float(np.mean(each))


def test_metrics_are_those_of_their_definitions() -> None:
    scores = np.array([[0.9, 0.1], [0.2, 0.8], [0.4, 0.6], [0.7, 0.3]], np.float32)
    labels = np.array([0, 1, 0, 1])

    assert metrics.accuracy(scores, labels) == 2 / 4
    assert metrics.f1(scores, labels) == 1 / 2  # precision 1/2, recall 1/2
    assert metrics.auc(scores, labels) == 3 / 4  # pairs of a 1 and a 0 in the right order
    third = np.eye(3)[[0, 1, 2, 1]]  # labels of two classes, and three are predicted
    assert metrics.f1(third, labels) == pytest.approx(f1_of(third.argmax(1), labels))
    both = np.eye(3)[[0, 1, 1, 1]]  # two are predicted, and the model has scores of three
    assert metrics.f1(both, labels) == pytest.approx(f1_of(both.argmax(1), labels))
    assert metrics.f1(np.array([0, 2, 2, 1]), np.array([0, 1, 2, 2])) == pytest.approx(1 / 2)
    with pytest.raises(DataError, match="there is a label 3, but .* scores of classes 0 to 2"):
        metrics.auc(third, np.array([0, 1, 3, 1]))
    assert metrics.mae(scores[:, :1], np.array([1, 0, 0, 1])) == pytest.approx(0.25)
    assert metrics.classes(np.array([[0.4], [0.6]])).tolist() == [0, 1]


TORCH: dict[str, tuple[tuple[str, ...], str]] = {
    "TorchScript": (
        ("--from", "net.pt", "--samples", "samples.npz"),
        "experiments: onnx-fp32, ts-script-fp32, ts-script-bf16, ts-trace-fp32, ts-trace-bf16, "
        "openvino-fp32, openvino-bf16",
    ),
    "a program": (("--from", "net.pt2"), "input features: float32, 16"),
    "a function": (("--from", "nets:named"), "output hidden: float32, 32"),
    "a branch": (("--from", "nets:branch"), "experiments: ts-script-fp32, ts-script-bf16"),
    "a check of a shape": (
        ("--from", "nets:checked"),
        "experiments: onnx-fp32, ts-trace-fp32, ts-trace-bf16, openvino-fp32, openvino-bf16",
    ),
}
# lines of `nets` that decide by values, and by the size of the batch
RARE, ODD = (
    next(n for n, line in enumerate(sources.NETS.splitlines(), 1) if text in line)
    for text in ("pixels.sum() > 1e9", "x.shape[0] == 1")
)
TORCH_BAD = {
    "no shapes": (
        ("--from", "net.pt"),
        "does not declare type and shape of its input 'features'. Use --samples",
    ),
    "a state dict": (("--from", "state.pt"), "(a state dict has no network)"),
    "no module": (("--from", "missing:plain"), "the module 'missing' was not found"),
    "no function": (("--from", "nets:missing"), "has no attribute 'missing'"),
    "no file": (("--from", "__main__:x"), "__main__:x cannot be imported: ValueError: __main__"),
    "control flow": (
        ("--from", "nets:unclear"),
        "nets:unclear cannot be converted to any format: the control flow depends on values (nets",
    ),
    "a rare case": (
        ("--from", "nets:rare"),
        f"control flow depends on values (nets.py, line {RARE}), and a trace or a graph would",
    ),
    "a size of a batch": (
        ("--from", "nets:odd"),
        f"a trace or a graph would be wrong for other batches (nets.py, line {ODD}): ",
    ),
    "a number": (("--from", "nets:number"), "nets:number does not return a pair"),
    "an error": (("--from", "nets:fails"), "RuntimeError: there are no weights here"),
}


@pytest.fixture(scope="module")
def torch_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("torch")
    sources.torch_files(folder)
    sources.samples(folder / "samples.npz")
    return folder


@pytest.fixture
def inside(torch_folder: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the files of PyTorch's models are."""
    monkeypatch.chdir(torch_folder)


@pytest.mark.slow
@pytest.mark.usefixtures("inside")
@pytest.mark.parametrize(("options", "line"), TORCH.values(), ids=list(TORCH))
def test_models_of_pytorch_become_what_pytorch_leads_to(
    options: tuple[str, ...], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert new("mine", *options) == 0
    assert line in capsys.readouterr().out.splitlines()


@pytest.mark.slow
@pytest.mark.usefixtures("inside")
@pytest.mark.parametrize(("options", "line"), TORCH_BAD.values(), ids=list(TORCH_BAD))
def test_what_pytorch_does_not_take_is_one_clear_line(
    options: tuple[str, ...], line: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert new("mine", *options) in (1, 2)
    said = capsys.readouterr().err
    assert line in said
    assert len(said.splitlines()) == 1
    assert written(place) == []


@pytest.mark.slow
def test_what_is_written_passes_ruff_and_mypy(place: Path) -> None:
    sources.scores(place.parent / "model.onnx")
    sources.samples(place.parent / "samples.npz")
    sources.stateful(place.parent / "other.onnx")
    options = ("--samples", "samples.npz", "--labels", "labels.npz", "--metric", "within_one")
    assert new("mine", *ONNX, *options) == 0
    long = "a_name_that_is_nearly_as_long_as_allowed"
    assert new(long, "--from", "other.onnx", "--batch", "none", "--dimension", "length=5") == 0

    house = ["--config", str(ROOT / "pyproject.toml")]
    house += ["--config", "lint.isort.known-first-party=['helpers']"]
    for command in (["check"], ["format", "--check"]):
        words = [*RUFF, *command, *house, str(place)]
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout
    packages = [str(place / f"helpers/models/{name}/__init__.py") for name in ("mine", long)]
    for package in packages:
        command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml")]
        done = subprocess.run([*command, package], capture_output=True, text=True, cwd=ROOT)
        assert done.returncode == 0, done.stdout


def test_the_same_source_gives_the_same_files(place: Path) -> None:
    sources.scores(place.parent / "model.onnx")
    assert new("mine", *ONNX) == 0
    first = {name: (place / name).read_text() for name in written(place)}
    shutil.rmtree(place)

    assert new("mine", *ONNX) == 0
    assert {name: (place / name).read_text() for name in written(place)} == first


def no_gpu() -> Gpu:
    raise DeviceError("no GPU")


GPUS: list[tuple[Callable[[], Gpu], str]] = [
    (no_gpu, "GPU (mine)"),
    (lambda: Gpu("Tesla T4", 6, 15), "NVIDIA T4 (mine)"),
]


@pytest.mark.parametrize(("ask", "name"), GPUS, ids=["elsewhere", "here"])
def test_on_a_gpu_there_are_engines_of_tensorrt(
    ask: Callable[[], Gpu],
    name: str,
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(writing, "this_gpu", ask)
    sources.scores(place.parent / "model.onnx")

    assert new("mine", *ONNX, "--device", "gpu") == 0

    said = capsys.readouterr().out
    assert "experiments: onnx-fp32, trt-fp32, trt-fp16\n" in said
    assert "left out: onnx-fp16: the file is exported unchanged, in fp32" in said
    content = yaml.safe_load((place / "params/mine.yaml").read_text())
    assert (content["gpu"], content["device"]) == (name, "gpu")


WRONG_FIELDS = {
    "unknown": (
        {"dimensions": {"tall": 3}},
        "Unknown dimension 'tall'. This model has no dimensions.",
    ),
    "labels": ({"labels": "labels.npz"}, "The data set of this model has its labels. Remove"),
}


@pytest.mark.parametrize(("given", "line"), WRONG_FIELDS.values(), ids=list(WRONG_FIELDS))
def test_other_models_have_neither_free_dimensions_nor_labels(
    given: dict[str, Any], line: str
) -> None:
    with pytest.raises(ParameterError, match=line):
        resolve("resnet50", "export", overrides=given)
