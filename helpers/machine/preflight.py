"""Whether an experiment can run on this machine, and if not, why."""

from functools import cache
from pathlib import Path

from helpers import formats, models
from helpers.config import ConvertConfig, ServedConfig, Server, StageConfig, releases
from helpers.errors import DeploymentError
from helpers.machine import gpu, packages
from helpers.triton import binaries, containers, native

# The embedded server brings no compatibility libraries, and its CUDA is 12. Source: CUDA
# Compatibility, "Minor Version Compatibility".
LOWEST_FOR_EMBEDDED = "525.60.13"


def why_unavailable(config: ConvertConfig) -> str:
    """Return in one line why this machine cannot run the experiment; empty if it can."""
    return (
        gpu_obstacle(config)
        or server_obstacle(config.server)
        or _format_obstacle(config)
        or packages.why_unavailable(config)
    )


def gpu_obstacle(config: StageConfig) -> str:
    """Return why this machine's driver cannot run the experiment; empty if it can or is unknown."""
    if config.device != "gpu":
        return ""
    if not gpu.has_driver():
        return f"it needs {config.gpu}, but this machine has no NVIDIA driver"
    version, reason = _driver()
    if prevents_cuda(reason) and config.server.kind == "embedded":  # Docker may run elsewhere
        return f"it needs {config.gpu}, but NVIDIA's driver does not respond: {reason}"
    return driver_faults(config.server, version)[0]


def driver_faults(server: Server, version: str) -> tuple[str, str]:
    """Return why the server does not run on this driver, and why it may not; empty if it does."""
    if server.kind == "docker" and numbers(version):
        return releases.driver_faults(server.release, version)
    if server.kind == "embedded" and () < numbers(version) < numbers(LOWEST_FOR_EMBEDDED):
        needs = f"The embedded Triton {server.release} needs {LOWEST_FOR_EMBEDDED} or newer."
        return f"Driver {version} is too old. {needs}", ""
    return "", ""


def prevents_cuda(reason: str) -> bool:
    """Return whether a GPU absent for `reason` cannot compute; without nvidia-ml-py it can."""
    return reason not in ("", gpu.NOT_INSTALLED[0])


@cache
def _driver() -> tuple[str, str]:
    """Return the driver's version and, if there is no GPU to query, the reason; query once."""
    with gpu.opened() as device:
        if device.absent:
            return "", device.absent[0]
        return str(device.ask(gpu.QUERIES["driver"])), ""


def numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, to compare it with another."""
    return tuple(int(part) for part in version.split(".") if part.isdigit())


@cache  # a parameter file has dozens of experiments
def server_obstacle(server: Server) -> str:
    """Return why the server that a target names is not available; empty if it is."""
    try:
        for name in binaries.BINARIES if server.kind == "embedded" else ("perf_analyzer",):
            binaries.require(name)
        if server.kind == "embedded":
            binaries.python_library()
    except DeploymentError as error:
        return f"{packages.BROKEN}{error}"
    try:
        if server.kind == "docker":
            containers.require_image(server)
        elif server.kind == "local":
            from helpers.triton import local  # as below

            local.installation(server)
        elif server.kind == "remote":
            from helpers.triton import remote  # loads Triton's client: only where it is needed

            remote.connect(server.url, Path(), server.metrics_url)
    except DeploymentError as error:
        return str(error)
    return ""


def why_lesson_unavailable(config: StageConfig) -> str:
    """Return why the stage cannot compare servers on this target; empty if it can or does not."""
    if isinstance(config, ServedConfig) and config.server.kind == "remote":
        return (
            "The stage starts one server per configuration, which is impossible with a remote "
            "server. Use another server.kind."
        )
    return ""


def _format_obstacle(config: ConvertConfig) -> str:
    """Return what the formats or the server's backends for them do not have; empty if nothing."""
    if config.server.kind == "local":
        from helpers.triton import local

        if reason := local.why_unavailable(config):
            return reason
    how = "Set server.kind to docker or remote."
    if backend := models.get(config.model).BACKEND:
        lacks = config.server.kind == "embedded" and backend != "python"
        return f"The embedded server has no backend {backend}. {how}" if lacks else ""
    exported = (config.export_format, config.export_precision)
    for name, precision in (exported, (config.format, config.precision)):
        supported = formats.get(name).PRECISIONS.get(config.device, ())
        if precision not in supported:
            has = f"Use one of {', '.join(supported)}." if supported else "Use another format."
            return f"{name} does not support {precision} on a {config.device}. {has}"
    if config.precision not in models.get(config.model).TOLERANCES:
        return f"{config.model} has no tolerances for {config.precision}"
    if config.server.is_native:
        return native.why_unavailable(config)
    if config.accelerator != "none":
        return f"The embedded server does not support accelerator {config.accelerator}. {how}"
    return formats.missing(config.format, "gpu") if config.device == "gpu" else ""
