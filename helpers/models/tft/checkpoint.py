"""TFT checkpoints on disk, and their classes that are not needed."""

from pathlib import Path

from torch import nn

from helpers.models._torch import state_dict

# NVIDIA's file also has its parsed arguments and its configuration. They are objects of the
# training code, with enumerations, named tuples, and objects of numpy or scikit-learn.
INERT = (
    *("configuration", "data_utils", "argparse", "enum", "collections"),
    *("numpy", "numpy.core.multiarray", "numpy._core.multiarray"),
    *("sklearn.preprocessing", "sklearn.preprocessing._data", "sklearn.preprocessing._label"),
)


def load(path: Path, network: nn.Module) -> None:
    """Copy the tensors of the file `path` into `network`.

    The file is NVIDIA's `checkpoint.pt`, a dict of "args", "config" and "model", or a state dict
    alone. Raises CheckpointError.
    """
    tensors = state_dict.unwrap(state_dict.read(path, INERT), path)
    state_dict.place(tensors, network, path, "the Temporal Fusion Transformer")
