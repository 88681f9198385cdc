"""What must not outlive its caller: commands under a supervisor, and regions of shared memory."""

import mmap
import os
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from helpers.triton import process
from helpers.triton.supervisor import (
    kill_session,
    processes_in_session,
    remove_shared_memory,
    shared_memory_users,
)
from tests.conftest import processes, wait_for

SHM = Path("/dev/shm")


@pytest.fixture
def name():
    """A name for a region that nobody else uses."""
    chosen = f"sweep-{os.getpid()}_0"
    yield chosen
    for path in SHM.glob(f"{chosen}*"):
        path.unlink()


@contextmanager
def guarded(tmp_path, code, shm_patterns=(), at_once=False):
    command = [sys.executable, "-c", code]
    with (
        (tmp_path / "log").open("wb") as log,
        process.supervised(command, log=log, shm_patterns=shm_patterns, at_once=at_once) as it,
    ):
        yield it


def test_a_stale_region_is_swept_and_one_in_use_is_not(name):
    stale, used, other = SHM / f"{name}_1", SHM / f"{name}_2", SHM / f"{name}-other"
    for path in (stale, used, other):
        path.write_bytes(b"x" * 4096)
    with used.open("r+b") as file, mmap.mmap(file.fileno(), 0):
        remove_shared_memory([f"{name}_[0-9]*"])
        assert (stale.exists(), used.exists(), other.exists()) == (False, True, True)
    remove_shared_memory([f"{name}_[0-9]*"])
    assert (used.exists(), other.exists()) == (False, True)


def test_what_another_user_left_is_not_swept(name, monkeypatch):
    region = SHM / f"{name}_1"
    region.write_bytes(b"x")
    with monkeypatch.context() as patch:
        patch.setattr(os, "getuid", lambda: region.stat().st_uid + 1)
        remove_shared_memory([f"{name}_[0-9]*"])
    assert region.exists()
    remove_shared_memory([f"{name}_[0-9]*"])
    assert not region.exists()


def started(*code):
    """Start Python in a session of its own, with pipes."""
    command = [sys.executable, "-c", *code]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.Popen(command, start_new_session=True, text=True, **pipes)


def test_a_process_is_found_whatever_its_name_is():
    """The kernel cuts a name off after 15 bytes, within a character too."""
    code = "import ctypes\nctypes.CDLL(None).prctl(15, b'gr\\xc3')\nprint(flush=True); input()"
    with started(code) as named:
        named.stdout.readline()
        assert processes_in_session(named.pid) == [named.pid]
        shared_memory_users(servers=False)
        named.communicate("\n")


def test_killed_servers_leave_no_folder_for_their_environments(tmp_path):
    """Triton's Python backend makes it, whatever TMPDIR is, and removes it if it ends by itself:
    with an abort, if the folder has gone. The names are this test's: servers of others are alive.
    """
    prefix = f"test_env{os.getpid()}_"
    backend = tmp_path / "libtriton_test.so"
    backend.write_bytes(b"x" * 4096)
    supervisor = (
        "import sys; from helpers.triton import supervisor\n"
        f"supervisor.PYTHON_BACKEND, supervisor.ENVIRONMENTS = {str(backend)!r}, {prefix + '*'!r}\n"
        "sys.argv[1:] = ['--', sys.executable, '-c', sys.argv[1]]; sys.exit(supervisor.main())"
    )
    server = (
        f"import mmap, os, tempfile\nheld = mmap.mmap(os.open({str(backend)!r}, os.O_RDWR), 0)\n"
        f"print(tempfile.mkdtemp(prefix={prefix!r}, dir='/tmp'), flush=True)\n"
    )

    def temporary():
        return {path.name for path in Path("/tmp").glob(f"{prefix}*") if path.is_dir()}

    full = Path(f"/tmp/{prefix}full")
    full.mkdir()
    (full / "file").touch()
    try:
        with started(supervisor, server + "import time; time.sleep(99)") as living:
            of_living = Path(living.stdout.readline().strip())
            with started(supervisor, server + "os.kill(os.getpid(), 9)") as killed:
                of_killed = Path(killed.stdout.readline().strip())
            assert {each.name for each in (of_living, of_killed, full)} == temporary()
            living.communicate(timeout=600)  # closes its standard input: it is ended
        assert temporary() == {full.name}
    finally:
        for folder in Path("/tmp").glob(f"{prefix}*"):
            shutil.rmtree(folder)


def test_a_session_that_was_killed_uses_its_memory_no_more():
    """A large process takes a moment to die; while it does, its regions would not be swept."""
    with started("held = bytearray(b'x') * (512 << 20); print(flush=True); input()") as large:
        large.stdout.readline()
        kill_session(large.pid, 0)
        assert processes_in_session(large.pid) == []


def test_the_exit_code_is_the_commands(tmp_path):
    for code, expected in (("exit(7)", 7), ("import os; os.kill(os.getpid(), 9)", 128 + 9)):
        with guarded(tmp_path, code) as started:
            started.wait()
        assert started.returncode == expected


FAMILY = """
import pathlib, signal, subprocess, sys, time
folder, region, seconds = pathlib.Path({folder!r}), pathlib.Path({region!r}), {seconds}
def end(*_):
    (folder / "asked").touch()
    sys.exit(128 + signal.SIGTERM)
signal.signal(signal.SIGTERM, end)
region.write_text("x")
code = f"import time; time.sleep({{seconds}})"
child = subprocess.Popen([sys.executable, "-c", code])
(folder / "made").touch()
time.sleep(99)
"""


@contextmanager
def family(folder, name, seconds, at_once=False):
    """Run a command that has a child, which sleeps for so long, and a region."""
    code = FAMILY.format(folder=str(folder), region=str(SHM / name), seconds=seconds)
    with guarded(folder, code, (f"{name}*",), at_once) as started:
        wait_for((folder / "made").exists)
        yield started


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [False, True])
def test_stopping_ends_the_command_what_it_started_and_its_regions(tmp_path, name, at_once):
    seconds = 96.7 if at_once else 96.8
    with family(tmp_path, name, seconds, at_once) as started:
        assert (SHM / name).exists()
    assert (tmp_path / "asked").exists() is not at_once
    assert started.returncode == 128 + (signal.SIGKILL if at_once else signal.SIGTERM)
    assert not processes(str(tmp_path)) + processes(f"time.sleep({seconds})")
    assert not (SHM / name).exists()


def test_a_caller_that_is_killed_takes_the_command_along(tmp_path):
    code = (
        "import time; from helpers.triton import process;"
        f"log = open({str(tmp_path / 'log')!r}, 'wb');"
        "started = process.supervised(['sleep', '98.7654'], log=log);"
        "started.__enter__(); time.sleep(99)"
    )
    caller = subprocess.Popen([sys.executable, "-c", code])
    wait_for(lambda: processes("98.7654"))
    caller.kill()
    caller.wait()
    wait_for(lambda: not processes("98.7654"))


@pytest.mark.slow
def test_a_guard_that_is_killed_leaves_neither_a_process_nor_a_region(tmp_path, name):
    """What the command started goes on as an orphan, like Triton's stubs at times."""
    with family(tmp_path, name, 97.1) as started:
        started.kill()
        assert started.wait() == -signal.SIGKILL
    assert not processes("time.sleep(97.1)")
    assert not (SHM / name).exists()
