"""Kernels are forked from a process that has imported what each needs, and nothing else."""

import json
import os
import re
import subprocess
import sys

import nbformat
import psutil
import pytest
from jupyter_client.manager import KernelManager

from helpers.errors import StageError
from helpers.pipeline import kernels
from helpers.pipeline.kernels import kernel_server_context
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
def kernel_server(monkeypatch):
    monkeypatch.setenv("ONLY_BEFORE", "1")
    with kernel_server_context():
        yield kernels.kernel_server
        started = kernels.kernel_server._process
    assert kernels.kernel_server is None
    assert started is None or started.poll() is not None


def told(folder, *before):
    """Start a kernel in `folder`, by a command `before` it, and have it tell about itself."""
    manager = KernelManager()
    manager.kernel_spec.argv = [*before, *manager.kernel_spec.argv]
    environment = {key: value for key, value in os.environ.items() if key != "ONLY_BEFORE"}
    manager.start_kernel(cwd=str(folder), env={**environment, "ONLY_HERE": "2"})
    client = manager.blocking_client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=600)
        lines = []
        client.execute_interactive(TELL, output_hook=lines.append, timeout=600)
    finally:
        client.stop_channels()
    return manager, json.loads("".join(each["content"].get("text", "") for each in lines))


@pytest.fixture
def tell(kernel_server, tmp_path):
    """Start a kernel and have it tell about itself; it is ended."""

    def start():
        manager, found = told(tmp_path)
        manager.shutdown_kernel(now=True)
        return found

    return start


@pytest.mark.slow
def test_a_kernel_is_a_fork_with_what_it_was_given_and_the_packages(kernel_server, tmp_path):
    told(tmp_path)[0].shutdown_kernel()  # it starts while the variable is there
    manager, found = told(tmp_path)
    process = psutil.Process(manager.provisioner.pid)

    assert found["parent"] == kernel_server._process.pid
    assert found["folder"] == str(tmp_path)
    assert found["variables"] == {"ONLY_HERE": "2", "ONLY_BEFORE": None}
    assert (found["session"], found["pandas"], found["main"]) == (True, True, "__main__")
    assert found["garbage"] == [True, True]  # looked for, but not in what was imported before
    manager.shutdown_kernel()
    assert not process.is_running()
    assert not manager.is_alive()


@pytest.mark.slow
def test_a_kernel_ends_soon_after_the_process_that_forked_it(kernel_server, tmp_path):
    manager, _ = told(tmp_path)
    kernel = psutil.Process(manager.provisioner.pid)

    kernel_server._process.kill()

    kernel.wait(300)
    assert not manager.is_alive()
    assert manager.provisioner.process.wait() == 0
    for end in ("kill", "terminate"):  # does nothing: the number may be another process' by now
        getattr(manager.provisioner.process, end)()
    manager.cleanup_resources()
    with pytest.raises(StageError, match="that starts kernels has ended"):
        kernel_server.fork([], {}, "/")


@pytest.mark.slow
def test_no_kernel_knows_another_or_has_a_debugger_and_the_fourth_has_what_measuring_needs(tell):
    found = [tell() for _ in range(4)]

    assert [each.pop("scipy") for each in found] == [False, False, False, True]
    assert not any(each["debugpy"] for each in found)
    assert found[0] == found[1] == found[2]


@pytest.mark.slow
def test_a_framework_is_imported_before_if_it_is_needed_and_not_beside_another(kernel_server, tell):
    found, parents = [], []
    asked = (("torch", False), ("torch", True), ("torch", False), ("colorsys", True))
    for name, is_needed in asked:
        kernel_server.preload(name, is_needed)
        found.append(tell()["torch"])
        parents.append(kernel_server._process)
    kernel_server.preload("torch", False)

    assert found == [False, True, True, False]
    assert parents[0] is not parents[1] is parents[2] is not parents[3]
    assert all(parent.poll() is not None for parent in parents)


IMPORTS = (  # the sections of a report use the display too
    "from helpers.config import resolve",
    "from helpers.(display|report) import ",
    "from helpers.results import save",
)
READ = """
import sys
from helpers.config import resolve
from helpers.display import table
from helpers.results import save
print(*sorted(n for n in sys.modules if n.partition('.')[0] == 'helpers'), sep='\\n')
"""


@pytest.mark.slow
def test_nothing_of_the_package_is_loaded_before_that_not_every_stage_reads(tell):
    """Else every result would be stale after a change of it."""
    for path in sorted((ROOT / "notebooks").glob("*/*.ipynb")):
        cells = nbformat.read(path, as_version=4).cells
        source = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
        assert all(re.search(each, source) for each in IMPORTS), path

    read = subprocess.run([sys.executable, "-c", READ], capture_output=True, text=True).stdout
    assert tell()["ours"] == read.split()


def test_a_kernel_of_another_command_is_started_as_ever(kernel_server, tmp_path):
    manager, found = told(tmp_path, "env")
    manager.shutdown_kernel(now=True)

    assert found["parent"] == os.getpid()
    assert not found["pandas"]
    assert kernel_server._process is None
