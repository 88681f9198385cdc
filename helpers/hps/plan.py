"""How much memory and disk a store will take, level by level, before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .cache import WAYS, number_of_sets
from .hash_map import index_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .settings import ModelSettings, Settings

CACHE_ROW = 8 + 8 + 4  # bytes beside a vector: key, stamp, scratch
MAP_ROW = 8  # key; its index comes on top
REDIS_ROW = 8 + 64  # key, and what a hash's entry takes in Redis 7
ROCKS_ROW = 8 + 12  # key, and what a block adds


@dataclass(frozen=True)
class Level:
    """One level of one model's store."""

    level: str
    kind: str
    rows: int
    bytes: int
    where: str


def plan(settings: Settings, model: ModelSettings, rows: Sequence[int], device: str) -> list[Level]:
    """Work out each level for tables of `rows`."""
    widths = model.embedding_vecsize_per_table
    volatile, persistent = settings.volatile_db, settings.persistent_db

    def level(name: str, kind: str, counts: Sequence[int], beside: int, where: str) -> Level:
        size = sum(many * (4 * width + beside) for many, width in zip(counts, widths))
        return Level(name, kind, sum(counts), size, where)

    found = []
    if model.gpucache:
        sets = [number_of_sets(int(model.gpucacheper * many)) for many in rows]
        where = "the GPU" if device == "gpu" else "the server's process"
        found.append(level("cache", "set-associative", [WAYS * s for s in sets], CACHE_ROW, where))
    kept = [
        min(
            int(volatile.initial_cache_rate * many),
            volatile.overflow_margin * volatile.num_partitions,
        )
        for many in rows
    ]
    if volatile.type == "redis_cluster":
        where = f"Redis at {volatile.address}"
        found.append(level("volatile", "Redis", kept, REDIS_ROW, where))
    elif volatile.type != "disabled":
        rows_and_keys = level("volatile", "hash map", kept, MAP_ROW, "the server's process")
        index = sum(map(index_bytes, kept))
        found.append(replace(rows_and_keys, bytes=rows_and_keys.bytes + index))
    if persistent.type != "disabled":
        found.append(level("persistent", "RocksDB", rows, ROCKS_ROW, f"disk: {persistent.path}"))
    return found
