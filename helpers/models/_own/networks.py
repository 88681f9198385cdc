"""Networks of PyTorch and Keras: from a TorchScript file, an exported program, a `.keras` file, or
a function of the user's. Outputs may be nested: each tensor in them gets a name.
"""

import importlib
import inspect
import os
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import partial
from inspect import Parameter, Signature
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from helpers.errors import CheckpointError, one_line
from helpers.models import Arrays, Network, Tensor
from helpers.models._keras import keras
from helpers.models._own import Kind, Own
from helpers.models._own.source import Source

if TYPE_CHECKING:
    import torch

FAULTS: dict[Kind, str] = {
    "keras": "is not a readable Keras model",
    "torchscript": "is not a TorchScript file that PyTorch can read (a state dict has no network)",
    "exported": "is not an exported program that PyTorch can read",
}


def read(path: Path, kind: Kind) -> Network:
    """Read a file without running Python code that it holds. Raises CheckpointError if it is not of
    its kind, or has such code.
    """
    with explained(path, FAULTS[kind]), warnings.catch_warnings(action="ignore"):
        if kind == "keras":
            return keras().models.load_model(path, compile=False)
        import torch

        if kind == "exported":
            return torch.export.load(str(path))
        return torch.jit.load(str(path), map_location="cpu").eval()  # PyTorch deprecates it


def call(function: str, path: Path) -> tuple[Network, object]:
    """Import "module:function", whose file is `path`, and call it: a network and example inputs.

    Raises CheckpointError if there is none, it fails, or it returns something else.
    """
    module, _, name = function.partition(":")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    folder = str(path.resolve().parents[module.count(".") + (path.name == "__init__.py")])
    if folder not in sys.path:
        sys.path.insert(0, folder)
    with explained(function, "cannot be imported"):
        factory = getattr(importlib.import_module(module), name)
    with explained(function, "failed"):
        result = factory()
    if not isinstance(result, tuple) or len(result) != 2:
        fault = "does not return a pair. Return a model and example inputs."
        raise CheckpointError(f"{function} {fault}")
    return result


def without_cache(network: Network) -> list[str]:
    """Have a network of transformers return no cache of earlier tokens; return a note of that."""
    config: Any = getattr(network, "config", None)
    if not getattr(config, "use_cache", False):
        return []
    config.use_cache = False
    is_decoder = getattr(network, "can_generate", bool)()
    return ["use_cache: off, so each request is computed in full"] if is_decoder else []


@contextmanager
def explained(origin: object, fault: str) -> Iterator[None]:
    """Turn any error of reading a model into a CheckpointError of one line."""
    try:
        yield
    except FileNotFoundError as error:
        raise CheckpointError(f"{origin}: no such file ({error.filename})") from None
    except Exception as error:  # readers, and the user's own code, raise anything
        reason = f"{type(error).__name__}: {one_line(error, 200)}"
        raise CheckpointError(f"{origin} {fault}: {reason}") from None


class Torch(Source):
    """A module of PyTorch: from a function, a TorchScript file or an exported program."""

    spec: Any = None  # of an exported program: how its tensors become its arguments

    def __init__(self, user_model: Own, path: Path) -> None:
        super().__init__(user_model, path)
        kind, function = user_model.description.source, user_model.description.function
        if kind == "exported":
            program = read(path, "exported")
            self.network = program.module(check_guards=False)
            self.names = list(map(str, program.graph_signature.user_inputs))
            self.spec = program.call_spec.in_spec
        elif kind == "torchscript":
            self.network = read(path, "torchscript")
            self.names = [argument.name for argument in self.network.forward.schema.arguments][1:]
        else:
            from helpers.models._own import huggingface

            is_folder = kind == "huggingface"
            self.network = huggingface.read(path) if is_folder else call(function, path)[0].eval()
            without_cache(self.network)
            self.names = list(inspect.signature(self.network.forward).parameters)

    def arguments(self, inputs: Mapping[str, Any]) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """Return the positional and the keyword arguments of a call with `inputs`. They are
        positional if the module does not report their names.
        """
        from torch.utils._pytree import tree_unflatten

        if self.spec:
            args: tuple[Any, Any] = tree_unflatten([inputs[name] for name in self.names], self.spec)
            return args
        is_in_order = [*inputs] == self.names[: len(inputs)] or not set(inputs) <= set(self.names)
        return ([*inputs.values()], {}) if is_in_order else ((), inputs)

    def called(self, network: "torch.nn.Module", inputs: Mapping[str, Any]) -> dict[str, Any]:
        arguments, keywords = self.arguments(inputs)
        return by_name(network(*arguments, **keywords))

    def ask(self, inputs: Arrays) -> Arrays:
        import torch

        with torch.inference_mode():
            feed = {name: torch.from_numpy(array) for name, array in inputs.items()}
            outputs = self.called(self.network, feed)
        for name, value in outputs.items():
            if value.dtype == torch.bfloat16:
                what = f"The output '{name}' is bfloat16, which numpy does not have"
                raise CheckpointError(f"{what}. Call .float() on the model.")
        return {name: value.numpy() for name, value in outputs.items()}

    def is_plain(self, inputs: Arrays) -> bool:
        """Return whether it takes the inputs in order and returns one tensor of at least 2-D."""
        import torch

        order, keywords = self.arguments({name: name for name in inputs})
        if keywords or [*order] != [*inputs]:
            return False
        result = self.network(*map(torch.from_numpy, inputs.values()))
        return isinstance(result, torch.Tensor) and result.dim() > 1

    def build(self, inputs: Sequence[Tensor]) -> "torch.nn.Module":
        """Wrap the module to take the inputs in order and return a tuple, unless it is plain.

        Without a batch, it removes the first dimension of the inputs and adds it to the outputs.
        """
        import torch

        source, names = self, [tensor.name for tensor in inputs]
        if self.own.description.is_plain and self.own.description.has_batch:
            return self.network

        class Adapted(torch.nn.Module):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.network, self.training = source.network, False

            def train(self, mode: bool = True) -> "Adapted":
                return self  # an exported program's module raises if its mode is set

            def forward(self, *arguments: torch.Tensor) -> tuple[torch.Tensor, ...]:
                tensors = dict(zip(names, arguments, strict=True))
                return (*source.shaped(tensors, partial(source.called, self.network)).values(),)

        parameters = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in ("self", *names)]
        Adapted.forward.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        return Adapted()


