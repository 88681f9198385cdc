"""Energy is the difference of the hardware's counters, and nothing where there are none."""

import sys

import pytest

from helpers.measure import watch_energy
from tests.machine.conftest import card as card  # the fixture

RANGE_UJ = 65_532_610_987  # of a server's package
ZONES = {  # as Linux names them: two packages, a part of the first, and the whole platform
    "intel-rapl:0": "package-0",
    "intel-rapl:1": "package-1",
    "intel-rapl:0:0": "core",
    "intel-rapl:2": "psys",
    "intel-rapl-mmio:0": "package-0",
}


def write(folder, energies_uj):
    for zone, energy in energies_uj.items():
        (folder / zone).mkdir(exist_ok=True)
        (folder / zone / "name").write_text(f"{ZONES[zone]}\n")
        (folder / zone / "energy_uj").write_text(f"{energy}\n")
        (folder / zone / "max_energy_range_uj").write_text(f"{RANGE_UJ}\n")


def test_the_packages_of_a_machine_are_added_without_their_parts(tmp_path):
    write(tmp_path, dict.fromkeys(ZONES, 7_000_000))
    joules = watch_energy("cpu", tmp_path)
    write(tmp_path, dict.fromkeys(ZONES, 9_500_000))
    write(tmp_path, {"intel-rapl:1": 8_000_000})

    assert joules() == pytest.approx(2.5 + 1.0)
    write(tmp_path, {"intel-rapl:1": 6_000_000})  # the counter has begun again
    assert joules() == pytest.approx(2.5 + (RANGE_UJ - 1_000_000) / 1e6)


@pytest.mark.parametrize("fault", ["nothing", "unreadable", "not a number", "no range", "removed"])
def test_energy_that_this_user_cannot_read_is_none(fault, tmp_path):
    write(tmp_path, {"intel-rapl:0": 1, "intel-rapl:1": 1})
    zone = tmp_path / "intel-rapl:1"
    if fault == "unreadable":
        (zone / "energy_uj").unlink()
        (zone / "energy_uj").mkdir()  # root may read any file
    elif fault == "not a number":
        (zone / "energy_uj").write_text("")
    elif fault == "no range":
        (zone / "max_energy_range_uj").unlink()
    joules = watch_energy("cpu", tmp_path / "none" if fault == "nothing" else tmp_path)
    if fault == "removed":
        (zone / "name").write_text("psys")

    assert joules() is None


def test_a_gpu_has_its_own_counter(card, tmp_path):
    card.energy = 5_000
    joules = watch_energy("gpu", tmp_path)
    card.energy = 12_500

    assert joules() == pytest.approx(7.5)
    assert card.open == 0


@pytest.mark.parametrize("fault", ["NotSupported", "FunctionNotFound", "GpuIsLost", "no pynvml"])
def test_a_gpu_without_a_counter_has_none(fault, card, monkeypatch):
    if fault == "no pynvml":
        monkeypatch.setitem(sys.modules, "pynvml", None)
    card.refuses = {"nvmlDeviceGetTotalEnergyConsumption": fault}

    assert watch_energy("gpu")() is None
