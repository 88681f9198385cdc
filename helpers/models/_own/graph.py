"""Graphs in files: ONNX, run by ONNX Runtime, and a SavedModel, run by TensorFlow."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from helpers.errors import CheckpointError, one_line
from helpers.models import Arrays, Graph, Tensor
from helpers.models._keras import tensorflow
from helpers.models._own import Array, Description, Own
from helpers.models._own.source import Source

if TYPE_CHECKING:
    import onnx

BATCH = "batch"
SIGNATURE = "serving_default"
# Operators that pass the values of an input on
PASSING = ("Cast", "Reshape", "Expand", "Unsqueeze", "Squeeze", "Identity")
SINCE_TENSOR_AXES = 13  # from this opset on, Squeeze takes its axes as a tensor


class OnnxRuntime:
    """A graph without any optimization, as the reference for optimized ones."""

    def __init__(self, model: "onnx.ModelProto", outputs: Sequence[str] = ()) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 4  # the caller reports a failure, once
        self._session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, ["CPUExecutionProvider"]
        )
        self._inputs = [tensor.name for tensor in self._session.get_inputs()]
        self._outputs = outputs or [tensor.name for tensor in self._session.get_outputs()]

    def run(self, inputs: Arrays) -> Arrays:
        feed = {name: inputs[name] for name in self._inputs}
        return dict(zip(self._outputs, self._session.run(self._outputs, feed), strict=True))


class Onnx(Source):
    """An ONNX file with its weights."""

    def __init__(self, user_model: Own, path: Path) -> None:
        super().__init__(user_model, path)
        model = _whole(path)  # ONNX Runtime has to accept the file as it is
        served = [value.name for value in model.graph.output if not _unserved(value)]
        try:
            self.ask = OnnxRuntime(model, served).run  # type: ignore[method-assign]
        except Exception as error:  # ONNX Runtime raises classes of its own for each fault
            if supported := re.search(r"till (opset \d+)", str(error)):
                what = f"has opset {opset_of(model)}, but this ONNX Runtime supports {supported[1]}"
                raise CheckpointError(f"{path} {what}. Export it again with that.") from None
            raise CheckpointError(f"{path}: {one_line(error, 300)}") from None

    def build(self, inputs: Sequence[Tensor]) -> Graph:
        """Return the graph with the sizes of the tensors."""
        model, description = read_onnx(self.path), self.own.description
        check_names(self.path, [t.name for t in inputs], [value.name for value in feeds(model)])
        # with branches, the sizes that ONNX infers for one need not fit the other
        if not any(subgraphs(node) for node in model.graph.node):
            fix_sizes(model, inputs, description)
        if not description.has_batch:
            put_dimension(model, [value.name for value in (*feeds(model), *model.graph.output)], 0)
        put_dimension(model, description.scalars, 1)
        return Graph(model, self, tuple(layers_of(model)))


def check_names(path: Path, expected: Sequence[str], actual: Sequence[str]) -> None:
    """Raise CheckpointError if a file has other inputs than its package lists."""
    if sorted(expected) != sorted(actual):
        raise CheckpointError(f"{path} has the inputs {list(actual)} instead of {list(expected)}")


def read_onnx(path: Path) -> "onnx.ModelProto":
    """Read an ONNX file and its external data, without the outputs that cannot be served; raise
    CheckpointError if that fails.
    """
    return split_onnx(path)[0]


def split_onnx(path: Path) -> "tuple[onnx.ModelProto, dict[str, str]]":
    """Read an ONNX file, and return too why outputs are left out: text, for instance."""
    model = _whole(path)
    reasons = {value.name: why for value in model.graph.output if (why := _unserved(value))}
    served = [value for value in model.graph.output if value.name not in reasons]
    del model.graph.output[:]
    model.graph.output.extend(served)
    return model, reasons


def _whole(path: Path) -> "onnx.ModelProto":
    import onnx
    from google.protobuf.message import DecodeError

    lost = CheckpointError(f"{path} has weights in other files, and one of them is missing")
    try:
        model = onnx.load(path)
    except FileNotFoundError as error:
        if error.filename and Path(error.filename) != path:
            raise lost from None
        raise CheckpointError(f"{path}: no such file") from None
    except onnx.checker.ValidationError:
        raise lost from None
    except (DecodeError, OSError, ValueError) as error:
        reason = one_line(error, 100)
        raise CheckpointError(f"{path} is not an ONNX model: {reason}") from None
    if not model.graph.node:
        raise CheckpointError(f"{path} is not an ONNX model: its graph has no operator")
    return model


def _unserved(value: "onnx.ValueInfoProto") -> str:
    """Return why an output cannot be served; empty if it can."""
    import onnx

    if not value.type.HasField("tensor_type"):
        return "is not a tensor"
    kind = value.type.tensor_type
    if kind.elem_type == onnx.TensorProto.STRING:
        return "is text"
    is_empty = any(dim.HasField("dim_value") and dim.dim_value == 0 for dim in kind.shape.dim[1:])
    return "has no elements" if is_empty else ""


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
    dims = value.type.tensor_type.shape.dim
    return [dim.dim_value if dim.dim_value > 0 else dim.dim_param for dim in dims]


def fix_sizes(model: "onnx.ModelProto", inputs: Sequence[Tensor], description: Description) -> None:
    """Set each free dimension of the inputs to its size, wherever its name occurs in the graph. A
    free batch stays free.
    """
    named: dict[str, int] = {}
    shapes = {tensor.name: tensor.shape for tensor in inputs}
    for value in feeds(model):
        dims = value.type.tensor_type.shape.dim
        for dim, size in zip(
            dims[int(description.has_batch) :], shapes[value.name], strict=False
        ):  # or a scalar
            if dim.dim_value <= 0:
                named |= {dim.dim_param: size} if dim.dim_param not in ("", "?") else {}
                dim.dim_value = size
        if description.has_batch and description.is_batched:
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
    if not any(opset.domain in ("", "ai.onnx") for opset in model.opset_import):  # trees alone
        model.opset_import.add(domain="", version=SINCE_TENSOR_AXES)
    opset = opset_of(model)
    inside = {name: f"{name}/without_{axes}" for name in values}
    for node in chain(*(each.node for each in graphs(graph))):
        for tensors in (node.input, node.output):
            tensors[:] = [inside.get(name, name) for name in tensors]

    def reshape(kind: str, source: str, target: str) -> "onnx.NodeProto":
        if opset < SINCE_TENSOR_AXES:
            return onnx.helper.make_node(kind, [source], [target], axes=[axis])
        return onnx.helper.make_node(kind, [source, axes], [target])

    for name, value in values.items():
        value.type.tensor_type.shape.dim.insert(axis, onnx.TensorShapeProto.Dimension(dim_value=1))
        if name in inputs:
            graph.node.insert(0, reshape("Squeeze", name, inside[name]))
        else:
            graph.node.append(reshape("Unsqueeze", inside[name], name))
    if opset >= SINCE_TENSOR_AXES:
        graph.initializer.append(onnx.numpy_helper.from_array(np.array([axis], np.int64), axes))


def graphs(graph: "onnx.GraphProto") -> "Iterator[onnx.GraphProto]":
    """Yield a graph, and those of branches and loops in it."""
    yield graph
    for node in graph.node:
        for inner in subgraphs(node):
            yield from graphs(inner)


def subgraphs(node: "onnx.NodeProto") -> "list[onnx.GraphProto]":
    """List the branches or the body that a node has."""
    inside = chain(*((attribute.g, *attribute.graphs) for attribute in node.attribute))
    return [graph for graph in inside if graph.node or graph.output]


def table_rows(model: "onnx.ModelProto") -> dict[str, int]:
    """Return the rows of each table that an input of a graph indexes.

    A graph looks rows up, or compares the input with all row numbers, as a one-hot encoding does.
    """
    from onnx.numpy_helper import to_array

    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    same = {node.output[0]: node.input[0] for node in model.graph.node if node.op_type in PASSING}
    found: dict[str, int] = {}
    for node in model.graph.node:
        table = next((weights[name] for name in node.input[:2] if name in weights), None)
        if table is None:
            continue
        if node.op_type == "Gather" and node.input[0] == table.name:
            name, rows = node.input[1], table.dims[0]
        elif node.op_type == "OneHot":
            name, rows = node.input[0], int(to_array(table).max())
        elif node.op_type == "Equal" and _counts_up(to_array(table)):
            name, rows = node.input[0], prod(table.dims)
        else:
            continue
        while name in same:
            name = same[name]
        found[name] = min(rows, found.get(name, rows))
    return found


def _counts_up(array: Array) -> bool:
    return array.size > 1 and np.array_equal(array.ravel(), np.arange(array.size))


def layers_of(model: "onnx.ModelProto") -> Iterator[tuple[str, int]]:
    """Yield the type of each operator, and the number of parameters that it uses first."""
    left = Counter({name: prod(shape) for name, shape in shapes_of(model.graph)})
    for node in chain(*(each.node for each in graphs(model.graph))):
        if node.op_type != "Constant":
            yield node.op_type, sum(left.pop(name, 0) for name in node.input)


def shapes_of(graph: "onnx.GraphProto") -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the name and the shape of each weight and constant."""
    for each in graphs(graph):
        for weight in each.initializer:
            yield weight.name, tuple(weight.dims)
        for node in each.node:
            for attribute in node.attribute if node.op_type == "Constant" else ():
                yield node.output[0], tuple(attribute.t.dims) or (0,)


