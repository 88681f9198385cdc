"""The levels of a lookup and their memory, for readers."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from helpers.hps import cache, files, hash_map, settings
from helpers.models._criteo import hierarchical
from helpers.models._criteo.tables import DIMENSION

if TYPE_CHECKING:
    from IPython.display import Markdown

    from helpers.models import Deployment

MAPPED = """\
The lookup maps one file with the rows of all tables into memory. The operating system reads a page
when one of its rows is first used. For 26 ids per sample, the lookup returns 3,328 values (13 kB).
The batcher joins requests before {joined}.
"""
JOINED = {
    "ensemble": "the dense network, where a larger batch pays",
    "fused": "both, because one model looks up and computes. Nothing is copied between them",
}
STORE = """\
The lookup is a hierarchical parameter server: {levels}. Choose it where tables do not fit into
memory, where servers share them, or where vectors change while they are served. It has NVIDIA's
files, JSON and tensors. A request is a flat list of {keys}, so Triton cannot join requests.
{threshold} {composition}
"""
COMPOSITION = {
    "ensemble": "One process has the parameter server, for all instances of the dense network.",
    "fused": "One process has the parameter server and the dense network.",
}
EXACT = "Every lookup waits for the vectors that are not in the cache, so every response is exact."
LATER = """\
If the cache has at least {share:.0%} of a request's different keys, the others get a default vector
and are fetched later, so accuracy depends on the hit rate. The checks below wait for every vector.
"""
WITHOUT_EFFECT = "\nNo effect: {fields}.\n"
# Bytes of a row beside its vector.
CACHE_ROW = 8 + 8 + 4  # key, stamp, scratch
MAP_ROW = 8  # key; its index comes on top
REDIS_ROW = 8 + 64  # key, and the overhead of a hash's entry in Redis 7
ROCKS_ROW = 8 + 12  # key, and a block's overhead


def describe_lookup(config: "Deployment") -> "Markdown":
    """Describe how the experiment looks up its embeddings."""
    from IPython.display import Markdown

    if config.lookup != "hps":
        text = MAPPED.format(joined=JOINED[config.composition])
        return Markdown(text)  # type: ignore[no-untyped-call]
    content = hierarchical.json_of(config, hierarchical.Layout([], config.fused))
    (model,) = content.models
    levels = [f"a cache of {model.gpucacheper:.0%} of the rows"] if model.gpucache else []
    names = {"redis_cluster": "Redis", "disabled": ""}
    levels.append(names.get(content.volatile_db.type, "a hash map in memory"))
    levels.append("RocksDB" if content.persistent_db.type == "rocks_db" else "")
    exact = model.hit_rate_threshold >= 1
    text = STORE.format(
        levels=" over ".join(filter(None, levels)),
        keys="keys of one table that joins all" if config.fused else "keys for each table",
        composition=COMPOSITION[config.composition],
        threshold=EXACT if exact else LATER.format(share=model.hit_rate_threshold),
    )
    if reasons := settings.without_effect(config.hps):
        fields = ", ".join(f"`{name}` ({why})" for name, why in reasons.items())
        text += WITHOUT_EFFECT.format(fields=fields)
    return Markdown(text)  # type: ignore[no-untyped-call]


def plan_memory(config: "Deployment", artifact: Path) -> list[dict[str, object]]:
    """Return the memory of each level of the lookup of the converted model in `artifact`."""
    if config.lookup != "hps":
        path = artifact / "sparse/tables.npy"
        table, taken = np.load(path, mmap_mode="r"), path.stat().st_size
        entry = {"level": "mapped file", "kind": "NumPy's format", "rows": len(table)}
        return [entry | {"MB": round(taken / 1e6, 1), "where": "disk, and free memory"}]
    folder = artifact / hierarchical.FOLDER
    layout = hierarchical.codec_in(folder)
    rows = [files.rows(folder / name, DIMENSION) for name in layout.folders]
    return memory_estimate(hierarchical.json_of(config, layout), rows, config.device)


def memory_estimate(
    content: settings.Settings, rows: Sequence[int], device: str
) -> list[dict[str, object]]:
    """Return the levels of a parameter server for tables of `rows`, and the memory of each."""
    (model,), volatile, persistent = content.models, content.volatile_db, content.persistent_db

    def level(
        name: str, kind: str, counts: Sequence[int], row: int, where: str, index: int = 0
    ) -> dict[str, object]:
        widths = model.embedding_vecsize_per_table
        size = sum(n * (4 * width + row) for n, width in zip(counts, widths, strict=True)) + index
        entry = {"level": name, "kind": kind, "rows": sum(counts)}
        return entry | {"MB": round(size / 1e6, 1), "where": where}

    levels = []
    if model.gpucache:
        held = [cache.WAYS * cache.number_of_sets(int(model.gpucacheper * count)) for count in rows]
        where = "the GPU" if device == "gpu" else "the server's process"
        levels.append(level("cache", "set-associative", held, CACHE_ROW, where))
    largest = volatile.overflow_margin * volatile.num_partitions
    cached = [min(int(volatile.initial_cache_rate * count), largest) for count in rows]
    if volatile.type == "redis_cluster":
        levels.append(level("volatile", "Redis", cached, REDIS_ROW, f"Redis at {volatile.address}"))
    elif volatile.type != "disabled":
        index = sum(map(hash_map.index_bytes, cached))
        levels.append(level("volatile", "hash map", cached, MAP_ROW, "the server's process", index))
    if persistent.type != "disabled":
        levels.append(level("persistent", "RocksDB", rows, ROCKS_ROW, f"disk: {persistent.path}"))
    return levels
