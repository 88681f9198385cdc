"""Read what a source declares without running it: its kind, and its tensors where it names them."""

import importlib.util
import inspect
import os
import re
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from helpers.errors import CheckpointError, ParameterError
from helpers.machine import require
from helpers.models import Arrays
from helpers.models._own import Kind, TensorSpec, graph, huggingface, networks
from helpers.pipeline.own import fitted
from helpers.store import free_memory

COPIES = 4  # of the weights in a stage's memory: read, built, exported, loaded by a runtime
FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
TENSOR_NAME = re.compile(r"[\w./:,\[\]-]+", re.ASCII)
NOUNS: dict[Kind, str] = {
    "onnx": "an ONNX file",
    "savedmodel": "a SavedModel",
    "keras": "a Keras file",
    "torchscript": "a TorchScript file",
    "exported": "a program that torch.export wrote",
    "function": "a function that builds it",
    "huggingface": "a Hugging Face model",
    "repository": "a Triton repository",
}
HUB = "hf:"  # before a folder that transformers wrote
FOLDERS: dict[str, Kind] = {  # by a file in them
    "config.json": "huggingface",
    "saved_model.pb": "savedmodel",
    "config.pbtxt": "repository",
}
MEANINGS = {
    "input_ids": "the ids of the tokens",
    "attention_mask": "1 for a token, 0 for padding",
    "token_type_ids": "the segment of each token",
    "pixel_values": "normalized pixels, channels first",
}
CONVERTED = "model.onnx"
FITTED = (".joblib", ".pkl")  # files of scikit-learn, which become ONNX
SUFFIXES: dict[str, Kind] = {".onnx": "onnx", ".keras": "keras", ".pt2": "exported"}
SUFFIXES |= dict.fromkeys(FITTED, "onnx")
SUFFIXES |= dict.fromkeys((".pt", ".ts", ".jit", ".pth", ".torchscript"), "torchscript")
ZIPPED = ("keras", "torchscript", "exported")  # kinds whose files are ZIP archives


class ModelSource(NamedTuple):
    """The source of a model."""

    kind: Kind
    path: Path  # of its file or folder; of a function, the file of its module
    framework: Literal["onnxruntime", "torch", "tensorflow", "triton"]
    # Tensors with all dimensions, a batch too. Free ones have a name or an empty text. An empty
    # type: the source declares neither type nor shape.
    inputs: tuple[TensorSpec, ...]
    function: str = ""
    example: Arrays | None = None  # inputs of a batch, where the source has them
    backend: str = ""  # Triton's, for a model of a repository
    most: int = 0  # the largest batch, where the source declares it
    answers: tuple[TensorSpec, ...] = ()  # outputs, where only the source declares them
    classes: tuple[str, ...] = ()  # names of the first output's scores
    notes: Sequence[str] = ()  # for the user: what is not taken as it is


def _kind_of(source: str, path: Path) -> Kind:
    """Return the kind of a source by its files; raise ParameterError if it has none."""
    if source.startswith(HUB) and not (path / "config.json").is_file():
        name = source.removeprefix(HUB)
        how = f"hf download {name} --local-dir {path.name}"
        raise ParameterError(f"{name} is not a folder with a config.json. Download it: {how}")
    for file, kind in FOLDERS.items():
        if (path / file).is_file():
            return kind
    if not path.exists():
        if FUNCTION.fullmatch(source):
            return "function"
        raise ParameterError(f"--from {source}: no such file, folder or module:function")
    if path.is_file() and path.suffix.lower() in SUFFIXES:
        return SUFFIXES[path.suffix.lower()]
    raise ParameterError(
        f"Unsupported model source '{source}'. Use an .onnx, .keras, .pt2, .joblib or TorchScript "
        "file (.pt, .jit), the folder of a SavedModel, of a Hugging Face model (with its "
        "config.json) or of a model in a Triton repository (with its config.pbtxt), or "
        "module:function."
    )


