"""Measure what rounding does to a model's outputs: every result gets a random relative error.

The size of the error is that of a precision. The sums of a network alone do not bound its effect:
a small softmax output, or a sample unlike the training data, multiplies it.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from math import prod, sqrt
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from helpers.measure import distances, match_rate
from helpers.models import Arrays, Graph, Network
from helpers.models._own.graph import OnnxRuntime, graphs, opset_of, subgraphs
from helpers.models._own.metrics import classes
from helpers.models._rounding import UNIT_ROUNDOFF

if TYPE_CHECKING:
    import onnx

# Standard deviation of the relative error: half a unit roundoff in bf16 and fp16. In fp32 it is
# larger, as runtimes also differ in functions such as exponentials.
ERRORS = {"fp32": 4 * UNIT_ROUNDOFF["fp32"], "bf16": UNIT_ROUNDOFF["bf16"] / 2}
ERRORS |= {"fp16": UNIT_ROUNDOFF["fp16"] / 2, "int8": UNIT_ROUNDOFF["int8"]}
SPREAD = sqrt(3)  # half the range of a uniform distribution, in standard deviations
NO_UNIFORM = 22  # the first opset in which ONNX Runtime's CPU has no uniform random numbers
SAFETY = 16  # factor of a tolerance over an effect, which few samples and one draw measured
COARSE = 4  # a mean error above the distance between two samples / COARSE rejects a precision
# Names of constants that give errors a random sign
SIGNS = ("rounding/half", "rounding/yes", "rounding/above", "rounding/below")
# Operators that select or move values, and so do not round them
MOVING = {
    *("Constant", "Identity", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Slice"),
    *("Concat", "Split", "Gather", "GatherND", "Expand", "Tile", "Pad", "Shape", "MaxPool", "Relu"),
    *("Where", "ConstantOfShape", "If", "Loop", "Scan", "Dropout"),
}
Bounds = tuple[float, float]


class RoundingError(NamedTuple):
    """The effect of a precision's rounding errors."""

    largest: float  # change, in standard deviations of the output
    mean: float
    match_rate: float  # of the decisions by the first output


Run = Callable[[Arrays], Arrays]


def effects(
    network: Network,
    framework: str,
    run: Run,
    inputs: Arrays,
    decision: str,
    precisions: Collection[str],
) -> dict[str, RoundingError]:
    """Return the effect of each precision on the output that changes most.

    It is empty where errors cannot be added, as to a SavedModel with frozen weights.
    """
    if isinstance(network, Graph) and framework == "tensorflow":
        session: Any = network.session
        if not session.variables:
            return {}
    right, found = run(inputs), {}
    with suppress(Exception):  # a runtime may reject operators that it does not know in this opset
        for precision in (each for each in ERRORS if each in precisions):
            rounded = _rounded(network, framework, run, inputs, ERRORS[precision])
            found[precision] = _effect(right, rounded, decision)
    return found


def terms(shapes: Sequence[tuple[int, ...]]) -> tuple[int, int]:
    """Count the terms of the sums over all weights, and these sums.

    A network with parallel branches has more terms than its longest path. Tolerances grow with the
    square root of that.
    """
    lengths = [prod(shape[:-1]) for shape in shapes if len(shape) > 1]
    return (sum(lengths), len(lengths)) if lengths else (1, 1)


def widen_tolerances(
    narrow: Mapping[str, Bounds], errors: Mapping[str, RoundingError], apart: float
) -> dict[str, Bounds]:
    """Widen tolerances to `SAFETY` times the measured effects, where these are larger.

    The mean tolerance stays below the distance to another sample's outputs.
    """
    tolerances = {}
    for precision, (largest, mean, _) in errors.items():
        narrow_max, narrow_mean = narrow[precision]
        wide_mean = max(narrow_mean, min(SAFETY * mean, apart / 2))
        tolerances[precision] = max(narrow_max, SAFETY * largest), wide_mean
    return tolerances


def rejected_precisions(
    errors: Mapping[str, RoundingError], apart: float, min_match_rate: float
) -> dict[str, str]:
    """Return the precisions whose rounding error is too large, and why.

    Outputs would be as far off as those of other samples, or the match rate would be too low.
    """
    rejected = {}
    for precision, error in errors.items():
        if precision == "fp32":
            continue
        if error.mean > apart / COARSE:
            rejected[precision] = (
                f"rounding to {precision} changes the outputs by {error.mean:.2g} standard "
                f"deviations on average, and two samples differ by only {apart:.2g}"
            )
        elif error.match_rate < min_match_rate:
            rejected[precision] = (
                f"rounding to {precision} lowers the match rate to {error.match_rate:.3f}, and "
                f"{min_match_rate} is required"
            )
    return rejected


def sample_distance(outputs: Arrays) -> float:
    """Return the mean distance of a sample to the next one or to zeros, whichever is less.

    Of several outputs, the one with the least distance counts.
    """
    apart = []
    for array in outputs.values():
        values = np.where(np.isfinite(array), array, 0).astype(np.float64)
        parts = [np.abs(values).mean()]
        if len(values) > 1:
            parts.append(np.abs(values - np.roll(values, 1, 0)).mean())
        apart.append(min(parts) / (float(values.std()) or 1.0))
    return float(min(apart))


