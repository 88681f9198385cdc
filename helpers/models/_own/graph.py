"""Graphs in files: ONNX, run by ONNX Runtime, and a SavedModel, run by TensorFlow."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from helpers.errors import CheckpointError
from helpers.models import Arrays, Graph, Tensor
from helpers.models._keras import tensorflow
from helpers.models._own import Own
from helpers.models._own.source import Source

if TYPE_CHECKING:
    import onnx

BATCH = "batch"
SIGNATURE = "serving_default"
SINCE_TENSOR_AXES = 13  # the opset from which on Squeeze takes its axes as a tensor


class OnnxRuntime:
    """A graph run just as its nodes say: nothing fused, so that it can judge what fuses them."""

    def __init__(self, model: "onnx.ModelProto") -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 4  # what fails is said once, by who asked
        self._session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, ["CPUExecutionProvider"]
        )
        self._inputs = [each.name for each in self._session.get_inputs()]
        self._outputs = [each.name for each in self._session.get_outputs()]

    def run(self, inputs: Arrays) -> Arrays:
        given = {name: inputs[name] for name in self._inputs}
        return dict(zip(self._outputs, self._session.run(self._outputs, given), strict=True))


def source(own: Own, path: Path) -> Source:
    """Load a graph in its runtime."""
    return Onnx(own, path) if own.description.source == "onnx" else SavedModel(own, path)


class Onnx(Source):
    """An ONNX file with its weights."""

    def __init__(self, own: Own, path: Path) -> None:
        super().__init__(own, path)
        model = read_onnx(path)
        try:
            self.ask = OnnxRuntime(model).run  # type: ignore[method-assign]
        except Exception as error:  # ONNX Runtime raises classes of its own for each fault
            fault = " ".join(str(error).split())
            if known := re.search(r"till (opset \d+)", fault):
                what = f"has opset {opset_of(model)}, but this ONNX Runtime supports {known[1]}"
                raise CheckpointError(f"{path} {what}. Export it again with that.") from None
            raise CheckpointError(f"{path}: {fault[:300]}") from None

    def build(self, inputs: Sequence[Tensor]) -> Graph:
        """Return the graph in the sizes that the tensors say."""
        own, model = self.own, read_onnx(self.path)
        check_names(self.path, [each.name for each in inputs], [each.name for each in feeds(model)])
        # not where there are branches: what is inferred of the sizes need not fit the one not taken
        if not any(subgraphs(node) for node in model.graph.node):
            fix_sizes(model, inputs, own.IS_BATCHED, int(own.description.has_batch))
        if not own.description.has_batch:
            put_dimension(model, [each.name for each in (*feeds(model), *model.graph.output)], 0)
        put_dimension(model, own.description.scalars, 1)
        return Graph(model, self, tuple(layers_of(model)))


def check_names(path: Path, expected: Sequence[str], found: Sequence[str]) -> None:
    """Raise CheckpointError if a file has other inputs than its package says."""
    if sorted(expected) != sorted(found):
        raise CheckpointError(f"{path} has the inputs {list(found)} instead of {list(expected)}")


def read_onnx(path: Path) -> "onnx.ModelProto":
    """Read an ONNX file and what it keeps beside it; raise CheckpointError if it cannot be."""
    import onnx
    from google.protobuf.message import DecodeError

    try:
        model = onnx.load(path)
    except FileNotFoundError as error:
        missing = Path(error.filename) if error.filename else path
        if missing == path:
            raise CheckpointError(f"{path}: no such file") from None
        raise _lacks_data(path) from None
    except onnx.checker.ValidationError:
        raise _lacks_data(path) from None
    except (DecodeError, OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:100]
        raise CheckpointError(f"{path} is not an ONNX model: {reason}") from None
    if not model.graph.node:
        raise CheckpointError(f"{path} is not an ONNX model: its graph has no operator")
    return model


def _lacks_data(path: Path) -> CheckpointError:
    return CheckpointError(f"{path} has weights in other files, and one of them is missing")


def feeds(model: "onnx.ModelProto") -> "list[onnx.ValueInfoProto]":
    """List the inputs that a caller gives; old files list their weights among them."""
    weights = {each.name for each in model.graph.initializer}
    return [each for each in model.graph.input if each.name not in weights]


def opset_of(model: "onnx.ModelProto") -> int:
    """Return the version of ONNX's own operators."""
    found = (each.version for each in model.opset_import if each.domain in ("", "ai.onnx"))
    return max(found, default=1)


def sizes(value: "onnx.ValueInfoProto") -> list[int | str]:
    """Return the dimensions of a tensor: sizes, or names of free ones; empty if it has none."""
    return [
        each.dim_value if each.dim_value > 0 else each.dim_param
        for each in value.type.tensor_type.shape.dim
    ]


