"""The schema of a parameter file. The text below a field is its meaning for users, which
`tests/config/documents.py` copies to `params/FIELDS.md`.
"""

import re
from collections.abc import Sequence
from typing import Annotated, Literal
from urllib.parse import urlsplit

import pydantic
from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, field_validator

from helpers import formats, models
from helpers.config.old_names import PARAMETERS
from helpers.hps import settings

Value = pydantic.JsonValue  # a value of YAML or JSON

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def _one_of(names: Sequence[str], name: str, kind: str, shown: str = "") -> str:
    """Return `name`; raise `ValueError` if it is none of `names`."""
    if name in names:
        return name
    known = f"Known {kind}s: {', '.join(names)}." if names else f"This model has no {kind}s."
    raise ValueError(f"Unknown {kind}{shown}. {known}")


def _folder_name(name: str) -> str:
    if name == LESSONS_FOLDER:
        raise ValueError("The lessons' results use this name. Choose another one.")
    if not NAME.fullmatch(name):
        raise ValueError("Invalid name. Use letters, digits, '.', '_' and '-'.")
    return name


def _one_for_both(count: Value) -> Value:
    return {"offline": count, "online": count} if isinstance(count, int) else count


def _model(info: ValidationInfo) -> models.Model:
    """Return the model of the experiment: see `validated`."""
    assert info.context
    return models.get(info.context["model"])


