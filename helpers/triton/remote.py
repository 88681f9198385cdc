"""The remote server kind: a Triton that somebody else started."""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from socket import create_connection
from urllib.parse import urlsplit

from helpers.config import DeployConfig
from helpers.config import Server as ServerSection
from helpers.errors import ServerError
from helpers.store import from_root, link_or_copy, report_write_errors
from helpers.triton import containers, owner
from helpers.triton.server import Server

# Triton's own ports are 8000 for HTTP, 8001 for gRPC and 8002 for metrics
GRPC_OFFSET, METRICS_OFFSET = 1, 2
ENDPOINTS = {  # by field of `server`
    "url": "HTTP endpoint, such as 127.0.0.1:8000",
    "metrics_url": "metrics, such as 127.0.0.1:8002",
    "grpc_url": "gRPC endpoint, such as 127.0.0.1:8001",
}
HERE = ("127.0.0.1", "localhost", "::1")
MARK = ".triton-notebooks"  # in a copied model: its owner
CONNECT_SECONDS = 2.0  # a host that drops packets never refuses


def address(url: str, field: str = "url") -> tuple[str, int]:
    """Split `server.url` into host and port; raise `ServerError` for what is neither.

    The host may be an IPv6 address, with brackets or without; it is returned without. `field` is
    the field of `server` that an error names.
    """
    netloc = url.removeprefix("http://").rstrip("/")
    if netloc.count(":") > 1 and "[" not in netloc:
        netloc = "[{}]:{}".format(*netloc.rsplit(":", 1))
    with suppress(ValueError):
        parts = urlsplit(f"//{netloc}")
        if parts.netloc == netloc and parts.hostname and parts.port:
            return parts.hostname, parts.port
    what = f"host:port of Triton's {ENDPOINTS[field]}"
    raise ServerError(f"server.{field} '{url}' is invalid. Set it to {what}.")


def grpc_address(server: ServerSection) -> str:
    """Return host:port of its gRPC endpoint: `grpc_url`, or `GRPC_OFFSET` ports above HTTP's.
    Raises `ServerError` for an invalid one.
    """
    if server.grpc_url:
        return _url(*address(server.grpc_url, "grpc_url"))
    host, port = address(server.url)
    return _url(host, port + GRPC_OFFSET)


def connect(url: str, log: Path, metrics_url: str = "") -> Server:
    """Return the server at `url`, with metrics at `metrics_url` or `METRICS_OFFSET` ports above.

    Raises `ServerError` if no server responds, after a short time if its host does not respond.
    """
    host, port = address(url)
    metrics = address(metrics_url, "metrics_url") if metrics_url else (host, port + METRICS_OFFSET)
    here = host in HERE
    processes = _listeners(port) if here else ()
    server = Server(_url(host, port), _url(*metrics), log, is_local=here, processes=processes)
    with suppress(OSError, UnicodeError):  # UnicodeError: an invalid host name
        create_connection((host, port), CONNECT_SECONDS).close()
        if server.is_live():
            return server
    raise ServerError(f"No Triton responds at {server.address}. Start it, or change server.url.")


def _url(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@contextmanager
def serve(
    repository: Path, *, config: DeployConfig, log: Path, scenario: str = "online", port: int = 0
) -> Iterator[Server]:
    """Yield the server at `server.url`, which serves the experiment's model during the block.

    If `server.repository` names its folder on this host, the models of `repository` are copied
    there, with the configuration of `scenario`. They are loaded, which needs explicit model
    control, and at the end unloaded and removed. Otherwise the model must be there already. `port`
    has no effect: the server has its own. Raises `ServerError`.
    """
    log.write_text(f"the log of {config.server.url} is on its own machine\n")
    running, model = connect(config.server.url, log, config.server.metrics_url), config.model
    if config.protocol == "grpc":
        running = replace(running, grpc_address=grpc_address(config.server))
    server = replace(running, end=lambda: "" if running.is_live() else "it does not respond")
    if not config.server.repository:
        if not server.is_ready(model):
            raise ServerError(
                f"The model {model} is not ready on {server.url}. Load it there, or set "
                "server.repository to the server's folder on this machine."
            )
        yield server
        return
    with _copied(repository, from_root(config.server.repository), scenario) as names:
        try:
            server.load(model)
            yield server
        finally:
            for name in dict.fromkeys((model, *names)):
                with suppress(ServerError):  # it may never have loaded, or the server has gone
                    server.unload(name)


def _listeners(port: int) -> tuple[int, ...]:
    """Return the processes of this host that listen on `port`, as far as this user may see them."""
    import psutil

    sockets = [conn for conn in psutil.net_connections("tcp") if conn.status == psutil.CONN_LISTEN]
    here = {conn.pid for conn in sockets if getattr(conn.laddr, "port", 0) == port and conn.pid}
    # a published port of a container belongs to the engine's proxy
    names = {proc.info["name"] for proc in psutil.process_iter(["name"]) if proc.pid in here}
    return (*here, *(containers.publishing(port) if "docker-proxy" in names else ()))


@contextmanager
def _copied(repository: Path, target: Path, scenario: str) -> Iterator[list[str]]:
    """Copy every model of `repository` into `target` during the block; yield the names."""
    with ExitStack() as copied:
        models = sorted(path for path in repository.iterdir() if path.is_dir())
        for source in models:
            folder = target / source.name
            with report_write_errors(folder):
                _claim(folder)
                copied.callback(shutil.rmtree, folder, ignore_errors=True)
                shutil.copytree(source, folder, copy_function=link_or_copy, dirs_exist_ok=True)
                chosen = source / "configs" / f"{scenario}.pbtxt"
                if chosen.exists():
                    (folder / "config.pbtxt").unlink()  # it may be one file with the source's
                    shutil.copyfile(chosen, folder / "config.pbtxt")
        yield [source.name for source in models]


def _claim(folder: Path) -> None:
    """Create a model's folder in the server's repository; replace one whose owner has ended."""
    mark = folder / MARK
    if mark.is_file() and owner.is_stale(mark.read_text()):
        shutil.rmtree(folder)
    if folder.exists():
        raise ServerError(f"{folder} already exists. Remove it, or change server.repository.")
    if not folder.parent.is_dir():
        raise ServerError(f"server.repository: the folder {folder.parent} does not exist")
    folder.mkdir()
    mark.write_text(owner.token())
