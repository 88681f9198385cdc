"""Checkpoints of DLRM and DCNv2 in NVIDIA's layout, of which every part must fit the network.

A folder: `dense/config.json`; `dense/dense.index` and its data, weights saved by TensorFlow;
`sparse/config.json`; `sparse/feature_<i>.npy`, float32 [rows, 128]. The weights' names are the
attributes of NVIDIA's Keras model in its public source, for want of a public checkpoint. Keras 2
gives the weights of a model with these attributes the same names, and reads the files of `save`:
    bottom_mlp_layers/<0 to 2>/{kernel, bias}, top_mlp/<0 to 4>/{kernel, bias} and, in DCNv2,
    interact_op/cross_layers/<0 to 2>/{_dense_u/kernel, _dense_v/kernel, _dense_v/bias}
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError

from helpers.errors import CheckpointError, as_error
from helpers.models._criteo import network
from helpers.models._criteo.spec import first_fault
from helpers.models._criteo.tables import CATEGORICAL, DIMENSION, NUMERICAL, TABLES
from helpers.models._keras import checkpoint
from helpers.models._tensors import check

if TYPE_CHECKING:
    from keras import Model, Variable

NPY: Any = np.lib.format  # writes and reads the headers of .npy files
# What the dense configuration must say of the network.
_BOTH = {
    "bottom_mlp_dims": list(network.BOTTOM),
    "top_mlp_dims": list(network.TOP),
    "num_numerical_features": NUMERICAL,
}
_CROSS = {
    "num_cross_layers": network.CROSS_LAYERS,
    "cross_layer_projection_dim": network.PROJECTION,
}
ARCHITECTURE: dict[str, dict[str, object]] = {
    "dlrm": {"interaction": "dot_tensorflow", **_BOTH},
    "dcnv2": {"interaction": "cross", **_BOTH, **_CROSS},
}
SYNONYMS = {"dot_custom_cuda": "dot_tensorflow"}  # NVIDIA's own kernel computes the same
_DENSE_FILES = re.compile(r"config\.json|checkpoint|dense\.index|dense\.data-\d{5}-of-\d{5}")

Table = np.memmap[tuple[int, ...], np.dtype[np.float32]]


class _Config(BaseModel):
    """A configuration, which has to list the rows of the 26 tables."""

    model_config = ConfigDict(strict=True, extra="allow")
    categorical_cardinalities: Annotated[
        list[PositiveInt], Field(min_length=CATEGORICAL, max_length=CATEGORICAL)
    ]


def load(model: str, variant: str, path: Path) -> "Model":
    """Build the dense network of "dlrm" or "dcnv2" with the weights of the checkpoint `path`.

    Raises CheckpointError naming what is missing, surplus, misshapen or unreadable, in the tables
    too, whose rows are not read.
    """
    tables(model, variant, path)
    for file in sorted((path / "dense").iterdir()):
        if not _DENSE_FILES.fullmatch(file.name):
            raise CheckpointError(f"{file} is not part of a checkpoint of {model}")
    dense = network.network(model)
    checkpoint.load(path / "dense/dense", model, _weights(dense))
    return dense


def tables(model: str, variant: str, path: Path) -> list[Table]:
    """Map the 26 tables of the checkpoint `path`, float32 [rows, 128] each; only headers are read.

    `variant` says how many rows they have; with a variant of `OWN` the checkpoint does. Raises
    CheckpointError unless both configurations and every table's file agree with it and with the
    network.
    """
    expected = {
        f"feature_{feature}.npy": f"<f4 {[rows, DIMENSION]} by rows"
        for feature, rows in enumerate(_checked_rows(model, variant, path))
    }
    files = sorted(set((path / "sparse").iterdir()) - {path / "sparse/config.json"})
    mapped = {file.name: _mapped(file) for file in files}
    layouts = {name: _layout(table) for name, table in mapped.items()}
    check(path / "sparse", model, layouts, expected)
    return [mapped[name] for name in expected]


def save(model: str, dense: "Model", rows: Iterable[int], path: Path) -> None:
    """Write the weights of `dense` and both configurations, for tables of `rows`, to `path`."""
    sizes = _sizes(rows)
    configs: dict[str, dict[str, object]] = {
        "dense": {
            # NVIDIA's code needs these two fields for either model
            "num_cross_layers": None,
            "cross_layer_projection_dim": None,
            **ARCHITECTURE[model],
            **sizes,
            "transpose": False,
            "batch_size": None,
        },
        # the fields other than the tables' sizes choose how NVIDIA's code holds them in memory
        "sparse": {
            **sizes,
            "use_mde_embeddings": False,
            "column_slice_threshold": None,
            "embedding_zeros_initializer": True,
            "embedding_trainable": True,
            # true means one fused table, into which NVIDIA's training code cannot load a checkpoint
            "concat_embedding": False,
            "cpu_offloading_threshold_gb": 75,
        },
    }
    for name, config in configs.items():
        (path / name).mkdir(parents=True, exist_ok=True)
        (path / name / "config.json").write_text(json.dumps(config, indent=4))
    checkpoint.objects(_weights(dense)).write(str(path / "dense/dense"))


def _weights(dense: "Model") -> "dict[str, Variable]":
    """Map the weights by their paths in NVIDIA's model."""
    return {
        f"{layer.name.replace('.', '/')}/{weight.name}": weight
        for layer in dense.layers
        for weight in layer.weights
    }


