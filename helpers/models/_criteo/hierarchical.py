"""DLRM and DCNv2 over a parameter server: NVIDIA's three models and their flat tensors.

A request has no batch dimension: `EMB_KEY` [1, 26 x samples] has the ids of all samples for the
first table, then those for the second, and so on; `EMB_N_KEY` [1, tables] how many each table has;
`numerical_features` [1, 13 x samples] the numbers, sample by sample. With `fused` tables there is
one: an id has the rows of all tables before its own added.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from helpers import hps
from helpers.hps import files, session, settings
from helpers.models import Arrays, Config, Deployment, Part, Session, Tensor
from helpers.models._criteo import checkpoint as checkpoints
from helpers.models._criteo.ensemble import VECTORS, parts_of
from helpers.models._criteo.tables import CATEGORICAL, DIMENSION, NUMERICAL

FOLDER = "hps"
CODE = Path(hps.__file__).parent
LAYOUT = "tables.json"
RUNTIME: tuple[str, ...] = ("numpy",)
FEWEST_ROWS = 100  # NVIDIA pads shorter tables with rows of zeros, unless they are fused
CHUNK_ROWS = 2**20


def parts(config: Config) -> tuple[Part, Part]:
    """Describe the lookup and the graph that `build` gives, on flat tensors."""
    keys = {
        "EMB_KEY": Tensor("KEYS", "int64", (-1,), "the ids of all samples, table by table"),
        "EMB_N_KEY": Tensor("NUMKEYS", "int32", (-1,), "how many ids each table has"),
    }
    flat = {"args_0": NUMERICAL, "args_1": CATEGORICAL * DIMENSION}
    vectors = Tensor("OUTPUT0", "float32", (-1,), VECTORS)
    return parts_of(config.model, keys, vectors, numbers=(-1,), logit=(-1, 1), flat=flat)


@dataclass(frozen=True)
class Layout:
    """The layout of requests: the rows of the 26 tables, and whether they are fused."""

    cardinalities: Sequence[int]
    fused: bool

    @property
    def folders(self) -> list[str]:
        """Return the names of the folders with keys and vectors."""
        return [str(index) for index in range(1 if self.fused else CATEGORICAL)]

    def encode(self, batch: Arrays) -> Arrays:
        """Turn int32 [samples, 26] and float32 [samples, 13] into a request."""
        ids = batch["categorical_features"].astype(np.int64)
        many = len(ids)
        if self.fused:
            ids = ids + np.cumsum([0, *self.cardinalities[:-1]])
        counts = [CATEGORICAL * many] if self.fused else [many] * CATEGORICAL
        return {
            "EMB_KEY": np.ascontiguousarray(ids.T).reshape(1, -1),
            "EMB_N_KEY": np.array([counts], np.int32),
            "numerical_features": batch["numerical_features"].reshape(1, -1),
        }

    def decode(self, outputs: Arrays) -> Arrays:
        """Turn a response into one logit per sample, [samples, 1]."""
        return {name: array.reshape(-1, 1) for name, array in outputs.items()}


def write(config: Config, checkpoint: Path, path: Path) -> None:
    """Write NVIDIA's folders of keys and vectors to the new folder `path`, a chunk at a time."""
    tables = checkpoints.tables(config.model, config.variant, checkpoint)
    path.mkdir()

    def rows_of(
        table: checkpoints.Table, first: int
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        for start in range(0, len(table), CHUNK_ROWS):
            chunk = np.asarray(table[start : start + CHUNK_ROWS])
            yield first + start + np.arange(len(chunk)), chunk

    sizes = [len(table) for table in tables]
    if config.fused:
        starts = np.cumsum([0, *sizes[:-1]]).tolist()
        files.write(path / "0", chain.from_iterable(map(rows_of, tables, starts)))
    else:
        for index, table in enumerate(tables):
            keys = np.arange(len(table), FEWEST_ROWS)
            padding = (keys, np.zeros((len(keys), DIMENSION), np.float32))
            files.write(path / str(index), chain(rows_of(table, 0), [padding]))
    layout = {"cardinalities": sizes, "fused": config.fused}
    (path / LAYOUT).write_text(json.dumps(layout) + "\n")


class Folders:
    """A lookup that maps all rows of NVIDIA's folders: exact, and without a store."""

    def __init__(self, path: Path) -> None:
        self._tables = []
        for name in codec_in(path).folders:
            shape = (files.rows(path / name, DIMENSION), DIMENSION)
            self._tables.append(np.memmap(path / name / files.VECTORS, "<f4", "r", shape=shape))

    def run(self, inputs: Arrays) -> Arrays:
        """Map `KEYS` and `NUMKEYS` to `OUTPUT0`, as the store does; keys are row numbers."""
        keys, counts = np.ravel(inputs["KEYS"]), np.ravel(inputs["NUMKEYS"])
        split = np.split(keys, np.cumsum(counts)[:-1])
        vectors = [table[rows].reshape(-1) for table, rows in zip(self._tables, split, strict=True)]
        return {"OUTPUT0": np.concatenate(vectors)[None]}


def codec_in(path: Path) -> Layout:
    """Read the layout of requests to the store of the folder `path`."""
    layout = json.loads((path / LAYOUT).read_text())
    return Layout(layout["cardinalities"], layout["fused"])


def configure(config: Deployment, path: Path) -> tuple[str, ...]:
    """Write NVIDIA's JSON with all its fields; return the packages that its databases need."""
    content = json_of(config, codec_in(path))
    (path / session.JSON).write_text(content.model_dump_json(indent=2) + "\n")
    redis = ["redis"] if content.volatile_db.type == "redis_cluster" else []
    rocks = ["rocksdict"] if content.persistent_db.type == "rocks_db" else []
    return (*redis, *rocks)


def json_of(config: Deployment, layout: Layout) -> settings.Settings:
    """Return NVIDIA's JSON; raise `BadSettings` for a field that the experiment has wrong."""
    count = len(layout.folders)
    model = {
        "model": f"{config.model}_sparse",
        "sparse_files": layout.folders,
        "embedding_table_names": [f"sparse_embedding{index}" for index in range(count)],
        "embedding_vecsize_per_table": [DIMENSION] * count,
        "maxnum_catfeature_query_per_table_per_sample": [1] * count,
        "default_value_for_each_table": [1.0] * count,
        "max_batch_size": config.max_batch_size * (CATEGORICAL if layout.fused else 1),
    }
    return settings.compose(config.hps, model)


def load(path: Path, threads: int, device: str) -> Session:
    """Open the store of a deployed folder; map an artifact, which has no settings of a store."""
    if (path / session.JSON).is_file():
        return session.load(path, threads, device, read_only=True)
    return Folders(path)
