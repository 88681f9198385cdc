"""The operators of a file are counted as the network has them, in each format's own words."""

from collections import Counter

import numpy as np
import onnx
import onnx.parser
import pytest
import torch

from helpers import formats
from helpers.formats import Build, GraphFacts
from helpers.models._keras import keras as import_keras

LAYERS = 3
INPUTS = {"x": np.ones((2, 8), np.float32)}
OPSET = 17


def network():
    layers = [each for _ in range(LAYERS) for each in (torch.nn.Linear(8, 8), torch.nn.ReLU())]
    return torch.nn.Sequential(*layers[:-1]).eval()


def keras_network():
    keras = import_keras()
    first = x = keras.Input((8,), name="x")
    for place in range(LAYERS):
        activation = "relu" if place < LAYERS - 1 else "linear"
        x = keras.layers.Dense(8, activation, bias_initializer="ones")(x)
    return keras.Model({"x": first}, x)


def described(name, source, folder, precision="fp32", **more):
    fmt = formats.get(name)
    fmt.make(source, folder / fmt.FILE, Build(precision, INPUTS, ("y",), **more))
    return folder / fmt.FILE, fmt.describe(folder / fmt.FILE)


TORCHSCRIPT = {"aten::linear": "Linear", "aten::relu": "ReLU"}
FORMATS = {  # a linear layer and what comes after it, and a call of the tool
    "onnx": ({"Gemm": "Linear", "Relu": "ReLU"}, "dynamic_axes={'x': {0: 'batch'}"),
    "ts-trace": (TORCHSCRIPT, "torch.jit.trace(network, samples)"),
    "ts-script": (TORCHSCRIPT, "torch.jit.script(network)"),
    "openvino": (
        {"MatMul": "Linear", "Add": "Linear", "Relu": "ReLU"},
        "openvino.convert_model('model.onnx')",
    ),
}


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_has_an_operator_for_each_layer_and_the_calls_that_made_it(name, tmp_path):
    source, (words, call) = network(), FORMATS[name]
    layers = Counter(type(each).__name__ for each in source)
    if name == "openvino":
        source, _ = described("onnx", source, tmp_path, opset=OPSET)
    made = []

    _, found = described(name, source, tmp_path, opset=OPSET, calls=made)

    assert found["operators"] == {word: layers[kind] for word, kind in words.items()}
    assert found.get("opset") == (OPSET if name == "onnx" else None)
    text = "\n".join(made)
    assert call in text
    assert str(tmp_path) not in text


@pytest.mark.parametrize("opset", [None, 13], ids=["today", "old"])
@pytest.mark.slow
def test_of_a_savedmodel_what_the_signature_runs_is_counted(opset, tmp_path):
    """And not what saves and restores its variables."""
    path, found = described("tf-savedmodel", keras_network(), tmp_path, opset=opset)

    assert found == {"operators": {"MatMul": LAYERS, "BiasAdd": LAYERS, "Relu": LAYERS - 1}}
    _, as_onnx = described("onnx", path, tmp_path)
    assert as_onnx["operators"] == {"MatMul": LAYERS, "Add": LAYERS, "Relu": LAYERS - 1}


@pytest.mark.slow
def test_a_loop_of_a_savedmodel_is_counted_with_what_is_in_it(tmp_path):
    import tensorflow as tf

    def compute(x):
        _, y = tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, tf.tanh(y)), (0, x))
        return {"y": tf.cond(tf.reduce_sum(y) > 0, lambda: tf.nn.relu(y), lambda: tf.exp(y))}

    module = tf.Module()
    module.compute = tf.function(compute, input_signature=[tf.TensorSpec((None, 8), tf.float32)])
    signatures = {"serving_default": module.compute.get_concrete_function()}
    tf.saved_model.save(module, str(tmp_path / "model.savedmodel"), signatures)

    found = formats.get("tf-savedmodel").describe(tmp_path / "model.savedmodel")["operators"]

    inside = ("Less", "Tanh", "Relu", "Exp")
    assert {name: found.get(name) for name in inside} == dict.fromkeys(inside, 1)
    assert sum(name.endswith(("While", "If")) for name in found) == 2


BRANCH = """
<ir_version: 8, opset_import: ["" : 17]>
g (bool is_asked, float[batch] x) => (float[batch] y)
{
    y = If (is_asked) <
        then_branch = a () => (float[batch] one) { one = Relu (x) },
        else_branch = b () => (float[batch] other) { other = Neg (x) }
    >
}
"""


def test_a_branch_is_counted_with_what_is_in_it(tmp_path):
    onnx.save(onnx.parser.parse_model(BRANCH), tmp_path / "model.onnx")

    found = formats.get("onnx").describe(tmp_path / "model.onnx")

    assert found["operators"] == {"If": 1, "Relu": 1, "Neg": 1}


def test_a_scripted_branch_is_an_operator_and_a_traced_one_is_not(tmp_path):
    class Branching(torch.nn.Module):
        def forward(self, x):
            return torch.relu(x) if bool(x.sum() > 0) else torch.neg(x)

    counts = {}
    for name in ("ts-trace", "ts-script"):
        (tmp_path / name).mkdir()
        counts[name] = described(name, Branching().eval(), tmp_path / name)[1]["operators"]

    assert counts["ts-trace"].keys().isdisjoint({"prim::If", "aten::neg"})
    assert {"prim::If", "aten::relu", "aten::neg"} <= counts["ts-script"].keys()


@pytest.mark.slow
def test_a_quantised_file_shows_where_numbers_become_integers(tmp_path):
    source, exact = described("onnx", network(), tmp_path, opset=OPSET)
    (tmp_path / "int8").mkdir()

    _, found = described("onnx", source, tmp_path / "int8", "int8", calibration=[INPUTS])

    marks = {"QuantizeLinear", "DequantizeLinear"}
    assert marks <= found["operators"].keys()
    assert marks.isdisjoint(exact["operators"])


def test_an_engine_tells_nothing_here_and_tf_trt_as_a_savedmodel_does():
    assert formats.get("trt").describe is None
    assert formats.get("tf-trt").describe is formats.get("tf-savedmodel").describe
    assert GraphFacts.__required_keys__ == {"operators"}
