"""Every error that the package raises: one line that says what happened and what to do."""

import re
from collections.abc import Iterator
from contextlib import contextmanager


class DeploymentError(Exception):
    """Base of the package's errors. Its text is one line that a user can act on."""


class ParameterError(DeploymentError):
    """A parameter file, an experiment's name or an override is wrong."""


class WorkspaceError(DeploymentError):
    """The outputs folder cannot be used: in use, a file, no space left."""


class InstallationError(DeploymentError):
    """A package or a program is missing, or cannot be loaded."""


class DeviceError(DeploymentError):
    """There is no GPU, or its driver does not respond."""


class DataError(DeploymentError):
    """A data set cannot be read: a truncated image, an empty class folder."""


class CheckpointError(DeploymentError):
    """A checkpoint does not match its network, or tries to run code."""


class ArtifactError(DeploymentError):
    """A stage's input is missing, or changed on disk after its hash was taken."""


class FormatError(DeploymentError):
    """An export or a conversion failed."""


class ServerError(DeploymentError):
    """Triton did not start, stopped, or refused a request."""


class MeasurementError(DeploymentError):
    """A load could not be measured."""


class AccuracyError(DeploymentError):
    """An output or a metric is outside its tolerance."""


class StageError(DeploymentError):
    """A notebook did not run to its end."""


class ClusterError(DeploymentError):
    """The machines of a cluster cannot be reached, or have different software."""


def one_line(error: object, length: int | None = None) -> str:
    """Return the text of an error in one line, of at most `length` characters: whole sentences if
    there are any, without places in the source code of C++.
    """
    text = NOISE.sub("", " ".join(str(error).split())).strip()
    if length is None or len(text) <= length:
        return text
    end = max(text.rfind(stop, 0, length) for stop in (". ", "! ", "; "))
    return text[: end + 1] if end > length / 3 else f"{text[: length - 3]}..."


# Colours, and of C++: ONNX Runtime's kinds of errors, failed checks, files and signatures
NOISE = re.compile(
    r"\x1b\[\d*m| at 0x[0-9a-f]+|\[ONNXRuntimeError\] : \d+ : \w+ : "
    r"|Check '[^']*' failed at \S+:\d+: (?:FrontEnd API failed with )?"
    r"|(?:/[\w.+-]+)+\.(?:cc|cpp|h|hpp):\d+:?(?: in)? ?"
    r"|(?:void )?(?:[\w~]+::)+[\w~]+\((?:[^()]|\([^()]*\))*\)(?: const)? ?"
)


@contextmanager
def as_error(kind: type[DeploymentError], text: str, length: int) -> Iterator[None]:
    """Raise whatever a reader of damaged bytes raises as an error of this package, after `text`."""
    try:
        yield
    except Exception as error:
        raise kind(f"{text}: {one_line(error, length)}") from None
