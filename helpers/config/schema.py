"""Define the stages: the configuration of each stage, and the paths of its files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar, get_args

import pydantic

from helpers import formats, models
from helpers.config import parameter_file as fields
from helpers.config import releases
from helpers.config.checking import validated
from helpers.config.parameter_file import LESSONS_FOLDER, Value
from helpers.store import ROOT, content_name, digest, outputs

DISPLAY_ONLY = fields.BudgetField.model_fields  # perf_online draws them; no row depends on them
OF_LOOKUPS = ("lookup", "table_precision", "composition", "hps")  # fields of models that have them
C = TypeVar("C", bound="StageConfig")


class StageConfig(fields.Strict):
    """A stage of an experiment; each stage has a subclass with its fields."""

    model: str
    experiment: str
    overrides: dict[str, Value] = pydantic.Field({})  # fields that a notebook has changed
    stage: str
    target: str  # the folder under outputs/
    gpu: str
    device: Literal["cpu", "gpu"]
    server: fields.Server
    experiments: tuple[str, ...]  # all of the model on this target

    @property
    def opset(self) -> int | None:
        """Return the ONNX opset for a server with old runtimes; None for one with today's."""
        return None if not self.server.is_native else releases.opset(self.server.release)

    @property
    def drawn(self) -> str:
        """Return the note next to all results from random samples; empty for other samples."""
        model = models.get(self.model)
        return model.DRAWN if getattr(self, "dataset", "") in model.GENERATED else ""

    def summary(self) -> dict[str, Value]:
        """Return the experiment, and the fields of the stage that apply to this model."""
        head: dict[str, Value] = {"model": self.model, "target": self.target, "hardware": self.gpu}
        if self.stage not in ("compare", "report"):
            head["experiment"] = self.experiment
        if self.overrides:
            head["explored with"] = self.overrides
        if self.drawn:
            head["samples"] = self.drawn
        without = () if models.lookups(self.model) else ("fused", *OF_LOOKUPS)
        read = self.model_dump(include=self.fields_for(self.stage) - {*without})
        empty: tuple[Value, ...] = (None, "", [], {})
        return head | {name: value for name, value in read.items() if value not in empty}

    def fields_for(self, stage: str) -> set[str]:
        """Return the fields that `stage`, this one or an earlier one, reads of this experiment."""
        return fields_for(stage, getattr(self, "format", ""))

    def cache_fields(self, stage: str) -> dict[str, Value]:
        """Return the values that decide the result of `stage`, this one or an earlier one."""
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
        if stage == "perf_online":
            chosen = {name: value for name, value in chosen.items() if name not in DISPLAY_ONLY}
        for name in ("dataset", "checkpoint", "labels"):
            if path := chosen.get(name):
                chosen[name] = content_name(str(path))
        return chosen

    def key(self, stage: str) -> str:
        """Return the name of a stage's artifact: experiments with equal cache fields share it."""
        return f"{self.model}-{stage}-{digest(self.cache_fields(stage))[:12]}"


class ExportConfig(StageConfig, fields.ExportFields):
    """The export stage of an experiment."""


class ConvertConfig(ExportConfig, fields.ConvertFields):
    """The convert stage of an experiment."""


class EngineConfig(ConvertConfig):
    """The convert stage of a format that is built for an experiment: see `formats.built_for`."""

    max_batch_size: fields.Count
    capture_cuda_graph: bool = False


class DeployConfig(fields.DeployFields, ConvertConfig):
    """The deploy stage of an experiment."""


class OfflineConfig(fields.OfflineFields, DeployConfig):
    """The stage perf_offline of an experiment."""

    @pydantic.field_validator("pairs")
    @classmethod
    def _check_pairs(cls, pairs: int, info: pydantic.ValidationInfo) -> int:
        if pairs == 1 and "server" in info.data and not info.data["server"].is_native:
            raise ValueError("It should be 2 or more, to compare Triton with in-process runs.")
        return pairs


class OnlineConfig(fields.OnlineFields, DeployConfig):
    """The stage perf_online of an experiment."""


class TuneConfig(fields.TuneFields, OnlineConfig):
    """The stage tune of an experiment."""


