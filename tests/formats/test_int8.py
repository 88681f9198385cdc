"""int8: what is quantised, what goes back to fp32, and which faults the tolerances tell from it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import numpy_helper

from helpers import formats
from helpers.formats import Arrays, Build, _int8, instructions
from helpers.measure.checks import difference
from helpers.models._rounding import tolerances_for

LAYERS, CHANNELS, SIDE = 4, 8, 12
TOLERANCES = tolerances_for([CHANNELS * 9] * LAYERS)["int8"]  # as a model with these sums has them


class Convolutions(torch.nn.Module):
    """A stack of convolutions, each with a rectifier and a channel's scale of its own."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            make = torch.nn.Conv2d
            layers = [make(CHANNELS, CHANNELS, 3, padding=1) for _ in range(LAYERS)]
        for layer in layers:
            layer.weight.data *= torch.logspace(-1, 0.5, CHANNELS)[:, None, None, None]
        self.layers = torch.nn.ModuleList(layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers[:-1]:
            x = torch.relu(layer(x))
        return self.layers[-1](x).flatten(2).mean(2)  # type: ignore[no-any-return, operator]


def images(seed: int, count: int = 8) -> Arrays:
    """Smooth images, off centre and each of its own colour, as photographs are."""
    random = np.random.default_rng(seed)
    rough = random.standard_normal((count, CHANNELS, SIDE, SIDE)).cumsum(3) / 4
    colours = random.uniform(-2, 4, (count, CHANNELS, 1, 1))
    return {"x": (rough + colours).astype(np.float32)}


@dataclass(frozen=True)
class Exported:
    """A graph in fp32, and what it computes of images that calibrate nothing."""

    path: Path
    inputs: Arrays
    reference: Any

    def quality(self, path: Path, format_name: str = "onnx") -> Any:
        """Compare a graph with it, as the parity checks do."""
        found = formats.get(format_name).load(path, 1, "cpu").run(self.inputs)["y"]
        return difference("y", found, self.reference, TOLERANCES)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    path = tmp_path_factory.mktemp("int8") / "model.onnx"
    formats.get("onnx").make(Convolutions().eval(), path, Build("fp32", images(0, 2), ("y",)))
    inputs = images(99, 64)
    session = formats.get("onnx").load(path, 1, "cpu")
    return Exported(path, inputs, session.run(inputs)["y"])


def quantised(exported: Exported, folder: Path, calibration: Any, name: str = "onnx") -> Path:
    path = folder / formats.get(name).FILE
    build = Build("int8", images(0, 2), ("y",), calibration=calibration, tolerances=TOLERANCES)
    formats.get(name).make(exported.path, path, build)
    return path


@pytest.fixture(scope="module")
def right(exported: Exported, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The graph in int8, as it should be."""
    samples = [images(seed) for seed in range(1, 17)]
    return quantised(exported, tmp_path_factory.mktemp("right"), samples)


def constants(graph: onnx.ModelProto, operator: str, place: int) -> Iterator[onnx.TensorProto]:
    """Give the constants that nodes of an operator have as that input."""
    stored = {each.name: each for each in graph.graph.initializer}
    for node in graph.graph.node:
        if node.op_type == operator and node.input[place] in stored:
            yield stored[node.input[place]]


@pytest.mark.slow
def test_weights_are_int8_with_a_scale_for_each_channel(exported: Exported, right: Path) -> None:
    graph = onnx.load(right)
    weights = [each for each in constants(graph, "DequantizeLinear", 0) if len(each.dims) == 4]
    scales = {each.name: list(each.dims) for each in constants(graph, "DequantizeLinear", 1)}

    assert [each.data_type for each in weights] == [onnx.TensorProto.INT8] * LAYERS
    assert list(scales.values()).count([CHANNELS]) >= LAYERS
    assert exported.quality(right).ok


def test_what_tensorrt_reads_has_no_zero_points_and_no_int32_biases(
    exported: Exported, tmp_path: Path
) -> None:
    path = tmp_path / "model.onnx"
    _int8.quantise_onnx(
        exported.path, path, [images(seed) for seed in range(1, 17)], symmetric=True
    )
    graph = onnx.load(path)
    kinds = {each.data_type for each in constants(graph, "DequantizeLinear", 0)}
    points = [numpy_helper.to_array(each) for each in constants(graph, "QuantizeLinear", 2)]

    assert kinds == {onnx.TensorProto.INT8}
    assert points
    assert not any(each.any() for each in points)
    assert as_written(exported, path).ok


def as_written(exported: Exported, path: Path) -> Any:
    """Compare what a graph says operator by operator: fused to 8-bit products, of signed numbers,
    they would overflow on a processor without VNNI.
    """
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])
    (found,) = session.run(["y"], exported.inputs)
    return difference("y", found, exported.reference, TOLERANCES)


def test_a_calibration_on_noise_is_noticed(exported: Exported, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    noise = [{"x": random.uniform(-0.1, 0.1, images(0)["x"].shape).astype(np.float32)}]

    assert not exported.quality(quantised(exported, tmp_path, noise)).ok


def test_a_wrong_zero_point_is_noticed(exported: Exported, right: Path, tmp_path: Path) -> None:
    """The one of the images, shifted by an eighth of the range before they are multiplied."""
    graph = onnx.load(right)
    point = next(constants(graph, "QuantizeLinear", 2))
    wrong = numpy_helper.to_array(point) ^ np.uint8(32)
    graph.graph.initializer.append(numpy_helper.from_array(np.array(wrong), "wrong"))
    first = next(node for node in graph.graph.node if node.op_type == "QuantizeLinear")
    first.input[2] = "wrong"
    onnx.save(graph, tmp_path / "model.onnx")

    assert not exported.quality(tmp_path / "model.onnx").ok


@pytest.mark.parametrize("what", ["scales", "weights"])
def test_two_swapped_channels_are_noticed(
    what: str, exported: Exported, right: Path, tmp_path: Path
) -> None:
    graph, place = onnx.load(right), {"scales": 1, "weights": 0}[what]
    shape = [CHANNELS] if what == "scales" else [CHANNELS, CHANNELS, 3, 3]
    last = [
        each for each in constants(graph, "DequantizeLinear", place) if list(each.dims) == shape
    ]
    values = numpy_helper.to_array(last[-1]).copy()
    values[[0, -1]] = values[[-1, 0]]
    last[-1].CopyFrom(numpy_helper.from_array(values, last[-1].name))
    onnx.save(graph, tmp_path / "model.onnx")

    assert not exported.quality(tmp_path / "model.onnx").ok


def test_openvino_is_within_the_bounds_too(exported: Exported, tmp_path: Path) -> None:
    samples = [images(seed) for seed in range(1, 17)]
    path = quantised(exported, tmp_path, samples, "openvino")

    assert exported.quality(path, "openvino").ok
    weights = LAYERS * CHANNELS * CHANNELS * 9  # of a byte each, and four in fp32
    whole = 2 if instructions("int8") else 3  # of 7 bits, some may go back to fp32
    assert weights < path.with_suffix(".bin").stat().st_size < whole * weights


class WithConstants(Convolutions):
    """Also returns, for each image, a number that is always 0 and one that is always 3."""

    def forward(self, x: torch.Tensor) -> Any:
        y = super().forward(x)
        zero = 0 * y.sum(1)
        return y, zero, zero + 3


@pytest.mark.parametrize("batch", [8, 1])
def test_a_constant_output_keeps_no_layer_in_fp32(batch: int, tmp_path: Path) -> None:
    """Also where a batch has one sample, so that each output of one number is a constant in it."""
    source, path = tmp_path / "fp32.onnx", tmp_path / "model.onnx"
    outputs = ("y", "zero", "three")
    formats.get("onnx").make(WithConstants().eval(), source, Build("fp32", images(0, 2), outputs))
    _int8.quantise_onnx(source, path, [images(seed, batch) for seed in range(1, 17)], TOLERANCES)
    convolutions = [node for node in onnx.load(path).graph.node if node.op_type == "Conv"]

    assert len(convolutions) == LAYERS
    assert all("DequantizeLinear" in node.input[1] for node in convolutions)


class OneNumber(Convolutions):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x)[:, :1]


def test_one_number_of_each_sample_is_compared_with_those_of_the_others(tmp_path: Path) -> None:
    source, samples = tmp_path / "fp32.onnx", [images(seed, 1) for seed in range(1, 17)]
    formats.get("onnx").make(OneNumber().eval(), source, Build("fp32", images(0, 2), ("y",)))
    right = _int8._outputs(onnx.load(source), samples)
    deviation = np.std([each for (each,) in right])
    found = [(each + 0.5 * deviation,) for (each,) in right]

    share = _int8._tolerance_usage_of(zip(found, right, strict=True), (1.0, 1.0))

    assert share == pytest.approx(0.5, rel=1e-4)


class Hostile(torch.nn.Module):
    """A layer one of whose inputs is a thousand times as large as the others, and unused; and
    layers that int8 does no harm.
    """

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.easy = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(3)))
            self.hard = torch.nn.Linear(16, 16)
        self.hard.weight.data[:, 0] = 1e-7

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        sizes = torch.ones(16)
        sizes[0] = 1000.0
        return self.hard(torch.tanh(self.easy(x)) * sizes)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("name", "file", "mark"),
    [
        ("onnx", "model.onnx", b"QuantizeLinear"),
        pytest.param("openvino", "model.xml", b'type="FakeQuantize"', marks=pytest.mark.slow),
    ],
)
def test_a_layer_that_int8_would_ruin_stays_in_fp32(
    name: str, file: str, mark: bytes, tmp_path: Path
) -> None:
    random = np.random.default_rng(0)
    samples = [{"x": random.standard_normal((8, 16)).astype(np.float32)} for _ in range(8)]
    source = tmp_path / "model.onnx"
    formats.get("onnx").make(Hostile().eval(), source, Build("fp32", samples[0], ("y",)))
    reference = formats.get("onnx").load(source, 1, "cpu").run(samples[0])["y"]
    strict = tolerances_for([16] * 4)["int8"]
    is_within, quantised_tensors = {}, {}
    for kind, limits in (("strict", strict), ("loose", (1e9, 1e9))):
        path = tmp_path / kind / file
        path.parent.mkdir()
        build = Build("int8", samples[0], ("y",), calibration=samples, tolerances=limits)
        formats.get(name).make(source, path, build)
        found = formats.get(name).load(path, 1, "cpu").run(samples[0])["y"]
        is_within[kind] = difference("y", found, reference, strict).ok
        quantised_tensors[kind] = path.read_bytes().count(mark)

    assert is_within == {"strict": True, "loose": False}
    assert 0 < quantised_tensors["strict"] < quantised_tensors["loose"]


class Classifier(torch.nn.Module):
    """A convolution and a matrix product after it, whose results are the outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Conv2d(CHANNELS, CHANNELS, 3)
        self.head = torch.nn.Linear(CHANNELS, 20)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.layer(x)).mean((2, 3)))  # type: ignore[no-any-return]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "file"), [("onnx", "model.onnx"), ("openvino", "model.xml")])
