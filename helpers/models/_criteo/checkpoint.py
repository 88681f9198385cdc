"""Checkpoints of DLRM and DCNv2 in NVIDIA's layout, of which every part must fit the network.

A folder: `dense/config.json`; `dense/dense.index` and its data, weights saved by TensorFlow;
`sparse/config.json`; `sparse/feature_<i>.npy`, float32 [rows, 128]. The weights' names are the
attributes of NVIDIA's Keras model in its public source, for want of a public checkpoint. Keras 2
names the weights of a model with these attributes so, and reads what `save` writes:
    bottom_mlp_layers/<0 to 2>/{kernel, bias}, top_mlp/<0 to 4>/{kernel, bias} and, in DCNv2,
    interact_op/cross_layers/<0 to 2>/{_dense_u/kernel, _dense_v/kernel, _dense_v/bias}
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from helpers.errors import CheckpointError
from helpers.models._criteo import network
from helpers.models._criteo.tables import CATEGORICAL, DIMENSION, NUMERICAL, OWN, sizes
from helpers.models._keras import tensorflow

NPY: Any = np.lib.format  # writes and reads the headers of .npy files
SHOWN = 5  # faults that an error names; it counts the others
SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"  # TensorFlow's own, of every variable in such a file
BOOKKEEPING = ("_CHECKPOINTABLE_OBJECT_GRAPH", f"save_counter{SUFFIX}")
# As NVIDIA's configuration has it; its own kernel computes what the second name does.
INTERACTIONS = {"dlrm": ("dot_tensorflow", "dot_custom_cuda"), "dcnv2": ("cross",)}
_DENSE_FILES = re.compile(r"config\.json|checkpoint|dense\.index|dense\.data-\d{5}-of-\d{5}")


def load(model: str, variant: str, path: Path) -> Any:
    """Build the dense network of "dlrm" or "dcnv2" with the weights of the checkpoint `path`.

    Raises CheckpointError naming what is missing, surplus, misshapen or unreadable, in the tables
    too, whose rows are not read.
    """
    tables(model, variant, path)
    made = network.network(model)
    own = {_place(layer, weight) + SUFFIX: weight for layer, weight in _weights(made)}
    found = _read(path / "dense")
    faults = [
        *(f"missing {_short(n)} {list(w.shape)}" for n, w in own.items() if n not in found),
        *(f"surplus {_short(n)} {list(a.shape)}" for n, a in found.items() if n not in own),
        *(
            f"{_short(name)} is {array.dtype} {list(array.shape)} and should be float32 "
            f"{list(own[name].shape)}"
            for name, array in found.items()
            if name in own and (array.dtype != np.float32 or array.shape != own[name].shape)
        ),
    ]
    _raise(path / "dense", faults)
    for name, weight in own.items():
        weight.assign(found[name])
    return made


def tables(model: str, variant: str, path: Path) -> "list[np.memmap[Any, Any]]":
    """Map the 26 tables of the checkpoint `path`, float32 [rows, 128] each; only headers are read.

    `variant` says how many rows they have; with a variant of `OWN` the checkpoint does. Raises
    CheckpointError unless both configurations and every table's file agree with it and with the
    network.
    """
    rows = _configured(model, variant, path)
    folder = path / "sparse"
    names = [f"feature_{place}.npy" for place in range(CATEGORICAL)]
    there = {file.name for file in folder.iterdir()} - {"config.json"}
    faults = [
        *(f"missing {name}" for name in names if name not in there),
        *(f"surplus {name}" for name in sorted(there.difference(names))),
    ]
    _raise(folder, faults)
    return [_table(folder / name, count) for name, count in zip(names, rows, strict=True)]


def save(model: str, dense: Any, rows: Iterable[int], path: Path) -> None:
    """Write all but the tables to the folder `path`: the weights of `dense`, and what tells of
    tables with `rows`.
    """
    common = {"categorical_cardinalities": list(rows), "embedding_dim": [DIMENSION] * CATEGORICAL}
    for name in ("dense", "sparse"):
        (path / name).mkdir(parents=True, exist_ok=True)
    # of the cross layers NVIDIA's code wants to be told in either case
    cross = {"num_cross_layers": None, "cross_layer_projection_dim": None}
    other = {"transpose": False, "batch_size": None}
    fields = {**cross, **_architecture(model), **common, **other}
    (path / "dense/config.json").write_text(json.dumps(fields, indent=4))
    # the fields beside the tables' sizes choose how NVIDIA's code holds them in memory
    loading = {
        "use_mde_embeddings": False,
        "column_slice_threshold": None,
        "embedding_zeros_initializer": True,
        "embedding_trainable": True,
        # true means one fused table, into which NVIDIA's training code cannot load a checkpoint
        "concat_embedding": False,
        "cpu_offloading_threshold_gb": 75,
    }
    (path / "sparse/config.json").write_text(json.dumps({**common, **loading}, indent=4))
    tf = tensorflow()
    tree: dict[str, Any] = {}
    for layer, weight in _weights(dense):
        *parents, last = _place(layer, weight).split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = tf.Variable(weight.numpy())
    _tracked(tf, tree).write(str(path / "dense/dense"))


def _architecture(model: str) -> dict[str, Any]:
    """What a configuration must say of the network, beside the tables."""
    cross = {
        "num_cross_layers": network.CROSS_LAYERS,
        "cross_layer_projection_dim": network.PROJECTION,
    }
    return {
        "interaction": INTERACTIONS[model][0],
        "bottom_mlp_dims": list(network.BOTTOM),
        "top_mlp_dims": list(network.TOP),
        "num_numerical_features": NUMERICAL,
        **(cross if model == "dcnv2" else {}),
    }


def _configured(model: str, variant: str, path: Path) -> list[int]:
    """Read both configurations, which must agree; give the rows of the tables."""
    dense, sparse = (_json(path / name / "config.json") for name in ("dense", "sparse"))
    rows: Any = dense.get("categorical_cardinalities")
    whole = isinstance(rows, list) and all(type(count) is int and count > 0 for count in rows)
    if not whole or len(rows) != CATEGORICAL:
        raise CheckpointError(
            f"{path}/dense/config.json: categorical_cardinalities should be the rows of "
            f"{CATEGORICAL} tables, and is {json.dumps(rows)[:120]}"
        )
    expected = _architecture(model)
    if dense.get("interaction") in INTERACTIONS[model]:
        expected["interaction"] = dense["interaction"]
    common = {
        "embedding_dim": [DIMENSION] * CATEGORICAL,
        "categorical_cardinalities": rows if variant in OWN else list(sizes(variant)),
    }
    for name, found, wanted in (("dense", dense, expected | common), ("sparse", sparse, common)):
        for field, value in wanted.items():
            if text := _differs(field, found.get(field), value):
                raise CheckpointError(f"{path}/{name}/config.json is not {model}'s: {text}")
    return list(rows)


def _differs(field: str, found: Any, wanted: Any) -> str:
    """Say in what a field differs; where a list does, in which of its places first."""
    if found == wanted:
        return ""
    if isinstance(wanted, list) and isinstance(found, list) and len(found) == len(wanted):
        place = next(n for n, value in enumerate(wanted) if found[n] != value)
        field, found, wanted = f"{field}[{place}]", found[place], wanted[place]
    return f"{field} is {json.dumps(found)[:80]} and should be {json.dumps(wanted)[:80]}"


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{path} cannot be read as JSON ({error}): a checkpoint is a folder with dense/ and "
            "sparse/, as NVIDIA's training saves it"
        ) from None
    if not isinstance(found, dict):
        raise CheckpointError(f"{path} holds a {type(found).__name__}, not the fields of a network")
    return found


def _table(path: Path, rows: int) -> "np.memmap[Any, Any]":
    """Map a table, its header and its size checked."""
    try:
        table: np.memmap[Any, Any] = NPY.open_memmap(path, mode="r")
    except Exception as error:  # damaged bytes can fail in any way inside the reader
        line = " ".join(str(error).split())[:200]
        raise CheckpointError(f"{path} is not a whole .npy file of numbers: {line}") from None
    expected = (rows, DIMENSION)
    if table.shape != expected or table.dtype.str != "<f4" or not table.flags.c_contiguous:
        raise CheckpointError(
            f"{path} is {table.dtype.str} {list(table.shape)}"
            f"{'' if table.flags.c_contiguous else ' by columns'} and should be <f4 "
            f"{list(expected)} by rows"
        )
    if (surplus := path.stat().st_size - table.offset - table.nbytes) > 0:
        raise CheckpointError(f"{path} has {surplus} bytes after its {rows} rows")
    return table


def _read(folder: Path) -> dict[str, Any]:
    """Read the variables of the weights in `folder`, by the names that TensorFlow gave them."""
    surplus = [file.name for file in folder.iterdir() if not _DENSE_FILES.fullmatch(file.name)]
    _raise(folder, [f"surplus {name}" for name in sorted(surplus)])
    prefix = folder / "dense"
    try:
        reader = tensorflow().train.load_checkpoint(str(prefix))
        names = [name for name in reader.get_variable_to_shape_map() if name not in BOOKKEEPING]
        return {name: np.asarray(reader.get_tensor(name)) for name in sorted(names)}
    except Exception as error:  # damaged bytes can fail in any way inside the reader
        line = " ".join(str(error).split())[:200]
        raise CheckpointError(f"{prefix}.index and its data cannot be read: {line}") from None


def _raise(where: Path, faults: list[str]) -> None:
    if faults:
        more = f"; and {len(faults) - SHOWN} more" if len(faults) > SHOWN else ""
        raise CheckpointError(f"{where} does not fit: {'; '.join(faults[:SHOWN])}{more}")


def _weights(dense: Any) -> list[tuple[Any, Any]]:
    return [(layer, weight) for layer in dense.layers for weight in layer.weights]


def _place(layer: Any, weight: Any) -> str:
    return f"{layer.name.replace('.', '/')}/{weight.name}"


def _tracked(tf: Any, tree: Any) -> Any:
    """Give objects to TensorFlow whose attributes and lists have the names of `tree`."""
    if not isinstance(tree, dict):
        return tree
    parts = {name: _tracked(tf, part) for name, part in tree.items()}
    if "0" in parts:
        return [parts[str(place)] for place in range(len(parts))]
    return tf.train.Checkpoint(**parts)


def _short(name: str) -> str:
    return name.removesuffix(SUFFIX)
