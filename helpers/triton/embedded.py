"""The embedded server: the Triton binary of PyPI's `nvidia-pytriton`, its Python backend and this
interpreter's packages.
"""

import os
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from socket import SO_REUSEADDR, SOL_SOCKET, socket
from urllib.error import URLError
from urllib.request import urlopen

from helpers.errors import ServerError
from helpers.store import temporary_folder
from helpers.triton import process
from helpers.triton.client import Server

LOADED_SECONDS = 300  # a model that takes longer to load is taken for stuck


def wheel() -> Path:
    """Give the folder `tritonserver` of the installed wheel, without importing any of its
    Python.
    """
    spec = find_spec("pytriton")
    if spec is None or not spec.submodule_search_locations:
        raise ServerError("the embedded Triton is not installed: pip install nvidia-pytriton")
    return Path(spec.submodule_search_locations[0]) / "tritonserver"


def libraries() -> Path:
    """Give the folder of shared libraries that the wheel brings along, under hashed names."""
    return wheel().parents[1] / "nvidia_pytriton.libs"


def free_ports(count: int) -> list[int]:
    """Find ports of 127.0.0.1 that nothing listens on; they are all open at once, so they
    differ.
    """
    sockets = [socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports: list[int] = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def require_free(port: int) -> int:
    """Give `port` if nothing listens on it; raise `ServerError` otherwise."""
    with socket() as probe:
        probe.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise ServerError(
                f"port {port} of 127.0.0.1 is taken ({error.strerror}): give another, or none"
            ) from None
    return port


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


def last_lines(log: Path, count: int = 6) -> str:
    """Join the last lines of the server's log that say something, for the message of an error."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
    telling = [line for line in lines if line and not line.startswith(("+", "|"))]
    return " / ".join(telling[-count:])


def common_flags(models: Sequence[str]) -> list[str]:
    """Spell what every Triton that this package starts is told, of whatever release."""
    return [
        "--model-control-mode=explicit",
        *(f"--load-model={model}" for model in models),
        "--allow-grpc=false",
        "--exit-timeout-secs=5",
    ]


@contextmanager
def serve(
    repository: Path,
    *,
    models: list[str],
    log: Path,
    scenario: str = "online",
    http_port: int | None = None,
) -> Iterator[Server]:
    """Serve `models` of `repository` on 127.0.0.1 for as long as the block lasts; every process
    ends with it.

    The ports are free ones unless `http_port` names one. Raises `ServerError` with the server's
    last lines if it does not become ready.
    """
    prefix = f"triton-notebooks-{uuid.uuid4().hex[:12]}"
    with temporary_folder() as scratch, log.open("wb") as output:
        link_backend(scratch)
        free_http, metrics = free_ports(2)
        http = require_free(http_port) if http_port else free_http
        command = [
            str(wheel() / "bin/tritonserver"),
            f"--model-repository={repository}",
            f"--backend-directory={scratch}",
            f"--backend-config=python,shm-region-prefix-name={prefix}",
            *common_flags(models),
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
        started = process.start(command, log=output, env=env, sweep=[f"{prefix}*"])
        server = Server(
            f"127.0.0.1:{http}",
            f"127.0.0.1:{metrics}",
            log,
            is_alive=lambda: started.poll() is None,
            processes=(started.pid,),
        )
        try:
            wait_until_ready(server)
            yield server
        finally:
            process.stop(started)


def wait_until_ready(server: Server, seconds: float = LOADED_SECONDS) -> None:
    """Wait until the server and the models it was told to load are ready; raise `ServerError` if it
    exits or is stuck.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not server.is_alive():
            raise ServerError(f"Triton ended while it started: {last_lines(server.log)}")
        try:
            with urlopen(f"http://{server.url}/v2/health/ready", timeout=5) as answer:
                if answer.status == 200 and server.is_alive():
                    return
        except (URLError, OSError):
            time.sleep(0.05)
    raise ServerError(f"Triton was not ready after {seconds:.0f} s: {last_lines(server.log)}")
