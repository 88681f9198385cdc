"""Weights of a Keras model in TensorFlow's checkpoint files, as NVIDIA's training saves them.

A weight's name is its path through the saved objects. A slash leads from an object to its
attribute, and `.S` stands for a slash inside a name.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from helpers.errors import CheckpointError, one_line
from helpers.models._keras import tensorflow
from helpers.models._tensors import check

if TYPE_CHECKING:
    from keras import Variable
    from tensorflow.train import Checkpoint

SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"  # of every variable's name in such a file
# Saved with the model: optimizers, the step, TensorFlow's counter and its own table of contents.
TRAINING = ("deep_optimizer", "wide_optimizer", "optimizer", "current_step", "save_counter")
GRAPH, SLOT = "_CHECKPOINTABLE_OBJECT_GRAPH", ".OPTIMIZER_SLOT"


def load(prefix: Path, title: str, weights: Mapping[str, "Variable"]) -> None:
    """Copy the tensors of the checkpoint `prefix` into the `weights` of the network `title`.

    Tensors that only training needs are ignored. Raises CheckpointError, also as `check`.
    """
    where = ""
    try:
        reader = tensorflow().train.load_checkpoint(str(prefix))
        types = reader.get_variable_to_dtype_map()
        stored = {
            name.removesuffix(SUFFIX): f"{types[name].name} {shape}"
            for name, shape in sorted(reader.get_variable_to_shape_map().items())
            if name.split("/")[0] not in (GRAPH, *TRAINING) and SLOT not in name
        }
        expected = {name: f"float32 {list(weight.shape)}" for name, weight in weights.items()}
        check(prefix, title, stored, expected)
        for name, weight in weights.items():
            where = f" at {name}"
            weight.assign(reader.get_tensor(f"{name}{SUFFIX}"))
    except CheckpointError:
        raise
    except Exception as error:  # damaged bytes can fail in any way inside the reader
        text = f"cannot be read{where}: {one_line(error, 200)}"
        raise CheckpointError(f"{prefix}.index and its data {text}") from None


def objects(weights: Mapping[str, "Variable"]) -> "Checkpoint":
    """Nest weights by their names into the object that TensorFlow saves."""
    root: dict[str, Any] = {}
    for name, weight in weights.items():
        *parents, last = (part.replace(".S", "/") for part in name.split("/"))
        node = root
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = weight.value
    return tensorflow().train.Checkpoint(**root)
