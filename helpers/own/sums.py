"""How many terms the sums of a network have: what decides how far rounding carries its outputs."""

from collections.abc import Sequence
from contextlib import suppress
from math import prod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import onnx

RECURRENT = ("LSTM", "GRU", "RNN")
CONVOLUTIONS = ("Conv", "ConvInteger", "QLinearConv")
PRODUCTS = ("MatMul", "MatMulInteger", "QLinearMatMul", "Gemm")
UNKNOWN = 64  # terms of a product of two tensors whose shapes are not told: a head of attention


def of_shapes(shapes: Sequence[tuple[int, ...]]) -> tuple[int, int]:
    """Add up the terms of every kernel, whose last dimension is that of its results.

    Where a network has branches beside each other that is more than its longest path has, and the
    bounds grow with the root of it.
    """
    terms = [prod(shape[:-1]) for shape in shapes if len(shape) > 1]
    return (sum(terms), len(terms)) if terms else (1, 1)


def of_onnx(model: "onnx.ModelProto") -> tuple[int, int]:
    """Find the path from an input to an output on which sums have the most terms."""
    import onnx

    with suppress(Exception):  # of a graph with operators of others, or above 2 GB
        model = onnx.shape_inference.infer_shapes(model)
    return _longest(model.graph, {})


def _longest(graph: Any, outer: dict[str, list[int]]) -> tuple[int, int]:
    shapes = outer | _shapes(graph)
    longest: dict[str, tuple[int, int]] = {}
    best = (1, 1)
    for node in graph.node:
        before = max((longest.get(name, (0, 0)) for name in node.input), default=(0, 0))
        terms, count = _terms(node, shapes)
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                if inner.node:
                    terms, count = max((terms, count), _longest(inner, shapes))
        here = before[0] + terms, before[1] + count
        longest |= dict.fromkeys(node.output, here)
        best = max(best, here)
    return best


def _shapes(graph: Any) -> dict[str, list[int]]:
    found = {each.name: list(each.dims) for each in graph.initializer}
    for each in (*graph.input, *graph.value_info, *graph.output):
        found.setdefault(each.name, [d.dim_value for d in each.type.tensor_type.shape.dim])
    for node in graph.node:
        if node.op_type == "Constant":
            for attribute in node.attribute:
                found[node.output[0]] = list(attribute.t.dims)
    return found


def _terms(node: Any, shapes: dict[str, list[int]]) -> tuple[int, int]:
    """Count the terms of a node's sums, and the sums that follow one another in it."""
    given = [shapes.get(name, []) for name in node.input]
    if node.op_type in RECURRENT and len(given[1]) == len(given[2]) == 3:
        steps = given[0][0] if given[0] and given[0][0] > 0 else 1
        return steps * (given[1][2] + given[2][2]), steps
    if node.op_type in CONVOLUTIONS:
        weights = next((each for each in given[1:] if len(each) > 2), [])
        return prod(weights[1:]), 1
    if node.op_type == "ConvTranspose" and given[1]:
        return prod(given[1]) // max(given[1][1], 1), 1
    if node.op_type in PRODUCTS:
        kernels = [each for each in given if len(each) > 1 and min(each) > 0]
        flipped = any(each.name == "transB" and each.i for each in node.attribute)
        inner = (kernels[-1][-1] if flipped else kernels[-1][-2]) if kernels else UNKNOWN
        return inner, 1
    return 0, 0
