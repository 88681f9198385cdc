"""What a GPU and its driver report through NVML, as one record with words and units.

A record never identifies the machine: no serial number, no UUID, no process. A query never raises:
a value that a device or an old driver cannot give is "not supported". Source of names and meanings:
NVIDIA, NVML API Reference Guide, "Device Queries" and "NvmlClocksEventReasons".
"""

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import ModuleType
from typing import TypeVar

import psutil
from pydantic import JsonValue

Answer = TypeVar("Answer")
Query = Callable[[ModuleType, object], Answer]  # of pynvml and a device's handle

DRIVER_FILES = ("/proc/driver/nvidia/version", "/dev/nvidiactl")
NOT_SUPPORTED = "not supported"
UNANSWERED = ("NVMLError_NotSupported", "NVMLError_FunctionNotFound")  # by device, by old driver
OWN_NOT_LISTED = "unknown: the driver does not list our own processes"
NOT_INSTALLED = ("nvidia-ml-py is not installed", "Run: pip install nvidia-ml-py")
HIDDEN = ("CUDA_VISIBLE_DEVICES hides every GPU", "Unset it, or set it to the index of a GPU.")
FAULTS = {  # pynvml's error when no query is possible -> what it means, and how to fix it
    "NVMLError_LibraryNotFound": (
        "the driver's library libnvidia-ml.so.1 is missing",
        "Install NVIDIA's driver, or start the container with --gpus.",
    ),
    "NVMLError_DriverNotLoaded": (
        "the driver's kernel module is not loaded",
        "Run: modprobe nvidia",
    ),
    "NVMLError_LibRmVersionMismatch": (
        "the driver's library and its kernel module have different versions",
        "Restart the machine, as after every update of the driver.",
    ),
    "NVMLError_NoPermission": (
        "this user may not query the driver",
        "Give the user access to /dev/nvidia*.",
    ),
    "NVMLError_GpuIsLost": ("the GPU has fallen off the bus", "Restart the machine."),
}
# NVML's reason for lower clocks -> its name here. Those in THROTTLED are faults. A power cap is
# normal under load and only recorded.
REASONS = {
    "nvmlClocksEventReasonGpuIdle": "idle",
    "nvmlClocksEventReasonApplicationsClocksSetting": "clocks set by a user",
    "nvmlClocksEventReasonSwPowerCap": "power cap",
    "nvmlClocksEventReasonHwSlowdown": "hardware slowdown",
    "nvmlClocksEventReasonSyncBoost": "sync boost",
    "nvmlClocksEventReasonSwThermalSlowdown": "thermal slowdown by software",
    "nvmlClocksEventReasonHwThermalSlowdown": "thermal slowdown by hardware",
    "nvmlClocksEventReasonHwPowerBrakeSlowdown": "power brake",
    "nvmlClocksEventReasonDisplayClockSetting": "display clocks",
}
THROTTLED = {word for word in REASONS.values() if "slowdown" in word} | {"power brake"}


def has_driver() -> bool:
    """Return whether an NVIDIA driver is loaded, without loading any of its libraries."""
    return any(map(os.path.exists, DRIVER_FILES))


def _throttle_reasons(nvml: ModuleType, handle: object) -> list[str]:
    bits = nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
    return [word for name, word in REASONS.items() if bits & getattr(nvml, name)]


def _on(state: int) -> str:
    return "on" if state else "off"


