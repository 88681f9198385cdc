"""What a ResNet50 checkpoint may look like on disk: its wrapping and its naming schemes."""

import pickletools
import re
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from helpers.errors import CheckpointError

OPTIONAL = ".num_batches_tracked"  # only training uses it; files of 2017 lack it
SHOWN = 5  # tensors that an error names; it counts the others


def load(path: Path, network: nn.Module) -> None:
    """Copy the tensors of the file `path` into `network`, every one accounted for.

    The file holds a state dict, bare or under "state_dict" or "model", its names with or without a
    leading `module.`. They are torchvision's and NVIDIA NGC's (`layer1.0.conv1.weight`) or those of
    NVIDIA's current code (`layers.0.0.conv1.weight`). Raises CheckpointError if the file cannot be
    read or would run code, or if a tensor is missing, surplus or misshapen.
    """
    tensors = _renamed(_tensors(_read(path), path), path)
    own = network.state_dict()
    faults = [
        *(f"missing {name} {_shape(own[name])}" for name in own if _missing(name, tensors)),
        *(f"surplus {name} {_shape(tensors[name])}" for name in tensors if name not in own),
        *(
            f"{name} is {_shape(tensor)} and should be {_shape(own[name])}"
            for name, tensor in tensors.items()
            if name in own and not _alike(tensor, own[name])
        ),
    ]
    if faults:
        more = f"; and {len(faults) - SHOWN} more" if len(faults) > SHOWN else ""
        raise CheckpointError(f"{path} does not fit ResNet50: {'; '.join(faults[:SHOWN])}{more}")
    network.load_state_dict({**own, **tensors})


def _read(path: Path) -> Any:
    if not path.is_file():
        raise CheckpointError(f"{path} is not a file: give a checkpoint saved by torch.save")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a pickle protocol that the next lines judge
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged bytes can fail in any way inside the unpickler
        reason = " ".join(str(error).split()).split("WeightsUnpickler error: ")[-1]
        named = re.search(r"GLOBAL ([\w.]+)", reason)
        tried = named[1] if named else _imported(path)
        if tried:
            text = f"{path} was refused: it tries to run {tried}; save its state dict alone"
        else:
            text = f"{path} is not a whole PyTorch checkpoint: {reason[:120] or 'no content'}"
        raise CheckpointError(text) from None


def _imported(path: Path) -> str | None:
    """Name what a pickle of a protocol that torch.load does not read would import first."""
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


def _tensors(content: Any, path: Path) -> dict[str, Tensor]:
    """Take the state dict out of the dict that may wrap it."""
    for key in ("state_dict", "model"):
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
            break
    if not isinstance(content, Mapping) or not content:
        raise CheckpointError(
            f"{path} holds no state dict, neither bare nor as 'state_dict' or 'model'"
        )
    for name, value in content.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise CheckpointError(
                f"{path} holds no state dict: {name!r} is a {type(value).__name__}"
            )
    return dict(content)


def _renamed(tensors: Mapping[str, Tensor], path: Path) -> dict[str, Tensor]:
    """Give the tensors torchvision's names."""
    renamed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        plain = re.sub(r"^layers\.([0-3])\.", _layer, name.removeprefix("module."))
        if plain in renamed:
            raise CheckpointError(f"{path} holds {plain} twice, the second time as {name}")
        renamed[plain] = tensor
    return renamed


def _layer(match: re.Match[str]) -> str:
    return f"layer{int(match[1]) + 1}."


def _missing(name: str, tensors: Mapping[str, Tensor]) -> bool:
    return name not in tensors and not name.endswith(OPTIONAL)


def _alike(tensor: Tensor, own: Tensor) -> bool:
    alike = tensor.shape == own.shape and tensor.is_floating_point() == own.is_floating_point()
    return bool(alike)


def _shape(tensor: Tensor) -> str:
    kind = "" if tensor.is_floating_point() else f" {str(tensor.dtype).removeprefix('torch.')}"
    return f"{list(tensor.shape)}{kind}"