def _sizes(rows: Iterable[int]) -> dict[str, object]:
    """Return the fields of both configurations that describe the tables."""
    return {"categorical_cardinalities": list(rows), "embedding_dim": [DIMENSION] * CATEGORICAL}


def _checked_rows(model: str, variant: str, path: Path) -> list[int]:
    """Check both configurations; return the rows of the tables."""
    dense, sparse = (path / name / "config.json" for name in ("dense", "sparse"))
    rows = list(TABLES.get(variant) or _read(dense)["categorical_cardinalities"])
    sizes = _sizes(rows)
    for file, expected in ((dense, ARCHITECTURE[model] | sizes), (sparse, sizes)):
        fields = _read(file)
        for field, required in expected.items():
            actual = fields.get(field)
            if required not in (actual, SYNONYMS.get(str(actual))):
                text = _difference(field, actual, required)
                raise CheckpointError(f"{file} is not {model}'s: {text}")
    return rows


def _difference(field: str, actual: object, required: object) -> str:
    """Describe how a field differs; for a list of the right length, its first wrong element."""
    if isinstance(required, list) and isinstance(actual, list) and len(actual) == len(required):
        index = next(n for n, value in enumerate(required) if actual[n] != value)
        field, actual, required = f"{field}[{index}]", actual[index], required[index]
    return f"{field} is {json.dumps(actual)[:80]} and should be {json.dumps(required)[:80]}"


def _read(path: Path) -> dict[str, Any]:
    try:
        return _Config.model_validate_json(path.read_bytes()).model_dump()
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be read ({error.strerror}). Use a folder with dense/ and sparse/, as "
            "NVIDIA's training saves it."
        ) from None
    except ValidationError as error:
        raise CheckpointError(f"{path}: {first_fault(error)}") from None


def _mapped(path: Path) -> Table:
    with as_error(CheckpointError, f"{path} is not a whole .npy file of numbers", 200):
        return cast(Table, NPY.open_memmap(path, mode="r"))


def _layout(table: Table) -> str:
    """Read the type, shape and order of a table, and what follows it in its file."""
    order = "rows" if table.flags.c_contiguous else "columns"
    surplus = Path(str(table.filename)).stat().st_size - table.offset - table.nbytes
    more = f", and {surplus} bytes after it" if surplus else ""
    return f"{table.dtype.str} {list(table.shape)} by {order}{more}"