class Keras(Source):
    """A Keras model: from a `.keras` file or a function."""

    def __init__(self, user_model: Own, path: Path) -> None:
        super().__init__(user_model, path)
        self._takes_dict = False
        if user_model.description.source == "keras":
            self.network = read(path, "keras")
        else:
            self.network, example = call(user_model.description.function, path)
            self._takes_dict = isinstance(example, Mapping)

    def called(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Call the model with its inputs by name, in the structure that it takes."""
        struct = getattr(self.network, "_inputs_struct", None)
        if struct is not None:
            taken = keras().tree.map_structure(lambda tensor: inputs[tensor.name], struct)
        elif self._takes_dict:
            taken = inputs
        else:
            taken = [*inputs.values()] if len(inputs) > 1 else next(iter(inputs.values()))
        results = self.network(taken, training=False)
        return by_name(results, getattr(self.network, "output_names", ()))

    def ask(self, inputs: Arrays) -> Arrays:
        return {name: np.asarray(output) for name, output in self.called(inputs).items()}

    def build(self, inputs: Sequence[Tensor]) -> Network:
        """Wrap the model to take a dict of tensors by the inputs' names, and return a list."""
        library = keras()
        tensors = {t.name: library.Input(t.shape, dtype=t.dtype, name=t.name) for t in inputs}
        return library.Model(tensors, [*self.shaped(tensors, self.called).values()])


def by_name(results: object, names: Sequence[str] = ()) -> dict[str, Any]:
    """Return the tensors of a nested structure by name: the path of keys and indices to each, or
    the model's own `names` if it has no keys. Raises CheckpointError if two tensors have one name.
    """
    paths, tensors = zip(*_walked(results), strict=True)
    for path, tensor in zip(paths, tensors, strict=True):
        if not hasattr(tensor, "shape"):
            what = f"'{_named(path)}' is not a tensor but of the type {type(tensor).__name__}"
            raise CheckpointError(f"The output {what}. Return tensors only.")
    if len(set(names)) != len(paths) or any(isinstance(key, str) for key in chain(*paths)):
        names = [*map(_named, paths)]
    if len(set(names)) < len(paths):
        fault = f"Two of the outputs {', '.join(names)} have the same name"
        raise CheckpointError(f"{fault}. Return them under different keys.")
    return dict(zip(names, tensors, strict=True))


def _walked(results: object) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Yield the tensors of a nested structure, each after the path of keys and indices to it."""
    if is_dataclass(results) and not isinstance(results, Mapping):
        results = {each.name: getattr(results, each.name) for each in fields(results)}
    if isinstance(results, Mapping):
        parts: Iterable[tuple[Any, object]] = ((str(key), part) for key, part in results.items())
    elif isinstance(results, (list, tuple)):
        parts = enumerate(results)
    else:
        parts = ()
        if results is not None:
            yield (), results
    yield from (((key, *path), tensor) for key, part in parts for path, tensor in _walked(part))


def _named(path: Sequence[str | int]) -> str:
    """Return the name of an output by the path of keys and indices to it."""
    return "_".join(map(str, path if isinstance((*path, 0)[0], str) else ("output", *path)))
