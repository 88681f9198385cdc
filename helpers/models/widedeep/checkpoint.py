"""What a Wide & Deep checkpoint is on disk: the object graph that NVIDIA's training saves.

NVIDIA saves `tf.train.Checkpoint(model=...)` of Keras 2's `WideDeepModel`, whose two halves are
functional models. The names of the variables follow from that: `model`, the half (`linear_model`
or `dnn_model`), the place of the layer among those with weights, and the weight. The layer that
looks ids up is the first of either half and has `<feature>/embedding_weights` for each table (`.S`
stands for a slash inside a name); the linear one also has `numeric/embedding_weights`, a row for
each number sorted by name, and `bias`. The dense layers follow. NVIDIA publishes
no checkpoint, so that these names are those which tf-keras 2.19 gave such a model when it saved it;
it also restored one that was written here, and computed the same.
"""

from pathlib import Path
from typing import Any

from helpers.errors import CheckpointError
from helpers.models import Network
from helpers.models._keras import Tensor, tensorflow
from helpers.models._tensors import check

VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
TABLE = ".Sembedding_weights"
SLOT = ".OPTIMIZER_SLOT"
# Beside the model, NVIDIA's training saves both optimizers and its step, and TensorFlow a counter.
TRAINING = ("deep_optimizer", "wide_optimizer", "optimizer", "current_step", "save_counter")
GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"  # TensorFlow's own table of contents


def variables(network: Network) -> dict[str, Tensor]:
    """Give each variable of the network under its name in a checkpoint, without the suffix."""
    wide, columns = network.get_layer("wide"), network.get_layer("columns")
    linear, deep = ("model/linear_model/layer_with_weights", "model/dnn_model/layer_with_weights")
    looked_up = {**wide.tables, "numeric": wide.numeric}
    found = {f"{linear}-0/{name}{TABLE}": table for name, table in looked_up.items()}
    found[f"{linear}-0/bias"] = wide.bias
    found |= {f"{deep}-0/{name}{TABLE}": table for name, table in columns.tables.items()}
    for layer in network.layers:
        if layer.name.startswith("dense_"):
            place = layer.name.removeprefix("dense_")
            found[f"{deep}-{place}/kernel"] = layer.kernel
            found[f"{deep}-{place}/bias"] = layer.bias
    return found


def load(path: Path, network: Network) -> None:
    """Copy the checkpoint's variables into `network`, every one accounted for.

    `path` is NVIDIA's folder `checkpoint`, the one above it, or a checkpoint's prefix or index.
    What only training needs is ignored. Raises CheckpointError if there is no checkpoint or it is
    damaged, and for each variable that is missing, surplus or misshapen.
    """
    prefix = _prefix(path)
    tf = tensorflow()
    try:
        reader = tf.train.load_checkpoint(str(prefix))
        shapes, types = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    except (tf.errors.OpError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{prefix} cannot be read: {_flat(error)}") from None
    own = variables(network)
    found = {
        name.removesuffix(VALUE): f"{types[name].name} {shapes[name]}"
        for name in sorted(shapes)
        if not _is_training(name)
    }
    expected = {name: f"float32 {list(variable.shape)}" for name, variable in own.items()}
    check(prefix, "Wide & Deep", found, expected)
    for name, variable in own.items():
        try:
            variable.assign(reader.get_tensor(f"{name}{VALUE}"))
        except (tf.errors.OpError, ValueError, RuntimeError, IndexError) as error:
            raise CheckpointError(f"{prefix} cannot be read at {name}: {_flat(error)}") from None


def save(network: Network, path: Path) -> None:
    """Write the network's variables into the new folder `path`."""
    tf = tensorflow()
    model: dict[str, Any] = {}
    for name, variable in variables(network).items():
        *parents, last = (part.replace(".S", "/") for part in name.split("/")[1:])
        place = model
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = variable.value
    checkpoint = tf.train.Checkpoint(model=model)
    tf.train.CheckpointManager(checkpoint, str(path), max_to_keep=1).save()


def _prefix(path: Path) -> Path:
    """Find the checkpoint that `path` means: a folder's latest one, a prefix or an index."""
    if path.suffix == ".index" and path.is_file():
        return path.with_suffix("")
    if path.is_dir():
        folder = path / "checkpoint" if (path / "checkpoint").is_dir() else path
        if latest := tensorflow().train.latest_checkpoint(str(folder)):
            return Path(latest)
        indices = sorted(path.rglob("*.index"))
        if len(indices) == 1:
            return indices[0].with_suffix("")
        if indices:
            text = f"{len(indices)} checkpoints and no file 'checkpoint' that names the latest"
            raise CheckpointError(f"{path} holds {text}")
    if path.with_name(f"{path.name}.index").is_file():
        return path
    raise CheckpointError(f"{path} is no TensorFlow checkpoint: give its folder or its prefix")


def _is_training(name: str) -> bool:
    return name == GRAPH or SLOT in name or name.split("/")[0] in TRAINING


def _flat(error: Exception) -> str:
    return " ".join(str(error).split())[:120]
