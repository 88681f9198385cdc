"""The store of a model's embedding tables: built from NVIDIA's JSON, loaded, refreshed, updated."""

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

    from .files import Keys, Vectors
    from .settings import Settings
    from .table import Database

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
            if settings.volatile_db.type == "redis_cluster":
                from . import redis_map

                self._open.append(redis_map.connect(settings.volatile_db))
            self.tables = [self._table(index, read_only) for index in range(len(sizes))]
            for index in range(len(sizes)):
                self._load(index, read_only)
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
        size = sum(count * table.width for count, table in zip(counts, self.tables))
        if self.device == "gpu":
            import torch

            out: Any = torch.empty(size, dtype=torch.float32, device="cuda")
        else:
            out = np.empty(size, np.float32)
        jobs, start, end = [], 0, 0
        for table, count in zip(self.tables, counts):
            part = out[end : end + count * table.width].reshape(count, table.width)
            jobs.append((table, keys[start : start + count], part))
            start, end = start + count, end + count * table.width
        run = self._pool.map if self._pool else map
        list(run(Table.lookup, *zip(*jobs)))
        return out

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
        for table in self.tables if self._workers else []:
            table.stop_worker()
        for worker in self._workers:
            worker.join()
        self._workers = []
        if self._pool:
            self._pool.shutdown()
        for handle in self._open:
            with suppress(Exception):
                handle.close()

    def start(self, work: Callable[..., None], *arguments: object) -> Thread:
        """Run `work` in a thread that ends when `closed` is set."""
        thread = Thread(target=work, args=arguments, name="hps", daemon=True)
        self._workers.append(thread)
        thread.start()
        return thread

    def resolve(self, path: str) -> Path:
        """Resolve a path: a relative one is in $HPS_FOLDER, or else in the temporary folder."""
        return Path(os.environ.get(FOLDER) or tempfile.gettempdir()) / path

    def _refresh_at_intervals(self) -> None:
        wait = self.model.refresh_delay + self.model.refresh_interval
        while not self.closed.wait(wait):
            try:
                for table in self.tables:
                    table.refresh(self.model.cache_refresh_percentage_per_iteration or 1.0)
            except Exception as error:  # a database may be available again later
                LOG.warning("the caches were not refreshed: %s", error)
            wait = self.model.refresh_interval

    def _table(self, index: int, read_only: bool) -> Table:
        model, volatile = self.model, self.settings.volatile_db
        persistent = self.settings.persistent_db
        name, width = model.embedding_table_names[index], model.embedding_vecsize_per_table[index]
        full_name, cache = f"{model.model}.{name}", None
        levels: list[Database] = []
        if volatile.type == "redis_cluster":
            from .redis_map import RedisMap

            levels.append(RedisMap(self._open[0], full_name, volatile))
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
        if persistent.type == "rocks_db":
            from .rocks import Rocks

            path = self.resolve(persistent.path) / full_name
            levels.append(Rocks(path, read_only or persistent.read_only))
            self._open.append(levels[-1])
        if not levels:
            LOG.warning("%s has no database, so every vector is the default", name)
        if model.gpucache:
            count, on_gpu = max(1, int(model.gpucacheper * self.rows[index])), self.device == "gpu"
            cache = DeviceCache(count, width, "cuda") if on_gpu else Cache(count, width)
        defaults = model.default_value_for_each_table
        default = defaults[index] if index < len(defaults) else 0.0
        threshold, promote = model.hit_rate_threshold, volatile.cache_missed_embeddings
        return Table(name, width, levels, cache, default, threshold, promote)

    def _load(self, index: int, read_only: bool) -> None:
        """Load a table's folder into its databases, but for those that have its rows already and,
        with `read_only`, shared ones.
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
        table, model = self.tables[index], self.model
        is_enabled = model.init_ec and model.cache_refresh_percentage_per_iteration > 0
        if table.cache is None or not is_enabled:
            return
        left = int(model.gpucacheper * self.rows[index])
        for keys, vectors in files.read(self.folders[index], table.width):
            table.cache.insert(keys[:left], vectors[:left])
            left -= len(keys)
            if left <= 0:
                return


def _device_of(device: str) -> str:
    """Return the device of the caches: a GPU needs PyTorch, which Triton's image lacks."""
    if device != "gpu":
        return device
    try:
        import torch

        if torch.cuda.is_available():
            return device
        reason = "PyTorch finds no GPU"
    except ImportError:
        reason = "PyTorch is not installed"
    LOG.warning("%s, so the caches use this host's memory", reason)
    return "cpu"


def _folder_token(folder: Path) -> str:
    """Return a digest of a folder: of its files' sizes, times, and first and last MB."""
    folder_hash = hashlib.sha256()
    for name in (files.KEYS, files.VECTORS):
        status = (folder / name).stat()
        folder_hash.update(f"{name} {status.st_size} {status.st_mtime_ns} ".encode())
        with (folder / name).open("rb") as file:
            folder_hash.update(file.read(2**20))
            file.seek(max(0, status.st_size - 2**20))
            folder_hash.update(file.read(2**20))
    return folder_hash.hexdigest()[:16]
