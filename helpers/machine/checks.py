"""What `doctor` checks: what a target needs of this machine, and how to fix what is missing."""

import platform
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from helpers.config import ConvertConfig
from helpers.errors import DeploymentError
from helpers.machine import preflight
from helpers.store import outputs
from helpers.triton import containers

GLIBC = (2, 35)
SHM_GB = 1.0
DISK_GB = 5.0


@dataclass(frozen=True)
class Check:
    """One thing that was checked: what was found, and how to fix it if it is not `ok`.

    `warn` marks what stops nothing from running but affects the results.
    """

    name: str
    ok: bool
    found: str
    fix: str = ""
    warn: bool = False

    @property
    def word(self) -> str:
        """The check's verdict."""
        return "FIX" if not self.ok else "WARN" if self.warn else "ok"

    @property
    def line(self) -> str:
        """What to print: the fix only if one is needed."""
        fix = f"; {self.fix}" if self.fix and self.word != "ok" else ""
        return f"{self.name}: {self.found}{fix}"


def examine(configs: Sequence[ConvertConfig]) -> list[Check]:
    """Check this machine for what these experiments need."""
    shm = "give it more: mount -o remount,size=2G /dev/shm"
    disk = "free some, or give --outputs on another disk"
    found = [
        _python(),
        _glibc(),
        _triton(),
        _analyzer(),
        _processor(),
        _space("/dev/shm", Path("/dev/shm"), SHM_GB, shm),
        _space("disk", outputs(), DISK_GB, disk),
    ]
    if on_gpu := [config for config in configs if config.device == "gpu"]:
        from helpers.machine import gpu_checks

        found += gpu_checks.checks(on_gpu)
    if in_docker := [config for config in configs if config.server.kind == "docker"]:
        found += _docker(in_docker)
    for config in configs:
        reason = preflight.obstacle(config)
        name = f"{config.model} {config.experiment}"
        found.append(Check(name, not reason, reason or "can run here"))
    return found


def _glibc() -> Check:
    found = platform.libc_ver()[1] or "unknown"
    new_enough = found != "unknown" and tuple(int(part) for part in found.split(".")[:2]) >= GLIBC
    fix = "perf_analyzer and Triton need 2.35: use Ubuntu 22.04 or Debian 12, or newer"
    return Check("glibc", new_enough, found, fix)


def _python() -> Check:
    known = sys.version_info[:2] in ((3, 11), (3, 12))
    return Check("Python", known, platform.python_version(), "use Python 3.11 or 3.12")


def _triton() -> Check:
    from helpers.triton import embedded

    fix = "pip install -r docker/requirements.lock"
    try:
        found = (embedded.wheel() / "bin/tritonserver").exists()
    except DeploymentError as error:
        return Check("Triton", False, str(error), fix)
    return Check("Triton", found, "installed" if found else "not installed", fix)


def _analyzer() -> Check:
    found = (Path(sys.executable).parent / "perf_analyzer").exists()
    fix = "pip install -r docker/requirements.lock"
    return Check("perf_analyzer", found, "installed" if found else "not installed", fix)


def _space(name: str, path: Path, needed_gb: float, fix: str) -> Check:
    while not path.exists():
        path = path.parent
    free = shutil.disk_usage(path).free / 1e9
    return Check(name, free >= needed_gb, f"{free:.1f} GB free, {needed_gb:.0f} needed", fix)


def _processor() -> Check:
    flags = Path("/proc/cpuinfo").read_text()
    bf16 = "avx512_bf16" in flags or "amx_bf16" in flags
    found = "has bf16 instructions" if bf16 else "has no bf16 instructions: bf16 is not faster"
    return Check("processor", True, found)


def _docker(configs: Sequence[ConvertConfig]) -> list[Check]:
    """Check the Docker engine and, if it answers, the image of every release."""
    try:
        found = [Check("Docker", True, f"engine {containers.engine()}")]
    except DeploymentError as error:
        return [_failed("Docker", error)]
    for name, config in {
        each.server.image or each.server.release: each for each in configs
    }.items():
        try:
            image = containers.require_image(config)
            found.append(Check(f"image {name}", True, f"{image} is here"))
        except DeploymentError as error:
            found.append(_failed(f"image {name}", error))
    return found


def _failed(name: str, error: DeploymentError) -> Check:
    found, _, fix = str(error).rpartition(": ")
    return Check(name, False, found, fix)
