"""Each format computes what its module does, at any batch size, by name, and travels alone."""

import json
import logging
import subprocess
import sys
import warnings
from inspect import getfile
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

from helpers import formats
from helpers.config.loading import resolve
from helpers.errors import ParameterError
from helpers.formats import Build, onnx, tf_savedmodel
from helpers.models._keras import keras as import_keras
from tests.conftest import ONNX

HERE, OUTPUTS = Path(__file__).parent, ("TOTAL", "SCALED")
FRAMEWORKS = {  # what is made of a network, or of its export
    "torch": "onnx fp32, ts-trace fp32, ts-script fp32, ts-trace bf16, ts-script bf16, "
    "openvino fp32, openvino bf16, onnx int8, openvino int8",
    "keras": "tf-savedmodel fp32, onnx fp32, openvino fp32, openvino bf16, onnx int8, "
    "openvino int8",
    # the forms that servers with old runtimes read
    "torch, old": "onnx fp32",
    "keras, old": "tf-savedmodel fp32, onnx fp32",
}
MADE = [
    (*each.split(), framework)
    for framework, made in FRAMEWORKS.items()
    for each in made.split(", ")
]
# of what is not exported from the framework
SOURCE = {"torch": "onnx", "keras": "tf-savedmodel", "keras, old": "tf-savedmodel"}
OLD_OPSET = 13
ROUNDING = {"fp32": 1e-5, "bf16": 0.05, "int8": 0.05}  # relative to values of about one


WEIGHT = np.arange(12, dtype=np.float32).reshape(4, 3) / 12
BIAS = np.arange(4, dtype=np.float32) / 4


class Tiny(torch.nn.Module):
    """Two inputs of different types, two outputs of different shapes."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 4)
        with torch.no_grad():
            self.linear.weight.copy_(torch.from_numpy(WEIGHT))
            self.linear.bias.copy_(torch.from_numpy(BIAS))

    def forward(self, x, n):
        hidden = self.linear(x)
        return hidden.sum(1, keepdim=True), hidden * n.to(hidden.dtype)


def tiny_keras():
    """The same in Keras, called with a dict of inputs in another order."""
    keras = import_keras()
    n, x = keras.Input((1,), dtype="int64", name="COUNTS"), keras.Input((3,), name="VALUES")
    linear = keras.layers.Dense(4)
    hidden = linear(x)
    total = keras.ops.sum(hidden, axis=1, keepdims=True)
    scaled = hidden * keras.ops.cast(n, "float32")
    linear.set_weights([WEIGHT.T, BIAS])
    return keras.Model({"COUNTS": n, "VALUES": x}, [total, scaled])


def batch(size):
    random = np.random.default_rng(size)
    return {
        "VALUES": random.uniform(0, 1, (size, 3)).astype(np.float32),
        "COUNTS": random.integers(0, 4, (size, 1)).astype(np.int64),
    }


def expected(inputs):
    """The module's outputs in closed form, in numpy."""
    hidden = inputs["VALUES"] @ WEIGHT.T + BIAS
    return {"TOTAL": hidden.sum(1, keepdims=True), "SCALED": hidden * inputs["COUNTS"]}


def make(name, precision, source, folder):
    folder.mkdir()
    fmt, opset = formats.get(name), OLD_OPSET if folder.name.endswith("old") else None
    samples = [batch(size) for size in range(8, 16)]
    build = Build(precision, batch(2), OUTPUTS, opset, calibration=samples)
    fmt.make(source, folder / fmt.FILE, build)
    return folder / fmt.FILE


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory):
    """The module in every format and precision of a processor."""
    base = tmp_path_factory.mktemp("artifacts")
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onnx, "LARGE", 10)  # every weight counts as large
        patch.setattr(tf_savedmodel, "LARGE", 40)  # and the layer's, of 48 bytes
        for made in MADE:
            name, precision, framework = made
            if framework.startswith("torch") and name != "openvino" and precision != "int8":
                source = Tiny().eval()
            elif name == "tf-savedmodel":
                source = tiny_keras()
            else:
                source = found[SOURCE[framework], "fp32", framework]
            found[made] = make(name, precision, source, base / "-".join(made))
    return found


