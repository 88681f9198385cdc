"""The energy that a machine uses, for all its processes: the hardware's own counters.

On a CPU it is that of all packages by RAPL (Linux, powercap.rst). On a GPU it is that of the board
by NVML (API Reference Guide, nvmlDeviceGetTotalEnergyConsumption). The rest is not counted.
"""

from collections.abc import Callable
from pathlib import Path

from helpers.machine import gpu

Counters = dict[str, tuple[float, float]]  # a counter's name -> joules, and where they wrap


def watch_energy(
    device: str, powercap: Path = Path("/sys/class/powercap")
) -> Callable[[], float | None]:
    """Begin to count the energy of a "cpu" or "gpu". The function returned gives the joules since.

    They are None without a counter that this user may read: Linux lets only root read RAPL, and
    GPUs have a counter since Volta. A counter may wrap once: RAPL's smallest do so after 65 kJ.
    """
    read = _board if device == "gpu" else lambda: _packages(powercap)
    before = read()

    def joules() -> float | None:
        after = read()
        if not before or before.keys() != after.keys():
            return None
        return sum((value - before[name][0]) % wrap for name, (value, wrap) in after.items())

    return joules


def _board() -> Counters:
    with gpu.opened() as opened:
        used = opened.ask(lambda n, handle: n.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3)
    return {} if isinstance(used, str) else {"gpu": (used, 2**64 / 1e3)}


def _packages(powercap: Path) -> Counters:
    found: Counters = {}
    try:
        for zone in powercap.glob("intel-rapl:*"):  # AMD's have this name too
            if (zone / "name").read_text().startswith("package"):  # others are parts of these
                files = zone / "energy_uj", zone / "max_energy_range_uj"
                value, wrap = (int(file.read_text()) / 1e6 for file in files)
                found[zone.name] = value, wrap
    except (OSError, ValueError):
        return {}
    return found
