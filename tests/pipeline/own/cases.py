"""Small models like those of public bug reports: each writes its file to a folder."""

import warnings
from importlib.util import module_from_spec, spec_from_file_location
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.pipeline.own import sources

WEIGHTS = np.random.default_rng(0).standard_normal((8, 5)).astype(np.float32)
MATMUL = "y = MatMul(x, w)"
ONE = "(float[n, 8] x) => (float[n, 5] y)"


def graph(signature, nodes, opset=17, **weights):
    """Write model.onnx from ONNX's text format; `w` is a matrix of 8 x 5."""
    text = f'<ir_version: 10, opset_import: ["": {opset}]> g {signature} {{ {nodes} }}'

    def write(folder):
        model = onnx.parser.parse_model(text)
        for name, value in {"w": WEIGHTS, **weights}.items():
            model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
        onnx.save(model, folder / "model.onnx")

    return write


def opset(version):
    return graph(ONE, MATMUL, version)


def relu(kind):
    return graph(f"({kind} x) => ({kind} y)", "y = Relu(x)")


def nms(folder):
    """Boxes that are found: as many as the sample has."""
    signature = "(float[n, 20, 4] boxes, float[n, 2, 20] scores) => (int64[found, 3] selected)"
    nodes = "selected = NonMaxSuppression(boxes, scores, most, iou, least)"
    held = {"most": [5], "iou": np.float32([0.5]), "least": np.float32([0.1])}
    graph(signature, nodes, **held)(folder)


def renamed(name, other):
    """Write a graph whose tensors have names that ONNX's text format does not take."""

    def write(folder):
        weights = numpy_helper.from_array(WEIGHTS, "w")
        tensors = [sources.tensor(name, ["n", 8])], [sources.tensor(other, ["n", 5])]
        node = helper.make_node("MatMul", [name, "w"], [other])
        sources.save(folder / "model.onnx", [node], *tensors, [weights])

    return write


def labels(folder, *, has_scores=False):
    names = numpy_helper.from_array(np.array(["cat", "dog", "emu", "fox", "gnu"], object), "names")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["scores"]),
        helper.make_node("ArgMax", ["scores"], ["i"], axis=1, keepdims=0),
        helper.make_node("Gather", ["names", "i"], ["label"]),
    ]
    outputs = [sources.tensor("label", ["n"], TensorProto.STRING)]
    outputs += [sources.tensor("scores", ["n", 5])] * has_scores
    held = [numpy_helper.from_array(WEIGHTS, "w"), names]
    sources.save(folder / "model.onnx", nodes, [sources.tensor("x", ["n", 8])], outputs, held)


def words(folder):
    from helpers.models._keras import keras

    keras().utils.set_random_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        word = keras().Input((1,), dtype="string", name="word")
        places = keras().layers.StringLookup(vocabulary=["a", "b", "c"])(word)
        hidden = keras().layers.Embedding(4, 3)(places)
        network = keras().Model(word, keras().layers.Dense(2)(hidden))
        network.save(folder / "model.keras")


def samples(folder, name):
    drawn = np.random.default_rng(0).standard_normal((40, 8)).astype(np.float32)
    np.savez(folder / "samples.npz", **{name: drawn})


def script(kind):
    """Write model.pt and samples.npz: of dropout in training, of default arguments, of int8."""

    def write(folder):
        import torch

        torch.manual_seed(0)
        first, second = torch.nn.Linear(8, 16), torch.nn.Linear(16, 5)
        layers = torch.nn.Sequential(first, torch.nn.ReLU(), second)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rows, name = torch.randn(2, 8), "input"
            if kind == "dropout":
                drawn = torch.nn.Sequential(layers, torch.nn.Dropout(0.5)).train()
                module = torch.jit.trace(drawn, rows, check_trace=False)
            elif kind == "quantised":
                layer = {torch.nn.Linear}
                small = torch.ao.quantization.quantize_dynamic(layers.eval(), layer, torch.qint8)
                module = torch.jit.trace(small, rows)
            else:
                modules(folder)
                spec = spec_from_file_location("with_defaults", folder / "modules.py")
                loaded = module_from_spec(spec)
                spec.loader.exec_module(loaded)
                module, name = torch.jit.script(loaded.Defaults().eval()), "x"
            torch.jit.save(module, folder / "model.pt")
        samples(folder, name)

    return write


