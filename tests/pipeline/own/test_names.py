"""Each output of a model of one's own is the one that its framework has under that name, and each
input gets what is sent under its name: in the reference, and in every format. All shapes are equal,
so that nothing but the values tells them apart; these are computed by the frameworks alone.
"""

import importlib
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from helpers import formats
from helpers.errors import CheckpointError
from helpers.models._own import Own, TensorSpec
from helpers.pipeline.own import origin
from helpers.pipeline.own.draft import draft, fields
from tests.pipeline.own import sources

WIDTH = 3  # of each input and output
NEAR = {"rtol": 1e-4, "atol": 1e-5}
TWISTED = """
import torch
from torch.nn import Linear


class Ordered(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = Linear(3, 3), Linear(3, 3)

    def forward(self, a: torch.Tensor, b: torch.Tensor):
        return self.first(a) + 3 * self.second(b)


class Skipping(Ordered):
    def forward(self, a, mask=None, b=None):
        return super().forward(a if mask is None else a * mask, b)


class Named(Ordered):
    def forward(self, b: torch.Tensor, a: torch.Tensor):
        return {"z": self.first(a), "y": self.second(b)}


class Nested(Named):
    def forward(self, given):
        return super().forward(given["b"], given["a"])


def example(names): return {name: torch.ones(2, 3) for name in names}
def ordered(): return Ordered(), example("ba")
def skipping(): return Skipping(), example("ab")
def named(): return Named(), example("ba")


def subclassed():
    import keras

    keras.utils.set_random_seed(0)

    class Net(keras.Model):
        def __init__(self):
            super().__init__()
            self.first, self.second = keras.layers.Dense(3), keras.layers.Dense(3)

        def call(self, given):
            return {"z": self.first(given["b"]), "y": [self.second(given["a"])]}

    example = {name: keras.ops.ones((2, 3)) for name in "ba"}
    network = Net()
    network(example)
    return network, example
"""


