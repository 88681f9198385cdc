"""Networks of PyTorch and Keras: from a TorchScript file, an exported program, a `.keras` file, or
a function of the user's.

What a network returns, be it a tensor, a dict or a nest of them, is walked once: a tensor and its
name come from the same place.
"""

import importlib
import inspect
import os
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import Parameter, Signature
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

    fault = "no TorchScript file that PyTorch reads (a state dict has no network)"
    with _explained(path, fault), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch deprecates TorchScript
        module = torch.jit.load(str(path), map_location="cpu")
    return cast("torch.jit.ScriptModule", module.eval())


def read_exported(path: Path) -> "torch.export.ExportedProgram":
    """Read a `.pt2` file; raise CheckpointError if it is none."""
    import torch

    with _explained(path, "no exported program that PyTorch reads"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.export.load(str(path))


def read_keras(path: Path) -> Network:
    """Read a `.keras` file without running Python code that it holds; raise CheckpointError if it
    is none or has such code.
    """
    with _explained(path, "no Keras model that can be read"):
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
    with _explained(function, "not imported"):
        found = getattr(importlib.import_module(module), name)
    with _explained(function, "no function that builds a model"):
        made = found()
    if not isinstance(made, tuple) or len(made) != 2:
        raise CheckpointError(f"{function} returns no pair: return a model and example inputs")
    network, example = made
    return network, example


@contextmanager
def _explained(place: object, fault: str) -> Iterator[None]:
    """Turn any error of reading a model into one line."""
    try:
        yield
    except FileNotFoundError as error:
        raise CheckpointError(f"{place}: there is no such file ({error.filename})") from None
    except Exception as error:  # readers, and the user's own code, raise anything
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise CheckpointError(f"{place} is {fault}: {reason}") from None


def source(own: Own, path: Path) -> Source:
    """Load a file, or call the function whose module is at `path`."""
    return Torch(own, path) if own.FRAMEWORK == "torch" else Keras(own, path)


class Torch(Source):
    """A module of PyTorch: from a function, a TorchScript file or an exported program."""

    spec: Any = None  # of an exported program: how its tensors become its arguments

    def __init__(self, own: Own, path: Path) -> None:
        super().__init__(own, path)
        if own.SOURCE == "exported":
            program = read_exported(path)
            self.network = program.module(check_guards=False)
            self.names = list(map(str, program.graph_signature.user_inputs))
            self.spec = program.call_spec.in_spec
        elif own.SOURCE == "torchscript":
            self.network = read_torchscript(path)
            self.names = [each.name for each in self.network.forward.schema.arguments][1:]
        else:
            self.network = call(own.FUNCTION, path)[0].eval()
            self.names = list(inspect.signature(self.network.forward).parameters)

    def arguments(self, given: Mapping[str, Any]) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """Give the arguments, and those by name, that the tensors `given` become: in order, if the
        module does not tell its names.
        """
        from torch.utils._pytree import tree_unflatten

        if self.spec:
            found: tuple[Any, Any] = tree_unflatten([given[each] for each in self.names], self.spec)
            return found
        is_in_order = [*given] == self.names[: len(given)] or not set(given) <= set(self.names)
        return ([*given.values()], {}) if is_in_order else ((), given)

    def called(self, network: "torch.nn.Module", given: Mapping[str, Any]) -> Any:
        arguments, keywords = self.arguments(given)
        return network(*arguments, **keywords)

    def ask(self, inputs: Arrays) -> Arrays:
        import torch

        with torch.inference_mode():
            given = {name: torch.from_numpy(array) for name, array in inputs.items()}
            results = by_name(self.called(self.network, given))
        return {name: tensor.numpy() for name, tensor in results.items()}

    def is_plain(self, inputs: Arrays) -> bool:
        """Tell whether the module takes the inputs in order and returns one tensor, of two
        dimensions at least.
        """
        import torch

        order, keywords = self.arguments({name: name for name in inputs})
        if keywords or [*order] != [*inputs]:
            return False
        with torch.inference_mode():
            result = self.network(*map(torch.from_numpy, inputs.values()))
        return isinstance(result, torch.Tensor) and result.dim() > 1

    def build(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> "torch.nn.Module":
        """Have the module take the inputs in order and return a tuple, unless it is plain already.

        Without a batch, the first dimension of what goes in and out is taken away and put back.
        """
        import torch

        source, own = self, self.own
        if own.IS_PLAIN and own.HAS_BATCH:
            return self.network

        class Adapted(torch.nn.Module):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.network, self.training = source.network, False

            def train(self, mode: bool = True) -> "Adapted":
                return self  # the module of an exported program refuses to be told

            def forward(self, *arguments: torch.Tensor) -> tuple[torch.Tensor, ...]:
                given = {
                    tensor.name: each.squeeze(1) if tensor.name in own.SCALARS else each
                    for tensor, each in zip(inputs, arguments, strict=True)
                }
                if not own.HAS_BATCH:
                    given = {name: each.squeeze(0) for name, each in given.items()}
                found = by_name(source.called(self.network, given))
                results = source.chosen(found, [each.name for each in outputs]).values()
                results = results if own.HAS_BATCH else [each.unsqueeze(0) for each in results]
                return tuple(each if each.dim() > 1 else each.unsqueeze(1) for each in results)

        given = [Parameter(each.name, Parameter.POSITIONAL_OR_KEYWORD) for each in inputs]
        own_self = Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)
        Adapted.forward.__signature__ = Signature([own_self, *given])  # type: ignore[attr-defined]
        return Adapted()


class Keras(Source):
    """A Keras model: from a `.keras` file or a function."""

    def __init__(self, own: Own, path: Path) -> None:
        super().__init__(own, path)
        if own.SOURCE == "keras":
            self.network, example = read_keras(path), None
        else:
            self.network, example = call(own.FUNCTION, path)
        self.variables = self.network.variables
        self._takes_dict = isinstance(example, Mapping)

    def called(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Call the model by the names of its inputs, in whatever nest it takes them."""
        struct = getattr(self.network, "_inputs_struct", None)
        if struct is not None:
            taken = keras().tree.map_structure(lambda each: given[each.name], struct)
        elif self._takes_dict:
            taken = given
        else:
            taken = [*given.values()] if len(given) > 1 else next(iter(given.values()))
        results = self.network(taken, training=False)
        return by_name(results, getattr(self.network, "output_names", ()))

    def ask(self, inputs: Arrays) -> Arrays:
        return {name: np.asarray(each) for name, each in self.called(inputs).items()}

    def build(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Network:
        """Have the model take a dict of tensors by the names of the inputs, and return a list."""
        own, ops = keras(), keras().ops
        given = {
            each.name: own.Input(each.shape, dtype=each.dtype, name=each.name) for each in inputs
        }
        found = self.called(
            {
                name: ops.squeeze(each, 1) if name in self.own.SCALARS else each
                for name, each in given.items()
            }
        )
        results = self.chosen(found, [each.name for each in outputs]).values()
        return own.Model(
            given, [each if len(each.shape) > 1 else ops.expand_dims(each, 1) for each in results]
        )


def by_name(results: object, names: Sequence[str] = ()) -> dict[str, Any]:
    """Give the tensors of a nest by name: keys and places that lead to them, or the model's own
    `names` if it has no keys. Raises CheckpointError if two tensors have one name.
    """
    pairs = named(results, "")
    if len(set(names)) == len(pairs) and not has_keys(results):
        return dict(zip(names, (tensor for _, tensor in pairs), strict=True))
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(name for name, count in Counter(n for n, _ in pairs).items() if count > 1)
        raise CheckpointError(f"two outputs have the name '{twice}': return them by other keys")
    return found


def has_keys(results: object) -> bool:
    """Tell whether there is a dict in a nest."""
    if isinstance(results, (list, tuple)):
        return any(map(has_keys, results))
    return isinstance(results, Mapping)


def named(results: object, name: str) -> list[tuple[str, Any]]:
    """List the tensors of a nest with names: the keys and places that lead to them."""
    if isinstance(results, Mapping):
        parts = [(str(key), value) for key, value in results.items()]
    elif isinstance(results, (list, tuple)):
        parts = [(str(place), value) for place, value in enumerate(results)]
    else:
        return [(name or "output", results)] if results is not None else []
    prefix = f"{name}_" if name else "" if isinstance(results, Mapping) else "output_"
    return [each for key, value in parts for each in named(value, f"{prefix}{key}")]