class TensorFlow:
    """A SavedModel's signature that servers call, which TensorFlow runs."""

    def __init__(self, path: Path) -> None:
        """Load the signature; raise CheckpointError if there is none or it cannot be read."""
        self._tensorflow = tensorflow()
        try:
            self.model = self._tensorflow.saved_model.load(str(path))
            self.function = self.model.signatures[SIGNATURE]
        except KeyError:
            fault = f"has no signature '{SIGNATURE}'. Save it with one."
            raise CheckpointError(f"{path} {fault}") from None
        except Exception as error:  # damaged bytes can fail in any way inside TensorFlow
            if "add_slot" in str(error):
                fault = "has an optimizer of Keras 2. Save the model with include_optimizer=False"
                raise CheckpointError(f"{path} {fault}, or use its ONNX file.") from None
            reason = one_line(error, 200)
            raise CheckpointError(f"{path} is not a readable SavedModel: {reason}") from None
        self.variables = self.function.variables
        # sorted, as their order changes from process to process
        self.inputs = dict(sorted(self.function.structured_input_signature[1].items()))

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
        tensors = {name: self._tensorflow.constant(inputs[name]) for name in self.inputs}
        return {name: output.numpy() for name, output in sorted(self.function(**tensors).items())}


class SavedModel(Source):
    """A SavedModel, whose variables count as its layers."""

    def __init__(self, user_model: Own, path: Path) -> None:
        super().__init__(user_model, path)
        self.signature = TensorFlow(path)
        self.ask, self.variables = self.signature.run, self.signature.variables  # type: ignore[method-assign]

    def build(self, inputs: Sequence[Tensor]) -> Graph:
        check_names(self.path, [tensor.name for tensor in inputs], [*self.signature.inputs])
        names = (variable.name.rpartition("/")[2].partition(":")[0] for variable in self.variables)
        counts = (prod(variable.shape) for variable in self.variables)
        return Graph(self.path, self, tuple(zip(names, counts, strict=True)))
