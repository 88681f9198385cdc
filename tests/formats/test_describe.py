"""The operators of a file are counted as the network has them, in each format's own words."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers import formats
from helpers.formats import Arrays, Build, GraphFacts
from helpers.models._keras import keras as import_keras

LAYERS = 3
INPUTS: Arrays = {"x": np.ones((2, 8), np.float32)}
OPSET = 17


def network() -> torch.nn.Sequential:
    layers = [each for _ in range(LAYERS) for each in (torch.nn.Linear(8, 8), torch.nn.ReLU())]
    return torch.nn.Sequential(*layers[:-1]).eval()


def keras_network() -> Any:
    keras = import_keras()
    first = x = keras.Input((8,), name="x")
    for place in range(LAYERS):
        activation = "relu" if place < LAYERS - 1 else "linear"
        x = keras.layers.Dense(8, activation, bias_initializer="ones")(x)
    return keras.Model({"x": first}, x)


def described(name: str, source: Any, folder: Path, precision: str = "fp32", **more: Any) -> Any:
    fmt = formats.get(name)
    fmt.make(source, folder / fmt.FILE, Build(precision, INPUTS, ("y",), **more))
    assert fmt.describe
    return folder / fmt.FILE, fmt.describe(folder / fmt.FILE)


# how each format calls a linear layer and what comes after it
WORDS = {
    "onnx": {"Linear": ["Gemm"], "ReLU": ["Relu"]},
    "ts-trace": {"Linear": ["aten::linear"], "ReLU": ["aten::relu"]},
    "ts-script": {"Linear": ["aten::linear"], "ReLU": ["aten::relu"]},
    "openvino": {"Linear": ["MatMul", "Add"], "ReLU": ["Relu"]},
}


# what each format's tools are called with
CALLS = {
    "onnx": ["torch.onnx.export", "opset_version=17", "dynamic_axes={'x': {0: 'batch'}"],
    "ts-trace": ["torch.jit.trace(network, samples)", "torch.jit.save(module, 'model.pt')"],
    "ts-script": ["torch.jit.script(network)", "torch.jit.freeze(module)"],
    "openvino": ["openvino.convert_model('model.onnx')", "compress_to_fp16=False"],
}


@pytest.mark.parametrize("name", CALLS)
def test_the_calls_that_made_a_file_are_recorded(name: str, tmp_path: Path) -> None:
    source: Any = network()
    if name == "openvino":
        source, _ = described("onnx", source, tmp_path, opset=OPSET)
    fmt, build = formats.get(name), Build("fp32", INPUTS, ("y",), OPSET)

    fmt.make(source, tmp_path / fmt.FILE, build)

    text = "\n".join(build.calls)
    assert all(each in text for each in CALLS[name]), text
    assert str(tmp_path) not in text


@pytest.mark.parametrize("name", WORDS)
def test_a_file_has_an_operator_for_each_layer_of_the_network(name: str, tmp_path: Path) -> None:
    source: Any = network()
    layers = Counter(type(each).__name__ for each in source)
    if name == "openvino":
        source, _ = described("onnx", source, tmp_path, opset=OPSET)

    _, found = described(name, source, tmp_path, opset=OPSET)

    expected = {word: layers[kind] for kind, words in WORDS[name].items() for word in words}
    assert found["operators"] == expected
    assert found.get("opset") == (OPSET if name == "onnx" else None)


@pytest.mark.parametrize("opset", [None, 13], ids=["today", "old"])
@pytest.mark.slow
def test_of_a_savedmodel_what_the_signature_runs_is_counted(
    opset: int | None, tmp_path: Path
) -> None:
    """And not what saves and restores its variables."""
    path, found = described("tf-savedmodel", keras_network(), tmp_path, opset=opset)

    assert found == {"operators": {"MatMul": LAYERS, "BiasAdd": LAYERS, "Relu": LAYERS - 1}}
    _, as_onnx = described("onnx", path, tmp_path)
    assert as_onnx["operators"] == {"MatMul": LAYERS, "Add": LAYERS, "Relu": LAYERS - 1}


@pytest.mark.slow
def test_a_loop_of_a_savedmodel_is_counted_with_what_is_in_it(tmp_path: Path) -> None:
    import tensorflow as tf

    def compute(x: Any) -> Any:
        _, y = tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, tf.tanh(y)), (0, x))
        return {"y": tf.cond(tf.reduce_sum(y) > 0, lambda: tf.nn.relu(y), lambda: tf.exp(y))}

    module = tf.Module()
    module.compute = tf.function(compute, input_signature=[tf.TensorSpec((None, 8), tf.float32)])
    signatures = {"serving_default": module.compute.get_concrete_function()}
    tf.saved_model.save(module, str(tmp_path / "model.savedmodel"), signatures)
    describe = formats.get("tf-savedmodel").describe

    assert describe
    found = describe(tmp_path / "model.savedmodel")["operators"]
    inside = ("Less", "Tanh", "Relu", "Exp")
    assert {name: found.get(name) for name in inside} == dict.fromkeys(inside, 1)
    assert sum(name.endswith(("While", "If")) for name in found) == 2


def test_a_branch_is_counted_with_what_is_in_it(tmp_path: Path) -> None:
    from onnx import TensorProto, helper, save

    def result(name: str) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch"])

    sides = {
        name: helper.make_graph([helper.make_node(kind, ["x"], [name])], name, [], [result(name)])
        for name, kind in (("then_branch", "Relu"), ("else_branch", "Neg"))
    }
    node = helper.make_node("If", ["is_asked"], ["y"], **sides)
    given = helper.make_tensor_value_info("is_asked", TensorProto.BOOL, [])
    graph = helper.make_graph([node], "g", [given, result("x")], [result("y")])
    save(helper.make_model(graph), tmp_path / "model.onnx")
    describe = formats.get("onnx").describe

    assert describe
    assert describe(tmp_path / "model.onnx")["operators"] == {"If": 1, "Relu": 1, "Neg": 1}


def test_a_scripted_branch_is_an_operator_and_a_traced_one_is_not(tmp_path: Path) -> None:
    class Branching(torch.nn.Module):  # type: ignore[misc, unused-ignore]
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(x) if bool(x.sum() > 0) else torch.neg(x)

    counts = {}
    for name in ("ts-trace", "ts-script"):
        (tmp_path / name).mkdir()
        counts[name] = described(name, Branching().eval(), tmp_path / name)[1]["operators"]

    assert counts["ts-trace"].keys().isdisjoint({"prim::If", "aten::neg"})
    assert {"prim::If", "aten::relu", "aten::neg"} <= counts["ts-script"].keys()


@pytest.mark.slow
def test_a_quantised_file_shows_where_numbers_become_integers(tmp_path: Path) -> None:
    source, exact = described("onnx", network(), tmp_path, opset=OPSET)
    (tmp_path / "int8").mkdir()

    _, found = described("onnx", source, tmp_path / "int8", "int8", calibration=[INPUTS])

    marks = {"QuantizeLinear", "DequantizeLinear"}
    assert marks <= found["operators"].keys()
    assert marks.isdisjoint(exact["operators"])


def test_an_engine_tells_nothing_here_and_tf_trt_as_a_savedmodel_does() -> None:
    assert formats.get("trt").describe is None
    assert formats.get("tf-trt").describe is formats.get("tf-savedmodel").describe
    assert GraphFacts.__required_keys__ == {"operators"}