Count = Annotated[int, Field(ge=1, strict=True)]
Precision = Literal["fp32", "bf16", "fp16"]
Protocol = Literal["http", "grpc"]
PROTOCOLS: dict[Protocol, str] = {"http": "HTTP", "grpc": "gRPC"}
INT8 = "int8"  # `convert` calibrates it from an fp32 export
FormatName = Annotated[str, AfterValidator(lambda n: _one_of(formats.names(), n, "format"))]
ModelName = Annotated[str, AfterValidator(lambda n: _one_of(models.names(), n, "model"))]
FolderName = Annotated[str, AfterValidator(_folder_name)]
Lesson = Literal["dynamic_batching", "instances", "precision", "protocol"]
TUTORIAL_MODEL = "resnet50"  # the model of the lessons' notebooks
LESSONS_FOLDER = "lessons"  # of their notebooks, and of their results in a model's folder
Milliseconds = Annotated[float, Field(gt=0, strict=False, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Strict(pydantic.BaseModel):
    """Immutable, validated fields; an unknown key is an error."""

    model_config = pydantic.ConfigDict(strict=True, frozen=True)

    @pydantic.model_validator(mode="before")
    @classmethod
    def _check_keys(cls, content: object) -> object:
        for key in content if isinstance(content, dict) else ():
            if key not in cls.model_fields:
                raise ValueError(unknown_key(cls, key))
        return content


def unknown_key(schema: type[pydantic.BaseModel], key: str) -> str:
    """Return the error text for a key that `schema` does not have, with its new name if any."""
    if (name := PARAMETERS.get(key)) in schema.model_fields:
        return f"Unknown key '{key}'. Its new name is {name}."
    return f"Unknown key '{key}'. Known keys: {', '.join(sorted(schema.model_fields))}."


class Instances(Strict):
    """Model instances per scenario: some published tables used more of them online."""

    offline: Count = 1
    """Instances in the offline measurement."""
    online: Count = 1
    """Instances in the online measurement."""


class Server(Strict):
    """Which server to use, and the release of Triton that the results belong to."""

    kind: Literal["embedded", "docker", "remote", "local"] = "embedded"
    """`embedded` starts Triton from PyPI. `docker` starts NVIDIA's image. `remote` uses a running
    server. `local` starts a Triton that is installed on this machine."""
    release: str = "24.10"
    """Triton release. Write it in quotes."""
    backend: Literal["", "native", "adapter"] = ""
    """`native` uses Triton's own backends. `adapter` uses the package's Python adapter, which needs
    the formats' Python packages. Default: `adapter` for `embedded`, `native` for the others."""
    image: str = ""
    """`docker`: an image to use instead of NVIDIA's image of this release."""
    url: str = ""
    """`remote`: host and port of the HTTP endpoint, such as `127.0.0.1:8000`."""
    metrics_url: str = Field(default="", exclude_if=lambda url: not url)
    """`remote`: host and port of the metrics. Default: two ports above the HTTP endpoint's."""
    grpc_url: str = Field(default="", exclude_if=lambda url: not url)
    """`remote`: host and port of the gRPC endpoint. Default: one port above the HTTP endpoint's."""
    path: str = Field(default="/opt/tritonserver", exclude_if=lambda p: p == "/opt/tritonserver")
    """`local`: the folder of Triton, which has `bin/tritonserver` and `backends`."""
    repository: str = ""
    """`remote`: the server's model repository, if it is a folder on this machine. Models are copied
    there and removed afterwards."""

    @property
    def is_native(self) -> bool:
        """Return whether Triton's own backends run the models, and not the Python adapter."""
        return self.kind != "embedded" and self.backend != "adapter"

    @field_validator("backend")
    @classmethod
    def _check_backend(cls, backend: str, info: ValidationInfo) -> str:
        if backend == "native" and info.data.get("kind") == "embedded":
            raise ValueError("The embedded server has no native backends. Use 'adapter'.")
        return backend

    @field_validator("url", "metrics_url", "grpc_url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        if not url.isprintable():
            raise ValueError("It contains an unprintable character. Remove it.")
        urlsplit(f"http://{url.removeprefix('http://')}")  # ValueError: brackets that do not match
        return url


class DataFields(Strict):
    """The fields that decide which samples there are."""

    dataset: str = "generated"
    """Name of a generated data set, or path of a real one."""
    variant: Annotated[str, Field(validate_default=True)] = ""
    """Variant of the network and its data. Default: the model's first."""
    max_seq_length: Annotated[Count | None, Field(validate_default=True)] = None
    """BERT: tokens in a window. Default: 384."""
    crop_size: Annotated[Count | None, Field(validate_default=True)] = None
    """ResNet50: side of an image's center crop, in pixels. Default: 224."""
    dimensions: Annotated[dict[str, Count], Field(validate_default=True)] = {}
    """Your own model: sizes of the dimensions that its graph leaves free, by name."""
    labels: str = ""
    """Your own model: file with one label per sample."""

    @field_validator("max_seq_length", "crop_size")
    @classmethod
    def _check_size(cls, size: int | None, info: ValidationInfo) -> int | None:
        model = _model(info)
        limits = model.SAMPLE_SIZES.get(str(info.field_name))
        if size is None:
            return limits.usual if limits else None
        if not limits:
            raise ValueError(f"{model.TITLE} has no such field. Remove it.")
        if not limits.smallest <= size <= limits.largest:
            takes = f"{limits.smallest} to {limits.largest} {limits.unit}"
            raise ValueError(f"{model.TITLE} takes {takes}.")
        return size

    @field_validator("dimensions")
    @classmethod
    def _check_dimensions(cls, sizes: dict[str, int], info: ValidationInfo) -> dict[str, int]:
        names = _model(info).dimensions
        for name in sizes:
            _one_of(names, name, "dimension", f" '{name}'")
        if missing := [name for name in names if name not in sizes]:
            raise ValueError(f"The size of '{missing[0]}' is missing. Add it.")
        return sizes

    @field_validator("labels")
    @classmethod
    def _check_labels(cls, path: str, info: ValidationInfo) -> str:
        if path and not _model(info).TAKES_LABELS:
            raise ValueError("The data set of this model has its labels. Remove this field.")
        return path

    @field_validator("variant", "lookup", check_fields=False)
    @classmethod
    def _check_name(cls, name: str, info: ValidationInfo) -> str:
        kind, model = str(info.field_name), _model(info)
        names = model.VARIANTS if kind == "variant" else tuple(model.ensembles)
        return _one_of(names, name, kind) if name else next(iter(names), "")


class CheckpointField(Strict):
    """The weights."""

    checkpoint: str = "fitted"
    """`fitted`, which fits a network to the generated data set, or the path of a checkpoint."""

    @property
    def caveat(self) -> str:
        """Return the note next to every accuracy; empty for a real checkpoint and real samples."""
        is_fitted = self.checkpoint == "fitted"
        note = "checkpoint fitted to generated data" if is_fitted else getattr(self, "drawn", "")
        return f" ({note})" if note else ""


class ExportFields(DataFields, CheckpointField):
    """The fields that the export stage reads."""

    export_format: FormatName
    """Format to which the framework exports its network."""
    export_precision: Precision
    """Precision of the exported file."""
    lookup: Annotated[str, Field(validate_default=True)] = ""
    """DLRM, DCNv2: `mapped` reads the embedding tables from files, `hps` uses a parameter server.
    Default: `mapped`."""
    fused: bool = True
    """`lookup: hps`: join all embedding tables into one."""
    table_precision: Literal["fp32", "fp16", "int8"] = "fp32"
    """`lookup: mapped`: precision of the embedding tables. `int8` has one scale per row."""

    @field_validator("table_precision")
    @classmethod
    def _check_tables(cls, precision: str, info: ValidationInfo) -> str:
        if precision != "fp32" and info.data.get("lookup", "mapped") != "mapped":
            raise ValueError("Only tables with lookup: mapped can differ from fp32. Use fp32.")
        return precision


class ConvertFields(ExportFields):
    """The fields that the convert stage reads, whatever the format."""

    format: FormatName
    """Format that is served: the export format, or a format that is made from it."""
    precision: Precision | Literal["int8"]
    """Precision of the served file. `int8` is calibrated from an fp32 export."""
    calibration_samples: Annotated[Count | None, Field(validate_default=True)] = None
    """`int8`: number of training samples that set the scales. Default: 128; 8,000 for DLRM and
    DCNv2."""
    calibration_seed: Annotated[int | None, Field(validate_default=True)] = None
    """`int8`: seed for drawing these samples. Default: 0."""
    accelerator: Literal["none", "trt", "openvino", "amp"] = "none"
    """Accelerator inside the runtime: `trt` or `openvino` in ONNX Runtime, `amp` in TensorFlow."""
    accelerator_precision: Precision | None = None
    """Precision in which the accelerator computes. Default: `precision`."""

    @field_validator("format")
    @classmethod
    def _check_source(cls, name: str, info: ValidationInfo) -> str:
        exported, sources = info.data.get("export_format", name), formats.get(name).SOURCES
        if name != exported and exported not in sources:
            raise ValueError(f"It is made from {' or '.join(sources)}, not from {exported}.")
        return name

    @field_validator("precision")
    @classmethod
    def _check_precision(cls, precision: str, info: ValidationInfo) -> str:
        first = info.data.get("export_precision", precision)
        same = info.data.get("format") == info.data.get("export_format")
        if same and precision not in (first, INT8):
            raise ValueError(f"The exported file is served as it is, so it has to be {first}.")
        if precision == INT8 and first != "fp32":
            raise ValueError("int8 needs an fp32 export. Set export_precision to fp32.")
        return precision

    @property
    def calibration(self) -> tuple[int, int] | None:
        """Return the number of training samples and the seed that draws them; None without int8."""
        if self.calibration_samples is None or self.calibration_seed is None:
            return None
        return self.calibration_samples, self.calibration_seed

    @field_validator("calibration_samples", "calibration_seed")
    @classmethod
    def _check_calibration(cls, value: int | None, info: ValidationInfo) -> int | None:
        if info.data.get("precision", INT8) != INT8:
            return None  # defaults for all experiments may set it
        if value is not None:
            return value
        return 0 if info.field_name == "calibration_seed" else _model(info).CALIBRATION[0]


class DeployFields(ConvertFields):
    """The fields that the deploy stage reads."""

    capture_cuda_graph: bool = False
    """TensorRT engines: capture CUDA graphs."""
    max_batch_size: Count
    """Largest batch that the server accepts or forms."""
    preferred_batch_sizes: list[Count] = []
    """Batch sizes that the dynamic batcher prefers."""
    max_queue_delay_us: Annotated[int, Field(ge=0)] = 0
    """Longest time that the batcher holds a request to fill a batch, in microseconds."""
    instances: Annotated[Instances, BeforeValidator(_one_for_both)] = Instances()
    """Model instances: one number, or one each for the offline and the online measurement."""
    threads: Annotated[int, Field(ge=0)] = 0
    """CPU threads per instance. 0 divides the cores evenly among the instances."""
    cold_starts: Annotated[int, Field(ge=0)] = 0
    """Starts of the server that `deploy` times, with Triton's warm-up and as often without. A
    remote server is not started."""
    protocol: Protocol = "http"
    """Protocol of the clients' requests."""
    hps: dict[str, Value] = {}
    """`lookup: hps`: fields of NVIDIA's JSON whose values differ from its example."""
    composition: Literal["ensemble", "fused"] = "ensemble"
    """DLRM, DCNv2: serve lookup and dense network as two models of an ensemble, or as one model of
    the Python adapter."""

    @field_validator("composition")
    @classmethod
    def _check_composition(cls, name: str, info: ValidationInfo) -> str:
        if name == "fused" and not _model(info).ensembles:
            raise ValueError("This model is a single graph. Use ensemble, or remove the field.")
        return name

    @field_validator("hps")
    @classmethod
    def _check_hps(cls, changes: dict[str, Value]) -> dict[str, Value]:
        if fixed := [name for name in changes if name in settings.ONE_TABLE]:
            raise ValueError(f"The model sets {fixed[0]}. Remove it.")
        settings.compose(changes, settings.ONE_TABLE)
        return changes

    @field_validator(
        "preferred_batch_sizes", "batch_sizes", "online_batch_size", check_fields=False
    )
    @classmethod
    def _check_batch_sizes(cls, value: int | list[int], info: ValidationInfo) -> int | list[int]:
        largest = max([value] if isinstance(value, int) else value, default=0)
        limit = info.data.get("max_batch_size", largest)
        if largest > limit:
            raise ValueError(f"{largest} is above max_batch_size, which is {limit}.")
        return value


class LoadFields(DeployFields):
    """The fields that both performance stages read."""

    request_count: Count = 50
    """Smallest number of requests per measurement."""
    margin_of_error: Annotated[float, Field(ge=0.01, le=0.5)] = 0.05
    """Target for the relative margin of error of a throughput (95% CI). 0.05 is ±5%."""
    measurement_seconds: Annotated[float, Field(gt=0)] = 20.0
    """Time limit of a measurement, in seconds. It is three times as long while requests are
    missing."""
    distinct_rows: Count = 64
    """Largest number of different samples that are sent one after the other."""


class SharedMemoryField(Strict):
    """How the load generator passes tensors on the server's host."""

    shared_memory: Literal["none", "system", "cuda"] = "system"
    """How the load generator passes tensors to a server on the same host, offline. `none` sends
    them with the request."""


class RequestField(Strict):
    """The size of a client's request."""

    online_batch_size: Count = 1
    """Samples per request of a client."""


class OfflineFields(SharedMemoryField, LoadFields):
    """The fields that the stage perf_offline reads."""

    batch_sizes: list[Count] = [1]
    """Batch sizes to measure, with one client."""
    repeated_batch: bool = False
    """Also measure with one batch that is sent again and again."""
    pairs: Count = 3
    """Interleaved pairs of an in-process run and a served run per measurement. Use 2 or more,
    except with native backends."""


class BudgetField(Strict):
    """The latency that a service promises. `compare` measures it, and `perf_online` draws it."""

    latency_budget_ms: Milliseconds | None = None
    """p99 latency that the service has to keep, in milliseconds. It changes no measurement but
    `compare`."""


class ClientsField(Strict):
    """The numbers of clients."""

    concurrency: list[Count] = [1]
    """Numbers of clients to measure in concurrency mode. Each has one request in flight. With an
    empty list, `perf_online` does not run."""


class OnlineFields(ClientsField, BudgetField, RequestField, LoadFields):
    """The fields that the stage perf_online reads."""

    rates: list[Annotated[float, Field(gt=0, le=2)]] = [0.5, 0.7, 0.9]
    """Request rates to measure in request-rate mode (Poisson arrivals). They are shares of the
    highest rate in concurrency mode."""
    max_rate_budget_ms: Milliseconds | None = None
    """Search for the highest request rate whose p99 latency stays within these milliseconds."""


class BoundFields(Strict):
    """What a chosen configuration may use. These fields change no measurement."""

    max_memory_mb: Positive | None = None
    """Largest peak memory of the server, in megabytes. On a GPU it is its device memory."""
    price_per_hour: Positive | None = None
    """Price of the machine per hour, in any currency. Tables then show the cost per million
    inferences. On one machine the fastest configuration is the cheapest."""
    max_cost_per_million: Positive | None = None
    """Largest cost per million inferences. It needs `price_per_hour`. `tune` does not choose what
    is known to cost more (95% CI)."""

    @field_validator("max_cost_per_million")
    @classmethod
    def _check_price(cls, cost: float | None, info: ValidationInfo) -> float | None:
        if cost and info.data.get("price_per_hour", cost) is None:
            raise ValueError("It needs price_per_hour. Add it.")
        return cost


class CompareFields(
    BoundFields, SharedMemoryField, ClientsField, BudgetField, RequestField, LoadFields
):
    """The fields that the stage compare reads of each experiment."""

    compare: bool = True
    """Whether the stage compare measures this experiment."""
    compare_seconds: Annotated[float, Field(gt=0)] = 150.0
    """Time limit for the measurements of the stage compare, in seconds."""


class LessonFields(SharedMemoryField, RequestField, LoadFields):
    """The fields that a lesson reads. It chooses the clients and its variants itself."""


class ReportFields(BudgetField, CheckpointField):
    """The fields that the report reads; the rest comes from the results of the other stages."""

    dataset: str = "generated"


TUNED = (  # the fields that a search varies; "format" is a format with its precision
    *("format", "threads", "instances", "preferred_batch_sizes", "max_queue_delay_us"),
    *("composition", "concurrency"),
)


class TuneFields(OfflineFields, OnlineFields, CompareFields, ReportFields):
    """The fields that the stage tune reads: all fields of the experiment that it writes."""

    tune_minutes: Annotated[float, Field(gt=0)] = 5.0
    """Time limit for the measurements of `tune`, in minutes."""
    tune_space: dict[str, Annotated[list[Value], Field(min_length=1)]] = {}
    """Values that `tune` tries, by field. Write a format as `openvino-bf16`. Default: the usual
    values."""

    @field_validator("tune_space")
    @classmethod
    def _check_space(cls, space: dict[str, list[Value]]) -> dict[str, list[Value]]:
        for name in sorted(space):
            if name not in TUNED:
                raise ValueError(f"{name} is not tuned. Use one of {', '.join(TUNED)}.")
        return space


class Experiment(TuneFields):
    """One configuration of one model on a target, as a parameter file gives it."""

    release: str = ""
    """Triton release of this model. Default: the server's."""


class ModelSection(Strict):
    """One model of a parameter file."""

    defaults: dict[str, Value] = {}
    """Values for all experiments of the model."""
    lessons: list[Lesson] = []
    """Lessons that a run adds, for the model's first experiment. Only ResNet50 has them."""
    experiments: Annotated[dict[FolderName, dict[str, Value] | None], Field(min_length=1)]
    """Experiments by name, each with the fields below."""


class ParameterFile(Strict):
    """The five top-level keys. `configure` checks the fields of an experiment with its defaults."""

    gpu: str
    """Name of the target. For a published GPU, use the name in NVIDIA's tables."""
    device: Literal["cpu", "gpu"]
    """Device on which the models run."""
    server: Server = Server()
    """Server that serves the models."""
    defaults: dict[str, Value] = {}
    """Values for all experiments of the file."""
    models: Annotated[dict[ModelName, ModelSection], Field(min_length=1)]
    """Models by name."""

    @field_validator("models")
    @classmethod
    def _check_lessons(cls, sections: dict[str, ModelSection]) -> dict[str, ModelSection]:
        for name, section in sections.items():
            if section.lessons and name != TUTORIAL_MODEL:
                raise ValueError(f"{name} has no lessons. Only {TUTORIAL_MODEL} has them.")
        return sections
