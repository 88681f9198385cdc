"""The persistent database: one table in RocksDB, which keeps on disk what memory does not hold."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from .table import Database, Unavailable, as_bytes, copy_blobs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from .files import Keys, Places, Vectors

MARK = b"mark"  # keys of rows have 8 bytes


class Rocks(Database):
    """Rows of float32 [width] by key, in the database at `path`, which one process may write.

    Raises `Unavailable` for a database that another process has open, or a damaged one.
    """

    is_persistent = outlives_process = True

    def __init__(self, path: Path, read_only: bool = False) -> None:
        import rocksdict

        self._path, self._kinds = path, rocksdict
        options = rocksdict.Options(raw_mode=True)
        options.set_compression_type(rocksdict.DBCompressionType.none())  # floats hardly shrink
        access = rocksdict.AccessType
        mode = access.read_only() if read_only else access.read_write()
        self._open = partial(rocksdict.Rdict, str(path), options, access_type=mode)
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._explained():
            self._db: Any = self._open()

    def insert(self, keys: Keys, vectors: Vectors) -> None:
        """Write vectors [n, width] of keys [n], all of them or none."""
        batch = self._kinds.WriteBatch(raw_mode=True)
        for name, value in zip(as_bytes(keys, ">i8"), as_bytes(vectors, "<f4")):
            batch.put(name, value)
        with self._explained():
            self._db.write(batch)

    def fetch(self, keys: Keys, out: Vectors) -> Places:
        with self._explained():
            blobs = self._db[as_bytes(keys, ">i8")]
        return copy_blobs(blobs, np.arange(len(keys)), out)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # rocksdict has one kind, with RocksDB's words
            reason = " ".join(str(error).split())
            if ("lock" in reason.lower() and "held" in reason.lower()) or "LOCK" in reason:
                reason = "another process is using it"
            raise Unavailable(f"RocksDB at {self._path}: {reason[:200]}") from None

    def clear(self) -> None:
        with self._explained():
            self._db.close()
            self._kinds.Rdict.destroy(str(self._path))
            self._db = self._open()

    def load_token(self) -> str:
        with self._explained():
            return (self._db.get(MARK) or b"").decode()

    def set_load_token(self, text: str) -> None:
        with self._explained():
            self._db[MARK] = text.encode()
            self._db.flush()

    def close(self) -> None:
        self._db.close()  # and release its lock, for which other processes wait
