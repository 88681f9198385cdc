"""What a source says of itself without being run: its kind, and its tensors as far as it names
them.

A source is a file, a folder, or "module:function". `ParameterError` and `CheckpointError` have one
line each for what is none.
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

COPIES = 4  # of the weights that a stage has in memory: read, built, exported, loaded by a runtime
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
ZIPPED = ("keras", "torchscript", "exported")  # whose files are ZIP archives


@dataclass(frozen=True)
class SourceTensor:
    """An input as a source names it."""

    name: str
    dtype: str = ""  # as numpy names it; empty: the source does not say
    # all dimensions, those that are free by their name, or an empty text; None: not said
    sizes: tuple[int | str, ...] | None = None


@dataclass(frozen=True)
class ModelSource:
    """Where a model comes from."""

    kind: Kind
    path: Path  # of its file or folder; of a function, the file of its module
    framework: Literal["onnxruntime", "torch", "tensorflow", "triton"]
    inputs: tuple[SourceTensor, ...]
    function: str = ""
    example: Arrays | None = None  # inputs of a batch, where the source has them
    backend: str = ""  # that serves a model of a repository
    most: int = 0  # samples that it takes at once, where the source says it
    answers: tuple[
        SourceTensor, ...
    ] = ()  # outputs with their shapes, where nothing else tells them


def kind_of(source: str) -> Kind:
    """Return the kind of a source by what lies there; raise ParameterError if it is none."""
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
    known = "an .onnx, .keras, .pt2 or TorchScript file (.pt, .jit), the folder of a SavedModel or"
    known += " of a model in a Triton repository (with its config.pbtxt)"
    raise ParameterError(f"Unsupported model source '{source}'. Use {known}, or module:function.")


def read(source: str) -> ModelSource:
    """Read what a source says of its tensors.

    Raises ParameterError or CheckpointError for one that is no model, has weights that are missing
    or do not fit into memory, or a tensor that Triton does not take, and InstallationError if what
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
    found = readers[kind](path)
    for port in found.inputs:
        check_name(path, port.name, "input")
    return found


def check_name(path: object, name: str, what: str) -> None:
    """Raise ParameterError for a name of a tensor that the server or its clients do not take."""
    if not TENSOR_NAME.fullmatch(name):
        takes = "Rename it: Triton's clients accept letters, digits and _ . / : - [ ]."
        raise ParameterError(f"{path} has the {what} name {name!r}. {takes}")


def _bytes(path: Path, kind: Kind) -> int:
    """Count the bytes of a model's files; the weights of an ONNX file may lie beside it."""
    if path.is_dir():
        return sum(each.stat().st_size for each in path.rglob("*") if each.is_file())
    beside = 0
    if kind == "onnx":
        import onnx

        try:
            model = onnx.load(path, load_external_data=False)
        except Exception:  # said by whoever reads it for what it holds
            return path.stat().st_size
        for tensor in model.graph.initializer:
            entries = {each.key: each.value for each in tensor.external_data}
            beside += int(entries.get("length", 0))
    return path.stat().st_size + beside


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
    for each in graph.feeds(model):
        kind = each.type.tensor_type.elem_type
        if not each.type.HasField("tensor_type") or kind in (0, onnx.TensorProto.STRING):
            what = "text" if kind else "not a tensor"
            raise ParameterError(
                f"The input '{each.name}' of {path} is {what}. Use numeric inputs."
            )
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind))
        inputs.append(
            SourceTensor(each.name, _numpy_name(path, each.name, dtype), (*graph.sizes(each),))
        )
    for each in model.graph.output:
        check_name(path, each.name, "output")
        if not each.type.HasField("tensor_type"):
            raise ParameterError(f"The output '{each.name}' of {path} is not a tensor. Remove it.")
    return ModelSource("onnx", path, "onnxruntime", tuple(inputs))


def _numpy_name(path: object, name: str, dtype: np.dtype[Any]) -> str:
    """Return the name of a type that Triton and numpy have; raise ParameterError for another."""
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
        SourceTensor(each.name, str(each.dtype), tuple(size or "" for size in each.shape))
        for each in tensors
    )
    return ModelSource("keras", path, "tensorflow", tuple(ports))


def _of_torchscript(path: Path) -> ModelSource:
    from helpers.models._own import networks

    module = networks.read_torchscript(path)
    arguments = list(module.forward.schema.arguments)[1:]  # without self
    ports = []
    for each in arguments:
        if str(each.type) != "Tensor":
            if each.has_default_value():
                continue
            raise ParameterError(
                f"The input '{each.name}' of {path} is a {each.type}. Wrap the model in a module "
                "that takes only tensors."
            )
        ports.append(SourceTensor(each.name))
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
    if not any(each.is_dir() and each.name.isdigit() for each in path.iterdir()):
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
    """Call the function: it returns a model and example inputs, a batch of each."""
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
    given = _arrays(source, example, _argument_names(network, is_keras))
    if not given:
        raise CheckpointError(f"{source} returned no example inputs. Return a batch of each.")
    ports = tuple(
        SourceTensor(name, str(array.dtype), array.shape) for name, array in given.items()
    )
    for port in ports:
        check_name(source, port.name, "input")
    path = Path(spec.origin)
    return ModelSource(
        *("function", path, "tensorflow" if is_keras else "torch"), ports, source, example=given
    )


def _argument_names(network: Any, is_keras: bool) -> list[str]:
    if is_keras:
        return [each.name for each in getattr(network, "inputs", None) or ()]
    return list(inspect.signature(network.forward).parameters)


def _arrays(source: str, example: Any, names: Sequence[str]) -> Arrays:
    """Return example inputs, a tensor, a sequence or a dict of them, as arrays by name."""
    if not isinstance(example, Mapping):
        values = example if isinstance(example, (list, tuple)) else [example]
        several = [each for each in names if each not in ("args", "kwargs")]
        example = {
            several[place] if place < len(several) else f"input_{place}": value
            for place, value in enumerate(values)
        }
    found = {}
    for name, value in example.items():
        array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
        if array.dtype.kind not in "fiub":
            raise CheckpointError(f"{source}: the example of '{name}' is not numeric")
        found[str(name)] = array
    in_order = [name for name in names if name in found]
    return {name: found[name] for name in (in_order if len(in_order) == len(found) else found)}
