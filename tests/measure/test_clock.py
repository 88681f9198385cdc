"""The system's clock may be set meanwhile: by NTP, or after a suspend."""

import os
import time

import psutil
import pytest
from filelock import FileLock

from helpers.results import files
from helpers.store import clear_leftovers, lock

HOUR = 3600.0


@pytest.mark.parametrize("seconds", [-HOUR, 0.0, HOUR])
def test_what_a_stage_took_does_not_depend_on_the_clock(seconds, step):
    age = time.time() - psutil.Process().create_time()
    step(then=seconds)
    assert files._kernel_seconds() == pytest.approx(age, abs=1.0)


@pytest.mark.parametrize("seconds", [-HOUR, 0.0, HOUR])
def test_a_folder_in_use_is_not_swept_whatever_the_clock_says(seconds, step, tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "_temporary_places", lambda: [str(tmp_path)])
    used, young, old = (tmp_path / f"triton-{name}" for name in ("used", "young", "old"))
    for folder in (used, young, old):
        folder.mkdir()
        (folder / lock.LOCK).touch()
    for folder in (used, old):
        os.utime(folder / lock.LOCK, times=(0, 0))
    with FileLock(used / lock.LOCK):
        step(then=seconds)
        clear_leftovers(tmp_path)
    assert used.exists()
    assert young.exists() == (seconds <= 0)  # its lock is what protects it
    assert not old.exists()
