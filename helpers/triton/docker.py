"""The docker server kind: an exact release with its native backends, in NVIDIA's image."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from helpers.config import (
    DeployConfig,
    OfflineConfig,
    Protocol,
    StageConfig,
    artifact_folder,
    releases,
)
from helpers.errors import ServerError
from helpers.inference import ensemble
from helpers.store import find_artifact, temporary_folder
from helpers.triton import containers, native, owner
from helpers.triton.containers import Mount
from helpers.triton.process import exit_reason, last_lines
from helpers.triton.server import COMMON_FLAGS, NO_GRPC, Server, reserved_ports

DATABASES, DATABASES_VARIABLE = "/databases", "HPS_FOLDER"  # of a store, kept outside
LARGEST_REQUEST = 2**31 - 1  # bytes
READY_SECONDS = 1800  # TensorRT's accelerator builds its engines while the model loads
# Messages of the engine and of Triton when they fail, and their causes.
CAUSES = {
    r"port is already allocated|address already in use": "A port was taken meanwhile. Run again.",
    r"bind source path does not exist": (
        "The Docker engine's host cannot see the outputs folder of this container. Set "
        f"{containers.HOST_OUTPUTS_VARIABLE} to its path on the host."
    ),
    r"failed to open (directory|text file for read) /models": (  # as an engine without root has it
        "The container's user may not read the model's files. Deploy it again with umask 022."
    ),
}
GPU_CAUSES = {  # only there: without a GPU the image warns of drivers too, harmlessly
    r"could not select device driver|nvidia-container-cli: init|runtime name: nvidia": (
        "The Docker engine cannot use a GPU. Install NVIDIA's container toolkit."
    ),
    r"unsatisfied condition: cuda|driver version is insufficient|unsupported toolchain": (
        "The NVIDIA driver is too old for release {release}. Update it."
    ),
    r"out of memory|out_of_memory|failed to allocate|insufficient memory": (
        "The model is too large for the GPU's memory. Lower instances or max_batch_size."
    ),
}


def command_line(release: tuple[int, int], protocol: Protocol = "http") -> list[str]:
    """Return Triton's command line with the flags of a release (year, month)."""
    return [
        *("tritonserver", "--model-repository=/models", *COMMON_FLAGS),
        *([NO_GRPC] if protocol == "http" else []),
        *release_flags(release),
    ]


def release_flags(release: tuple[int, int]) -> list[str]:
    """Return the flags that a release needs.

    By default, releases complete configurations since 22.07, and refuse requests of more than 64
    MiB since 25.05 or 25.06. Since 26.04 they refuse clients' shared memory. Source:
    triton-inference-server/server, pull requests 4607, 8174 and 8739.
    """
    return [
        *(["--strict-model-config=true"] if release < (22, 7) else []),
        *(["--disable-auto-complete-config"] if release >= (22, 7) else []),
        *([f"--http-max-input-size={LARGEST_REQUEST}"] if release >= (25, 6) else []),
        *(["--allow-client-shm=true"] if release >= (26, 4) else []),
    ]


def options(config: DeployConfig) -> list[str]:
    """Return docker's options for an experiment, but for its ports and files."""
    shares = isinstance(config, OfflineConfig) and config.shared_memory != "none"
    # perf_analyzer makes regions in this host's /dev/shm, where Triton must find them. Otherwise
    # Docker's default of 64 MB is too small for the Python backend.
    flags = [f"--env={name}={value}" for name, value in environment(config).items()]
    return ["--ipc=host" if shares else "--shm-size=1g", *flags]


def environment(config: DeployConfig) -> dict[str, str]:
    """Return the variables that Triton needs for an experiment, wherever it runs."""
    variables = {}
    if config.device == "gpu" and config.precision == "fp32":
        variables["NVIDIA_TF32_OVERRIDE"] = "0"  # fp32 is fp32
    is_fp16 = config.accelerator == "trt" and native.tensorrt_precision(config) == "fp16"
    if is_fp16 and not native.has_accelerator_parameters(config):
        variables["ORT_TENSORRT_FP16_ENABLE"] = "1"
    return variables


