"""What NVIDIA published: the 1,218 rows of `params/published` as data, and what else its documents
and scripts say of how they were measured.

Facts about the documents are those of NVIDIA's DeepLearningExamples at commit 729963dd.
"""

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from helpers.errors import DataError
from helpers.perf import littles_law
from helpers.store import ROOT, display_path

FOLDER = ROOT / "params" / "published"
LITTLES_LAW = (0.8, 1.2)  # a row outside of these bounds contradicts itself

Count = Annotated[int, Field(ge=1)]
Figure = Annotated[float, Field(ge=0)]


@dataclass(frozen=True)
class Document:
    """One of NVIDIA's documents, and what it or its script says of every row in it."""

    path: str  # within NVIDIA's DeepLearningExamples
    release: str  # of Triton
    protocol: str  # between client and server
    shared_memory: str  # offline: none or system
    inputs: str = ""  # what was sent, where it is not a data set's samples
    instances_online: int | None = None  # where the script started others than the table says
    variant: str = ""  # of the network, where the rows have no data set that names it


_CRITEO = "TensorFlow2/Recommendation/DLRM_and_DCNv2/doc/merlin_hps_inference.md"
DOCUMENTS = {
    "resnet50": Document(
        path="PyTorch/Classification/ConvNets/triton/resnet50/README.md",
        release="21.02",  # of its scripts; the document says 20.11
        protocol="HTTP",
        shared_memory="none",
        instances_online=2,
    ),
    "bert": Document(
        path="PyTorch/LanguageModeling/BERT/triton/large/README.md",
        release="21.10",
        protocol="gRPC",
        shared_memory="system",
        variant="large",
    ),
    "tft": Document(
        path="PyTorch/Forecasting/TFT/triton/README.md",
        release="22.11",
        protocol="HTTP",
        shared_memory="system",
        inputs="one example over and over",
    ),
    "widedeep": Document(
        path="TensorFlow2/Recommendation/WideAndDeep/triton/README.md",
        release="22.02",
        protocol="HTTP",
        shared_memory="system",
        inputs="random ids",  # perf_analyzer's integers, which do not end with the tables
    ),
    "dlrm": Document(_CRITEO, "23.02", "HTTP", "system", variant="T3"),
    "dcnv2": Document(_CRITEO, "23.02", "HTTP", "system", variant="T3"),
}


class PublishedRow(BaseModel):
    """A published row; None or "" where nothing is published.

    Latencies are in milliseconds, throughput in inferences (samples) per second. Where a table has
    component columns, its `avg_latency_ms` is their sum, not a measured mean. `concurrency` counts
    clients with one request of `batch_size` samples each.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    gpu: str
    model: str
    dataset: str  # TFT's, which names the variant of the network too
    scenario: str
    backend: str
    backend_accelerator: str
    precision: str
    model_format: str
    cuda_graph: bool | None
    max_batch_size: Count
    instances: Count
    batch_size: Count
    concurrency: Count
    throughput: Figure
    client_send_ms: Figure | None
    network_server_send_recv_ms: Figure | None
    server_queue_ms: Figure | None
    server_compute_input_ms: Figure | None
    server_compute_infer_ms: Figure | None
    server_compute_output_ms: Figure | None
    client_recv_ms: Figure | None
    p50_latency_ms: Figure | None
    p90_latency_ms: Figure | None
    p95_latency_ms: Figure | None
    p99_latency_ms: Figure | None
    avg_latency_ms: Figure | None
    source: str  # which of the five documents

    @field_validator("*", mode="before")
    @classmethod
    def _absent(cls, value: str, info: ValidationInfo) -> str | None:
        """Read an empty cell as not published; two columns of names are empty texts instead."""
        named = info.field_name in ("dataset", "backend_accelerator")
        return value if value or named else None

    @property
    def littles_law(self) -> float | None:
        """Throughput x average latency over batch x clients: 1 if the row agrees with itself."""
        if self.avg_latency_ms is None:
            return None
        return littles_law(self.throughput, self.avg_latency_ms, self.batch_size, self.concurrency)

    @property
    def breaks_littles_law(self) -> bool:
        """Tell whether throughput, latency and clients of this row contradict each other."""
        return breaks(self.littles_law)

    @property
    def table(self) -> tuple[str, ...]:
        """What names the published table that this row stands in."""
        return (self.model, self.gpu, self.scenario, self.dataset, *self.served)

    @property
    def served(self) -> tuple[str, str, str, str]:
        """How the model was served: backend, accelerator, format and precision."""
        return (self.backend, self.backend_accelerator, self.model_format, self.precision)

    @property
    def format(self) -> str:
        """The format and its accelerator, in few words; it names the backend too."""
        names = (self.model_format, self.backend_accelerator)
        return " with ".join(name.replace("NVIDIA ", "") for name in names if name)

    @property
    def label(self) -> str:
        """How the model was served, in few words."""
        return f"{self.format}, {self.precision}"

    @property
    def document(self) -> Document:
        """Where the row was published, and what is said there."""
        return DOCUMENTS[self.model]


def breaks(value: float | None) -> bool:
    """Tell whether a value of Little's law is outside of its bounds; one not known is not."""
    return value is not None and not LITTLES_LAW[0] <= value <= LITTLES_LAW[1]


@cache
def rows(model: str) -> tuple[PublishedRow, ...]:
    """Read the published rows of a model, in the order of its document; none if there is no file.

    Raises `DataError` with the line of a file that is not as published.
    """
    path = FOLDER / f"{model}.csv"
    return read(path) if path.exists() else ()


def read(path: Path) -> tuple[PublishedRow, ...]:
    """Read one CSV of published rows; raise `DataError` with the line and column at fault."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            found = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{display_path(path)}: cannot be read as CSV: {error}") from None
    parsed = []
    for number, line in enumerate(found, 2):
        try:
            parsed.append(PublishedRow.model_validate(line))
        except ValidationError as error:
            first = error.errors()[0]
            what = ".".join(map(str, first["loc"]))
            raise DataError(
                f"{display_path(path)}: line {number}: {what}: {first['msg']}"
            ) from None
    if not parsed:
        raise DataError(f"{display_path(path)}: holds no row")
    return tuple(parsed)


def everything() -> tuple[PublishedRow, ...]:
    """Read the rows of all six documents' models."""
    return tuple(row for model in DOCUMENTS for row in rows(model))


def tables(found: Iterable[PublishedRow]) -> dict[tuple[str, ...], list[PublishedRow]]:
    """Group rows by the table that they were published in."""
    groups: dict[tuple[str, ...], list[PublishedRow]] = {}
    for row in found:
        groups.setdefault(row.table, []).append(row)
    return groups


def gpus(found: Sequence[PublishedRow]) -> list[str]:
    """Name the GPUs of some rows, from the slowest to the fastest by their best throughput."""
    best: dict[str, float] = {}
    for row in found:
        best[row.gpu] = max(row.throughput, best.get(row.gpu, 0))
    return sorted(best, key=lambda gpu: best[gpu])
