"""What `doctor` checks: what a target needs of this machine, and how to fix what is missing."""

import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import inf
from pathlib import Path
from typing import NamedTuple

from helpers import formats
from helpers.config import ConvertConfig, Gpu, releases
from helpers.errors import DeploymentError, DeviceError
from helpers.machine import gpu, packages, preflight
from helpers.store import core_quota, outputs, usable_cores
from helpers.triton import binaries, containers, process

GLIBC = (2, 35)
SHM_GB, DISK_GB, GPU_GB = 1.0, 5.0, 4.0
SHM_LEAST_GB = 0.016  # the Python backend begins with 1 MB for each instance of a model
INSTALL_GPU = (
    "Install docker/gpu.lock in an environment without onnxruntime. TensorFlow uses a GPU in "
    "containers only."
)
INSTALL_TOOLKIT = "Install the NVIDIA Container Toolkit, which gives containers a GPU."
NO_DRIVER = "Install NVIDIA's driver, or use params/cpu.yaml."
NOISY = "Measurements taken meanwhile are marked noisy."
# NVML's name without the vendor, which changes with the driver -> the published name, as in params/
NAMES = {
    "V100-SXM2-32GB": "NVIDIA DGX-1 (1x V100 32GB)",
    "A100-SXM4-80GB": "NVIDIA DGX A100 (1x A100 80GB)",
    "H100 80GB HBM3": "NVIDIA H100",
}


class Check(NamedTuple):
    """The result of one check; `warn` marks a problem that stops no run but affects results."""

    name: str
    ok: bool
    found: str
    fix: str = ""
    warn: bool = False

    @property
    def word(self) -> str:
        """Return the status: "FIX", "WARN" or "ok"."""
        return "FIX" if not self.ok else "WARN" if self.warn else "ok"

    @property
    def line(self) -> str:
        """Return the line to print, with the fix only if one is needed."""
        fix = f". {self.fix}" if self.fix and self.word != "ok" else ""
        return f"{self.name}: {self.found}{fix}"


def run_checks(configs: Sequence[ConvertConfig]) -> list[Check]:
    """Check this machine for what these experiments need."""
    checks = [*_host()]
    if on_gpu := [config for config in configs if config.device == "gpu"]:
        checks += [*gpu_checks(on_gpu), *_gpu_packages(on_gpu)]
    if in_docker := [config for config in configs if config.server.kind == "docker"]:
        checks += _docker(in_docker)
    for server in {c.server.path: c.server for c in configs if c.server.kind == "local"}.values():
        from helpers.triton import local  # loads Triton's client: only where it is needed

        checks.append(check_call("Triton", "{}", partial(local.describe, server)))
    checks += _packages(configs)
    for config in configs:
        reason = preflight.why_unavailable(config)
        name = f"{config.model} {config.experiment}"
        checks.append(Check(name, not reason, reason or "can run here"))
    return checks


def _host() -> Iterator[Check]:
    known = sys.version_info[:2] in ((3, 11), (3, 12), (3, 13))
    yield Check("Python", known, platform.python_version(), "Use Python 3.11, 3.12 or 3.13.")
    glibc = platform.libc_ver()[1]
    fix = "perf_analyzer and Triton need 2.35. Use Ubuntu 22.04, Debian 12 or newer."
    yield Check("glibc", preflight.numbers(glibc) >= GLIBC, glibc or "unknown", fix)
    for name in binaries.BINARIES:
        yield check_call(name, "installed", partial(binaries.require, name))
    yield check_call("Python's library", "found", binaries.python_library)
    yield Check("CPU", True, _precisions())
    quota, cores = core_quota(), os.cpu_count() or 1
    fix = "A quota pauses processes for up to 0.1 s. Use whole cores: docker run --cpuset-cpus"
    text = f"{min(quota, usable_cores()):g} of {cores} usable"
    yield Check("cores", True, text, fix, warn=quota < cores)
    fix = f"Large requests need more. Run: {process.MORE_SHM}"
    yield _space("/dev/shm", Path("/dev/shm"), SHM_GB, fix, least_gb=SHM_LEAST_GB)
    yield _space("disk", outputs(), DISK_GB, "Free some, or use --outputs on another disk.")


