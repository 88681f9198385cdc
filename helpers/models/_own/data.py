"""Samples of the user's model: one array for each input in an `.npz`, or drawn at random."""

from collections.abc import Sequence
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from helpers.errors import DataError, as_error
from helpers.models import Arrays, Config, Dataset, Tensor
from helpers.models._arrays import take
from helpers.models._own import MIN_FOR_CALIBRATION, Array, Own, metrics
from helpers.store import from_root

FILE, TRAINING = "samples.npz", "training.npz"  # of drawn samples
DRAWN, FEWEST, BYTES = 128, 8, 64e6  # samples at most and at least, and bytes of all of them
SHARE = 4  # one in so many samples is for calibration


def write_drawn(model: Own, config: Config, folder: Path) -> None:
    """Draw samples to evaluate and others to calibrate by."""
    tensors = model.inputs(config)
    sample_bytes = sum(prod(each.shape) * np.dtype(each.dtype).itemsize for each in tensors)
    count = int(min(DRAWN, max(FEWEST, BYTES // max(sample_bytes, 1))))
    for seed, name in enumerate((FILE, TRAINING)):
        np.savez(folder / name, allow_pickle=False, **drawn(model, config, count, seed))


def drawn(model: Own, config: Config, count: int, seed: int = 0) -> Arrays:
    """Draw `count` samples: standard normal numbers, whole numbers within their limits, and truth
    values.
    """
    draw, arrays = np.random.default_rng(seed), {}
    for spec, tensor in zip(model.description.inputs, model.inputs(config), strict=True):
        shape, kind = (count, *tensor.shape), np.dtype(tensor.dtype).kind
        if kind == "f":
            array: Array = draw.standard_normal(shape, np.float32)
        else:
            array = draw.integers(*((0, 2) if kind == "b" else (spec.least, spec.below)), shape)
        arrays[tensor.name] = array.astype(tensor.dtype)
    return arrays


def read(path: Path, tensors: Sequence[Tensor]) -> Arrays:
    """Read the samples of the `tensors` from an `.npz`: an array for each, one row a sample.

    Raises DataError for a name, type or shape that is not the input's. Also for different numbers
    of rows, and for a number that is not finite.
    """
    arrays = load(path)
    check_names(path, arrays, [tensor.name for tensor in tensors])
    for tensor in tensors:
        array, where = arrays[tensor.name], f"{path}: the array '{tensor.name}'"
        if array.ndim == 1 and tensor.shape == (1,):  # a number for each sample
            array = arrays[tensor.name] = array[:, np.newaxis]
        if array.dtype != tensor.dtype:
            raise DataError(f"{where} is {array.dtype}, but the input takes {tensor.dtype}")
        if array.shape[1:] != tensor.shape or not array.ndim:
            expected = " x ".join(map(str, ("rows", *tensor.shape)))
            raise DataError(f"{where} is {spell(array.shape)}, but the input takes {expected}")
        if not len(array):
            raise DataError(f"{where} has no rows")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            row = int(np.argwhere(~np.isfinite(array))[0][0])
            raise DataError(f"{where} has a number that is not finite in row {row}")
    rows = {tensor.name: len(arrays[tensor.name]) for tensor in tensors}
    if len(set(rows.values())) > 1:
        raise DataError(f"{path} has different numbers of rows: {rows}")
    return {name: arrays[name] for name in rows}


def check_names(path: Path, arrays: Arrays, names: Sequence[str]) -> None:
    """Raise DataError if the arrays of a file have other names than the inputs."""
    for name in (*names, *arrays):
        if name not in arrays or name not in names:
            fault = f"has {'no array' if name in names else 'the array'} '{name}'"
            raise DataError(f"{path} {fault}. The model's inputs are {', '.join(names)}.")


def load(path: Path) -> Arrays:
    """Read every array of an `.npz`; raise DataError for another file and for Python objects."""
    if not path.exists():
        raise DataError(f"{path}: no such file")
    fault = f"{path} is not an .npz of plain arrays"
    with as_error(DataError, fault, 100), np.load(path) as arrays:
        return dict(arrays)


def read_labels(path: Path, rows: int) -> Array:
    """Read the one array of the labels, a row for each sample; raise DataError if there is none."""
    arrays = load(path)
    if len(arrays) != 1:
        raise DataError(f"{path} has {len(arrays)} arrays. Save one array with the labels.")
    (labels,) = arrays.values()
    if labels.ndim < 1 or len(labels) != rows:
        has = f"{len(labels) if labels.ndim else 1} labels"
        raise DataError(f"{path} has {has}, but there are {rows} samples")
    if labels.dtype.kind not in "iufb" or (
        labels.dtype.kind == "f" and not np.isfinite(labels).all()
    ):
        raise DataError(f"{path} has labels that are not finite numbers")
    return labels


def spell(shape: Sequence[int | str]) -> str:
    """Format a shape for a reader."""
    return " x ".join(map(str, shape)) or "one number"


class Samples(Dataset):
    """The samples of a file in order, with the decisions and scores of their outputs."""

    def __init__(self, model: Own, config: Config, path: Path, are_given: bool) -> None:
        """Read them. Of enough samples that `are_given`, not drawn, some are for calibration."""
        self.everything = read(path, model.inputs(config))
        places = np.arange(len(next(iter(self.everything.values()))))
        is_kept = (places % SHARE == SHARE - 1) & are_given & (len(places) >= MIN_FOR_CALIBRATION)
        self.training, self.places = places[is_kept], places[~is_kept]
        self._model, labels = model, config.labels
        self.classes = model.description.classes
        self.labels = read_labels(from_root(labels), len(places)) if labels else None

    @property
    def facts(self) -> dict[str, str | int]:
        metadata: dict[str, str | int] = {"samples": len(self)}
        if len(self.training):
            metadata["kept for calibration"] = len(self.training)
        if self.labels is not None:
            metadata["labels"] = f"{len(np.unique(self.labels))} different ones"
        return metadata

    def __len__(self) -> int:
        return len(self.places)

    def take(self, places: NDArray[np.int64]) -> Arrays:
        return take(self.everything, self.places[places])

    def score(self, outputs: Arrays) -> dict[str, float]:
        if self.labels is None or not self._model.METRICS:
            return {}
        return self._model.score(outputs, self.labels[self.places])

    def decisions(self, outputs: Arrays) -> Array:
        first = next(iter(outputs.values()))
        if self._model.description.decision == "class":
            return metrics.classes(first)
        return np.asarray(first.reshape(len(first), -1))
