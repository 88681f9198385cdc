"""The schema of a parameter file, how an experiment is chosen from it, and what is wrong with a bad
one.

Three ways lead to an experiment (JupyterLab, papermill, the batch command) and all meet in
`resolve`.
"""

import os
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from helpers import formats, models
from helpers.errors import ParameterError
from helpers.workspace import ROOT, digest, shown

FILES = ROOT / "params"
TARGET_VARIABLE = (
    "TRITON_NOTEBOOKS_TARGET"  # set by the batch command: the name of the parameter file
)
STAGES = ("export", "convert", "deploy", "perf_offline", "perf_online", "report")
REQUIRED = ("export_format", "export_precision", "format", "precision", "max_batch_size")

M = TypeVar("M", bound=BaseModel)
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
    image: str = ""
    url: str = ""


class Experiment(Strict):
    """One configuration of one model on a target; what a field means stands beside it."""

    dataset: str = "generated"  # a generated set's name, or the path of a real one
    checkpoint: str = "fitted"  # "fitted" to the generated set, or the path of a real one
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
    threads: Annotated[int, Field(ge=0)] = (
        0  # within an operator, per instance; 0 shares the cores out evenly
    )
    batch_sizes: list[Count] = [1]  # offline
    pairs: Count = 3  # bare and served runs that alternate at each offline point
    concurrency: list[Count] = [1]  # online: clients, each with one request at a time
    online_batch_size: Count = 1  # samples in a client's request
    request_count: Count = 50  # requests a point, at least
    shared_memory: Literal["none", "system", "cuda"] = "system"  # offline
    latency_budget_ms: Annotated[float, Field(gt=0, strict=False)] | None = None  # at p99

    @field_validator("instances", mode="before")
    @classmethod
    def _same_for_both(cls, value: Any) -> Any:
        return {"offline": value, "online": value} if isinstance(value, int) else value


_DATA = ("dataset", "variant", "max_seq_length")
_EXPORT = (*_DATA, "checkpoint", "export_format", "export_precision")
_CONVERT = (
    *_EXPORT,
    "format",
    "precision",
    "accelerator",
    "accelerator_precision",
    "capture_cuda_graph",
)
_DEPLOY = (
    *_CONVERT,
    "max_batch_size",
    "preferred_batch_sizes",
    "max_queue_delay_us",
    "instances",
    "threads",
)
FIELDS: dict[
    str, tuple[str, ...]
] = {  # what each stage may read: nothing else is there when it runs
    "data": _DATA,
    "export": _EXPORT,
    "convert": _CONVERT,
    "deploy": _DEPLOY,
    "perf_offline": (*_DEPLOY, "batch_sizes", "pairs", "request_count", "shared_memory"),
    "perf_online": (*_DEPLOY, "concurrency", "online_batch_size", "request_count"),
    "report": ("latency_budget_ms", "checkpoint", "dataset"),
}


class Config(Experiment):
    """An experiment as one stage sees it: the fields of `FIELDS[stage]` and where it belongs."""

    model: str
    experiment: str
    stage: str
    target: str  # the folder under outputs/
    gpu: str
    device: Literal["cpu", "gpu"]
    server: Server
    experiments: tuple[str, ...]  # of the same model on this target

    def shown(self) -> dict[str, Any]:
        """What a reader should know of it: where it belongs, and every field that this stage
        reads.
        """
        head = {
            "model": self.model,
            "experiment": self.experiment,
            "target": self.target,
            "gpu": self.gpu,
        }
        fields = self.model_dump(include=set(FIELDS[self.stage]))
        return head | {name: value for name, value in fields.items() if value not in (None, "", [])}

    def slice(self, stage: str) -> dict[str, Any]:
        """Plain values of the fields that `stage` (this one or an earlier one) reads; what its key
        is made from.
        """
        chosen: dict[str, Any] = {"model": self.model}
        if stage not in ("data", "export"):
            chosen["device"] = self.device
        if stage not in ("data", "export", "convert"):
            chosen["server"] = self.server.model_dump()
        if stage == "report":
            chosen["experiments"] = list(self.experiments)
        return chosen | self.model_dump(include=set(FIELDS[stage]))

    def key(self, stage: str) -> str:
        """Name the artefact of `stage`: two experiments with equal slices share it."""
        return f"{self.model}-{stage}-{digest(self.slice(stage))[:12]}"


class _Models(Strict):
    defaults: dict[str, Any] = {}
    experiments: dict[str, dict[str, Any] | None] = {}


class ParameterFile(Strict):
    """The five top-level keys, which are also the parameters of every notebook."""

    gpu: str
    device: Literal["cpu", "gpu"]
    server: Server = Server()
    defaults: dict[str, Any] = {}
    models: dict[str, _Models]


