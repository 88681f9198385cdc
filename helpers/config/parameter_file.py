"""What a parameter file may say: its keys and the values of each."""

import re
from typing import Annotated, Literal
from urllib.parse import urlsplit

import pydantic
from pydantic import Field

from helpers import formats, models
from helpers.config.old_names import PARAMETERS
from helpers.hps import settings

Value = pydantic.JsonValue  # a plain value, as YAML and JSON have it

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def _known_format(name: str) -> str:
    if name not in formats.names():
        raise ValueError(f"unknown format; known are {', '.join(formats.names())}")
    return name


def _known_model(name: str) -> str:
    if name not in models.names():
        raise ValueError(f"unknown model; known are {', '.join(models.names())}")
    return name


def _folder_name(name: str) -> str:
    if name == LESSONS_FOLDER:
        raise ValueError("is the folder of the lessons' results: choose another name")
    if not NAME.fullmatch(name):
        raise ValueError("is the name of a folder too: use letters, digits, '.', '_' and '-'")
    return name


def _one_for_both(count: Value) -> Value:
    return {"offline": count, "online": count} if isinstance(count, int) else count


Count = Annotated[int, Field(ge=1, strict=True)]
Precision = Literal["fp32", "bf16", "fp16"]
INT8 = "int8"  # which is calibrated, by `convert`, from an export in fp32
FormatName = Annotated[str, pydantic.AfterValidator(_known_format)]
ModelName = Annotated[str, pydantic.AfterValidator(_known_model)]
FolderName = Annotated[str, pydantic.AfterValidator(_folder_name)]
Lesson = Literal["dynamic_batching", "instances", "precision"]
TAUGHT = "resnet50"  # the model that the notebooks of the lessons are about
LESSONS_FOLDER = "lessons"  # of their notebooks, and of their results beside the experiments'
Milliseconds = Annotated[float, Field(gt=0, strict=False, allow_inf_nan=False)]


class Strict(pydantic.BaseModel):
    """Fields that are checked and do not change; an unknown key is an error."""

    model_config = pydantic.ConfigDict(strict=True, frozen=True)

    @pydantic.model_validator(mode="before")
    @classmethod
    def _check_keys(cls, content: object) -> object:
        for key in content if isinstance(content, dict) else ():
            if key not in cls.model_fields:
                raise ValueError(unknown_key(cls, key))
        return content


def unknown_key(schema: type[pydantic.BaseModel], key: str) -> str:
    """Say that `schema` has no such key, and how it is called now if it had."""
    if (name := PARAMETERS.get(key)) in schema.model_fields:
        return f"unknown key '{key}'; it is now called {name}"
    return f"unknown key '{key}'; known keys are {', '.join(sorted(schema.model_fields))}"


class Instances(Strict):
    """Model instances per scenario: some published tables used more of them online."""

    offline: Count = 1
    online: Count = 1


class Server(Strict):
    """Which server to use, and the release of Triton that the figures belong to."""

    kind: Literal["embedded", "docker", "remote"] = "embedded"
    release: str = "24.10"
    # what runs the models: Triton's own backends, or the package's Python adapter, which needs a
    # Python with the formats' packages there; empty: the adapter if embedded, else native
    backend: Literal["", "native", "adapter"] = ""
    image: str = ""  # docker: another than NVIDIA's of this release
    url: str = ""  # remote: host:port of its HTTP endpoint
    repository: str = ""  # remote: the folder it serves from, where that is on this host

    @property
    def is_native(self) -> bool:
        """Whether Triton's own backends run the models, and not the package's Python adapter."""
        return self.kind != "embedded" and self.backend != "adapter"

    @pydantic.field_validator("backend")
    @classmethod
    def _check_backend(cls, backend: str, info: pydantic.ValidationInfo) -> str:
        if backend == "native" and info.data.get("kind") == "embedded":
            raise ValueError("the embedded server has no native backends; expected 'adapter'")
        return backend

    @pydantic.field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        if not url.isprintable():
            raise ValueError("holds an unprintable character")
        urlsplit(f"http://{url.removeprefix('http://')}")  # ValueError: brackets that do not match
        return url


