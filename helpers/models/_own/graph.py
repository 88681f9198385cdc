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
SINCE_TENSOR_AXES = 13  # from this opset on, Squeeze takes its axes as a tensor


class OnnxRuntime:
    """A graph without any optimization, as the reference for optimized ones."""

    def __init__(self, model: "onnx.ModelProto") -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 4  # the caller reports a failure, once
        self._session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, ["CPUExecutionProvider"]
        )
        self._inputs = [tensor.name for tensor in self._session.get_inputs()]
        self._outputs = [tensor.name for tensor in self._session.get_outputs()]

    def run(self, inputs: Arrays) -> Arrays:
        feed = {name: inputs[name] for name in self._inputs}
        return dict(zip(self._outputs, self._session.run(self._outputs, feed), strict=True))


def source(user_model: Own, path: Path) -> Source:
    """Load a graph in its runtime."""
    kind = Onnx if user_model.description.source == "onnx" else SavedModel
    return kind(user_model, path)


class Onnx(Source):
    """An ONNX file with its weights."""

    def __init__(self, user_model: Own, path: Path) -> None:
        super().__init__(user_model, path)
        model = read_onnx(path)
        try:
            self.ask = OnnxRuntime(model).run  # type: ignore[method-assign]
        except Exception as error:  # ONNX Runtime raises classes of its own for each fault
            fault = " ".join(str(error).split())
            if supported := re.search(r"till (opset \d+)", fault):
                what = f"has opset {opset_of(model)}, but this ONNX Runtime supports {supported[1]}"
                raise CheckpointError(f"{path} {what}. Export it again with that.") from None
            raise CheckpointError(f"{path}: {fault[:300]}") from None

    def build(self, inputs: Sequence[Tensor]) -> Graph:
        """Return the graph with the sizes of the tensors."""
        model, description = read_onnx(self.path), self.own.description
        check_names(self.path, [t.name for t in inputs], [value.name for value in feeds(model)])
        # with branches, the sizes that ONNX infers for one need not fit the other
        if not any(subgraphs(node) for node in model.graph.node):
            fix_sizes(model, inputs, self.own.IS_BATCHED, int(description.has_batch))
        if not description.has_batch:
            put_dimension(model, [value.name for value in (*feeds(model), *model.graph.output)], 0)
        put_dimension(model, description.scalars, 1)
        return Graph(model, self, tuple(layers_of(model)))


def check_names(path: Path, expected: Sequence[str], actual: Sequence[str]) -> None:
    """Raise CheckpointError if a file has other inputs than its package lists."""
    if sorted(expected) != sorted(actual):
        raise CheckpointError(f"{path} has the inputs {list(actual)} instead of {list(expected)}")


def read_onnx(path: Path) -> "onnx.ModelProto":
    """Read an ONNX file and its external data; raise CheckpointError if that fails."""
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
    """List the inputs that a caller provides; old files list their weights among them."""
    weights = {weight.name for weight in model.graph.initializer}
    return [value for value in model.graph.input if value.name not in weights]


def opset_of(model: "onnx.ModelProto") -> int:
    """Return the version of ONNX's own operators."""
    versions = (opset.version for opset in model.opset_import if opset.domain in ("", "ai.onnx"))
    return max(versions, default=1)


def sizes(value: "onnx.ValueInfoProto") -> list[int | str]:
    """Return the dimensions of a tensor: sizes, or names of free ones; empty if it has none."""
    return [
        dim.dim_value if dim.dim_value > 0 else dim.dim_param
        for dim in value.type.tensor_type.shape.dim
    ]


def fix_sizes(
    model: "onnx.ModelProto", inputs: Sequence[Tensor], is_batched: bool, skipped: int
) -> None:
    """Set each free dimension of the inputs to its size, wherever its name occurs in the graph.

    The first one, of the batch, stays free where `is_batched`; `skipped` says how many dimensions
    of the graph the tensors do not have.
    """
    named: dict[str, int] = {}
    shapes = {tensor.name: tensor.shape for tensor in inputs}
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
    values = {value.name: value for value in (*feeds(model), *graph.output) if value.name in names}
    if not values:
        return
    inputs = {value.name for value in feeds(model)}
    opset = opset_of(model)
    inside = {name: f"{name}/without_{axes}" for name in values}
    for node in _nodes(graph):
        for tensors in (node.input, node.output):
            tensors[:] = [inside.get(name, name) for name in tensors]

    def reshape(kind: str, source: str, target: str) -> "onnx.NodeProto":
        if opset < SINCE_TENSOR_AXES:
            return onnx.helper.make_node(kind, [source], [target], axes=[axis])
        return onnx.helper.make_node(kind, [source, axes], [target])

    before = [reshape("Squeeze", name, inside[name]) for name in values if name in inputs]
    after = [reshape("Unsqueeze", inside[name], name) for name in values if name not in inputs]
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
    """Yield the type of each operator, and the number of parameters that it uses first."""
    left = Counter({name: prod(shape) for name, shape in _weights(model.graph)})
    for node in _nodes(model.graph):
        if node.op_type != "Constant":
            yield node.op_type, sum(left.pop(name, 0) for name in node.input)


def weight_shapes(model: "onnx.ModelProto") -> list[tuple[int, ...]]:
    """List the shapes of all weights and constants."""
    return [shape for _, shape in _weights(model.graph)]


def _weights(graph: Any) -> Iterator[tuple[str, tuple[int, ...]]]:
    for weight in graph.initializer:
        yield weight.name, tuple(weight.dims)
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
            return [tuple(variable.shape) for variable in self.variables]
        definition = self.function.graph.as_graph_def()
        inner = (function.node_def for function in definition.library.function)
        return [
            tuple(dim.size for dim in node.attr["value"].tensor.tensor_shape.dim)
            for node in chain(definition.node, *inner)
            if node.op == "Const"
        ]

    def run(self, inputs: Arrays) -> Arrays:
        names = self.function.structured_input_signature[1]
        tensors = {name: self._tensorflow.constant(inputs[name]) for name in names}
        return {name: output.numpy() for name, output in self.function(**tensors).items()}


class SavedModel(Source):
    """A SavedModel, whose variables count as its layers."""

    def __init__(self, user_model: Own, path: Path) -> None:
        super().__init__(user_model, path)
        self.session = read_savedmodel(path)
        self.ask, self.variables = self.session.run, self.session.variables  # type: ignore[method-assign]

    def build(self, inputs: Sequence[Tensor]) -> Graph:
        names = list(self.session.function.structured_input_signature[1])
        check_names(self.path, [tensor.name for tensor in inputs], names)
        layers = [
            (variable.name.rpartition("/")[2].partition(":")[0], int(np.prod(variable.shape)))
            for variable in self.variables
        ]
        return Graph(self.path, self, tuple(layers))


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
