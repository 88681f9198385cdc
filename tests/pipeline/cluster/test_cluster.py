"""One command over three machines: each target where it belongs, one site, the same outcome."""

import json
import re

import numpy as np
import pytest

from helpers.results import read
from helpers.store import find_artifact
from tests.conftest import wait_for
from tests.pipeline.cluster.conftest import TARGETS, make_holdable

pytestmark = pytest.mark.usefixtures("nothing_left")

ONE = ("--experiment", "onnx-fp32")
STAGES = ("export", "convert", "deploy", "perf_offline", "perf_online")


def result(outputs, target, stage):
    found = read(outputs / target / "dummy/onnx-fp32" / f"{stage}.json")
    assert found, stage
    return found


def states(outputs, target):
    """The state of every stage of a target, by the path of its result below the target's folder."""
    base = outputs / target
    paths = sorted(path for path in base.glob("dummy/**/*.json") if "_" not in path.stem[5:])
    return {str(path.relative_to(base)): json.loads(path.read_text())["state"] for path in paths}


def hashes(outputs, target):
    """The hash of every artifact that a result of a target names, by stage."""
    return {stage: result(outputs, target, stage).artifact.sha256 for stage in STAGES[:3]}


def hashed(artifact):
    return {name: record.sha256 for name, record in artifact.files.items()}


def intervals(outputs):
    """From when to when each performance stage had requests under way (ns), in order."""
    found = []
    for path in outputs.glob("*/dummy/*/perf_*_requests.npz"):
        with np.load(path) as arrays:
            times = [arrays[name] for name in arrays if arrays[name].ndim == 2]
        first, last = min(each.min() for each in times), max(each.max() for each in times)
        found.append((int(first), int(last), str(path.relative_to(outputs))))
    return sorted(found)


def require_the_same_data(cluster, output):
    made = [cluster.outputs(name) / "data" for name in TARGETS]
    names = {path.name for path in made[0].iterdir()}
    for folder in made[1:]:
        assert names == {path.name for path in folder.iterdir()}
    made_by = output.count("generating the data set")
    sent = re.findall(r"(\S+) dummy: data/\S+-dataset-\S+: sent [\d.]+ MB", output)
    assert made_by + len(sent) == len(TARGETS)
    for name in names:
        one, *others = (find_artifact(folder / name) for folder in made)
        for other in others:
            assert hashed(one) == hashed(other)


def require_fetched(cluster, target):
    """Artifacts come home when they are asked for, and are then those of a run at home."""
    name, convert = f"params/{target}.yaml", ("--stage", "convert", *ONE)
    fetched = cluster.run(name, "--stage", "export", *convert, "--fetch")
    assert (fetched.code, fetched.executed()) == (0, []), fetched.output
    for stage in ("export", "convert"):
        found = result(cluster.home.root / "outputs", target, stage).artifact
        folder = cluster.home.root / f"outputs/{target}/artifacts" / found.folder
        assert (folder / "model.onnx").exists()
    unchanged = cluster.home.run("run", name, *convert)
    assert (unchanged.code, unchanged.executed()) == (0, [])


def test_three_machines_run_a_target_each_and_the_site_shows_all(cluster, network):
    """The scheduler and the submitter are on this machine, the workers are behind a bridge each.
    Artifacts stay until they are asked for.
    """
    cluster.schedule("--host", network.address, "--port", "0")
    cluster.work_each(*TARGETS, inside=network.names)
    files = [f"params/{name}.yaml" for name in TARGETS]

    answer = cluster.run(*files, *ONE)

    assert cluster.address.startswith("tls://")
    assert answer.code == 0, answer.output
    require_the_same_data(cluster, answer.output)
    outputs = cluster.home.root / "outputs"
    for name in TARGETS:
        there, here = states(cluster.outputs(name), name), states(outputs, name)
        assert there.keys() == {path for path in here if "report" not in path}
        assert {*there.values(), *here.values()} == {"done"}
        for stage in STAGES:
            found = result(outputs, name, stage)
            assert found == result(cluster.outputs(name), name, stage)
            command = f"triton-notebooks run params/{name}.yaml --scheduler ADDRESS"
            assert found.source.command == command
            assert (outputs / name / "dummy/onnx-fp32" / f"{stage}.html").exists()
        assert (outputs / name / "dummy/report.html").exists()
        assert f'href="{name}/index.html"' in (outputs / "index.html").read_text()
        assert not list((outputs / name / "artifacts").glob("*/*.onnx"))  # they stay
    assert len(intervals(outputs)) == 6
    for (_, end, _), (start, _, _) in zip(intervals(outputs), intervals(outputs)[1:], strict=False):
        assert end < start  # one at a time on this host
    assert (cluster.home.root / "outputs/cluster.pem").stat().st_mode & 0o777 == 0o600

    again = cluster.run(*files, *ONE)

    assert (again.code, again.executed()) == (0, [])
    serve = ("serve", "params/first.yaml", "--model", "dummy")
    assert "is on another machine. Add the cluster's --scheduler" in cluster.home.run(*serve).output
    serving = cluster.start(*serve, "--scheduler", cluster.address, *cluster.key)
    serving.wait_to_say("dummy (onnx-fp32) at http://127.0.0.1:")
    assert "first/artifacts/dummy-deploy-" in serving.said
    serving.end()
    require_fetched(cluster, TARGETS[0])
    local, first = cluster.home.root / "local", TARGETS[0]
    makes = ("--stage=export", "--stage=convert", "--stage=deploy")
    alone = cluster.home.run("run", files[0], *ONE, *makes, "--outputs", "local")
    assert alone.code == 0, alone.output
    for name in TARGETS:
        assert hashes(outputs, name) == hashes(local, first)
        assert states(local, first).items() <= states(outputs, name).items()


