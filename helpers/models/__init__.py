"""The interface of a model for the rest of the package, and the lookup of a model by its name.

A model is a package `helpers.models.<name>` with an object `MODEL`, an instance of `Model`. It
knows nothing about formats or servers. A package or module `_<name>` holds what models share.
"""

import ast
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from inspect import getfile
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from helpers.errors import ParameterError

Answer = TypeVar("Answer")
Arrays = dict[str, NDArray[Any]]
Split = Literal["train", "test"]
# files of a model's package: those that generate and fit, and those that prepare raw files
GENERATING: tuple[str, ...] = ("synthetic/generate.py", "synthetic/fit.py", "data.py")
PREPARING: tuple[str, ...] = ("raw.py", "raw/__init__.py")
# A torch.nn.Module or a keras.Model, of which neither framework is imported here, or a `Graph`
Network = Any


@dataclass(frozen=True)
class Tensor:
    """One input or output on Triton."""

    name: str
    dtype: str  # as numpy names it
    shape: tuple[int, ...]  # without the batch dimension
    meaning: str = field(default="", compare=False)  # for a reader


@dataclass(frozen=True)
class Graph:
    """A trained graph from a file, which `build` returns instead of a framework's network."""

    content: Any  # the input of a format: ONNX's message, or the folder of a SavedModel
    session: "Session"  # computes it in fp32, as its own runtime does
    layers: tuple[tuple[str, int], ...]  # of each operator its kind and its own parameters


@dataclass(frozen=True)
class Part:
    """One of the models of an ensemble: its tensors, each under its name in the ensemble."""

    name: str
    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]
    # inputs that have one dimension, and none for the batch -> how many elements a sample has
    flat: Mapping[str, int] = field(default_factory=dict)


class SampleSize(NamedTuple):
    """The sizes that an experiment may choose for a model's samples."""

    smallest: int
    largest: int
    usual: int  # where it says nothing
    unit: str


class Config(Protocol):
    """The fields of an experiment that a model reads."""

    model: str
    dataset: str
    variant: str
    max_seq_length: int | None
    crop_size: int | None
    dimensions: dict[str, int]
    labels: str
    export_precision: Literal["fp32", "bf16", "fp16"]
    lookup: str
    fused: bool
    table_precision: Literal["fp32", "fp16", "int8"]

    @property
    def opset(self) -> int | None:
        """Return the ONNX opset that a server with old runtimes reads; None for current ones."""


class Deployment(Config, Protocol):
    """The fields that a deployed lookup reads."""

    device: Literal["cpu", "gpu"]
    hps: dict[str, Any]
    max_batch_size: int
    composition: Literal["ensemble", "fused"]


@dataclass(frozen=True)
class Example:
    """The request of the client in a model repository, and the code that prints the response."""

    batch: Arrays  # samples that a person understands, as the data set gives them
    beside: Arrays  # for reading the response: the true label, names, units
    # lines of Python that print it: `response.as_numpy(name)` is an output, and `sample` has the
    # arrays of both by name; they import numpy and nothing else
    reading: str


class Dataset(ABC):
    """A set of samples on disk, in order, and the task's metric over all of them."""

    @property
    @abstractmethod
    def facts(self) -> dict[str, str | int]:
        """Return metadata for a reader: numbers of samples and classes, and the origin."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def take(self, places: NDArray[np.int64]) -> Arrays:
        """Read the samples at the ascending indices `places`, with a leading batch dimension."""

    def batches(self, batch_size: int, limit: int | None = None) -> Iterator[Arrays]:
        """Yield every sample once, in order; with `limit`, that many from all over the set."""
        count = len(self) if limit is None else min(limit, len(self))
        for start in range(0, count, batch_size):
            yield self.take(np.arange(start, min(start + batch_size, count)) * len(self) // count)

    @abstractmethod
    def score(self, outputs: Arrays) -> dict[str, float]:
        """Score the outputs of all samples, in the order of `batches`, with the task's metrics."""

    @abstractmethod
    def decisions(self, outputs: Arrays) -> NDArray[Any]:
        """Return the decision that follows from each sample's outputs, in order of `batches`."""


class Session(Protocol):
    def run(self, inputs: Arrays) -> Arrays: ...


class Raw(Protocol):
    """The preparation of a data set from public raw files."""

    def is_raw(self, path: Path) -> bool:
        """Return whether a file or folder holds public raw files, not a prepared set."""

    def prepare_raw(self, config: Config, source: Path, folder: Path) -> None:
        """Turn the raw files at `source` into a prepared set in the empty folder `folder`.

        Uses bounded memory and prints a line every few seconds. Raises `DataError` for a file that
        is damaged or not the public one.
        """


class ParallelMap(Protocol):
    """A function that runs independent calls, here or elsewhere; results come in order."""

    def __call__(
        self, do: Callable[..., Answer], calls: Sequence[Sequence[Any]]
    ) -> Sequence[Answer]: ...


