"""What a format is to the rest of the package, and where to find one by its name.

A format is one module `helpers.formats.<name>` (with `-` written `_`) that offers the names of
`Format` and knows nothing about models. The file that defines `load` imports nothing of this
package: a model repository takes it along as its runtime. A module `_<name>` is a part of one.
"""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, Protocol, cast

from numpy.typing import NDArray

from helpers.errors import ParameterError

Arrays = dict[str, NDArray[Any]]


class Session(Protocol):
    """A loaded model: the accuracy ladder, the bare measurement and the server's adapter all use
    this one call.
    """

    def run(self, inputs: Arrays) -> Arrays:
        """Map input names to arrays with a leading batch dimension, to outputs likewise."""
        ...


class Format(Protocol):
    """The names that a module in `helpers.formats` offers.

    One whose file fits only the experiment and the server that it is made for has two more, which
    `built_for` and `image` read: `BUILT_FOR`, fields that its `make` takes as keywords, and
    `IMAGE`. Its `make` also takes `in_image`, which runs a command in that image: its first word,
    then names of files in the folder that is given first.
    """

    FILE: str  # the file (or folder) of an artefact that `load` takes
    SOURCES: tuple[
        str, ...
    ]  # the framework ("torch", "tensorflow") or the formats that it is made from
    PRECISIONS: dict[str, tuple[str, ...]]  # device -> the precisions that this format has there
    RUNTIME: tuple[str, ...]  # the modules whose versions decide what the artefact computes
    SHOWN: tuple[
        str, str
    ]  # the runtime's and the format's name, as the published tables spell them

    def make(
        self,
        source: Any,
        path: Path,
        *,
        precision: str,
        inputs: Arrays,
        outputs: tuple[str, ...],
        **made_for: Any,
    ) -> None:
        """Write the artefact to `path` from `source`: a framework's network, or the file of a
        source format.

        `inputs` is a small real batch, by name and in the network's order; `outputs` are the names
        of what it returns. `made_for` is empty for all but the formats with a `BUILT_FOR`.
        """
        ...

    def load(self, path: Path, threads: int, device: str) -> Session:
        """Load the artefact for `device` ("cpu" or "gpu") with `threads` threads within an
        operator.
        """
        ...


# Wheels that run on a GPU, where those for a processor have another name
_ON_GPU = {"onnxruntime": "onnxruntime-gpu", "tensorflow": "tensorflow"}


def names() -> list[str]:
    """Name every format of the package, sorted, as parameter files spell them."""
    found = (module.name for module in iter_modules(__path__))
    return sorted(name.replace("_", "-") for name in found if name[0] != "_")


def get(name: str) -> Format:
    """Import the format `name`; raise `ParameterError` if there is none."""
    if name not in names():
        raise ParameterError(f"unknown format '{name}': this package has {', '.join(names())}")
    return cast(Format, import_module(f"{__name__}.{name.replace('-', '_')}"))


def built_for(name: str) -> tuple[str, ...]:
    """Name the fields of an experiment that a file of this format is made for, beyond those that
    every conversion reads; empty for most formats, and for what is no format.
    """
    return getattr(get(name), "BUILT_FOR", ()) if name in names() else ()


def image(name: str, release: str) -> str:
    """Name the image in which a file of this format is made for a server of `release`; empty for a
    format that any process may make.
    """
    return str(getattr(get(name), "IMAGE", "")).format(release=release)


def missing(name: str, device: str) -> str:
    """Say in one line why this process cannot run the format on `device`; empty if it can, as far
    as installed packages tell.
    """
    for runtime in get(name).RUNTIME:
        if find_spec(runtime.replace("-", "_")) is None:
            return f"{name} needs {runtime}, which is not installed"
        if device != "gpu":
            continue
        wheel = _ON_GPU.get(runtime, runtime)
        if not _version(wheel):
            return f"{name} on a gpu needs {wheel}, which is not installed"
        if _version(wheel).endswith("+cpu"):
            return f"{name} on a gpu needs {wheel} with CUDA, and {_version(wheel)} is installed"
    return ""


def distribution(module: str) -> str:
    """Name the installed distribution of a runtime's module: its builds for a CPU or a GPU differ
    in name.
    """
    names = (module, f"{module}-cpu", f"{module}-gpu")
    return next((name for name in names if _version(name)), module)


def _version(name: str) -> str:
    """Give the version of an installed distribution; empty if there is none."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
