"""How NVIDIA measured what it published: what `params/published/documents.yaml` says of a row."""

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from helpers.config import Value, yaml_file
from helpers.errors import DataError
from helpers.store import ROOT

if TYPE_CHECKING:
    from helpers.report.nvidia.rows import PublishedRow

FOLDER = ROOT / "params" / "published"
FILE = FOLDER / "documents.yaml"
Entry = dict[str, Value]


class Document(BaseModel):
    """What one of NVIDIA's documents, its scripts and configurations say of a row.

    None where the row itself says it or it is not known; the file says more on each field.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str  # within NVIDIA's DeepLearningExamples
    release: str  # of Triton
    network: Literal["host", "bridge"]
    ipc: Literal["host", "private"]
    flags: tuple[str, ...]
    environment: tuple[str, ...] = ()
    export_format: str
    opset: int | None = None
    engine_smallest: int | None = None  # batch that TensorRT's engine takes
    engine_batch: int | None = None  # that TensorRT tuned the engine for
    precision: str | None = None  # where the label is wrong
    tf32: bool = False  # whether fp32 presumably ran with TF32
    cuda_graph: bool  # captured, whatever the table says
    instances: int | None = None  # started, if not what the table says
    max_batch_size: int | None = None
    batching: bool = True
    preferred_batch_sizes: tuple[int, ...] = ()
    max_queue_delay_us: int = 0
    lookup: str = ""  # of embeddings, if not in the graph
    protocol: Literal["HTTP", "gRPC"]
    shared_memory: Literal["none", "system"]  # offline; online nothing is shared
    generator: str
    windows: str
    warm_up: str
    inputs: str  # what was sent
    dataset: str  # where the parameter files expect it, also below
    checkpoint: str = ""  # if NVIDIA published one
    variant: str = ""  # of the network, unless the rows' data set names it
    notes: dict[str, str] = {}  # the name of a setting -> what is to be known of it


def document_of(row: "PublishedRow") -> Document:
    """Merge all entries that apply to a row; raise `DataError` if the file is not as it should."""
    merged: Entry = {}
    notes: dict[str, Value] = {}
    for entry in documents().get(row.model, []):
        where, more = entry.get("where"), entry.get("notes")
        if not isinstance(where, dict) or _applies(row, where):
            merged |= entry
            notes |= more if isinstance(more, dict) else {}
    try:
        return Document.model_validate(
            {name: value for name, value in merged.items() if name != "where"} | {"notes": notes}
        )
    except ValidationError as error:
        fault = error.errors()[0]
        place = ".".join(map(str, (row.model, *fault["loc"])))
        raise DataError(f"{FILE.name}: {place}: {fault['msg']}") from None


def _applies(row: "PublishedRow", where: Mapping[str, Value]) -> bool:
    pairs = [(getattr(row, name), value) for name, value in where.items()]
    return all(own in value if isinstance(value, list) else own == value for own, value in pairs)


@cache
def documents() -> dict[str, list[Entry]]:
    """Read the entries of each model, in the order of the documents.

    Raises `ParameterError` if the file is not YAML, `DataError` if it is not made of entries.
    """
    try:
        return TypeAdapter(dict[str, list[Entry]]).validate_python(yaml_file.load(FILE))
    except ValidationError as error:
        place = ".".join(map(str, error.errors()[0]["loc"]))
        raise DataError(f"{FILE.name}: {place}: expected a list of entries") from None
