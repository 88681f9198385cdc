"""Stores from NVIDIA's JSON, deployed models, and what waits for a condition."""

from contextlib import closing

import numpy as np

from helpers.config import resolve
from helpers.hps import files, settings
from helpers.hps.session import JSON, load
from helpers.hps.store import Store
from helpers.hps.table import Unavailable
from helpers.inference import convert, export, prepare
from helpers.measure import compute_reference
from helpers.models._criteo import spec
from helpers.models._criteo.data import Samples, write_part
from helpers.triton import deploy
from tests.conftest import ONNX

WIDTHS, ROWS = (4, 8), (300, 50)
ONE = {"embedding_table_names": ["one"], "maxnum_catfeature_query_per_table_per_sample": [1]}
ROCKS = {"type": "rocks_db", "path": "rocks"}
UPDATES = {"type": "folder", "path": "updates"}


def vectors_of(keys, width, version=0):
    keys = np.asarray(keys)
    return (keys[:, None] * 8 + np.arange(width) + version * 10_000).astype(np.float32)


def content(folder, **fields):
    """NVIDIA's JSON for two tables, whose folders are written to `folder`."""
    for place, (rows, width) in enumerate(zip(ROWS, WIDTHS, strict=True)):
        keys = np.arange(rows)
        if not (folder / str(place)).exists():
            files.write(folder / str(place), [(keys, vectors_of(keys, width))])
    model = {
        "model": "sparse",
        "sparse_files": ["0", "1"],
        "num_of_worker_buffer_in_pool": 3,
        "embedding_table_names": ["sparse_embedding0", "sparse_embedding1"],
        "embedding_vecsize_per_table": [*WIDTHS],
        "maxnum_catfeature_query_per_table_per_sample": [1, 1],
        "default_value_for_each_table": [1.0],
        "deployed_device_list": [0],
        "max_batch_size": 1024,
        "cache_refresh_percentage_per_iteration": 0.0,
        "hit_rate_threshold": 1.0,
        "gpucacheper": 0.25,
        "gpucache": True,
    }
    top = {name: fields.pop(name) for name in [*fields] if name.endswith(("_db", "_source"))}
    return {"supportlonglong": True, "models": [model | fields], **top}


def one_table(folder, keys, width, **fields):
    """NVIDIA's JSON for one table, which is written to `folder`."""
    files.write(folder / "0", [(keys, vectors_of(keys, width))])
    fields |= {"sparse_files": ["0"], "embedding_vecsize_per_table": [width]}
    return content(folder / "unused", **ONE, **fields)


def store(folder, **fields):
    return closing(Store(settings.parse(content(folder, **fields)), folder))


def open_session(folder, given=None, **fields):
    """Write the file of a deployment, and open the store as a server does."""
    written = settings.parse(given or content(folder, **fields))
    (folder / JSON).write_text(written.model_dump_json())
    return closing(load(folder, 1, "cpu"))


def update(folder, name, keys, vectors, more=b""):
    """Have a folder of updates appear at once; `more` bytes may follow its vectors."""
    hidden = folder / f"updates/.{name}"
    files.write(hidden / "sparse_embedding0", [(keys, vectors)])
    with (hidden / "sparse_embedding0/emb_vector").open("ab") as file:
        file.write(more)
    hidden.rename(folder / "updates" / name)


def expected(keys, counts, defaults):
    found, start = [], 0
    for count, rows, width, default in zip(counts, ROWS, WIDTHS, defaults, strict=True):
        own = keys[start : start + count]
        known = ((own >= 0) & (own < rows))[:, None]
        found.append(np.where(known, vectors_of(own, width), np.float32(default)).ravel())
        start += count
    return np.concatenate(found)


class Gone:
    """A database that does not answer."""

    def insert(self, keys, vectors):
        raise Unavailable("it is away")

    fetch = insert


def criteo_samples(rows, count):
    """Random samples of tables with so many rows."""
    draws = np.random.default_rng(5)
    ids = np.stack([draws.integers(0, each, count) for each in rows], axis=1)
    numbers = draws.standard_normal((count, 13)).astype(np.float16).astype(np.float32)
    return Samples(ids.astype(np.int32), numbers, draws.random(count) < 0.3)


class Deployed:
    """A model with a checkpoint and samples, deployed in the folder of outputs."""

    def __init__(self, model, folder, checkpoint, rows, samples, **fields):
        self.model, self.samples = model, samples
        dataset = folder / "dataset"
        dataset.mkdir()
        for part in spec.PARTS:
            write_part(dataset / part, rows, [samples])
        spec.write(dataset, rows, {})
        self.fields = ONNX | {
            "dataset": str(dataset),
            "checkpoint": str(checkpoint),
            "variant": "own",
            "export_format": "tf-savedmodel",
            "lookup": "hps",
            "max_batch_size": 512,
            **fields,
        }
        exporting = self.config("export")
        self.prepared = prepare(exporting)
        self.reference = compute_reference(exporting, self.prepared)
        export(exporting, self.prepared)
        convert(self.config("convert"), lambda *_: None)
        self.config_of_deploy = self.config("deploy")
        self.repository = deploy(self.config_of_deploy)

    def config(self, stage, server=None, **fields):
        section = {self.model: {"experiments": {"hps": self.fields | fields}}}
        return resolve(self.model, stage, "test", server=server, models=section)