def test_a_stage_alone_finds_the_deployment_that_it_is_about_or_has_it_sent(cluster):
    """Of two workers of one target, the one that has it runs another target's stage."""
    hold = make_holdable(cluster)
    cluster.schedule()
    cluster.work("first", "second")
    deployed = cluster.run("params/second.yaml", *ONE, *("--stage=" + name for name in STAGES[:3]))
    assert deployed.code == 0, deployed.output
    only = ("--stage", "export", "--stage", "perf_online", *ONE)

    running = cluster.submit("params/first.yaml", "params/second.yaml", *only)
    running.wait_to_say("first dummy onnx-fp32 export: holding on")
    cluster.work("second")
    running.wait_to_say("dummy onnx-fp32 perf_online waiting: other stages are running on its host")
    hold.unlink()
    answer = running.answer()

    for stage in STAGES[:3]:
        assert f"second dummy: second/artifacts/dummy-{stage}-" in answer.output
    assert "second: [1/2] dummy onnx-fp32 export: unchanged\n" in answer.output
    assert "second: [2/2] dummy onnx-fp32 perf_online: done in" in answer.output
    assert "first: [2/2] dummy onnx-fp32 perf_online: blocked: deploy " in answer.output
    there = result(cluster.outputs("second"), "second", "perf_online")
    assert there == result(cluster.home.root / "outputs", "second", "perf_online")


def test_a_stage_goes_to_its_worker_and_comes_home_and_what_no_worker_offers_waits(cluster):
    cluster.schedule()
    cluster.work("first")
    only = ("--stage", "export", *ONE)
    running = cluster.submit("params/first.yaml", "params/second.yaml", *only)

    running.wait_to_say("second dummy: waiting: no worker offers second")
    running.wait_to_say("first: [1/1] dummy onnx-fp32 export: done in ")
    index = (cluster.home.root / "outputs/second/index.html").read_text()
    assert "no worker offers second" in index
    own = result(cluster.home.root / "outputs", "first", "export")
    assert own == result(cluster.outputs("first"), "first", "export")
    wait_for((cluster.home.root / "outputs/first/dummy/onnx-fp32/export.html").exists)

    running.end()
    assert running.process.returncode == 130
    assert running.said.splitlines()[-1].startswith("Interrupted. Run the same command again")
    again = cluster.run("params/first.yaml", *only)
    assert (again.code, again.executed()) == (0, [])


def test_a_plain_dask_worker_joins_by_a_preload_and_may_share_the_outputs(cluster):
    """As dask-jobqueue and the operator of dask-kubernetes start workers and schedulers. An outputs
    folder that worker and submitter both see is used as it is.
    """
    quiet = ("--host", "127.0.0.1", "--dashboard-address", "127.0.0.1:0")
    scheduler = cluster.start("scheduler", *quiet, "--port", "0", module="dask")
    said = scheduler.wait_to_say("Scheduler at:")
    cluster.address = re.findall(r"Scheduler at: +(\S+)", said)[0]
    of_ours = ("--nthreads", "1", "--no-nanny", "--memory-limit", "0")
    cluster.variables["TRITON_NOTEBOOKS_OUTPUTS"] = str(cluster.home.root / "outputs")
    ours = ("--preload", "helpers.pipeline.cluster.preload", *of_ours)
    cluster.start("worker", cluster.address, *quiet, *ours, module="dask")
    del cluster.variables["TRITON_NOTEBOOKS_OUTPUTS"]
    only = ("params/first.yaml", "--stage", "export", "--stage", "convert", *ONE)

    answer = cluster.run(*only)

    assert answer.code == 0, answer.output
    assert answer.executed() == ["dummy onnx-fp32 export", "dummy onnx-fp32 convert"]
    assert list(cluster.home.root.glob("outputs/first/artifacts/dummy-export-*/model.onnx"))
    assert "sent" not in answer.output
    again = cluster.home.run("run", *only)
    assert (again.code, again.executed()) == (0, [])
