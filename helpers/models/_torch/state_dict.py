"""Reading a PyTorch checkpoint without running its code, and loading its tensors."""

import pickletools
import re
import warnings
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from helpers.errors import CheckpointError, one_line
from helpers.models._tensors import check


class Stub:
    """Stands for an object of the training code: takes anything and does nothing."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __setstate__(self, _: Any) -> None: ...

    def __hash__(self) -> int:
        return id(self)


def read(path: Path, inert: Collection[str] = ()) -> Any:
    """Read a file of torch.save with PyTorch's restricted unpickler.

    Classes of the modules named in `inert` become `Stub`. Raises CheckpointError if the file
    cannot be read or names anything else that is not a tensor.
    """
    if not path.is_file():
        raise CheckpointError(f"{path} is not a file. Use a checkpoint saved by torch.save.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a pickle protocol that the next lines judge
            names = torch.serialization.get_unsafe_globals_in_checkpoint(path) if inert else []
            stubs = [(Stub, name) for name in names if name.rpartition(".")[0] in inert]
            with torch.serialization.safe_globals(stubs):
                return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged bytes can fail in any way inside the unpickler
        reason = one_line(error).split("WeightsUnpickler error: ")[-1]
        named = re.search(r"GLOBAL ([\w.]+)", reason)
        text = f"is not a whole PyTorch checkpoint: {reason[:120] or 'no content'}"
        if tried := named[1] if named else _imported(path):
            text = f"was rejected, because it tries to run {tried}. Save only its state dict."
        raise CheckpointError(f"{path} {text}") from None


def _imported(path: Path) -> str | None:
    """Return the first import of a pickle whose protocol torch.load does not read."""
    strings: list[str] = []
    with suppress(Exception), path.open("rb") as file:  # other bytes are no pickle, and end here
        for opcode, argument, _ in pickletools.genops(file):
            if opcode.name == "GLOBAL":
                return str(argument).replace(" ", ".")
            if opcode.name == "STACK_GLOBAL":
                return ".".join(strings[-2:])
            if isinstance(argument, str):
                strings.append(argument)
    return None


def unwrap(content: Any, path: Path) -> dict[str, Tensor]:
    """Extract the state dict of a checkpoint: the content itself, or its "state_dict" or "model".

    A leading `module.` is cut from its names. Raises CheckpointError if there is none.
    """
    for key in ("state_dict", "model"):
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
            break
    no_dict = f"{path} has no state dict"
    if not isinstance(content, Mapping) or not content:
        raise CheckpointError(f"{no_dict}, neither alone nor as 'state_dict' or 'model'")
    for name, value in content.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise CheckpointError(f"{no_dict}: {name!r} is a {type(value).__name__}")
    return rename(content, r"^module\.", "", path)


def rename(
    tensors: Mapping[str, Tensor], pattern: str, replacement: Any, path: Path
) -> dict[str, Tensor]:
    """Rename by `re.sub`; raise CheckpointError if two tensors get one name."""
    renamed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        plain = re.sub(pattern, replacement, name)
        if plain in renamed:
            raise CheckpointError(f"{path} has {plain} twice, the second time as {name}")
        renamed[plain] = tensor
    return renamed


def place(
    tensors: Mapping[str, Tensor], network: nn.Module, path: Path, title: str, optional: str = ""
) -> None:
    """Copy the tensors into `network`; those whose name ends in `optional` may be missing.

    Raises CheckpointError naming tensors that are missing, surplus or misshapen.
    """
    state = network.state_dict()
    if optional:
        tensors = {n: t for n, t in state.items() if n.endswith(optional)} | dict(tensors)
    actual, expected = ({name: _shape(t) for name, t in held.items()} for held in (tensors, state))
    check(path, title, actual, expected)
    network.load_state_dict(tensors)


def save(network: nn.Module, path: Path) -> None:
    """Write the network's state dict to `path`."""
    torch.save({name: t.contiguous() for name, t in network.state_dict().items()}, path)


def _shape(tensor: Tensor) -> str:
    """Write a shape, and a type that is not of floating point."""
    kind = "" if tensor.is_floating_point() else f" {tensor.dtype}".replace("torch.", "")
    return f"{list(tensor.shape)}{kind}"
