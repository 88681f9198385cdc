"""The system's clock may be set while something is measured: by NTP, or after a suspend."""

import os
import time
from collections.abc import Callable
from itertools import chain, repeat
from pathlib import Path

import psutil
import pytest
from filelock import FileLock

from helpers.errors import MeasurementError
from helpers.measure import analyzer
from helpers.measure.analyzer import ATTEMPTS, LoadPoint
from helpers.results import files
from helpers.store import clear_leftovers, lock
from helpers.triton import Server

HOUR = 3600.0


@pytest.fixture
def step(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Have the system's clock be off by these seconds at each time that it is asked."""
    now = time.time

    def apply(*seconds: float, then: float = 0.0) -> None:
        off = chain(seconds, repeat(then))
        monkeypatch.setattr(time, "time", lambda: now() + next(off))

    return apply


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], int]:
    """Ask for a window, and return from which run of perf_analyzer it is."""
    runs = []
    monkeypatch.setattr(analyzer, "_perform", lambda *_: runs.append("run") or 0)
    monkeypatch.setattr(analyzer, "_read", lambda *_: len(runs))
    monkeypatch.setattr(Server, "is_live", lambda *_: True)
    server = Server("127.0.0.1:1", "", tmp_path / "log")
    return lambda: analyzer.run(LoadPoint("m", tmp_path, []), server)


@pytest.mark.parametrize(("seconds", "run"), [(-HOUR, 2), (HOUR, 2), (-0.2, 2), (0.01, 1)])
def test_a_run_in_which_the_clock_was_set_does_not_count(
    seconds: float, run: int, step: Callable[..., None], load: Callable[[], int]
) -> None:
    """The last is an adjustment."""
    step(0.0, seconds, then=seconds)
    assert load() == run


def test_a_clock_that_is_set_again_and_again_is_an_error(
    step: Callable[..., None], load: Callable[[], int]
) -> None:
    step(*(-HOUR * turn for turn in range(2 * ATTEMPTS)))
    with pytest.raises(MeasurementError) as raised:
        load()
    assert str(raised.value) == (
        f"the system clock was set during the measurement ({ATTEMPTS} attempts)"
    )


@pytest.mark.parametrize("seconds", [-HOUR, 0.0, HOUR])
def test_what_a_stage_took_does_not_depend_on_the_clock(
    seconds: float, step: Callable[..., None]
) -> None:
    age = time.time() - psutil.Process().create_time()
    step(then=seconds)
    assert files._kernel_seconds() == pytest.approx(age, abs=1.0)


@pytest.mark.parametrize("seconds", [-HOUR, 0.0, HOUR])
def test_a_folder_in_use_is_not_swept_whatever_the_clock_says(
    seconds: float, step: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