class DataFields(Strict):
    """What decides which samples there are."""

    dataset: str = "generated"  # a generated set's name, or the path of a real one
    # of the network, where a model has several; the first of them if it is not given
    variant: Annotated[str, Field(validate_default=True)] = ""
    # of a sample, where a model's has a size: the usual one if it is not given
    max_seq_length: Annotated[Count | None, Field(validate_default=True)] = None  # tokens
    # pixels of the sides of an image's centre crop
    crop_size: Annotated[Count | None, Field(validate_default=True)] = None
    # of a model of your own: the size of each dimension that its graph leaves free, by name, and
    # the file with a label for each sample
    dimensions: Annotated[dict[str, Count], Field(validate_default=True)] = {}
    labels: str = ""

    @pydantic.field_validator("max_seq_length", "crop_size")
    @classmethod
    def _check_size(cls, size: int | None, info: pydantic.ValidationInfo) -> int | None:
        if info.context is None or info.field_name is None:
            return size
        model = models.get(info.context["model"])
        if (known := model.SAMPLE_SIZES.get(info.field_name)) is None:
            if size is not None:
                raise ValueError(f"{model.TITLE} has no such size")
            return None
        if size is not None and not known.smallest <= size <= known.largest:
            takes = f"{known.smallest} to {known.largest} {known.unit}"
            raise ValueError(f"{model.TITLE} takes {takes} here")
        return size or known.usual

    @pydantic.field_validator("dimensions")
    @classmethod
    def _check_dimensions(
        cls, given: dict[str, int], info: pydantic.ValidationInfo
    ) -> dict[str, int]:
        known = models.get(info.context["model"]).dimensions if info.context else tuple(given)
        if unknown := [name for name in given if name not in known]:
            has = f"known are {', '.join(known)}" if known else "this model has none"
            raise ValueError(f"unknown dimension '{unknown[0]}'; {has}")
        if missing := [name for name in known if name not in given]:
            raise ValueError(f"the size of '{missing[0]}' is missing")
        return given

    @pydantic.field_validator("labels")
    @classmethod
    def _check_labels(cls, path: str, info: pydantic.ValidationInfo) -> str:
        if path and info.context and not models.get(info.context["model"]).TAKES_LABELS:
            raise ValueError("the labels of this model are in its data set")
        return path

    @pydantic.field_validator("variant")
    @classmethod
    def _check_variant(cls, name: str, info: pydantic.ValidationInfo) -> str:
        if info.context is None:  # one configuration is made from another
            return name
        known = models.get(info.context["model"]).VARIANTS
        if name and name not in known:
            has = f"known are {', '.join(known)}" if known else "this model has none"
            raise ValueError(f"unknown variant; {has}")
        return name or next(iter(known), "")


class CheckpointField(Strict):
    """The weights."""

    checkpoint: str = "fitted"  # "fitted" to the generated set, or the path of a real one

    @property
    def caveat(self) -> str:
        """What must stand beside every accuracy; empty for a real checkpoint and real samples."""
        if self.checkpoint == "fitted":
            return " (checkpoint fitted to generated data)"
        drawn = getattr(self, "drawn", "")
        return f" ({drawn})" if drawn else ""


class ExportFields(DataFields, CheckpointField):
    """What the export stage reads."""

    export_format: FormatName
    export_precision: Precision
    # how a recommender's embeddings are looked up: "mapped" from files, or "hps", by a hierarchical
    # parameter server; the first that the model has if it is not given
    lookup: Annotated[str, Field(validate_default=True)] = ""
    fused: bool = True  # hps: whether all tables are one
    # of the embedding tables of the lookup "mapped"; int8 has a scale for each row
    table_precision: Literal["fp32", "fp16", "int8"] = "fp32"

    @pydantic.field_validator("lookup")
    @classmethod
    def _check_lookup(cls, name: str, info: pydantic.ValidationInfo) -> str:
        if info.context is None:
            return name
        known = models.lookups(info.context["model"])
        if name and name not in known:
            has = f"known are {', '.join(known)}" if known else "this model has none"
            raise ValueError(f"unknown lookup; {has}")
        return name or next(iter(known), "")

    @pydantic.field_validator("table_precision")
    @classmethod
    def _check_tables(cls, precision: str, info: pydantic.ValidationInfo) -> str:
        if info.context and precision != "fp32" and info.data.get("lookup", "mapped") != "mapped":
            raise ValueError("only the lookup 'mapped' has tables of another precision than fp32")
        return precision


