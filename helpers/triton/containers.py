"""Containers by the `docker` command: the engine, its images, and one container's life.

A container runs in the foreground of its client, and the client under a guard: what it says goes
straight to the log, and it is stopped when its owner ends, killed or not. What is left all the same
carries a label, by which it is removed at the end of the block, and by any later run once its owner
has ended.
"""

import os
import subprocess
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from helpers.config import StageConfig, releases
from helpers.errors import ServerError
from helpers.store import outputs
from helpers.triton import owner, process

LABEL = "triton-notebooks"
OWNER = f"{LABEL}.owner"
HOST_OUTPUTS_VARIABLE = "TRITON_NOTEBOOKS_HOST_OUTPUTS"  # set by docker/compose.yaml
ANSWER_SECONDS = 60


class Mount(NamedTuple):
    """A file or folder of this machine and where the container sees it."""

    source: Path
    target: str
    writable: bool = False


@dataclass(frozen=True)
class Container:
    """A container that was started: its name, and the docker command that it is tied to."""

    name: str
    client: "subprocess.Popen[bytes]"

    def is_alive(self) -> bool:
        """Whether it runs, or is about to: of one not yet made the engine knows nothing."""
        if self.client.poll() is not None:
            return False
        return self._state("Status") in ("", "created", "running")

    def process(self) -> tuple[int, ...]:
        """Give the number of its first process, which is a child of the engine and not of ours."""
        number = self._state("Pid")
        return (int(number),) if number.isdigit() and number != "0" else ()

    def _state(self, field: str) -> str:
        return docker("inspect", f"--format={{{{.State.{field}}}}}", self.name).stdout.strip()


def docker(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run the docker command, whatever it answers; raise `ServerError` if it does not."""
    try:
        return subprocess.run(
            ["docker", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=ANSWER_SECONDS,
        )
    except OSError as error:
        why = (error.strerror or "it does not start").lower()
        raise ServerError(
            f"there is no docker command ({why}): install Docker Engine, or set server.kind to "
            "embedded"
        ) from None
    except subprocess.TimeoutExpired:
        raise ServerError(
            f"the Docker engine gave no answer in {ANSWER_SECONDS} s: restart it"
        ) from None


def engine() -> str:
    """Give the version of the engine; raise `ServerError` if none answers."""
    answer = docker("version", "--format={{.Server.Version}}")
    said = " ".join(answer.stderr.split())
    if answer.returncode and "permission denied" in said:
        raise ServerError(
            "this user may not use the Docker engine: add the user to the group docker, then log "
            "in again"
        )
    if answer.returncode:
        raise ServerError(
            f"no Docker engine answers ({said}): start it with systemctl start docker, or set "
            "server.kind to embedded"
        )
    return answer.stdout.strip()


def image(config: StageConfig) -> str:
    """Name the image that serves the experiment; raise `ParameterError` for an unknown release."""
    year, month = releases.number(config.server.release)
    return config.server.image or f"nvcr.io/nvidia/tritonserver:{year}.{month:02}-py3"


def require_image(config: StageConfig) -> str:
    """Name the image if the engine has it: it is many gigabytes, so nothing pulls it unasked.

    Raises `ServerError` with the command that does.
    """
    engine()
    name = image(config)
    if docker("image", "inspect", "--format={{.Id}}", name).returncode:
        raise ServerError(f"image {name} is not on this machine: docker pull {name}")
    return name


def host_path(path: Path) -> Path:
    """Spell `path` as the engine's host knows it: in the lab container the outputs folder is
    mounted from another place. Raises `ServerError` for what lies outside it there.
    """
    outside = os.environ.get(HOST_OUTPUTS_VARIABLE)
    if outside and path.is_relative_to(outputs()):
        return Path(outside) / path.relative_to(outputs())
    if outside:
        raise ServerError(
            f"the engine's host does not know {path} of this container: keep it in {outputs()}, "
            f"which {HOST_OUTPUTS_VARIABLE} places there"
        )
    return path


@contextmanager
def run(
    config: StageConfig,
    command: Sequence[str],
    mounts: Sequence[Mount],
    log: Path,
    options: Sequence[str] = (),
    sweep: Sequence[str] = (),
) -> Iterator[Container]:
    """Run `command` in the experiment's image for as long as the block lasts, at most.

    `sweep` holds patterns of names under /dev/shm that it may leave behind. Raises `ServerError`.
    """
    chosen, name = require_image(config), f"{LABEL}-{uuid.uuid4().hex[:12]}"
    remove_leftovers()
    binds = [
        f"--mount=type=bind,source={host_path(each.source)},target={each.target}"
        + ("" if each.writable else ",readonly")
        for each in mounts
    ]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    arguments = [
        *("docker", "run", "--rm", "--init", "--pull=never", f"--name={name}"),
        *(f"--label={LABEL}={name}", f"--label={OWNER}={owner.token()}"),
        # the host's user: what the container writes is theirs, and so is the memory it shares
        *(f"--user={os.getuid()}:{os.getgid()}", "--env=HOME=/tmp"),
        *("--ulimit=memlock=-1", "--ulimit=stack=67108864"),  # for pinned memory, as NVIDIA says
        *(["--gpus=all"] if config.device == "gpu" else []),
        *([f"--env=CUDA_VISIBLE_DEVICES={visible}"] if visible and config.device == "gpu" else []),
        *(*options, *binds, chosen, *command),
    ]
    with log.open("wb") as output:
        client = process.start(arguments, log=output, sweep=sweep)
        try:
            yield Container(name, client)
        finally:
            process.stop(client)
            with suppress(ServerError):  # an engine that has gone took its containers along
                _remove([container for container, _ in _listed(f"{LABEL}={name}")])


def remove_leftovers() -> None:
    """Remove the containers of owners that have ended without doing so themselves."""
    _remove([container for container, holder in _listed(LABEL) if owner.is_dead(holder)])


def _listed(label: str) -> list[tuple[str, str]]:
    """List the containers that have `label`, ended ones too, each with its owner."""
    form = f'{{{{.ID}}}} {{{{.Label "{OWNER}"}}}}'
    answer = docker("ps", "--all", f"--filter=label={label}", f"--format={form}")
    pairs = (line.partition(" ") for line in answer.stdout.splitlines() if line)
    return [(container, holder) for container, _, holder in pairs]


def _remove(containers: Sequence[str]) -> None:
    if containers:
        docker("rm", "--force", *containers)
