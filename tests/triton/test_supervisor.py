"""What must not outlive its caller: commands under a supervisor, and regions of shared memory."""

import mmap
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
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
def name() -> Iterator[str]:
    """A name for a region that nobody else uses."""
    chosen = f"sweep-{os.getpid()}_0"
    yield chosen
    for path in SHM.glob(f"{chosen}*"):
        path.unlink()


@contextmanager
def guarded(
    tmp_path: Path, code: str, shm_patterns: tuple[str, ...] = (), at_once: bool = False
) -> Iterator["subprocess.Popen[bytes]"]:
    command = [sys.executable, "-c", code]
    with (
        (tmp_path / "log").open("wb") as log,
        process.supervised(command, log=log, shm_patterns=shm_patterns, at_once=at_once) as it,
    ):
        yield it


def test_a_stale_region_is_swept_and_one_in_use_is_not(name: str) -> None:
    stale, used, other = SHM / f"{name}_1", SHM / f"{name}_2", SHM / f"{name}-other"
    for path in (stale, used, other):
        path.write_bytes(b"x" * 4096)
    with used.open("r+b") as file, mmap.mmap(file.fileno(), 0):
        remove_shared_memory([f"{name}_[0-9]*"])
        assert (stale.exists(), used.exists(), other.exists()) == (False, True, True)
    remove_shared_memory([f"{name}_[0-9]*"])
    assert (used.exists(), other.exists()) == (False, True)


def test_what_another_user_left_is_not_swept(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    region = SHM / f"{name}_1"
    region.write_bytes(b"x")
    with monkeypatch.context() as patch:
        patch.setattr(os, "getuid", lambda: region.stat().st_uid + 1)
        remove_shared_memory([f"{name}_[0-9]*"])
    assert region.exists()
    remove_shared_memory([f"{name}_[0-9]*"])
    assert not region.exists()


def test_a_process_is_found_whatever_its_name_is() -> None:
    """The kernel cuts a name off after 15 bytes, within a character too."""
    code = "import ctypes\nctypes.CDLL(None).prctl(15, b'gr\\xc3')\nprint(flush=True); input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], start_new_session=True, **pipes) as named:
        assert named.stdout
        named.stdout.readline()
        assert processes_in_session(named.pid) == [named.pid]
        shared_memory_users(servers=False)
        named.communicate(b"\n")


def test_killed_servers_leave_no_folder_for_their_environments(tmp_path: Path) -> None:
    """Triton's Python backend makes it, whatever TMPDIR is, and removes it if it ends by itself:
    with an abort, if the folder has gone. The names are this test's: servers of others are alive.
    """
    prefix = (
        f"test_env{os.getpid()}_"  # supervisors of other tests remove what is called python_env_
    )
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

    def start(ending: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-c", supervisor, server + ending]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        return subprocess.Popen(command, start_new_session=True, text=True, **pipes)

    full = Path(f"/tmp/{prefix}full")
    full.mkdir()
    (full / "file").touch()
    try:
        with start("import time; time.sleep(99)") as living:
            assert living.stdout
            of_living = Path(living.stdout.readline().strip())
            with start("os.kill(os.getpid(), 9)") as killed:
                assert killed.stdout
                of_killed = Path(killed.stdout.readline().strip())
            assert [of_living.name[: len(prefix)], of_killed.name[: len(prefix)]] == [prefix] * 2
            assert [of_living.is_dir(), of_killed.is_dir()] == [True, True]
            living.communicate(timeout=20)  # closes its standard input: it is ended
        assert [of_living.exists(), of_killed.exists(), full.exists()] == [False, False, True]
    finally:
        for folder in Path("/tmp").glob(f"{prefix}*"):
            shutil.rmtree(folder)


def test_a_session_that_was_killed_uses_its_memory_no_more() -> None:
    """A large process takes a moment to die; while it does, its regions would not be swept."""
    code = "held = bytearray(b'x') * (512 << 20); print(flush=True); input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], start_new_session=True, **pipes) as large:
        assert large.stdout
        large.stdout.readline()
        kill_session(large.pid, 0)
        assert processes_in_session(large.pid) == []


def test_the_exit_code_is_the_commands(tmp_path: Path) -> None:
    for code, expected in (("exit(7)", 7), ("import os; os.kill(os.getpid(), 9)", 128 + 9)):
        with guarded(tmp_path, code) as started:
            started.wait()
        assert started.returncode == expected


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [False, True])
def test_stopping_ends_the_command_what_it_started_and_its_regions(
    tmp_path: Path, name: str, at_once: bool
) -> None:
    ignoring = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);" if at_once else ""
    code = ignoring + (
        "import subprocess, sys, pathlib, time;"
        f"pathlib.Path('/dev/shm/{name}').write_text('x');"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(99)']);"
        f"pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(child.pid)); time.sleep(99)"
    )
    with guarded(tmp_path, code, (f"{name}*",), at_once) as started:
        pid = int(wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text()))
        stopped = time.monotonic()
    assert time.monotonic() - stopped < 2 or not at_once
    assert started.returncode == 128 + (signal.SIGKILL if at_once else signal.SIGTERM)
    assert not processes(str(tmp_path)) + [p for p in processes("time.sleep(99)") if p == pid]
    assert not (SHM / name).exists()


def test_a_caller_that_is_killed_takes_the_command_along(tmp_path: Path) -> None:
    code = (
        "import time; from helpers.triton import process;"
        f"log = open({str(tmp_path / 'log')!r}, 'wb');"
        "started = process.supervised(['sleep', '98.7654'], log=log);"
        "started.__enter__(); time.sleep(99)"
    )
    caller = subprocess.Popen([sys.executable, "-c", code])
    wait_for(lambda: processes("98.7654"), 20)
    caller.kill()
    caller.wait()
    wait_for(lambda: not processes("98.7654"), 20)


@pytest.mark.slow
def test_a_guard_that_is_killed_leaves_neither_a_process_nor_a_region(
    tmp_path: Path, name: str
) -> None:
    """What the command started goes on as an orphan, like Triton's stubs at times."""
    code = (
        "import subprocess, sys, pathlib, time;"
        f"pathlib.Path('/dev/shm/{name}').write_text('x');"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(97.1)']);"
        f"pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(child.pid)); time.sleep(99)"
    )
    with guarded(tmp_path, code, (f"{name}*",)) as started:
        wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
        started.kill()
        assert started.wait() == -signal.SIGKILL
    assert not processes("time.sleep(97.1)")
    assert not (SHM / name).exists()
