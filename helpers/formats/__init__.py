"""What a format is to the rest of the package, and how to find one by its name.

A format is a module `helpers.formats.<name>` (with `-` written `_`) with the names of `Format`; it
knows nothing about models. A module `_<name>` is part of one.

The file that defines `load` is copied into model repositories as `runtime.py` and imported there
without this package, so it imports `helpers` below `TYPE_CHECKING` only.
"""

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from math import inf
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, NamedTuple, NotRequired, Protocol, TypeAlias, TypedDict

import numpy as np
from numpy.typing import NDArray

from helpers.errors import ParameterError
from helpers.formats._openvino import block_telemetry as block_telemetry
from helpers.formats._processor import PRODUCTS as PRODUCTS
from helpers.formats._processor import cpuinfo as cpuinfo
from helpers.formats._processor import instructions as instructions

if TYPE_CHECKING:
    import keras
    import torch

LONGEST_CALL, MOST_ITEMS = 88, 6  # characters of a line, items of a list, in a recorded call

Array = NDArray[np.generic]
Arrays = dict[str, Array]  # by the names of tensors; the first dimension is the batch
# What an artifact is made from: a network of a framework, or the file of a source format; of a
# model that comes as an ONNX file, its message.
Source: TypeAlias = "torch.nn.Module | keras.Model | Path"


class Session(Protocol):
    """A loaded model, as parity checks, the in-process baseline and the adapter use it."""

    def run(self, inputs: Arrays) -> Arrays:
        """Compute the outputs of a batch of any size."""


class OperatorTime(TypedDict):
    """An operator of a loaded graph, as the runtime names it, and what it took in a run."""

    kind: str
    kernel: str
    precision: str  # in which it computes, not that of its file
    ms: float


class GraphFacts(TypedDict):
    """The content of a file other than its weights."""

    operators: dict[str, int]  # by the format's own names; constants and the graph's ends left out
    opset: NotRequired[int]  # the version of ONNX's operators


class Setting(NamedTuple):
    """A setting that the tool which makes an artifact is given, and why."""

    field: str
    value: str
    why: str


@dataclass(frozen=True)
class Build:
    """What an artifact is made for; a format ignores what does not concern it."""

    precision: str
    inputs: Arrays  # a small real batch, in the network's order
    outputs: tuple[str, ...]  # names, in the order in which the network returns them
    opset: int | None = None  # of ONNX, for a server with old runtimes; None: today's
    # not the defaults only for a format that names them in `DEPENDS_ON`
    max_batch_size: int = 1
    capture_cuda_graph: bool = False
    samples: int = 0  # in `inputs`, where they are flat; 0: as many as an input is long
    calibration: Sequence[Arrays] = ()  # int8: batches of training samples, as `inputs` are
    tolerances: tuple[float, float] = (inf, inf)  # int8: largest max and mean error, in deviations
    calls: list[str] = field(default_factory=list)  # of the tools, as one would type them
    # Runs a command in the server's image: takes a folder, then the command's first word and names
    # of files in that folder. None: the artifact is made in this process.
    in_image: Callable[[Path, list[str]], None] | None = None

    def record(self, function: str, *arguments: str, **options: object) -> None:
        """Record a call of a tool: `arguments` as code, `options` as values."""
        items = [*arguments, *(f"{name}={_as_code(value)}" for name, value in options.items())]
        line = f"{function}({', '.join(items)})"
        if len(line) > LONGEST_CALL:
            line = f"{function}(\n{''.join(f'    {item},{chr(10)}' for item in items)})"
        self.calls.append(line)


def _as_code(value: object) -> str:
    if isinstance(value, list) and len(value) > MOST_ITEMS:
        return f"[{value[0]!r}, ..., {value[-1]!r}]"
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    return repr(value)