class CompareConfig(fields.CompareFields, DeployConfig):
    """The stage compare of a model, or one of the experiments that it compares."""

    candidates: tuple["CompareConfig", ...] = ()  # all experiments; of an experiment, none

    def cache_fields(self, stage: str) -> dict[str, Value]:
        """Return the values that decide the result of `stage`: of `compare`, those of all."""
        own = super().cache_fields(stage)
        each: dict[str, Value] = {
            one.experiment: one.cache_fields(stage) for one in self.candidates if one.compare
        }
        return own | ({"candidates": each} if stage == "compare" and each else {})


class LessonConfig(fields.LessonFields, DeployConfig):
    """A lesson about an experiment."""


LoadConfig = OfflineConfig | OnlineConfig
ServedConfig = TuneConfig | LessonConfig | CompareConfig  # of stages that compare servers


class ReportConfig(fields.ReportFields, StageConfig):
    """The report of a model."""


class Stage(NamedTuple):
    """What a stage reads and writes."""

    config: type[StageConfig]
    needs: str = ""  # the stage whose result it needs
    makes_artifact: bool = False  # for later stages
    is_optional: bool = False  # whether a run skips it unless it is named
    of_model: bool = False  # whether it runs once per model, and not per experiment


LESSONS: tuple[str, ...] = get_args(fields.Lesson)
# In the order in which they run.
STAGE = {
    "export": Stage(ExportConfig, makes_artifact=True),
    "convert": Stage(ConvertConfig, "export", makes_artifact=True),
    "deploy": Stage(DeployConfig, "convert", makes_artifact=True),
    "perf_offline": Stage(OfflineConfig, "deploy"),
    "perf_online": Stage(OnlineConfig, "deploy"),
    "compare": Stage(CompareConfig, of_model=True),
    "report": Stage(ReportConfig, of_model=True),
    "tune": Stage(TuneConfig, "deploy", is_optional=True),
    **dict.fromkeys(LESSONS, Stage(LessonConfig, "deploy", is_optional=True, of_model=True)),
}
STAGES = tuple(name for name, stage in STAGE.items() if not stage.is_optional)


def stages(model: str) -> tuple[str, ...]:
    """Return the stages of a model, without lessons; fewer if it is of an existing repository."""
    without = ("export", "convert", "compare", "tune") if models.get(model).BACKEND else ()
    return tuple(name for name in STAGE if name not in (*LESSONS, *without))


def needed(model: str, stage: str) -> str:
    """Return the stage whose result `stage` needs; empty if none."""
    before = STAGE[stage].needs
    return before if before in stages(model) else ""


def fields_for(stage: str, format_name: str) -> set[str]:
    """Return the fields that `stage` ("data" for the data set) reads; see `formats.built_for`."""
    schema = fields.DataFields if stage == "data" else STAGE[stage].config
    built = formats.built_for(format_name) if stage == "convert" else ()
    return {*schema.model_fields, *built} - {*StageConfig.model_fields, "candidates"}


def results_folder(config: StageConfig) -> Path:
    """Return the folder of the results: the experiment's, or for results on a model the model's."""
    base = outputs() / config.target / config.model
    of_all = config.stage == "report" or bool(getattr(config, "candidates", ()))
    if of_all and not config.overrides:
        return base
    if config.stage in LESSONS and config.experiment == config.experiments[0]:
        return base / LESSONS_FOLDER
    return base / config.experiment


def result_file(config: StageConfig) -> Path:
    """Return the file of a stage's result."""
    return results_folder(config) / f"{config.stage}.json"


def notebook_file(model: str, stage: str) -> Path:
    """Return the notebook of `stage`."""
    folder = LESSONS_FOLDER if stage in LESSONS else model
    return ROOT / "notebooks" / folder / f"{stage}.ipynb"


def changed(config: C, changes: Mapping[str, Value], source: str = "") -> C:
    """Return it with other fields; a `ParameterError` begins with `source` or the experiment."""
    values = {name: getattr(config, name) for name in type(config).model_fields} | dict(changes)
    source = source or f"{config.model} {config.experiment}"
    return validated(type(config), values, source, config.model)


def artifact_folder(config: StageConfig, stage: str) -> Path:
    """Return the folder of the artifact of `stage`, which may not exist."""
    return outputs() / config.target / "artifacts" / config.key(stage)


def command(config: StageConfig, stage: str) -> str:
    """Return the command that runs `stage` of this experiment, or its notebook with overrides."""
    if config.overrides:
        return f"notebooks/{config.model}/{stage}.ipynb with overrides = {config.overrides}"
    only = f"--model {config.model} --experiment {config.experiment} --stage {stage}"
    return f"triton-notebooks run params/{config.target}.yaml {only}"
