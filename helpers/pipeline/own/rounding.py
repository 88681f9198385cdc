"""What rounding does to a model's outputs, seen by rounding: each result in it gets a relative
error at random, of the size that a precision makes.

How far rounding may carry the outputs does not follow from the sums of a network alone: an output
that is a small share of a softmax, or a sample unlike all that it was trained with, multiplies it.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod, sqrt
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from helpers.models import Arrays, Graph, Network
from helpers.models._own import Array
from helpers.models._own.graph import OnnxRuntime, opset_of, subgraphs
from helpers.models._own.metrics import classes
from helpers.models._rounding import UNIT_ROUNDOFF

if TYPE_CHECKING:
    import onnx

# Deviation of a relative error: half a roundoff in bf16; in fp32 as much as runtimes differ in
# exponentials and the like too
ERRORS = {"fp32": 4 * UNIT_ROUNDOFF["fp32"], "bf16": UNIT_ROUNDOFF["bf16"] / 2}
ERRORS |= {"fp16": UNIT_ROUNDOFF["fp16"] / 2, "int8": UNIT_ROUNDOFF["int8"]}
SPREAD = sqrt(3)  # of evenly spread errors to each side, in their deviations
NO_UNIFORM = 22  # the opset from which on ONNX Runtime's CPU draws no evenly spread numbers
SAFETY = 16  # times that what is served may differ: it is seen of few samples and one draw
COARSE = 4  # a mean effect above such a part of what tells two samples apart tells nothing
# Names of constants by which errors get a sign at random
SIGNS = {each: f"rounding/{each}" for each in ("half", "yes", "above", "below")}
# Operators that compute no number, but choose and move: they round nothing
MOVING = {
    *("Constant", "Identity", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Slice"),
    *("Concat", "Split", "Gather", "GatherND", "Expand", "Tile", "Pad", "Shape", "MaxPool", "Relu"),
    *("Where", "ConstantOfShape", "If", "Loop", "Scan", "Dropout"),
}
Bounds = tuple[float, float]


class RoundingError(NamedTuple):
    """What errors of a precision change."""

    largest: float  # change, in deviations of the output
    mean: float
    kept: float  # of the decisions that the first output leads to: 1 if all


Run = Callable[[Arrays], Arrays]


def effects(
    network: Network,
    framework: str,
    run: Run,
    inputs: Arrays,
    decision: str,
    precisions: Collection[str],
) -> dict[str, RoundingError]:
    """Return the effect of each precision on the output that changes most; empty if nothing can be
    changed, because the weights are frozen in a SavedModel.
    """
    if isinstance(network, Graph) and framework == "tensorflow":
        session: Any = network.session
        if not session.variables:
            return {}
    right = run(inputs)
    return {
        precision: _effect(right, _rounded(network, framework, run, inputs, error), decision)
        for precision, error in ERRORS.items()
        if precision in precisions
    }


def terms(shapes: Sequence[tuple[int, ...]]) -> tuple[int, int]:
    """Add up the terms of the sums over every weight, and count these sums.

    Where a network has branches beside each other that is more than its longest path has, which
    widens the tolerances by its root only.
    """
    lengths = [prod(shape[:-1]) for shape in shapes if len(shape) > 1]
    return (sum(lengths), len(lengths)) if lengths else (1, 1)


def widen_tolerances(
    narrow: Mapping[str, Bounds], seen: Mapping[str, RoundingError], apart: float
) -> dict[str, Bounds]:
    """Widen bounds to `SAFETY` times the effects that were seen, where these are larger; not so far
    that a mean bound would let another sample's outputs pass.
    """
    found = {}
    for precision, (largest, mean, _) in seen.items():
        bounds = narrow[precision]
        limit = max(bounds[1], apart / 2)
        found[precision] = (
            max(bounds[0], SAFETY * largest),
            min(max(bounds[1], SAFETY * mean), limit),
        )
    return found


def rejected_precisions(
    seen: Mapping[str, RoundingError], apart: float, asked: float
) -> dict[str, str]:
    """Return the precisions whose rounding alone is too much, and why: outputs would
    be like those of other samples, or fewer decisions be kept than the share `asked` for.
    """
    found = {}
    for precision, effect in seen.items():
        if precision == "fp32":
            continue
        if effect.mean > apart / COARSE:
            found[precision] = (
                f"rounding to {precision} changes the outputs by {effect.mean:.2g} standard "
                f"deviations on average, and two samples differ by only {apart:.2g}"
            )
        elif effect.kept < asked:
            found[precision] = (
                f"rounding to {precision} lowers the match rate to {effect.kept:.3f}, and {asked} "
                "is required"
            )
    return found


def sample_distance(outputs: Arrays) -> float:
    """Return the mean difference of a sample to the next one or to zeros, the lesser, of the
    output where it is least.
    """
    found = []
    for array in outputs.values():
        values = array.astype(np.float64)
        scale = float(values.std()) or 1.0
        parts = [np.abs(values).mean()]
        if len(values) > 1:
            parts.append(np.abs(values - np.roll(values, 1, 0)).mean())
        found.append(min(parts) / scale)
    return float(min(found))


def _effect(right: Arrays, rounded: Arrays, decision: str) -> RoundingError:
    largest, mean = 0.0, 0.0
    first = next(iter(right))
    kept = _kept(right[first], rounded[first], decision)
    for name, array in right.items():
        values = array.astype(np.float64)
        apart = np.abs(rounded[name] - values) / (values.std() or np.abs(values).max() or 1)
        largest, mean = max(largest, float(apart.max())), max(mean, float(apart.mean()))
    return RoundingError(largest, mean, kept)


def _kept(right: Array, rounded: Array, decision: str) -> float:
    """Return the share of decisions that are the same; one that differs may be one of many more."""
    if decision == "class":
        differ = int((classes(right) != classes(rounded)).sum())
        return 1 - max(0, differ - 1) / len(right)
    size = float(np.linalg.norm(right))
    return 1 - float(np.linalg.norm(np.subtract(rounded, right))) / (size or 1)


def _rounded(network: Network, framework: str, run: Run, inputs: Arrays, error: float) -> Arrays:
    """Compute with an error of deviation `error` in each result, or in the weights alone where the
    results of a framework cannot be had.
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
    """Copy a graph, with a relative error in every weight and in every result that is computed."""
    import onnx

    copy = type(model)()
    copy.CopyFrom(model)
    try:
        inferred = onnx.shape_inference.infer_shapes(model)
    except Exception:  # of operators that it does not know: their results get no error
        inferred = model
    types = dict(_types(inferred.graph))
    _add_errors(copy.graph, types, {}, opset_of(model), error)
    signs = {"half": np.float32(0.5), "yes": np.bool_(True)}
    signs |= {"above": np.float32(1 + error), "below": np.float32(1 - error)}
    held = [onnx.numpy_helper.from_array(np.asarray(signs[key]), SIGNS[key]) for key in SIGNS]
    copy.graph.initializer.extend(held)
    return copy


