"""Containers by the `docker` command: the engine, its images, and the run of one container.

A container runs in the foreground of its client, and the client under a supervisor. The client
writes the container's output to the log. The supervisor stops the container when its owner ends,
killed or not. A leftover container is removed at the end of the block, or by a later run, which
identifies it by its label.
"""

import csv
import io
import os
import subprocess
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from socket import create_connection
from typing import NamedTuple

from helpers.config import Server, StageConfig, releases
from helpers.errors import ServerError
from helpers.store import outputs
from helpers.triton import owner, process

OWNER = "triton-notebooks.owner"  # a label: who started the container
HOST_OUTPUTS_VARIABLE = "TRITON_NOTEBOOKS_HOST_OUTPUTS"  # set by docker/compose.yaml
ANSWER_SECONDS = 60
CONNECT_SECONDS = 1.0
CLIENT_SECONDS = 5.0
# NVIDIA's limits of pinned memory: an engine that may not raise limits refuses them
LIMITS = ("--ulimit=memlock=-1", "--ulimit=stack=67108864")
# the container gets this process's value of the variable, if it is set
GPU_OPTIONS = (*LIMITS, "--gpus=all", "--env=CUDA_VISIBLE_DEVICES")


class Mount(NamedTuple):
    """A file or folder of this machine and where the container sees it."""

    source: Path
    target: str
    writable: bool = False

    def option(self) -> str:
        """Return docker's option: one line of CSV, so that a path may hold a comma or a quote."""
        fields = ["type=bind", f"source={host_path(self.source)}", f"target={self.target}"]
        line = io.StringIO()
        csv.writer(line, lineterminator="").writerow(fields + ["readonly"] * (not self.writable))
        return f"--mount={line.getvalue()}"


@dataclass(frozen=True)
class Container:
    """A container that was started: its name, and the docker command that it is tied to."""

    name: str
    client: "subprocess.Popen[bytes]"

    def end(self) -> str:
        """Describe how it ended; empty while it is created, runs or is being removed, as its client
        then has more output to print. A client ends soon after its container, with the exit code.
        """
        if reason := process.end_of(self.client):
            return reason
        state = self._field(".State.Status")  # empty if the engine has not made it yet
        if state in ("", "created", "running", "removing"):
            return ""
        if state == "exited":
            with suppress(subprocess.TimeoutExpired):
                self.client.wait(CLIENT_SECONDS)
        return process.end_of(self.client) or f"its container is {state}"

    def process(self) -> tuple[int, ...]:
        """Return the number of its first process, a child of the engine and not of ours."""
        number = self._field(".State.Pid")
        return (int(number),) if number.isdigit() and number != "0" else ()

    def address(self, port: int) -> str:
        """Return its own address; empty if it has none at which this host reaches `port`.

        A published port leads through a process of the engine, which takes a processor at some
        hundred MB a second. An engine in a virtual machine, or without root, has no other way.
        """
        host = self._field("range .NetworkSettings.Networks}}{{.IPAddress}}{{end")
        with suppress(OSError):
            create_connection((host, port), CONNECT_SECONDS).close()
            return host
        return ""

    def _field(self, field: str) -> str:
        return docker("inspect", f"--format={{{{{field}}}}}", self.name).stdout.strip()


def docker(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run the docker command, with any exit code; raise `ServerError` if it does not respond."""
    try:
        return subprocess.run(
            ["docker", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=ANSWER_SECONDS,
        )
    except OSError as error:
        raise ServerError(
            f"The docker command does not start ({str(error.strerror).lower()}). Install Docker "
            "Engine, or set server.kind to embedded."
        ) from None
    except subprocess.TimeoutExpired:
        raise ServerError(
            f"The Docker engine did not respond within {ANSWER_SECONDS} s. Restart it."
        ) from None


def engine() -> str:
    """Return the version of the engine; raise `ServerError` if none responds."""
    answer = docker("version", "--format={{.Server.Version}}")
    reason = " ".join(answer.stderr.split())
    if answer.returncode and "permission denied" in reason:
        raise ServerError(
            "This user may not use the Docker engine. Add the user to the group docker, and log "
            "in again."
        )
    if answer.returncode:
        raise ServerError(
            f"No Docker engine responds ({reason}). Start it by systemctl start docker, or set "
            "server.kind to embedded."
        )
    return answer.stdout.strip()


def require_image(server: Server) -> str:
    """Return the server's image if the engine has it; an image is never pulled without a request.

    Raises `ServerError` with the command that pulls it, `ParameterError` for an unknown release.
    """
    engine()
    releases.number(server.release)
    name = server.image or f"nvcr.io/nvidia/tritonserver:{server.release}-py3"
    if docker("image", "inspect", "--format={{.Id}}", name).returncode:
        raise ServerError(f"The image {name} is not on this machine. Run: docker pull {name}")
    return name


def host_path(path: Path) -> Path:
    """Return `path` as the engine's host knows it: in the lab container the outputs folder is
    mounted from another place. Raises `ServerError` for a path outside that folder.
    """
    outside = os.environ.get(HOST_OUTPUTS_VARIABLE)
    if not outside:
        return path
    if not path.is_relative_to(outputs()):
        raise ServerError(
            f"The Docker engine's host cannot see {path} of this container. Move it into "
            f"{outputs()}, which {HOST_OUTPUTS_VARIABLE} maps to the host."
        )
    return Path(outside) / path.relative_to(outputs())


@contextmanager
def run(
    config: StageConfig,
    command: Sequence[str],
    mounts: Sequence[Mount],
    log: Path,
    options: Sequence[str] = (),
    shm_patterns: Sequence[str] = (),
) -> Iterator[Container]:
    """Run `command` in the experiment's image for as long as the block lasts, at most.

    `shm_patterns` are of names under /dev/shm that it may leave behind. Raises `ServerError`.
    """
    chosen, name = require_image(config.server), f"triton-notebooks-{uuid.uuid4().hex[:12]}"
    remove_leftovers()
    arguments = [
        *("docker", "run", "--rm", "--init", "--pull=never", f"--name={name}"),
        f"--label={OWNER}={owner.token()}",
        # the host's user: owns what the container writes, and the memory that it shares
        *(f"--user={os.getuid()}:{os.getgid()}", "--env=HOME=/tmp"),
        *(f"--env={name}={value}" for name, value in process.SETTINGS.items()),
        *(GPU_OPTIONS if config.device == "gpu" else ()),
        *(*options, *(mount.option() for mount in mounts), chosen, *command),
    ]
    try:
        with (
            log.open("wb") as output,
            process.supervised(arguments, log=output, shm_patterns=shm_patterns) as client,
        ):
            yield Container(name, client)
    finally:
        with suppress(ServerError):  # an engine that has stopped has ended its containers
            docker("rm", "--force", name)


def publishing(port: int) -> tuple[int, ...]:
    """Return the first processes of containers that publish `port`; none without an engine."""
    with suppress(ServerError):
        if ids := docker("ps", "--quiet", f"--filter=publish={port}").stdout.split():
            answer = docker("inspect", "--format={{.State.Pid}}", *ids)
            return tuple(map(int, answer.stdout.split()))
    return ()


def remove_leftovers() -> None:
    """Remove the containers, also ended ones, whose owners have ended without removing them."""
    form = f'{{{{.ID}}}} {{{{.Label "{OWNER}"}}}}'
    answer = docker("ps", "--all", f"--filter=label={OWNER}", f"--format={form}")
    for line in answer.stdout.splitlines():
        container, _, holder = line.partition(" ")
        if owner.is_stale(holder):
            docker("rm", "--force", container)
