"""Networks of PyTorch and Keras: from a TorchScript file, an exported program, a `.keras` file, or
a function of the user's.

A network may return a tensor, a dict or a nested structure. One walk over it yields each tensor
with its name.
"""

import importlib
import inspect
import os
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from inspect import Parameter, Signature
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from helpers.errors import CheckpointError
from helpers.models import Arrays, Network, Tensor
from helpers.models._keras import keras
from helpers.models._own import Own
from helpers.models._own.source import Source

if TYPE_CHECKING:
    import torch


def read_torchscript(path: Path) -> "torch.jit.ScriptModule":
    """Read a TorchScript file; raise CheckpointError if it is none."""
    import torch

    fault = "is not a TorchScript file that PyTorch can read (a state dict has no network)"
    with explained(path, fault), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch deprecates TorchScript
        module = torch.jit.load(str(path), map_location="cpu")
    return cast("torch.jit.ScriptModule", module.eval())


def read_exported(path: Path) -> "torch.export.ExportedProgram":
    """Read a `.pt2` file; raise CheckpointError if it is none."""
    import torch

    fault = "is not an exported program that PyTorch can read"
    with explained(path, fault), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.export.load(str(path))


def read_keras(path: Path) -> Network:
    """Read a `.keras` file without running Python code that it holds; raise CheckpointError if it
    is none or has such code.
    """
    with explained(path, "is not a readable Keras model"):
        return keras().models.load_model(path, compile=False)


def call(function: str, path: Path | None = None) -> tuple[Network, object]:
    """Import "module:function", whose file is `path`, and call it: a network and example inputs.

    Raises CheckpointError if there is none, it fails, or it returns something else.
    """
    module, _, name = function.partition(":")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    if path is not None:
        folder = str(path.resolve().parents[module.count(".") + (path.name == "__init__.py")])
        if folder not in sys.path:
            sys.path.insert(0, folder)
    with explained(function, "cannot be imported"):
        factory = getattr(importlib.import_module(module), name)
    with explained(function, "failed"):
        result = factory()
    if not isinstance(result, tuple) or len(result) != 2:
        raise CheckpointError(
            f"{function} does not return a pair. Return a model and example inputs."
        )
    network, example = result
    return network, example


@contextmanager
def explained(origin: object, fault: str) -> Iterator[None]:
    """Turn any error of reading a model into a CheckpointError of one line."""
    try:
        yield
    except FileNotFoundError as error:
        raise CheckpointError(f"{origin}: no such file ({error.filename})") from None
    except Exception as error:  # readers, and the user's own code, raise anything
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise CheckpointError(f"{origin} {fault}: {reason}") from None


def source(user_model: Own, path: Path) -> Source:
    """Load a file, or call the function whose module is at `path`."""
    return Torch(user_model, path) if user_model.FRAMEWORK == "torch" else Keras(user_model, path)


class Torch(Source):
    """A module of PyTorch: from a function, a TorchScript file or an exported program."""

    spec: Any = None  # of an exported program: how its tensors become its arguments

    def __init__(self, user_model: Own, path: Path) -> None:
        super().__init__(user_model, path)
        if user_model.description.source == "exported":
            program = read_exported(path)
            self.network = program.module(check_guards=False)
            self.names = list(map(str, program.graph_signature.user_inputs))
            self.spec = program.call_spec.in_spec
        elif user_model.description.source == "torchscript":
            self.network = read_torchscript(path)
            self.names = [argument.name for argument in self.network.forward.schema.arguments][1:]
        else:
            self.network = call(user_model.description.function, path)[0].eval()
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
            return {name: value.numpy() for name, value in self.called(self.network, feed).items()}

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
        is_file = user_model.description.source == "keras"
        self.network, example = (
            (read_keras(path), 0) if is_file else call(user_model.description.function, path)
        )
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
    if len(set(names)) != len(paths) or any(isinstance(key, str) for key in chain(*paths)):
        full = [path if isinstance((*path, 0)[0], str) else ("output", *path) for path in paths]
        names = ["_".join(map(str, path)) for path in full]
    if len(set(names)) < len(paths):
        fault = f"Two of the outputs {', '.join(names)} have the same name"
        raise CheckpointError(f"{fault}. Return them under different keys.")
    return dict(zip(names, tensors, strict=True))


def _walked(results: object) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Yield the tensors of a nested structure, each after the path of keys and indices to it."""
    if isinstance(results, Mapping):
        parts: list[tuple[str | int, object]] = [(str(key), part) for key, part in results.items()]
    elif isinstance(results, (list, tuple)):
        parts = list(enumerate(results))
    else:
        parts = []
        if results is not None:
            yield (), results
    yield from (((key, *path), tensor) for key, part in parts for path, tensor in _walked(part))