QUERIES: dict[str, Query[JsonValue]] = {
    "name": lambda n, gpu: n.nvmlDeviceGetName(gpu),
    "driver": lambda n, _: n.nvmlSystemGetDriverVersion(),
    "cuda": lambda n, _: "{}.{}".format(*divmod(n.nvmlSystemGetCudaDriverVersion_v2() // 10, 100)),
    "compute_capability": lambda n, gpu: "{}.{}".format(*n.nvmlDeviceGetCudaComputeCapability(gpu)),
    "memory_total_mb": lambda n, gpu: round(n.nvmlDeviceGetMemoryInfo(gpu).total / 1e6),
    "memory_used_mb": lambda n, gpu: round(n.nvmlDeviceGetMemoryInfo(gpu).used / 1e6),
    "sm_clock_mhz": lambda n, gpu: n.nvmlDeviceGetClockInfo(gpu, n.NVML_CLOCK_SM),
    "sm_clock_max_mhz": lambda n, gpu: n.nvmlDeviceGetMaxClockInfo(gpu, n.NVML_CLOCK_SM),
    "memory_clock_mhz": lambda n, gpu: n.nvmlDeviceGetClockInfo(gpu, n.NVML_CLOCK_MEM),
    "memory_clock_max_mhz": lambda n, gpu: n.nvmlDeviceGetMaxClockInfo(gpu, n.NVML_CLOCK_MEM),
    "power_limit_w": lambda n, gpu: n.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1000,
    "power_limit_default_w": lambda n, gpu: n.nvmlDeviceGetPowerManagementDefaultLimit(gpu) / 1000,
    "power_w": lambda n, gpu: n.nvmlDeviceGetPowerUsage(gpu) / 1000,
    "temperature_c": lambda n, gpu: n.nvmlDeviceGetTemperature(gpu, n.NVML_TEMPERATURE_GPU),
    "mig": lambda n, gpu: _on(n.nvmlDeviceGetMigMode(gpu)[0]),
    "ecc": lambda n, gpu: _on(n.nvmlDeviceGetEccMode(gpu)[0]),
    "persistence": lambda n, gpu: _on(n.nvmlDeviceGetPersistenceMode(gpu)),
    "throttle_reasons": lambda n, gpu: [*_throttle_reasons(n, gpu)],
}
# a share from 0 to 1, MB and watts, as in the columns of a row
UTILIZATION: dict[str, Query[float]] = {
    "gpu_utilisation": lambda n, gpu: n.nvmlDeviceGetUtilizationRates(gpu).gpu / 100,
    "gpu_memory_mb": lambda n, gpu: n.nvmlDeviceGetMemoryInfo(gpu).used / 1e6,
    "gpu_power_w": lambda n, gpu: n.nvmlDeviceGetPowerUsage(gpu) / 1000,
}


@dataclass
class Device:
    """One GPU, or in `absent` why there is none to query and how to fix that.

    `own` are this package's processes that use the device, without their descendants. It is empty
    if there are none, and None if they are unknown.
    """

    nvml: ModuleType | None = None
    handle: object = None
    own: Collection[int] | None = ()
    absent: tuple[str, str] | None = None
    _family: set[int] = field(default_factory=set)

    def record(self) -> dict[str, JsonValue]:
        """Record the present state; `{"reason": ...}` if there is no GPU to query."""
        if self.absent:
            return {"reason": self.absent[0]}
        return {name: self.ask(query) for name, query in QUERIES.items()} | {**self.others()}

    def ask(self, query: Query[Answer]) -> Answer | str:
        """Return the answer to one query, or a text that says why there is none."""
        if self.absent:
            return self.absent[0]
        assert self.nvml
        try:
            value = query(self.nvml, self.handle)
        except self.nvml.NVMLError as error:
            return NOT_SUPPORTED if type(error).__name__ in UNANSWERED else f"unknown: {error}"
        except AttributeError:  # pynvml is older than the one that this package requires
            return NOT_SUPPORTED
        return value.decode() if isinstance(value, bytes) else value

    def load(self) -> dict[str, float]:
        """Return the present utilisation, memory and power, as far as they are known."""
        answers = {name: self.ask(query) for name, query in UTILIZATION.items()}
        return {name: value for name, value in answers.items() if not isinstance(value, str)}

    def throttle_reasons(self) -> set[str]:
        """Return why the clocks are lower than they could be now, in words."""
        answer = self.ask(_throttle_reasons)
        return set() if isinstance(answer, str) else set(answer)

    def others(self) -> dict[str, int | str]:
        """Count the computing processes that are not ours, not graphics, and their memory."""
        listed = self.ask(lambda n, gpu: n.nvmlDeviceGetComputeRunningProcesses(gpu))
        if isinstance(listed, str) or self.own is None:
            unknown = listed if isinstance(listed, str) else OWN_NOT_LISTED
            return {"other_processes": unknown, "other_memory_mb": unknown}
        if any(process.pid not in self._family for process in listed):
            self._family = _with_descendants(self.own)
        others = [process for process in listed if process.pid not in self._family]
        if self.own and len(others) == len(listed):
            return {"other_processes": OWN_NOT_LISTED, "other_memory_mb": OWN_NOT_LISTED}
        memory = [process.usedGpuMemory for process in others]
        total = NOT_SUPPORTED if None in memory else round(sum(memory) / 1e6)
        return {"other_processes": len(others), "other_memory_mb": total}


def _with_descendants(pids: Collection[int]) -> set[int]:
    family = set(pids)
    for pid in pids:
        with suppress(psutil.Error):
            family |= {child.pid for child in psutil.Process(pid).children(recursive=True)}
    return family


@contextmanager
def opened(pids: Collection[int] | None = ()) -> Iterator[Device]:
    """Open the GPU that CUDA uses first: the first of CUDA_VISIBLE_DEVICES, else number 0.

    On a machine with GPUs of several kinds CUDA and NVML number them alike only with
    CUDA_DEVICE_ORDER=PCI_BUS_ID.
    """
    device = _open(pids)
    try:
        yield device
    finally:
        if device.nvml:
            with suppress(device.nvml.NVMLError):
                device.nvml.nvmlShutdown()


def _open(pids: Collection[int] | None) -> Device:
    try:
        import pynvml as nvml
    except ImportError:
        return Device(absent=NOT_INSTALLED)
    name = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    try:
        nvml.nvmlInit()
        if name.startswith(("GPU-", "MIG-")):
            return Device(nvml, nvml.nvmlDeviceGetHandleByUUID(name), pids)
        if not name.isdigit():
            return Device(nvml, absent=HIDDEN)
        return Device(nvml, nvml.nvmlDeviceGetHandleByIndex(int(name)), pids)
    except nvml.NVMLError as error:
        other = (f"the driver reports no GPU: {error}", "List its GPUs: nvidia-smi -L")
        return Device(nvml, absent=FAULTS.get(type(error).__name__, other))
