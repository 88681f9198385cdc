"""What a format is to the rest of the package, and where to find one by its name.

A format is one module `helpers.formats.<name>` (with `-` written `_`) that offers the names of
`Format` and knows nothing about models. The file that defines `load` imports nothing of this
package: a model repository takes it along as its runtime.
"""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
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
    """The names that a module in `helpers.formats` offers."""

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
        self, source: Any, path: Path, *, precision: str, inputs: Arrays, outputs: tuple[str, ...]
    ) -> None:
        """Write the artefact to `path` from `source`: a framework's network, or the file of a
        source format.

        `inputs` is a small real batch, by name and in the network's order; `outputs` are the names
        of what it returns.
        """
        ...

    def load(self, path: Path, threads: int, device: str) -> Session:
        """Load the artefact for `device` ("cpu" or "gpu") with `threads` threads within an
        operator.
        """
        ...


LATER = ("tf-trt", "trt")  # parameter files may name them: they end as skipped


def names() -> list[str]:
    """Name every format of the package, sorted, as parameter files spell them."""
    return sorted(module.name.replace("_", "-") for module in iter_modules(__path__))


def get(name: str) -> Format:
    """Import the format `name`; raise `ParameterError` if there is none."""
    if name not in names():
        raise ParameterError(f"unknown format '{name}': this package has {', '.join(names())}")
    return cast(Format, import_module(f"{__name__}.{name.replace('-', '_')}"))


def distribution(module: str) -> str:
    """Name the installed distribution of a runtime's module: its builds for a CPU or a GPU differ
    in name.
    """
    for name in (module, f"{module}-cpu", f"{module}-gpu"):
        try:
            version(name)
        except PackageNotFoundError:
            continue
        return name
    return module
