"""ONNX with a dynamic batch, run by ONNX Runtime.

The dynamo exporter exports a PyTorch network. The older exporter does so if the server needs an old
opset, or if the network has a recurrent layer. tf2onnx converts a SavedModel.
"""

import logging
import os
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, cast

from helpers.formats import Build, GraphFacts, Source, _int8, _onnx, silent_stderr

if TYPE_CHECKING:
    import onnx
    import torch

FILE = "model.onnx"
SOURCES = ("torch", "tf-savedmodel", "onnxruntime")
PRECISIONS = {"cpu": ("fp32", "int8"), "gpu": ("fp32", "fp16")}
RUNTIME = ("onnxruntime",)
TOOLS = {
    "torch": ("onnx", "onnxscript"),
    "tf-savedmodel": ("onnx", "tensorflow", "tf2onnx"),
    "onnxruntime": ("onnx",),
}
DISPLAY_NAMES = ("ONNX Runtime", "ONNX")
load, profile = _onnx.OnnxSession, _onnx.profile

TF2ONNX_OPSET = 17  # unless the server needs an older one
# Of a network with recurrent layers: the dynamo exporter follows each of an LSTM's steps, several
# times, to put an LSTM in their place in the end. TFT's takes it 20 s, the older exporter 1 s.
RECURRENT_OPSET = 20
LARGE = 100_000  # bytes; weights above this size are hidden from tf2onnx


def make(source: Source, path: Path, build: Build) -> None:
    """Export a network, convert a SavedModel, save a graph or quantise an ONNX file to int8. The
    result is one file with its weights, of 2 GB at most.
    """
    if build.precision == "int8":
        _quantise(source, path, build)
    elif type(source).__name__ == "ModelProto":
        _save(cast("onnx.ModelProto", source), path, build)
    elif isinstance(source, Path):
        with silent_stderr():
            _convert(source, path, build)
    else:
        _export(source, path, build)


def describe(path: Path) -> GraphFacts:
    """Count the operators of a file, with those of branches and loops, and read its opset."""
    import onnx

    model = onnx.load(path, load_external_data=False)
    (opset,) = (entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
    return {"operators": dict(Counter(_kinds(model.graph))), "opset": opset}


def _kinds(graph: "onnx.GraphProto") -> Iterator[str]:
    for node in graph.node:
        if node.op_type != "Constant":
            yield node.op_type
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _kinds(inner)


def _quantise(source: Source, path: Path, build: Build) -> None:
    assert isinstance(source, Path)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        full = source
        if source.is_dir():
            full = Path(folder) / FILE
            make(source, full, replace(build, precision="fp32"))
        _int8.quantise_onnx(full, path, build.calibration, build.tolerances, record=build.record)


def _save(model: "onnx.ModelProto", path: Path, build: Build) -> None:
    import onnx

    if build.precision != "fp32":
        raise ValueError(f"an ONNX graph is exported unchanged, in fp32, not in {build.precision}")
    onnx.save(model, path)
    build.record("onnx.save", "model", f"'{FILE}'")


def _export(network: "torch.nn.Module", path: Path, build: Build) -> None:
    import torch

    module = deepcopy(network).half() if build.precision == "fp16" else network
    is_old = (torch.nn.RNNBase, torch.jit.ScriptModule)  # what only the older exporter takes
    is_recurrent = any(isinstance(layer, is_old) for layer in module.modules())
    is_batched = len(next(iter(build.inputs.values()))) > 1  # else the batch of one is fixed
    if opset := build.opset or (RECURRENT_OPSET if is_recurrent else None):
        free = (*build.inputs, *build.outputs) if is_batched else ()
        dynamic_axes = {name: {0: "batch"} for name in free}
        options = {"dynamo": False, "opset_version": opset, "dynamic_axes": dynamic_axes}
    else:
        batch = {0: torch.export.Dim("batch")} if is_batched else {}
        dynamic_shapes = tuple(batch for _ in build.inputs)
        options = {"dynamo": True, "dynamic_shapes": dynamic_shapes}
    names = {"input_names": list(build.inputs), "output_names": list(build.outputs)}
    half = ".half()" if build.precision == "fp16" else ""
    build.record("torch.onnx.export", f"network{half}", "samples", **names, **options)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it comments on torchvision
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns of its own deprecations while exporting
        program = torch.onnx.export(
            module,
            tuple(torch.from_numpy(array) for array in build.inputs.values()),
            str(path) if opset else None,
            verbose=False,
            **names,
            **options,
        )
        if program:
            for node in program.model.graph.all_nodes():
                node.metadata_props.clear()  # stack traces, with paths of this machine
            program.save(str(path), external_data=False)
    if build.precision == "fp16":
        _halve_outputs(path)


def _halve_outputs(path: Path) -> None:
    """Cast the fp32 outputs of an fp16 network to fp16: where an output is a sum, the exporter
    returns it from before its rounding.
    """
    import onnx

    model = onnx.load(path)
    full, half = onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16
    types = {output.name: output.type.tensor_type for output in model.graph.output}
    fp32 = [name for name, kind in types.items() if kind.elem_type == full]
    for name in fp32:
        for node in model.graph.node:
            for names in (node.input, node.output):
                names[:] = [f"{tensor}_fp32" if tensor == name else tensor for tensor in names]
        model.graph.node.append(onnx.helper.make_node("Cast", [f"{name}_fp32"], [name], to=half))
        types[name].elem_type = half
    if fp32:
        onnx.save(model, path)


def _convert(source: Path, path: Path, build: Build) -> None:
    """Convert a SavedModel with its large weights taken out of the graph and put back afterwards.

    tf2onnx copies the graph in each of its passes: Wide & Deep's 367 MB would need 15 GB.
    """
    if build.precision != "fp32":
        raise ValueError(f"a SavedModel becomes ONNX in fp32, not in {build.precision}")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import onnx
    import tensorflow as tf

    for name in ("tensorflow", "tf2onnx"):  # they comment on each other's versions
        logging.getLogger(name).setLevel(logging.ERROR)
    from tf2onnx.convert import from_graph_def
    from tf2onnx.tf_loader import convert_variables_to_constants_large_model

    loaded = tf.saved_model.load(str(source))
    signature = loaded.signatures["serving_default"]
    # not TensorFlow's own, which makes a function of that graph again: ten times the seconds here
    graph, weights = convert_variables_to_constants_large_model(signature), {}
    for node in (node for node in graph.node if node.op == "Const"):
        value = node.attr["value"].tensor
        if value.ByteSize() > LARGE:
            weights[f"{node.name}:0"] = array = tf.make_ndarray(value)
            node.op = "Placeholder"
            del node.attr["value"]
            node.attr["shape"].shape.CopyFrom(tf.TensorShape(array.shape).as_proto())
    fed = signature.inputs[: len(signature.inputs) - len(signature.captured_inputs)]
    inputs, results = ([t.name for t in tensors] for tensors in (fed, signature.outputs))
    structured = (signature.structured_input_signature[1], signature.structured_outputs)
    names = dict(zip([*inputs, *results], chain(*map(sorted, structured)), strict=True))
    options = {"output_names": results, "opset": build.opset or TF2ONNX_OPSET}
    build.record("tf2onnx.convert.from_graph_def", "graph", input_names=inputs, **options)
    model, _ = from_graph_def(
        graph, input_names=[*inputs, *weights], tensors_to_rename=names, **options
    )
    for tensor in [tensor for tensor in model.graph.input if tensor.name in weights]:
        model.graph.input.remove(tensor)
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(array, name) for name, array in weights.items()
    )
    onnx.save(model, path)
