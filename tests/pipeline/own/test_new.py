"""What `triton-notebooks new` writes of a model, and what it says of one that it cannot take."""

import logging
import re
import subprocess
import sys
from types import SimpleNamespace
from unittest.mock import Mock

import nbformat
import numpy as np
import onnx
import psutil
import pytest
import yaml
from onnx import helper, numpy_helper
from sklearn.metrics import f1_score

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
from tests.pipeline.notebooks import common_code, prose, read, require_rules
from tests.pipeline.own import sources
from tests.pipeline.own.cases import graph, relu

STAGES = ("export", "convert", "deploy", "perf_offline", "perf_online", "compare", "report", "tune")
ONNX = ("--from", "model.onnx")
LABELLED = (*ONNX, "--samples", "samples.npz", "--labels", "labels.npz", "--metric")


@pytest.fixture
def scores(place):
    """The project that `new` writes to, beside a graph of one layer and samples of it."""
    sources.scores(place.parent / "model.onnx")
    sources.samples(place.parent / "samples.npz")
    return place


def written(place):
    return sorted(str(path.relative_to(place)) for path in place.rglob("*") if path.is_file())


def new(*arguments):
    return main(["new", *map(str, arguments)])


def parameters(place):
    content = yaml.safe_load((place / "params/mine.yaml").read_text())
    return content, content["models"]["mine"]


def described(place):
    return yaml.safe_load((place / "helpers/models/mine/model.yaml").read_text())


def test_an_onnx_file_becomes_a_package_eight_notebooks_and_a_parameter_file(scores, capsys):
    assert new("mine", *ONNX) == 0

    notebooks = [f"notebooks/mine/{stage}.ipynb" for stage in sorted(STAGES)]
    package = [f"helpers/models/mine/{name}" for name in ("__init__.py", "model.yaml")]
    assert written(scores) == [*package, *notebooks, "params/mine.yaml"]
    said = capsys.readouterr().out.splitlines()
    assert said[:4] == [
        "input features: float32, 16",
        "output logits: float32, 4",
        "samples: random inputs",
        "experiments: onnx-fp32, openvino-fp32, openvino-bf16",
    ]
    assert re.fullmatch("next: triton-notebooks run .*params/mine.yaml", said[-1])
    report = (scores / "notebooks/mine/report.ipynb").read_text()
    assert "*drawn at random* from type and shape" in report.replace("\\n", " ")
    first = {name: (scores / name).read_text() for name in written(scores)}
    scores.rename(scores.parent / "before")
    assert new("mine", *ONNX) == 0
    assert {name: (scores / name).read_text() for name in written(scores)} == first
    content = described(scores)
    tolerances = content.pop("tolerances")
    assert content == {
        "source": "onnx",
        "framework": "onnxruntime",
        "inputs": [{"name": "features", "dtype": "float32", "shape": [16]}],
        "outputs": [{"name": "logits", "dtype": "float32", "shape": [4]}],
        "decision": "class",
    }
    narrow = tolerances_for([sources.FEATURES])
    for precision, pair in tolerances.items():  # the largest and the mean difference
        assert (np.array(pair) > 0.95 * np.array(narrow[precision])).all()
    model = Own.load(str(scores / "helpers/models/mine/__init__.py"))
    found = (model.TITLE, model.FRAMEWORK, model.IS_BATCHED, model.METRICS)
    assert found == ("mine", "onnxruntime", True, {})
    assert {name: tuple(pair) for name, pair in tolerances.items()} == model.TOLERANCES


def test_a_fault_in_a_description_is_one_clear_line(scores):
    new("mine", *ONNX)
    path = scores / "helpers/models/mine/model.yaml"
    text = path.read_text()
    for other, line in (
        ("decide: class", "decide: Extra inputs are not permitted"),
        ("decision: both", "decision: Input should be"),
        ("decision: {", "while parsing a flow"),
    ):
        path.write_text(text.replace("decision: class", other))
        with pytest.raises(ParameterError, match=f"model.yaml: {line}") as fault:
            Own.load(str(path.with_name("__init__.py")))
        assert "\n" not in str(fault.value)


