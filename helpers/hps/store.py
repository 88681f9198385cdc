"""The store of all embedding tables of one model, built from NVIDIA's JSON; how much memory it will
take; and how it is loaded, refreshed and updated.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import numpy as np

from . import files
from .cache import Cache
from .device_cache import DeviceCache
from .hash_map import HashMap
from .table import Counts, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from .settings import Settings
    from .table import Database

    Keys = NDArray[np.int64]
    Vectors = NDArray[np.float32]

COMPANIONS = ("redis_map.py", "rocks.py")  # loaded late: a change of one is a change here
LOG = logging.getLogger("hps")
FOLDER = "HPS_FOLDER"  # the variable that says where a relative path of a database begins
SAY_SECONDS = 5.0
EXACT = 1.1  # a threshold that no hit rate reaches: every lookup waits for its vectors


class Store:
    """The tables of the settings' model, whose folders are relative to `folder`. If `read_only`,
    databases that other processes share are not written. `say` gets what a reader should know.

    Raises `BadTable` for a damaged folder, and whatever a missing database raises.
    """

    def __init__(
        self,
        settings: Settings,
        folder: Path,
        threads: int = 1,
        device: str = "cpu",
        read_only: bool = False,
        log: Callable[[str], None] = LOG.info,
    ) -> None:
        self.settings, (self.model,) = settings, settings.models
        self.folders = [folder / each for each in self.model.sparse_files]
        self.device, self.say = _device_of(device), log
        sizes = self.model.embedding_vecsize_per_table
        self.rows = [files.rows(each, width) for each, width in zip(self.folders, sizes)]
        self.folder, self.closed = folder, Event()
        self._open: list[Any] = []
        self._pool = ThreadPoolExecutor(threads, "hps-lookup") if threads > 1 else None
        self._workers: list[Thread] = []
        try:
            self._connection = self._connect()
            self.tables = [self._table(place, read_only) for place in range(len(sizes))]
            for place in range(len(sizes)):
                self._load(place, read_only)
            for place in range(len(sizes)):
                self._preload(place)
        except BaseException:
            self.close()
            raise
        for table in self.tables:
            self.start(table.run_insert_worker)
        if self.model.refresh_interval:
            self.start(self._refresh_at_intervals)

    def lookup(self, keys: Keys, counts: Sequence[int]) -> Any:
        """Return the vectors of keys [n], `counts` of each table in turn, as one float32 [n x
        width]; on a GPU a tensor there. Raises ValueError for counts that do not fit.
        """
        if len(counts) != len(self.tables):
            raise ValueError(f"NUMKEYS has {len(counts)} counts for {len(self.tables)} tables")
        if min(counts) < 0 or sum(counts) != len(keys):
            raise ValueError(f"NUMKEYS adds up to {sum(counts)}, but KEYS has {len(keys)}")
        out = self._empty(sum(count * table.width for count, table in zip(counts, self.tables)))
        jobs, start, end = [], 0, 0
        for table, count in zip(self.tables, counts):
            part = out[end : end + count * table.width].reshape(count, table.width)
            jobs.append((table, keys[start : start + count], part))
            start, end = start + count, end + count * table.width
        if self._pool:
            list(self._pool.map(lambda job: job[0].lookup(*job[1:]), jobs))
        else:
            for table, some, part in jobs:
                table.lookup(some, part)
        return out

    def _empty(self, size: int) -> Any:
        """Make room for vectors where the caches are."""
        if self.device != "gpu":
            return np.empty(size, np.float32)
        import torch

        return torch.empty(size, dtype=torch.float32, device="cuda")

    def insert_synchronously(self) -> None:
        """From now on insert synchronously, whatever the hit rate: answers are exact."""
        for table in self.tables:
            table.threshold = EXACT

    def counts(self) -> Counts:
        """Add up what lookups met so far."""
        total = Counts()
        for table in self.tables:
            total.add(table.counts)
        return total

    def drain(self) -> None:
        """Wait until all that was missed so far is inserted."""
        for table in self.tables:
            table.drain()

    def refresh(self) -> None:
        """Update all caches from the databases."""
        for table in self.tables:
            table.refresh(self.model.cache_refresh_percentage_per_iteration or 1.0)

    def update(self, name: str, keys: Keys, vectors: Vectors) -> None:
        """Write new vectors [n, width] of keys [n] to all levels of the table `name`.

        Raises ValueError for an unknown table and for vectors of another shape or not finite.
        """
        table = next((each for each in self.tables if each.name == name), None)
        if table is None:
            raise ValueError(f"there is no table '{name}'")
        if vectors.shape != (len(keys), table.width) or not np.isfinite(vectors).all():
            raise ValueError(f"{name} takes {len(keys)} finite vectors of {table.width}")
        table.update(keys, vectors)

    def close(self) -> None:
        """End all threads and let go of the databases."""
        self.closed.set()
        for table in getattr(self, "tables", []) if self._workers else []:
            table.stop_worker()
        for worker in self._workers:
            worker.join()
        self._workers = []
        if self._pool:
            self._pool.shutdown()
        for each in self._open:
            with suppress(Exception):
                each.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, work: Callable[..., None], *arguments: object) -> Thread:
        """Run `work` in a thread that ends when `closed` is set."""
        thread = Thread(target=work, args=arguments, name="hps", daemon=True)
        self._workers.append(thread)
        thread.start()
        return thread

    def resolve(self, path: str) -> Path:
        """Return where a path of the settings is that is not a table's: a relative one begins at
        $HPS_FOLDER, or else in the folder for temporary files.
        """
        return Path(os.environ.get(FOLDER) or tempfile.gettempdir()) / path

    def _refresh_at_intervals(self) -> None:
        wait = self.model.refresh_delay + self.model.refresh_interval
        while not self.closed.wait(wait):
            try:
                self.refresh()
            except Exception as error:  # a database that is gone may come back
                LOG.warning("the caches were not refreshed: %s", error)
            wait = self.model.refresh_interval

    def _connect(self) -> Any:
        if self.settings.volatile_db.type != "redis_cluster":
            return None
        from . import redis_map

        connection = redis_map.connect(self.settings.volatile_db)
        self._open.append(connection)
        return connection

    def _table(self, place: int, read_only: bool) -> Table:
        model, volatile = self.model, self.settings.volatile_db
        name = model.embedding_table_names[place]
        width = model.embedding_vecsize_per_table[place]
        default = model.default_value_for_each_table
        levels: list[Database] = []
        if volatile.type == "redis_cluster":
            from .redis_map import RedisMap

            levels.append(RedisMap(self._connection, f"{model.model}.{name}", width, volatile))
        elif volatile.type != "disabled":
            levels.append(
                HashMap(
                    width,
                    volatile.num_partitions,
                    volatile.overflow_margin,
                    volatile.overflow_policy,
                    volatile.overflow_resolution_target,
                    volatile.refresh_time_after_fetch,
                )
            )
        if self.settings.persistent_db.type == "rocks_db":
            from .rocks import Rocks

            path = self.resolve(self.settings.persistent_db.path) / f"{model.model}.{name}"
            own = self.settings.persistent_db.read_only
            rocks = Rocks(path, width, read_only or own)
            levels.append(rocks)
            self._open.append(rocks)
        if not levels:
            LOG.warning("%s has no database, so every vector is the default", name)
        return Table(
            name,
            width,
            levels,
            new_cache(model.gpucacheper, self.rows[place], width, self.device)
            if model.gpucache
            else None,
            default[place] if place < len(default) else 0.0,
            model.hit_rate_threshold,
            promote=volatile.cache_missed_embeddings,
        )

    def _load(self, place: int, read_only: bool) -> None:
        """Fill the databases of a table with its folder, unless they were filled with it before or,
        if `read_only`, are not this process's own.
        """
        table, folder = self.tables[place], self.folders[place]
        volatile, persistent = self.settings.volatile_db, self.settings.persistent_db
        mark, share = _folder_token(folder), volatile.initial_cache_rate
        todo = []
        for level in table.levels:
            own = persistent if level.is_persistent else volatile
            many = self.rows[place] if level.is_persistent else int(share * self.rows[place])
            if level.outlives_process and (read_only or level.load_token() == f"{mark} {many}"):
                continue
            if own.initialize_after_startup:
                todo.append((level, many, own.max_batch_size))
        for level, many, _ in todo:
            level.clear()  # of another table, or of one that was loaded by half
            level.reserve(many)
        done, said = 0, time.monotonic()
        for keys, vectors in files.read(folder, table.width) if todo else ():
            for level, many, step in todo:
                for start in range(0, min(len(keys), many - done), step):
                    end = min(start + step, many - done)
                    level.insert(keys[start:end], vectors[start:end])
            done += len(keys)
            if time.monotonic() - said > SAY_SECONDS:
                said = time.monotonic()
                self.say(f"{table.name}: {done:,} of {self.rows[place]:,} rows loaded")
        for level, many, _ in todo:
            level.set_load_token(f"{mark} {many}")

    def _preload(self, place: int) -> None:
        """Write a table's first rows to its cache, if the settings ask for it."""
        table = self.tables[place]
        wanted = self.model.init_ec and self.model.cache_refresh_percentage_per_iteration > 0
        if table.cache is None or not wanted:
            return
        left = int(self.model.gpucacheper * self.rows[place])
        for keys, vectors in files.read(self.folders[place], table.width):
            table.cache.insert(keys[:left], vectors[:left])
            left -= len(keys)
            if left <= 0:
                return


def new_cache(share: float, rows: int, width: int, device: str) -> Any:
    """Make the cache of a table, in this process's memory or on the GPU."""
    count = max(1, int(share * rows))
    return DeviceCache(count, width, "cuda") if device == "gpu" else Cache(count, width)


def _device_of(wanted: str) -> str:
    """Return the device of the caches: a GPU needs PyTorch, which Triton's image lacks."""
    if wanted != "gpu":
        return wanted
    try:
        import torch
    except ImportError:
        LOG.warning("PyTorch is not installed, so the caches use this host's memory")
        return "cpu"
    if not torch.cuda.is_available():
        LOG.warning("PyTorch finds no GPU, so the caches use this host's memory")
        return "cpu"
    return "gpu"


def _folder_token(folder: Path) -> str:
    """Return a digest of a folder: of its files' sizes, times, and first and last MB."""
    found = hashlib.sha256()
    for name in (files.KEYS, files.VECTORS):
        path = folder / name
        size, changed = path.stat().st_size, path.stat().st_mtime_ns
        found.update(f"{name} {size} {changed} ".encode())
        with path.open("rb") as file:
            found.update(file.read(2**20))
            file.seek(max(0, size - 2**20))
            found.update(file.read(2**20))
    return found.hexdigest()[:16]
