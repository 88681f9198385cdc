"""Lower bounds of a graph's arithmetic and memory traffic per sample. With them the machine's
measured rates give a roofline for the throughput.

OpenVINO reads every exported file: it has front ends for ONNX, SavedModel and TorchScript, and
infers all shapes for a batch. Arithmetic includes convolutions, matrix multiplications (also those
of attention) and LSTM layers. A multiply and an add are two operations. Element-wise operations,
normalisations and softmax are not counted. Memory traffic includes the weights once per batch, the
rows that are looked up in tables, inputs and outputs. Activations between two operations are not
counted, as a cache may keep them.
"""

import warnings
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from helpers.config import ExportConfig, artifact_folder
from helpers.formats import Arrays, block_telemetry
from helpers.store import find_artifact

if TYPE_CHECKING:
    import openvino

BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "int8": 1}  # of a weight
CONVOLUTIONS = ("Convolution", "GroupConvolution")
LSTM_WEIGHTS = {"LSTMSequence": (4, 5), "LSTMCell": (3, 4)}  # which inputs they are
NOT_COUNTED = ("TensorIterator", "Loop", "If", "GRUSequence", "RNNSequence")


@dataclass(frozen=True)
class GraphCost:
    """The arithmetic and the memory traffic that a graph needs at least."""

    flop: float  # of a sample
    weights: float  # numbers that a batch reads once
    embedding_reads: float  # numbers that a sample reads from tables
    io_bytes: float  # of a sample's inputs and outputs

    def bytes(self, precision: str, batch: float) -> float:
        """Return the bytes that a sample of a batch moves with weights in `precision`."""
        return BYTES[precision] * (self.weights / batch + self.embedding_reads) + self.io_bytes


def exported_work(config: ExportConfig) -> GraphCost | None:
    """Read what the experiment's exported graph needs; None if it could not be counted."""
    artifact = find_artifact(artifact_folder(config, "export"))
    counts = artifact.facts.get("work") if artifact else None
    return TypeAdapter(GraphCost).validate_python(counts) if isinstance(counts, dict) else None


def count(path: Path, inputs: Arrays, samples: int = 0) -> GraphCost:
    """Count what the exported file `path` needs for a sample of `inputs`, a batch in its order.

    `samples` is how many these are, where they are flat. Raises ValueError for an operation that
    is not counted, and what OpenVINO raises for a file that it does not read.
    """
    model = _read(path)
    ports_by_name = {name: port for port in model.inputs for name in port.get_names()}
    # TorchScript's inputs have names of their own, and are in order
    ports = [ports_by_name.get(name, port) for name, port in zip(inputs, model.inputs, strict=True)]
    model.reshape({port: array.shape for port, array in zip(ports, inputs.values(), strict=True)})
    size = samples or len(next(iter(inputs.values())))
    flop, weights, embedding_reads = 0.0, 0, 0
    for node in model.get_ordered_ops():
        flop += _flop(node)
        if node.get_type_name() == "Constant" and _is_weight(node):
            read = _looked_up(node)
            embedding_reads += read or 0
            weights += prod(node.get_output_shape(0)) if read is None else 0
    tensors = (*model.inputs, *model.outputs)
    moved = sum(prod(tensor.get_shape()) * tensor.get_element_type().size for tensor in tensors)
    return GraphCost(flop / size, weights, embedding_reads / size, moved / size)


def _read(path: Path) -> "openvino.Model":
    block_telemetry()
    import openvino

    if path.suffix != ".pt":
        return openvino.convert_model(path)
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch deprecates TorchScript
        return openvino.convert_model(torch.jit.load(str(path)))


def _flop(node: "openvino.Node") -> float:
    """Count the operations of one, by the shapes of its inputs and its output."""
    kind, shapes = node.get_type_name(), [list(port.get_shape()) for port in node.inputs()]
    if kind in NOT_COUNTED:
        raise ValueError(f"the cost of the operator {kind} is unknown")
    if kind in CONVOLUTIONS:  # a kernel is [groups if any, outputs, inputs, *size]
        terms = prod(shapes[1][1 + (kind == "GroupConvolution") :])
    elif kind == "MatMul":
        terms = shapes[0][-2 if node.get_attributes()["transpose_a"] else -1]
    elif kind == "ScaledDotProductAttention":  # [..., queries, size], [..., keys, size], values
        return float(2 * prod(shapes[0][:-1]) * shapes[1][-2] * (shapes[0][-1] + shapes[2][-1]))
    elif kind in LSTM_WEIGHTS:  # of a sequence [batch, time, size], of a cell [batch, size]
        gates = sum(prod(shapes[i][-2:]) for i in LSTM_WEIGHTS[kind])
        return float(2 * prod(shapes[0][:-1]) * gates)
    else:
        return 0.0
    return float(2 * prod(node.get_output_shape(0)) * terms)


def _is_weight(constant: "openvino.Node") -> bool:
    """Return whether a constant is no shape or index: a number, of 8 bits if quantised."""
    kind = constant.get_output_element_type(0)
    return kind.is_real() or kind.get_type_name() in ("i8", "u8")


def _looked_up(constant: "openvino.Node") -> int | None:
    """Count the numbers that are read of a constant if it is a table; None if it is not."""
    read = 0
    for target in constant.output(0).get_target_inputs():
        user = target.get_node()
        if user.get_type_name() != "Gather" or target.get_index() != 0:
            return None
        read += prod(user.get_output_shape(0))
    return read
