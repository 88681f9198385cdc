"""Machines that fail in mid-stage, with real processes: one reason, nothing left, nothing twice."""

import os
import re
import shutil
import signal
from pathlib import Path

import pytest

from helpers.results import read
from tests.conftest import Project, copy_project, kernels, processes, wait_for
from tests.pipeline.cluster.conftest import add_targets, cluster_in, make_holdable

pytestmark = pytest.mark.usefixtures("nothing_left")

ONLY = ("--stage", "export", "--experiment", "onnx-fp32")
BOTH = ("params/first.yaml", "params/second.yaml", *ONLY)


@pytest.fixture(scope="module")
def lasting(tmp_path_factory):
    """A cluster for all faults, in which nothing runs yet."""
    folder = tmp_path_factory.mktemp("cluster")
    with cluster_in(folder) as found:
        make_holdable(found)
        yield found
    wait_for(lambda: not processes(str(folder)))


@pytest.fixture
def held(lasting):
    """That cluster with a scheduler and two workers, whose first target's export is held."""
    if not lasting.address:
        lasting.schedule()
    alive = {name for name, each in lasting.workers.items() if each.process.poll() is None}
    lasting.work_each(*({"first", "second"} - alive))
    (lasting.folder / "hold").touch()
    yield lasting
    for running in lasting.started:
        if "-run.log" in running.log.name:
            running.end()


def exporting(cluster, *files):
    """Start a run, and return when the first target is held and what else there is done."""
    running = cluster.submit(*(files or BOTH), "--force")
    running.wait_to_say("first dummy onnx-fp32 export: holding on")
    if not files:
        running.wait_to_say("second: [1/1] dummy onnx-fp32 export: done in ")
    return running


def require_completion(cluster, *files):
    (cluster.folder / "hold").unlink()
    answer = cluster.run(*(files or BOTH))
    assert answer.code == 0, answer.output
    assert answer.executed() == ["dummy onnx-fp32 export"]
    assert "first: [1/1] dummy onnx-fp32 export: done in" in answer.output


def reason(cluster, target="first"):
    found = read(cluster.home.root / f"outputs/{target}/dummy/onnx-fp32/export.json")
    assert (found.state == "done") is (not found.reason)
    return found.reason


def test_a_worker_killed_in_mid_stage_fails_that_stage_and_others_go_on(held):
    running = exporting(held)
    held.workers["first"].process.kill()

    answer = running.answer()

    assert answer.code == 1
    assert reason(held).startswith("The worker ended (killed, out of memory or stopped). Start ")
    assert f"first: [1/1] dummy onnx-fp32 export: failed: {reason(held)}\n" in answer.output
    assert reason(held, "second") == ""
    wait_for(lambda: not kernels(held.folder))
    page = (held.home.root / "outputs/first/index.html").read_text()
    assert "The worker ended (killed, out of memory or stopped)." in page
    held.work("first")
    require_completion(held)


@pytest.mark.parametrize(
    ("victim", "why"),
    [
        ("kernel", "kernel was killed, probably out of memory. Free some memory and run again."),
        ("process", "worker process was killed, probably out of memory. Run again."),
    ],
)
def test_a_stage_that_is_out_of_memory_leaves_its_worker(victim, why, held):
    """The kernel of Linux kills the process that has most."""
    running = exporting(held, "params/first.yaml", *ONLY)
    found = processes(str(held.outputs("first")), "-m helpers.pipeline.cluster.process")
    own = [pid for pid in found if "cluster.process" in Path(f"/proc/{pid}/cmdline").read_text()]
    for pid in kernels(held.folder) if victim == "kernel" else own:
        os.kill(pid, signal.SIGKILL)

    answer = running.answer()

    assert (answer.code, reason(held)) == (1, f"The {why}")
    wait_for(lambda: not kernels(held.folder))
    if victim == "process":  # after the other this one shows that the worker goes on
        require_completion(held, "params/first.yaml", *ONLY)


def test_a_submitter_that_is_killed_has_its_stages_ended_and_the_workers_stay(held):
    running = exporting(held, "params/first.yaml", *ONLY)
    assert kernels(held.folder)
    running.process.kill()

    wait_for(lambda: not kernels(held.folder))

    assert reason(held) == "the run was interrupted"
    require_completion(held, "params/first.yaml", *ONLY)


def test_a_scheduler_that_ends_is_one_line_and_what_was_done_is_kept(held):
    port = held.address.rpartition(":")[2]
    joined = {name: worker.said.count("joined") for name, worker in held.workers.items()}
    running = exporting(held)
    held.started[0].process.kill()

    answer = running.answer()

    assert answer.code == 1
    line = f"error: Lost the scheduler at {held.address}. Results so far are kept."
    assert answer.output.splitlines()[-1].startswith(line)
    assert "Traceback" not in answer.output
    assert reason(held) == "the run was interrupted"
    assert reason(held, "second") == ""
    wait_for(lambda: not kernels(held.folder))
    held.schedule("--port", port)
    for name, worker in held.workers.items():
        wait_for(lambda n=name, w=worker: w.said.count("joined") == joined[n] + 1)
    require_completion(held)


def test_a_cable_pulled_out_in_mid_stage_fails_it_and_the_worker_comes_back(cluster, network):
    make_holdable(cluster)
    cluster.schedule("--host", network.address, "--port", "0")
    first = cluster.work("first", inside=network.names[0])
    cluster.work("second", inside=network.names[1])
    running = exporting(cluster)
    network.set(network.names[0], "down")

    answer = running.answer()

    assert answer.code == 1
    assert reason(cluster) == "Lost the connection to the worker. Check its network and run again."
    assert reason(cluster, "second") == ""
    first.wait_to_say("lost the connection to tls://")
    wait_for(lambda: not kernels(cluster.folder))
    there = read(cluster.outputs("first") / "first/dummy/onnx-fp32/export.json")
    assert (there.state, there.reason) == ("failed", "the run was interrupted")
    network.set(network.names[0], "up")
    wait_for(lambda: first.said.count("joined tls://") == 2)
    require_completion(cluster)


def test_a_worker_with_other_software_is_refused_before_anything_runs(cluster):
    other, same = copy_project(cluster.folder / "other"), Project(cluster.folder / "same")
    add_targets(other)
    with (other.root / "helpers/measure/peaks.py").open("a") as file:
        file.write("# changed\n")
    shutil.copytree(cluster.home.root, same.root)
    for project in (other, same, cluster.home):
        (project.root / "docker").mkdir()
        (project.root / "docker/requirements.lock").write_text("numpy==9.9\n")
    package = same.root / "numpy-0.1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: numpy\nVersion: 0.1\n")
    cluster.schedule()
    for name, project in (("first", other), ("second", same)):
        cluster.work(name, project=project)

    for name, difference in (
        ("first", "a different version of helpers/measure/peaks.py"),
        ("second", "numpy 0.1 instead of "),
    ):
        answer = cluster.run(f"params/{name}.yaml", *ONLY)

        assert answer.code == 1
        (line,) = re.findall(rf"^error: The worker for {name} \(.*", answer.output, re.MULTILINE)
        assert f" has {difference}" in line
        assert line.endswith("the same commit and docker/requirements.lock, and restart it.")
        assert not list((cluster.home.root / "outputs").glob(f"{name}/dummy/**/*.json"))
