"""The docker server kind: Triton of an exact release, with its native backends, in a container of
NVIDIA's image.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from helpers.config import DeployConfig, OfflineConfig, StageConfig, releases
from helpers.errors import DeploymentError, ServerError
from helpers.store import temporary_folder
from helpers.triton import containers
from helpers.triton.client import Server
from helpers.triton.containers import HOST_OUTPUTS_VARIABLE, Mount
from helpers.triton.embedded import COMMON_FLAGS, wait_until_ready
from helpers.triton.log import exit_reason, last_lines
from helpers.triton.ports import free_ports, require_free
from helpers.triton.temporary import SHARED_MEMORY, new_name, remove_leftovers

READY_SECONDS = 1800  # TensorRT's accelerator builds its engines while the model loads
# Messages of the engine, NVIDIA's runtime and Triton when they fail, and their causes.
PORT_TAKEN = r"port is already allocated|address already in use"
NO_FOLDER = r"bind source path does not exist"
NO_GPU = r"could not select device driver|nvidia-container-cli: init|runtime name: nvidia"
OLD_DRIVER = r"unsatisfied condition: cuda|driver version is insufficient|unsupported toolchain"
TOO_LARGE = r"out of memory|out_of_memory|failed to allocate|insufficient memory"


def obstacle(config: StageConfig) -> str:
    """Say in one line why no container can serve the experiment here; empty if one can."""
    try:
        containers.require_image(config)
    except DeploymentError as error:
        return str(error)
    return ""


def require_same_release(facts: Mapping[str, object], config: StageConfig) -> None:
    """Raise `ServerError` if an artefact's facts name another release than the server's.

    A TensorRT engine is loaded by the very TensorRT that built it, and by no other.
    """
    built, serving = facts.get("release"), config.server.release
    if built and built != serving:
        raise ServerError(
            f"{config.model} {config.experiment} was built in release {built}, which the server's "
            f"{serving} cannot load: convert it again, or set server.release to {built}"
        )


def command_line(release: tuple[int, int]) -> list[str]:
    """Return Triton's command line as a release (year, month) knows it.

    Source: triton-inference-server/server, pull requests 4607 (configurations are completed unless
    told otherwise, 22.07) and 8739 (clients' shared memory is refused unless allowed, 26.04).
    """
    completes, refuses = release >= (22, 7), release >= (26, 4)
    return [
        "tritonserver",
        "--model-repository=/models",
        *COMMON_FLAGS,
        "--disable-auto-complete-config" if completes else "--strict-model-config=true",
        *(["--allow-client-shm=true"] if refuses else []),
    ]


def mounts(repository: Path, scenario: str) -> list[Mount]:
    """Mount the repository, with each model's configuration for `scenario` in its place.

    `--model-config-name` would choose it, but is known from release 24.05 on only (pull request
    7233), and the newest release that NVIDIA published figures of is 23.02.
    """
    found = [Mount(repository, "/models")]
    for path in sorted(repository.glob(f"*/configs/{scenario}.pbtxt")):
        found.append(Mount(path, f"/models/{path.parents[1].name}/config.pbtxt"))
    return found


def explained(error: ServerError, said: str, config: StageConfig) -> ServerError:
    """Put the cause before an error, where the log (`said`) tells it."""
    meanings = {
        PORT_TAKEN: "a port was taken meanwhile, try again",
        NO_FOLDER: f"inside a container, {HOST_OUTPUTS_VARIABLE} must say where the outputs folder "
        "lies on the engine's host",
    }
    if config.device == "gpu":  # without a GPU the image warns of drivers too, harmlessly
        release = config.server.release
        meanings |= {
            NO_GPU: "the engine cannot reach a GPU, install NVIDIA's container toolkit",
            OLD_DRIVER: f"the NVIDIA driver is too old for release {release}, update it",
            TOO_LARGE: "the model is too large for the device, lower instances or max_batch_size",
        }
    for words, meaning in meanings.items():
        if re.search(words, said, re.IGNORECASE):
            return ServerError(f"{meaning}: {error}")
    return error


@contextmanager
def serve(
    repository: Path,
    *,
    config: DeployConfig,
    log: Path,
    scenario: str = "online",
    http_port: int | None = None,
) -> Iterator[Server]:
    """Serve the models of `repository` on 127.0.0.1 for as long as the block lasts; the container
    ends with it.

    The ports are free ones unless `http_port` names one. Raises `ServerError` with the container's
    last lines if it does not become ready.
    """
    command = command_line(releases.number(config.server.release))
    free_http, metrics = free_ports(2)
    http = require_free(http_port) if http_port else free_http
    options = [f"--publish=127.0.0.1:{http}:8000", f"--publish=127.0.0.1:{metrics}:8002"]
    sweep = []
    if isinstance(config, OfflineConfig) and config.shared_memory != "none":
        # perf_analyzer makes regions in this host's /dev/shm, and Triton must find them there
        remove_leftovers(SHARED_MEMORY)
        regions = new_name()
        sweep = [f"{regions}*"]
        command.append(f"--backend-config=python,shm-region-prefix-name={regions}")
        options.append("--ipc=host")
    else:
        options.append("--shm-size=1g")  # Docker's 64 MB are too few for the Python backend
    with containers.run(
        config, command, mounts(repository, scenario), log, options, sweep
    ) as container:
        server = Server(f"127.0.0.1:{http}", f"127.0.0.1:{metrics}", log, container.end)
        try:
            wait_until_ready(server, READY_SECONDS)
        except ServerError as error:
            raise explained(error, log.read_text(errors="replace"), config) from error
        yield replace(server, processes=container.process())


def run_in_image(config: StageConfig, command: Sequence[str], mounts: Mapping[Path, str]) -> str:
    """Run `command` to its end in the image that will serve the experiment; return its output.

    `mounts` maps folders to where the container sees them; it may write there. Raises `ServerError`
    with the last lines if the command fails.
    """
    binds = [Mount(source, target, writable=True) for source, target in mounts.items()]
    with temporary_folder() as folder:
        log = folder / "log"
        with containers.run(config, command, binds, log, ["--shm-size=1g"]) as container:
            code = container.client.wait()
        said = log.read_text(errors="replace")
        if code:
            error = ServerError(
                f"{command[0]} {exit_reason(code)} in {containers.image(config)}: {last_lines(log)}"
            )
            raise explained(error, said, config)
    return said
