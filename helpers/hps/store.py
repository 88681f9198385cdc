"""The store of all embedding tables of one model, built from NVIDIA's JSON, and how it is loaded,
refreshed and updated.
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

COMPANIONS = ("redis_map.py", "rocks.py")  # imported late: a change of one is a change here
LOG = logging.getLogger("hps")
FOLDER = "HPS_FOLDER"  # the variable with the folder of a database's relative path
SAY_SECONDS = 5.0
EXACT = 1.1  # a threshold that no hit rate reaches: every lookup waits for its vectors


class Store:
    """The tables of the settings' model, whose folders are relative to `folder`. If `read_only`,
    databases that other processes share are not written. `log` gets messages for the user.

    Raises `BadTable` for a damaged folder, and the errors of a missing database.
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
        self.folders = [folder / name for name in self.model.sparse_files]
        self.device, self.say = _device_of(device), log
        sizes = self.model.embedding_vecsize_per_table
        self.rows = [files.rows(path, width) for path, width in zip(self.folders, sizes)]
        self.folder, self.closed = folder, Event()
        self._open: list[Any] = []
        self._pool = ThreadPoolExecutor(threads, "hps-lookup") if threads > 1 else None
        self._workers: list[Thread] = []
        try:
            self._connection = self._connect()
            self.tables = [self._table(index, read_only) for index in range(len(sizes))]
            for index in range(len(sizes)):
                self._load(index, read_only)
            for index in range(len(sizes)):
                self._preload(index)
        except BaseException:
            self.close()
            raise
        for table in self.tables:
            self.start(table.run_insert_worker)
        if self.model.refresh_interval:
            self.start(self._refresh_at_intervals)

    def lookup(self, keys: Keys, counts: Sequence[int]) -> Any:
        """Return the vectors of keys [n] as one float32 [n x width], on a GPU as a tensor there.

        `counts` has the number of keys of each table, in order. Raises ValueError for counts that
        do not match the keys or the tables.
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
        """Allocate an array for vectors on the device of the caches."""
        if self.device != "gpu":
            return np.empty(size, np.float32)
        import torch

        return torch.empty(size, dtype=torch.float32, device="cuda")

    def insert_synchronously(self) -> None:
        """Insert synchronously from now on, at every hit rate, so that outputs are exact."""
        for table in self.tables:
            table.threshold = EXACT

    def counts(self) -> Counts:
        """Return the sum of the tables' counts so far."""
        total = Counts()
        for table in self.tables:
            total.add(table.counts)
        return total

    def drain(self) -> None:
        """Wait until all keys that were missing so far are inserted."""
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
        table = next((table for table in self.tables if table.name == name), None)
        if table is None:
            raise ValueError(f"there is no table '{name}'")
        if vectors.shape != (len(keys), table.width) or not np.isfinite(vectors).all():
            raise ValueError(f"{name} takes {len(keys)} finite vectors of {table.width}")
        table.update(keys, vectors)

    def close(self) -> None:
        """End all threads and close the databases."""
        self.closed.set()
        for table in getattr(self, "tables", []) if self._workers else []:
            table.stop_worker()
        for worker in self._workers:
            worker.join()
        self._workers = []
        if self._pool:
            self._pool.shutdown()
        for handle in self._open:
            with suppress(Exception):
                handle.close()

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
        """Resolve a path of the settings that is not a table's: a relative one is in $HPS_FOLDER,
        or else in the folder for temporary files.
        """
        return Path(os.environ.get(FOLDER) or tempfile.gettempdir()) / path

    def _refresh_at_intervals(self) -> None:
        wait = self.model.refresh_delay + self.model.refresh_interval
        while not self.closed.wait(wait):
            try:
                self.refresh()
            except Exception as error:  # a database may be available again later
                LOG.warning("the caches were not refreshed: %s", error)
            wait = self.model.refresh_interval

    def _connect(self) -> Any:
        if self.settings.volatile_db.type != "redis_cluster":
            return None
        from . import redis_map

        connection = redis_map.connect(self.settings.volatile_db)
        self._open.append(connection)
        return connection

    def _table(self, index: int, read_only: bool) -> Table:
        model, volatile = self.model, self.settings.volatile_db
        name = model.embedding_table_names[index]
        width = model.embedding_vecsize_per_table[index]
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
            is_read_only = self.settings.persistent_db.read_only
            rocks = Rocks(path, width, read_only or is_read_only)
            levels.append(rocks)
            self._open.append(rocks)
        if not levels:
            LOG.warning("%s has no database, so every vector is the default", name)
        return Table(
            name,
            width,
            levels,
            new_cache(model.gpucacheper, self.rows[index], width, self.device)
            if model.gpucache
            else None,
            default[index] if index < len(default) else 0.0,
            model.hit_rate_threshold,
            promote=volatile.cache_missed_embeddings,
        )

    def _load(self, index: int, read_only: bool) -> None:
        """Load the folder of a table into its databases.

        A database that has these rows already is skipped; with `read_only`, also a shared one.
        """
        table, folder = self.tables[index], self.folders[index]
        volatile, persistent = self.settings.volatile_db, self.settings.persistent_db
        token, share = _folder_token(folder), volatile.initial_cache_rate
        todo = []
        for level in table.levels:
            settings = persistent if level.is_persistent else volatile
            many = self.rows[index] if level.is_persistent else int(share * self.rows[index])
            if level.outlives_process and (read_only or level.load_token() == f"{token} {many}"):
                continue
            if settings.initialize_after_startup:
                todo.append((level, many, settings.max_batch_size))
        for level, many, _ in todo:
            level.clear()  # rows of another table, or of an incomplete load
            level.reserve(many)
        done, reported = 0, time.monotonic()
        for keys, vectors in files.read(folder, table.width) if todo else ():
            for level, many, step in todo:
                for start in range(0, min(len(keys), many - done), step):
                    end = min(start + step, many - done)
                    level.insert(keys[start:end], vectors[start:end])
            done += len(keys)
            if time.monotonic() - reported > SAY_SECONDS:
                reported = time.monotonic()
                self.say(f"{table.name}: {done:,} of {self.rows[index]:,} rows loaded")
        for level, many, _ in todo:
            level.set_load_token(f"{token} {many}")

    def _preload(self, index: int) -> None:
        """Write a table's first rows to its cache, if the settings enable it."""
        table = self.tables[index]
        is_enabled = self.model.init_ec and self.model.cache_refresh_percentage_per_iteration > 0
        if table.cache is None or not is_enabled:
            return
        left = int(self.model.gpucacheper * self.rows[index])
        for keys, vectors in files.read(self.folders[index], table.width):
            table.cache.insert(keys[:left], vectors[:left])
            left -= len(keys)
            if left <= 0:
                return


def new_cache(share: float, rows: int, width: int, device: str) -> Any:
    """Return a new cache of a table, in this process's memory or on the GPU."""
    count = max(1, int(share * rows))
    return DeviceCache(count, width, "cuda") if device == "gpu" else Cache(count, width)


def _device_of(device: str) -> str:
    """Return the device of the caches: a GPU needs PyTorch, which Triton's image lacks."""
    if device != "gpu":
        return device
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
    folder_hash = hashlib.sha256()
    for name in (files.KEYS, files.VECTORS):
        path = folder / name
        size, changed = path.stat().st_size, path.stat().st_mtime_ns
        folder_hash.update(f"{name} {size} {changed} ".encode())
        with path.open("rb") as file:
            folder_hash.update(file.read(2**20))
            file.seek(max(0, size - 2**20))
            folder_hash.update(file.read(2**20))
    return folder_hash.hexdigest()[:16]
