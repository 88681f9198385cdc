"""What a model is to the rest of the package, and where to find one by its name.

A model is a package `helpers.models.<name>` that offers the names of `Model`; it knows nothing
about formats or servers. One whose public data comes as raw files has a module `raw` with the names
of `Raw`; one that is served as a lookup before a graph has a module `ensemble` with the names of
`Ensemble`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from inspect import getfile
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, Literal, Protocol, cast

from numpy.typing import NDArray

from helpers.errors import ParameterError

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Tensor:
    """One input or output on Triton: its name, numpy dtype name and shape without the batch
    dimension.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Part:
    """One of the models that an ensemble is made of; each of its tensors stands under the name that
    the ensemble has for it.
    """

    name: str
    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]


class Dataset(Protocol):
    """An evaluation set on disk: real samples in order, and the task's own metric over all of
    them.
    """

    @property
    def facts(self) -> dict[str, str | int]:
        """What a reader should know of it: number of samples and classes, generated or real."""
        ...

    def __len__(self) -> int: ...

    def batches(self, batch_size: int, limit: int | None = None) -> Iterator[Arrays]:
        """Yield every sample once, in order, as arrays with a leading batch dimension; the last
        batch may be short.

        With `limit`, only that many samples, spread evenly over the whole set, are read and
        yielded.
        """
        ...

    def score(self, outputs: Arrays) -> dict[str, float]:
        """Score the outputs of all samples, in the order of `batches`, with the task's metrics."""
        ...


class Model(Protocol):
    """The names that a package in `helpers.models` offers; `config` holds an experiment's fields as
    attributes.
    """

    TITLE: str
    VARIANTS: tuple[str, ...]  # of the network, the first being the default; empty if it has one
    FRAMEWORK: str  # "torch" or "tensorflow": what the network is built with
    METRICS: dict[
        str, Literal["higher", "lower"]
    ]  # each metric's name -> "higher" or "lower", whichever is better
    GENERATED: tuple[str, ...]  # the names of the data sets that the package generates
    RECIPE: tuple[str, ...]  # what decides what is generated and fitted: modules of the package, or
    # `_<shared>/<module>` of what several models share
    BATCH: int  # samples that the framework computes at once: as many as memory bears
    BOUNDS: dict[
        str, tuple[float, float]
    ]  # precision -> largest (max, mean) absolute difference, per output's deviation

    def inputs(self, config: Any) -> tuple[Tensor, ...]: ...

    def outputs(self, config: Any) -> tuple[Tensor, ...]: ...

    def prepare_dataset(self, config: Any, folder: Path) -> None:
        """Generate the set `config.dataset` in `folder`, an empty folder.

        Raises `DataError` if there is no such set.
        """
        ...

    def open_dataset(self, config: Any, folder: Path) -> Dataset:
        """Open what was generated, prepared from raw files, or prepared by the user; raise
        `DataError` for another layout.
        """
        ...

    def prepare_checkpoint(self, config: Any, dataset: Path, path: Path) -> None:
        """Fit a small checkpoint to the generated data set in `dataset` and write it to `path`, as
        a file or a folder.
        """
        ...

    def build(self, config: Any, checkpoint: Path) -> Any:
        """Build the fp32 network in evaluation mode with every tensor of `checkpoint` accounted
        for, else `CheckpointError`; a format makes it fp16 or bf16.

        A torch module takes the inputs in the order of `inputs`, a Keras model as a dict by name;
        the outputs come in the order of `outputs`.
        """
        ...


class Raw(Protocol):
    """The names that a module `helpers.models.<name>.raw` offers."""

    def holds_raw(self, path: Path) -> bool:
        """Tell whether a file or folder is what the public gives, rather than a prepared set."""
        ...

    def prepare_raw(self, config: Any, source: Path, folder: Path) -> None:
        """Turn the raw files at `source` into a prepared set in `folder`, an empty folder, within
        bounded memory.

        Prints a line every few seconds. Raises `DataError` for a file that is damaged or not the
        public one.
        """
        ...


class Ensemble(Protocol):
    """The names that a module `helpers.models.<name>.ensemble` offers: a lookup, and the graph
    after it.

    What `build` gives is then the graph alone. The file that defines `load` imports nothing of this
    package: a model repository takes it along as the lookup's runtime.
    """

    FOLDER: str  # what `write` makes and `load` takes
    RUNTIME: tuple[str, ...]  # the modules that `load` needs

    def sparse(self, config: Any) -> Part:
        """Describe the lookup."""
        ...

    def dense(self, config: Any) -> Part:
        """Describe the graph that is exported."""
        ...

    def write(self, config: Any, checkpoint: Path, path: Path) -> None:
        """Write what the lookup needs of `checkpoint` into the new folder `path`, within bounded
        memory.
        """
        ...

    def load(self, path: Path, threads: int, device: str) -> Any:
        """Load what `write` wrote as a session: one `run(dict) -> dict`."""
        ...

    def mapped(self, config: Any, checkpoint: Path) -> Any:
        """Map the lookup in the files of `checkpoint` itself, as a session; write nothing."""
        ...


def names() -> list[str]:
    """Name every model of the package, sorted; a package `_<name>` is what several share."""
    return sorted(
        module.name for module in iter_modules(__path__) if module.ispkg and module.name[0] != "_"
    )


def source(name: str, module: str) -> Path:
    """Find the file of a module of the model `name`, as `RECIPE` spells it."""
    folder = Path(__file__).parent
    return (folder if module[0] == "_" else folder / name) / f"{module}.py"


def sources(name: str) -> list[Path]:
    """List every file that decides what the model `name` computes."""
    own = Path(__file__).with_name(name).glob("*.py")
    return sorted({*own, *(source(name, module) for module in get(name).RECIPE)})


def raw_sources(name: str) -> list[Path]:
    """List the files that prepare the raw data of the model `name`: `raw*.py`, or all of `raw/`."""
    if (found := raw(name)) is None:
        return []
    folder = Path(getfile(found.prepare_raw)).parent
    return sorted(folder.glob("*.py" if folder.name == "raw" else "raw*.py"))


def raw(name: str) -> Raw | None:
    """Import what prepares the public raw data of the model `name`, where there is such a thing."""
    return cast(Raw | None, _optional(f"{name}.raw"))


def ensemble(name: str) -> Ensemble | None:
    """Import how the model `name` is composed, where it is more than one graph."""
    return cast(Ensemble | None, _optional(f"{name}.ensemble"))


def _optional(name: str) -> Any:
    module = f"{__name__}.{name}"
    return import_module(module) if find_spec(module) else None


def get(name: str) -> Model:
    """Import the model `name`; raise `ParameterError` if there is none."""
    if name not in names():
        raise ParameterError(f"unknown model '{name}': this package has {', '.join(names())}")
    return cast(Model, import_module(f"{__name__}.{name}"))
