"""Small models of every kind that `triton-notebooks new` takes, and samples of them."""

import subprocess
import sys
import warnings

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FEATURES, CLASSES, ROWS = 16, 4, 64
NETS = '''"""Networks that a user has, with example inputs."""

import torch


class Plain(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = torch.nn.Linear(16, 32), torch.nn.Linear(32, 4)

    def forward(self, features):
        return self.second(torch.relu(self.first(features)))


class Named(Plain):
    def forward(self, features, scale):
        hidden = torch.relu(self.first(features))
        return {"logits": self.second(hidden) * scale, "hidden": hidden}


class Branch(torch.nn.Module):
    def forward(self, x):
        if x.abs().max() > 1000:
            return x
        return x * 2


class Unclear(torch.nn.Module):
    def forward(self, x):
        return {"y": x if float(x.sum()) > 0 else -x}


class Checked(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.c, self.h = torch.nn.Conv2d(3, 4, 3), torch.nn.Linear(4, 5)

    def forward(self, pixels):
        if pixels.shape[1] != 3:
            raise ValueError("three channels, please")
        y = self.c(pixels).mean((2, 3))
        return {"logits": self.h(y), "features": y}


class Rare(Checked):
    def forward(self, pixels):
        answer = super().forward(pixels)
        if pixels.sum() > 1e9:
            answer["logits"] = -answer["logits"]
        return answer


def plain(): return Plain(), torch.randn(2, 16)
def named(): return Named(), {"features": torch.randn(2, 16), "scale": torch.ones(2, 1)}
def branch(): return Branch(), (torch.randn(2, 3),)
def unclear(): return Unclear(), torch.randn(2, 3)
def checked(): return Checked(), torch.randn(2, 3, 16, 16)
def rare(): return Rare(), torch.randn(2, 3, 16, 16)
def number(): return 3


def fails():
    raise RuntimeError("there are no weights here")


def network():
    import keras

    keras.utils.set_random_seed(0)
    words, side = keras.Input((12,), name="words", dtype="int32"), keras.Input((3,), name="side")
    looked_up = keras.layers.Embedding(50, 8)(words)
    joined = keras.layers.Concatenate()([keras.layers.GlobalAveragePooling1D()(looked_up), side])
    shares = keras.layers.Dense(3, activation="softmax", name="shares")(joined)
    return keras.Model([words, side], shares)
'''


def tensor(name, shape, kind=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def save(path, nodes, inputs, outputs, weights=(), domains=(), opset=17, **options):
    graph = helper.make_graph(nodes, "graph", inputs, outputs, weights)
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(each, 1) for each in domains)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    onnx.save(model, path, **options)
    return path


def weights():
    return np.random.default_rng(0).standard_normal((FEATURES, CLASSES)).astype(np.float32)


def scores(path, batch="batch", **options):
    """Write a graph of one layer, whose output has scores of four classes."""
    nodes = [helper.make_node("MatMul", ["features", "weights"], ["logits"])]
    held = [numpy_helper.from_array(weights(), "weights")]
    tensors = [tensor("features", [batch, FEATURES])], [tensor("logits", [batch, CLASSES])]
    return save(path, nodes, *tensors, held, **options)


def stateful(path):
    """Write a graph without a batch: a state, two rows of it, that a sample changes. Two tensors
    have names as TensorFlow gives them.
    """
    nodes = [
        helper.make_node("ReduceMean", ["net/sound:0"], ["mean"], axes=[0], keepdims=1),
        helper.make_node("Add", ["state", "mean"], ["next"]),
        helper.make_node("ReduceSum", ["next"], ["net/loud:0"], keepdims=0),
    ]
    inputs = [tensor("net/sound:0", ["length"]), tensor("state", [2, 3])]
    return save(path, nodes, inputs, [tensor("net/loud:0", []), tensor("next", [2, 3])])


MODEL = """import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            given = pb.get_input_tensor_by_name(request, "x").as_numpy()
            tensors = [pb.Tensor("doubled", given * np.float32(2))]
            answers.append(pb.InferenceResponse(tensors))
        return answers
"""
CONFIG = """\
name: "doubler"
backend: "BACKEND"
max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: [ 3 ] }
output { name: "doubled" data_type: TYPE_FP32 dims: [ 3 ] }
dynamic_batching { }
"""


def repository(folder, backend="python"):
    """Write a Triton repository of one model, by its Python backend unless told."""
    (folder / "doubler/1").mkdir(parents=True)
    (folder / "doubler/1/model.py").write_text(MODEL)
    (folder / "doubler/config.pbtxt").write_text(CONFIG.replace("BACKEND", backend))
    return folder / "doubler"


def samples(path):
    """Write samples of `scores`, and the labels that it decides beside them."""
    drawn = np.random.default_rng(1).standard_normal((ROWS, FEATURES)).astype(np.float32)
    np.savez(path, features=drawn)
    np.savez(path.with_name("labels.npz"), label=(drawn @ weights()).argmax(1))
    return path


def networks(folder):
    (folder / "nets.py").write_text(NETS)
    return folder / "nets.py"


def torch_files(folder):
    """Write `nets`, of its plain network a TorchScript file and a program, and samples."""
    import torch

    networks(folder)
    samples(folder / "samples.npz")
    sys.modules.pop("nets", None)  # of another test, whose folder may be gone
    sys.path.insert(0, str(folder))
    try:
        import nets
    finally:
        sys.path.remove(str(folder))
    network, example = nets.plain()
    batch = torch.export.Dim("batch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch deprecates TorchScript
        torch.jit.save(torch.jit.script(network.eval()), folder / "net.pt")
        program = torch.export.export(network.eval(), (example,), dynamic_shapes=({0: batch},))
        torch.export.save(program, folder / "net.pt2")


def keras_files(folder):
    """Write a Keras file, and the SavedModel of the same network; another process does, as Keras
    reads its settings when it is imported.
    """
    text = "import nets; n = nets.network(); n.save('net.keras'); n.export('saved', verbose=False)"
    words = [sys.executable, "-W", "ignore", "-c", text]
    subprocess.run(words, cwd=folder, check=True, capture_output=True)
