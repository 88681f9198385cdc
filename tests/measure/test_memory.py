"""The peak memory of a server: real processes that take a known amount and give it back."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.measure import memory

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="this kernel sets no peak back"
)

PROGRAM = """
import sys
for line in sys.stdin:
    bytearray(int(line))  # zeros that are written: 200 MB of them are mapped, and given back
    print("done", flush=True)
"""
PARENT = f"""
import subprocess, sys
subprocess.run([sys.executable, "-c", {PROGRAM!r}])
"""


def ask(process: "subprocess.Popen[str]", megabytes: int) -> None:
    assert process.stdin
    assert process.stdout
    process.stdin.write(f"{megabytes}000000\n")
    process.stdin.flush()
    assert process.stdout.readline() == "done\n"


@pytest.fixture(params=[PROGRAM, PARENT], ids=["itself", "its child"])
def process(request: pytest.FixtureRequest) -> "Iterator[subprocess.Popen[str]]":
    command = [sys.executable, "-c", request.param]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as started:
        ask(started, 0)
        yield started
        assert started.stdin
        started.stdin.close()


def test_a_peak_is_seen_in_its_own_point_and_in_no_later_one(
    process: "subprocess.Popen[str]",
) -> None:
    found = []
    for megabytes in (200, 0):
        peak_mb = memory.watch_peak([process.pid])
        ask(process, megabytes)
        found.append(peak_mb())

    during, after = found
    assert during is not None
    assert after is not None
    assert during - after == pytest.approx(200, abs=5)
    assert 5 < after < 100


def test_nothing_is_measured_of_no_process_and_of_one_that_ends(
    process: "subprocess.Popen[str]",
) -> None:
    peak_mb = memory.watch_peak([process.pid])
    assert process.stdin
    process.stdin.close()

    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and is still listed
    assert peak_mb() is None
    process.wait()
    assert peak_mb() is None
    assert memory.watch_peak([process.pid])() is None
    assert memory.watch_peak([])() is None


def test_nothing_is_measured_where_a_peak_cannot_be_set_back(
    process: "subprocess.Popen[str]", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "RESET_PEAK", "not one of the kernel's numbers")

    assert memory.watch_peak([process.pid])() is None
