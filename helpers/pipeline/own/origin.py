"""Read what a source declares without running it: its kind, and its tensors where it names them.

A source is a file, a folder, or "module:function". `ParameterError` and `CheckpointError` reject
anything else.
"""

import importlib.util
import inspect
import os
import re
import sys
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from helpers.errors import CheckpointError, ParameterError
from helpers.machine import require
from helpers.models import Arrays
from helpers.models._own import Kind
from helpers.store import free_memory

COPIES = 4  # of the weights in a stage's memory: read, built, exported, loaded by a runtime
FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
TENSOR_NAME = re.compile(r"[A-Za-z0-9_][\w./:\[\]-]*", re.ASCII)
NOUNS: dict[Kind, str] = {
    "onnx": "an ONNX file",
    "savedmodel": "a SavedModel",
    "keras": "a Keras file",
    "torchscript": "a TorchScript file",
    "exported": "a program that torch.export wrote",
    "function": "a function that builds it",
    "repository": "a Triton repository",
}
READERS: dict[Kind, tuple[str, ...]] = {"onnx": ("onnxruntime", "openvino")}
READERS |= dict.fromkeys(("savedmodel", "keras"), ("tensorflow",))
READERS |= dict.fromkeys(("torchscript", "exported"), ("torch",))
ZIPPED = ("keras", "torchscript", "exported")  # kinds whose files are ZIP archives


@dataclass(frozen=True)
class SourceTensor:
    """A tensor as a source declares it."""

    name: str
    dtype: str = ""  # numpy's name of it; empty: the source does not declare it
    # all dimensions, free ones by their name or an empty text; None: not declared
    sizes: tuple[int | str, ...] | None = None


@dataclass(frozen=True)
class ModelSource:
    """The source of a model."""

    kind: Kind
    path: Path  # of its file or folder; of a function, the file of its module
    framework: Literal["onnxruntime", "torch", "tensorflow", "triton"]
    inputs: tuple[SourceTensor, ...]
    function: str = ""
    example: Arrays | None = None  # inputs of a batch, where the source has them
    backend: str = ""  # Triton's, for a model of a repository
    most: int = 0  # the largest batch, where the source declares it
    # outputs with their shapes, where only the source declares them
    answers: tuple[SourceTensor, ...] = ()


def kind_of(source: str) -> Kind:
    """Return the kind of a source by its files; raise ParameterError if it has none."""
    path = Path(source).expanduser()
    if path.is_dir() and (path / "saved_model.pb").is_file():
        return "savedmodel"
    if path.is_dir() and (path / "config.pbtxt").is_file():
        return "repository"
    if not path.exists() and FUNCTION.fullmatch(source):
        return "function"
    if not path.exists():
        raise ParameterError(f"--from {source}: no such file, folder or module:function")
    kinds: dict[str, Kind] = {".onnx": "onnx", ".keras": "keras", ".pt2": "exported"}
    kinds |= dict.fromkeys((".pt", ".ts", ".jit", ".pth", ".torchscript"), "torchscript")
    if path.is_file() and path.suffix.lower() in kinds:
        return kinds[path.suffix.lower()]
    usable = "an .onnx, .keras, .pt2 or TorchScript file (.pt, .jit), the folder of a SavedModel or"
    usable += " of a model in a Triton repository (with its config.pbtxt)"
    raise ParameterError(f"Unsupported model source '{source}'. Use {usable}, or module:function.")


def read(source: str) -> ModelSource:
    """Read the tensors that a source declares.

    Raises ParameterError or CheckpointError if it is not a model, if Triton does not take a tensor,
    or if weights are missing or exceed the memory. Raises InstallationError if the framework that
    reads it cannot be imported.
    """
    kind = kind_of(source)
    if kind == "function":
        return _of_function(source)
    path = Path(source).expanduser().resolve()
    if kind in ZIPPED and not zipfile.is_zipfile(path):
        raise CheckpointError(f"{path} is not {NOUNS[kind]}, because it is not a ZIP archive")
    require(*READERS.get(kind, ()))
    require_memory(path, _bytes(path, kind))
    readers = {
        "onnx": _of_onnx,
        "savedmodel": _of_savedmodel,
        "keras": _of_keras,
        "torchscript": _of_torchscript,
        "exported": _of_exported,
        "repository": _of_repository,
    }
    model_source = readers[kind](path)
    for port in model_source.inputs:
        check_name(path, port.name, "input")
    return model_source


