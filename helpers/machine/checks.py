"""What a target needs of the machine, what of it is missing, and how to mend that."""

import os
import platform
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from socket import socket

from helpers import formats
from helpers.config import ConvertConfig, StageConfig
from helpers.errors import DeploymentError
from helpers.store import outputs
from helpers.triton import containers, native

GLIBC = (2, 35)
SHM_GB = 1.0
DISK_GB = 5.0


@dataclass(frozen=True)
class Check:
    """One thing looked at: whether it is well, what was found, and how to mend it; `warn` where it
    keeps nothing from running but a reader should know.
    """

    name: str
    ok: bool
    found: str
    mend: str = ""
    warn: bool = False

    @property
    def line(self) -> str:
        """What to print: what to mend stands where it is needed."""
        told = f"{self.name}: {self.found}"
        return told if self.word == "ok" else f"{told}; {self.mend}"

    @property
    def word(self) -> str:
        return "MEND" if not self.ok else "WARN" if self.warn else "ok"


def has_driver() -> bool:
    """Whether an NVIDIA driver is loaded, without loading any of its libraries."""
    return any(map(os.path.exists, ("/proc/driver/nvidia/version", "/dev/nvidiactl")))


def obstacle(config: ConvertConfig) -> str:
    """Say in one line why this machine cannot run the experiment; empty if it can. No kernel is
    needed to know.
    """
    if config.device == "gpu":
        from helpers.machine import gpu_checks

        if reason := gpu_checks.obstacle(config):
            return reason
    if config.server.kind != "embedded" and (reason := _no_server(config)):
        return reason
    for name, precision in (
        (config.export_format, config.export_precision),
        (config.format, config.precision),
    ):
        known = formats.get(name).PRECISIONS.get(config.device, ())
        if precision not in known:
            return (
                f"{name} has no {precision} on a {config.device}: "
                f"it has {', '.join(known) or 'nothing there'}"
            )
    return _without_backends(config) if config.server.kind == "embedded" else _with_backends(config)


def _without_backends(config: ConvertConfig) -> str:
    """Say what keeps this process, and so the embedded server, from running the format."""
    if config.accelerator != "none":
        return (
            f"accelerator {config.accelerator} needs a native backend: the embedded server has none"
        )
    exported = formats.missing(config.export_format, "cpu")
    return exported or formats.missing(config.format, config.device)


def _with_backends(config: ConvertConfig) -> str:
    """Say what keeps a server with backends of its own, of this release, from running it."""
    return native.obstacle(config) or formats.missing(config.export_format, "cpu")


def _no_server(config: StageConfig) -> str:
    """Say in one line why the server that the target names cannot be had; empty if it can."""
    from helpers.triton import docker, remote  # they load Triton's client: only where it is needed

    return docker.obstacle(config) if config.server.kind == "docker" else remote.obstacle(config)


def _glibc() -> Check:
    found = platform.libc_ver()[1] or "unknown"
    new_enough = found != "unknown" and tuple(int(part) for part in found.split(".")[:2]) >= GLIBC
    return Check(
        "glibc",
        new_enough,
        found,
        "perf_analyzer and Triton need 2.35: use Ubuntu 22.04, Debian 12 or newer",
    )


def _python() -> Check:
    return Check(
        "Python",
        sys.version_info[:2] in ((3, 11), (3, 12)),
        platform.python_version(),
        "use Python 3.11",
    )


def _triton() -> Check:
    from helpers.triton import embedded

    try:
        found = str((embedded.wheel() / "bin/tritonserver").exists())
    except DeploymentError as error:
        return Check("Triton", False, str(error), "pip install -r docker/requirements.lock")
    return Check(
        "Triton",
        found == "True",
        "embedded binary found" if found == "True" else "no binary",
        "pip install nvidia-pytriton",
    )


def _analyzer() -> Check:
    path = Path(sys.executable).parent / "perf_analyzer"
    return Check(
        "perf_analyzer",
        path.exists(),
        str(path.name) if path.exists() else "not found",
        "pip install tritonclient==2.51.0",
    )


def _port() -> Check:
    with socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return Check("loopback port", True, f"free, for example {probe.getsockname()[1]}")


def _space(name: str, path: Path, needed_gb: float, mend: str) -> Check:
    while not path.exists():
        path = path.parent
    free = shutil.disk_usage(path).free / 1e9
    return Check(name, free >= needed_gb, f"{free:.1f} GB free, {needed_gb:.0f} needed", mend)


def _processor() -> Check:
    flags = Path("/proc/cpuinfo").read_text()
    bf16 = "avx512_bf16" in flags or "amx_bf16" in flags
    return Check(
        "processor",
        True,
        "has bf16 instructions" if bf16 else "no bf16 instructions: bf16 will not be faster",
    )


def _engine() -> Check:
    try:
        return Check("Docker", True, f"engine {containers.engine()}")
    except DeploymentError as error:
        found, _, mend = str(error).rpartition(": ")
        return Check("Docker", False, found, mend)


def _images(configs: list[ConvertConfig]) -> list[Check]:
    """Look for the image of every release that is needed, if there is an engine to ask."""
    needed = {config.server.image or config.server.release: config for config in configs}
    done = []
    for name, config in needed.items():
        try:
            done.append(Check(f"image {name}", True, f"{containers.require_image(config)} is here"))
        except DeploymentError as error:
            found, _, mend = str(error).rpartition(": ")
            done.append(Check(f"image {name}", False, found, mend))
    return done


def checks(configs: list[ConvertConfig]) -> list[Check]:
    """Look at what these experiments need."""
    wanted: list[Callable[[], Check]] = [_python, _glibc, _triton, _analyzer, _port, _processor]
    done = [check() for check in wanted]
    done.append(
        _space(
            "/dev/shm", Path("/dev/shm"), SHM_GB, "give it more: mount -o remount,size=2G /dev/shm"
        )
    )
    done.append(_space("disk", outputs(), DISK_GB, "free some, or give --outputs on another disk"))
    if any(config.device == "gpu" for config in configs):
        from helpers.machine import gpu_checks

        done += gpu_checks.checks([config for config in configs if config.device == "gpu"])
    if in_docker := [config for config in configs if config.server.kind == "docker"]:
        done.append(_engine())
        done += _images(in_docker) if done[-1].ok else []
    for config in configs:
        reason = obstacle(config)
        name = f"{config.model} {config.experiment}"
        done.append(
            Check(name, not reason, reason or "can run here", "see above" if reason else "")
        )
    return done