def drawn(found):
    draw = np.random.default_rng(7)
    shapes = {each.name: (5, *each.shape) for each in found.description.inputs}
    return {name: draw.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def read(source, samples=None):
    return draft("mine", origin.read(str(source)), samples, "", {}, ["fp32"])


def made(found, given, folder, *path):
    """Make formats, one of the other, and load the last."""
    network = Own("mine", found.description).build(fields(found), found.origin.path)
    source = getattr(network, "content", network)
    inputs = {name: array[:2] for name, array in given.items()}
    build = formats.Build("fp32", inputs, tuple(each.name for each in found.description.outputs))
    for name in path:
        fmt, place = formats.get(name), folder / "-".join((*path, "of", name))
        place.mkdir()
        fmt.make(source, place / fmt.FILE, build)
        source = place / fmt.FILE
    return fmt.load(source, 1, "cpu")


def hold(found, given, expected, folder, *paths):
    """Hold the reference and formats against what the framework computes under each name."""
    reference = Own("mine", found.description).source(fields(found), found.origin.path)
    assert {each.name for each in found.description.outputs} == set(expected)
    for path in ((), *paths):
        session = made(found, given, folder, *path) if path else reference
        answer = session.run(given)
        assert sorted(answer) == sorted(expected), path
        for name, array in expected.items():
            np.testing.assert_allclose(answer[name], np.asarray(array), **NEAR, err_msg=name)


def of_keras(case):
    """A Keras model whose tensors have other orders than their names' alphabet."""
    from helpers.models._keras import keras

    k = keras()
    k.utils.set_random_seed(3)
    x, y = k.Input((WIDTH,), name="x"), k.Input((WIDTH,), name="w")
    one, two, three, four = (k.layers.Dense(WIDTH)(each) for each in (x, x, x, x))
    mixed = k.layers.Dense(WIDTH)(x) + 3 * k.layers.Dense(WIDTH)(y)
    nets = {
        "a nest": lambda: k.Model(x, {"z": [one, two], "b": {"d": three, "c": four}}),
        "dicts in a list": lambda: k.Model(x, [one, {"output_1": two, "output_0": three}]),
        "keys like places": lambda: k.Model(x, {"output_1": one, "output_0": two}),
        "a list": lambda: k.Model([x, y], [mixed, one]),
        "inputs by other keys": lambda: k.Model({"b": x, "a": y}, mixed),
        "inputs in a nest": lambda: k.Model([{"b": x, "a": y}], mixed),
    }
    return nets[case]()


def prefixed(prefix, arrays):
    return {f"{prefix}_{name}": each for name, each in arrays.items()}


KERAS = {  # what a model `m` computes of given arrays `g`
    "a nest": lambda m, g: (
        prefixed("z", dict(enumerate(m(g["x"])["z"]))) | prefixed("b", m(g["x"])["b"])
    ),
    "dicts in a list": lambda m, g: {"output_0": m(g["x"])[0]} | prefixed("output_1", m(g["x"])[1]),
    "keys like places": lambda m, g: m(g["x"]),
    "a list": lambda m, g: dict(zip(m.output_names, m([g["x"], g["w"]]), strict=True)),
    "inputs by other keys": lambda m, g: {m.output_names[0]: m({"b": g["x"], "a": g["w"]})},
    "inputs in a nest": lambda m, g: {m.output_names[0]: m([{"b": g["x"], "a": g["w"]}])},
}


SAVED = (("tf-savedmodel",), ("tf-savedmodel", "onnx"), ("tf-savedmodel", "openvino"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of keys that are no names
@pytest.mark.parametrize("case", KERAS)
def test_a_keras_model_keeps_its_names(case, tmp_path):
    model = of_keras(case)
    model.save(tmp_path / "net.keras")

    found = read(tmp_path / "net.keras")

    given = drawn(found)
    count = 3 if case == "keys like places" else 1
    hold(found, given, KERAS[case](model, given), tmp_path, *SAVED[:count])


@pytest.mark.slow
def test_a_savedmodel_keeps_the_names_of_its_signature(tmp_path):
    from helpers.models._keras import tensorflow

    tf = tensorflow()
    spec = [tf.TensorSpec((None, WIDTH), name=name) for name in "ba"]
    module = tf.Module()
    weights = np.random.default_rng(0).standard_normal((WIDTH, WIDTH))
    module.w = w = tf.Variable(weights, dtype="float32")
    module.of = tf.function(lambda b, a: {"z": b @ w, "m": a @ w, "y": b - a}, spec)
    tf.saved_model.save(module, str(tmp_path / "saved"), signatures=module.of)

    found = read(tmp_path / "saved")

    given = drawn(found)
    hold(found, given, module.of(given["b"], given["a"]), tmp_path, *SAVED)
    assert [tensor.name for tensor in found.description.inputs] == ["a", "b"]
    assert [tensor.name for tensor in found.description.outputs] == ["m", "y", "z"]


@pytest.fixture
def twisted(tmp_path, monkeypatch):
    """The module of networks whose tensors have other orders than their names' alphabet."""
    (tmp_path / "twisted.py").write_text(TWISTED)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "twisted", raising=False)
    return importlib.import_module("twisted")


TRACED, EXPORTED = ("ts-trace",), ("onnx",)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ordered", "skipping", "named"])
def test_a_module_is_called_by_the_names_of_its_example(name, tmp_path, twisted):
    import torch

    found = read(f"twisted:{name}")

    given = drawn(found)
    with torch.no_grad():
        network = getattr(twisted, name)()[0]
        right = network(**{each: torch.from_numpy(array) for each, array in given.items()})
    right = right if isinstance(right, dict) else {"output": right}
    hold(found, given, right, tmp_path, TRACED, EXPORTED)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # PyTorch deprecates TorchScript
@pytest.mark.parametrize("kind", ["by name", "in a dict", "script", "trace"])
def test_a_file_of_pytorch_keeps_its_names(kind, tmp_path, twisted):
    import torch

    network, example = twisted.named()
    network.eval()
    batch, samples = {0: torch.export.Dim("batch")}, tmp_path / "samples.npz"
    path = tmp_path / ("net.pt2" if kind in ("by name", "in a dict") else "net.pt")
    if kind == "by name":
        shapes = dict.fromkeys(example, batch)
        torch.export.save(torch.export.export(network, (), example, dynamic_shapes=shapes), path)
    elif kind == "in a dict":
        shapes = (dict.fromkeys(example, batch),)
        program = torch.export.export(twisted.Nested().eval(), (example,), dynamic_shapes=shapes)
        torch.export.save(program, path)
    elif kind == "script":
        torch.jit.save(torch.jit.script(network), path)
    else:
        torch.jit.save(torch.jit.trace(network, tuple(example.values()), strict=False), path)
    np.savez(samples, **{name: np.eye(WIDTH, dtype=np.float32) for name in example})

    found = read(path, samples if path.suffix == ".pt" else None)

    given = drawn(found)
    with torch.no_grad():
        right = network(**{name[-1]: torch.from_numpy(array) for name, array in given.items()})
    hold(found, given, right, tmp_path, EXPORTED if path.suffix == ".pt2" else TRACED)


@pytest.mark.slow
def test_a_keras_model_of_a_class_is_called_by_the_keys_of_its_example(tmp_path, twisted):
    found = read("twisted:subclassed")

    given = drawn(found)
    right = twisted.subclassed()[0](given)
    hold(found, given, {"z": right["z"], "y_0": right["y"][0]}, tmp_path, SAVED[0])


def test_an_onnx_file_keeps_its_names(tmp_path):
    held = numpy_helper.from_array(np.arange(9, dtype=np.float32).reshape(3, 3), "w")
    nodes = [
        helper.make_node("MatMul", ["b", "w"], ["z"]),
        helper.make_node("Sub", ["a", "z"], ["y"]),
    ]
    tensors = [[sources.tensor(name, ["n", WIDTH]) for name in names] for names in ("ba", "zy")]
    path = sources.save(tmp_path / "net.onnx", nodes, *tensors, [held])

    found = read(path)

    session, given = onnxruntime.InferenceSession(path), drawn(found)
    right = dict(zip(("z", "y"), session.run(["z", "y"], given), strict=True))
    hold(found, given, right, tmp_path, ("onnx",), ("onnx", "openvino"))


@pytest.mark.slow
def test_the_reference_does_not_depend_on_the_order_in_a_package(tmp_path, twisted):
    import torch

    found = read("twisted:ordered")
    own = Own("mine", found.description)
    own.description = own.description.model_copy(update={"inputs": found.description.inputs[::-1]})
    given = drawn(found)

    reference = own.source(fields(found), found.origin.path)

    tensors = {name: torch.from_numpy(array) for name, array in given.items()}
    right = twisted.ordered()[0](**tensors).detach().numpy()
    np.testing.assert_allclose(reference.run(given)["output"], right, **NEAR)
    other = (TensorSpec("other", "float32", (WIDTH,)),)
    own.description = own.description.model_copy(update={"outputs": other})
    with pytest.raises(CheckpointError, match="has the outputs output, but not other"):
        reference.run(given)


def test_two_outputs_of_one_name_are_an_error():
    from helpers.models._own.networks import by_name

    with pytest.raises(CheckpointError, match="Two of the outputs a_0, a_0 have the same name"):
        by_name({"a_0": np.zeros(1), "a": [np.ones(1)]})


def test_a_graph_without_outputs_is_refused_in_one_line(tmp_path):
    sources.scores(tmp_path / "scores.onnx")
    model = onnx.load(tmp_path / "scores.onnx")
    del model.graph.output[:]
    onnx.save(model, tmp_path / "none.onnx")

    with pytest.raises(CheckpointError, match="none.onnx has no outputs. Export it again"):
        origin.read(str(tmp_path / "none.onnx"))
