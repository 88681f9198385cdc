"""Whether the GPU that is here, and its driver, suit a target: what `doctor` says of them, and what
keeps an experiment from running at all.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from helpers.config import Gpu, StageConfig, releases
from helpers.errors import DeviceError
from helpers.machine import gpu
from helpers.machine.checks import Check, has_driver

NAMES = {  # what NVML says, without the maker's name -> as published and in params/
    "V100-SXM2-32GB": "NVIDIA DGX-1 (1x V100 32GB)",
    "A100-SXM4-80GB": "NVIDIA DGX A100 (1x A100 80GB)",
    "H100 80GB HBM3": "NVIDIA H100",
}
# The embedded server brings no compatibility libraries, and its CUDA is 12. Source: CUDA
# Compatibility, "Minor Version Compatibility".
LOWEST_FOR_EMBEDDED = "525.60.13"
FREE_GB = 4.0
NO_DRIVER = "install NVIDIA's driver, or use params/cpu.yaml"


def target_name(name: str) -> str:
    """Spell a device's name as the published tables and the parameter files do; NVML's names change
    with the driver, and some results were published by the machine that the device is in.
    """
    for maker in ("NVIDIA ", "Tesla "):
        name = name.removeprefix(maker)
    return NAMES.get(name, f"NVIDIA {name}")


def suits(name: str, target: str) -> bool:
    """Whether a target is of the device `name`; what it adds in brackets is its own matter."""
    known = (name, target_name(name))
    return target in known or target.startswith(tuple(f"{each} (" for each in known))


def too_old(config: StageConfig, version: str) -> str:
    """Say in one line why the target's server does not run on this driver; empty if it does."""
    if config.server.kind == "docker":
        return releases.driver_obstacle(config.server.release, version)
    if config.server.kind == "embedded" and _version(version) < _version(LOWEST_FOR_EMBEDDED):
        return (
            f"driver {version} is too old: Triton {config.server.release}, embedded, needs "
            f"{LOWEST_FOR_EMBEDDED} or newer"
        )
    return ""


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdigit())


def this_gpu() -> Gpu:
    """Ask the driver for the GPU of this machine that CUDA takes first.

    Raises `DeviceError` where there is no driver, no GPU, or not the package that asks.
    """
    if not has_driver():
        raise DeviceError(f"no NVIDIA driver here: {NO_DRIVER}")
    with gpu.opened() as device:
        if device.absent:
            raise DeviceError(": ".join(device.absent))
        name, memory_mb = (device.ask(gpu.QUERIES[each]) for each in ("name", "memory_total_mb"))
        architecture = device.ask(lambda nvml, handle: nvml.nvmlDeviceGetArchitecture(handle))
    if isinstance(memory_mb, str) or isinstance(architecture, str):
        raise DeviceError(f"the driver does not tell what GPU this is: {NO_DRIVER}")
    return Gpu(name, architecture, memory_mb * 1e6 / 2**30)


@cache
def _driver() -> tuple[str, str]:
    """Give the driver's version and, where there is nothing to ask, the reason; asked for once."""
    with gpu.opened() as device:
        if device.absent:
            return "", device.absent[0]
        version = device.ask(gpu.QUERIES["driver"])
        return (version, "") if _version(version) else ("", "")


def _fatal(reason: str) -> bool:
    """Whether CUDA cannot work either; without nvidia-ml-py only the records are empty."""
    return reason not in ("", gpu.NOT_INSTALLED[0])


def obstacle(config: StageConfig) -> str:
    """Say in one line why this driver cannot run the experiment; empty if it can, or if there is no
    telling.
    """
    if not has_driver():
        return f"{config.gpu} is needed and this machine has no NVIDIA driver"
    version, reason = _driver()
    if _fatal(reason) and config.server.kind == "embedded":  # Docker may run on another host
        return f"{config.gpu} is needed and NVIDIA's driver does not answer: {reason}"
    return too_old(config, version) if version else ""


def checks(configs: Sequence[StageConfig]) -> list[Check]:
    """Look at the driver and the GPU that these experiments need."""
    if not has_driver():
        return [Check("NVIDIA driver", False, "none", NO_DRIVER)]
    with gpu.opened() as device:
        if device.absent:
            reason, mend = device.absent
            found = f"found, but {reason}"
            return [Check("NVIDIA driver", not _fatal(reason), found, mend, warn=True)]
        record = device.record()
    return list(_checks(record, configs))


def _checks(found: dict[str, Any], configs: Sequence[StageConfig]) -> Iterator[Check]:
    driver = str(found["driver"])
    reasons = [too_old(config, driver) for config in configs] if _version(driver) else []
    yield Check(
        "NVIDIA driver",
        not any(reasons),
        f"{driver}, CUDA {found['cuda']}",
        next(filter(None, reasons), ""),
    )
    wanted = configs[0].gpu
    yield _warn(
        "GPU",
        suits(str(found["name"]), wanted),
        str(found["name"]),
        f"the target is {wanted}: its figures will be of another GPU; triton-notebooks params new "
        "writes a file for this one",
    )
    total, used = found["memory_total_mb"], found["memory_used_mb"]
    if isinstance(total, int) and isinstance(used, int):
        free = (total - used) / 1000
        yield Check(
            "GPU memory",
            free >= FREE_GB,
            f"{free:.1f} of {total / 1000:.1f} GB free, {FREE_GB:.0f} needed",
            "end what holds it: nvidia-smi lists the processes",
        )
    others, held_by = found["other_processes"], found["clocks_held_by"]
    yield _warn(
        "GPU processes",
        isinstance(others, str) or others == 0,
        others if isinstance(others, str) else f"{others}, with {found['other_memory_mb']} MB",
        "end them: rows measured beside them are marked as disturbed",
    )
    yield _warn(
        "GPU clocks",
        isinstance(held_by, str) or not gpu.SLOWED & set(held_by),
        held_by if isinstance(held_by, str) else f"held by {', '.join(held_by) or 'nothing'}",
        "mend its cooling or power supply: rows measured meanwhile are marked as disturbed",
    )
    limit, default = found["power_limit_w"], found["power_limit_default_w"]
    yield _warn(
        "GPU power limit",
        isinstance(limit, str) or isinstance(default, str) or limit >= default,
        limit if isinstance(limit, str) else f"{limit:.0f} W",
        f"it is below the default of {default} W: nvidia-smi --power-limit={default} as root",
    )
    yield _warn(
        "MIG",
        found["mig"] != "on",
        str(found["mig"]),
        "the figures are of a slice of the GPU: nvidia-smi --multi-instance-gpu=0 as root",
    )
    yield _warn(
        "ECC",
        found["ecc"] != "off",
        str(found["ecc"]),
        "it is on by default and costs bandwidth: nvidia-smi --ecc-config=1 as root, and restart",
    )


def _warn(name: str, ok: bool, found: str, mend: str) -> Check:
    return Check(name, True, found, mend, warn=not ok)