def read(source: str, folder: Path | None = None) -> ModelSource:
    """Read the tensors that a source declares; a model that is converted first goes to `folder`.

    Raises ParameterError or CheckpointError if it is not a model, if Triton does not take a tensor,
    or if weights are missing or exceed the memory. Raises InstallationError if the framework that
    reads it cannot be imported.
    """
    path = Path(source.removeprefix(HUB)).expanduser()
    kind = _kind_of(source, path)
    if kind == "function":
        return _of_function(source)
    path = path.resolve()
    if kind in ZIPPED and not zipfile.is_zipfile(path):
        raise CheckpointError(f"{path} is not {NOUNS[kind]}, because it is not a ZIP archive")
    reader, packages = READERS[kind]
    require(*packages)
    if path.suffix.lower() in FITTED:
        assert folder
        fitted.convert(path, folder / CONVERTED)
        path = folder / CONVERTED
    require_memory(path, _bytes(path, kind))
    model_source = reader(path)
    for what, ports in (("input", model_source.inputs), ("output", model_source.answers)):
        for port in ports:
            check_name(path, port.name, what)
            if port.dtype:
                check_type(path, port.name, port.dtype, what)
    if not model_source.inputs:
        raise ParameterError(f"{path} has no inputs. Its outputs are constants.")
    return model_source


def check_name(path: object, name: str, what: str) -> None:
    """Raise ParameterError for the name of a tensor that Triton or its clients do not accept."""
    if not TENSOR_NAME.fullmatch(name):
        takes = "Rename it: Triton's clients accept letters, digits and _ . , / : - [ ]."
        raise ParameterError(f"{path} has the {what} name {name!r}. {takes}")


def check_type(path: object, name: str, dtype: str, what: str) -> None:
    """Raise ParameterError for a type that is not numeric, or that numpy does not have."""
    if dtype.lstrip("<>|=").startswith(("str", "object", "U", "S")):
        advice = "Use numeric inputs" if what == "input" else "Leave it out"
        raise ParameterError(f"The {what} '{name}' of {path} is text. {advice}.")
    if dtype not in np.sctypeDict or np.dtype(dtype).kind not in "fiub":
        fault = f"is {dtype}, which numpy does not have. Cast it to float32"
        raise ParameterError(f"The {what} '{name}' of {path} {fault}.")


def _bytes(path: Path, kind: Kind) -> int:
    """Count the bytes of a model's files, with the external weights of an ONNX file."""
    if path.is_dir():
        return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    size = path.stat().st_size
    if kind == "onnx":
        import onnx

        with suppress(Exception):  # the reader of the whole file reports it
            for tensor in onnx.load(path, load_external_data=False).graph.initializer:
                size += sum(int(e.value) for e in tensor.external_data if e.key == "length")
    return size


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

    model, left_out = graph.split_onnx(path)
    inputs, rows = [], graph.table_rows(model)
    for tensor in graph.feeds(model):
        kind = tensor.type.tensor_type.elem_type
        if not tensor.type.HasField("tensor_type") or not kind:
            fault = f"The input '{tensor.name}' of {path} is not a tensor"
            raise ParameterError(f"{fault}. Use numeric inputs.")
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind))
        check_type(path, tensor.name, str(dtype), "input")
        port = TensorSpec(tensor.name, str(dtype), (*graph.sizes(tensor),))
        if dtype.kind in "iu" and tensor.name in rows:
            port = replace(port, below=min(rows[tensor.name], int(np.iinfo(dtype).max)))
        inputs.append(port)
    if not model.graph.output:
        if not left_out:
            raise CheckpointError(f"{path} has no outputs. Export it again with them.")
        name, why = next(iter(left_out.items()))
        raise CheckpointError(f"{path} has no numeric output: '{name}' {why}. Use scores instead.")
    given = {value.name for value in model.graph.input} - {each.name for each in inputs}
    notes = [f"input {name}: keeps its default" for name in sorted(given) if model.ir_version > 3]
    notes += [f"output {name}: left out, because it {why}" for name, why in left_out.items()]
    return ModelSource("onnx", path, "onnxruntime", tuple(inputs), notes=notes)


