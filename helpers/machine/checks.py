"""What `doctor` checks: what a target needs of this machine, and how to fix what is missing."""

import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pydantic import JsonValue

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
NAMES = {  # what NVML says, without the maker's name -> as published and in params/
    "V100-SXM2-32GB": "NVIDIA DGX-1 (1x V100 32GB)",
    "A100-SXM4-80GB": "NVIDIA DGX A100 (1x A100 80GB)",
    "H100 80GB HBM3": "NVIDIA H100",
}


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
        """The check's quality."""
        return "FIX" if not self.ok else "WARN" if self.warn else "ok"

    @property
    def line(self) -> str:
        """What to print: the fix only if one is needed."""
        fix = f". {self.fix}" if self.fix and self.word != "ok" else ""
        return f"{self.name}: {self.found}{fix}"


def run_checks(configs: Sequence[ConvertConfig]) -> list[Check]:
    """Check this machine for what these experiments need."""
    found = [*_host()]
    if on_gpu := [config for config in configs if config.device == "gpu"]:
        found += [*gpu_checks(on_gpu), *_gpu_packages(on_gpu)]
    if in_docker := [config for config in configs if config.server.kind == "docker"]:
        found += _docker(in_docker)
    found += _packages(configs)
    for config in configs:
        reason = preflight.obstacle(config)
        name = f"{config.model} {config.experiment}"
        found.append(Check(name, not reason, reason or "can run here"))
    return found


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
    found = {
        precision: ", ".join(formats.instructions(precision)) for precision in formats.PRODUCTS
    }
    named = [f"{precision} by {names}" for precision, names in found.items() if names]
    if lacking := [precision for precision, names in found.items() if not names]:
        named.append(f"no {', '.join(lacking)} (not faster than fp32)")
    return "; ".join(named)


def _packages(configs: Sequence[ConvertConfig]) -> Iterator[Check]:
    """Check what the experiments import; a line for each package that cannot be imported."""
    names = list(dict.fromkeys(name for each in configs for name in packages.needed(each)))
    faults = packages.faults(names)
    if not faults:
        yield Check("packages", True, f"{len(names)} can be imported")
    for package, found, fix in dict.fromkeys(faults.values()):
        yield Check(package, False, found.removeprefix("is "), f"Run: {fix}")


def _space(
    name: str, path: Path, needed_gb: float, fix: str, least_gb: float | None = None
) -> Check:
    """Check for free space; between `least_gb`, if given, and `needed_gb` it is enough for some."""
    while not path.exists():
        path = path.parent
    free = shutil.disk_usage(path).free / 1e9
    ok = free >= (needed_gb if least_gb is None else least_gb)
    text = f"{free:.1f} GB free, {needed_gb:.0f} needed"
    return Check(name, ok, text, fix, warn=free < needed_gb)


def _docker(configs: Sequence[ConvertConfig]) -> Iterator[Check]:
    """Check the Docker engine and, if it answers, the image of every release."""
    engine = check_call("Docker", "engine {}", containers.engine)
    yield engine
    for release in sorted({each.server.release for each in configs}):
        if contents := releases.describe_release(release):
            yield Check(f"release {release}", True, contents)
    servers = {each.server.image or each.server.release: each.server for each in configs}
    for name, server in servers.items() if engine.ok else ():
        image = partial(containers.require_image, server)
        yield check_call(f"image {name}", "{}", image)
    if engine.ok and any(each.device == "gpu" for each in configs):
        # an engine of a virtual machine gives GPUs without telling how
        has = "nvidia" in containers.docker("info", "--format={{json .Runtimes}}").stdout
        text = "NVIDIA's runtime" if has else "the engine does not list NVIDIA's runtime"
        yield Check("GPU containers", True, text, INSTALL_TOOLKIT, warn=not has)


def _gpu_packages(configs: Sequence[ConvertConfig]) -> Iterator[Check]:
    """Check the packages by which the Python adapter and TensorRT compute on the GPU here."""
    if names := {each.format for each in configs if not each.server.is_native}:
        lacks = [reason for name in sorted(names) if (reason := formats.missing(name, "gpu"))]
        yield Check("GPU packages", not lacks, "; ".join(lacks) or "installed", INSTALL_GPU)


