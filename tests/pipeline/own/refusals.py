"""What `new` refuses: how the user's folder is prepared, the options, and a part of the line."""

import joblib
import numpy as np
from onnx import helper

from tests.pipeline.own import sources
from tests.pipeline.own.cases import MATMUL, ONE, graph, opset, read, relu, renamed, script

STEPS = """
import numpy as np


def prepare(inputs):
    return {"features": inputs["features"].astype(np.float32) / 64 - 2}
"""
GIVEN = ("--before", "steps:prepare", "--samples", "counts.npz")
DRAWN = np.zeros((4, sources.FEATURES), np.float32)
NOT_FINITE = np.where(np.arange(64).reshape(4, 16) == 37, np.nan, DRAWN).astype(np.float32)


def junk(folder):
    for ending in ("onnx", "keras", "pt", "pt2", "pkl"):
        (folder / f"a.{ending}").write_text("this is no model")
    joblib.dump({"a": 1}, folder / "dict.pkl")


def custom(folder):
    node = helper.make_node("Nope", ["x"], ["y"], domain="com.acme")
    shape = [sources.tensor("x", ["n", 3])], [sources.tensor("y", ["n", 3])]
    sources.save(folder / "model.onnx", [node], *shape, domains=["com.acme"])


def lost(folder):
    """A graph whose weights lie in another file, which is gone."""
    options = {"save_as_external_data": True, "location": "beside", "size_threshold": 0}
    sources.scores(folder / "model.onnx", **options)
    (folder / "beside").unlink()


def with_samples(**arrays):
    """A graph of one layer, with samples and labels."""

    def write(folder):
        sources.scores(folder / "model.onnx")
        sources.samples(folder / "samples.npz")
        np.savez(folder / "few.npz", label=np.zeros(3, int))
        if arrays:
            np.savez(folder / "samples.npz", **arrays)

    return write


def repository(old, other):
    def write(folder):
        path = sources.repository(folder / "repository") / "config.pbtxt"
        path.write_text(path.read_text().replace(old, other))

    return write


def state_dict(folder):
    import torch

    torch.save(torch.nn.Linear(2, 2).state_dict(), folder / "state.pt")


def steps(code=STEPS):
    """A graph of one layer, a function and what a client sends."""

    def write(folder):
        sources.scores(folder / "model.onnx")
        counts = np.random.default_rng(0).integers(0, 256, (48, 16), np.uint8)
        np.savez(folder / "counts.npz", features=counts)
        np.savez(folder / "empty.npz")
        np.savez(folder / "uneven.npz", features=counts, more=counts[1:])
        (folder / "steps.py").write_text(code)

    return write


def bad_steps(name):
    return steps(STEPS.replace(*STEP_FAULTS[name]))


