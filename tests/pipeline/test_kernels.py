"""Kernels are forked from a process that has imported what each needs, and nothing else."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import nbformat
import psutil
import pytest
from jupyter_client.manager import KernelManager

from helpers.errors import StageError
from helpers.pipeline import kernels
from helpers.pipeline.kernels import KernelServer, kernel_server_context
from helpers.store import ROOT

TELL = """
import gc, json, os, sys
print(json.dumps({
    "parent": os.getppid(),
    "session": os.getsid(0) == os.getpid(),
    "folder": os.getcwd(),
    "variables": {name: os.environ.get(name) for name in ("ONLY_HERE", "ONLY_BEFORE")},
    "pandas": "pandas" in sys.modules,
    "torch": "torch" in sys.modules,
    "scipy": "scipy.stats" in sys.modules,
    "debugpy": "debugpy" in sys.modules,
    "ours": sorted(name for name in sys.modules if name.partition(".")[0] == "helpers"),
    "main": __name__,
    "garbage": [gc.isenabled(), gc.get_freeze_count() > 100_000],
}))
"""


@pytest.fixture
def kernel_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[KernelServer]:
    monkeypatch.setenv("ONLY_BEFORE", "1")
    with kernel_server_context():
        assert kernels.kernel_server
        yield kernels.kernel_server
        started = kernels.kernel_server._process
    assert kernels.kernel_server is None
    assert started is None or started.poll() is not None


def told(folder: Path, *before: str) -> tuple[KernelManager, dict[str, object]]:
    """Start a kernel in `folder`, by a command `before` it, and have it tell about itself."""
    manager = KernelManager()
    assert manager.kernel_spec
    manager.kernel_spec.argv = [*before, *manager.kernel_spec.argv]
    environment = {key: value for key, value in os.environ.items() if key != "ONLY_BEFORE"}
    manager.start_kernel(cwd=str(folder), env={**environment, "ONLY_HERE": "2"})
    client = manager.blocking_client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=60)
        lines: list[str] = []

        def note(message: dict[str, dict[str, str]]) -> None:
            lines.append(message["content"].get("text", ""))

        client.execute_interactive(TELL, output_hook=note, timeout=60)
    finally:
        client.stop_channels()
    return manager, json.loads("".join(lines))


@pytest.mark.slow
def test_a_kernel_is_a_fork_with_what_it_was_given_and_the_packages(
    kernel_server: KernelServer, tmp_path: Path
) -> None:
    kernel_server._process, kernel_server._channel = (
        kernel_server._start()
    )  # before the variable is gone
    manager, found = told(tmp_path)
    process = psutil.Process(manager.provisioner.pid)  # type: ignore[union-attr]

    assert found["parent"] == kernel_server._process.pid
    assert found["session"]
    assert found["folder"] == str(tmp_path)
    assert found["variables"] == {"ONLY_HERE": "2", "ONLY_BEFORE": None}
    assert found["pandas"]
    assert found["main"] == "__main__"
    assert found["garbage"] == [True, True]  # looked for, but not in what was imported before
    manager.shutdown_kernel()
    assert not process.is_running()
    assert not manager.is_alive()


@pytest.mark.slow
def test_a_kernel_ends_soon_after_the_process_that_forked_it(
    kernel_server: KernelServer, tmp_path: Path
) -> None:
    manager, _ = told(tmp_path)
    kernel = psutil.Process(manager.provisioner.pid)  # type: ignore[union-attr]
    assert kernel_server._process

    kernel_server._process.kill()

    kernel.wait(5)
    assert not manager.is_alive()
    manager.cleanup_resources()
    with pytest.raises(StageError, match="that starts kernels has ended"):
        kernel_server.fork([], {}, "/")


@pytest.mark.slow
def test_the_second_kernel_knows_nothing_of_the_first(
    kernel_server: KernelServer, tmp_path: Path
) -> None:
    first, before = told(tmp_path)
    second, now = told(tmp_path)

    assert before == now
    assert first.provisioner.pid != second.provisioner.pid  # type: ignore[union-attr]
    for manager in (first, second):
        manager.shutdown_kernel(now=True)


@pytest.mark.slow
def test_no_kernel_has_a_debugger_and_the_fourth_has_what_measuring_needs(
    kernel_server: KernelServer, tmp_path: Path
) -> None:
    found = []
    for _ in range(4):
        manager, told_by = told(tmp_path)
        manager.shutdown_kernel(now=True)
        found.append(told_by)

    assert [each["scipy"] for each in found] == [False, False, False, True]
    assert not any(each["debugpy"] for each in found)


@pytest.mark.slow
def test_a_framework_is_imported_before_and_not_beside_another(
    kernel_server: KernelServer, tmp_path: Path
) -> None:
    managers, found, parents = [], [], []
    for name in ("torch", "torch", "colorsys"):  # a small one in place of the other framework
        kernel_server.preload(name)
        manager, told_by = told(tmp_path)
        managers.append(manager)
        found.append(told_by)
        parents.append(kernel_server._process)
    managers[-1].shutdown_kernel(now=True)
    for manager in managers[:-1]:  # they ended with their kernel_server
        manager.cleanup_resources()

    assert [each["torch"] for each in found] == [True, True, False]
    assert parents[0] is parents[1]
    assert parents[0] is not None
    assert parents[0].poll() is not None
    assert not any(manager.is_alive() for manager in managers)


@pytest.mark.slow
def test_a_framework_that_is_not_needed_is_not_imported_and_not_let_go_of(
    kernel_server: KernelServer, tmp_path: Path
) -> None:
    found = []
    for name, is_needed in (("colorsys", False), ("colorsys", True), ("colorsys", False)):
        kernel_server.preload(name, is_needed)
        manager, _ = told(tmp_path)
        found.append((kernel_server._framework, kernel_server._process))
        manager.shutdown_kernel(now=True)
    kernel_server.preload("torch", False)

    assert [framework for framework, _ in found] == ["", "colorsys", "colorsys"]
    assert found[0][1] is not found[1][1] is found[2][1]
    assert (kernel_server._framework, kernel_server._process) == ("", None)


IMPORTS = (  # the sections of a report use the display too
    "from helpers.config import resolve",
    "from helpers.(display|report) import ",
    "from helpers.results import save",
)


@pytest.mark.slow
def test_nothing_of_the_package_is_loaded_before_that_not_every_stage_reads(
    kernel_server: KernelServer, tmp_path: Path
) -> None:
    """Else every result would be stale after a change of it."""
    manager, found = told(tmp_path)
    manager.shutdown_kernel(now=True)
    for path in sorted((ROOT / "notebooks").glob("*/*.ipynb")):
        cells = nbformat.read(path, as_version=4).cells  # type: ignore[no-untyped-call]
        source = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
        assert all(re.search(each, source) for each in IMPORTS), path

    script = (
        "import sys\n"
        "from helpers.config import resolve\n"
        "from helpers.display import table\n"
        "from helpers.results import save\n"
        "print(*sorted(n for n in sys.modules if n.partition('.')[0] == 'helpers'), sep='\\n')"
    )
    read = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout
    assert found["ours"] == read.split()


def test_a_kernel_of_another_command_is_started_as_ever(
    kernel_server: KernelServer, tmp_path: Path
) -> None:
    manager, found = told(tmp_path, "env")
    manager.shutdown_kernel(now=True)

    assert found["parent"] == os.getpid()
    assert not found["pandas"]
    assert kernel_server._process is None


@pytest.mark.slow
def test_a_kernel_that_ended_is_not_signalled(kernel_server: KernelServer, tmp_path: Path) -> None:
    manager, _ = told(tmp_path)
    process = manager.provisioner.process  # type: ignore[union-attr]
    psutil.Process(process.pid).kill()
    started = time.monotonic()
    while process.poll() is None and time.monotonic() < started + 5:
        time.sleep(0.05)

    assert process.poll() == process.wait() == 0
    process.send_signal(9)  # does nothing: the number may be another process' by now
    process.kill()
    process.terminate()
    manager.cleanup_resources()
