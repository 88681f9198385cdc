"""Triton's binaries: the wheel `nvidia-pytriton`, and perf_analyzer out of an old `tritonclient`.

They are in a separate folder, so that their metadata does not constrain this Python's packages.
docker/triton.lock lists them.
"""

import os
import sys
import sysconfig
from importlib.metadata import distributions
from pathlib import Path

from helpers.errors import ServerError

SYSTEM_LIBRARIES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/local/lib", "/usr/lib")
INSTALL = f"pip install --upgrade --no-deps --target {sys.prefix}/triton -r docker/triton.lock"
BINARIES = {  # required files in their folder; the second is for this Python version
    "Triton": "pytriton/tritonserver/bin/tritonserver",
    "Triton's Python backend": "pytriton/tritonserver/python_backend_stubs/"
    f"{sys.version_info.major}.{sys.version_info.minor}/triton_python_backend_stub",
    "Triton's libraries": "nvidia_pytriton.libs",
    "perf_analyzer": "bin/perf_analyzer",
}


def binaries() -> Path:
    """Return the folder of the binaries; raise `ServerError` if it is not there."""
    folder = Path(sys.prefix, "triton")
    if not folder.is_dir():
        raise ServerError(f"Triton's binaries are not installed. Run: {INSTALL}")
    return folder


def wheel() -> Path:
    """Return the folder of the embedded Triton."""
    return binaries() / "pytriton/tritonserver"


def libraries() -> Path:
    """Return the folder of the wheel's shared libraries, which have hashed names."""
    return binaries() / "nvidia_pytriton.libs"


def perf_analyzer() -> Path:
    """Return perf_analyzer's program."""
    return require("perf_analyzer")


def versions() -> dict[str, str]:
    """Return the versions of the binaries' distributions; none if they are not installed."""
    installed = {dist.name: dist.version for dist in distributions(path=[f"{sys.prefix}/triton"])}
    names = {"nvidia-pytriton": "nvidia-pytriton", "tritonclient": "perf_analyzer"}
    return {name: installed[wheel] for wheel, name in names.items() if wheel in installed}


def require(name: str) -> Path:
    """Return the path of one of `BINARIES`; raise `ServerError` if it is not there."""
    path = binaries() / BINARIES[name]
    if not os.access(path, os.X_OK, effective_ids=True):
        raise ServerError(f"{name} is not installed. Run: {INSTALL}")
    return path


def python_library() -> Path:
    """Return this interpreter's shared library, which a stub needs; raise `ServerError` without."""
    name = f"libpython{sys.version_info.major}.{sys.version_info.minor}"
    for folder in (str(sysconfig.get_config_var("LIBDIR")), *SYSTEM_LIBRARIES):
        if (library := Path(folder, f"{name}.so.1.0")).exists():
            return library
    raise ServerError(f"Triton's Python backend needs {name}.so.1.0. Install the package {name}.")
