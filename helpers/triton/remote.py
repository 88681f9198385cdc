"""The remote server kind: a Triton that somebody else started, under explicit model control where
models are to be brought to it.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from helpers.config import DeployConfig, StageConfig
from helpers.errors import ServerError
from helpers.store import explained, from_root, link_or_copy
from helpers.triton import owner
from helpers.triton.client import Server

METRICS_PORT = 8002  # Triton's own
HERE = ("127.0.0.1", "localhost")
MARK = ".triton-notebooks"  # in a copied model: who brought it


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
    """Say in one line why the server cannot be asked; empty if it answers."""
    try:
        _server(config, Path())
    except ServerError as error:
        return str(error)
    return ""


@contextmanager
def serve(
    repository: Path,
    *,
    config: DeployConfig,
    models: list[str],
    log: Path,
    scenario: str = "online",
    http_port: int | None = None,
) -> Iterator[Server]:
    """Give the server at `server.url`, serving `models` for as long as the block lasts.

    Where `server.repository` names its folder on this host, the models of `repository` are copied
    there as `scenario` is configured, loaded, unloaded and removed. Otherwise they must be there
    already. `http_port` has no meaning here: the port is the server's. Raises `ServerError`.
    """
    log.write_text(f"the log of {config.server.url} is kept where it runs\n")
    asked = _server(config, log)
    server = replace(asked, is_alive=asked.is_live)
    if not config.server.repository:
        for model in models:
            if not server.is_ready(model):
                raise ServerError(
                    f"{server.url} has no model {model} ready: load it there, or name its folder "
                    "on this host as server.repository"
                )
        yield server
        return
    with _copied(repository, from_root(config.server.repository), scenario) as names:
        try:
            for model in models:
                server.load(model)
            yield server
        finally:
            for name in dict.fromkeys((*models, *names)):
                with suppress(ServerError):  # it may never have loaded, or the server has gone
                    server.unload(name)


def _server(config: StageConfig, log: Path) -> Server:
    host, port = address(config.server.url)
    here = host in HERE
    server = Server(
        f"{host}:{port}",
        f"{host}:{METRICS_PORT}",
        log,
        is_local=here,
        processes=_listeners(port) if here else (),
    )
    if not server.is_live():
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
    """Copy every model of `repository` into `target` for as long as the block lasts; give their
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
    """Make a model's folder in the server's repository, in place of one whose owner has ended."""
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