def check_name(path: object, name: str, what: str) -> None:
    """Raise ParameterError for the name of a tensor that Triton or its clients do not accept."""
    if not TENSOR_NAME.fullmatch(name):
        takes = "Rename it: Triton's clients accept letters, digits and _ . / : - [ ]."
        raise ParameterError(f"{path} has the {what} name {name!r}. {takes}")


def _bytes(path: Path, kind: Kind) -> int:
    """Count the bytes of a model's files, with the external weights of an ONNX file."""
    if path.is_dir():
        return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    external = 0
    if kind == "onnx":
        import onnx

        try:
            model = onnx.load(path, load_external_data=False)
        except Exception:  # the reader of the whole file reports it
            return path.stat().st_size
        for tensor in model.graph.initializer:
            entries = {entry.key: entry.value for entry in tensor.external_data}
            external += int(entries.get("length", 0))
    return path.stat().st_size + external


def require_memory(path: Path, size: int, what: str = "weights") -> None:
    """Raise CheckpointError if `size` bytes of weights or samples do not fit into free memory."""
    free = free_memory()
    if COPIES * size > free:
        raise CheckpointError(
            f"{path} has {size / 1e9:.1f} GB of {what}. A stage needs about {COPIES} times that, "
            f"but only {free / 1e9:.1f} GB of memory are free."
        )


def _of_onnx(path: Path) -> ModelSource:
    import onnx

    from helpers.models._own import graph

    model = graph.read_onnx(path)
    inputs = []
    for tensor in graph.feeds(model):
        kind = tensor.type.tensor_type.elem_type
        if not tensor.type.HasField("tensor_type") or kind in (0, onnx.TensorProto.STRING):
            what = "text" if kind else "not a tensor"
            raise ParameterError(
                f"The input '{tensor.name}' of {path} is {what}. Use numeric inputs."
            )
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind))
        inputs.append(
            SourceTensor(
                tensor.name, _numpy_name(path, tensor.name, dtype), (*graph.sizes(tensor),)
            )
        )
    for tensor in model.graph.output:
        check_name(path, tensor.name, "output")
        if not tensor.type.HasField("tensor_type"):
            raise ParameterError(
                f"The output '{tensor.name}' of {path} is not a tensor. Remove it."
            )
    return ModelSource("onnx", path, "onnxruntime", tuple(inputs))


def _numpy_name(path: object, name: str, dtype: np.dtype[Any]) -> str:
    """Return numpy's name of a type; raise ParameterError for a type that numpy does not have."""
    if dtype.kind not in "fiub" or str(dtype) not in np.sctypeDict:
        raise ParameterError(f"{path}: '{name}' has the type {dtype}, which numpy does not have")
    return str(dtype)


def _of_savedmodel(path: Path) -> ModelSource:
    from helpers.models._own import graph

    function = graph.read_savedmodel(path).function
    inputs = []
    for name, spec in function.structured_input_signature[1].items():
        if spec.shape.rank is None:
            raise ParameterError(f"The input '{name}' of {path} has no shape. Save it with one.")
        sizes = tuple(size or "" for size in spec.shape.as_list())
        inputs.append(
            SourceTensor(name, _numpy_name(path, name, np.dtype(spec.dtype.as_numpy_dtype)), sizes)
        )
    return ModelSource("savedmodel", path, "tensorflow", tuple(inputs))


def _of_keras(path: Path) -> ModelSource:
    from helpers.models._own import networks

    tensors = getattr(networks.read_keras(path), "inputs", None)
    if not tensors:
        raise CheckpointError(f"{path} declares no inputs. Build the model with keras.Input.")
    ports = (
        SourceTensor(tensor.name, str(tensor.dtype), tuple(size or "" for size in tensor.shape))
        for tensor in tensors
    )
    return ModelSource("keras", path, "tensorflow", tuple(ports))


def _of_torchscript(path: Path) -> ModelSource:
    from helpers.models._own import networks

    module = networks.read_torchscript(path)
    arguments = list(module.forward.schema.arguments)[1:]  # without self
    ports = []
    for argument in arguments:
        if str(argument.type) != "Tensor":
            if argument.has_default_value():
                continue
            raise ParameterError(
                f"The input '{argument.name}' of {path} is a {argument.type}. Wrap the model in a "
                "module that takes only tensors."
            )
        ports.append(SourceTensor(argument.name))
    return ModelSource("torchscript", path, "torch", tuple(ports))