def check_call(name: str, found: str, ask: Callable[[], object]) -> Check:
    try:
        return Check(name, True, found.format(ask()))
    except DeploymentError as error:
        return Check(name, False, str(error))


def matches_target(name: str, target: str) -> bool:
    """Return whether a target is for the device `name`; text in brackets after it is ignored."""
    known = (name, target_name(name))
    return target in known or target.startswith(tuple(f"{each} (" for each in known))


def target_name(name: str) -> str:
    """Return a device's name as in published tables and parameter files: NVML's names change
    with the driver, and some results were published under the name of the whole machine.
    """
    name = name.removeprefix("NVIDIA ").removeprefix("Tesla ")
    return NAMES.get(name, f"NVIDIA {name}")


def this_gpu() -> Gpu:
    """Return the GPU of this machine that CUDA takes first, as its driver reports it.

    Raises `DeviceError` where there is no driver, no GPU, or not the package that asks.
    """
    if not gpu.has_driver():
        raise DeviceError(f"This machine has no NVIDIA driver. {NO_DRIVER}")
    with gpu.opened() as device:
        if device.absent:
            raise DeviceError(". ".join(device.absent))
        name, memory_mb = (device.ask(gpu.QUERIES[each]) for each in ("name", "memory_total_mb"))
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
        found, absent = device.record(), device.absent
    if absent:
        ok = not preflight.prevents_cuda(absent[0])
        yield Check("NVIDIA driver", ok, f"found, but {absent[0]}", absent[1], warn=True)
        return
    name, driver, wanted = str(found["name"]), str(found["driver"]), configs[0].gpu
    reason, doubt = (
        next(filter(None, (ask(config.server, driver) for config in configs)), "")
        for ask in (preflight.driver_obstacle, preflight.driver_doubt)
    )
    text = f"{driver}, CUDA {found['cuda']}"
    yield Check("NVIDIA driver", not reason, text, reason or doubt, warn=bool(doubt))
    fix = (
        f"The parameter file is for {wanted}, so results are not comparable. "
        "Run: triton-notebooks params new"
    )
    yield Check("GPU", True, name, fix, warn=not matches_target(name, wanted))
    total, used = found["memory_total_mb"], found["memory_used_mb"]
    if isinstance(total, int) and isinstance(used, int):
        free = (total - used) / 1000
        text = f"{free:.1f} of {total / 1000:.1f} GB free, {GPU_GB:.0f} needed"
        fix = "Stop the processes that use it. List them: nvidia-smi"
        yield Check("GPU memory", free >= GPU_GB, text, fix)
    others, memory = found["other_processes"], found["other_memory_mb"]
    text = _text(others, f"{others} other, using {memory} MB")
    fix = f"Stop them. {NOISY}"
    yield Check("GPU processes", True, text, fix, warn=isinstance(others, int) and others > 0)
    throttled = found["throttle_reasons"]
    words = [str(each) for each in throttled] if isinstance(throttled, list) else []
    text = _text(throttled, f"limited by {', '.join(words)}" if words else "not throttled")
    fix = f"Check its cooling and power supply. {NOISY}"
    yield Check("GPU clocks", True, text, fix, warn=bool(gpu.THROTTLED & set(words)))
    limit, default = found["power_limit_w"], found["power_limit_default_w"]
    low = isinstance(limit, float) and isinstance(default, float) and limit < default
    fix = f"The default is {default} W. Run as root: nvidia-smi --power-limit={default}"
    text = f"{limit:g} W" if isinstance(limit, float) else str(limit)
    yield Check("GPU power limit", True, text, fix, warn=low)
    mig, ecc = str(found["mig"]), str(found["ecc"])
    fix = "Only a slice of the GPU is used. Run as root: nvidia-smi --multi-instance-gpu=0"
    yield Check("MIG", True, mig, fix, warn=mig == "on")
    fix = "The default is on, which costs bandwidth. Run as root and restart: "
    fix += "nvidia-smi --ecc-config=1"
    yield Check("ECC", True, ecc, fix, warn=ecc == "off")


def _text(fact: JsonValue, text: str) -> str:
    """Choose what to say of a fact: one that the driver does not tell is a text that says so."""
    return fact if isinstance(fact, str) else text