class _Loader(yaml.SafeLoader):
    """YAML with duplicate keys as errors rather than the last one winning in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen and key != "<<":
                raise ParameterError(f"line {key_node.start_mark.line + 1}: duplicate key '{key}'")
            seen.add(key)
        return super().construct_mapping(node, deep)


def read_file(path: Path) -> dict[str, Any]:
    """Read a parameter file and check all of it; raise `ParameterError` with one line that names
    what is wrong.
    """
    try:
        content = yaml.load(path.read_text(), Loader=_Loader)
    except FileNotFoundError:
        raise ParameterError(f"{shown(path)}: there is no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ParameterError(f"{shown(path)}: cannot be read as text: {error}") from None
    except ParameterError as error:
        raise ParameterError(f"{shown(path)}: {error}") from None
    except yaml.YAMLError as error:
        raise ParameterError(
            f"{shown(path)}: is not YAML: {' '.join(str(error).split())}"
        ) from None
    if not isinstance(content, dict):
        found = "is empty" if content is None else f"holds a {type(content).__name__}"
        raise ParameterError(
            f"{shown(path)}: {found}; expected the keys {', '.join(ParameterFile.model_fields)}"
        )
    with_place = shown(path)
    parsed = _validated(ParameterFile, content, with_place)
    if not parsed.models:
        raise ParameterError(
            f"{with_place}: models: is empty; expected one of {', '.join(models.names())}"
        )
    for model, section in parsed.models.items():
        if not section.experiments:
            raise ParameterError(f"{with_place}: models.{model}.experiments: there is none")
        for experiment in section.experiments:
            _experiment(content, model, experiment, {}, with_place, REQUIRED)
    return content


def _validated(schema: type[M], value: Any, place: str) -> M:
    try:
        return schema.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            known = ", ".join(sorted(schema.model_fields))
            raise ParameterError(f"{place}: {where}: unknown key; known here: {known}") from None
        hint = ""
        if first["type"] == "string_type" and isinstance(first["input"], int | float):
            hint = f'; quote it: "{first["input"]}"'
        given = "" if first["type"] == "missing" else f" is {first['input']!r}"
        message = first["msg"][0].lower() + first["msg"][1:]
        raise ParameterError(f"{place}: {where}{given}: {message}{hint}") from None


def _experiment(
    content: dict[str, Any],
    model: str,
    experiment: str,
    overrides: dict[str, Any],
    place: str,
    required: tuple[str, ...],
) -> dict[str, Any]:
    """Merge defaults < model's defaults < experiment < overrides, check the outcome and give all
    its fields.
    """
    models.get(model)
    section = content["models"][model]
    own = (section.get("experiments") or {}).get(experiment) or {}
    merged: dict[str, Any] = {}
    for level in (content.get("defaults"), section.get("defaults"), own, overrides):
        merged |= level or {}
    place = f"{place}: models.{model}.experiments.{experiment}"
    for name in required:
        if name not in merged:
            raise ParameterError(f"{place}.{name}: is missing")
    parsed = _validated(Experiment, merged, place)
    for name in ("export_format", "format"):
        value = getattr(parsed, name)
        if value and value not in formats.names():
            raise ParameterError(
                f"{place}.{name}: unknown format '{value}': known are {', '.join(formats.names())}"
            )
    for name in ("batch_sizes", "preferred_batch_sizes"):
        for size in getattr(parsed, name) if "max_batch_size" in merged else ():
            if size > parsed.max_batch_size:
                raise ParameterError(
                    f"{place}.{name}: {size} is above max_batch_size {parsed.max_batch_size}"
                )
    if "max_batch_size" in merged and parsed.online_batch_size > parsed.max_batch_size:
        size = parsed.online_batch_size
        raise ParameterError(
            f"{place}.online_batch_size: {size} is above max_batch_size {parsed.max_batch_size}"
        )
    return dict(parsed.model_dump())


def file_for(gpu: str) -> Path | None:
    """Find the parameter file of this package whose `gpu` is this one."""
    for path in sorted(FILES.glob("*.yaml")):
        if yaml.safe_load(path.read_text()).get("gpu") == gpu:
            return path
    return None


def target_name(gpu: str) -> str:
    """Name a target's folder: as the parameter file is named, else after the GPU."""
    given = os.environ.get(TARGET_VARIABLE)
    if given:
        return given
    path = file_for(gpu)
    return path.stem if path else "-".join("".join(c if c.isalnum() else " " for c in gpu).split())


def resolve(
    model: str,
    stage: str,
    gpu: str = "CPU",
    device: str = "cpu",
    server: dict[str, Any] | None = None,
    defaults: dict[str, Any] | None = None,
    models: dict[str, Any] | None = None,
    experiment: str = "",
    overrides: dict[str, Any] | None = None,
) -> Config:
    """Choose one experiment and give it as `stage` sees it.

    Without `models` the parameter file of `gpu` is read; without `experiment` its first is taken.
    `overrides` replaces single fields, for exploring. Raises `ParameterError`.
    """
    place = "parameters"
    content: dict[str, Any] = {
        "gpu": gpu,
        "device": device,
        "server": server or {},
        "defaults": defaults or {},
    }
    if not models:
        path = file_for(gpu)
        if path is None:
            raise ParameterError(
                f"gpu is '{gpu}', which no file in {shown(FILES)} has: give models too"
            )
        content, place = read_file(path), shown(path)
    else:
        content["models"] = models
    parsed = _validated(ParameterFile, content, place)
    if model not in parsed.models:
        raise ParameterError(
            f"{place}: models.{model}: is missing; there are {', '.join(parsed.models)}"
        )
    experiments = tuple(parsed.models[model].experiments)
    chosen = experiment or next(iter(experiments), "")
    if chosen not in experiments:
        raise ParameterError(
            f"{place}: unknown experiment '{chosen}' of {model}: there are {', '.join(experiments)}"
        )
    required = tuple(name for name in REQUIRED if name in FIELDS[stage])
    if isinstance(overrides, str):
        raise ParameterError(
            f"overrides is the text {overrides!r}: "
            "give a dict, with papermill by -y 'overrides: {...}'"
        )
    values = _experiment(content, model, chosen, overrides or {}, place, required)
    config = Config(
        **values,
        model=model,
        experiment=chosen,
        stage=stage,
        target=target_name(parsed.gpu),
        gpu=parsed.gpu,
        device=parsed.device,
        server=parsed.server,
        experiments=experiments,
    )
    for name in set(Experiment.model_fields) - set(FIELDS[stage]):
        del config.__dict__[name]  # a stage that reads more than it declares fails at once
    return config
