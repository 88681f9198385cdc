"""ONNX with a dynamic batch, run by ONNX Runtime. A PyTorch network is exported by the dynamo
exporter, or by the older one where the server needs an old opset; a SavedModel by tf2onnx.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnxruntime
    import torch

    from helpers.formats import Array, Arrays, Build, OperatorTime, Source

FILE = "model.onnx"
SOURCES = ("torch", "tf-savedmodel")
PRECISIONS = {"cpu": ("fp32", "int8"), "gpu": ("fp32", "fp16")}
RUNTIME = ("onnxruntime",)
SHOWN = ("ONNX Runtime", "ONNX")

TF2ONNX_OPSET = 17  # unless the server needs an older one
PROFILED_RUNS = 3
PRECISION_OF = {"float": "fp32", "float16": "fp16", "bfloat16": "bf16"}  # an input's type
PRECISION_OF |= {"int8": "int8", "uint8": "int8"}
LARGE = 100_000  # bytes; weights above this size are hidden from tf2onnx


class OnnxSession:
    """An ONNX Runtime session. Its idle threads sleep: spinning, they would slow down a server."""

    def __init__(self, path: Path, threads: int, device: str) -> None:
        import onnxruntime

        if device == "gpu":
            onnxruntime.preload_dlls()  # CUDA and cuDNN, where pip installed them
        options = _options(threads)
        provider = "CUDAExecutionProvider" if device == "gpu" else "CPUExecutionProvider"
        chosen = {"use_tf32": "0"} if device == "gpu" else {}  # fp32 is fp32
        self._session = onnxruntime.InferenceSession(str(path), options, [(provider, chosen)])
        if provider not in self._session.get_providers():
            raise RuntimeError(f"ONNX Runtime has no {provider}: it would take the CPU instead")
        self._device = "cuda" if device == "gpu" else "cpu"
        self._outputs = [output.name for output in self._session.get_outputs()]

    def run(self, inputs: Arrays) -> Arrays:
        return dict(zip(self._outputs, self._session.run(self._outputs, inputs), strict=True))

    def run_on_device(
        self, inputs: Mapping[str, Array | torch.Tensor]
    ) -> Mapping[str, Array | torch.Tensor]:
        """Like `run`, but inputs may be on the device; outputs, fixed but for the batch, stay. Flat
        inputs do not tell how large the batch is: then outputs come back as arrays.
        """
        import torch

        device = self._device
        tensors = {name: torch.as_tensor(each, device=device) for name, each in inputs.items()}
        size, is_flat = len(next(iter(tensors.values()))), next(iter(tensors.values())).ndim == 1
        dtypes = {"tensor(float)": torch.float32, "tensor(float16)": torch.float16}
        binding = self._session.io_binding()
        for output in self._session.get_outputs():
            if is_flat:
                binding.bind_output(output.name)
                continue
            shape, dtype = (size, *output.shape[1:]), dtypes[output.type]
            tensors[output.name] = torch.empty(shape, dtype=dtype, device=device)
        for name, tensor in tensors.items():
            bind = binding.bind_output if name in self._outputs else binding.bind_input
            element = str(tensor.dtype).removeprefix("torch.")
            bind(name, device, 0, element, tuple(tensor.shape), tensor.data_ptr())
        if device == "cuda":
            torch.cuda.synchronize()  # ONNX Runtime reads the inputs on a stream of its own
        self._session.run_with_iobinding(binding)
        if is_flat:
            return dict(zip(self._outputs, binding.copy_outputs_to_cpu(), strict=True))
        return {name: tensors[name] for name in self._outputs}


load = OnnxSession


def _options(threads: int) -> onnxruntime.SessionOptions:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


def profile(path: Path, threads: int, inputs: Arrays) -> list[OperatorTime]:
    """Read ONNX Runtime's trace of some runs, of which the fastest counts."""
    import onnxruntime

    with tempfile.TemporaryDirectory() as folder:
        options = _options(threads)
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(folder) / "trace")
        session = onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])
        for _ in range(PROFILED_RUNS + 1):
            session.run(None, inputs)
        events = json.loads(Path(session.end_profiling()).read_text())
    runs = [each for each in events if each["name"] == "model_run"]
    fastest = min(runs[1:], key=lambda run: run["dur"])
    begin, end = fastest["ts"], fastest["ts"] + fastest["dur"]
    found: list[OperatorTime] = []
    for event in events:
        if event["cat"] != "Node" or not begin <= event["ts"] < end:
            continue
        node = event["args"]
        kernel = node["provider"].removesuffix("ExecutionProvider")
        kernel += ", NCHWc" if "_nchwc" in event["name"] else ""
        types = [name for each in node["input_type_shape"] for name in each]
        precision = PRECISION_OF.get(types[0], types[0]) if types else ""
        ms = event["dur"] / 1000
        found.append({"kind": node["op_name"], "kernel": kernel, "precision": precision, "ms": ms})
    return found