def _types(graph: Any) -> Iterator[tuple[str, int]]:
    for each in (*graph.value_info, *graph.output):
        yield each.name, each.type.tensor_type.elem_type
    for node in graph.node:
        for inner in subgraphs(node):
            yield from _types(inner)


def _add_errors(
    graph: Any, types: Mapping[str, int], outer: Mapping[str, str], opset: int, error: float
) -> None:
    from onnx import TensorProto, helper

    renamed, nodes = dict(outer), list[Any]()
    ends = {each.name for each in graph.output}

    def add(source: str, target: str) -> None:
        seed, drawn = len(nodes) + 1, f"{target}/error"
        if opset < NO_UNIFORM:
            limits: Any = {
                "low": 1 - SPREAD * error,
                "high": 1 + SPREAD * error,
                "seed": float(seed),
            }
            nodes.append(helper.make_node("RandomUniformLike", [source], [drawn], **limits))
        else:  # by the half that a dropout would keep
            half, yes, *values = SIGNS.values()
            kept = [f"{target}/dropped", f"{target}/kept"]
            nodes.append(helper.make_node("Dropout", [source, half, yes], kept, seed=seed))
            nodes.append(helper.make_node("Where", [kept[1], *values], [drawn]))
        nodes.append(helper.make_node("Mul", [source, drawn], [target]))

    for each in graph.initializer:
        if each.data_type == TensorProto.FLOAT and len(each.dims) > 1:
            renamed[each.name] = f"{each.name}/rounded"
            add(each.name, renamed[each.name])
    for node in graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]
        for inner in subgraphs(node):
            _add_errors(inner, types, renamed, opset, error)
        nodes.append(node)
        for place, name in enumerate(node.output):
            if types.get(name) != TensorProto.FLOAT or node.op_type in MOVING:
                continue
            if name in ends:
                node.output[place] = f"{name}/exact"
                add(f"{name}/exact", name)
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
    kept = [(each, each.numpy()) for each in variables if "float" in str(each.dtype)]
    for variable, values in kept:
        variable.assign(values * draw.normal(1, error, values.shape).astype(values.dtype))
    try:
        yield
    finally:
        for variable, values in kept:
            variable.assign(values)
