"""Wide & Deep checkpoints on disk: the object graph that NVIDIA's training saves.

NVIDIA saves `tf.train.Checkpoint(model=...)` of Keras 2's `WideDeepModel`, whose two halves are
functional models. The names of the variables follow from that: `model`, the half (`linear_model` or
`dnn_model`), the index of the layer among those with weights, and the weight. The lookup layer is
the first of either half and has `<feature>/embedding_weights` for each table. The linear one also
has `numeric/embedding_weights`, a row for each number sorted by name, and `bias`. The dense layers
follow. NVIDIA publishes no checkpoint, so these names are those of tf-keras 2.19, which saved such
a model. It also restored a checkpoint of `save`, and computed the same.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from helpers.errors import CheckpointError
from helpers.models._keras import checkpoint, tensorflow

if TYPE_CHECKING:
    from keras import Model, Variable

LINEAR, DEEP = (f"model/{half}_model/layer_with_weights" for half in ("linear", "dnn"))


def variables(network: "Model") -> dict[str, "Variable"]:
    """Return each variable of the network under its name in a checkpoint."""
    wide, columns = network.get_layer("wide"), network.get_layer("columns")
    named: dict[str, Variable] = {}
    for half, tables in ((LINEAR, wide.tables | {"numeric": wide.numeric}), (DEEP, columns.tables)):
        named |= {f"{half}-0/{name}.Sembedding_weights": table for name, table in tables.items()}
    named[f"{LINEAR}-0/bias"] = wide.bias
    for layer in network.layers:
        name, _, number = layer.name.partition("_")
        if name == "dense":
            named |= {f"{DEEP}-{number}/{weight.name}": weight for weight in layer.weights}
    return named


def load(path: Path, network: "Model") -> None:
    """Copy the checkpoint's variables into `network`.

    `path` is NVIDIA's folder `checkpoint`, the one above it, or a checkpoint's prefix or index.
    Raises CheckpointError.
    """
    checkpoint.load(_prefix(path), "Wide & Deep", variables(network))


def save(network: "Model", path: Path) -> None:
    """Write the network's variables into the new folder `path`."""
    saved = checkpoint.objects(variables(network))
    tensorflow().train.CheckpointManager(saved, str(path), max_to_keep=1).save()


def _prefix(path: Path) -> Path:
    """Find the checkpoint that `path` means: a folder's latest one, a prefix or an index."""
    if path.suffix == ".index" and path.is_file():
        return path.with_suffix("")
    if path.with_name(f"{path.name}.index").is_file():
        return path
    folder = path / "checkpoint" if (path / "checkpoint").is_dir() else path
    if latest := tensorflow().train.latest_checkpoint(str(folder)):
        return Path(latest)
    indices = sorted(path.rglob("*.index"))
    if len(indices) == 1:
        return indices[0].with_suffix("")
    fault = "is not a TensorFlow checkpoint. Use its folder or its prefix."
    if indices:
        fault = f"has {len(indices)} checkpoints. Use the prefix of one of them."
    raise CheckpointError(f"{path} {fault}")
