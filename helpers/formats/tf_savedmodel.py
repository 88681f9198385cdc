"""TensorFlow's SavedModel: a Keras network as one function, run by TensorFlow.

The function's inputs and outputs have the network's own names, which ONNX and OpenVINO keep.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from types import ModuleType

    import tensorflow
    from tensorflow.core.framework.node_def_pb2 import NodeDef

    from helpers.formats import Arrays, Build, GraphFacts, Source

FILE = "model.savedmodel"  # a folder, with the name that Triton's TensorFlow backend expects
SOURCES = ("tensorflow",)
PRECISIONS = {"cpu": ("fp32",), "gpu": ("fp32",)}
RUNTIME = ("tensorflow",)
DISPLAY_NAMES = ("TensorFlow", "TensorFlow SavedModel")

SIGNATURE = "serving_default"
LARGE = 100_000  # bytes of a weight that is not copied along with the graph
# of a graph: its ends, what holds or reads a weight, and what orders others
_NO_OPERATORS = {"Placeholder", "Const", "VarHandleOp", "ReadVariableOp", "Identity", "NoOp"}


class SavedModelSession:
    """A loaded signature. A process has one thread pool, whose size the first session sets."""

    def __init__(self, path: Path, threads: int, device: str) -> None:
        tf = _tensorflow_alone()
        if device == "gpu" and not tf.config.list_physical_devices("GPU"):
            raise RuntimeError("TensorFlow finds no GPU and would use the CPU instead")
        with suppress(RuntimeError):  # after TensorFlow's first operation it is too late
            tf.config.threading.set_intra_op_parallelism_threads(threads)
            tf.config.threading.set_inter_op_parallelism_threads(1)
        self._constant = tf.constant
        self._model = tf.saved_model.load(str(path))  # must live as long as its function
        self._function = self._model.signatures[SIGNATURE]

    def run(self, inputs: Arrays) -> Arrays:
        results = self._function(**{name: self._constant(inputs[name]) for name in inputs})
        return {name: result.numpy() for name, result in results.items()}


load = SavedModelSession


def describe(path: Path) -> GraphFacts:
    """Count the operators of the signature and of the functions that it calls."""
    _tensorflow_alone()
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    saved = SavedModel()
    saved.ParseFromString((path / "saved_model.pb").read_bytes())
    meta = next(graph for graph in saved.meta_graphs if SIGNATURE in graph.signature_def)
    graph, signature = meta.graph_def, meta.signature_def[SIGNATURE]
    functions = {function.signature.name: function.node_def for function in graph.library.function}
    reached = _reached(graph.node, [tensor.name for tensor in signature.outputs.values()])
    return {"operators": dict(Counter(_kinds(reached, functions)))}


def _reached(nodes: Iterable[NodeDef], tensors: list[str]) -> list[NodeDef]:
    """List the nodes that compute `tensors`; a file has others, which save and restore weights."""
    nodes_by_name = {node.name: node for node in nodes}
    reached: dict[str, NodeDef] = {}
    while tensors:
        name = tensors.pop().removeprefix("^").partition(":")[0]
        if name not in reached:
            reached[name] = nodes_by_name[name]
            tensors += nodes_by_name[name].input
    return list(reached.values())


def _kinds(nodes: Iterable[NodeDef], functions: Mapping[str, Iterable[NodeDef]]) -> Iterator[str]:
    """Yield the operators of nodes and of the functions that they call, without the plain calls."""
    for node in nodes:
        called = [value.func.name for value in node.attr.values() if value.HasField("func")]
        called += [func.name for value in node.attr.values() for func in value.list.func]
        for name in called:
            yield from _kinds(functions.get(name, ()), functions)
        if node.op not in _NO_OPERATORS and "f" not in node.attr:
            yield node.op


def _tensorflow_alone() -> ModuleType:
    """Import TensorFlow without Keras: a third of the time, and no SavedModel needs it."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    blocked = {"keras"} - set(sys.modules)
    sys.modules.update(dict.fromkeys(blocked))  # type: ignore[arg-type]
    try:
        import tensorflow
    finally:
        for name in blocked:
            del sys.modules[name]
    return tensorflow  # type: ignore[no-any-return, unused-ignore]


