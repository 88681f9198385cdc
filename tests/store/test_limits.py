"""Cores and memory are those of the cgroup where it leaves less than the host has."""

import os
import subprocess
import sys
from math import inf
from types import SimpleNamespace

import psutil
import pytest

from helpers.inference import physical_cores
from helpers.machine import checks, provenance
from helpers.pipeline.own.origin import CheckpointError, require_memory
from helpers.pipeline.running import THREADS, kernel_environment
from helpers.store import ROOT, core_quota, free_memory, limits, usable_cores, usable_memory
from helpers.store.limits import OPEN_FILES

GB = 10**9
HOST = SimpleNamespace(total=64 * GB, available=32 * GB)
VERSION_2 = {  # of nested groups, the tightest holds
    "own": "0::/a/b",
    "cpu.max": "max 100000",
    "a/cpu.max": "150000 100000",
    "a/b/cpu.max": "800000 100000",
    "a/memory.max": f"{4 * GB}",
    "a/memory.current": f"{3 * GB}",
    "a/memory.stat": f"anon 5\ninactive_file {2 * GB}\n",
    "a/b/memory.max": "max",
    "a/b/memory.current": "5",
}
VERSION_1 = {
    "own": "12:memory:/a\n4:cpu,cpuacct:/a\n3:cpuset:/\n1:name=systemd:/a\n0::/",
    "cpu/cpu.cfs_quota_us": "-1",
    "cpu/cpu.cfs_period_us": "100000",
    "cpu/a/cpu.cfs_quota_us": "75000",
    "cpu/a/cpu.cfs_period_us": "50000",
    "memory/memory.limit_in_bytes": f"{2**63 - 4096}",
    "memory/memory.usage_in_bytes": f"{9 * GB}",
    "memory/memory.stat": "total_inactive_file 0\n",
    "memory/a/memory.limit_in_bytes": f"{4 * GB}",
    "memory/a/memory.usage_in_bytes": f"{3 * GB}",
    "memory/a/memory.stat": f"inactive_file 1\ntotal_inactive_file {2 * GB}\n",
}
IN_A_CONTAINER = {  # whose root is a group of the host, and whose own path is the host's
    name.removeprefix("a/"): text
    for name, text in VERSION_2.items()
    if name == "own" or (name.startswith("a/") and not name.startswith("a/b"))
} | {"own": "0::/docker/0123"}
OUTSIDE = IN_A_CONTAINER | {"own": "0::/../.."}


@pytest.fixture(autouse=True)
def host(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "GROUPS", tmp_path)
    monkeypatch.setattr(provenance, "CPUINFO", tmp_path / "cpuinfo")
    (tmp_path / "cpuinfo").write_text("physical id\t: 0\n" * 16)
    monkeypatch.setattr(limits, "OWN", tmp_path / "own")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(limits, "PROCESSORS", tmp_path / "processors")
    siblings = {f"cpu{n}/topology/thread_siblings_list": f"{n % 8},{n % 8 + 8}" for n in range(16)}
    write(siblings, tmp_path / "processors")
    monkeypatch.setattr(psutil, "virtual_memory", lambda: HOST)


def write(files, folder):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{text}\n")


def cores_line():
    (line,) = (each for each in checks.run_checks([]) if each.name == "cores")
    return line.word, line.found


@pytest.mark.parametrize(("usable", "cores"), [({0, 8}, 1), ({0, 1}, 2), ({0, 1, 8, 9}, 2)])
def test_hyper_threads_of_one_core_are_one_core(usable, cores, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: usable)
    assert physical_cores() == cores


@pytest.mark.parametrize("files", [VERSION_2, VERSION_1, IN_A_CONTAINER, OUTSIDE])
def test_the_tightest_limit_of_all_groups_around_holds(files, tmp_path, monkeypatch):
    write(files, tmp_path)
    assert core_quota() == 1.5
    assert usable_cores() == physical_cores() == 2
    assert usable_memory() == 4 * GB
    assert free_memory() == 3 * GB  # files that were only read make room

    found = provenance.machine("CPU")
    assert found["host_processor_core_count"] == found["host_processor_vcpu_count"] == 2
    assert found["host_memory_capacity"] == "4 GiB"
    with pytest.raises(CheckpointError, match=r"only 3\.0 GB of memory are free"):
        require_memory(tmp_path, GB)
    assert cores_line() == ("WARN", "1.5 of 64 usable")

    monkeypatch.delenv(THREADS[0], raising=False)
    monkeypatch.setenv(THREADS[1], "7")
    with kernel_environment("cpu"):
        assert [os.environ[name] for name in THREADS[:2]] == ["2", "7"]  # the user's stays


def test_cores_are_those_of_each_processor(tmp_path):
    (tmp_path / "cpuinfo").write_text("physical id\t: 0\nphysical id\t: 1\n" * 8)

    found = provenance.machine("CPU")

    assert (found["host_processors_per_node"], found["host_processor_core_count"]) == (2, 4)


@pytest.mark.parametrize("own", ["0::/", "4:cpu:/\n3:memory:/", None])
def test_without_a_limit_the_host_counts(own, tmp_path, monkeypatch):
    write({"cpu.max": "max 100000", "memory.max": "max"} | ({"own": own} if own else {}), tmp_path)
    assert core_quota() == inf
    assert usable_cores() == 16
    assert physical_cores() == 8
    assert (usable_memory(), free_memory()) == (64 * GB, 32 * GB)
    assert cores_line() == ("ok", "16 of 64 usable")
    for name in THREADS:
        monkeypatch.delenv(name, raising=False)
    with kernel_environment("cpu"):
        assert not set(THREADS) & set(os.environ)


def test_without_statistics_all_that_is_used_counts_and_a_part_of_a_core_is_one(tmp_path):
    memory = {"memory.max": f"{4 * GB}", "memory.current": f"{3 * GB}"}
    write({"own": "0::/", "cpu.max": "20000 100000"} | memory, tmp_path)
    assert free_memory() == GB
    assert usable_cores() == physical_cores() == 1


FILES = """
import os, sys
from resource import RLIMIT_NOFILE, getrlimit, setrlimit
from helpers.__main__ import main
for soft, hard in ((64, 300), (64, 4096), (2000, 4096), (64, 128)):
    if not os.fork():  # a hard limit cannot be raised again
        setrlimit(RLIMIT_NOFILE, (soft, hard))
        main(["params", "diff", sys.argv[1], sys.argv[1]])
        print(getrlimit(RLIMIT_NOFILE)[0], flush=True)
        os._exit(0)
    os.wait()
"""


def test_the_limit_of_open_files_is_raised_or_named():
    command = [sys.executable, "-c", FILES, str(ROOT / "params/smoke.yaml")]
    done = subprocess.run(command, capture_output=True, text=True)

    same = "no difference"
    assert done.stdout.split("\n") == [same, "300", same, str(OPEN_FILES), same, "2000", "128", ""]
    words = "error: A process may open only 128 files, and a run needs 256. Raise the limit: "
    assert done.stderr == f"{words}ulimit -n, or docker run --ulimit nofile=1024\n"
