"""DLRM and DCNv2 as ensembles in Triton: the lookup of 26 embeddings, then the dense graph."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from helpers.models import Config, Part, Tensor
from helpers.models._criteo import checkpoint as checkpoints
from helpers.models._criteo import lookup
from helpers.models._criteo.lookup import INPUT, LAYOUT, OUTPUT, SCALES, TABLES, Lookup, load
from helpers.models._criteo.tables import CATEGORICAL, DIMENSION, NUMERICAL

__all__ = ["CODE", "FOLDER", "RUNTIME", "codec_in", "configure", "load", "mapped", "parts", "write"]

FOLDER = "sparse"
IDS, NUMBERS = "an id of each categorical feature, a row of its table", "the numerical features"
VECTORS, LOGIT = "the embeddings of the ids, one after the other", "the logit of a click"
CHUNK = 1 << 14  # rows that are in memory at once: 8 MB
CODE = Path(lookup.__file__)
RUNTIME: tuple[str, ...] = ("numpy",)


def parts(config: Config) -> tuple[Part, Part]:
    """Describe the lookup and the graph from `build`. The lookup maps 26 ids to their concatenated
    embeddings; the graph maps 13 numbers and the embeddings to a logit.
    """
    width = (CATEGORICAL * DIMENSION,)
    lookup = Part(
        f"{config.model}_sparse",
        inputs={"categorical_features": Tensor(INPUT, "int32", (CATEGORICAL,), IDS)},
        outputs={"LOOKUP_VECTORS": Tensor(OUTPUT, "float32", width, VECTORS)},
    )
    graph = Part(
        f"{config.model}_dense",
        inputs={
            "numerical_features": Tensor("args_0", "float32", (NUMERICAL,), NUMBERS),
            "LOOKUP_VECTORS": Tensor("args_1", "float32", width, VECTORS),
        },
        outputs={"DENSE_OUTPUT": Tensor("output_1", "float32", (1,), LOGIT)},
    )
    return lookup, graph


def write(config: Config, checkpoint: Path, path: Path) -> None:
    """Write the tables of `checkpoint` into one file in the new folder `path`, a chunk at a time.

    int8 has a scale for each row: the largest magnitude of the row becomes 127.
    """
    tables = checkpoints.tables(config.model, config.variant, checkpoint)
    cardinalities = [len(table) for table in tables]
    dtype = {"fp32": "float32", "fp16": "float16", "int8": "int8"}[config.table_precision]
    scales = []
    path.mkdir()
    with (path / TABLES).open("wb") as target:
        shape = (sum(cardinalities), DIMENSION)
        header = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": shape}
        checkpoints.NPY.write_array_header_1_0(target, header)
        for rows in _pieces(tables):
            if dtype == "int8":
                scale = np.abs(rows).max(axis=1) / np.float32(127)
                scale[scale < np.finfo(np.float32).tiny] = 1  # so small a row becomes zeros
                scales.append(scale)
                rows = np.rint(rows / scale[:, None])
            target.write(rows.astype(dtype, copy=False).data)
    if scales:
        np.save(path / SCALES, np.concatenate(scales))
    layout = {"cardinalities": cardinalities, "dtype": dtype}
    (path / LAYOUT).write_text(json.dumps(layout) + "\n")


def _pieces(tables: Iterable[checkpoints.Table]) -> Iterator[NDArray[np.float32]]:
    """Read the rows of all tables, [rows, width], at most `CHUNK` at a time. Mapped pages would
    stay in memory.
    """
    for table in tables:
        with Path(str(table.filename)).open("rb") as source:
            source.seek(table.offset)
            while (chunk := np.fromfile(source, table.dtype, CHUNK * DIMENSION)).size:
                yield chunk.reshape(-1, DIMENSION)


def configure(config: Config, path: Path) -> tuple[str, ...]:
    """Return no modules: a lookup in mapped files has no settings."""
    return ()


def codec_in(path: Path) -> None:
    """Return None: samples need no encoding."""


def mapped(config: Config, checkpoint: Path) -> Lookup:
    """Map the tables in the files of `checkpoint` itself; write nothing."""
    return Lookup([*checkpoints.tables(config.model, config.variant, checkpoint)])