def make(source: Source, path: Path, build: Build) -> None:
    """Save a Keras model that takes a dict of tensors, with any batch size; copy a SavedModel."""
    if isinstance(source, Path):
        shutil.copytree(source, path)
        return
    import tensorflow as tf

    # its log names folders of this machine
    logging.getLogger("tensorflow").setLevel(logging.ERROR)

    def compute(**tensors: tensorflow.Tensor) -> dict[str, tensorflow.Tensor]:
        results = source(tensors, training=False)
        results = results if isinstance(results, (list, tuple)) else (results,)
        return dict(zip(build.outputs, results, strict=True))

    specs = {
        name: tf.TensorSpec((None, *array.shape[1:]), array.dtype, name)
        for name, array in build.inputs.items()
    }
    module = tf.Module()
    # TensorFlow's own variables: a server would restore Keras' variables, if they were saved too
    module.variables_of_network = [variable.value for variable in source.variables]
    module.compute = tf.function(compute)
    signature = module.compute.get_concrete_function(**specs)
    if build.opset:
        _save_frozen(signature, path, build)
    else:
        tf.saved_model.save(module, str(path), signatures={SIGNATURE: signature})
        signatures = f"signatures={{'{SIGNATURE}': signature}}"
        build.record("tf.saved_model.save", "module", f"'{FILE}'", signatures)


def _save_frozen(
    signature: tensorflow.types.experimental.ConcreteFunction, path: Path, build: Build
) -> None:
    """Save a function as TensorFlow 1 did, with its weights as constants.

    Old TensorFlows know neither the operations by which today's reads a variable nor the attributes
    that it writes with their default values. TensorFlow copies the graph many times: with Wide &
    Deep's 367 MB a process took 7 GB. So large weights are inserted into the written file.
    """
    import tensorflow as tf
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel
    from tf2onnx.tf_loader import convert_variables_to_constants_large_model

    frozen, weights = convert_variables_to_constants_large_model(signature), {}
    for node in (node for node in frozen.node if node.op == "Const"):
        tensor = node.attr["value"].tensor
        if len(tensor.tensor_content) > LARGE:
            weights[node.name] = tensor.tensor_content
            tensor.ClearField("tensor_content")
    fed = signature.inputs[: len(signature.inputs) - len(signature.captured_inputs)]
    # a function flattens its dict in the order of the names
    results = zip(sorted(build.outputs), signature.outputs, strict=True)
    v1, tags = tf.compat.v1, [tf.saved_model.SERVING]
    with tf.Graph().as_default() as graph, v1.Session() as session:
        tf.import_graph_def(frozen, name="")
        inputs = {t.op.name: graph.get_tensor_by_name(t.name) for t in fed}
        outputs = {name: graph.get_tensor_by_name(t.name) for name, t in results}
        signatures = {SIGNATURE: v1.saved_model.predict_signature_def(inputs, outputs)}
        builder = v1.saved_model.Builder(str(path))
        builder.add_meta_graph_and_variables(session, tags, signatures, strip_default_attrs=True)
        arguments = f"{tags}", f"{{'{SIGNATURE}': signature}}"
        build.record("builder.add_meta_graph_and_variables", "session", *arguments)
        file = Path(os.fsdecode(builder.save()))
    saved = SavedModel.FromString(file.read_bytes())
    for node in saved.meta_graphs[0].graph_def.node:
        if node.name in weights:
            node.attr["value"].tensor.tensor_content = weights.pop(node.name)
    assert not weights, "TensorFlow has named a weight anew"
    file.write_bytes(saved.SerializeToString())
