"""The peak memory of a server: real processes that take a known amount and give it back."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.measure import memory
from tests.machine.conftest import card as card  # the fixture

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


def ask(process, megabytes):
    process.stdin.write(f"{megabytes}000000\n")
    process.stdin.flush()
    assert process.stdout.readline() == "done\n"


@pytest.fixture(params=[PROGRAM, PARENT], ids=["itself", "its child"])
def process(request):
    command = [sys.executable, "-c", request.param]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as started:
        ask(started, 0)
        yield started
        started.stdin.close()


def test_a_peak_is_seen_in_its_own_point_and_in_no_later_one(process):
    def peak(megabytes):
        peak_mb = memory.watch_peak([process.pid])
        ask(process, megabytes)
        return peak_mb()

    during, after = peak(200), peak(0)
    assert during - after == pytest.approx(200, abs=5)
    assert 5 < after < 100


def test_nothing_is_measured_of_no_process_and_of_one_that_ends(process):
    peak_mb = memory.watch_peak([process.pid])
    process.stdin.close()

    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and is still listed
    assert peak_mb() is None
    process.wait()
    assert peak_mb() is None
    assert memory.watch_peak([process.pid])() is None
    assert memory.watch_peak([])() is None


def test_nothing_is_measured_where_a_peak_cannot_be_set_back(process, monkeypatch):
    monkeypatch.setattr(memory, "RESET_PEAK", "not one of the kernel's numbers")

    assert memory.watch_peak([process.pid])() is None


def test_what_is_bounded_is_the_peak_on_a_cpu_and_the_server_s_device_memory_on_a_gpu(
    process, card
):
    peak_mb = memory.watch_bounded("cpu", [process.pid])
    ask(process, 200)
    assert 200 < peak_mb() < 300
    used_mb = memory.watch_bounded("gpu", [process.pid])
    assert used_mb() is None  # a driver does not list the processes of most containers
    card.processes = [(1, 7 * 10**9), (process.pid, 912 * 10**6)]
    assert used_mb() == 912
    card.processes.append((process.pid, None))
    assert used_mb() is None  # hidden, as on Windows
    card.refuses = {"nvmlDeviceGetComputeRunningProcesses": "NotSupported"}
    assert used_mb() is None
    assert card.open == 0