def _of_savedmodel(path: Path) -> ModelSource:
    inputs = []
    for name, spec in graph.TensorFlow(path).inputs.items():
        if spec.shape.rank is None:
            raise ParameterError(f"The input '{name}' of {path} has no shape. Save it with one.")
        sizes = tuple(size or "" for size in spec.shape.as_list())
        inputs.append(TensorSpec(name, spec.dtype.name, sizes))
    return ModelSource("savedmodel", path, "tensorflow", tuple(inputs))


def _of_keras(path: Path) -> ModelSource:
    tensors = getattr(networks.read(path, "keras"), "inputs", None)
    if not tensors:
        raise CheckpointError(f"{path} declares no inputs. Build the model with keras.Input.")
    ports = [TensorSpec(t.name, str(t.dtype), tuple(n or "" for n in t.shape)) for t in tensors]
    return ModelSource("keras", path, "tensorflow", tuple(ports))


def _of_torchscript(path: Path) -> ModelSource:
    ports, notes = [], []
    for argument in networks.read(path, "torchscript").forward.schema.arguments[1:]:  # without self
        if str(argument.type) == "Tensor":
            ports.append(TensorSpec(argument.name, "", ()))
        elif argument.has_default_value():
            notes.append(f"input {argument.name}: keeps its default")
        else:
            raise ParameterError(
                f"The input '{argument.name}' of {path} is a {argument.type}. Wrap the model in a "
                "module that takes only tensors."
            )
    return ModelSource("torchscript", path, "torch", tuple(ports), notes=notes)


def _of_exported(path: Path) -> ModelSource:
    program = networks.read(path, "exported")
    held = {node.name: node.meta["val"] for node in program.graph.nodes if "val" in node.meta}
    ports = []
    for name in map(str, program.graph_signature.user_inputs):
        value = held.get(name)
        if value is None or not hasattr(value, "shape"):
            raise ParameterError(f"The input '{name}' of {path} is not a tensor. Remove it.")
        sizes = tuple(size if isinstance(size, int) else str(size) for size in value.shape)
        ports.append(TensorSpec(name, str(value.dtype).removeprefix("torch."), sizes))
    return ModelSource("exported", path, "torch", tuple(ports))


def _of_huggingface(path: Path) -> ModelSource:
    network = huggingface.read(path)
    example = huggingface.example(path, network)
    rows = {"input_ids": getattr(network.config, "vocab_size", 2)}
    rows["token_type_ids"] = getattr(network.config, "type_vocab_size", 2)
    ports = tuple(
        TensorSpec(
            name,
            str(array.dtype),
            ("", "tokens") if array.ndim == 2 else array.shape,
            *(0, rows.get(name, 2)),
            MEANINGS.get(name, ""),
        )
        for name, array in example.items()
    )
    notes = networks.without_cache(network)
    named = tuple(getattr(network.config, "id2label", {}).values())
    classes = named if any(not name.startswith("LABEL_") for name in named) else ()
    source = ModelSource("huggingface", path, "torch", ports, example=example)
    return source._replace(notes=notes, classes=classes)


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
    if message.HasField("sequence_batching"):
        raise ParameterError(f"{path} has a sequence batcher, whose requests have state. Use none.")
    if message.model_transaction_policy.decoupled:
        raise ParameterError(f"{path} is decoupled. Use a model with one response per request.")
    if message.HasField("ensemble_scheduling"):
        steps = ", ".join(step.model_name for step in message.ensemble_scheduling.step)
        raise ParameterError(f"{path} is an ensemble. Use --from for one of its models: {steps}.")
    if not any(entry.is_dir() and entry.name.isdigit() for entry in path.iterdir()):
        raise ParameterError(f"{path} has no version folder, such as 1")

    def port(tensor: Any) -> TensorSpec:
        kind = triton_to_np_dtype(pb.DataType.Name(tensor.data_type).removeprefix("TYPE_"))
        sizes = tuple(size if size > 0 else "" for size in tensor.dims)
        return TensorSpec(tensor.name, str(np.dtype(kind or object)), ("", *sizes))

    return ModelSource(
        *("repository", path, "triton"),
        inputs=tuple(map(port, message.input)),
        backend=backend_of(message),
        most=message.max_batch_size,
        answers=tuple(map(port, message.output)),
    )


