"""How NVIDIA set up its published measurements, by `params/published/documents.yaml`."""

from functools import cache
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, TypeAdapter

from helpers.config import Value, yaml_file
from helpers.store import ROOT

if TYPE_CHECKING:
    from helpers.report.nvidia.rows import PublishedRow

FOLDER = ROOT / "params" / "published"


class Setup(BaseModel):
    """The settings of a row in one of NVIDIA's documents, its scripts and configurations."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str  # within NVIDIA's DeepLearningExamples
    release: str  # of Triton
    protocol: str  # between client and server
    shared_memory: str  # offline: none or system
    inputs: str  # what was sent
    cuda_graph: bool  # captured, whatever the table says
    precision: str | None = None  # where the label is wrong
    tf32: bool = False  # whether fp32 presumably ran with TF32
    instances: int | None = None  # started, if not what the table says
    variant: str = ""  # of the network, unless the rows' data set names it
    settings: dict[str, str | int | list[str]] = {}  # all others, by the names of `fidelity`
    notes: dict[str, str] = {}  # of a setting


def setup_of(row: "PublishedRow") -> Setup:
    """Merge all entries that apply to a row."""
    merged: dict[str, Any] = {}
    entries: list[dict[str, Any]] = sources()[row.model]
    for entry in entries:
        where = {k: v if isinstance(v, list) else [v] for k, v in entry.get("where", {}).items()}
        if all(getattr(row, name) in values for name, values in where.items()):
            for name, value in entry.items():
                is_mapping = isinstance(value, dict)
                merged[name] = {**merged.get(name, {}), **value} if is_mapping else value
    merged.pop("where", None)
    return Setup.model_validate(merged)


@cache
def sources() -> dict[str, list[dict[str, Value]]]:
    """Read the entries of each model, in the order of the documents."""
    content = yaml_file.load(FOLDER / "documents.yaml")
    return TypeAdapter(dict[str, list[dict[str, Value]]]).validate_python(content)
