"""How the samples of a split-binary folder lie on disk, are read in batches, and are scored."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from helpers.errors import DataError
from helpers.models import Arrays
from helpers.models._criteo import metric, spec
from helpers.models._criteo.spec import Spec
from helpers.models._criteo.tables import NUMERICAL

INPUTS = ("categorical_features", "numerical_features")
OUTPUT = "DENSE_OUTPUT"

Rows = slice | NDArray[np.int64]


class Samples(NamedTuple):
    """Some samples, as they are computed with."""

    categorical: NDArray[np.int32]  # [samples, 26]: rows of the tables
    numerical: NDArray[np.float32]  # [samples, 13]
    clicks: NDArray[np.bool_]  # [samples]

    def of(self, rows: Rows) -> "Samples":
        """Choose some of them."""
        return Samples(self.categorical[rows], self.numerical[rows], self.clicks[rows])


class Part:
    """The samples of one part of a folder, on disk: what is asked for is read, in any order.

    Raises DataError for a file that is missing, empty, or of another length than the label's.
    """

    def __init__(self, described: Spec, name: str) -> None:
        files = described.parts[name]
        self._cardinalities = described.cardinalities
        self._files = files
        self._clicks = _mapped(files.label, "uint8")
        self._numerical = _mapped(files.numerical, "float16", NUMERICAL)
        self._ids = [
            _mapped(path, dtype)
            for path, dtype in zip(files.categorical, described.dtypes, strict=True)
        ]
        for path, array in zip(
            (files.numerical, *files.categorical), (self._numerical, *self._ids), strict=True
        ):
            if len(array) != len(self):
                raise DataError(
                    f"{path} holds {len(array):,} samples, and {files.label.name} {len(self):,}"
                )

    def __len__(self) -> int:
        return len(self._clicks)

    def take(self, rows: Rows) -> Samples:
        """Read the samples `rows`, a slice or indices.

        Raises DataError for an id outside its table, a number that is not finite and a label other
        than 0 and 1.
        """
        clicks = self.clicks(rows)
        numerical = self._numerical[rows].astype(np.float32)
        if not np.isfinite(numerical).all():
            raise DataError(f"{self._files.numerical} holds a number that is not finite")
        categorical = np.empty((len(clicks), len(self._ids)), dtype=np.int32)
        for place, (ids, table) in enumerate(zip(self._ids, self._cardinalities, strict=True)):
            column = categorical[:, place]
            column[:] = ids[rows]
            if len(column) and not 0 <= column.min() <= column.max() < table:
                wrong = column[(column < 0) | (column >= table)][0]
                raise DataError(
                    f"{self._files.categorical[place]} holds the id {wrong}, and its table has "
                    f"{table:,} rows"
                )
        return Samples(categorical, numerical, clicks)

    def clicks(self, rows: Rows = slice(None)) -> NDArray[np.bool_]:
        """Read the labels of the samples `rows`; raise DataError for one other than 0 and 1."""
        found = self._clicks[rows]
        if len(found) and found.max() > 1:
            raise DataError(f"{self._files.label} holds a label other than 0 and 1")
        return np.asarray(found, dtype=np.bool_)

    def batches(self, batch_size: int, limit: int | None = None) -> Iterator[Samples]:
        """Read all samples in order, or `limit` of them, spread evenly; the last batch may be
        short.
        """
        count = len(self) if limit is None else min(limit, len(self))
        for start in range(0, count, batch_size):
            stop = min(start + batch_size, count)
            places = np.arange(start, stop) * len(self) // count
            yield self.take(slice(start, stop) if count == len(self) else places)


def read(folder: Path, part: str) -> Part:
    """Open the part "train" or "test" of a split-binary folder; raise DataError for another one."""
    return Part(spec.read(folder), part)


class SplitBinary:
    """The part `test` of a split-binary folder, every sample of it; NVIDIA's reader drops a last
    batch that is not full.

    `tables` are the rows of the network's tables, which have to be the folder's; `inputs` name the
    ids and the numbers, `output` the logits. Raises DataError for another layout.
    """

    def __init__(
        self,
        folder: Path,
        tables: tuple[int, ...] | None = None,
        inputs: tuple[str, str] = INPUTS,
        output: str = OUTPUT,
    ) -> None:
        self.spec = spec.read(folder)
        self.test = Part(self.spec, "test")
        self._inputs, self._output = inputs, output
        own = self.spec.cardinalities
        for place, (found, wanted) in enumerate(zip(own, tables or own, strict=True)):
            if found != wanted:
                raise DataError(
                    f"{folder / spec.FILE}: feature {place} has {found:,} ids and the network's "
                    f"table {wanted:,} rows; variant 'own' takes the folder's"
                )

    @property
    def facts(self) -> dict[str, str | int]:
        """Number of samples, of clicks among them and of rows of all tables, and the origin."""
        return {
            "samples": len(self),
            "clicks": int(self.test.clicks().sum()),
            "rows of all tables": sum(self.spec.cardinalities),
            "origin": str(self.spec.metadata.get("origin", "folder")),
        }

    def __len__(self) -> int:
        return len(self.test)

    def batches(self, batch_size: int, limit: int | None = None) -> Iterator[Arrays]:
        """Yield int32 [batch, 26] and float32 [batch, 13]."""
        for samples in self.test.batches(batch_size, limit):
            yield self.inputs(samples)

    def inputs(self, samples: Samples) -> Arrays:
        """Name what the network reads of some samples."""
        return dict(zip(self._inputs, samples[:2], strict=True))

    def score(self, outputs: Arrays) -> dict[str, float]:
        """Give the area under the ROC curve and the mean cross-entropy of the logits of all.

        The output is [samples] or [samples, 1]; raises DataError for another shape, and where all
        samples are clicks or none is.
        """
        logits, clicks = outputs[self._output], self.test.clicks()
        if logits.shape not in ((len(self),), (len(self), 1)):
            raise DataError(f"{self._output} is {list(logits.shape)} and should be [{len(self)}]")
        if clicks.all() or not clicks.any():
            raise DataError("the samples are all clicks or all none: there is no area under a ROC")
        values = logits.reshape(-1).astype(np.float64)
        return {"auc": metric.auc(clicks, values), "bce": metric.cross_entropy(clicks, values)}


@contextmanager
def writing(folder: Path, cardinalities: tuple[int, ...]) -> Iterator[Callable[[Samples], None]]:
    """Open the files of a new part in `folder`; what is given appends some samples to them."""
    folder.mkdir()
    dtypes = [spec.id_type(rows) for rows in cardinalities]
    with ExitStack() as stack:
        numerical, label, *ids = (
            stack.enter_context((folder / name).open("wb"))
            for name in (spec.NUMERICAL_FILE, spec.LABEL_FILE, *spec.categorical_files())
        )

        def append(samples: Samples) -> None:
            numerical.write(samples.numerical.astype("<f2").tobytes())
            label.write(samples.clicks.tobytes())
            for file, dtype, column in zip(ids, dtypes, samples.categorical.T, strict=True):
                file.write(column.astype(dtype).tobytes())

        yield append


def _mapped(path: Path, dtype: str, columns: int = 0) -> NDArray[Any]:
    """Map a file as [samples] or [samples, columns], without reading it."""
    width = np.dtype(dtype).itemsize * max(columns, 1)
    if not path.is_file():
        raise DataError(f"{path} is missing: {spec.LAYOUT}")
    size = path.stat().st_size
    if not size or size % width:
        raise DataError(
            f"{path} has {size:,} bytes and should have a multiple of {width}, for each sample"
        )
    shape = (size // width, columns) if columns else (size // width,)
    return np.memmap(path, dtype, "r", shape=shape)