def test_the_parameter_file_and_the_notebooks_keep_the_rules_of_all(scores):
    assert new("mine", *LABELLED, "accuracy") == 0

    content, section = parameters(scores)
    assert content["gpu"] == "CPU (mine)"
    files = {"dataset": "samples.npz", "checkpoint": "model.onnx", "labels": "labels.npz"}
    for name, file in files.items():
        assert (ROOT / section["defaults"].pop(name)).resolve() == scores.parent / file
    kinds = ["onnx-fp32", "onnx-int8", "openvino-fp32", "openvino-bf16", "openvino-int8"]
    assert list(section["experiments"]) == kinds
    content["models"] = {"resnet50": section}  # a model that is there
    parsed = parse(content, "mine", "mine.yaml")
    for name in parsed.experiments("resnet50"):
        validated(Experiment, parsed.merged("resnet50", name), name, "resnet50")

    text = {}
    for path in (scores / "notebooks/mine").glob("*.ipynb"):
        book = nbformat.read(path, as_version=4)
        require_rules(book)
        assert common_code(book, "mine") == common_code(read("resnet50", path.stem), "resnet50")
        text[path.stem] = " ".join(prose(book).split())
        assert not re.search(r"(?<!overrides = )\{\w+\}", text[path.stem]), "a word is left open"
        assert "--- " not in text[path.stem], "a section is within another"
    takes = "It takes `features` (float32, 16) and returns `logits` (float32, 4)."
    assert takes in text["export"]
    assert "The samples come from `samples.npz`." in text["export"]
    assert "The metric `accuracy` must keep 99% of the reference's" in text["deploy"]


NO_NAMES = ["class", "2nd", "a-b", "_x", "größe", "lessons", "names", "x" * 41]


@pytest.mark.parametrize("name", NO_NAMES)
def test_a_name_that_python_does_not_take_is_refused(name, scores, capsys):
    assert new(name, *ONNX) == 2
    assert capsys.readouterr().err.startswith(f"error: Invalid name '{name}'. ")
    assert written(scores) == []


@pytest.mark.parametrize("taken", ["helpers/models/mine", "notebooks/mine", "params/mine.yaml"])
def test_nothing_is_overwritten(taken, scores, capsys):
    (scores / taken).mkdir(parents=True)

    assert new("mine", *ONNX) == 2
    assert f"error: {taken} already exists. Choose another name." in capsys.readouterr().err
    assert written(scores) == []


def test_a_model_that_needs_more_memory_than_there_is_is_refused(scores, monkeypatch, capsys):
    """A stage has the weights read, built, exported, and loaded by a runtime."""
    size = (scores.parent / "model.onnx").stat().st_size
    free = SimpleNamespace(available=4 * size - 1)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)

    assert new("mine", *ONNX) == 1
    assert "GB of weights. A stage needs about 4 times that, " in capsys.readouterr().err
    assert written(scores) == []

    free.available += 1
    assert new("mine", *ONNX) == 0
    free.available = 0
    assert new("other", *ONNX, "--samples", "samples.npz") == 1
    assert "samples.npz has 0.0 GB of samples. A stage needs" in capsys.readouterr().err


def test_if_a_file_cannot_be_written_none_is(scores, monkeypatch):
    write = creation.write_atomic

    def fails_late(path, content):
        if path.suffix == ".ipynb" and list(path.parent.glob("*.ipynb")):
            raise OSError("the disk is full")
        return write(path, content)

    monkeypatch.setattr(creation, "write_atomic", fails_late)

    with pytest.raises(OSError, match="the disk is full"):
        new("mine", *ONNX)
    assert written(scores) == []


def test_sizes_that_are_free_are_those_of_the_samples_and_no_others(place, capsys):
    relu("float[n, 3, height, width]")(place.parent)
    pixels = np.random.default_rng(0).standard_normal((4, 3, 8, 6)).astype(np.float32)
    np.savez(place.parent / "samples.npz", x=pixels)
    given = (*ONNX, "--samples", "samples.npz")

    assert new("mine", *given) == 0

    said = capsys.readouterr().out
    assert "input x: float32, 3 x height x width" in said
    assert "output y: float32, 3 x height x width" in said
    assert parameters(place)[1]["defaults"]["dimensions"] == {"height": 8, "width": 6}
    assert new("other", *given, "--dimension", "height=320") == 2
    fault = "--dimension height=320 does not match the samples, in which it is 8. Leave it out."
    assert fault in capsys.readouterr().err
    assert new("other", *given, "--dimension", "height=8") == 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Keras with NumPy 2