def make(source: Source, path: Path, build: Build) -> None:
    """Export a network or convert a SavedModel to one file with its weights, of 2 GB at most; or
    make an ONNX file int8.
    """
    if build.precision == "int8":
        _quantise(source, path, build)
    elif isinstance(source, Path):
        with _silent_stderr():
            _convert(source, path, build)
    else:
        _export(source, path, build)


def _quantise(source: Source, path: Path, build: Build) -> None:
    from helpers.formats import _int8

    assert isinstance(source, Path)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        full = source
        if source.is_dir():
            full = Path(folder) / FILE
            make(source, full, replace(build, precision="fp32"))
        _int8.quantise_onnx(full, path, build.calibration)


def _export(network: torch.nn.Module, path: Path, build: Build) -> None:
    import torch

    module = deepcopy(network).half() if build.precision == "fp16" else network
    if build.opset:
        dynamic_axes = {name: {0: "batch"} for name in (*build.inputs, *build.outputs)}
        options = {"dynamo": False, "opset_version": build.opset, "dynamic_axes": dynamic_axes}
    else:
        dynamic_shapes = tuple({0: torch.export.Dim("batch")} for _ in build.inputs)
        options = {"dynamo": True, "dynamic_shapes": dynamic_shapes}
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it comments on torchvision
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns of its own deprecations while exporting
        program = torch.onnx.export(
            module,
            tuple(torch.from_numpy(array) for array in build.inputs.values()),
            str(path) if build.opset else None,
            input_names=list(build.inputs),
            output_names=list(build.outputs),
            verbose=False,
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
                names[:] = [f"{each}_fp32" if each == name else each for each in names]
        model.graph.node.append(onnx.helper.make_node("Cast", [f"{name}_fp32"], [name], to=half))
        types[name].elem_type = half
    if fp32:
        onnx.save(model, path)


@contextmanager
def _silent_stderr() -> Iterator[None]:
    """Suppress what TensorFlow's C++ code prints whatever its log level is."""
    sys.stderr.flush()
    saved = os.dup(2)
    with tempfile.TemporaryFile() as sink:
        os.dup2(sink.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(saved, 2)
            os.close(saved)


def _convert(source: Path, path: Path, build: Build) -> None:
    """Convert a SavedModel with its large weights taken out of the graph and put back afterwards.

    tf2onnx copies the graph in each of its passes: Wide & Deep's 367 MB would need 15 GB.
    """
    if build.precision != "fp32":
        raise ValueError(f"a SavedModel becomes ONNX in fp32, not in {build.precision}")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import onnx
    import tensorflow as tf
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    for name in ("tensorflow", "tf2onnx"):  # they comment on each other's versions
        logging.getLogger(name).setLevel(logging.ERROR)
    from tf2onnx.convert import from_graph_def

    loaded = tf.saved_model.load(str(source))
    signature = loaded.signatures["serving_default"]
    frozen = convert_variables_to_constants_v2(signature)
    graph, weights = frozen.graph.as_graph_def(), {}
    for node in (node for node in graph.node if node.op == "Const"):
        value = node.attr["value"].tensor
        if value.ByteSize() > LARGE:
            weights[f"{node.name}:0"] = array = tf.make_ndarray(value)
            node.op = "Placeholder"
            del node.attr["value"]
            node.attr["shape"].shape.CopyFrom(tf.TensorShape(array.shape).as_proto())
    inputs, results = ([t.name for t in tensors] for tensors in (frozen.inputs, frozen.outputs))
    named = (signature.structured_input_signature[1], signature.structured_outputs)
    names = dict(zip([*inputs, *results], chain(*map(sorted, named)), strict=True))
    model, _ = from_graph_def(
        graph,
        input_names=[*inputs, *weights],
        output_names=results,
        opset=build.opset or TF2ONNX_OPSET,
        tensors_to_rename=names,
    )
    for each in [each for each in model.graph.input if each.name in weights]:
        model.graph.input.remove(each)
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(array, name) for name, array in weights.items()
    )
    onnx.save(model, path)