@pytest.fixture(params=MADE, ids="-".join)
def made(request):
    return request.param


def test_every_format_and_precision_of_a_processor_is_tried_here():
    known = {(n, p) for n in formats.names() for p in formats.get(n).PRECISIONS.get("cpu", ())}

    assert known == {(name, precision) for name, precision, _ in MADE}


def test_a_session_gives_the_modules_outputs_by_name_at_any_batch_size(made, artifacts):
    name, precision, _ = made
    session = formats.get(name).load(artifacts[made], 1, "cpu")
    answers = []
    for inputs in map(batch, (1, 2, 5)):
        for given in (inputs, dict(reversed(inputs.items()))):
            answers.append((inputs, session.run(given)))

    for inputs, found in answers:  # each is as it was when the next one came
        size = len(inputs["COUNTS"])
        shapes = {"TOTAL": ((size, 1), "float32"), "SCALED": ((size, 4), "float32")}
        assert {key: (value.shape, value.dtype) for key, value in found.items()} == shapes
        for output, right in expected(inputs).items():
            tolerance = ROUNDING[precision]
            np.testing.assert_allclose(found[output], right, tolerance, tolerance)


def test_a_server_restores_the_variables_that_a_savedmodel_reads(artifacts):
    """Triton's backend loads it as a session and runs the operation that restores variables."""
    import tensorflow as tf

    v1, path = tf.compat.v1, str(artifacts["tf-savedmodel", "fp32", "keras"])
    inputs, logger = batch(3), logging.getLogger("tensorflow")
    logger.setLevel(logging.ERROR)  # TensorFlow deprecates this loader
    with v1.Session(graph=tf.Graph()) as session:
        loaded = v1.saved_model.load(session, ["serve"], path)
        saver, signature = loaded.saver_def, loaded.signature_def["serving_default"]
        session.run(
            saver.restore_op_name, {saver.filename_tensor_name: f"{path}/variables/variables"}
        )
        found = session.run(
            {name: each.name for name, each in signature.outputs.items()},
            {each.name: inputs[name] for name, each in signature.inputs.items()},
        )

    for name, right in expected(inputs).items():
        np.testing.assert_allclose(found[name], right, rtol=1e-5)


def test_a_savedmodel_for_an_old_tensorflow_has_no_variables_and_no_default_attributes(artifacts):
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    saved = SavedModel()
    path = artifacts["tf-savedmodel", "fp32", "keras, old"]
    saved.ParseFromString((path / "saved_model.pb").read_bytes())

    (graph,) = saved.meta_graphs
    nodes = {node.op: set(node.attr) for node in graph.graph_def.node}
    assert {"Const", "MatMul", "Placeholder"} <= set(nodes)
    today = {"VarHandleOp", "ReadVariableOp", "DisableCopyOnRead", "PartitionedCall"}
    assert not today & set(nodes)
    assert "grad_a" not in nodes["MatMul"]  # of 2.15; an older TensorFlow refuses what it has not
    assert list(graph.meta_info_def.tags) == ["serve"]
    assert list(graph.signature_def) == ["serving_default"]


def test_a_traced_convolution_computes_fp32_as_fp32_on_a_gpu(tmp_path):
    """Tracing writes the setting into the graph, and a server's own setting no longer counts."""
    ts_trace = formats.get("ts-trace")
    inputs = {"IMAGE": np.zeros((2, 3, 8, 8), np.float32)}

    before = torch.backends.cudnn.allow_tf32
    ts_trace.make(torch.nn.Conv2d(3, 4, 3).eval(), tmp_path / "m.pt", Build("fp32", inputs, ("O",)))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated in PyTorch
        graph = torch.jit.load(tmp_path / "m.pt").inlined_graph
    (convolution,) = graph.findAllNodes("aten::_convolution")
    *_, allow_tf32 = convolution.inputs()
    assert allow_tf32.toIValue() is False
    assert torch.backends.cudnn.allow_tf32 is before is True


