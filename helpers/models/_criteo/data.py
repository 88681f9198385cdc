"""The samples of a split-binary folder: files, batches and metrics."""

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from helpers.errors import DataError
from helpers.models import Arrays, Dataset
from helpers.models._criteo import spec
from helpers.models._criteo.tables import NUMERICAL

INPUTS = ("categorical_features", "numerical_features")
OUTPUT = "DENSE_OUTPUT"

Rows = slice | NDArray[np.int64]


class Samples(NamedTuple):
    """Samples with their features and labels."""

    categorical: NDArray[np.int32]  # [samples, 26]: rows of the tables
    numerical: NDArray[np.float32]  # [samples, 13]
    clicks: NDArray[np.bool_]  # [samples]

    @property
    def inputs(self) -> Arrays:
        """Return the network's inputs by name."""
        return dict(zip(INPUTS, self[:2], strict=True))


class SplitBinary(Dataset):
    """A part of a split-binary folder, "train" or "test", every sample of it; NVIDIA's reader drops
    a last batch that is not full.

    `tables` are the rows of the network's tables, which have to be the folder's. Raises DataError
    for another folder and for a file that is missing, empty or of another length than the label's.
    """

    def __init__(
        self, folder: Path, tables: tuple[int, ...] | None = None, part: str = "test"
    ) -> None:
        self.spec = spec.read(folder)
        sizes = self.spec.cardinalities
        for feature, (size, rows) in enumerate(zip(sizes, tables or sizes, strict=True)):
            if size != rows:
                raise DataError(
                    f"{folder / spec.FILE}: feature {feature} has {size:,} ids, but the network's "
                    f"table has {rows:,} rows. Use variant 'own', which takes the folder's."
                )
        self._files = numbers, label, *ids = self.spec.parts[part]
        self._numerical = _mapped(numbers, f"({NUMERICAL},)float16")
        self._clicks = _mapped(label, "uint8")
        self._ids = list(map(_mapped, ids, self.spec.dtypes))
        for path, array in zip((numbers, *ids), (self._numerical, *self._ids), strict=True):
            if len(array) != len(self):
                text = f"{len(array):,} samples, but {label.name} has {len(self):,}"
                raise DataError(f"{path} has {text}")

    @property
    def facts(self) -> dict[str, str | int]:
        return {
            "samples": len(self),
            "clicks": int(self.clicks().sum()),
            "rows of all tables": sum(self.spec.cardinalities),
            "origin": str(self.spec.metadata.get("origin", "folder")),
        }

    def __len__(self) -> int:
        return len(self._clicks)

    def take(self, places: NDArray[np.int64]) -> Arrays:
        """Read int32 [samples, 26] and float32 [samples, 13]."""
        return self.read(places).inputs

    def read(self, rows: Rows) -> Samples:
        """Read the samples `rows`, a slice or indices in any order.

        Raises DataError for an id outside its table, a number that is not finite and a label other
        than 0 and 1.
        """
        numbers, _, *ids = self._files
        clicks, tables = self.clicks(rows), self.spec.cardinalities
        numerical = self._numerical[rows].astype(np.float32)
        if not np.isfinite(numerical).all():
            raise DataError(f"{numbers} has a number that is not finite")
        columns = [column[rows] for column in self._ids]
        categorical: NDArray[np.int32] = np.stack(columns, axis=1, dtype=np.int32)
        wrong = (categorical < 0) | (categorical >= tables)
        if wrong.any():
            row, feature = np.argwhere(wrong)[0]
            text = f"{categorical[row, feature]}, but its table has {tables[feature]:,} rows"
            raise DataError(f"{ids[feature]} has the id {text}")
        return Samples(categorical, numerical, clicks)

    def clicks(self, rows: Rows = slice(None)) -> NDArray[np.bool_]:
        """Read the labels of the samples `rows`; raise DataError for one other than 0 and 1."""
        labels = self._clicks[rows]
        if len(labels) and labels.max() > 1:
            raise DataError(f"{self._files[1]} has a label other than 0 and 1")
        return np.asarray(labels, dtype=np.bool_)

    def score(self, outputs: Arrays) -> dict[str, float]:
        """Return the area under the ROC curve and the mean cross-entropy of all logits.

        The output is [samples] or [samples, 1]; raises DataError for another shape, and where all
        samples are clicks or none is.
        """
        logits, clicks = outputs[OUTPUT], self.clicks()
        if logits.shape not in ((len(self),), (len(self), 1)):
            raise DataError(f"{OUTPUT} is {list(logits.shape)} and should be [{len(self)}]")
        if clicks.all() or not clicks.any():
            raise DataError("The area under the ROC curve needs samples with and without clicks.")
        values = logits.reshape(-1).astype(np.float64)
        return {"auc": auc(clicks, values), "bce": cross_entropy(clicks, values)}

    def decisions(self, outputs: Arrays) -> NDArray[np.bool_]:
        """Return for each sample whether a click is likelier than none."""
        return np.asarray(outputs[OUTPUT].reshape(-1) > 0)


def auc(clicks: NDArray[np.bool_], logits: NDArray[np.float64]) -> float:
    """Return the share of (click, no click) pairs that `logits` rank correctly; ties count half.

    This is the exact area under the ROC curve; NVIDIA's code approximates it with 8,000 thresholds
    (Keras's AUC). Both arrays are [samples]; a logit that is not a number makes it NaN.
    """
    from sklearn.metrics import roc_auc_score  # type: ignore[import-untyped, unused-ignore]

    return float(roc_auc_score(clicks, logits)) if np.isfinite(logits).all() else float("nan")


def cross_entropy(clicks: NDArray[np.bool_], logits: NDArray[np.float64]) -> float:
    """Return the mean negative log-likelihood of the labels, in nats."""
    with np.errstate(invalid="ignore"):  # NaN stays NaN
        return float(np.logaddexp(0, np.where(clicks, -logits, logits)).mean())


def write_part(folder: Path, cardinalities: Sequence[int], batches: Iterable[Samples]) -> None:
    """Write the files of a new part into the new folder `folder`, one batch at a time."""
    folder.mkdir()
    dtypes = [spec.id_type(rows) for rows in cardinalities]
    with ExitStack() as stack:
        numerical, label, *ids = (
            stack.enter_context((folder / name).open("wb")) for name in spec.FEATURES_OF
        )
        for samples in batches:
            numerical.write(samples.numerical.astype("<f2").tobytes())
            label.write(samples.clicks.tobytes())
            for file, dtype, column in zip(ids, dtypes, samples.categorical.T, strict=True):
                file.write(column.astype(dtype).tobytes())


def _mapped(path: Path, sample: str) -> NDArray[np.generic]:
    """Map a file of samples of one numpy type, without reading it."""
    try:
        return np.memmap(path, sample, "r")
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is not a file of {np.dtype(sample)} samples: {error}") from None