class RawParts(Protocol):
    """The preparation of a data set from large raw files on many machines."""

    def prepare_parts(
        self, config: Config, source: Path, folder: Path, scratch: Path, spread: ParallelMap
    ) -> None:
        """Write the set of `Raw.prepare_raw` by calls of `spread`, with intermediate files in
        `scratch`. A repeated call makes only the files that are missing there.

        Every machine must see the three folders by the same paths. Raises `DataError`.
        """


class RequestCodec(Protocol):
    """The encoding of requests and responses for a model with another tensor layout."""

    def encode(self, batch: Arrays) -> Arrays:
        """Turn a batch of samples into a request."""

    def decode(self, outputs: Arrays) -> Arrays:
        """Turn a response into outputs with one row per sample."""


class Ensemble(Protocol):
    """A lookup and the graph after it. The model's `build` returns the graph alone.

    `CODE` imports nothing else of this package: a model repository holds a copy of it as the
    lookup's runtime.
    """

    FOLDER: str  # name of the folder that `write` makes and `load` reads
    CODE: Path  # the file or the package with `load` that a repository takes along
    RUNTIME: tuple[str, ...]  # the modules that `load` needs

    def parts(self, config: Config) -> tuple[Part, Part]:
        """Describe the lookup and the graph that is exported."""

    def write(self, config: Config, checkpoint: Path, path: Path) -> None:
        """Write what the lookup needs of `checkpoint` to the new folder `path`, in bounded memory;
        raise `CheckpointError` if a table is missing, surplus or misshapen.
        """

    def load(self, path: Path, threads: int, device: str) -> Session:
        """Load the folder that `write` wrote and, in a deployment, `configure` completed."""

    def configure(self, config: Deployment, path: Path) -> tuple[str, ...]:
        """Add the deployment's settings to `path`; return the modules that they need."""

    def codec_in(self, path: Path) -> RequestCodec | None:
        """Return the encoding of requests for the folder `path`; None if samples need none."""


class Reference(Protocol):
    """The simplest lookup, whose output the framework's own network takes."""

    def mapped(self, config: Config, checkpoint: Path) -> Session:
        """Map the files of `checkpoint` itself. Raises `CheckpointError` as `Ensemble.write`."""


class Model(ABC):
    """One model: its tensors, data sets, checkpoints and network."""

    TITLE: str
    # "torch" or "tensorflow", which builds the network; "onnxruntime" runs a graph in a file
    FRAMEWORK: ClassVar[str]
    PACKAGES: ClassVar[tuple[str, ...]] = ()  # modules that it imports beside the framework
    METRICS: ClassVar[dict[str, Literal["higher", "lower"]]]  # name -> whichever is better
    VARIANTS: ClassVar[tuple[str, ...]] = ()  # of the network; the first is the default
    SAMPLE_SIZES: ClassVar[dict[str, SampleSize]] = {}  # by the field that gives it
    GENERATED: ClassVar[tuple[str, ...]] = ("generated", "generated-small")  # data sets made here
    TAKES_LABELS: ClassVar[bool] = False  # whether labels are a file of their own
    DRAWN: ClassVar[str] = ""  # a remark on all results of a generated data set
    TAKES_ZEROS: ClassVar[bool] = True  # whether a graph accepts zeros, which a warmup sends
    # of a model that is in a Triton repository already: the backend that runs it
    BACKEND: ClassVar[str] = ""
    BATCH: ClassVar[int]  # samples per call of the framework, limited by memory
    IS_BATCHED: ClassVar[bool] = True  # whether a graph takes more than one sample at once
    # int8: the default number of calibration samples, and the samples per call
    CALIBRATION: ClassVar[tuple[int, int]] = (128, 8)
    # Precision -> largest (max, mean) absolute difference from the framework in fp32, in standard
    # deviations of each output.
    TOLERANCES: dict[str, tuple[float, float]]

    @property
    def dimensions(self) -> tuple[str, ...]:
        """Return the names of a graph's free dimensions, whose sizes a parameter file sets."""
        return ()

    @abstractmethod
    def inputs(self, config: Config) -> tuple[Tensor, ...]: ...

    @abstractmethod
    def outputs(self, config: Config) -> tuple[Tensor, ...]: ...

    def module(self, name: str) -> Any:
        """Import a module of the model's package; return None if the package lacks it."""
        name = f"{sys.modules[type(self).__module__].__package__}.{name}"
        return import_module(name) if find_spec(name) else None

    def prepare_dataset(self, config: Config, folder: Path) -> None:
        """Generate the set `config.dataset` in `folder`; raise `DataError` if there is none."""
        self.module("synthetic.generate").write(config, folder)

    @abstractmethod
    def open_dataset(self, config: Config, folder: Path, split: Split = "test") -> Dataset:
        """Open a part of a generated or prepared data set; raise `DataError` for another layout."""

    def training_samples(self, config: Config, folder: Path, count: int, seed: int) -> Arrays:
        """Draw `count` different training samples; raise `DataError` if the set has fewer."""
        from helpers.models._arrays import draw

        samples = self.open_dataset(config, folder, "train")
        return samples.take(draw(len(samples), count, seed))

    def prepare_checkpoint(self, config: Config, dataset: Path, path: Path) -> None:
        """Fit a small checkpoint to the generated set in `dataset`; `path` is its file or folder.

        Prints a line every 20 steps. Raises `DataError` if no such set is generated.
        """
        self.module("synthetic.fit").fit(config, dataset, path)

    def example(self, config: Config, dataset: Dataset, most: int) -> Example:
        """Choose at most `most` samples for a client: the first that the model's display shows."""
        if choose := getattr(self.module("display"), "example", None):
            return cast(Example, choose(dataset, most))
        batch = dataset.take(np.zeros(1, np.int64))
        names = [tensor.name for tensor in self.outputs(config)]
        reading = f"for name in {names}:\n    print(name, response.as_numpy(name).ravel()[:8])\n"
        return Example(batch, {}, reading)

    @abstractmethod
    def build(self, config: Config, checkpoint: Path) -> Network:
        """Build the fp32 network in evaluation mode; a format makes it fp16 or bf16.

        A torch module takes the inputs in the order of `inputs`, a Keras model takes a dict by
        name. The outputs come in the order of `outputs`. Raises `CheckpointError` if a tensor of
        `checkpoint` is missing, surplus or misshapen.
        """

    def source(self, config: Config, checkpoint: Path) -> Session | None:
        """Load the runtime that `checkpoint` comes with, if any, as the reference."""
        return None

    @property
    def raw(self) -> Raw | None:
        """Return the preparation of the model's public raw files; None if it has none."""
        return cast(Raw | None, self.module("raw"))

    @property
    def raw_parts(self) -> RawParts | None:
        """Return their preparation on many machines; None if they are small."""
        return None

    @property
    def ensembles(self) -> dict[str, Ensemble]:
        """Return the ensembles by their lookups' names, the default first; of one graph, none."""
        return {}

    @property
    def reference(self) -> Reference | None:
        """Return the lookup in a checkpoint's own files; None if the model is one graph."""
        return None