class ConvertFields(ExportFields):
    """What the convert stage reads, whatever the format."""

    format: FormatName
    precision: Precision | Literal["int8"]
    # int8: how many training samples decide the scales, and the seed by which they are drawn
    calibration_samples: Annotated[Count | None, Field(validate_default=True)] = None
    calibration_seed: Annotated[int | None, Field(validate_default=True)] = None
    accelerator: Literal["none", "trt", "openvino", "amp"] = "none"
    accelerator_precision: Precision | None = None

    @pydantic.field_validator("format")
    @classmethod
    def _check_source(cls, name: str, info: pydantic.ValidationInfo) -> str:
        exported, sources = info.data.get("export_format", name), formats.get(name).SOURCES
        if name != exported and exported not in sources:
            raise ValueError(f"is made from {' or '.join(sources)}, not from {exported}")
        return name

    @pydantic.field_validator("precision")
    @classmethod
    def _check_precision(cls, precision: str, info: pydantic.ValidationInfo) -> str:
        first = info.data.get("export_precision", precision)
        same = info.data.get("format") == info.data.get("export_format")
        if same and precision not in (first, INT8):
            raise ValueError(f"differs from export_precision {first}, but the format is the same")
        if precision == INT8 and first != "fp32":
            raise ValueError(f"is made from an export in fp32, not in {first}")
        return precision

    @property
    def calibration(self) -> tuple[int, int] | None:
        """How many training samples, and the seed that draws them; None if none are needed."""
        if self.calibration_samples is None or self.calibration_seed is None:
            return None
        return self.calibration_samples, self.calibration_seed

    @pydantic.field_validator("calibration_samples", "calibration_seed")
    @classmethod
    def _check_calibration(cls, value: int | None, info: pydantic.ValidationInfo) -> int | None:
        if "precision" not in info.data:  # which is wrong, and has its own error
            return value
        if info.data["precision"] != INT8:
            return None  # whatever the defaults of all experiments say
        if value is not None or info.context is None:
            return value
        is_seed = info.field_name == "calibration_seed"
        return 0 if is_seed else models.get(info.context["model"]).CALIBRATION[0]


class DeployFields(ConvertFields):
    """What the deploy stage reads."""

    capture_cuda_graph: bool = False
    max_batch_size: Count
    preferred_batch_sizes: list[Count] = []
    max_queue_delay_us: Annotated[int, Field(ge=0)] = 0
    instances: Annotated[Instances, pydantic.BeforeValidator(_one_for_both)] = Instances()
    threads: Annotated[int, Field(ge=0)] = 0  # of an instance; 0 shares the cores out evenly
    hps: dict[str, Value] = {}  # what NVIDIA's JSON says otherwise than its example does
    # whether a lookup and the graph are two models of an ensemble, or one, by the Python adapter
    composition: Literal["ensemble", "fused"] = "ensemble"

    @pydantic.field_validator("composition")
    @classmethod
    def _check_composition(cls, name: str, info: pydantic.ValidationInfo) -> str:
        if info.context and name == "fused" and not models.lookups(info.context["model"]):
            raise ValueError("this model is one graph, and has nothing to fuse")
        return name

    @pydantic.field_validator("hps")
    @classmethod
    def _check_hps(cls, given: dict[str, Value]) -> dict[str, Value]:
        if own := [name for name in given if name in settings.ONE_TABLE]:
            raise ValueError(f"{own[0]} is the model's, and no experiment's")
        settings.compose(given, settings.ONE_TABLE)
        return given

    @pydantic.field_validator(
        "preferred_batch_sizes", "batch_sizes", "online_batch_size", check_fields=False
    )
    @classmethod
    def _check_batch_sizes(
        cls, value: int | list[int], info: pydantic.ValidationInfo
    ) -> int | list[int]:
        largest = max([value] if isinstance(value, int) else value, default=0)
        limit = info.data.get("max_batch_size", largest)
        if largest > limit:
            raise ValueError(f"{largest} is above max_batch_size {limit}")
        return value


