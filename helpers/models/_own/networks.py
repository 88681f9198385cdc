"""Networks of PyTorch and Keras: from a TorchScript file, an exported program, a `.keras` file, or
a function of the user's.

What a network returns, be it a tensor, a dict or a nest of them, becomes a tuple in its order.
"""

import importlib
import inspect
import os
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import Parameter, Signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from helpers.errors import CheckpointError
from helpers.models import Network, Tensor
from helpers.models._keras import keras
from helpers.models._own import Own

if TYPE_CHECKING:
    import torch


def load_torchscript(
    own: Own, path: Path, inputs: Sequence[Tensor], outputs: Sequence[Tensor]
) -> Network:
    """Load a TorchScript file."""
    return fitted(own, read_torchscript(path), inputs, outputs)


def read_torchscript(path: Path) -> "torch.jit.ScriptModule":
    """Read a TorchScript file; raise CheckpointError if it is none."""
    import torch

    fault = "no TorchScript file that PyTorch reads (a state dict has no network)"
    with _explained(path, fault), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch deprecates TorchScript
        module = torch.jit.load(str(path), map_location="cpu")
    return cast("torch.jit.ScriptModule", module.eval())


def load_exported(
    own: Own, path: Path, inputs: Sequence[Tensor], outputs: Sequence[Tensor]
) -> Network:
    """Load an exported program."""
    return fitted(own, read_exported(path).module(check_guards=False), inputs, outputs)


def read_exported(path: Path) -> "torch.export.ExportedProgram":
    """Read a `.pt2` file; raise CheckpointError if it is none."""
    import torch

    with _explained(path, "no exported program that PyTorch reads"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.export.load(str(path))


def load_keras(
    own: Own, path: Path, inputs: Sequence[Tensor], outputs: Sequence[Tensor]
) -> Network:
    """Load a `.keras` file."""
    return named(read_keras(path), inputs, own.SCALARS)


def read_keras(path: Path) -> Network:
    """Read a `.keras` file without running Python code that it holds; raise CheckpointError if it
    is none or has such code.
    """
    with _explained(path, "no Keras model that can be read"):
        return keras().models.load_model(path, compile=False)


def load_function(
    own: Own, path: Path, inputs: Sequence[Tensor], outputs: Sequence[Tensor]
) -> Network:
    """Call the function that builds the network; `path` is the file of its module."""
    network, _ = call(own.FUNCTION, path)
    if own.FRAMEWORK == "torch":
        return fitted(own, network.eval(), inputs, outputs)
    return named(network, inputs, own.SCALARS)


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


def fitted(
    own: Own, network: "torch.nn.Module", inputs: Sequence[Tensor], outputs: Sequence[Tensor]
) -> "torch.nn.Module":
    """Have a module take the inputs in order and return a tuple, unless it is plain already.

    Without a batch, the first dimension of what goes in and out is taken away and put back.
    """
    import torch

    if own.IS_PLAIN and own.HAS_BATCH:
        return network
    names = [each.name for each in inputs] if own.SOURCE == "function" else []
    by_name = names and set(names) <= set(inspect.signature(network.forward).parameters)

    class Adapted(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.network, self.training = network, False

        def train(self, mode: bool = True) -> "Adapted":
            return self  # the module of an exported program refuses to be told

        def answer(self, *arguments: torch.Tensor) -> Any:
            given = tuple(
                each.squeeze(1) if tensor.name in own.SCALARS else each
                for tensor, each in zip(inputs, arguments, strict=True)
            )
            given = given if own.HAS_BATCH else tuple(each.squeeze(0) for each in given)
            if by_name:
                return self.network(**dict(zip(names, given, strict=True)))
            return self.network(*given)

        def forward(self, *arguments: torch.Tensor) -> tuple[torch.Tensor, ...]:
            results = flat(self.answer(*arguments))
            results = results if own.HAS_BATCH else tuple(each.unsqueeze(0) for each in results)
            return tuple(each if each.dim() > 1 else each.unsqueeze(1) for each in results)

    given = [Parameter(each.name, Parameter.POSITIONAL_OR_KEYWORD) for each in inputs]
    own_self = Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)
    Adapted.forward.__signature__ = Signature([own_self, *given])  # type: ignore[attr-defined]
    return Adapted()


def flat(results: object) -> tuple[Network, ...]:
    """Give the tensors of a nest of them, in order."""
    return tuple(tensor for _, tensor in flat_names(results, ""))


def flat_names(results: object, name: str) -> list[tuple[str, object]]:
    """Give the tensors of a nest with names: the keys and places that lead to them."""
    if isinstance(results, Mapping):
        parts = [(str(key), value) for key, value in results.items()]
    elif isinstance(results, (list, tuple)):
        parts = [(str(place), value) for place, value in enumerate(results)]
    else:
        return [(name or "output", results)] if results is not None else []
    prefix = f"{name}_" if name else "" if isinstance(results, Mapping) else "output_"
    return [each for key, value in parts for each in flat_names(value, f"{prefix}{key}")]


def named(network: Network, inputs: Sequence[Tensor], scalars: Sequence[str]) -> Network:
    """Have a Keras model take a dict of tensors by the names of the inputs, and return a list."""
    own = keras()
    given = {each.name: own.Input(each.shape, dtype=each.dtype, name=each.name) for each in inputs}
    takes = getattr(network, "input", None) if getattr(network, "built", True) else None
    ops = own.ops
    given_to = {
        name: ops.squeeze(each, 1) if name in scalars else each for name, each in given.items()
    }
    tensors = list(given_to.values())
    if isinstance(takes, Mapping) or isinstance(getattr(network, "_inputs_struct", None), dict):
        results = network(given_to, training=False)
    else:
        results = network(tensors[0] if len(tensors) == 1 else tensors, training=False)
    lifted = [each if len(each.shape) > 1 else ops.expand_dims(each, 1) for each in flat(results)]
    return own.Model(given, lifted)