def float_type(config: Config) -> str:
    """Return the type of an exported graph's floating-point inputs and outputs."""
    return "float16" if config.export_precision == "fp16" else "float32"


@cache
def names() -> list[str]:
    """Return the names of all models of the package, sorted."""
    return sorted(m.name for m in iter_modules(__path__) if m.ispkg and m.name[0] != "_")


def get(name: str) -> Model:
    """Import the model `name`; raise `ParameterError` if there is none."""
    if name not in names():
        raise ParameterError(f"Unknown model '{name}'. Known models: {', '.join(names())}.")
    return cast(Model, import_module(f"{__name__}.{name}").MODEL)


def at_once(name: str, samples: int) -> int:
    """Return how many of `samples` the model `name` takes in one call."""
    return samples if get(name).IS_BATCHED else 1


def raw(name: str) -> Raw | None:
    """Return the preparation of the raw files of the model `name`; None if it has none."""
    return get(name).raw


def ensemble(name: str, lookup: str = "") -> Ensemble | None:
    """Return an ensemble of the model `name`; None if the model is one graph."""
    ensembles = get(name).ensembles
    return ensembles.get(lookup) or next(iter(ensembles.values()), None)


def lookups(name: str) -> tuple[str, ...]:
    """Return the names of the lookups that the model can have, the default first."""
    return tuple(get(name).ensembles)


@cache
def recipe(name: str, modules: tuple[str, ...] = GENERATING) -> list[Path]:
    """List the source files of some modules of the model `name`, and their imports below this
    folder; if the model has none of the modules, those of its package.
    """
    package, own = Path(getfile(type(get(name)))).parent, Path(__file__).with_name(name)
    left = [path for module in modules if (path := package / module).is_file()]
    left, files = left or [own / "__init__.py"], set(own.glob("model.yaml"))
    while left:
        files.add(path := left.pop())
        left += _imported(path) - files
    return sorted(files)


def _imported(path: Path) -> set[Path]:
    """Find the files of this folder, but for this one, that a file imports by `from`."""
    imported = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith(f"{__name__}."):
            module = Path(__file__).parent.joinpath(*str(node.module).split(".")[2:])
            for name in (module / alias.name for alias in node.names):
                files = (name.with_suffix(".py"), name / "__init__.py", module.with_suffix(".py"))
                imported.add(next(filter(Path.is_file, files), module / "__init__.py"))
    return imported - {Path(__file__)}


def sources(name: str) -> list[Path]:
    """List every source file that determines what the model `name` computes: all its packages."""
    here, files = Path(__file__).parent, recipe(name)
    packages = {here / name, *(path.parent for path in files)} - {here}
    return sorted({*files, *(path for package in packages for path in package.glob("*.py"))})
