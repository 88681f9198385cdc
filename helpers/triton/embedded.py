"""The embedded server kind: Triton of the wheel `nvidia-pytriton`, with this Python's packages."""

import os
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ctypes.util import find_library
from dataclasses import replace
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path

import psutil

from helpers.errors import ServerError
from helpers.store import temporary_folder
from helpers.triton import owner, process
from helpers.triton.server import COMMON_FLAGS, Server, free_ports

READY_SECONDS = 300  # a model that takes longer to load is considered stuck


def wheel() -> Path:
    """Return the installed wheel's folder `tritonserver`, without importing its Python."""
    spec = find_spec("pytriton")
    if spec is None or not spec.submodule_search_locations:
        raise ServerError("the embedded Triton is not installed: pip install nvidia-pytriton")
    return Path(spec.submodule_search_locations[0]) / "tritonserver"


def libraries() -> Path:
    """Return the folder of the wheel's shared libraries, which have hashed names."""
    return wheel().parents[1] / "nvidia_pytriton.libs"


def link_backend(folder: Path) -> None:
    """Link a Python backend whose stub matches this interpreter, outside of site-packages."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = wheel() / "python_backend_stubs" / version / "triton_python_backend_stub"
    if not stub.exists():
        raise ServerError(f"the embedded Triton has no Python backend for Python {version}")
    backend, installed = folder / "python", wheel() / "backends/python"
    backend.mkdir()
    for name in ("libtriton_python.so", "triton_python_backend_utils.py"):
        (backend / name).symlink_to(installed / name)
    (backend / stub.name).symlink_to(stub)
    if library := python_library():
        (backend / library.name).symlink_to(library)


def python_library() -> Path | None:
    """Return the file that is this interpreter as a library, as which a stub needs it; None where
    it came without, and the system has one of its version. Raises `ServerError` if neither has.
    """
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    found = Path(str(sysconfig.get_config_var("LIBDIR")), f"lib{version}.so.1.0")
    if found.exists():
        return found
    if find_library(version):
        return None
    missing = f"{found.name}: install the package lib{version}"
    raise ServerError(f"Triton's Python backend needs {missing}")


@contextmanager
def serve(
    repository: Path,
    *,
    log: Path,
    scenario: str = "online",
    port: int = 0,
    beside: Path | None = None,
    closes: bool = False,
) -> Iterator[Server]:
    """Serve the models of `repository`, and those of the folder `beside`, for `serving.serve`; all
    processes end with the block. It begins while the server starts: who asks it first waits.

    Triton takes two seconds to unload models, which only those that `closes` stands for need: they
    have files of their own to close.
    """
    regions = owner.new_regions()
    with temporary_folder() as folder, log.open("wb") as output:
        link_backend(folder)
        (folder / "models").symlink_to(repository.absolute())
        http, metrics = free_ports(port, 0)
        command = [
            str(wheel() / "bin/tritonserver"),
            f"--model-repository={folder}/models",
            *([f"--model-repository={beside}"] if beside else []),
            f"--backend-directory={folder}",
            f"--backend-config=python,shm-region-prefix-name={regions}",
            *COMMON_FLAGS,
            *([f"--model-config-name={scenario}"] if scenario != "online" else []),
            *("--http-address=127.0.0.1", f"--http-port={http}"),
            *("--metrics-address=127.0.0.1", f"--metrics-port={metrics}"),
            "--metrics-interval-ms=500",  # how often it asks the GPU; a point may take seconds
            "--disable-auto-complete-config",
        ]
        path = f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"
        loaded = ":".join(filter(None, (f"{folder}/python", os.environ.get("LD_LIBRARY_PATH"))))
        env = {**os.environ, "PATH": path, "LD_LIBRARY_PATH": loaded, **process.SETTINGS}
        sweep, at_once = [f"{regions}*"], not closes
        with process.guarded(command, log=output, env=env, sweep=sweep, at_once=at_once) as started:
            urls = f"127.0.0.1:{http}", f"127.0.0.1:{metrics}"
            end = partial(process.end_of, started)
            server = Server(*urls, log, end, processes=(started.pid,))
            has_dead_stubs = partial(_has_dead_stubs, started.pid)
            ready = cache(partial(server.wait_until_ready, READY_SECONDS, has_dead_stubs))
            if closes:  # whose databases the first process that opens them keeps for itself
                ready()
            yield replace(server, ready=ready)
            ready()  # if nobody asked it


def _has_dead_stubs(guard: int) -> bool:
    """Whether a stub, a process of the Python backend, has ended. Triton does not always notice; it
    then waits for it without an end, and never takes its exit code.
    """
    with suppress(psutil.Error):  # one of them ended meanwhile
        stubs = [stub for server in psutil.Process(guard).children() for stub in server.children()]
        return any(stub.status() == psutil.STATUS_ZOMBIE for stub in stubs)
    return False