MODULES = """
import dataclasses

import torch


@dataclasses.dataclass
class Out:
    logits: torch.Tensor
    hidden: torch.Tensor


class Structured(torch.nn.Module):
    def forward(self, x):
        return Out(x * 2, x + 1)


class Counted(torch.nn.Module):
    def forward(self, x):
        return {"y": x * 2, "count": 3}


class Decided(torch.nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else x * 2


class Defaults(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.f = torch.nn.Linear(8, 3)

    def forward(self, x: torch.Tensor, scale: float = 2.0, mask: torch.Tensor | None = None):
        y = self.f(x) * scale
        return y if mask is None else y * mask


class Half(torch.nn.Module):
    def forward(self, x):
        return x.bfloat16()


def unseeded(): return torch.nn.Linear(8, 3), torch.randn(2, 8)
def structured(): return Structured(), torch.randn(2, 8)
def counted(): return Counted(), torch.randn(2, 8)
def decided(): return Decided(), torch.randn(2, 8)
def half(): return torch.nn.Linear(8, 3).bfloat16(), torch.randn(2, 8).bfloat16()
def rounded(): return Half(), torch.randn(2, 8)


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    small = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64}
    config = GPT2Config(vocab_size=200, bos_token_id=0, eos_token_id=1, **small)
    return GPT2LMHeadModel(config), {"input_ids": torch.randint(0, 200, (2, 16))}
"""


def modules(folder):
    (folder / "modules.py").write_text(MODULES)


IO = """
input {{ name: "x" data_type: TYPE_FP32 dims: [ 3 ] }}
output {{ name: "y" data_type: TYPE_FP32 dims: [ 3 ] }}
name: "chain" max_batch_size: 4 {0}
"""
STEP = """step [ { model_name: "step" model_version: -1
input_map { key: "x" value: "x" } output_map { key: "y" value: "y" } } ]"""


def repository(fields):
    def write(folder):
        (folder / "chain/1").mkdir(parents=True)
        (folder / "chain/config.pbtxt").write_text(IO.format(fields))

    return write


def elementwise(folder):
    """A graph without weights, and samples."""
    graph("(float[n, 8] x) => (float[n, 8] y)", "y = Tanh(x)")(folder)
    samples(folder, "x")


ZERO = np.zeros(1, np.float32)
PREPARE = {
    "opset22": opset(22),
    "opset23": opset(23),
    "slashes": renamed("onnx::MatMul_0", "/fc/Gemm_output_0"),
    "comma": renamed("input-1", "output,1"),
    "labels": labels,
    "label_beside_scores": lambda folder: labels(folder, has_scores=True),
    "empty_output": graph(
        "(float[n, 8] x) => (float[n, 5] y, float[n, 0] empty)",
        "y = MatMul(x, w) empty = Slice(y, zero, zero, axis)",
        zero=[0],
        axis=[1],
    ),
    "masked": graph(
        "(float[n, 8] x) => (float[n, 5] logits)",
        "m = MatMul(x, w) k = Greater(m, zero) logits = Where(k, m, least)",
        zero=ZERO,
        least=np.float32([-np.inf]),
    ),
    "lengths": graph(
        "(float[n, 8] x, int64[n, 1] length) => (float[n, 5] y)",
        "l = Cast <to = 1> (length) m = MatMul(x, w) y = Div(m, l)",
    ),
    "truth_values": graph(
        "(float[n, 8] x) => (float[n, 5] y, bool[n, 5] over)",
        "y = MatMul(x, w) over = Greater(y, zero)",
        zero=ZERO,
    ),
    "default_input": graph(
        "(float[n, 8] x, float[1] scale) => (float[n, 5] y)",
        "m = MatMul(x, w) y = Mul(m, scale)",
        scale=np.float32([2]),
    ),
    "half": graph("(float16[n, 8] x) => (float16[n, 5] y)", MATMUL, w=np.float16(WEIGHTS)),
    "declared_otherwise": graph("(float[4, 8] x) => (float[1, 5] y)", MATMUL),
    "elementwise": elementwise,
    "default_arguments": script("defaults"),
    "checked": sources.networks,
    "words": words,
    "nms": nms,
    "nms_alone": nms,
    "dropout": script("dropout"),
    "quantised": script("quantised"),
    "nan": graph("(float[n, 8] x) => (float[n, 8] y)", "z = Sub(x, x) y = Div(z, z)"),
    "constant": graph("() => (float[1, 2] y)", "y = Constant <value = float[1, 2] {1, 2}> ()"),
    "ensemble": repository("ensemble_scheduling { " + STEP + " }"),
    "sequences": repository("sequence_batching { }"),
    "decoupled": repository("model_transaction_policy { decoupled: true }"),
}
FILE = ("--from", "model.onnx")


