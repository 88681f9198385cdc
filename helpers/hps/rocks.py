"""The persistent database: one table in RocksDB, which keeps on disk what memory does not hold."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from .table import Database, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    Keys = NDArray[np.int64]
    Vectors = NDArray[np.float32]

MARK = b"mark"  # keys of rows have 8 bytes


class Rocks(Database):
    """Rows of float32 [width] by key, in the database at `path`, which one process may write.

    Raises `Unavailable` for a database that another process has open, or a damaged one.
    """

    is_persistent = outlives_process = True

    def __init__(self, path: Path, width: int, read_only: bool = False) -> None:
        import rocksdict

        self._width, self._kinds = width, rocksdict
        options = rocksdict.Options(raw_mode=True)
        options.set_compression_type(rocksdict.DBCompressionType.none())  # floats hardly shrink
        access = rocksdict.AccessType
        path.parent.mkdir(parents=True, exist_ok=True)
        mode = access.read_only() if read_only else access.read_write()
        self._path, self._options, self._mode = path, options, mode
        with self._explained():
            self._db: Any = rocksdict.Rdict(str(path), options, access_type=mode)

    def insert(self, keys: Keys, vectors: Vectors) -> None:
        """Write vectors [n, width] of keys [n], all of them or none."""
        batch, names = self._kinds.WriteBatch(raw_mode=True), keys.astype(">i8").tobytes()
        values = np.ascontiguousarray(vectors, "<f4").tobytes()
        size = 4 * self._width
        for index in range(len(keys)):
            batch.put(names[8 * index : 8 * index + 8], values[size * index : size * index + size])
        with self._explained():
            self._db.write(batch)

    def fetch(self, keys: Keys, out: Vectors) -> NDArray[np.int64]:
        with self._explained():
            names = keys.astype(">i8").tobytes()
            blobs = self._db[[names[at : at + 8] for at in range(0, len(names), 8)]]
        present = [i for i, blob in enumerate(blobs) if blob and len(blob) == 4 * self._width]
        if present:
            joined = b"".join(blobs[i] for i in present)
            out[present] = np.frombuffer(joined, "<f4").reshape(-1, self._width)
        return np.delete(np.arange(len(keys)), present)

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
            self._db = self._kinds.Rdict(str(self._path), self._options, access_type=self._mode)

    def load_token(self) -> str:
        with self._explained():
            return (self._db.get(MARK) or b"").decode()

    def set_load_token(self, text: str) -> None:
        with self._explained():
            self._db[MARK] = text.encode()
            self._db.flush()

    def close(self) -> None:
        """Close the database, and release its lock, for which other processes wait."""
        self._db.close()