def _effect(right: Arrays, rounded: Arrays, decision: str) -> RoundingError:
    """Measure an effect. One class that differs is ignored, as samples are few."""
    largest, mean = 0.0, 0.0
    for name, array in right.items():
        apart = distances(rounded[name], array)
        if array.dtype.kind == "f" and np.isfinite(apart).all():  # what jumps has no rounding
            largest, mean = max(largest, float(apart.max())), max(mean, float(apart.mean()))
    first, other = (next(iter(outputs.values())) for outputs in (right, rounded))
    if decision == "class":
        differ = int((classes(first) != classes(other)).sum())
        return RoundingError(largest, mean, 1 - max(0, differ - 1) / len(first))
    return RoundingError(largest, mean, match_rate(first, other).served)


def _rounded(network: Network, framework: str, run: Run, inputs: Arrays, error: float) -> Arrays:
    """Run with a relative error of deviation `error` in each result.

    Where a framework gives no access to its results, only the weights get the error.
    """
    if isinstance(network, Graph) and framework == "onnxruntime":
        return OnnxRuntime(add_rounding_noise(network.content, error)).run(inputs)
    if framework == "torch":
        with _noisy_torch(error):
            return run(inputs)
    holder: Any = network.session if isinstance(network, Graph) else network
    with _noisy_weights(holder.variables, error):
        return run(inputs)


def add_rounding_noise(model: "onnx.ModelProto", error: float) -> "onnx.ModelProto":
    """Return a copy of a graph with a relative error in every weight and every computed result."""
    import onnx

    copy = deepcopy(model)
    try:
        inferred = onnx.shape_inference.infer_shapes(model)
    except Exception:  # it does not know some operator: the results get no error
        inferred = model
    types = {
        tensor.name: tensor.type.tensor_type.elem_type
        for graph in graphs(inferred.graph)
        for tensor in (*graph.value_info, *graph.output)
    }
    _add_errors(copy.graph, types, {}, opset_of(model), error)
    values = np.float32(0.5), np.bool_(True), np.float32(1 + error), np.float32(1 - error)
    for name, value in zip(SIGNS, values, strict=True):
        copy.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(value), name))
    return copy


def _add_errors(
    graph: Any, types: Mapping[str, int], outer: Mapping[str, str], opset: int, error: float
) -> None:
    from onnx import TensorProto, helper

    renamed, nodes = dict(outer), list[Any]()
    ends = {output.name for output in graph.output}

    def add(source: str, target: str) -> None:
        seed, drawn = len(nodes) + 1, f"{target}/error"
        if opset < NO_UNIFORM:
            limits: Any = {"low": 1 - SPREAD * error, "high": 1 + SPREAD * error}
            nodes.append(
                helper.make_node("RandomUniformLike", [source], [drawn], **limits, seed=float(seed))
            )
        else:  # a dropout's mask chooses the sign
            half, yes, *values = SIGNS
            masks = [f"{target}/dropped", f"{target}/kept"]
            nodes.append(helper.make_node("Dropout", [source, half, yes], masks, seed=seed))
            nodes.append(helper.make_node("Where", [masks[1], *values], [drawn]))
        nodes.append(helper.make_node("Mul", [source, drawn], [target]))

    for weight in {each.name: each for each in graph.initializer}.values():
        if weight.data_type == TensorProto.FLOAT and len(weight.dims) > 1:
            renamed[weight.name] = f"{weight.name}/rounded"
            add(weight.name, renamed[weight.name])
    for node in graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]
        for inner in subgraphs(node):
            _add_errors(inner, types, renamed, opset, error)
        nodes.append(node)
        for index, name in enumerate(node.output):
            if types.get(name) != TensorProto.FLOAT or node.op_type in MOVING:
                continue
            if name in ends:
                node.output[index] = f"{name}/exact"
                add(node.output[index], name)
            else:
                renamed[name] = f"{name}/rounded"
                add(name, renamed[name])
    del graph.node[:]
    graph.node.extend(nodes)


@contextmanager
def _noisy_torch(error: float) -> Iterator[None]:
    """Make PyTorch add an error to every result of the block."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_map

    draw = torch.Generator().manual_seed(0)

    def round_one(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        noise = torch.empty(value.shape).normal_(1, error, generator=draw)
        return value * noise.to(value.dtype)

    class Noisy(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(
            self, function: Any, types: Any, arguments: Any = (), keywords: Any = None
        ) -> Any:
            results = function(*arguments, **(keywords or {}))
            is_view = torch.Tag.core in function.tags and function.is_view
            return results if is_view else tree_map(round_one, results)

    with Noisy():
        yield


@contextmanager
def _noisy_weights(variables: Any, error: float) -> Iterator[None]:
    """Add an error to TensorFlow's variables within the block."""
    draw = np.random.default_rng(0)
    originals = [(each, each.numpy()) for each in variables if "float" in str(each.dtype)]
    for variable, values in originals:
        variable.assign(values * draw.normal(1, error, values.shape).astype(values.dtype))
    try:
        yield
    finally:
        for variable, values in originals:
            variable.assign(values)
