"""A stand-in for `pynvml`, with the names, units and errors of nvidia-ml-py 13: `test_gpu.py` holds
them against the real module. What a real driver answers is not tested.
"""

import json
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

UUID = "GPU-11111111-2222-3333-4444-555555555555"
SERIAL = "1320000000001"
ERRORS = (
    *("NotSupported", "FunctionNotFound", "NoPermission", "GpuIsLost", "Unknown"),
    *("DriverNotLoaded", "LibraryNotFound", "LibRmVersionMismatch"),
)
BITS = {  # NvmlClocksEventReasons, in the order of their bits from 0x1 on -> our words
    "GpuIdle": "idle",
    "ApplicationsClocksSetting": "clocks set by a user",
    "SwPowerCap": "power cap",
    "HwSlowdown": "hardware slowdown",
    "SyncBoost": "sync boost",
    "SwThermalSlowdown": "thermal slowdown by software",
    "HwThermalSlowdown": "thermal slowdown by hardware",
    "HwPowerBrakeSlowdown": "power brake",
    "DisplayClockSetting": "display clocks",
}
IDLE, CAP, THERMAL = 0x1, 0x4, 0x20


@dataclass
class Card:
    """One GPU and its driver: what it answers, and what it refuses with which error."""

    processes: list[tuple[int, int | None]] = field(default_factory=list)  # pid, bytes
    reasons: int = 0
    name: Any = "NVIDIA A100-SXM4-80GB"
    driver: str = "535.183.01"
    power_limit: int = 400_000  # mW
    mig: int = 0
    ecc: int = 1
    used: int = 2_000_000_000  # bytes
    total: int = 85 * 10**9  # bytes
    architecture: int = 7  # nvmlDeviceArchitecture_t of nvml.h
    energy: int = 0  # mJ
    refuses: dict[str, str] = field(default_factory=dict)  # function -> error
    asked_for: list[Any] = field(default_factory=list)
    open: int = 0

    def module(self):
        """Build the module."""
        made = ModuleType("pynvml")
        base = type("NVMLError", (Exception,), {})
        for name in ERRORS:
            setattr(made, f"NVMLError_{name}", type(f"NVMLError_{name}", (base,), {}))
        made.__dict__.update(NVMLError=base, NVML_CLOCK_SM=1, NVML_CLOCK_MEM=2)
        made.__dict__["NVML_TEMPERATURE_GPU"] = 0
        for place, name in enumerate(BITS):
            setattr(made, f"nvmlClocksEventReason{name}", 1 << place)
        for name, function in self.functions().items():
            setattr(made, name, self.guarded(made, name, function))
        return made

    def guarded(self, made, name, function):
        def call(*arguments):
            if error := self.refuses.get(name):
                raise getattr(made, f"NVMLError_{error}")(error)
            return function(*arguments)

        return call

    def functions(self):
        def opened():
            self.open += 1

        def closed():
            self.open -= 1

        def chosen(which):
            self.asked_for.append(which)
            return "handle"

        def processes(_):
            return [SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in self.processes]

        return {
            "nvmlInit": opened,
            "nvmlShutdown": closed,
            "nvmlDeviceGetHandleByIndex": chosen,
            "nvmlDeviceGetHandleByUUID": chosen,
            "nvmlDeviceGetUUID": lambda _: UUID,
            "nvmlDeviceGetSerial": lambda _: SERIAL,
            "nvmlDeviceGetName": lambda _: self.name,
            "nvmlDeviceGetArchitecture": lambda _: self.architecture,
            "nvmlSystemGetDriverVersion": lambda: self.driver,
            "nvmlSystemGetCudaDriverVersion_v2": lambda: 12020,
            "nvmlDeviceGetCudaComputeCapability": lambda _: (8, 0),
            "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(total=self.total, used=self.used),
            "nvmlDeviceGetClockInfo": lambda _, clock: {1: 1155, 2: 1593}[clock],
            "nvmlDeviceGetMaxClockInfo": lambda _, clock: {1: 1410, 2: 1593}[clock],
            "nvmlDeviceGetEnforcedPowerLimit": lambda _: self.power_limit,
            "nvmlDeviceGetPowerManagementDefaultLimit": lambda _: 400_000,
            "nvmlDeviceGetPowerUsage": lambda _: 87_500,
            "nvmlDeviceGetTotalEnergyConsumption": lambda _: self.energy,
            "nvmlDeviceGetTemperature": lambda _, sensor: {0: 41}[sensor],
            "nvmlDeviceGetMigMode": lambda _: [self.mig, self.mig],
            "nvmlDeviceGetEccMode": lambda _: [self.ecc, self.ecc],
            "nvmlDeviceGetPersistenceMode": lambda _: 1,
            "nvmlDeviceGetCurrentClocksEventReasons": lambda _: self.reasons,
            "nvmlDeviceGetComputeRunningProcesses": processes,
            "nvmlDeviceGetUtilizationRates": lambda _: SimpleNamespace(gpu=37, memory=20),
        }


# what the package makes of the card's answers
RECORD = json.loads("""{
    "name": "NVIDIA A100-SXM4-80GB", "driver": "535.183.01", "cuda": "12.2",
    "compute_capability": "8.0", "memory_total_mb": 85000, "memory_used_mb": 2000,
    "sm_clock_mhz": 1155, "sm_clock_max_mhz": 1410, "memory_clock_mhz": 1593,
    "memory_clock_max_mhz": 1593, "power_limit_w": 400.0, "power_limit_default_w": 400.0,
    "power_w": 87.5, "temperature_c": 41, "mig": "off", "ecc": "on", "persistence": "on",
    "throttle_reasons": [], "other_processes": 0, "other_memory_mb": 0
}""")
QUERIES = {  # pynvml's function -> the entries of the record that need it
    "nvmlDeviceGetName": ["name"],
    "nvmlSystemGetDriverVersion": ["driver"],
    "nvmlSystemGetCudaDriverVersion_v2": ["cuda"],
    "nvmlDeviceGetCudaComputeCapability": ["compute_capability"],
    "nvmlDeviceGetMemoryInfo": ["memory_total_mb", "memory_used_mb"],
    "nvmlDeviceGetClockInfo": ["sm_clock_mhz", "memory_clock_mhz"],
    "nvmlDeviceGetMaxClockInfo": ["sm_clock_max_mhz", "memory_clock_max_mhz"],
    "nvmlDeviceGetEnforcedPowerLimit": ["power_limit_w"],
    "nvmlDeviceGetPowerManagementDefaultLimit": ["power_limit_default_w"],
    "nvmlDeviceGetPowerUsage": ["power_w"],
    "nvmlDeviceGetTemperature": ["temperature_c"],
    "nvmlDeviceGetMigMode": ["mig"],
    "nvmlDeviceGetEccMode": ["ecc"],
    "nvmlDeviceGetPersistenceMode": ["persistence"],
    "nvmlDeviceGetCurrentClocksEventReasons": ["throttle_reasons"],
    "nvmlDeviceGetComputeRunningProcesses": ["other_processes", "other_memory_mb"],
}