def fix_sizes(
    model: "onnx.ModelProto", inputs: Sequence[Tensor], is_batched: bool, skipped: int
) -> None:
    """Set each free dimension of the inputs to its size, wherever its name occurs in the graph.

    The first one, of the batch, stays free where `is_batched`; `skipped` says how many dimensions
    of the graph the tensors do not have.
    """
    named: dict[str, int] = {}
    shapes = {each.name: each.shape for each in inputs}
    for value in feeds(model):
        dims = value.type.tensor_type.shape.dim
        for dim, size in zip(dims[skipped:], shapes[value.name], strict=False):  # or a scalar
            if dim.dim_value <= 0:
                named |= {dim.dim_param: size} if dim.dim_param not in ("", "?") else {}
                dim.dim_value = size
        if skipped and is_batched:
            named.pop(dims[0].dim_param, None)
            dims[0].dim_param = BATCH
    for value in (*model.graph.output, *model.graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in named:
                dim.dim_value = named[dim.dim_param]


def put_dimension(model: "onnx.ModelProto", names: Sequence[str], axis: int) -> None:
    """Put a dimension of size 1 before the dimension `axis` of the inputs and outputs `names`."""
    import onnx

    graph, axes = model.graph, f"axis_{axis}"
    values = {each.name: each for each in (*feeds(model), *graph.output) if each.name in names}
    if not values:
        return
    given = {each.name for each in feeds(model)}
    opset = opset_of(model)
    inside = {name: f"{name}/without_{axes}" for name in values}
    for node in _nodes(graph):
        for own in (node.input, node.output):
            own[:] = [inside.get(each, each) for each in own]

    def reshape(kind: str, source: str, target: str) -> "onnx.NodeProto":
        if opset < SINCE_TENSOR_AXES:
            return onnx.helper.make_node(kind, [source], [target], axes=[axis])
        return onnx.helper.make_node(kind, [source, axes], [target])

    before = [reshape("Squeeze", name, inside[name]) for name in values if name in given]
    after = [reshape("Unsqueeze", inside[name], name) for name in values if name not in given]
    nodes = [*before, *graph.node, *after]
    for value in values.values():
        shape = value.type.tensor_type.shape
        dims = list(shape.dim)
        del shape.dim[:]
        shape.dim.extend(dims[:axis])
        shape.dim.add().dim_value = 1
        shape.dim.extend(dims[axis:])
    if opset >= SINCE_TENSOR_AXES:
        graph.initializer.append(onnx.numpy_helper.from_array(np.array([axis], np.int64), axes))
    del graph.node[:]
    graph.node.extend(nodes)


def _nodes(graph: Any) -> Iterator[Any]:
    """Yield the nodes of a graph, those of branches and loops too."""
    for node in graph.node:
        yield node
        for inner in subgraphs(node):
            yield from _nodes(inner)


def subgraphs(node: "onnx.NodeProto") -> "list[onnx.GraphProto]":
    """List the branches or the body that a node has."""
    return [
        inner
        for attribute in node.attribute
        for inner in (attribute.g, *attribute.graphs)
        if inner.node or inner.output
    ]


def layers_of(model: "onnx.ModelProto") -> Iterator[tuple[str, int]]:
    """Yield the kind of each operator, and how many parameters it is the first to take."""
    left = Counter({name: prod(shape) for name, shape in _weights(model.graph)})
    for node in _nodes(model.graph):
        if node.op_type != "Constant":
            yield node.op_type, sum(left.pop(name, 0) for name in node.input)


def weight_shapes(model: "onnx.ModelProto") -> list[tuple[int, ...]]:
    """List the shapes of all weights and constants."""
    return [shape for _, shape in _weights(model.graph)]


def _weights(graph: Any) -> Iterator[tuple[str, tuple[int, ...]]]:
    for each in graph.initializer:
        yield each.name, tuple(each.dims)
    for node in graph.node:
        if node.op_type == "Constant":
            for attribute in node.attribute:
                yield node.output[0], tuple(attribute.t.dims) or (0,)
        for inner in subgraphs(node):
            yield from _weights(inner)


class TensorFlow:
    """A SavedModel's signature, which TensorFlow runs."""

    def __init__(self, path: Path) -> None:
        self._tensorflow = tensorflow()
        self.model = self._tensorflow.saved_model.load(str(path))
        self.function = self.model.signatures[SIGNATURE]
        self.variables = self.function.variables

    def shapes(self) -> list[tuple[int, ...]]:
        """Return the shapes of the weights: of variables, or of constants if these are frozen."""
        if self.variables:
            return [tuple(each.shape) for each in self.variables]
        definition = self.function.graph.as_graph_def()
        inner = (each.node_def for each in definition.library.function)
        return [
            tuple(each.size for each in node.attr["value"].tensor.tensor_shape.dim)
            for node in chain(definition.node, *inner)
            if node.op == "Const"
        ]

    def run(self, inputs: Arrays) -> Arrays:
        names = self.function.structured_input_signature[1]
        given = {name: self._tensorflow.constant(inputs[name]) for name in names}
        return {name: each.numpy() for name, each in self.function(**given).items()}


class SavedModel(Source):
    """A SavedModel, whose layers are the variables that it keeps."""

    def __init__(self, own: Own, path: Path) -> None:
        super().__init__(own, path)
        self.session = read_savedmodel(path)
        self.ask, self.variables = self.session.run, self.session.variables  # type: ignore[method-assign]

    def build(self, inputs: Sequence[Tensor]) -> Graph:
        names = list(self.session.function.structured_input_signature[1])
        check_names(self.path, [each.name for each in inputs], names)
        found = [
            (each.name.rpartition("/")[2].partition(":")[0], int(np.prod(each.shape)))
            for each in self.variables
        ]
        return Graph(self.path, self, tuple(found))


def read_savedmodel(path: Path) -> TensorFlow:
    """Load a SavedModel with the signature that servers call; raise CheckpointError if it has none
    or cannot be read.
    """
    try:
        return TensorFlow(path)
    except KeyError:
        raise CheckpointError(f"{path} has no signature '{SIGNATURE}'. Save it with one.") from None
    except Exception as error:  # damaged bytes can fail in any way inside TensorFlow
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(f"{path} is not a readable SavedModel: {reason}") from None
