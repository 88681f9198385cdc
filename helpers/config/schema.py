"""The stages, and the configuration that each gets from a parameter file."""

from dataclasses import dataclass
from typing import Literal

from helpers import formats
from helpers.config import releases
from helpers.config.parameter_file import (
    ConvertFields,
    Count,
    DataFields,
    DeployFields,
    ExportFields,
    OfflineFields,
    OnlineFields,
    ReportFields,
    Server,
    Strict,
    Value,
)
from helpers.store import content_name, digest


class StageConfig(Strict):
    """Which stage of which experiment this is; each stage has a subclass with what it reads."""

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
        """The newest ONNX opset that this server reads; None if it reads today's."""
        return None if self.server.kind == "embedded" else releases.opset(self.server.release)

    def summary(self) -> dict[str, Value]:
        """What a reader should know: the experiment, and every field that the stage reads."""
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
        chosen |= self.model_dump(include=self.fields_for(stage))
        for name in {"dataset", "checkpoint"} & set(chosen):
            chosen[name] = content_name(str(chosen[name]))
        return chosen

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
