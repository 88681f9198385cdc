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
    """Describe the lookup of 26 embeddings, and the graph from `build`."""
    ids = {"categorical_features": Tensor(INPUT, "int32", (CATEGORICAL,), IDS)}
    vectors = Tensor(OUTPUT, "float32", (CATEGORICAL * DIMENSION,), VECTORS)
    return parts_of(config.model, ids, vectors, numbers=(NUMERICAL,), logit=(1,), flat={})


def parts_of(
    model: str,
    inputs: dict[str, Tensor],
    vectors: Tensor,
    numbers: tuple[int, ...],
    logit: tuple[int, ...],
    flat: dict[str, int],
) -> tuple[Part, Part]:
    """Describe a lookup from `inputs` to `vectors`, and the graph from these and `numbers`."""
    lookup = Part(f"{model}_sparse", inputs, {"LOOKUP_VECTORS": vectors})
    tensors = {
        "numerical_features": Tensor("args_0", "float32", numbers, NUMBERS),
        "LOOKUP_VECTORS": Tensor("args_1", "float32", vectors.shape, VECTORS),
    }
    result = {"DENSE_OUTPUT": Tensor("output_1", "float32", logit, LOGIT)}
    return lookup, Part(f"{model}_dense", tensors, result, flat)


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
    """Read the rows of all tables, [rows, width], at most `CHUNK` at a time."""
    for table in tables:  # not mapped: the pages would stay in memory
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