def test_the_outputs_themselves_are_neither_rounded_nor_cut_off(
    name: str, file: str, tmp_path: Path
) -> None:
    """An image with larger logits than the calibration had must not get the largest of those."""
    torch.manual_seed(0)
    source = tmp_path / "exported.onnx"
    formats.get("onnx").make(Classifier().eval(), source, Build("fp32", images(0, 2), ("y",)))
    calibration = [images(seed) for seed in range(1, 9)]
    build = Build("int8", images(0, 2), ("y",), calibration=calibration, tolerances=TOLERANCES)
    formats.get(name).make(source, tmp_path / file, build)
    found = formats.get(name).load(tmp_path / file, 1, "cpu").run(images(99, 64))["y"]

    assert len(np.unique(found)) > 512  # of 8 bits there are 256 values


class Residual(torch.nn.Module):
    """A product whose input is added to its result, and one whose result is the output."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(x + self.layer(x))  # type: ignore[no-any-return]


def test_without_convolutions_only_what_a_product_takes_is_rounded(tmp_path: Path) -> None:
    samples = [{"x": np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)}]
    source, path = tmp_path / "fp32.onnx", tmp_path / "model.onnx"
    formats.get("onnx").make(Residual().eval(), source, Build("fp32", samples[0], ("y",)))
    formats.get("onnx").make(source, path, Build("int8", samples[0], ("y",), calibration=samples))
    graph = onnx.load(path).graph
    rounded = [node.input[0] for node in graph.node if node.op_type == "QuantizeLinear"]
    (add,) = (node for node in graph.node if node.op_type == "Add")
    first, last = (node for node in graph.node if node.op_type in _int8.PRODUCTS)

    assert sorted(rounded) == sorted(["x", add.output[0]])
    assert set(add.input) == {"x", first.output[0]}
    assert list(last.output) == ["y"]


class Rows(torch.nn.Module):
    """Layers as a recommender's, with rare inputs that are far from the others."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.layers = torch.nn.Sequential(
                torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 16)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)  # type: ignore[no-any-return]