def _of_function(source: str) -> ModelSource:
    """Call the function, which returns a model and a batch of example inputs."""
    sys.path.insert(0, os.getcwd())
    module = source.partition(":")[0]
    spec = None
    with networks.explained(source, "cannot be imported"), suppress(ImportError):
        spec = importlib.util.find_spec(module)
    if spec is None or not spec.origin or not Path(spec.origin).is_file():
        raise ParameterError(f"--from {source}: the module '{module}' was not found")
    network, example = networks.call(source, Path(spec.origin))
    modules = {base.__module__ for base in type(network).__mro__}
    is_keras = any(name.startswith("keras.") for name in modules)
    if not is_keras and "torch.nn.modules.module" not in modules:
        what = type(network).__name__
        raise CheckpointError(f"{source} returned a {what}. Return a PyTorch or Keras model.")
    if is_keras:
        names = [tensor.name for tensor in getattr(network, "inputs", None) or ()]
    else:
        names = list(inspect.signature(network.forward).parameters)
    ports, examples = [], _arrays(source, example, names)
    if not examples:
        raise CheckpointError(f"{source} returned no example inputs. Return a batch of each.")
    for name, array in examples.items():
        check_name(source, name, "input")
        is_whole = array.dtype.kind in "iu" and array.size
        limits = (int(array.min()), int(array.max()) + 1) if is_whole else ()
        ports.append(TensorSpec(name, str(array.dtype), array.shape, *limits))
    return ModelSource(
        *("function", Path(spec.origin), "tensorflow" if is_keras else "torch", tuple(ports)),
        function=source,
        example=examples,
        notes=() if is_keras else networks.without_cache(network),
    )


def _arrays(source: str, example: Any, names: Sequence[str]) -> Arrays:
    """Return example inputs (a tensor, a sequence or a dict of tensors) as arrays by name."""
    if not isinstance(example, Mapping):
        values = example if isinstance(example, (list, tuple)) else [example]
        parameters = [name for name in names if name not in ("args", "kwargs")]
        parameters += [f"input_{index}" for index in range(len(parameters), len(values))]
        example = dict(zip(parameters, values, strict=False))
    arrays = {}
    for name, value in example.items():
        if "bfloat16" in str(getattr(value, "dtype", "")):
            what = f"the example of '{name}' is bfloat16, which numpy does not have"
            raise CheckpointError(f"{source}: {what}. Call .float() on it and on the model.")
        array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
        if array.dtype.kind not in "fiub":
            raise CheckpointError(f"{source}: the example of '{name}' is not numeric")
        arrays[str(name)] = array
    in_order = [name for name in names if name in arrays]
    return {name: arrays[name] for name in (in_order if len(in_order) == len(arrays) else arrays)}


READERS: dict[Kind, tuple[Callable[[Path], ModelSource], tuple[str, ...]]] = {
    "onnx": (_of_onnx, ("onnxruntime", "openvino")),
    "savedmodel": (_of_savedmodel, ("tensorflow",)),
    "keras": (_of_keras, ("tensorflow",)),
    "torchscript": (_of_torchscript, ("torch",)),
    "exported": (_of_exported, ("torch",)),
    "huggingface": (_of_huggingface, ("torch", "transformers")),
    "repository": (_of_repository, ()),
}
