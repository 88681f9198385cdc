"""int8: what is quantised, what goes back to fp32, and which faults the tolerances tell from it."""

import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import numpy_helper

from helpers import formats
from helpers.formats import Build, _int8, instructions
from helpers.measure.checks import difference
from helpers.models._rounding import tolerances_for

LAYERS, CHANNELS, SIDE = 4, 8, 12
TOLERANCES = tolerances_for([CHANNELS * 9] * LAYERS)["int8"]  # as a model with these sums has them
BOTH = pytest.mark.parametrize("name", ["onnx", "openvino"])


class Convolutions(torch.nn.Module):
    """A stack of convolutions, each with a rectifier and a channel's scale of its own. It may also
    return, for each image, a number that is always 0 and one that is always 3.
    """

    def __init__(self, with_constants=False):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            make = torch.nn.Conv2d
            layers = [make(CHANNELS, CHANNELS, 3, padding=1) for _ in range(LAYERS)]
        for layer in layers:
            layer.weight.data *= torch.logspace(-1, 0.5, CHANNELS)[:, None, None, None]
        self.layers, self.with_constants = torch.nn.ModuleList(layers), with_constants

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = torch.relu(layer(x))
        y = self.layers[-1](x).flatten(2).mean(2)
        zero = 0 * y.sum(1)
        return (y, zero, zero + 3) if self.with_constants else y


def images(seed, count=8):
    """Smooth images, off centre and each of its own colour, as photographs are."""
    random = np.random.default_rng(seed)
    rough = random.standard_normal((count, CHANNELS, SIDE, SIDE)).cumsum(3) / 4
    colours = random.uniform(-2, 4, (count, CHANNELS, 1, 1))
    return {"x": (rough + colours).astype(np.float32)}


SAMPLES = [images(seed) for seed in range(1, 17)]


def export(network, inputs, path, outputs=("y",)):
    formats.get("onnx").make(network.eval(), path, Build("fp32", inputs, outputs))
    return path


def quantise(source, folder, samples, name="onnx", **limits):
    folder.mkdir(exist_ok=True)
    path = folder / formats.get(name).FILE
    build = Build("int8", samples[0], ("y",), calibration=samples, **limits)
    formats.get(name).make(source, path, build)
    return path