def rare(seed: int, count: int) -> Arrays:
    random = np.random.default_rng(seed)
    return {"x": random.standard_t(4, (count, 16)).astype(np.float32)}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "file"), [("onnx", "model.onnx"), ("openvino", "model.xml")])
def test_ranges_reach_as_far_as_the_rarest_sample(name: str, file: str, tmp_path: Path) -> None:
    """Also where batches are small: the mean of what each reaches would cut off the rest."""
    samples = [rare(seed, 16) for seed in range(128)]
    source = tmp_path / "fp32.onnx"
    formats.get("onnx").make(Rows().eval(), source, Build("fp32", samples[0], ("y",)))
    all_samples = {"x": np.concatenate([each["x"] for each in samples])}
    reference = formats.get("onnx").load(source, 1, "cpu").run(all_samples)["y"]
    largest: dict[str, float] = {}
    for kind, given in (("all", samples), ("few", samples[:1])):
        path = tmp_path / kind / file
        path.parent.mkdir()
        build = Build("int8", samples[0], ("y",), calibration=given)
        formats.get(name).make(source, path, build)
        found = formats.get(name).load(path, 1, "cpu").run(all_samples)["y"]
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
def test_nothing_is_told_over_the_network(exported: Exported, tmp_path: Path) -> None:
    """OpenVINO and NNCF report that they are imported and used, unless they are kept from it."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("NNCF", "CI"))}
    answer = subprocess.run(
        [sys.executable, "-c", TELLING, str(exported.path), str(tmp_path / "model.xml")],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )

    assert answer.stdout.split() == ["made"]
