"""The local server kind: a Triton that is installed on this machine, with its own backends.

Its folder is laid out as in NVIDIA's image: `bin/tritonserver`, `backends` and `TRITON_VERSION`.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from helpers import models
from helpers.config import ConvertConfig, DeployConfig, releases
from helpers.config import Server as ServerSection
from helpers.errors import ServerError
from helpers.inference import ensemble
from helpers.store import temporary_folder
from helpers.triton import docker, embedded, native, process
from helpers.triton.server import Server


def installation(server: ServerSection) -> Path:
    """Return the folder of the installed Triton; raise `ServerError` without its program."""
    folder = Path(server.path).absolute()
    if not os.access(folder / "bin/tritonserver", os.X_OK, effective_ids=True):
        raise ServerError(f"There is no bin/tritonserver in {folder}. Set server.path to Triton's.")
    return folder


def backends(server: ServerSection) -> list[str]:
    """Return the names of its backends."""
    return sorted(path.name for path in (installation(server) / "backends").glob("*/"))


def describe(server: ServerSection) -> str:
    """Return its version and its backends in words."""
    file = installation(server) / "TRITON_VERSION"
    version = file.read_text().strip() if file.exists() else "unknown version"
    return f"{version}; backends: {', '.join(backends(server)) or 'none'}"


def why_unavailable(config: ConvertConfig) -> str:
    """Return which backend of the experiment is missing; empty if none is."""
    needed = models.get(config.model).BACKEND or "python"
    if needed == "python" and config.server.is_native and config.format in native.BACKENDS:
        needed = native.BACKENDS[config.format].name
    folder, found = installation(config.server), backends(config.server)
    has = ", ".join(found) or "none"
    return "" if needed in found else f"{folder} has no backend {needed}. It has: {has}."


@contextmanager
def serve(
    repository: Path, *, config: DeployConfig, log: Path, scenario: str = "online", port: int = 0
) -> Iterator[Server]:
    """Serve the models of `repository` for `serving.serve`; all processes end with the block."""
    folder = installation(config.server)
    env = {**os.environ, **process.SETTINGS, **docker.environment(config)}
    with temporary_folder() as temporary:
        for source in (path for path in repository.iterdir() if path.is_dir()):
            (model := temporary / source.name).mkdir()
            for path in source.iterdir():
                (model / path.name).symlink_to(path.absolute())
            if (chosen := source / f"configs/{scenario}.pbtxt").exists():
                (model / "config.pbtxt").unlink()
                (model / "config.pbtxt").symlink_to(chosen.absolute())
        command = [
            str(folder / "bin/tritonserver"),
            f"--model-repository={temporary}",
            f"--backend-directory={folder}/backends",
            *docker.release_flags(releases.number(config.server.release)),
        ]
        is_grpc, is_store = config.protocol == "grpc", ensemble.codec_of(config, repository)
        options = port, is_grpc, is_store is not None, docker.READY_SECONDS
        with embedded.start(command, env, log, *options) as server:
            yield server