def _precisions() -> str:
    """Return by which instructions the processor computes each precision in hardware."""
    named = {each: ", ".join(formats.instructions(each)) for each in formats.PRODUCTS}
    phrases = [f"{precision} by {names}" for precision, names in named.items() if names]
    if lacking := ", ".join(precision for precision, names in named.items() if not names):
        phrases.append(f"no {lacking} (not faster than fp32)")
    return "; ".join(phrases)


def _packages(configs: Sequence[ConvertConfig]) -> Iterator[Check]:
    """Check the packages that the experiments import; yield one check per broken package."""
    names = list(dict.fromkeys(name for config in configs for name in packages.needed(config)))
    faults = packages.faults(names)
    if not faults:
        yield Check("packages", True, f"{len(names)} can be imported")
    for package, problem, fix in dict.fromkeys(faults.values()):
        yield Check(package, False, problem.removeprefix("is "), f"Run: {fix}")


def _space(name: str, path: Path, needed_gb: float, fix: str, least_gb: float = inf) -> Check:
    """Check the free space; from `least_gb`, if given, up to `needed_gb` it is only a warning."""
    while not path.exists():
        path = path.parent
    free = shutil.disk_usage(path).free / 1e9
    text = f"{free:.1f} GB free, {needed_gb:.0f} needed"
    return Check(name, free >= min(needed_gb, least_gb), text, fix, warn=free < needed_gb)


def _docker(configs: Sequence[ConvertConfig]) -> Iterator[Check]:
    """Check the Docker engine and, if it responds, the image of every release."""
    engine = check_call("Docker", "engine {}", containers.engine)
    yield engine
    for release in sorted({config.server.release for config in configs}):
        if contents := releases.describe_release(release):
            yield Check(f"release {release}", True, contents)
    servers = {config.server.image or config.server.release: config.server for config in configs}
    for name, server in servers.items() if engine.ok else ():
        yield check_call(f"image {name}", "{}", partial(containers.require_image, server))
    if engine.ok and any(config.device == "gpu" for config in configs):
        # an engine in a virtual machine may provide GPUs without listing the runtime
        has = "nvidia" in containers.docker("info", "--format={{json .Runtimes}}").stdout
        text = "NVIDIA's runtime" if has else "the engine does not list NVIDIA's runtime"
        yield Check("GPU containers", True, text, INSTALL_TOOLKIT, warn=not has)


def _gpu_packages(configs: Sequence[ConvertConfig]) -> Iterator[Check]:
    """Check the packages by which the Python adapter and TensorRT compute on the GPU here."""
    if names := {config.format for config in configs if not config.server.is_native}:
        lacks = [reason for name in sorted(names) if (reason := formats.missing(name, "gpu"))]
        yield Check("GPU packages", not lacks, "; ".join(lacks) or "installed", INSTALL_GPU)


def check_call(name: str, template: str, ask: Callable[[], object]) -> Check:
    try:
        return Check(name, True, template.format(ask()))
    except DeploymentError as error:
        return Check(name, False, str(error))


def matches_target(name: str, target: str) -> bool:
    """Return whether a target is for the device `name`; text in brackets after it is ignored."""
    aliases = (name, target_name(name))
    return target in aliases or target.startswith(tuple(f"{alias} (" for alias in aliases))


def target_name(name: str) -> str:
    """Return a device's name as in published tables and parameter files."""
    name = name.removeprefix("NVIDIA ").removeprefix("Tesla ")
    return NAMES.get(name, f"NVIDIA {name}")