def test_an_output_whose_size_only_happens_to_be_half_a_dimension_keeps_it(place, capsys):
    from helpers.models._keras import keras

    k = keras()
    steps = k.Input((None, 8), name="steps")
    pooled = k.layers.Dense(10, name="pooled")(k.layers.GlobalAveragePooling1D()(steps))
    every = k.layers.AveragePooling1D(2, name="every")(steps)
    k.Model(steps, {"pooled": pooled, "every": every}).save(place.parent / "net.keras")

    assert new("mine", "--from", "net.keras", "--dimension", "steps_1=20") == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[1:3] == ["output pooled: float32, 10", "output every: float32, steps_1/2 x 8"]
    axes = TensorSpec("every", "float32", ("steps_1/2", 8))
    assert axes.sized({"steps_1": 20}).shape == (10, 8)


@pytest.mark.slow
def test_the_tolerances_of_frozen_weights_are_those_of_their_sums(tmp_path):
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


def test_a_graph_without_a_batch_gets_one_of_a_sample(place, capsys):
    sources.stateful(place.parent / "model.onnx")

    assert new("mine", *ONNX, "--batch", "none", "--dimension", "length=5") == 0

    assert "batch: one sample per request" in capsys.readouterr().out
    expected = {"scalars": ["net/loud:0"], "has_batch": False, "is_batched": False}
    assert expected.items() <= described(place).items()
    defaults = parameters(place)[1]["defaults"]
    assert (defaults["max_batch_size"], defaults["batch_sizes"]) == (1, [1])


def test_whole_numbers_are_drawn_below_the_rows_of_the_table_that_they_choose(place):
    nodes = "imprecise = Cast <to = 7> (ids) vectors = Gather(table, imprecise)"
    signature = "(int32[n, 5] ids) => (float[n, 5, 4] vectors)"
    graph(signature, nodes, table=np.ones((30, 4), np.float32))(place.parent)

    assert new("mine", *ONNX) == 0
    ids = {"name": "ids", "dtype": "int32", "shape": [5], "below": 30}
    assert described(place)["inputs"] == [ids]


def test_a_model_of_a_repository_has_the_notebooks_of_what_is_served(place, capsys):
    sources.repository(place.parent / "repository", backend="onnxruntime")

    assert new("mine", "--from", "repository/doubler") == 0

    assert "output doubled: float32, 3" in capsys.readouterr().out
    found = {path.stem for path in (place / "notebooks/mine").iterdir()}
    assert found == {"deploy", "perf_offline", "perf_online", "report"}
    deploy = nbformat.read(place / "notebooks/mine/deploy.ipynb", as_version=4)
    assert "--- " not in prose(deploy), "a section is within another"
    assert 'overrides = {"dataset": "samples.npz"}' in deploy.cells[-1].source
    assert described(place)["backend"] == "onnxruntime"
    content, section = parameters(place)
    assert content["server"]["kind"] == "docker"
    assert list(section["experiments"]) == ["as-it-is"]


def test_a_format_whose_runtime_lacks_an_operator_is_left_out_with_the_reason(place, capsys):
    signature, nodes = "(float[n, 3, 3] x) => (float[n, 1] y)", "d = Det(x) y = Unsqueeze(d, axis)"
    graph(signature, nodes, axis=[1])(place.parent)
    level = logging.root.level

    assert new("mine", *ONNX) == 0

    said = capsys.readouterr().out
    assert "experiments: onnx-fp32\n" in said
    assert re.search("left out: openvino: .*Det", said)
    book = nbformat.read(place / "notebooks/mine/convert.ipynb", as_version=4)
    assert '`overrides = {"dataset": "samples.npz"}`' in book.cells[-1].source
    assert logging.root.level == level


@pytest.mark.parametrize("opset", [13, 21, 24, 25])  # 22 and 23 are in the page's table
def test_files_of_every_opset_are_taken(opset, place, capsys):
    sources.scores(place.parent / "model.onnx", opset=opset)

    assert new("mine", *ONNX) == 0

    assert "experiments: onnx-fp32, openvino-fp32, openvino-bf16\n" in capsys.readouterr().out