class LoadFields(DeployFields):
    """What both performance stages read."""

    request_count: Count = 50  # requests a point, at least
    margin_of_error: Annotated[float, Field(ge=0.01, le=0.5)] = 0.05  # to know a throughput within
    measurement_seconds: Annotated[float, Field(gt=0)] = 20.0  # that a point may take for it
    distinct_rows: Count = 64  # different real samples that are sent in turn, at most


class SharedMemoryField(Strict):
    """How the load generator hands over tensors on the server's host."""

    shared_memory: Literal["none", "system", "cuda"] = "system"


class RequestField(Strict):
    """How much a client asks for at once."""

    online_batch_size: Count = 1  # samples in a client's request


class OfflineFields(SharedMemoryField, LoadFields):
    """What the stage perf_offline reads."""

    batch_sizes: list[Count] = [1]
    repeated_batch: bool = False  # whether one batch again and again is measured too
    pairs: Count = 3  # bare and served runs that alternate at each point


class BudgetField(Strict):
    """What a service promises. `perf_online` draws it, and measures the same without it."""

    latency_budget_ms: Milliseconds | None = None  # at p99


class OnlineFields(BudgetField, RequestField, LoadFields):
    """What the stage perf_online reads."""

    concurrency: list[Count] = [1]  # clients, each with one request at a time
    # of the most requests per second that the clients got: sent at random times, whoever waits
    rates: list[Annotated[float, Field(gt=0, le=2)]] = [0.5, 0.7, 0.9]
    max_rate_budget_ms: Milliseconds | None = None  # look for the highest rate that keeps it at p99


class LessonFields(SharedMemoryField, RequestField, LoadFields):
    """What a lesson reads: it chooses the clients itself, and what it varies."""


class ReportFields(BudgetField, CheckpointField):
    """What the report reads itself; the rest comes from the results of the other stages."""

    dataset: str = "generated"


TUNED = (  # what a search chooses; "format" stands for a format with its precision
    *("format", "threads", "instances", "preferred_batch_sizes", "max_queue_delay_us"),
    *("composition", "concurrency"),
)


class TuneFields(OfflineFields, OnlineFields, ReportFields):
    """What the stage tune reads: all that the experiment which it writes has to say."""

    tune_minutes: Annotated[float, Field(gt=0)] = 5.0  # of measuring that the search may take
    # the values to try of single fields, where not the usual ones; formats as "openvino-bf16"
    tune_space: dict[str, Annotated[list[Value], Field(min_length=1)]] = {}

    @pydantic.field_validator("tune_space")
    @classmethod
    def _check_space(cls, space: dict[str, list[Value]]) -> dict[str, list[Value]]:
        if unknown := sorted(set(space) - set(TUNED)):
            raise ValueError(f"{unknown[0]} is not searched; what is: {', '.join(TUNED)}")
        return space


class Experiment(TuneFields):
    """One configuration of one model on a target, as a parameter file gives it."""

    release: str = ""  # of Triton, where the model has another than the server section


class ModelSection(Strict):
    defaults: dict[str, Value] = {}
    lessons: list[Lesson] = []  # that a run adds to the model's experiments, about the first
    experiments: Annotated[dict[FolderName, dict[str, Value] | None], Field(min_length=1)]


class ParameterFile(Strict):
    """The five top-level keys, which are also the parameters of every notebook.

    The fields of an experiment are checked when it is merged with its defaults: see `configure`.
    """

    gpu: str
    device: Literal["cpu", "gpu"]
    server: Server = Server()
    defaults: dict[str, Value] = {}
    models: Annotated[dict[ModelName, ModelSection], Field(min_length=1)]

    @pydantic.field_validator("models")
    @classmethod
    def _check_lessons(cls, sections: dict[str, ModelSection]) -> dict[str, ModelSection]:
        if wrong := [name for name in sections if sections[name].lessons and name != TAUGHT]:
            raise ValueError(f"{wrong[0]} has no lessons: they are about {TAUGHT}")
        return sections
