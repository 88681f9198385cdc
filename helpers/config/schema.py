"""What a parameter file may say, and the configuration that each stage gets from it."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, field_validator

from helpers import formats
from helpers.config import releases
from helpers.store import digest

REQUIRED = ("export_format", "export_precision", "format", "precision", "max_batch_size")

Count = Annotated[int, Field(ge=1, strict=True)]
Precision = Literal["fp32", "bf16", "fp16"]
Value = JsonValue  # a plain value, as YAML and JSON have it


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


class DataFields(Strict):
    """What decides which samples there are; the meaning of a field stands beside it."""

    dataset: str = "generated"  # a generated set's name, or the path of a real one
    variant: str = ""  # of the network, where a model has several
    max_seq_length: Count | None = None  # tokens


class CheckpointField(Strict):
    """The weights."""

    checkpoint: str = "fitted"  # "fitted" to the generated set, or the path of a real one

    @property
    def caveat(self) -> str:
        """What must stand beside every accuracy; empty for a real checkpoint."""
        return " (checkpoint fitted to generated data)" if self.checkpoint == "fitted" else ""


class ExportFields(DataFields, CheckpointField):
    """What the export stage reads."""

    export_format: str = ""
    export_precision: Precision = "fp32"


class ConvertFields(ExportFields):
    """What the convert stage reads, whatever the format."""

    format: str = ""
    precision: Precision = "fp32"
    accelerator: Literal["none", "trt", "openvino", "amp"] = "none"
    accelerator_precision: Precision | None = None


class DeployFields(ConvertFields):
    """What the deploy stage reads."""

    capture_cuda_graph: bool = False
    max_batch_size: Count = 1
    preferred_batch_sizes: list[Count] = []
    max_queue_delay_us: Annotated[int, Field(ge=0)] = 0
    instances: Instances = Instances()
    threads: Annotated[int, Field(ge=0)] = 0  # of an instance; 0 shares the cores out evenly

    @field_validator("instances", mode="before")
    @classmethod
    def _same_for_both(cls, value: Any) -> Any:
        return {"offline": value, "online": value} if isinstance(value, int) else value


class LoadFields(DeployFields):
    """What both performance stages read."""

    request_count: Count = 50  # requests a point, at least
    distinct_rows: Count = 64  # different real samples that are sent in turn, at most


class OfflineFields(LoadFields):
    """What the stage perf_offline reads."""

    batch_sizes: list[Count] = [1]
    pairs: Count = 3  # bare and served runs that alternate at each point
    shared_memory: Literal["none", "system", "cuda"] = "system"


class OnlineFields(LoadFields):
    """What the stage perf_online reads."""

    concurrency: list[Count] = [1]  # clients, each with one request at a time
    online_batch_size: Count = 1  # samples in a client's request


class ReportFields(CheckpointField):
    """What the report reads itself; the rest comes from the results of the other stages."""

    dataset: str = "generated"
    latency_budget_ms: Annotated[float, Field(gt=0, strict=False)] | None = None  # at p99


class Experiment(OfflineFields, OnlineFields, ReportFields):
    """One configuration of one model on a target, as a parameter file gives it."""

    release: str = ""  # of Triton, where the model has another than the server section


class StageConfig(Strict):
    """Where a stage of an experiment belongs. Each stage has a class of its own below, with the
    fields that it reads and no other: a stage that reads more fails at once.
    """

    model: str
    experiment: str
    stage: str
    target: str  # the folder under outputs/
    gpu: str
    device: Literal["cpu", "gpu"]
    server: Server
    experiments: tuple[str, ...]  # of the same model on this target

    @property
    def opset(self) -> int | None:
        """The newest ONNX opset that this server reads; None where today's will do."""
        return None if self.server.kind == "embedded" else releases.opset(self.server.release)

    def shown(self) -> dict[str, Value]:
        """What a reader should know: where it belongs, and every field that this stage reads."""
        head: dict[str, Value] = {"model": self.model, "target": self.target, "gpu": self.gpu}
        if self.stage != "report":
            head["experiment"] = self.experiment
        fields = self.model_dump(include=self.fields_for(self.stage))
        return head | {name: value for name, value in fields.items() if value not in (None, "", [])}

    def fields_for(self, stage: str) -> set[str]:
        """Name the fields that `stage`, this one or an earlier one, reads of this experiment."""
        return fields_for(stage, getattr(self, "format", ""))

    def cache_fields(self, stage: str) -> dict[str, Value]:
        """Plain values of what decides the outcome of `stage`, this one or an earlier one."""
        chosen: dict[str, Value] = {"model": self.model}
        if stage not in ("data", "export"):
            chosen["device"] = self.device
        # A file that is built for one server depends on the server's release too.
        built = stage == "convert" and formats.built_for(getattr(self, "format", ""))
        if stage not in ("data", "export", "convert") or built:
            chosen["server"] = self.server.model_dump()
        if stage in ("export", "convert") and self.opset:
            chosen["opset"] = self.opset
        if stage == "report":
            chosen["experiments"] = list(self.experiments)
        return chosen | self.model_dump(include=self.fields_for(stage))

    def key(self, stage: str) -> str:
        """Name the artefact of `stage`: two experiments with equal cache fields share it."""
        return f"{self.model}-{stage}-{digest(self.cache_fields(stage))[:12]}"


class ExportConfig(StageConfig, ExportFields):
    """The export stage of an experiment."""


class ConvertConfig(ExportConfig, ConvertFields):
    """The convert stage of an experiment."""


class EngineConfig(ConvertConfig):
    """The convert stage where a file is built for one experiment, such as a TensorRT engine; the
    format says which of these fields it reads: see `formats.built_for`.
    """

    max_batch_size: Count
    capture_cuda_graph: bool = False


class DeployConfig(DeployFields, ConvertConfig):
    """The deploy stage of an experiment."""


class OfflineConfig(OfflineFields, DeployConfig):
    """The stage perf_offline of an experiment."""


class OnlineConfig(OnlineFields, DeployConfig):
    """The stage perf_online of an experiment."""


LoadConfig = OfflineConfig | OnlineConfig


class ReportConfig(ReportFields, StageConfig):
    """The report of a model."""


@dataclass(frozen=True)
class Stage:
    """A stage: its configuration, the stage whose result it needs, and whether it leaves an
    artefact that later stages read.
    """

    config: type[StageConfig]
    fields: type[Strict]
    needs: str = ""
    makes_artefact: bool = False


# In the order in which they run.
STAGE = {
    "export": Stage(ExportConfig, ExportFields, makes_artefact=True),
    "convert": Stage(ConvertConfig, ConvertFields, "export", makes_artefact=True),
    "deploy": Stage(DeployConfig, DeployFields, "convert", makes_artefact=True),
    "perf_offline": Stage(OfflineConfig, OfflineFields, "deploy"),
    "perf_online": Stage(OnlineConfig, OnlineFields, "deploy"),
    "report": Stage(ReportConfig, ReportFields),
}
STAGES = tuple(STAGE)


def config_class(stage: str, format_name: str) -> type[StageConfig]:
    """Choose the class of the configuration of `stage`."""
    if stage == "convert" and formats.built_for(format_name):
        return EngineConfig
    return STAGE[stage].config


def fields_for(stage: str, format_name: str) -> set[str]:
    """Name the fields that `stage` ("data" for the data set) reads.

    A conversion reads what its format is built for too: a changed `max_batch_size` makes an engine
    again, and no ONNX file.
    """
    fields = DataFields if stage == "data" else STAGE[stage].fields
    built = formats.built_for(format_name) if stage == "convert" else ()
    return {*fields.model_fields, *built}


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