def mounts(repository: Path, scenario: str) -> list[Mount]:
    """Mount the repository, with each model's configuration for `scenario` in its place.

    `--model-config-name` would choose it, but only since release 24.05 (pull request 7233). The
    newest release with published results of NVIDIA is 23.02.
    """
    configs = sorted(repository.glob(f"*/configs/{scenario}.pbtxt"))
    overlays = [Mount(path, f"/models/{path.parents[1].name}/config.pbtxt") for path in configs]
    return [Mount(repository, "/models"), *overlays]


def explained(error: ServerError, log: Path, config: StageConfig) -> ServerError:
    """Return the error with its cause before it, if the log shows the cause."""
    log_text = log.read_text(errors="replace")
    for pattern, cause in (CAUSES | (GPU_CAUSES if config.device == "gpu" else {})).items():
        if re.search(pattern, log_text, re.IGNORECASE):
            return ServerError(f"{cause.format(release=config.server.release)} {error}")
    return error


@contextmanager
def serve(
    repository: Path, *, config: DeployConfig, log: Path, scenario: str = "online", port: int = 0
) -> Iterator[Server]:
    """Serve the models of `repository` for `serving.serve`; the container ends with the block."""
    command = command_line(releases.number(config.server.release), config.protocol)
    flags, shm_patterns, is_grpc = options(config), [], config.protocol == "grpc"
    if "--ipc=host" in flags:
        regions = owner.new_shm_prefix()
        shm_patterns = [f"{regions}*"]
        command.append(f"--backend-config=python,shm-region-prefix-name={regions}")
    binds = [*mounts(repository, scenario), *_engine_cache(config)]
    if config.lookup == "hps":
        folder = ensemble.databases_folder(config, repository)
        folder.mkdir(parents=True, exist_ok=True)
        binds.append(Mount(folder, DATABASES, writable=True))
        flags.append(f"--env={DATABASES_VARIABLE}={DATABASES}")
    with (
        reserved_ports(port, 0, 0) as (http, metrics, grpc),
        containers.run(
            config,
            command,
            binds,
            log,
            [
                f"--publish=127.0.0.1:{http}:8000",
                f"--publish=127.0.0.1:{metrics}:8002",
                *([f"--publish=127.0.0.1:{grpc}:8001"] if is_grpc else []),
                *flags,
            ],
            shm_patterns,
        ) as container,
    ):
        here = f"127.0.0.1:{grpc}" if is_grpc else ""
        urls = f"127.0.0.1:{http}", f"127.0.0.1:{metrics}"
        server = Server(*urls, log, container.end, grpc_address=here)
        try:
            server.wait_until_ready(READY_SECONDS, pause_seconds=0.5)
        except ServerError as error:
            raise explained(error, log, config) from error
        if not port and (host := container.address(8000)):
            server = replace(server, address=f"{host}:8000", metrics_address=f"{host}:8002")
            server = replace(server, grpc_address=here and f"{host}:8001")
        yield replace(server, processes=container.process())


def _engine_cache(config: DeployConfig) -> list[Mount]:
    """Mount a folder that keeps engines of ONNX Runtime's TensorRT, by target, release and file."""
    path = native.engine_cache(config)
    converted = find_artifact(artifact_folder(config, "convert"))
    if not path or not converted:
        return []
    key = f"{config.server.release}-{converted.sha256[:12]}"
    folder = artifact_folder(config, "convert").parents[1] / "engines" / key
    folder.mkdir(parents=True, exist_ok=True)
    return [Mount(folder, path, writable=True)]


def run_in_image(config: StageConfig, image: str, folder: Path, command: Sequence[str]) -> None:
    """Run `command` to its end in a container of `image`. Its arguments are names of files in
    `folder`, where it may write. Raises `ServerError` with the last lines if it fails.
    """
    server = config.server.model_copy(update={"image": image})
    config = config.model_copy(update={"server": server})
    arguments = [command[0], *(f"/build/{name}" for name in command[1:])]
    build = Mount(folder, "/build", writable=True)
    with temporary_folder() as log_folder:
        log = log_folder / "log"
        with containers.run(config, arguments, [build], log, ["--shm-size=1g"]) as container:
            code = container.client.wait()
        if code:
            why = f"{command[0]} {exit_reason(code)} in {image}: {last_lines(log)}"
            raise explained(ServerError(why), log, config)
