"""The remote server kind: a Triton that somebody else started, with explicit model control if this
package is to copy its models there.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from socket import create_connection

from helpers.config import DeployConfig, StageConfig
from helpers.errors import ServerError
from helpers.store import explained, from_root, link_or_copy
from helpers.triton import owner
from helpers.triton.client import Server

METRICS_PORT = 8002  # Triton's own
HERE = ("127.0.0.1", "localhost")
MARK = ".triton-notebooks"  # in a copied model: its owner
CONNECT_SECONDS = 2.0  # a host that drops packets never refuses


def address(url: str) -> tuple[str, int]:
    """Split `server.url` into host and port; raise `ServerError` for what is neither."""
    host, _, port = url.removeprefix("http://").rstrip("/").rpartition(":")
    if not (host and port.isdigit() and "/" not in host):
        raise ServerError(
            f"server.url is '{url}': give host:port of Triton's HTTP endpoint, such as "
            "127.0.0.1:8000"
        )
    return host, int(port)


def obstacle(config: StageConfig) -> str:
    """Say in one line why the server cannot be used; empty if it answers.

    Each server is asked once in a process: a parameter file has dozens of experiments.
    """
    return _obstacle(config.server.url)


@cache
def _obstacle(url: str) -> str:
    try:
        _require_answer(_server(url, Path()))
    except ServerError as error:
        return str(error)
    return ""


@contextmanager
def serve(
    repository: Path,
    *,
    config: DeployConfig,
    log: Path,
    scenario: str = "online",
    http_port: int | None = None,
) -> Iterator[Server]:
    """Yield the server at `server.url`, which serves the experiment's model during the block.

    If `server.repository` names its folder on this host, the models of `repository` are copied
    there as `scenario` is configured, loaded, unloaded and removed. Otherwise the model must be
    there already. `http_port` has no meaning here: the port is the server's. Raises `ServerError`.
    """
    log.write_text(f"the log of {config.server.url} is kept where it runs\n")
    asked, model = _require_answer(_server(config.server.url, log)), config.model
    server = replace(asked, end=lambda: "" if asked.is_live() else "it gives no answer")
    if not config.server.repository:
        if not server.is_ready(model):
            raise ServerError(
                f"{server.url} has no model {model} ready: load it there, or name its folder on "
                "this host as server.repository"
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


def _server(url: str, log: Path) -> Server:
    """Describe the server at `url`, without asking it."""
    host, port = address(url)
    here = host in HERE
    return Server(
        f"{host}:{port}",
        f"{host}:{METRICS_PORT}",
        log,
        is_local=here,
        processes=_listeners(port) if here else (),
    )


def _require_answer(server: Server) -> Server:
    """Return `server` if it answers; raise `ServerError` otherwise, soon if its host is silent."""
    try:
        create_connection(address(server.url), CONNECT_SECONDS).close()
        answers = server.is_live()
    except (OSError, UnicodeError):  # UnicodeError: no name that could be looked up
        answers = False
    if not answers:
        raise ServerError(
            f"no Triton answers at {server.url}: start it, or set server.url to where it runs"
        )
    return server


def _listeners(port: int) -> tuple[int, ...]:
    """Find the processes of this host that listen on `port`, as far as this user may see them."""
    import psutil

    found = [each for each in psutil.net_connections("tcp") if each.status == psutil.CONN_LISTEN]
    here = [each for each in found if getattr(each.laddr, "port", 0) == port]
    return tuple({each.pid for each in here if each.pid})


@contextmanager
def _copied(repository: Path, target: Path, scenario: str) -> Iterator[list[str]]:
    """Copy every model of `repository` into `target` for as long as the block lasts; yield their
    names.
    """
    copied: list[Path] = []
    try:
        for source in sorted(path for path in repository.iterdir() if path.is_dir()):
            copied.append(_claim(target / source.name))
            _copy(source, copied[-1], scenario)
        yield [path.name for path in copied]
    finally:
        for path in copied:
            shutil.rmtree(path, ignore_errors=True)


def _claim(folder: Path) -> Path:
    """Make a model's folder in the server's repository; one whose owner has ended is replaced."""
    mark = folder / MARK
    if mark.is_file() and owner.is_dead(mark.read_text()):
        shutil.rmtree(folder)
    if folder.exists():
        raise ServerError(f"{folder} is there already: remove it, or give another repository")
    if not folder.parent.is_dir():
        raise ServerError(f"server.repository is {folder.parent}: there is no such folder")
    with explained(folder):
        folder.mkdir()
        mark.write_text(owner.token())
    return folder


def _copy(source: Path, target: Path, scenario: str) -> None:
    with explained(target):
        shutil.copytree(source, target, copy_function=link_or_copy, dirs_exist_ok=True)
        chosen = source / "configs" / f"{scenario}.pbtxt"
        if chosen.exists():
            (target / "config.pbtxt").unlink()  # it may be one file with the source's
            shutil.copyfile(chosen, target / "config.pbtxt")
