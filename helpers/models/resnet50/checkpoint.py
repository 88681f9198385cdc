"""What a ResNet50 checkpoint may look like on disk: its wrapping and its naming schemes."""

from pathlib import Path

from torch import nn

from helpers.models._torch import state_dict

OPTIONAL = ".num_batches_tracked"  # only training uses it; files of 2017 lack it


def load(path: Path, network: nn.Module) -> None:
    """Copy the tensors of the file `path` into `network`, every one accounted for.

    The file holds a state dict, bare or under "state_dict" or "model", its names with or without a
    leading `module.`. They are torchvision's and NVIDIA NGC's (`layer1.0.conv1.weight`) or those of
    NVIDIA's current code (`layers.0.0.conv1.weight`). Raises CheckpointError if the file cannot be
    read or would run code, or if a tensor is missing, surplus or misshapen.
    """
    tensors = state_dict.unwrap(state_dict.read(path), path)
    tensors = state_dict.rename(
        tensors, r"^layers\.([0-3])\.", lambda match: f"layer{int(match[1]) + 1}.", path
    )
    state_dict.place(tensors, network, path, "ResNet50", OPTIONAL)
