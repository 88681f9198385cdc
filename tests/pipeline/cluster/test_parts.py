"""The parts of a cluster by themselves: who may join, what is sent, and who goes in."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from helpers.config import LESSONS, STAGE, STAGES, Gpu, configure, parse, read_file, select
from helpers.display import Lines
from helpers.errors import ClusterError, ParameterError
from helpers.machine import BROKEN
from helpers.measure import parity_plot
from helpers.pipeline import BROKEN_INSTALLATION, Job, Runner, plan, read_plans
from helpers.pipeline.cluster import access, capabilities, process, submission, transfer
from helpers.pipeline.cluster.access import Access, worker_timeout, write_key
from helpers.pipeline.cluster.groups import groups_of
from helpers.pipeline.cluster.software import difference, software
from helpers.pipeline.cluster.submission import Submission
from helpers.pipeline.cluster.workers import WorkerInfo
from helpers.results import Result
from helpers.store import OUTPUTS_VARIABLE, ROOT, create_artifact, find_artifact, is_remote
from helpers.store.artifacts import Artifact, FileRecord
from tests.conftest import WATCHED

pytest.importorskip("distributed")


PLAIN = "^tcp://10.0.0.1:8786 is not encrypted: .* Use tls://, or add --insecure.$"


@pytest.mark.parametrize(
    ("address", "line"),
    [
        ("tcp://127.0.0.1:8786", ""),
        ("tcp://localhost:1", ""),
        ("tcp://[::1]:1", ""),
        ("tcp://10.0.0.1:8786", PLAIN),
        ("tls://10.0.0.1:8786", "needs a key. Add --key with the scheduler's file"),
        ("10.0.0.1:8786", "Use tls://HOST:PORT, as the scheduler printed it"),
        ("http://10.0.0.1:8786", "Use tls://HOST:PORT"),
        ("tcp://10.0.0.1:8786;", "Use tls://HOST:PORT"),
    ],
)
def test_a_plain_connection_is_for_this_machine_only(address, line):
    if not line:
        assert not Access(address).security.require_encryption
        return
    with pytest.raises(ParameterError, match=line):
        _ = Access(address).host, Access(address).security
    if line == PLAIN:
        assert not Access(address, insecure=True).security.require_encryption


@pytest.mark.parametrize("given", ["20s", "0", "-1", "nan", "inf"])
def test_a_time_limit_of_a_silent_worker_that_is_none_is_one_line(given, monkeypatch):
    monkeypatch.setenv(access.WORKER_TIMEOUT_VARIABLE, given)

    line = f"^Invalid {access.WORKER_TIMEOUT_VARIABLE} '{given}'. Use a number of seconds.$"
    with pytest.raises(ParameterError, match=line):
        worker_timeout()


def test_the_key_is_written_once_for_its_owner_and_encrypts_both_ways(tmp_path):
    key = write_key(tmp_path / "cluster.pem")
    content = key.read_bytes()

    assert key.stat().st_mode & 0o777 == 0o600
    assert write_key(key).read_bytes() == content
    found = Access("tls://10.0.0.1:8786", key).security
    assert found.require_encryption
    for role in ("client", "scheduler", "worker"):
        assert found.get_tls_config_for_role(role)["ca_file"] == str(key)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({}, ""),
        ({"python": "3.11.2", "numpy": "2.1"}, "numpy 2.1 instead of 2.0 and 1 more"),
        ({"numpy": ""}, "numpy none instead of 2.0"),
        ({"h/b.py": "z"}, "a different version of h/b.py"),
        ({"h/a.py": "", "h/b.py": ""}, "a different version of h/a.py and 1 more"),
        ({"h/a.py": "", "python": "3.11.2"}, "python 3.11.2 instead of 3.11.1"),
    ],
)
def test_software_that_differs_is_named(change, line):
    ours = {"python": "3.11.1", "numpy": "2.0", "h/a.py": "x", "h/b.py": "y"}

    assert difference(ours, {**ours, **change}) == line


def test_software_is_the_locks_packages_and_this_source():
    found = software()

    assert found["numpy"]
    assert len([name for name in found if "/" not in name]) > 200
    assert {"helpers/pipeline/cluster/software.py", "notebooks/bert/deploy.ipynb"} < set(found)
    assert difference(found, found) == ""


def test_a_machine_offers_the_targets_of_its_gpu_or_of_a_cpu(monkeypatch):
    monkeypatch.setattr("helpers.machine.gpu.has_driver", lambda: False)
    assert {"cpu", "cpu-full", "smoke"} <= set(capabilities.targets())
    assert not [name for name in capabilities.targets() if name.startswith("NVIDIA")]
    monkeypatch.setattr("helpers.machine.this_gpu", lambda: Gpu("NVIDIA T4", 6, 15), raising=False)
    assert capabilities.targets() == ["NVIDIA-T4", "NVIDIA T4"]


def test_performance_stages_and_lessons_are_alone_on_their_host():
    given = read_file(SMOKE)
    measuring = {s for s in STAGE if process.measures(Job(configure(given, "resnet50", "", s)))}

    assert measuring == {"perf_offline", "perf_online", "compare", "tune", *LESSONS}


SMOKE = ROOT / "params/smoke.yaml"


def groups(stages=(), experiments=(), path=SMOKE):
    plans = read_plans([path], ["resnet50"], experiments, stages, ask=lambda _: "")
    return groups_of(plans, ["resnet50"], experiments)


def planned_there(group, path):
    """What a worker plans of what it is sent."""
    given = parse(yaml.safe_load(group.parameters), group.target, path.name)
    chosen = select(given, [group.model], group.experiments)
    return plan(given, chosen, [job.config.stage for _, job in group.jobs], lambda _: "")


def test_lessons_go_where_the_experiment_is_that_they_are_about_after_it(tmp_path, monkeypatch):
    monkeypatch.setenv(OUTPUTS_VARIABLE, str(tmp_path))
    why = "helpers.pipeline.planning.why_unavailable"
    monkeypatch.setattr(why, lambda _: "not on this machine")

    found = groups()

    (group,) = [each for each in found if any(job.config.stage in LESSONS for _, job in each.jobs)]
    jobs = [job for _, job in group.jobs]
    stages = [job.config.stage for job in jobs]
    assert tuple(stages[-len(LESSONS) :]) == LESSONS
    assert stages[:3] == ["export", "convert", "deploy"]
    assert "report" not in stages
    assert {job.why_unavailable for job in jobs} == {""}
    ((deploy,),) = {job.needs for job in jobs[-3:]}
    assert deploy in [job.result for job in jobs[:-3]]
    monkeypatch.setattr(why, lambda _: "")
    assert planned_there(group, SMOKE) == jobs


SHARED = """
gpu: CPU (shared)
device: cpu
models:
  resnet50:
    defaults: {export_format: onnx, export_precision: fp32, format: onnx, precision: fp32}
    experiments:
      one: {max_batch_size: 1}
      two: {max_batch_size: 1, instances: 2}