@pytest.mark.parametrize("opset", [13, 21, 22, 25])
def test_rounding_is_seen_by_errors_of_its_size_in_weights_and_in_every_result(opset, tmp_path):
    error, rows = 0.01, 20_000
    weights = numpy_helper.from_array(np.diag(np.float32([1, 2, 3, 4])), "w")
    yes = numpy_helper.from_array(np.array(True), "yes")
    twice = helper.make_node("Add", ["product", "product"], ["twice"])
    doubled = helper.make_graph([twice], "inner", [], [sources.tensor("twice", ["n", 4])])
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


def test_metrics_are_those_of_their_definitions():
    scores = np.array([[0.9, 0.1], [0.2, 0.8], [0.4, 0.6], [0.7, 0.3]], np.float32)
    labels = np.array([0, 1, 0, 1])

    assert metrics.accuracy(scores, labels) == 2 / 4
    assert metrics.f1(scores, labels) == 1 / 2  # precision 1/2, recall 1/2
    assert metrics.auc(scores, labels) == 3 / 4  # pairs of a 1 and a 0 in the right order
    third = np.eye(3)[[0, 1, 2, 1]]  # labels of two classes, and three are predicted
    both = np.eye(3)[[0, 1, 1, 1]]  # two are predicted, and the model has scores of three
    for found in (third, both):
        right = f1_score(labels, found.argmax(1), average="macro")
        assert metrics.f1(found, labels) == pytest.approx(right)
    assert metrics.f1(np.array([0, 2, 2, 1]), np.array([0, 1, 2, 2])) == pytest.approx(1 / 2)
    with pytest.raises(DataError, match="there is a label 3, but .* scores of classes 0 to 2"):
        metrics.auc(third, np.array([0, 1, 3, 1]))
    assert metrics.mae(scores[:, :1], np.array([1, 0, 0, 1])) == pytest.approx(0.25)
    assert metrics.classes(np.array([[0.4], [0.6]])).tolist() == [0, 1]


@pytest.mark.slow
def test_what_is_written_passes_ruff_and_mypy(scores):
    sources.stateful(scores.parent / "other.onnx")
    assert new("mine", *LABELLED, "within_one") == 0
    assert described(scores)["metrics"] == {"within_one": "higher"}
    text = (scores / "helpers/models/mine/__init__.py").read_text()
    assert "def score(self, outputs: Arrays, labels: Array) -> dict[str, float]:" in text
    long = "a_name_that_is_nearly_as_long_as_allowed"
    assert new(long, "--from", "other.onnx", "--batch", "none", "--dimension", "length=5") == 0

    house = ["--config", str(ROOT / "pyproject.toml")]
    house += ["--config", "lint.isort.known-first-party=['helpers']"]
    packages = [str(scores / f"helpers/models/{name}/__init__.py") for name in ("mine", long)]
    mypy = ["mypy", "--config-file", str(ROOT / "pyproject.toml")]
    ruff = (["check", *house], ["format", "--check", *house])
    for command in (*(["ruff", *each, str(scores)] for each in ruff), [*mypy, *packages]):
        words = [sys.executable, "-m", *command]
        done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT)
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("gpu", "name"), [(DeviceError, "GPU (mine)"), ([Gpu("Tesla T4", 6, 15)], "NVIDIA T4 (mine)")]
)
def test_on_a_gpu_there_are_engines_of_tensorrt(gpu, name, scores, monkeypatch, capsys):
    monkeypatch.setattr(writing, "this_gpu", Mock(side_effect=gpu))

    assert new("mine", *ONNX, "--device", "gpu") == 0

    said = capsys.readouterr().out
    assert "experiments: onnx-fp32, trt-fp32, trt-fp16\n" in said
    assert "left out: onnx-fp16: the file is exported unchanged, in fp32" in said
    content, _ = parameters(scores)
    assert (content["gpu"], content["device"]) == (name, "gpu")


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"dimensions": {"tall": 3}}, "Unknown dimension 'tall'. This model has no dimensions."),
        ({"labels": "labels.npz"}, "The data set of this model has its labels. Remove"),
    ],
)
def test_other_models_have_neither_free_dimensions_nor_labels(given, line):
    with pytest.raises(ParameterError, match=line):
        resolve("resnet50", "export", overrides=given)
