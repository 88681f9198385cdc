"""What NVIDIA published: the 1,218 rows of `params/published`."""

import csv
import re
from collections.abc import Iterable, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError, ValidationInfo, field_validator

from helpers.errors import DataError
from helpers.measure import littles_law
from helpers.report.nvidia.sources import FOLDER, Setup, setup_of, sources
from helpers.results import Row, TableRow
from helpers.store import display_path

LITTLES_LAW = (0.8, 1.2)  # a row outside these bounds contradicts itself

ACCELERATORS = {
    "TensorRT": "NVIDIA TensorRT",  # as ResNet50's tables say
    "trt": "NVIDIA TensorRT",
    "amp": "Automatic FP16",
    "openvino": "OpenVINO",
}

Count = Annotated[int, Field(ge=1)]


class PublishedRow(TableRow, allow_inf_nan=False):
    """A published row; None or "" where nothing is published.

    Where a table has component columns, its `avg_latency_ms` is their sum, not a measured mean.
    `concurrency` counts clients with one request of `batch_size` samples each. `dataset` is TFT's,
    which names the variant of the network too.
    """

    max_batch_size: Count
    instances: Count
    batch_size: Count
    concurrency: Count
    throughput: float

    @field_validator("*", mode="before")
    @classmethod
    def _absent(cls, value: str, info: ValidationInfo) -> str | None:
        """Read an empty cell as not published; two columns of names are empty texts instead."""
        if value and value.startswith("-"):
            raise ValueError("is negative")
        named = info.field_name in ("dataset", "backend_accelerator")
        return value if value or named else None

    @property
    def littles_law(self) -> float | None:
        """Return throughput x average latency over batch x clients: 1 in a consistent row."""
        if self.avg_latency_ms is None:
            return None
        return littles_law(self.throughput, self.avg_latency_ms, self.batch_size, self.concurrency)

    @property
    def format(self) -> str:
        """Return the format and its accelerator, in a few words."""
        names = (self.model_format, self.backend_accelerator)
        return " with ".join(name.replace("NVIDIA ", "") for name in names if name)

    @property
    def served(self) -> str:
        """Return how the model was served, in a few words."""
        return f"{self.format}, {self.precision}"

    @property
    def table(self) -> tuple[str, ...]:
        """Return what identifies the published table of this row."""
        return (self.model, self.gpu, self.scenario, self.dataset, self.served)

    @property
    def slug(self) -> str:
        """Return the name of this row's table in an address."""
        return re.sub(r"\W+", "-", " ".join(filter(None, self.table))).strip("-").lower()

    @cached_property
    def setup(self) -> Setup:
        """Return how NVIDIA measured the row, by the document that published it."""
        return setup_of(self)


def violates_littles_law(row: Row | PublishedRow) -> bool:
    """Return whether throughput, latency and clients of a row break Little's law."""
    law = row.littles_law
    return law is not None and not LITTLES_LAW[0] <= law <= LITTLES_LAW[1]


def accelerator(row: TableRow) -> str:
    """Return the accelerator of a row in NVIDIA's words; "" if it has none."""
    return ACCELERATORS.get(row.backend_accelerator, row.backend_accelerator)


def served_as(row: PublishedRow) -> tuple[str, str, str]:
    """Return format, precision and accelerator of a published row, whatever its label says."""
    # an ensemble's graph, behind the lookup, is TensorRT's
    is_ensemble = "embedding lookup" in row.setup.settings
    model_format = "NVIDIA TensorRT" if is_ensemble else row.model_format
    return model_format, row.setup.precision or row.precision, accelerator(row)


def everything() -> list[PublishedRow]:
    """Read the published rows of all models."""
    return [row for model in sources() for row in published(model)]


@cache
def published(model: str) -> tuple[PublishedRow, ...]:
    """Read the published rows of a model in the order of its document; none if it has no file."""
    path = FOLDER / f"{model}.csv"
    return read(path) if path.exists() else ()


def read(path: Path) -> tuple[PublishedRow, ...]:
    """Read one CSV of published rows; raise `DataError` with the line and column at fault."""
    file_name = display_path(path)
    try:
        with path.open(newline="", encoding="utf-8") as file:
            lines = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{file_name}: cannot be read as CSV: {error}") from None
    if not lines:
        raise DataError(f"{file_name}: holds no row")
    if list(lines[0]) != list(PublishedRow.model_fields):
        raise DataError(f"{file_name}: line 1: not the columns of the published tables")
    try:
        return TypeAdapter(tuple[PublishedRow, ...]).validate_python(lines)
    except ValidationError as error:
        fault = error.errors()[0]
        index, *columns = fault["loc"]
        where = f"line {int(index) + 2}: {'.'.join(map(str, columns))}"
        raise DataError(f"{file_name}: {where}: {fault['msg']}") from None


def tables(rows: Iterable[PublishedRow]) -> list[list[PublishedRow]]:
    """Group rows by the table that they were published in."""
    groups: dict[tuple[str, ...], list[PublishedRow]] = {}
    for row in rows:
        groups.setdefault(row.table, []).append(row)
    return list(groups.values())


def fastest(rows: Iterable[PublishedRow]) -> float:
    """Return the highest throughput of some rows."""
    return max(row.throughput for row in rows)


def gpus(rows: Sequence[PublishedRow]) -> list[str]:
    """Return the GPUs of some rows, from the slowest to the fastest by their best throughput."""
    names = dict.fromkeys(row.gpu for row in rows)
    return sorted(names, key=lambda gpu: fastest(row for row in rows if row.gpu == gpu))