class Case(NamedTuple):
    """A model, and what `new` says of it. The page "Can my model be deployed?" is made of these."""

    prepare: Any  # writes the model to a folder
    options: tuple[str, ...]
    line: str  # a part of what is said
    words: str = ""  # for a reader of the page


def read(line, prepare):
    """Return a name and a case of a line "name: options => what is said"; the options come after
    --from model.onnx if there is no other source.
    """
    given, said = line.split(" => ")
    name, _, words = given.partition(":")
    options = tuple(words.split()) if "--from" in words else (*FILE, *words.split())
    return name, Case(prepare.get(name, modules), options, said)


def of_page(text):
    lines = text.strip().splitlines()
    for line, words in zip(lines[::2], lines[1::2], strict=True):
        is_module = "--from modules:" in line
        name, case = read(line, {} if is_module else PREPARE)
        yield name, case._replace(words=words.strip())


TAKEN = """
opset22: => experiments: onnx-fp32, openvino-fp32
    ONNX, opset 22
opset23: => experiments: onnx-fp32
    ONNX, opset 23
slashes: => output /fc/Gemm_output_0
    tensors with the names that PyTorch's exporter gives
comma: => output output,1
    commas in names
label_beside_scores: => output label: left out, because it is text
    a classifier of names that returns scores too: the names are left out
empty_output: => output empty: left out, because it has no elements
    an output without elements: it is left out
masked: => output logits: float32, 5
    infinite scores, as where a mask is 0
lengths: => input length: int64, 1
    whole numbers that are lengths
truth_values: => output over: bool, 5
    truth values and classes as outputs: 98% of them must be equal
default_input: => input scale: keeps its default
    an input with a default: it keeps it
half: => output y: float16, 5
    inputs and outputs in fp16
declared_otherwise: --batch none => output y: float32, 4 x 5
    an output with another shape than the file declares
elementwise: --samples samples.npz => left out: onnx-int8: nothing in it can be quantised
    a graph without weights: not in int8
default_arguments: --from model.pt --samples samples.npz => input scale: keeps its default
    TorchScript with default arguments: they keep them
checked: --from nets:checked => onnx-fp32, ts-trace-fp32
    a module that checks shapes
structured: --from modules:structured => output hidden: float32, 8
    a module that returns a dataclass
gpt2: --from modules:gpt2 => use_cache: off
    a decoder: without its cache of earlier tokens
decided: --from modules:decided => the control flow depends on values (modules.py, line
    a module that decides by values: as scripted TorchScript only
"""
REFUSED = """
labels: => 'label' is text. Use scores instead.
    text as the only output
words: --from model.keras => is text. Use numeric inputs.
    text as an input
half: --from modules:half => is bfloat16, which numpy does not have. Call .float()
    a module in bfloat16
rounded: --from modules:rounded => is bfloat16, which numpy does not have. Call .float()
    an output in bfloat16
unseeded: --from modules:unseeded => returns other weights at each call. Load them
    a function without a seed
counted: --from modules:counted => 'count' is not a tensor but of the type int.
    an output that is not a tensor
nms: => Pad it to a fixed shape in the model, or leave it out.
    an output as long as what is found, as of NonMaxSuppression
nms_alone: --batch none --dimension n=1 => Pad it to a fixed shape in the model, or leave it out.
    the same, without a batch
dropout: --from model.pt --samples samples.npz => change from run to run. Save the model in
    a model that draws random numbers, as dropout in training mode
quantised: --from model.pt --samples samples.npz => changes when another sample is in the batch
    outputs that depend on the other samples of a batch, as of dynamic quantization
nan: => is NaN for 16 of 16 random inputs. Use --samples
    an output that is not a number
constant: => has no inputs. Its outputs are constants.
    a graph without inputs
ensemble: --from chain => is an ensemble. Use --from for one of its models: step.
    an ensemble of a repository
sequences: --from chain => has a sequence batcher
    a model of a repository whose requests have state
decoupled: --from chain => is decoupled. Use a model with one response per request.
    a model of a repository that streams responses
"""
TAKEN, REFUSED = dict(of_page(TAKEN)), dict(of_page(REFUSED))
