"""The embedded server: the Triton binary of PyPI's `nvidia-pytriton`, its Python backend and this
interpreter's packages.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import psutil

from helpers.errors import ServerError
from helpers.store import temporary_folder
from helpers.triton import process
from helpers.triton.client import Server
from helpers.triton.log import exit_reason
from helpers.triton.ports import free_ports, require_free
from helpers.triton.temporary import SHARED_MEMORY, new_name, remove_leftovers

READY_SECONDS = 300  # a model that takes longer to load is considered stuck
STUB_SECONDS = 5.0  # in which Triton itself reports a stub that could not start, if it does

# For every Triton that this package starts, of whatever release. Without model control it loads the
# repository's models, and nobody who reaches the port can load others, whose code would run as this
# user.
COMMON_FLAGS = ("--model-control-mode=none", "--allow-grpc=false", "--exit-timeout-secs=5")


def wheel() -> Path:
    """Return the folder `tritonserver` of the installed wheel, without importing any of its
    Python.
    """
    spec = find_spec("pytriton")
    if spec is None or not spec.submodule_search_locations:
        raise ServerError("the embedded Triton is not installed: pip install nvidia-pytriton")
    return Path(spec.submodule_search_locations[0]) / "tritonserver"


def libraries() -> Path:
    """Return the folder of the wheel's shared libraries, which have hashed names."""
    return wheel().parents[1] / "nvidia_pytriton.libs"


def link_backend(folder: Path) -> None:
    """Put together a Python backend whose stub matches this interpreter: three links, nothing
    written to site-packages.
    """
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = wheel() / "python_backend_stubs" / version / "triton_python_backend_stub"
    if not stub.exists():
        raise ServerError(f"the embedded Triton has no Python backend for Python {version}")
    backend = folder / "python"
    backend.mkdir()
    for source in (
        wheel() / "backends/python/libtriton_python.so",
        wheel() / "backends/python/triton_python_backend_utils.py",
        stub,
    ):
        (backend / source.name).symlink_to(source)


@contextmanager
def serve(
    repository: Path, *, log: Path, scenario: str = "online", http_port: int | None = None
) -> Iterator[Server]:
    """Serve the models of `repository` on 127.0.0.1 for as long as the block lasts; every process
    ends with it.

    The ports are free ones unless `http_port` names one. Raises `ServerError` with the server's
    last lines if it does not become ready.
    """
    remove_leftovers(SHARED_MEMORY)
    regions = new_name()
    with temporary_folder() as folder, log.open("wb") as output:
        link_backend(folder)
        (folder / "models").symlink_to(repository.absolute())
        free_http, metrics = free_ports(2)
        http = require_free(http_port) if http_port else free_http
        command = [
            str(wheel() / "bin/tritonserver"),
            f"--model-repository={folder}/models",
            f"--backend-directory={folder}",
            f"--backend-config=python,shm-region-prefix-name={regions}",
            *COMMON_FLAGS,
            *(["--model-config-name=offline"] if scenario == "offline" else []),
            "--http-address=127.0.0.1",
            f"--http-port={http}",
            "--metrics-address=127.0.0.1",
            f"--metrics-port={metrics}",
            "--metrics-interval-ms=500",  # how often it asks the GPU; a point may take seconds
            "--disable-auto-complete-config",
        ]
        path = f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"
        env = {**os.environ, "PATH": path, **process.SETTINGS}
        with process.guarded(command, log=output, env=env, sweep=[f"{regions}*"]) as started:

            def end() -> str:
                code = started.poll()
                return "" if code is None else f"it {exit_reason(code)}"

            server = Server(
                f"127.0.0.1:{http}", f"127.0.0.1:{metrics}", log, end, processes=(started.pid,)
            )
            wait_until_ready(server, READY_SECONDS, lambda: _dead_stubs(started.pid))
            yield server


def _dead_stubs(guard: int) -> bool:
    """Whether a stub, a process of the Python backend, has ended. Triton does not always notice; it
    then waits for it without an end, and never takes its exit code.
    """
    with suppress(psutil.Error):  # one of them ended meanwhile
        stubs = [stub for server in psutil.Process(guard).children() for stub in server.children()]
        return any(stub.status() == psutil.STATUS_ZOMBIE for stub in stubs)
    return False


def wait_until_ready(
    server: Server, seconds: float, has_dead_stubs: Callable[[], bool] = lambda: False
) -> None:
    """Wait until the server and its models are ready; raise `ServerError` if it ends, is not ready
    after `seconds`, or has dead stubs for `STUB_SECONDS`.
    """
    started = healthy = time.monotonic()
    while (now := time.monotonic()) < started + seconds:
        if not server.is_alive():
            raise ServerError(f"Triton ended while it started: {server.last_words()}")
        if server.is_all_ready() and server.is_alive():
            return
        if not has_dead_stubs():
            healthy = now
        if now > healthy + STUB_SECONDS:
            raise ServerError(
                f"a Python process of Triton ended while it started: {server.last_words()}"
            )
        time.sleep(0.05)
    raise ServerError(f"Triton was not ready after {seconds:.0f} s: {server.last_words()}")