"""


def test_a_group_names_the_chosen_experiments_and_not_those_that_share_with_them(tmp_path):
    path = tmp_path / "shared.yaml"
    path.write_text(SHARED)

    (group,) = groups(["export", "perf_offline"], ["two"], path)

    names = [job.name for _, job in group.jobs]
    assert names == ["resnet50 one export", "resnet50 two perf_offline"]
    assert group.experiments == ["two"]
    assert planned_there(group, path) == [job for _, job in group.jobs]


@pytest.mark.parametrize(
    ("chosen", "before"),
    [
        (("export", "convert", "deploy"), []),
        (("perf_online",), ["export", "convert", "deploy"]),
        (("convert", "perf_offline"), ["export", "deploy"]),
        (("precision",), ["export", "convert", "deploy"]),
        (("compare",), ["export", "convert", "deploy"]),
    ],
)
def test_a_group_knows_the_jobs_before_it_that_are_not_run(chosen, before):
    for group in groups(chosen):
        jobs = [*group.before, *(job for _, job in group.jobs)]
        assert {job.config.stage for job in group.before} == {*before}
        needed = {path for job in jobs for path in job.needs}
        assert needed <= {job.result for job in jobs}


def test_a_report_is_made_when_only_lessons_are_left():
    taught, *_ = groups([*STAGES, *LESSONS])
    for count in range(len(taught.jobs) + 1):
        taught.settled = {job.name for _, job in taught.jobs[:count]}
        assert taught.may_be_followed == (count >= len(taught.jobs) - len(LESSONS))


# The lock of a host

HOLD = """
import sys, time
from pathlib import Path
from helpers.pipeline.cluster import process
process.LOCK_FOLDER = Path(sys.argv[1])
with process.host_lock(sys.argv[2] == "alone", lambda why: print(why, flush=True)):
    print("in", flush=True)
    time.sleep(60)
