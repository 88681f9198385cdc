"""The embedded server kind: Triton of the wheel `nvidia-pytriton`, with this Python's packages."""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import psutil

from helpers.store import temporary_folder
from helpers.triton import owner, process
from helpers.triton.binaries import python_library, require, wheel
from helpers.triton.server import COMMON_FLAGS, NO_GRPC, Server, reserved_ports

UTILITIES = "triton_python_backend_utils.py"
READY_SECONDS = 300  # a model that takes longer to load is considered stuck


def utilities() -> str:
    """Return the source of the Python backend's module for models, with tensors of numpy 2."""
    paths = wheel() / "backends/python" / UTILITIES, Path(__file__).with_name("numpy2.py")
    return "\n".join(path.read_text(encoding="utf-8") for path in paths)


def link_backend(folder: Path) -> None:
    """Link a Python backend whose stub matches this interpreter, outside of site-packages."""
    backend, library = folder / "python", "libtriton_python.so"
    backend.mkdir()
    (backend / library).symlink_to(wheel() / "backends/python" / library)
    (backend / UTILITIES).write_text(utilities(), encoding="utf-8")
    stub = require("Triton's Python backend")
    (backend / stub.name).symlink_to(stub)


@contextmanager
def serve(
    repository: Path,
    *,
    log: Path,
    scenario: str = "online",
    port: int = 0,
    beside: Path | None = None,
    is_grpc: bool = False,
    graceful_shutdown: bool = False,
) -> Iterator[Server]:
    """Serve the models of `repository`, and those of the folder `beside`, for `serving.serve`; all
    processes end with the block. The block begins while the server starts: the first request waits.

    Triton takes two seconds to unload models. Only models with files of their own need this
    `graceful_shutdown`.
    """
    with temporary_folder() as folder:
        link_backend(folder)
        (folder / "models").symlink_to(repository.absolute())
        command = [
            str(require("Triton")),
            f"--model-repository={folder}/models",
            *([f"--model-repository={beside}"] if beside else []),
            f"--backend-directory={folder}",
            *([f"--model-config-name={scenario}"] if scenario != "online" else []),
            "--metrics-interval-ms=500",  # of its GPU queries; a measurement may take seconds
            "--disable-auto-complete-config",
        ]
        path = f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"
        # before the libpython of another build that the wheel has for its stub of Python 3.13
        loaded = ":".join(filter(None, (str(python_library()), os.environ.get("LD_PRELOAD"))))
        env = {**os.environ, "PATH": path, "LD_PRELOAD": loaded, **process.SETTINGS}
        with start(command, env, log, port, is_grpc, graceful_shutdown) as server:
            yield server


@contextmanager
def start(
    command: Sequence[str],
    env: Mapping[str, str],
    log: Path,
    port: int = 0,
    is_grpc: bool = False,
    graceful_shutdown: bool = False,
    ready_seconds: float = READY_SECONDS,
) -> Iterator[Server]:
    """Run the command of a Triton on this machine, with ports of 127.0.0.1, as `serve` does."""
    regions, ports = owner.new_shm_prefix(), reserved_ports(port, 0, 0)
    with log.open("wb") as output, ports as (http, metrics, grpc):
        own = [
            *command,
            f"--backend-config=python,shm-region-prefix-name={regions}",
            *COMMON_FLAGS,
            *("--http-address=127.0.0.1", f"--http-port={http}"),
            *(("--grpc-address=127.0.0.1", f"--grpc-port={grpc}") if is_grpc else (NO_GRPC,)),
            *("--metrics-address=127.0.0.1", f"--metrics-port={metrics}"),
        ]
        at_once = not graceful_shutdown
        with process.supervised(
            own, log=output, env=env, shm_patterns=[f"{regions}*"], at_once=at_once
        ) as started:
            end, processes = partial(process.end_of, started), (started.pid,)
            urls = f"127.0.0.1:{http}", f"127.0.0.1:{metrics}"
            server = Server(*urls, log, end, processes=processes)
            has_dead_stubs = partial(_has_dead_stubs, started.pid)
            ready = cache(partial(server.wait_until_ready, ready_seconds, has_dead_stubs))
            if graceful_shutdown:  # it opens its databases first, as one process locks them
                ready()
            yield replace(server, ready=ready, grpc_address=f"127.0.0.1:{grpc}" if is_grpc else "")
            ready()  # if the block sent no request


def _has_dead_stubs(supervisor: int) -> bool:
    """Return whether a stub, a process of the Python backend, has ended. Triton does not always
    detect it. It then waits for the stub forever, and never reads its exit code.
    """
    with suppress(psutil.Error):  # one of them ended meanwhile
        servers = psutil.Process(supervisor).children()
        stubs = [stub for server in servers for stub in server.children()]
        return any(stub.status() == psutil.STATUS_ZOMBIE for stub in stubs)
    return False