@dataclass(frozen=True)
class Format:
    """What its artifacts are, how one is made, and how one is loaded: the names in its module."""

    FILE: str  # the file or folder of an artifact that `load` takes
    SOURCES: tuple[str, ...]  # the frameworks ("torch", "tensorflow") or formats it is made from
    PRECISIONS: Mapping[str, tuple[str, ...]]  # on each device ("cpu", "gpu") that it runs on
    RUNTIME: tuple[str, ...]  # the modules whose versions decide what the artifact computes
    DISPLAY_NAMES: tuple[str, str]  # the names of the runtime and the format in published tables
    # Writes the artifact of a source to a path; raises the exporter's errors
    make: Callable[[Source, Path, Build], None]
    # Loads it with some threads within an operator for a device ("cpu", "gpu")
    load: Callable[[Path, int, str], Session]
    # Runs it on the CPU with some threads, and returns the time of each operator of a run; None if
    # its runtime does not report them
    profile: Callable[[Path, int, Arrays], list[OperatorTime]] | None = None
    # Counts the operators of an artifact without running it; None if nothing lists them
    describe: Callable[[Path], GraphFacts] | None = None
    # Lists the settings of `make` other than the precision; None if there are none
    asks: Callable[[Build], list[Setting]] | None = None
    # The modules that `make` imports too, of a source or for a precision
    TOOLS: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    DEPENDS_ON: tuple[str, ...] = ()  # see `built_for`
    IMAGE: str = ""  # in which it is made for a server of `{release}`; empty if any process can


# Wheels with GPU support, where their name differs from the module's
_GPU_WHEELS = {"onnxruntime": "onnxruntime-gpu", "tensorrt": "tensorrt-cu13"}


@cache
def names() -> list[str]:
    """List the formats of the package, sorted, as parameter files spell them."""
    modules = (module.name for module in iter_modules(__path__))
    return sorted(name.replace("_", "-") for name in modules if name[0] != "_")


def get(name: str) -> Format:
    """Import the format `name`; raise `ParameterError` if there is none."""
    if name not in names():
        raise ParameterError(f"Unknown format '{name}'. Known formats: {', '.join(names())}.")
    module = import_module(f"{__name__}.{name.replace('-', '_')}")
    fields = Format.__dataclass_fields__.keys()
    return Format(**{key: getattr(module, key) for key in fields & vars(module).keys()})


def most_precisions(source: str, device: str) -> str:
    """Return the format with the most precisions on a device: `source` or one made from it."""
    candidates = [name for name in names() if source in (name, *get(name).SOURCES)]
    return max(candidates, key=lambda name: len(get(name).PRECISIONS.get(device, ())))


def built_for(name: str) -> tuple[str, ...]:
    """List the fields that a conversion to this format reads, beyond those that every one reads."""
    return get(name).DEPENDS_ON if name in names() else ()


def missing(name: str, device: str) -> str:
    """Return which package the format lacks here to run on `device`, in one line; empty if none."""
    for runtime in get(name).RUNTIME:
        if find_spec(runtime) is None:
            return f"{name} needs {runtime}, which is not installed"
        if device != "gpu":
            continue
        wheel = _GPU_WHEELS.get(runtime, runtime)
        if not (installed := installed_version(wheel)):
            return f"{name} on a gpu needs {wheel}, which is not installed"
        if installed.endswith("+cpu"):
            return f"{name} on a gpu needs {wheel} with CUDA, but {installed} is installed"
        if runtime == "onnxruntime" and installed_version(runtime):
            return f"{name} on a gpu needs {wheel} without {runtime}, which has the same files"
    return ""


def distribution(module: str) -> str:
    """Return the installed distribution of a module, whose builds for a CPU or GPU may differ."""
    candidates = (module, f"{module}-cpu", f"{module}-gpu", f"{module}-cu13")
    return next((name for name in candidates if installed_version(name)), module)


def installed_version(name: str) -> str:
    """Return the version of a distribution; empty if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


@contextmanager
def silent_stderr() -> Iterator[None]:
    """Suppress what C++ code prints at every log level: of TensorFlow, and of runtimes."""
    sys.stderr.flush()
    saved = os.dup(2)
    with tempfile.TemporaryFile() as sink:
        os.dup2(sink.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(saved, 2)
            os.close(saved)