def test_on_a_gpu_onnx_runtime_loads_the_cuda_that_pip_installed(artifacts, monkeypatch):
    """A stand-in notes the call: this wheel has no CUDA, and says so afterwards."""
    calls, path = [], artifacts["onnx", "fp32", "torch"]
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: calls.append("preloaded"))

    onnx.load(path, 1, "cpu")
    assert calls == []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it names the providers that it has
        with pytest.raises(RuntimeError, match="no CUDAExecutionProvider"):
            onnx.load(path, 1, "gpu")
    assert calls == ["preloaded"]


def test_a_file_names_no_folder_of_the_machine_that_made_it(artifacts, made):
    path = artifacts[made]
    files = [each for each in path.rglob("*") if each.is_file()] if path.is_dir() else [path]

    assert files
    assert [each for each in files if str(HERE).encode() in each.read_bytes()] == []


ALONE = """
import importlib.util, json, sys
import numpy as np
sys.modules["helpers"] = None  # an import of it fails
arrays = {"VALUES": np.ones((2, 3), "float32"), "COUNTS": np.full((2, 1), 2)}
found = []
for runtime, artifact in json.loads(sys.argv[1]):
    spec = importlib.util.spec_from_file_location("runtime", runtime)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    outputs = module.load(artifact, 1, "cpu").run(arrays)
    found.append([outputs["TOTAL"][0].item(), outputs["SCALED"].shape])
print(json.dumps(found))
"""


@pytest.mark.slow
def test_a_runtime_runs_alone_outside_the_project(artifacts, tmp_path):
    pairs = []
    for name, framework in {name: framework for name, _, framework in reversed(MADE)}.items():
        runtime = tmp_path / f"{name}.py"
        runtime.write_bytes(Path(getfile(formats.get(name).load)).read_bytes())
        pairs.append((str(runtime), str(artifacts[name, "fp32", framework])))
    command = [sys.executable, "-I", "-c", ALONE, json.dumps(pairs)]

    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    on_a_cpu = [name for name in formats.names() if "cpu" in formats.get(name).PRECISIONS]
    assert len(pairs) == len(on_a_cpu)
    total = sum(range(12)) / 12 + sum(range(4)) / 4  # every value is one
    for answer, shape in json.loads(done.stdout):
        assert (answer, shape) == (pytest.approx(total), [2, 4])


def test_an_unknown_format_is_named_with_what_there_is():
    text = f"^Unknown format 'flatpack'. Known formats: {', '.join(formats.names())}.$"
    with pytest.raises(ParameterError, match=text):
        formats.get("flatpack")


DUMMY = '''
"""A format that multiplies."""


class Multiplication:
    def __init__(self, factor):
        self.factor = factor

    def run(self, inputs):
        return {"OUT": inputs["IN"] * self.factor}


def load(path, threads, device):
    return Multiplication(int(path.read_text()))


def make(source, path, build):
    path.write_text(str(source))


FILE, SOURCES, RUNTIME = "model.txt", ("torch",), ("numpy",)
DISPLAY_NAMES = ("Multiplication", "Text")
PRECISIONS = {"cpu": ("fp32",)}
'''


@pytest.fixture
def dummy(tmp_path, monkeypatch):
    """The file of a new format, beside those of the package."""
    path = tmp_path / "dummy_one.py"
    path.write_text(DUMMY)
    monkeypatch.setattr(formats, "__path__", [*formats.__path__, str(tmp_path)])
    formats.names.cache_clear()
    yield path
    formats.names.cache_clear()
    sys.modules.pop("helpers.formats.dummy_one", None)


def test_a_new_format_is_one_module_and_nothing_else(dummy):
    fields = ONNX | {"export_format": "dummy-one", "format": "dummy-one"}
    models = {"resnet50": {"experiments": {"new": fields}}}

    fmt = formats.get(resolve("resnet50", "deploy", models=models).format)
    fmt.make(2, dummy.with_name(fmt.FILE), Build("fp32", {}, ("OUT",)))
    session = fmt.load(dummy.with_name(fmt.FILE), 1, "cpu")

    others = ["tf-trt", "trt", "triton"]  # on a GPU, and what a repository has already
    assert formats.names() == sorted([*{name for name, *_ in MADE}, *others, "dummy-one"])
    assert Path(getfile(fmt.load)) == dummy
    assert session.run({"IN": np.array([1, 2])})["OUT"].tolist() == [2, 4]