def _of_exported(path: Path) -> ModelSource:
    from helpers.models._own import networks

    program = networks.read_exported(path)
    names = program.graph_signature.user_inputs
    held = {node.name: node.meta["val"] for node in program.graph.nodes if "val" in node.meta}
    ports = []
    for name in names:
        value = held.get(str(name))
        if value is None or not hasattr(value, "shape"):
            raise ParameterError(f"The input '{name}' of {path} is not a tensor. Remove it.")
        sizes = tuple(size if isinstance(size, int) else str(size) for size in value.shape)
        ports.append(SourceTensor(str(name), str(value.dtype).removeprefix("torch."), sizes))
    return ModelSource("exported", path, "torch", tuple(ports))


def _of_repository(path: Path) -> ModelSource:
    from tritonclient.grpc import model_config_pb2 as pb
    from tritonclient.utils import triton_to_np_dtype

    from helpers.triton import backend_of, read_configuration

    message = read_configuration(path)
    if not message.input or not message.output:
        raise ParameterError(f"{path}/config.pbtxt declares no inputs or no outputs. Add them.")
    if message.max_batch_size < 1:
        raise ParameterError(
            f"{path}/config.pbtxt has max_batch_size {message.max_batch_size}. Give the model a "
            "batch dimension, with max_batch_size 1 or more."
        )
    if not any(entry.is_dir() and entry.name.isdigit() for entry in path.iterdir()):
        raise ParameterError(f"{path} has no version folder, such as 1")

    def port(tensor: Any) -> SourceTensor:
        kind = triton_to_np_dtype(pb.DataType.Name(tensor.data_type).removeprefix("TYPE_"))
        dtype = np.dtype(kind) if kind else np.dtype(object)
        sizes = tuple(size if size > 0 else "" for size in tensor.dims)
        return SourceTensor(tensor.name, _numpy_name(path, tensor.name, dtype), ("", *sizes))

    return ModelSource(
        *("repository", path, "triton"),
        inputs=tuple(map(port, message.input)),
        backend=backend_of(message),
        most=message.max_batch_size,
        answers=tuple(map(port, message.output)),
    )


def _of_function(source: str) -> ModelSource:
    """Call the function, which returns a model and a batch of example inputs."""
    from helpers.models._own import networks

    sys.path.insert(0, os.getcwd())
    module = source.partition(":")[0]
    spec = None
    with networks.explained(source, "cannot be imported"), suppress(ImportError):
        spec = importlib.util.find_spec(module)
    if spec is None or not spec.origin or not Path(spec.origin).is_file():
        raise ParameterError(f"--from {source}: the module '{module}' was not found")
    network, example = networks.call(source)
    is_keras = any(base.__module__.startswith("keras.") for base in type(network).__mro__)
    is_torch = any(base.__module__ == "torch.nn.modules.module" for base in type(network).__mro__)
    if not (is_keras or is_torch):
        what = type(network).__name__
        raise CheckpointError(f"{source} returned a {what}. Return a PyTorch or Keras model.")
    examples = _arrays(source, example, _argument_names(network, is_keras))
    if not examples:
        raise CheckpointError(f"{source} returned no example inputs. Return a batch of each.")
    ports = tuple(
        SourceTensor(name, str(array.dtype), array.shape) for name, array in examples.items()
    )
    for port in ports:
        check_name(source, port.name, "input")
    path = Path(spec.origin)
    return ModelSource(
        *("function", path, "tensorflow" if is_keras else "torch"), ports, source, example=examples
    )


def _argument_names(network: Any, is_keras: bool) -> list[str]:
    if is_keras:
        return [tensor.name for tensor in getattr(network, "inputs", None) or ()]
    return list(inspect.signature(network.forward).parameters)


def _arrays(source: str, example: Any, names: Sequence[str]) -> Arrays:
    """Return example inputs (a tensor, a sequence or a dict of tensors) as arrays by name."""
    if not isinstance(example, Mapping):
        values = example if isinstance(example, (list, tuple)) else [example]
        parameters = [name for name in names if name not in ("args", "kwargs")]
        example = {
            parameters[index] if index < len(parameters) else f"input_{index}": value
            for index, value in enumerate(values)
        }
    arrays = {}
    for name, value in example.items():
        array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
        if array.dtype.kind not in "fiub":
            raise CheckpointError(f"{source}: the example of '{name}' is not numeric")
        arrays[str(name)] = array
    in_order = [name for name in names if name in arrays]
    return {name: arrays[name] for name in (in_order if len(in_order) == len(arrays) else arrays)}
