"""A model of the user, whose trained weights and samples are files that a parameter file names.

`triton-notebooks new` describes such a model in `model.yaml`, which can be edited. Its package can
override `score`, and `build` for a network of its own.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

import yaml
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError

from helpers.errors import CheckpointError, DataError, ParameterError
from helpers.models import Arrays, Config, Ensemble, Model, Network, Split, Tensor

if TYPE_CHECKING:
    from helpers.models._own.data import Samples
    from helpers.models._own.preprocessing import Preprocessing
    from helpers.models._own.source import Source

Array: TypeAlias = NDArray[Any]
GENERATED = "generated"
MIN_FOR_CALIBRATION = 32  # samples; from so many on, a share is for calibration
# The source of a model's weights
Kind: TypeAlias = Literal[
    "onnx",
    "savedmodel",
    "keras",
    "torchscript",
    "exported",
    "function",
    "huggingface",
    "repository",
]


@dataclass(frozen=True)
class TensorSpec:
    """A tensor whose free dimensions have names, which a parameter file gives sizes."""

    name: str
    dtype: str  # as numpy names it
    shape: tuple[int | str, ...]  # without the batch dimension; "height/4" is a part of a dimension
    # of an input of whole numbers: the smallest drawn one, and the exclusive limit
    least: int = 0
    below: int = 2
    meaning: str = ""  # for a reader

    def sized(self, dimensions: dict[str, int]) -> Tensor:
        """Return the tensor with all its sizes; raise ParameterError if one is unknown."""
        shape = list[int]()
        for size in self.shape:
            if isinstance(size, str):
                name, _, divisor = size.partition("/")
                if name not in dimensions:
                    fault = f"{self.name} has the free dimension '{name}'"
                    raise ParameterError(f"{fault}. Set its size: dimensions: {{{name}: ...}}")
                size = dimensions[name] // int(divisor or 1)
            shape.append(size)
        return Tensor(self.name, self.dtype, tuple(shape), self.meaning)


class Description(BaseModel, frozen=True, extra="forbid"):
    """The content of `model.yaml`; `new` leaves out fields with their default."""

    source: Kind
    framework: Literal["onnxruntime", "torch", "tensorflow", "triton"]
    function: str = ""  # of the source "function": its module and name, "nets:build"
    backend: str = ""  # of the source "repository": Triton's backend
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    # Whether the graph's tensors have the batch as their first dimension. If not, they get one of
    # size 1, and a request is one sample.
    has_batch: bool = True
    is_batched: bool = True  # whether it takes several samples at once
    # Tensors with the batch dimension alone: Triton requires another, so they get one of size 1
    scalars: tuple[str, ...] = ()
    takes_zeros: bool = True  # whether it accepts zeros, which Triton's warmup sends
    # Of PyTorch: whether the module takes the inputs in order and returns one tensor. Then it needs
    # no wrapper, and TorchScript can compile it.
    is_plain: bool = False
    # What a user decides by the first output: the class of the largest score, or its values
    decision: Literal["class", "values"] = "values"
    classes: tuple[str, ...] = ()  # their names, if the source has them
    # Metrics by labels: names of `metrics.NAMES`, or the keys that `score` returns
    metrics: dict[str, Literal["higher", "lower"]] = {}
    # What becomes of a request before the network: the file in the folder `preprocessing` and its
    # function, "steps:prepare", and what a client sends. Without it, a client sends `inputs`.
    preprocessing: str = ""
    requests: tuple[TensorSpec, ...] = ()
    # Precision -> largest (max, mean) difference from the source, in standard deviations
    tolerances: dict[str, tuple[float, float]] = {}


class Own(Model):
    """A model of the user's, as its `Description` says."""

    GENERATED = (GENERATED,)
    TAKES_LABELS = True
    PACKAGES = ("sklearn",)  # the metrics
    DRAWN = "drawn at random from type and shape, so they do not represent real data"
    BATCH = 32

    def __init__(self, title: str, description: Description, folder: Path = Path()) -> None:
        self.TITLE, self.description, self.folder = title, description, folder
        self.TOLERANCES = description.tolerances
        for name in ("framework", "metrics", "backend", "is_batched", "takes_zeros"):
            setattr(self, name.upper(), getattr(description, name))

    @classmethod
    def load(cls, file: str) -> Self:
        """Read `model.yaml` beside a package's `file`; raise ParameterError for a fault in it."""
        path = Path(file).with_name("model.yaml")
        try:
            description = Description.model_validate(yaml.safe_load(path.read_text()))
        except ValidationError as error:
            fault = error.errors()[0]
            where = ".".join(map(str, fault["loc"]))
            raise ParameterError(f"{path}: {where}: {fault['msg']}") from None
        except (OSError, yaml.YAMLError) as error:
            raise ParameterError(f"{path}: {' '.join(str(error).split())}") from None
        return cls(path.parent.name, description, path.parent)

    @property
    def dimensions(self) -> tuple[str, ...]:
        """Return the names of the free dimensions of the inputs."""
        sizes = [size for spec in self.description.inputs for size in spec.shape]
        return tuple(dict.fromkeys(s.partition("/")[0] for s in sizes if isinstance(s, str)))

    def inputs(self, config: Config) -> tuple[Tensor, ...]:
        specs = self.description.requests or self.description.inputs
        return tuple(spec.sized(config.dimensions) for spec in specs)

    def network_inputs(self, config: Config) -> tuple[Tensor, ...]:
        """Return the inputs of the network, which follows the preprocessing."""
        return tuple(spec.sized(config.dimensions) for spec in self.description.inputs)

    def outputs(self, config: Config) -> tuple[Tensor, ...]:
        return tuple(spec.sized(config.dimensions) for spec in self.description.outputs)

    def score(self, outputs: Arrays, labels: Array) -> dict[str, float]:
        """Score the outputs of all samples by their labels, row by row."""
        from helpers.models._own import metrics

        first = next(iter(outputs.values()))
        return {name: metrics.NAMES[name](first, labels) for name in self.METRICS}

    @cached_property
    def reference(self) -> "Preprocessing | None":
        if not self.description.preprocessing:
            return None
        from helpers.models._own.preprocessing import Preprocessing

        return Preprocessing(self)

    @property
    def ensembles(self) -> dict[str, Ensemble]:
        """Return the preprocessing and the network, unless a client sends the network's inputs."""
        return {"": self.reference} if self.reference else {}  # a lookup has a name

    def prepare_dataset(self, config: Config, folder: Path) -> None:
        from helpers.models._own.data import write_drawn

        if step := self.description.preprocessing:
            raise DataError(f"No samples can be drawn for {step}. Set dataset to a file of them.")
        write_drawn(self, config, folder)

    def open_dataset(self, config: Config, folder: Path, split: Split = "test") -> "Samples":
        from helpers.models._own.data import FILE, Samples

        is_drawn = config.dataset == GENERATED
        return Samples(self, config, folder / FILE if is_drawn else folder, not is_drawn)

    def training_samples(self, config: Config, folder: Path, count: int, seed: int) -> Arrays:
        """Draw calibration samples: a quarter of the user's file, which no evaluation uses."""
        from helpers.models._arrays import draw, take
        from helpers.models._own.data import TRAINING, read

        if config.dataset == GENERATED:
            arrays = read(folder / TRAINING, self.inputs(config))
            return take(arrays, draw(len(next(iter(arrays.values()))), count, seed))
        samples = self.open_dataset(config, folder)
        places = samples.training
        return take(samples.everything, places[draw(len(places), count, seed)])

    def prepare_checkpoint(self, config: Config, dataset: Path, path: Path) -> None:
        raise CheckpointError(f"{self.TITLE} cannot be fitted. Set checkpoint to its file.")

    def read(self, checkpoint: Path) -> "Source":
        """Load the file in its own runtime; raise CheckpointError if that fails."""
        if self.BACKEND:
            raise CheckpointError(f"{self.TITLE} runs only in Triton")
        from helpers.models._own import graph, networks

        of_file = {"onnx": graph.Onnx, "savedmodel": graph.SavedModel}
        network = networks.Torch if self.FRAMEWORK == "torch" else networks.Keras
        return of_file.get(self.description.source, network)(self, checkpoint)

    def source(self, config: Config, checkpoint: Path) -> "Source | None":
        """Load the file as its reference, unless the package builds a network of its own."""
        return self.read(checkpoint) if type(self).build is Own.build else None

    def build(self, config: Config, checkpoint: Path) -> Network:
        return self.read(checkpoint).build(self.network_inputs(config))