STEP_FAULTS = {
    "beside": ("import numpy", "import counting, numpy"),
    "key": ('["f', '["g'),
    "number": ("return {", "return 3 or {"),
    "other": ('{"f', '{"g'),
    "double": ("float32", "float64"),
    "narrow": (".astype", "[:, :3].astype"),
    "short": (".astype", "[1:].astype"),
    "alone": (".astype", "[:, : len(inputs['features'])].astype"),
    "objects": ("/ 64 - 2", ".astype(object)"),
}
PICKY = "place = Sub(k, first) y = Gather(table, place)"
PREPARE = {
    "nothing": lambda _: None,
    "folder": lambda folder: (folder / "it").mkdir(),
    "junk": junk,
    "nets": sources.networks,
    "script": script("defaults"),
    "state dict": state_dict,
    "custom": custom,
    "lost": lost,
    "scores": with_samples(),
    "plain": graph(ONE, MATMUL),
    "opset": opset(99),
    "name": renamed("x y", "y"),
    "text": graph("(string[n] x) => (string[n] y)", "y = Identity(x)"),
    "one": relu("float[1, 3]"),
    "two": relu("float[2, 3]"),
    "scalar": relu("float"),
    "free": relu("float[n, height, width]"),
    "mixing": graph("(float[n, 4] x) => (float[n, 4] y)", "y = Reshape(x, shape)", shape=[1, -1]),
    "meeting": graph(ONE, "m = ReduceMean <axes = [0]> (x) s = Sub(x, m) y = MatMul(s, w)"),
    "picky": graph(
        "(int64[n] k) => (float[n, 2] y)", PICKY, first=100, table=np.zeros((3, 2), np.float32)
    ),
    "points": with_samples(points=DRAWN),
    "surplus": with_samples(features=DRAWN, x=DRAWN),
    "double": with_samples(features=DRAWN.astype(float)),
    "narrow": with_samples(features=DRAWN[:, :7]),
    "nan": with_samples(features=NOT_FINITE),
    "empty": with_samples(features=DRAWN[:0]),
    "objects": with_samples(features=np.array([{}])),
    "no pbtxt": repository("max_batch_size", "no_such_field"),
    "no batch": repository("max_batch_size: 8", "max_batch_size: 0"),
    "no tensors": repository("input {", "parameters { key:"),
    "free size": repository("dims: [ 3 ] }\ndyn", "dims: [ -1 ] }\ndyn"),
    "steps": steps(),
    **{f"steps {name}": bad_steps(name) for name in STEP_FAULTS},
}
# the line of `nets` that decides by values
RARE = next(n for n, line in enumerate(sources.NETS.splitlines(), 1) if "pixels.sum()" in line)
# what is prepared: the options, after --from model.onnx if there is no other => a part of the line
FAST = """
nothing: --from none.onnx => --from none.onnx: no such file
folder: --from it => source 'it'. Use an .onnx
junk: --from a.onnx => a.onnx is not an ONNX model
junk: --from a.keras => a.keras is not a Keras file
junk: --from a.pt => a.pt is not a TorchScript file
junk: --from a.pt2 => a.pt2 is not a program that torch.export
junk: --from a.pkl => joblib can read
junk: --from dict.pkl => holds a dict and not a fitted model
custom: => com.acme:Nope
lost: => has weights in other files, and one of them is missing
name: => has the input name 'x y'. Rename it: Triton's clients
text: => is text. Use numeric inputs.
one: => is 1 x 3, with a fixed first dimension. Export
scalar: => The input 'x' has no batch dimension. Use --batch none
free: => The input 'x' has free dimensions: height, width. Use --samples
free: --dimension height=tall => Invalid --dimension height=tall. Use a name and a size
plain: --dimension height=3 => Unknown --dimension height. The free dimensions are none.
mixing: => The output 'y' of two samples has the shape 1 x 8, not a row
meeting: => Output 'y' changes when another sample is in the batch
picky: => k 1 x 1 (random inputs; use --samples if the model accepts only
opset: => has opset 99, but this ONNX Runtime supports opset
plain: --batch 2 => Invalid --batch 2. Use 1 or none.
two: --batch 1 => --batch 1 does not match the input 'x', whose first dimension is 2
points: --samples samples.npz => has no array 'features'
surplus: --samples samples.npz => has the array 'x'. The model's inputs are features.
double: --samples samples.npz => is float64, but the input takes float32
narrow: --samples samples.npz => are 4 x 7, but the input takes rows x 16
nan: --samples samples.npz => the array 'features' has a number that is not finite in row 2
empty: --samples samples.npz => has no rows
objects: --samples samples.npz => is not an .npz of plain arrays
scores: --samples none.npz => none.npz: No such file or directory. Use an .npz file.
scores: --metric f1 => --metric f1 also needs --labels: an .npz file
scores: --samples samples.npz --labels labels.npz => also needs --metric:
scores: --labels labels.npz --metric f1 => --labels also needs --samples: labels
scores: --samples samples.npz --labels few.npz --metric f1 => has 3 labels, but there are 64 samples
scores: --samples samples.npz --labels labels.npz --metric a-b => Invalid --metric a-b. Use acc
no pbtxt: --from repository/doubler => is not a Triton model configuration
no batch: --from repository/doubler => Give the model a batch dimension
no tensors: --from repository/doubler => config.pbtxt
free size: --from repository/doubler => has a free size
"""
SLOW = f"""
script: --from model.pt => does not declare type and shape of its input 'x'. Use --samples
state dict: --from state.pt => (a state dict has no network)
nothing: --from missing:plain => the module 'missing' was not found
nothing: --from __main__:x => __main__:x cannot be imported
nets: --from nets:missing => has no attribute 'missing'
nets: --from nets:unclear => cannot be converted to any format: the control flow depends on values (
nets: --from nets:rare => depends on values (nets.py, line {RARE}), and a trace or a graph would
nets: --from nets:number => nets:number does not return a pair
nets: --from nets:fails => RuntimeError: there are no weights here
steps: --before steps:prepare => --before also needs --samples
steps: --before steps --samples counts.npz => Use module:function
steps: --before preprocessor --samples counts.npz => Use module:function
steps: --before others:prepare --samples counts.npz => others.py
steps: --before steps:other --samples counts.npz => AttributeError
steps beside: --before steps:prepare --samples counts.npz => ModuleNotFoundError
steps key: --before steps:prepare --samples counts.npz => failed for counts.npz: KeyError: 'g
steps number: --before steps:prepare --samples counts.npz => returns no dict of arrays
steps other: --before steps:prepare --samples counts.npz => --before steps:prepare has no array
steps double: --before steps:prepare --samples counts.npz => is float64, but
steps narrow: --before steps:prepare --samples counts.npz => x 3
steps short: --before steps:prepare --samples counts.npz => 47 rows of 'features' for 48 samples
steps alone: --before steps:prepare --samples counts.npz => other names or shapes for one sample
steps objects: --before steps:prepare --samples counts.npz => The output 'features' of steps
steps: --before steps:prepare --samples empty.npz => needs arrays with one row per sample
steps: --before steps:prepare --samples uneven.npz => needs arrays with one row per sample
"""


def cases(text):
    """Return the cases of a table, by what comes before the arrow."""
    lines = text.strip().splitlines()
    return {line.partition(" => ")[0]: read(line, PREPARE)[1][:3] for line in lines}