def this_gpu() -> Gpu:
    """Return the GPU that CUDA takes first; raise `DeviceError` if none can be queried."""
    if not gpu.has_driver():
        raise DeviceError(f"This machine has no NVIDIA driver. {NO_DRIVER}")
    with gpu.opened() as device:
        if device.absent:
            raise DeviceError(". ".join(device.absent))
        name, memory_mb = (device.ask(gpu.QUERIES[query]) for query in ("name", "memory_total_mb"))
        architecture = device.ask(lambda nvml, handle: nvml.nvmlDeviceGetArchitecture(handle))
    if not isinstance(memory_mb, int) or isinstance(architecture, str):
        raise DeviceError(f"The driver does not report which GPU this is. {NO_DRIVER}")
    return Gpu(str(name), architecture, memory_mb * 1e6 / 2**30)


def gpu_checks(configs: Sequence[ConvertConfig]) -> Iterator[Check]:
    """Check the driver and the GPU that these experiments need."""
    if not gpu.has_driver():
        yield Check("NVIDIA driver", False, "not found", NO_DRIVER)
        return
    with gpu.opened() as device:
        record, absent = device.record(), device.absent
    if absent:
        ok = not preflight.prevents_cuda(absent[0])
        yield Check("NVIDIA driver", ok, f"found, but {absent[0]}", absent[1], warn=True)
        return
    name, driver, target = str(record["name"]), str(record["driver"]), configs[0].gpu
    faults = [preflight.driver_faults(config.server, driver) for config in configs]
    reason, doubt = (next(filter(None, each), "") for each in zip(*faults, strict=True))
    text = f"{driver}, CUDA {record['cuda']}"
    yield Check("NVIDIA driver", not reason, text, reason or doubt, warn=bool(doubt))
    fix = f"The parameter file is for {target}, so results are not comparable. "
    fix += "Run: triton-notebooks params new"
    yield Check("GPU", True, name, fix, warn=not matches_target(name, target))
    total, used = record["memory_total_mb"], record["memory_used_mb"]
    if isinstance(total, int) and isinstance(used, int):
        free = (total - used) / 1000
        text = f"{free:.1f} of {total / 1000:.1f} GB free, {GPU_GB:.0f} needed"
        fix = "Stop the processes that use it. List them: nvidia-smi"
        yield Check("GPU memory", free >= GPU_GB, text, fix)
    # each of these values is a text if there is no answer: why
    others, memory = record["other_processes"], record["other_memory_mb"]
    text = others if isinstance(others, str) else f"{others} other, using {memory} MB"
    has_others = isinstance(others, int) and others > 0
    yield Check("GPU processes", True, text, f"Stop them. {NOISY}", warn=has_others)
    throttled = record["throttle_reasons"]
    reasons = list(map(str, throttled)) if isinstance(throttled, list) else []
    text = f"limited by {', '.join(reasons)}" if reasons else str(throttled or "not throttled")
    fix = f"Check its cooling and power supply. {NOISY}"
    yield Check("GPU clocks", True, text, fix, warn=bool(gpu.THROTTLED & set(reasons)))
    limit, default = record["power_limit_w"], record["power_limit_default_w"]
    low = isinstance(limit, float) and isinstance(default, float) and limit < default
    fix = f"The default is {default} W. Run as root: nvidia-smi --power-limit={default}"
    text = f"{limit:g} W" if isinstance(limit, float) else str(limit)
    yield Check("GPU power limit", True, text, fix, warn=low)
    fix = "Only a slice of the GPU is used. Run as root: nvidia-smi --multi-instance-gpu=0"
    yield Check("MIG", True, str(record["mig"]), fix, warn=record["mig"] == "on")
    fix = "The default is on, which costs bandwidth. Run as root and restart: "
    fix += "nvidia-smi --ecc-config=1"
    yield Check("ECC", True, str(record["ecc"]), fix, warn=record["ecc"] == "off")