def compute(path, inputs, name="onnx"):
    return formats.get(name).load(path, 1, "cpu").run(inputs)["y"]


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A graph in fp32, and what it computes of images that calibrate nothing."""
    path = tmp_path_factory.mktemp("int8") / "model.onnx"
    export(Convolutions(), images(0, 2), path)
    inputs = images(99, 64)
    return SimpleNamespace(path=path, inputs=inputs, reference=compute(path, inputs))


def is_close(exported, path, name="onnx"):
    """Compare a graph with the one in fp32, as the parity checks do."""
    found = compute(path, exported.inputs, name)
    return difference("y", found, exported.reference, TOLERANCES).ok


@pytest.fixture(scope="module")
def right(exported, tmp_path_factory):
    """The graph in int8, as it should be."""
    folder = tmp_path_factory.mktemp("right")
    return quantise(exported.path, folder, SAMPLES, tolerances=TOLERANCES)


def constants(graph, operator, place):
    """Give the constants that nodes of an operator have as that input."""
    stored = {each.name: each for each in graph.graph.initializer}
    for node in graph.graph.node:
        if node.op_type == operator and node.input[place] in stored:
            yield stored[node.input[place]]


@pytest.mark.slow
def test_weights_are_int8_with_a_scale_for_each_channel(exported, right):
    graph = onnx.load(right)
    weights = [each for each in constants(graph, "DequantizeLinear", 0) if len(each.dims) == 4]
    scales = {each.name: list(each.dims) for each in constants(graph, "DequantizeLinear", 1)}

    assert [each.data_type for each in weights] == [onnx.TensorProto.INT8] * LAYERS
    assert list(scales.values()).count([CHANNELS]) >= LAYERS
    assert is_close(exported, right)


def test_what_tensorrt_reads_has_no_zero_points_and_no_int32_biases(exported, tmp_path):
    path = tmp_path / "model.onnx"
    _int8.quantise_onnx(exported.path, path, SAMPLES, symmetric=True)
    graph = onnx.load(path)
    kinds = {each.data_type for each in constants(graph, "DequantizeLinear", 0)}
    points = [numpy_helper.to_array(each) for each in constants(graph, "QuantizeLinear", 2)]

    assert kinds == {onnx.TensorProto.INT8}
    assert points
    assert not any(each.any() for each in points)
    # operator by operator: fused to 8-bit products, of signed numbers, they would overflow on a
    # processor without VNNI
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])
    (found,) = session.run(["y"], exported.inputs)
    assert difference("y", found, exported.reference, TOLERANCES).ok


def test_a_calibration_on_noise_is_noticed(exported, tmp_path):
    random = np.random.default_rng(0)
    noise = [{"x": random.uniform(-0.1, 0.1, images(0)["x"].shape).astype(np.float32)}]

    assert not is_close(exported, quantise(exported.path, tmp_path, noise, tolerances=TOLERANCES))


@pytest.mark.parametrize("what", ["zero point", "scales", "weights"])
def test_a_wrong_zero_point_and_two_swapped_channels_are_noticed(what, exported, right, tmp_path):
    graph = onnx.load(right)
    if what == "zero point":  # of the images, shifted by an eighth of the range
        point = numpy_helper.to_array(next(constants(graph, "QuantizeLinear", 2)))
        wrong = numpy_helper.from_array(np.array(point ^ np.uint8(32)), "wrong")
        graph.graph.initializer.append(wrong)
        first = next(node for node in graph.graph.node if node.op_type == "QuantizeLinear")
        first.input[2] = "wrong"
    else:
        shape, place = ([CHANNELS], 1) if what == "scales" else ([CHANNELS, CHANNELS, 3, 3], 0)
        found = constants(graph, "DequantizeLinear", place)
        *_, last = (each for each in found if list(each.dims) == shape)
        values = numpy_helper.to_array(last).copy()
        values[[0, -1]] = values[[-1, 0]]
        last.CopyFrom(numpy_helper.from_array(values, last.name))
    onnx.save(graph, tmp_path / "model.onnx")

    assert not is_close(exported, tmp_path / "model.onnx")


def test_openvino_is_within_the_bounds_too(exported, tmp_path):
    path = quantise(exported.path, tmp_path, SAMPLES, "openvino", tolerances=TOLERANCES)

    assert is_close(exported, path, "openvino")
    weights = LAYERS * CHANNELS * CHANNELS * 9  # of a byte each, and four in fp32
    whole = 2 if instructions("int8") else 3  # of 7 bits, some may go back to fp32
    assert weights < path.with_suffix(".bin").stat().st_size < whole * weights


@pytest.mark.parametrize("batch", [8, 1])
def test_a_constant_output_keeps_no_layer_in_fp32(batch, tmp_path):
    """Also where a batch has one sample, so that each output of one number is a constant in it."""
    path, samples = tmp_path / "model.onnx", [images(seed, batch) for seed in range(1, 17)]
    network, outputs = Convolutions(with_constants=True), ("y", "zero", "three")
    source = export(network, images(0, 2), tmp_path / "fp32.onnx", outputs)
    _int8.quantise_onnx(source, path, samples, TOLERANCES)
    convolutions = [node for node in onnx.load(path).graph.node if node.op_type == "Conv"]

    assert len(convolutions) == LAYERS
    assert all("DequantizeLinear" in node.input[1] for node in convolutions)


def test_one_number_of_each_sample_is_compared_with_those_of_the_others():
    right = np.random.default_rng(0).standard_normal((16, 1, 1))
    found = right + 0.5 * right.std()
    items = [((one,), (other,)) for one, other in zip(found, right, strict=True)]

    assert _int8._tolerance_usage_of(items, (1.0, 1.0)) == pytest.approx(0.5)


class Hostile(torch.nn.Module):
    """A layer one of whose inputs is a thousand times as large as the others, and unused; and
    layers that int8 does no harm.
    """

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.easy = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(3)))
            self.hard = torch.nn.Linear(16, 16)
        self.hard.weight.data[:, 0] = 1e-7

    def forward(self, x):
        sizes = torch.ones(16)
        sizes[0] = 1000.0
        return self.hard(torch.tanh(self.easy(x)) * sizes)


@pytest.mark.parametrize(
    ("name", "mark"),
    [
        ("onnx", b"QuantizeLinear"),
        pytest.param("openvino", b'type="FakeQuantize"', marks=pytest.mark.slow),
    ],
)
def test_a_layer_that_int8_would_ruin_stays_in_fp32(name, mark, tmp_path):
    random = np.random.default_rng(0)
    samples = [{"x": random.standard_normal((8, 16)).astype(np.float32)} for _ in range(8)]
    source = export(Hostile(), samples[0], tmp_path / "model.onnx")
    reference, strict = compute(source, samples[0]), tolerances_for([16] * 4)["int8"]
    is_within, quantised_tensors = {}, {}
    for kind, limits in (("strict", strict), ("loose", (1e9, 1e9))):
        path = quantise(source, tmp_path / kind, samples, name, tolerances=limits)
        found = compute(path, samples[0], name)
        is_within[kind] = difference("y", found, reference, strict).ok
        quantised_tensors[kind] = path.read_bytes().count(mark)

    assert is_within == {"strict": True, "loose": False}
    assert 0 < quantised_tensors["strict"] < quantised_tensors["loose"]


@pytest.mark.slow
@BOTH
def test_the_outputs_themselves_are_neither_rounded_nor_cut_off(name, tmp_path):
    """An image with larger logits than the calibration had must not get the largest of those."""
    torch.manual_seed(0)
    convolution = torch.nn.Conv2d(CHANNELS, CHANNELS, 3)
    mean = (torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
    network = torch.nn.Sequential(convolution, *mean, torch.nn.Linear(CHANNELS, 20))
    source = export(network, images(0, 2), tmp_path / "exported.onnx")
    path = quantise(source, tmp_path, SAMPLES[:8], name, tolerances=TOLERANCES)

    found = compute(path, images(99, 64), name)

    assert len(np.unique(found)) > 512  # of 8 bits there are 256 values


class Residual(torch.nn.Module):
    """A product whose input is added to its result, and one whose result is the output."""

    def __init__(self):
        super().__init__()
        self.layer, self.last = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)

    def forward(self, x):
        return self.last(x + self.layer(x))


def test_without_convolutions_only_what_a_product_takes_is_rounded(tmp_path):
    samples = [{"x": np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)}]
    source = export(Residual(), samples[0], tmp_path / "fp32.onnx")
    graph = onnx.load(quantise(source, tmp_path, samples)).graph
    rounded = [node.input[0] for node in graph.node if node.op_type == "QuantizeLinear"]
    (add,) = (node for node in graph.node if node.op_type == "Add")
    first, last = (node for node in graph.node if node.op_type in _int8.PRODUCTS)

    assert sorted(rounded) == sorted(["x", add.output[0]])
    assert set(add.input) == {"x", first.output[0]}
    assert list(last.output) == ["y"]


@pytest.mark.slow
@BOTH
def test_ranges_reach_as_far_as_the_rarest_sample(name, tmp_path):
    """Also where batches are small: the mean of what each reaches would cut off the rest. The
    inputs are a recommender's, of which rare ones are far from the others.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        first, last = torch.nn.Linear(16, 64), torch.nn.Linear(64, 16)
    random = np.random.default_rng(0)
    samples = [{"x": random.standard_t(4, (16, 16)).astype(np.float32)} for _ in range(128)]
    network = torch.nn.Sequential(first, torch.nn.ReLU(), last)
    source = export(network, samples[0], tmp_path / "fp32.onnx")
    whole = {"x": np.concatenate([each["x"] for each in samples])}
    reference, largest = compute(source, whole), {}
    for kind, given in (("all", samples), ("few", samples[:1])):
        found = compute(quantise(source, tmp_path / kind, given, name), whole, name)
        largest[kind] = float(np.abs(found - reference).max() / reference.std())

    assert largest["all"] < 0.25 < largest["few"]


TELLING = """
import sys
import numpy as np
sys.addaudithook(lambda event, arguments: event.startswith("socket.") and print(event, arguments))
from pathlib import Path
from helpers import formats
from helpers.formats import Build
source, target = map(Path, sys.argv[1:])
batch = {"x": np.ones((2, 8, 12, 12), np.float32)}
formats.get("openvino").make(source, target, Build("int8", batch, ("y",), calibration=[batch]))
formats.get("openvino").load(target, 1, "cpu")
print("made" if target.is_file() else "")
"""


@pytest.mark.slow
def test_nothing_is_told_over_the_network(exported, tmp_path):
    """OpenVINO and NNCF report that they are imported and used, unless they are kept from it."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("NNCF", "CI"))}
    command = [sys.executable, "-c", TELLING, str(exported.path), str(tmp_path / "model.xml")]
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True)

    assert done.stdout.split() == ["made"]
