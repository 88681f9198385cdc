"""What a parameter file may say: the schema, and which fields of an experiment a stage reads."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from helpers import formats
from helpers.config import releases
from helpers.store import digest

STAGES = ("export", "convert", "deploy", "perf_offline", "perf_online", "report")
REQUIRED = ("export_format", "export_precision", "format", "precision", "max_batch_size")

Count = Annotated[int, Field(ge=1, strict=True)]
Precision = Literal["fp32", "bf16", "fp16"]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Instances(Strict):
    """Model instances per scenario: some published tables used more of them online."""

    offline: Count = 1
    online: Count = 1


class Server(Strict):
    """Which server to use, and the release of Triton that the figures belong to."""

    kind: Literal["embedded", "docker", "remote"] = "embedded"
    release: str = "24.10"
    image: str = ""  # docker: another than NVIDIA's of this release
    url: str = ""  # remote: host:port of its HTTP endpoint
    repository: str = ""  # remote: the folder it serves from, where that is on this host


class Experiment(Strict):
    """One configuration of one model on a target; what a field means stands beside it."""

    dataset: str = "generated"  # a generated set's name, or the path of a real one
    checkpoint: str = "fitted"  # "fitted" to the generated set, or the path of a real one
    release: str = ""  # of Triton, where the model has another than the server section
    variant: str = ""  # of the network, where a model has several
    max_seq_length: Count | None = None  # tokens
    export_format: str = ""
    export_precision: Precision = "fp32"
    format: str = ""
    precision: Precision = "fp32"
    accelerator: Literal["none", "trt", "openvino", "amp"] = "none"
    accelerator_precision: Precision | None = None
    capture_cuda_graph: bool = False
    max_batch_size: Count = 1
    preferred_batch_sizes: list[Count] = []
    max_queue_delay_us: Annotated[int, Field(ge=0)] = 0
    instances: Instances = Instances()
    threads: Annotated[int, Field(ge=0)] = 0  # of an instance; 0 shares the cores out evenly
    batch_sizes: list[Count] = [1]  # offline
    pairs: Count = 3  # bare and served runs that alternate at each offline point
    concurrency: list[Count] = [1]  # online: clients, each with one request at a time
    online_batch_size: Count = 1  # samples in a client's request
    request_count: Count = 50  # requests a point, at least
    distinct_rows: Count = 64  # different real samples that are sent in turn, at most
    shared_memory: Literal["none", "system", "cuda"] = "system"  # offline
    latency_budget_ms: Annotated[float, Field(gt=0, strict=False)] | None = None  # at p99

    @field_validator("instances", mode="before")
    @classmethod
    def _same_for_both(cls, value: Any) -> Any:
        return {"offline": value, "online": value} if isinstance(value, int) else value


_DATA = ("dataset", "variant", "max_seq_length")
_EXPORT = (*_DATA, "checkpoint", "export_format", "export_precision")
_CONVERT = (*_EXPORT, "format", "precision", "accelerator", "accelerator_precision")
_DEPLOY = (
    *_CONVERT,
    "capture_cuda_graph",
    "max_batch_size",
    "preferred_batch_sizes",
    "max_queue_delay_us",
    "instances",
    "threads",
)
# What each stage may read, whatever the format: see `reads`.
FIELDS: dict[str, tuple[str, ...]] = {
    "data": _DATA,
    "export": _EXPORT,
    "convert": _CONVERT,
    "deploy": _DEPLOY,
    "perf_offline": (
        *_DEPLOY,
        "batch_sizes",
        "pairs",
        "request_count",
        "distinct_rows",
        "shared_memory",
    ),
    "perf_online": (
        *_DEPLOY,
        "concurrency",
        "online_batch_size",
        "request_count",
        "distinct_rows",
    ),
    "report": ("latency_budget_ms", "checkpoint", "dataset"),
}


def reads(stage: str, format_name: str) -> tuple[str, ...]:
    """Name the fields that `stage` may read: nothing else is there when it runs.

    A conversion reads what its format is made for too: a changed `max_batch_size` makes an engine
    anew, and no ONNX file.
    """
    own = formats.built_for(format_name) if stage == "convert" else ()
    return (*FIELDS[stage], *own)


class Config(Experiment):
    """An experiment as one stage sees it: the fields of `reads` and where it belongs."""

    model: str
    experiment: str
    stage: str
    target: str  # the folder under outputs/
    gpu: str
    device: Literal["cpu", "gpu"]
    server: Server
    experiments: tuple[str, ...]  # of the same model on this target

    def read_by(self, stage: str) -> set[str]:
        """Name the fields that `stage`, this one or an earlier one, reads of this experiment."""
        return set(reads(stage, self.__dict__.get("format", "")))  # the first stages have none

    @property
    def opset(self) -> int | None:
        """What an ONNX file for this server must keep to; None where today's opset will do."""
        return None if self.server.kind == "embedded" else releases.opset(self.server.release)

    @property
    def caveat(self) -> str:
        """What must stand beside every accuracy; empty for a real checkpoint."""
        return " (checkpoint fitted to generated data)" if self.checkpoint == "fitted" else ""

    def shown(self) -> dict[str, Any]:
        """What a reader should know: where it belongs, and every field that this stage reads."""
        head = {"model": self.model, "target": self.target, "gpu": self.gpu}
        if self.stage != "report":
            head["experiment"] = self.experiment
        fields = self.model_dump(include=self.read_by(self.stage))
        return head | {name: value for name, value in fields.items() if value not in (None, "", [])}

    def slice(self, stage: str) -> dict[str, Any]:
        """Plain values of the fields that `stage`, this one or an earlier one, reads."""
        chosen: dict[str, Any] = {"model": self.model}
        if stage not in ("data", "export"):
            chosen["device"] = self.device
        bound = stage == "convert" and formats.built_for(self.format)  # to a server's release
        if stage not in ("data", "export", "convert") or bound:
            chosen["server"] = self.server.model_dump()
        if stage in ("export", "convert") and self.opset:
            chosen["opset"] = self.opset
        if stage == "report":
            chosen["experiments"] = list(self.experiments)
        return chosen | self.model_dump(include=self.read_by(stage))

    def key(self, stage: str) -> str:
        """Name the artefact of `stage`: two experiments with equal slices share it."""
        return f"{self.model}-{stage}-{digest(self.slice(stage))[:12]}"


class ModelSection(Strict):
    defaults: dict[str, Any] = {}
    experiments: dict[str, dict[str, Any] | None] = {}


class ParameterFile(Strict):
    """The five top-level keys, which are also the parameters of every notebook."""

    gpu: str
    device: Literal["cpu", "gpu"]
    server: Server = Server()
    defaults: dict[str, Any] = {}
    models: dict[str, ModelSection]
