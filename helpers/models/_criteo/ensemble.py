"""How DLRM and DCNv2 are composed on Triton: the lookup of 26 embeddings, then the dense graph."""

import json
from pathlib import Path
from shutil import copyfileobj

from helpers.models import Config, Part, Tensor
from helpers.models._criteo import checkpoint as checkpoints
from helpers.models._criteo.lookup import INPUT, LAYOUT, OUTPUT, TABLES, Lookup, load
from helpers.models._criteo.tables import CATEGORICAL, DIMENSION, NUMERICAL

__all__ = ["FOLDER", "RUNTIME", "dense", "load", "mapped", "sparse", "write"]

FOLDER = "sparse"
RUNTIME: tuple[str, ...] = ("numpy",)
CHUNK = 16 * 2**20  # bytes
_WIDTH = CATEGORICAL * DIMENSION


def sparse(config: Config) -> Part:
    """Describe the lookup: 26 ids to 26 embeddings, one after the other."""
    return Part(
        f"{config.model}_sparse",
        inputs={"categorical_features": Tensor(INPUT, "int32", (CATEGORICAL,))},
        outputs={"LOOKUP_VECTORS": Tensor(OUTPUT, "float32", (_WIDTH,))},
    )


def dense(config: Config) -> Part:
    """Describe the graph that `build` gives: 13 numbers and the embeddings to a logit."""
    return Part(
        f"{config.model}_dense",
        inputs={
            "numerical_features": Tensor("args_0", "float32", (NUMERICAL,)),
            "LOOKUP_VECTORS": Tensor("args_1", "float32", (_WIDTH,)),
        },
        outputs={"DENSE_OUTPUT": Tensor("output_1", "float32", (1,))},
    )


def write(config: Config, checkpoint: Path, path: Path) -> None:
    """Copy the tables of `checkpoint` into one file in the new folder `path`, a piece at a time.

    Raises CheckpointError if a table is missing, surplus or misshapen.
    """
    tables = checkpoints.tables(config.model, config.variant, checkpoint)
    cardinalities = [len(table) for table in tables]
    path.mkdir()
    with (path / TABLES).open("wb") as target:
        shape = (sum(cardinalities), DIMENSION)
        header = {"descr": "<f4", "fortran_order": False, "shape": shape}
        checkpoints.NPY.write_array_header_1_0(target, header)
        for table in tables:
            with Path(str(table.filename)).open("rb") as source:
                source.seek(table.offset)
                copyfileobj(source, target, CHUNK)
    (path / LAYOUT).write_text(json.dumps({"cardinalities": cardinalities}) + "\n")


def mapped(config: Config, checkpoint: Path) -> Lookup:
    """Map the tables in the files of `checkpoint` itself; nothing is written.

    Raises CheckpointError if a table is missing, surplus or misshapen.
    """
    return Lookup([*checkpoints.tables(config.model, config.variant, checkpoint)])
