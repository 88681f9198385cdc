"""What `doctor` says of the GPU and its driver, and which target belongs to a GPU."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from helpers.config import Gpu, StageConfig
from helpers.errors import DeviceError
from helpers.machine import gpu, preflight
from helpers.machine.checks import Check

if TYPE_CHECKING:
    from pydantic import JsonValue

NO_DRIVER = "install NVIDIA's driver, or use params/cpu.yaml"
NAMES = {  # what NVML says, without the maker's name -> as published and in params/
    "V100-SXM2-32GB": "NVIDIA DGX-1 (1x V100 32GB)",
    "A100-SXM4-80GB": "NVIDIA DGX A100 (1x A100 80GB)",
    "H100 80GB HBM3": "NVIDIA H100",
}
FREE_GB = 4.0


def target_name(name: str) -> str:
    """Spell a device's name as the published tables and the parameter files do: NVML's names change
    with the driver, and some results were published under the name of the whole machine.
    """
    for maker in ("NVIDIA ", "Tesla "):
        name = name.removeprefix(maker)
    return NAMES.get(name, f"NVIDIA {name}")


def matches_target(name: str, target: str) -> bool:
    """Whether a target is for the device `name`; text in brackets after the name is ignored."""
    known = (name, target_name(name))
    return target in known or target.startswith(tuple(f"{each} (" for each in known))


def this_gpu() -> Gpu:
    """Ask the driver for the GPU of this machine that CUDA takes first.

    Raises `DeviceError` where there is no driver, no GPU, or not the package that asks.
    """
    if not gpu.has_driver():
        raise DeviceError(f"no NVIDIA driver here: {NO_DRIVER}")
    with gpu.opened() as device:
        if device.absent:
            raise DeviceError(": ".join(device.absent))
        name, memory_mb = (device.ask(gpu.QUERIES[each]) for each in ("name", "memory_total_mb"))
        architecture = device.ask(lambda nvml, handle: nvml.nvmlDeviceGetArchitecture(handle))
    if not isinstance(memory_mb, int) or isinstance(architecture, str):
        raise DeviceError(f"the driver does not tell what GPU this is: {NO_DRIVER}")
    return Gpu(str(name), architecture, memory_mb * 1e6 / 2**30)


def checks(configs: Sequence[StageConfig]) -> list[Check]:
    """Check the driver and the GPU that these experiments need."""
    if not gpu.has_driver():
        return [Check("NVIDIA driver", False, "not found", NO_DRIVER)]
    with gpu.opened() as device:
        if device.absent:
            reason, fix = device.absent
            ok = not preflight.blocks_cuda(reason)
            return [Check("NVIDIA driver", ok, f"found, but {reason}", fix, warn=True)]
        record = device.record()
    return list(_checks(record, configs))


def _checks(found: "dict[str, JsonValue]", configs: Sequence[StageConfig]) -> Iterator[Check]:
    name, driver = str(found["name"]), str(found["driver"])
    reasons = (preflight.driver_obstacle(config, driver) for config in configs)
    reason = next(filter(None, reasons), "")
    yield Check("NVIDIA driver", not reason, f"{driver}, CUDA {found['cuda']}", reason)
    wanted = configs[0].gpu
    yield _warning(
        "GPU",
        not matches_target(name, wanted),
        name,
        f"the parameter file is for {wanted}, whose results are not comparable: triton-notebooks "
        "params new writes a file for this GPU",
    )
    total, used = found["memory_total_mb"], found["memory_used_mb"]
    if isinstance(total, int) and isinstance(used, int):
        free = (total - used) / 1000
        yield Check(
            "GPU memory",
            free >= FREE_GB,
            f"{free:.1f} of {total / 1000:.1f} GB free, {FREE_GB:.0f} needed",
            "stop the processes that use it: nvidia-smi lists them",
        )
    others = found["other_processes"]
    yield _warning(
        "GPU processes",
        isinstance(others, int) and others > 0,
        f"{others} of others, using {found['other_memory_mb']} MB"
        if isinstance(others, int)
        else str(others),
        "stop them: rows measured meanwhile are marked as disturbed",
    )
    throttled = found["throttle_reasons"]
    words = [str(each) for each in throttled] if isinstance(throttled, list) else []
    yield _warning(
        "GPU clocks",
        bool(gpu.SLOWED & set(words)),
        f"reduced by {', '.join(words) or 'nothing'}"
        if isinstance(throttled, list)
        else str(throttled),
        "check its cooling and power supply: rows measured meanwhile are marked as disturbed",
    )
    limit, default = found["power_limit_w"], found["power_limit_default_w"]
    yield _warning(
        "GPU power limit",
        isinstance(limit, float) and isinstance(default, float) and limit < default,
        f"{limit:g} W" if isinstance(limit, float) else str(limit),
        f"the default is {default} W: nvidia-smi --power-limit={default} as root sets it",
    )
    yield _warning(
        "MIG",
        found["mig"] == "on",
        str(found["mig"]),
        "results will be of one slice of the GPU: nvidia-smi --multi-instance-gpu=0 as root turns "
        "it off",
    )
    yield _warning(
        "ECC",
        found["ecc"] == "off",
        str(found["ecc"]),
        "the default is on, which costs bandwidth: nvidia-smi --ecc-config=1 as root turns it on "
        "after a restart",
    )


def _warning(name: str, wrong: bool, found: str, fix: str) -> Check:
    return Check(name, True, found, fix, warn=wrong)
