"""`new` ends well for damaged models: each mutant becomes files whose model answers as its own
runtime does, or an error of one line.
"""

import json
import shutil
import time
import warnings
import zipfile

import numpy as np
import onnx
import pytest
from google.protobuf.json_format import MessageToJson, ParseError
from google.protobuf.json_format import Parse as parse_json
from onnx import numpy_helper

from helpers.errors import DeploymentError
from helpers.models._own import Own
from helpers.pipeline.own.creation import create
from helpers.pipeline.own.inputs import NewOptions
from helpers.results import read
from tests.conftest import copy_project
from tests.pipeline.own import builders, sources

VALUES = [None, "", -1, 0, 1.5, 7, 99, "float64", "x", "a b", "é", "x" * 300, [], {}, [1], True]
CPU_SECONDS = 60  # 10 where nothing else runs
TAKEN = 2  # that are served, of each kind
SMALL = """<ir_version: 10, opset_import: ["": 17]>
g (float[n, 8] x, float[n, 5] shift) => (float[n, 5] y, float[n, 5] z) {
    m = MatMul(x, w) s = Add(m, shift) y = Relu(s) z = Softmax(y)
}"""


def some(draw, items):
    return items[draw.integers(len(items))]


def fields_of(tree):
    """Every place in a tree of JSON: a dict or list, and the key or index in it."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    found = [(tree, key) for key, _ in items]
    for value in tree.values() if isinstance(tree, dict) else tree:
        found += fields_of(value) if isinstance(value, (dict, list)) else []
    return found


def altered(text, draw):
    """Remove a field of a JSON text, or give it another value or that of another field."""
    tree = json.loads(text)
    parent, key = some(draw, fields_of(tree))
    kind = draw.integers(3)
    if kind == 0:
        del parent[key]
    elif kind == 1:
        parent[key] = some(draw, VALUES)
    else:
        values = [each[place] for each, place in fields_of(tree)]
        alike = [value for value in values if type(value) is type(parent[key])]
        parent[key] = json.loads(json.dumps(some(draw, alike)))
    return json.dumps(tree)


def small_graph():
    model = onnx.parser.parse_model(SMALL)
    weights = np.random.default_rng(0).standard_normal((8, 5)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    return model


def graph(path, draw):
    text, model = MessageToJson(small_graph()), None
    while model is None:
        try:
            model = parse_json(altered(text, draw), onnx.ModelProto())
        except ParseError:  # of a type that no such file can hold
            model = None
    target = path / f"{draw.integers(10**9)}.onnx"
    target.write_bytes(model.SerializeToString())
    return target


def with_another_byte(content, draw):
    content = bytearray(content)
    content[draw.integers(len(content))] = draw.integers(256)
    return bytes(content)


def graph_of_bytes(path, draw):
    target = path / f"{draw.integers(10**9)}.onnx"
    target.write_bytes(with_another_byte(small_graph().SerializeToString(), draw))
    return target


def keras_file(path, draw):
    source, target = path / "small.keras", path / "mutant.keras"
    if not source.exists():
        from helpers.models._keras import keras

        x = keras().Input((4,), name="x")
        keras().Model(x, {"b": keras().layers.Dense(2)(x)}).save(source)
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name == "config.json":
                content = altered(content.decode(), draw).encode()
            new.writestr(name, content)
    return target


def script_file(path, draw):
    import torch

    source, target = path / "small.pt2", path / "mutant.pt2"
    if not source.exists():
        program = torch.export.export(torch.nn.Linear(4, 2).eval(), (torch.ones(2, 4),))
        torch.export.save(program, source)
    target.write_bytes(with_another_byte(source.read_bytes(), draw))
    return target


def hugging_face(path, draw):
    source, target = path / "small", path / "mutant"
    if not source.exists():
        builders.saved("resnet", source, image_size=16)
    shutil.copytree(source, target, dirs_exist_ok=True)
    (target / "config.json").write_text(altered((source / "config.json").read_text(), draw))
    return target


def repository(path, draw):
    config = sources.repository(path / f"{draw.integers(10**6)}") / "config.pbtxt"
    lines = config.read_text().splitlines()
    place = int(draw.integers(len(lines)))
    others = [[], [lines[place]] * 2, ["dims: [ -1 ]"], ["nonsense {"]]
    lines[place : place + 1] = some(draw, others)
    config.write_text("\n".join(lines))
    return config.parent


LONG = pytest.mark.thorough


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "first", "count"),
    [
        *((graph, 0, 30), (graph_of_bytes, 0, 10), (keras_file, 0, 2), (script_file, 0, 3)),
        *((hugging_face, 0, 2), (repository, 0, 5)),
        pytest.param(graph, 30, 270, marks=LONG),
        pytest.param(graph_of_bytes, 10, 50, marks=LONG),
        pytest.param(keras_file, 2, 18, marks=LONG),
        pytest.param(script_file, 3, 17, marks=LONG),
        pytest.param(hugging_face, 2, 18, marks=LONG),
        pytest.param(repository, 5, 15, marks=LONG),
    ],
)
def test_a_mutant_is_taken_with_its_own_answers_or_refused_in_one_line(
    kind, first, count, place, tmp_path
):
    for seed in range(first, first + count):
        name, fault, started = f"m{seed}", "", time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            path = kind(tmp_path, np.random.default_rng(seed))
            warnings.simplefilter("error" if path.suffix == ".onnx" else "ignore", RuntimeWarning)
            try:
                create(name, str(path), NewOptions(), lambda _: None)
            except DeploymentError as error:
                fault = str(error)
            assert "\n" not in fault, seed
            if not fault and path.suffix == ".onnx":
                answers_are_its_own(Own.load(str(place / f"helpers/models/{name}/x")), path)
        assert time.process_time() - started < CPU_SECONDS, seed


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")  # of frameworks that write the files
@pytest.mark.parametrize("kind", [graph, keras_file, hugging_face, repository])
def test_mutants_that_are_taken_are_served_with_their_own_answers(kind, tmp_path):
    project, names = copy_project(tmp_path / "project"), []
    for seed in range(20):
        path = kind(tmp_path, np.random.default_rng(seed))
        name = f"m{seed}"
        if project.run("new", name, "--from", str(path)).code == 0:
            builders.quicken(project, name, "onnx-fp32", "as-it-is")
            names.append(name)
        if len(names) == TAKEN:
            break

    assert len(names) == TAKEN
    builders.run(project, names, *builders.MAKING)

    for name in names:
        (deployed,) = (project.root / f"outputs/{name}").rglob("deploy.json")
        assert [score.served for score in read(deployed).scores] == [1.0]


def answers_are_its_own(own, path):
    """Compare the reference of a written model with ONNX Runtime's own answers, by name."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    draw, inputs = np.random.default_rng(1), {}
    for spec in own.description.inputs:
        inputs[spec.name] = draw.standard_normal((1, *spec.shape)).astype(spec.dtype)
    found = own.read(path).run(inputs)
    feed = {
        name: array.squeeze(1) if name in own.description.scalars else array
        for name, array in inputs.items()
    }
    for name, array in found.items():
        (right,) = session.run([name], feed)
        assert np.allclose(array.ravel(), right.ravel(), rtol=1e-3, atol=1e-5, equal_nan=True)
