"""ONNX, with a dynamic batch, run by ONNX Runtime: from PyTorch by its dynamo exporter, or by the
older one where an old server needs an old opset; from a SavedModel by tf2onnx.
"""

import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from itertools import chain
from pathlib import Path
from typing import Any

FILE = "model.onnx"
SOURCES = ("torch", "tf-savedmodel")
PRECISIONS = {"cpu": ("fp32",), "gpu": ("fp32", "fp16")}
RUNTIME = ("onnxruntime",)
SHOWN = ("ONNX Runtime", "ONNX")
OPSET = 17  # of what tf2onnx writes
_DTYPES = {"tensor(float)": "float32", "tensor(float16)": "float16"}  # of our networks' outputs
LARGE = 100_000  # bytes of a weight that tf2onnx need not see


class OnnxSession:
    """An ONNX Runtime session; its idle threads sleep rather than spin, or they would slow the
    server beside them.
    """

    def __init__(self, path: Path, threads: int, device: str) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        provider = "CUDAExecutionProvider" if device == "gpu" else "CPUExecutionProvider"
        chosen = {"use_tf32": "0"} if device == "gpu" else {}  # fp32 is fp32
        self._session = onnxruntime.InferenceSession(
            str(path), options, providers=[(provider, chosen)]
        )
        if provider not in self._session.get_providers():
            raise RuntimeError(
                f"ONNX Runtime has no {provider} here: it would take the CPU instead"
            )
        self._outputs = [output.name for output in self._session.get_outputs()]

    def run(self, inputs: dict[str, Any]) -> dict[str, Any]:
        return dict(zip(self._outputs, self._session.run(self._outputs, inputs), strict=True))

    def run_on_device(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """As `run`, with outputs that stay on the device as PyTorch's tensors, and inputs that may
        be there already. Outputs have the inputs' batch and otherwise a fixed shape.
        """
        import torch

        device = "cuda" if "CUDAExecutionProvider" in self._session.get_providers() else "cpu"
        tensors = {name: torch.as_tensor(each, device=device) for name, each in inputs.items()}
        size = len(next(iter(tensors.values())))
        for output in self._session.get_outputs():
            dtype = _DTYPES[output.type]
            shape = (size, *output.shape[1:])
            tensors[output.name] = torch.empty(shape, dtype=getattr(torch, dtype), device=device)
        binding = self._session.io_binding()
        for name, tensor in tensors.items():
            bind = binding.bind_output if name in self._outputs else binding.bind_input
            dtype = str(tensor.dtype).removeprefix("torch.")
            bind(name, device, 0, dtype, tuple(tensor.shape), tensor.data_ptr())
        if device == "cuda":
            torch.cuda.synchronize()  # what is on its way there is read by another stream
        self._session.run_with_iobinding(binding)
        return {name: tensors[name] for name in self._outputs}


def make(
    source: Any,
    path: Path,
    *,
    precision: str,
    inputs: dict[str, Any],
    outputs: tuple[str, ...],
    opset: int | None = None,
) -> None:
    """Export a PyTorch module, or convert the SavedModel at a path; the weights lie in the one
    file, so below 2 GB.
    """
    if isinstance(source, Path):
        with _quiet():
            _convert(source, path, precision, opset or OPSET)
        return
    import torch

    module = deepcopy(source).half() if precision == "fp16" else source
    arguments = tuple(torch.from_numpy(array) for array in inputs.values())
    chosen: dict[str, Any] = {
        "dynamo": True,
        "external_data": False,
        "dynamic_shapes": tuple({0: torch.export.Dim("batch")} for _ in inputs),
    }
    if opset:
        axes = {name: {0: "batch"} for name in (*inputs, *outputs)}
        chosen = {"dynamo": False, "opset_version": opset, "dynamic_axes": axes}
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # its notes on torchvision
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of its own deprecations while exporting
        torch.onnx.export(
            module,
            arguments,
            str(path),
            input_names=list(inputs),
            output_names=list(outputs),
            verbose=False,
            **chosen,
        )
    if precision == "fp16":
        _halve_outputs(path)


def _halve_outputs(path: Path) -> None:
    """Cast what is fp32 among a half network's outputs: of a sum that is an output the exporter
    gives the fp32 one from before it is rounded.
    """
    import onnx

    model = onnx.load(path)
    full, half = onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16
    ends = {output.name: output.type.tensor_type for output in model.graph.output}
    wide = [name for name, kind in ends.items() if kind.elem_type == full]
    for name in wide:
        for node in model.graph.node:
            for names in (node.input, node.output):
                names[:] = [f"{each}_fp32" if each == name else each for each in names]
        model.graph.node.append(onnx.helper.make_node("Cast", [f"{name}_fp32"], [name], to=half))
        ends[name].elem_type = half
    if wide:
        onnx.save(model, path)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep from the terminal what TensorFlow's C++ writes to it whatever its log level."""
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as notes:
        os.dup2(notes.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def _convert(source: Path, path: Path, precision: str, opset: int) -> None:
    """Convert a SavedModel, its large weights taken out of the graph meanwhile.

    tf2onnx copies the graph for each of its passes: the 367 MB of Wide & Deep became 15 GB.
    """
    if precision != "fp32":
        raise ValueError(f"a SavedModel becomes ONNX in fp32, not in {precision}")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import onnx
    import tensorflow as tf
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    for name in ("tensorflow", "tf2onnx"):  # their notes on each other
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
        opset=opset,
        tensors_to_rename=names,
    )
    given = [each for each in model.graph.input if each.name not in weights]
    del model.graph.input[:]
    model.graph.input.extend(given)
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(array, name) for name, array in weights.items()
    )
    onnx.save(model, path)


def load(path: Path, threads: int, device: str) -> OnnxSession:
    return OnnxSession(path, threads, device)