"""


def holding(folder, how):
    command = [sys.executable, "-c", HOLD, str(folder), how]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(command, cwd=ROOT, text=True, **pipes)


def said(process):
    return process.stdout.readline().strip()


@pytest.mark.slow
def test_one_who_measures_is_alone_and_others_go_in_together(tmp_path):
    started = [holding(tmp_path, how) for how in ("together", "together")]
    try:
        assert [said(each) for each in started] == ["in", "in"]
        started.append(holding(tmp_path, "alone"))
        assert said(started[2]) == "other stages are running on its host"
        for each in started[:2]:
            each.kill()
        assert said(started[2]) == "in"
        started.append(holding(tmp_path, "together"))
        assert said(started[3]) == "a measurement is running on its host"
        started[3].send_signal(signal.SIGINT)  # who is wanted no more does not wait
        assert started[3].wait() == -signal.SIGINT
    finally:
        for each in started:
            each.kill()
            each.communicate()


# What is sent


def made(outputs, monkeypatch):
    monkeypatch.setattr(transfer, "PIECE", 10)
    with create_artifact(outputs / "data/dummy-dataset-0123456789ab") as (folder, facts):
        (folder / "inner").mkdir()
        (folder / "inner/a.bin").write_bytes(bytes(range(95)))
        (folder / "empty").write_text("")
        facts["fitted_seconds"] = 3.0
    return "data/dummy-dataset-0123456789ab"


def test_an_artifact_travels_in_pieces_and_is_the_same_or_damage_is_one_line(tmp_path, monkeypatch):
    one, two = tmp_path / "one", tmp_path / "two"
    place = made(one, monkeypatch)
    assert transfer.held(two, [place]) == []

    def ask(do, *arguments):
        return do(one, *arguments)

    assert transfer.pull(ask, place, two).startswith(f"{place}: sent 0.0 MB in ")

    assert transfer.held(two, [place]) == [place]
    found, own = find_artifact(two / place), find_artifact(one / place)
    assert (found.sha256, found.facts) == (own.sha256, own.facts)
    assert not is_remote(found)
    (one / place / "inner/a.bin").write_bytes(b"x" * 95)
    with pytest.raises(ClusterError, match=r"inner/a\.bin was damaged in transfer\. Run again"):
        transfer.pull(ask, place, tmp_path / "three")
    assert list((tmp_path / "three/data").iterdir()) == []


@pytest.mark.parametrize("place", ["../x", "data/../../x", "data", "/etc/passwd", "a/b/c"])
def test_only_artifacts_travel(place, tmp_path):
    with pytest.raises(ClusterError):
        transfer.artifact_at(tmp_path, place)
    outside = {"../../y": FileRecord(size=1, mtime_ns=0, sha256="0")}
    with pytest.raises(ClusterError, match="is not a file of an artifact"):
        transfer.pull(lambda *_: Artifact(tmp_path, outside, {}), "data/x", tmp_path)
    with pytest.raises(ClusterError):
        transfer.pull(lambda *_: Artifact(tmp_path, {}, {}), place, tmp_path)


def job_of(outputs, monkeypatch):
    monkeypatch.setenv(OUTPUTS_VARIABLE, str(outputs))
    return Job(configure(read_file(SMOKE), "bert", "", "deploy"))


def test_the_files_of_a_result_are_of_its_stage_and_in_its_folder(tmp_path, monkeypatch):
    job, base = job_of(tmp_path, monkeypatch), tmp_path / "smoke"

    with pytest.raises(ClusterError, match=r"export\.json, which is not a file of deploy"):
        transfer.receive(job.result, {"export.json": b""})
    assert list(tmp_path.rglob("*")) == []
    manifest = json.dumps({"files": {}}).encode()
    result = json.dumps({"artifact": {"folder": "../../x"}}).encode()
    files = {"../../../deploy.csv": b"1", "manifest.json": manifest, "deploy.json": result}

    transfer.receive(job.result, files)

    found = {str(path.relative_to(base)) for path in tmp_path.rglob("*") if path.is_file()}
    own = "bert/openvino-fp32"
    assert found == {f"{own}/deploy.csv", f"{own}/deploy.json", "artifacts/x/manifest.json"}


def test_the_data_of_a_stages_figures_come_home_with_it(tmp_path, monkeypatch):
    monkeypatch.setenv(OUTPUTS_VARIABLE, str(tmp_path))
    plots = [("bert", "convert", parity_plot.FILE)]
    for model, stage, name in (*plots, *(("resnet50", each, f"{each}.csv") for each in LESSONS)):
        job = Job(configure(read_file(SMOKE), model, "", stage))
        job.result.parent.mkdir(parents=True, exist_ok=True)
        for each in (job.result.with_name(name), job.result):
            each.write_text("")

        found = transfer.results_of(tmp_path, str(job.result.relative_to(tmp_path)))
        assert [*found] == [name, job.result.name]


def test_without_a_scheduler_dask_is_not_imported(finished):
    seen = [path.read_text().split() for path in (finished.root / WATCHED).iterdir()]

    assert any("helpers" in names for names in seen)
    assert not [names for names in seen if {"dask", "distributed"} & set(names)]


def runner_of(folder, pending=()):
    return Runner(folder, dict(pending), {}, False, Lines(), None, 60)


def test_a_broken_installation_of_a_worker_counts_as_in_an_ordinary_run(tmp_path, monkeypatch):
    monkeypatch.setenv(OUTPUTS_VARIABLE, str(tmp_path / "home"))
    monkeypatch.setattr("helpers.pipeline.cluster.submission.publish", lambda *_, **__: None)
    plans = read_plans([SMOKE], ["bert"], [], ["export"], lambda _: "")
    (group,) = groups_of(plans)
    ((_, job),) = group.jobs
    group.worker = WorkerInfo("", "a processor", ("smoke",), False, "", 0.0, 0.0)
    runner = runner_of(tmp_path / "home", {job.result: "waiting"})
    sent = Submission(None, runner, [group])
    found = {"model": "bert", "experiment": job.config.experiment, "stage": "export", "gpu": "CPU"}
    broken = Result(**found, state="skipped", reason=f"{BROKEN} torch cannot be loaded")
    files = {"export.json": broken.model_dump_json().encode()}
    monkeypatch.setattr(sent, "_files", lambda *_: files)

    sent._settle(group, job, "skipped", "")

    assert +sent._outcome == {BROKEN_INSTALLATION: 1}


def test_a_worker_that_is_silent_is_not_asked_what_it_has(tmp_path, monkeypatch):
    now = time.monotonic()
    seen = {"silent": now - worker_timeout(), "one": now, "two": now}
    free = [WorkerInfo(name, "", ("smoke",), False, "", 0.0, at) for name, at in seen.items()]
    asked = []

    def ask_all(_, addresses, *__):
        asked.append(addresses)
        return {"two": ["data/x"]}

    monkeypatch.setattr(submission, "ask_all", ask_all)
    sent = Submission(SimpleNamespace(client=None), runner_of(tmp_path), [])

    assert sent._with_most(free, ["data/x"]).address == "two"
    assert sent._with_most(free[:2], ["data/x"]).address == "one"
    assert sent._with_most(free[:1], ["data/x"]).address == "silent"
    assert asked == [["one", "two"]]


ENDED, KILLED = ({"over": True, "error": error} for error in ("", process.KILLED))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("print(input())", [{"is_shared": True}, KILLED]),
        ('print(\'{"line": "a"}\\n{"over": true, "error": ""}\')', [{"line": "a"}, ENDED]),
        ("import time; time.sleep(60)", [KILLED]),
    ],
)
def test_a_process_that_ends_in_any_way_is_the_last_event(script, expected, monkeypatch):
    monkeypatch.setattr(process, "COMMAND", (sys.executable, "-c", script))
    events = []

    process.run_process({"is_shared": True}, events.append, lambda: "sleep" not in script)

    assert events == expected


def test_a_process_that_has_ended_before_its_task_is_written_is_one_event(monkeypatch):
    class Ended(subprocess.Popen):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            self.wait()

    monkeypatch.setattr(process, "COMMAND", ("true",))
    monkeypatch.setattr(process.subprocess, "Popen", Ended)
    events = []

    process.run_process({"is_shared": False}, events.append, lambda: True)

    assert events == [KILLED]


def test_what_is_done_elsewhere_is_taken_over_unless_it_is_done_here(tmp_path, monkeypatch):
    job = job_of(tmp_path / "home", monkeypatch)
    head = {"model": "bert", "experiment": "", "stage": "deploy", "gpu": "CPU"}
    done = Result.model_validate({**head, "state": "done"}).model_dump_json()
    job.result.parent.mkdir(parents=True)
    job.result.write_text(done)
    job.result.with_suffix(".ipynb").write_text("theirs")
    files = transfer.done_files(tmp_path / "home", [job])
    there = tmp_path / "there" / job.result.relative_to(tmp_path / "home")

    transfer.take(tmp_path / "there", files)

    assert [Path(name).suffix for name in files] == [".ipynb", ".json"]
    assert (there.read_text(), there.with_suffix(".ipynb").read_text()) == (done, "theirs")
    there.with_suffix(".ipynb").write_text("own")
    transfer.take(tmp_path / "there", files)
    assert there.with_suffix(".ipynb").read_text() == "own"


def test_a_comparison_is_sent_alone_after_its_experiments_before_the_report(tmp_path, monkeypatch):
    monkeypatch.setenv(OUTPUTS_VARIABLE, str(tmp_path))
    path = ROOT / "params/cpu.yaml"
    plans = read_plans([path], ["resnet50", "bert"], [], [], lambda _: "")
    groups = groups_of(plans)
    pending = {job.result: "waiting" for _, _, jobs in plans for job in jobs}
    worker = WorkerInfo("tcp://x", "", ("cpu",), True, "", 0.0, time.monotonic())
    sent = Submission([worker], runner_of(tmp_path, pending), groups)
    order = []

    def send(group, *_):
        order.append(group)
        group.state = "running"

    monkeypatch.setattr(sent, "_send", send)
    *experiments, compared, report = (group for group in groups if group.model == "resnet50")
    assert [job.name for _, job in compared.jobs] == ["resnet50 compare"]
    assert report.is_report
    assert len(experiments) == 2  # ONNX and TorchScript

    sent._assign()
    assert [group for group in order if group.model == "resnet50"] == experiments
    experiments[0].state = "over"
    sent._assign()
    assert not sent._is_next(compared)
    experiments[1].settled = {job.name for _, job in experiments[1].jobs}
    sent._assign()
    assert order[-1] is compared
    assert not sent._is_next(report)
    compared.state = "over"
    assert sent._is_next(report)

    assert planned_there(compared, path) == [job for _, job in compared.jobs]
    before = {(job.config.experiment, job.config.stage) for job in compared.before}
    assert {(name, "deploy") for name in read_file(path).experiments("resnet50")} < before
