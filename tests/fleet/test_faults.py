"""Machines that fail in mid-stage, with real processes: one reason, nothing left, nothing twice."""

import os
import shutil
import signal
from pathlib import Path

import psutil
import pytest

from helpers.results import read
from tests.conftest import Project, copy_project, processes, wait_for
from tests.fleet.conftest import Fleet, Network, Running, add_targets

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.usefixtures("nothing_left")]

ONLY = ("--stage", "export", "--experiment", "onnx-fp32")
BOTH = ("params/first.yaml", "params/second.yaml", *ONLY)


def exporting(fleet: Fleet, *files: str) -> Running:
    """Start a run, and return when the first target is held and what else there is done."""
    running = fleet.submit(*(files or BOTH))
    running.wait_to_say("first: holding on")
    if not files:
        running.wait_to_say("second: [1/1] dummy onnx-fp32 export: done in ")
    return running


def kernels(fleet: Fleet) -> list[int]:
    """The kernels of notebooks of this fleet."""
    found = processes(str(fleet.folder), "nursery.py")
    return [pid for pid in found if psutil.Process(pid).ppid() in found]


def require_completion(fleet: Fleet, *files: str) -> None:
    """The same command runs that one stage, and nothing else."""
    (fleet.folder / "hold").unlink()
    answer = fleet.run(*(files or BOTH))
    assert answer.code == 0, answer.output
    assert answer.executed() == ["dummy onnx-fp32 export"]
    assert "first: [1/1] dummy onnx-fp32 export: done in" in answer.output


def reason(fleet: Fleet, target: str = "first") -> str:
    found = read(fleet.home.root / f"outputs/{target}/dummy/onnx-fp32/export.json")
    assert found
    assert (found.state == "done") is (not found.reason)
    return found.reason


@pytest.mark.thorough
def test_a_worker_killed_in_mid_stage_fails_that_stage_and_others_go_on(held: Fleet) -> None:
    held.schedule()
    first = held.work("first")
    held.work("second")
    running = exporting(held)
    first.process.kill()

    answer = running.answer()

    assert answer.code == 1
    assert reason(held).startswith("its worker ended while it ran (killed, out of memory or stop")
    assert f"first: [1/1] dummy onnx-fp32 export: failed, {reason(held)}\n" in answer.output
    assert reason(held, "second") == ""
    wait_for(lambda: not kernels(held), 30)
    page = (held.home.root / "outputs/first/index.html").read_text()
    assert "its worker ended while it ran" in page
    held.work("first")
    require_completion(held)


@pytest.mark.thorough
def test_a_cable_pulled_out_in_mid_stage_fails_it_and_the_worker_comes_back(
    held: Fleet, network: Network
) -> None:
    held.schedule("--host", network.address, "--port", "0")
    first = held.work("first", inside=network.names[0])
    held.work("second", inside=network.names[1])
    running = exporting(held)
    network.cut(network.names[0])

    answer = running.answer()

    assert answer.code == 1
    assert reason(held) == ("its worker is not heard of any more (its network was cut): run again")
    assert reason(held, "second") == ""
    first.wait_to_say("cut off from tls://")
    wait_for(lambda: not kernels(held), 30)
    there = read(held.outputs("first") / "first/dummy/onnx-fp32/export.json")
    assert there
    assert (there.state, there.reason) == ("failed", "the run was interrupted")
    network.plug(network.names[0])
    wait_for(lambda: first.said.count("joined tls://") == 2)
    require_completion(held)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("victim", "why"),
    [
        ("kernel", "the notebook's kernel was killed: look for a lack of memory, then run again"),
        ("bench", "the process that ran it was killed: look for a lack of memory, then run again"),
    ],
)
def test_a_stage_that_is_out_of_memory_leaves_its_worker(
    victim: str, why: str, held: Fleet
) -> None:
    """The kernel of Linux kills the process that has most."""
    held.schedule()
    held.work("first")
    running = exporting(held, "params/first.yaml", *ONLY)
    benches = processes(str(held.folder), "-m helpers.fleet.bench")
    own = [pid for pid in benches if "fleet.bench" in Path(f"/proc/{pid}/cmdline").read_text()]
    for pid in kernels(held) if victim == "kernel" else own[:1]:
        os.kill(pid, signal.SIGKILL)

    answer = running.answer()

    assert (answer.code, reason(held)) == (1, why)
    wait_for(lambda: not kernels(held), 30)
    require_completion(held, "params/first.yaml", *ONLY)


@pytest.mark.thorough
def test_a_scheduler_that_ends_is_one_line_and_what_was_done_is_kept(held: Fleet) -> None:
    scheduler = held.schedule()
    workers = [held.work("first"), held.work("second")]
    port = held.address.rpartition(":")[2]
    running = exporting(held)
    scheduler.process.kill()

    answer = running.answer()

    assert answer.code == 1
    last = answer.output.splitlines()[-1]
    assert last.startswith(f"error: the scheduler at {held.address} is gone: what was done is kept")
    assert "Traceback" not in answer.output
    assert reason(held) == "the run was interrupted"
    assert reason(held, "second") == ""
    wait_for(lambda: not kernels(held), 30)
    held.schedule("--port", port)
    for worker in workers:
        wait_for(lambda w=worker: w.said.count("joined") == 2)
    require_completion(held)


@pytest.mark.thorough
def test_a_submitter_that_is_killed_has_its_stages_ended_and_the_workers_stay(held: Fleet) -> None:
    held.schedule()
    held.work("first")
    running = exporting(held, "params/first.yaml", *ONLY)
    assert kernels(held)
    running.process.kill()

    wait_for(lambda: not kernels(held), 30)

    assert reason(held) == "the run was interrupted"
    require_completion(held, "params/first.yaml", *ONLY)


def test_a_worker_with_other_software_is_refused_before_anything_runs(fleet: Fleet) -> None:
    other = copy_project(fleet.folder / "other")
    add_targets(other)
    with (other.root / "helpers/perf/limits.py").open("a") as file:
        file.write("# changed\n")
    fleet.schedule()
    worker = fleet.work("first", project=other)

    answer = fleet.run("params/first.yaml", *ONLY)

    assert answer.code == 1
    (line,) = (each for each in answer.output.splitlines() if each.startswith("error: "))
    assert line.startswith("error: the worker of first (")
    assert "has another source of helpers/perf/limits.py: install the same commit and" in line
    assert not list((fleet.home.root / "outputs").glob("first/dummy/**/*.json"))
    worker.end()

    same = Project(fleet.folder / "same")
    shutil.copytree(fleet.home.root, same.root, ignore=shutil.ignore_patterns("outputs"))
    shutil.copytree(fleet.home.root / "helpers", same.root / "helpers", dirs_exist_ok=True)
    (same.root / "docker").mkdir()
    (fleet.home.root / "docker").mkdir()
    for project in (same, fleet.home):
        (project.root / "docker/requirements.lock").write_text("numpy==9.9\n")
    package = same.root / "numpy-0.1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: numpy\nVersion: 0.1\n")
    fleet.work("first", project=same)

    answer = fleet.run("params/first.yaml", *ONLY)

    assert answer.code == 1
    assert "has numpy 0.1, not " in answer.output
    assert not list((fleet.home.root / "outputs").glob("first/dummy/**/*.json"))
