"""Tables of samples as numbers, for a model whose inputs have no described meaning."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from helpers.display import Table, table
from helpers.models import Arrays
from helpers.models._arrays import Answers, answers, concatenate, spread, take
from helpers.models._own.data import Samples

VALUES = 4  # shown per tensor
ROWS = 8


def show_samples(dataset: Samples, infer: Answers, count: int = ROWS) -> Table:
    """Show samples, spread over the whole set, and the reference's output for each."""
    chosen = spread(len(dataset), count)
    places = dataset.places[chosen]
    batch = take(dataset.everything, places)
    return table(_rows(dataset, places, batch, answers(infer, batch, chosen)), "Samples")


def show_answers(dataset: Samples, infer: Callable[[Arrays], Arrays], count: int = 4) -> Table:
    """Send samples, one per request, and show the response to each."""
    places = dataset.places[spread(len(dataset), count)]
    batch = take(dataset.everything, places)
    results = concatenate(infer(take(batch, slice(row, row + 1))) for row in range(len(places)))
    return table(_rows(dataset, places, batch, results), "Outputs of the served model")


def _rows(
    dataset: Samples, places: NDArray[np.int64], batch: Arrays, outputs: Arrays
) -> list[dict[str, str | int]]:
    rows = []
    for row, sample in enumerate(places.tolist()):
        cells: dict[str, str | int] = {"sample": sample}
        cells |= {name: _first(array[row]) for name, array in batch.items()}
        classes = dataset.classes
        cells |= {f"{name} (output)": _first(a[row], classes) for name, a in outputs.items()}
        if dataset.labels is not None:
            cells["label"] = _first(np.asarray(dataset.labels[sample]))
        rows.append(cells)
    return rows


def _first(array: NDArray[Any], classes: Sequence[str] = ()) -> str:
    """Format the first values of a tensor; of scores, the largest and its class or index too.
    Bytes that are a text are shown as it.
    """
    flat = array.reshape(-1)
    if flat.dtype == np.uint8:
        with suppress(UnicodeDecodeError):
            if (text := bytes(flat).rstrip(b"\0").decode()).isprintable() and text:
                return text
    shown = ", ".join(f"{value:.4g}" for value in flat[:VALUES])
    if flat.size <= VALUES and len(classes) != flat.size:
        return shown
    parts = [f"{flat.size:,} values"] if flat.size > VALUES else []
    if flat.dtype.kind == "f":
        best = int(flat.argmax())
        where = classes[best] if len(classes) == flat.size else best
        parts.append(f"largest {flat[best]:.4g} at {where}")
    return f"{shown}{', ...' if flat.size > VALUES else ''} ({', '.join(parts)})"
