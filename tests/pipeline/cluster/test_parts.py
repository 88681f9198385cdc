"""The parts of a cluster by themselves: who may join, what is sent, and who goes in."""

import json
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml

from helpers.config import LESSONS, STAGE, STAGES, configure, parse, read_file, select
from helpers.display import Lines
from helpers.errors import ClusterError, ParameterError
from helpers.machine import BROKEN
from helpers.measure import parity_plot
from helpers.pipeline import BROKEN_INSTALLATION, Job, Runner, plan, read_plans, stage_states
from helpers.pipeline.cluster import capabilities, process, submission, transfer
from helpers.pipeline.cluster.access import (
    WORKER_TIMEOUT_VARIABLE,
    Access,
    worker_timeout,
    write_key,
)
from helpers.pipeline.cluster.groups import groups_of
from helpers.pipeline.cluster.software import difference, software
from helpers.pipeline.cluster.submission import Submission
from helpers.pipeline.cluster.workers import WorkerInfo
from helpers.results import Result
from helpers.store import ROOT, Artifact, create_artifact, find_artifact, is_remote
from helpers.store.artifacts import FileRecord
from tests.conftest import WATCHED, Project

pytest.importorskip("distributed")


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:8786", "tcp://localhost:1", "tcp://[::1]:1"])
def test_a_plain_connection_is_for_this_machine_only(address: str) -> None:
    assert not Access(address).security.require_encryption


def test_a_plain_connection_to_another_machine_needs_a_flag() -> None:
    with pytest.raises(ParameterError) as raised:
        _ = Access("tcp://10.0.0.1:8786").security
    assert str(raised.value) == (
        "tcp://10.0.0.1:8786 is not encrypted: anyone who reaches it can run code on the workers. "
        "Use tls://, or add --insecure."
    )
    assert not Access("tcp://10.0.0.1:8786", insecure=True).security.require_encryption


@pytest.mark.parametrize(
    ("address", "line"),
    [
        ("tls://10.0.0.1:8786", "needs a key. Add --key with the scheduler's file"),
        ("10.0.0.1:8786", "Use tls://HOST:PORT, as the scheduler printed it"),
        ("http://10.0.0.1:8786", "Use tls://HOST:PORT"),
        ("tcp://10.0.0.1:8786;", "Use tls://HOST:PORT"),
    ],
)
def test_an_address_that_cannot_be_joined_is_one_line(address: str, line: str) -> None:
    with pytest.raises(ParameterError, match=line):
        _ = Access(address).host, Access(address).security


@pytest.mark.parametrize("given", ["20s", "0", "-1", "nan", "inf"])
def test_a_time_limit_of_a_silent_worker_that_is_none_is_one_line(
    given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(WORKER_TIMEOUT_VARIABLE, given)

    with pytest.raises(ParameterError) as raised:
        worker_timeout()

    line = f"Invalid {WORKER_TIMEOUT_VARIABLE} '{given}'. Use a number of seconds."
    assert str(raised.value) == line


def test_the_key_is_written_once_for_its_owner_and_encrypts_both_ways(tmp_path: Path) -> None:
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
def test_software_that_differs_is_named(change: dict[str, str], line: str) -> None:
    ours = {"python": "3.11.1", "numpy": "2.0", "h/a.py": "x", "h/b.py": "y"}

    assert difference(ours, {**ours, **change}) == line


def test_software_is_the_locks_packages_and_this_source() -> None:
    found = software()

    assert found["numpy"]
    assert len([name for name in found if "/" not in name]) > 200
    assert {"helpers/pipeline/cluster/software.py", "notebooks/bert/deploy.ipynb"} < set(found)
    assert difference(found, found) == ""


@pytest.mark.usefixtures("project_without_gpu")
def test_a_machine_without_a_gpu_offers_the_targets_of_a_cpu() -> None:
    assert {"cpu", "cpu-full", "smoke"} <= set(capabilities.targets())
    assert not [name for name in capabilities.targets() if name.startswith("NVIDIA")]


@pytest.fixture
def project_without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("helpers.machine.gpu.has_driver", lambda: False)


def test_a_machine_with_a_gpu_offers_the_targets_of_that_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from helpers.config import Gpu

    monkeypatch.setattr("helpers.machine.this_gpu", lambda: Gpu("NVIDIA T4", 6, 15), raising=False)

    assert capabilities.targets() == ["NVIDIA-T4", "NVIDIA T4"]


def test_performance_stages_and_lessons_are_alone_on_their_host() -> None:
    given = read_file(ROOT / "params/smoke.yaml")

    measuring = {s for s in STAGE if process.measures(Job(configure(given, "resnet50", "", s)))}

    assert measuring == {"perf_offline", "perf_online", "tune", *LESSONS}


def test_lessons_go_where_the_experiment_is_that_they_are_about_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_NOTEBOOKS_OUTPUTS", str(tmp_path))
    monkeypatch.setattr(
        "helpers.pipeline.planning.why_unavailable", lambda _: "not on this machine"
    )
    plans = read_plans([ROOT / "params/smoke.yaml"], ["resnet50"], [], [], ask=lambda _: "")

    found = groups_of(plans)

    (group,) = [each for each in found if any(job.config.stage in LESSONS for _, job in each.jobs)]
    jobs = [job for _, job in group.jobs]
    *others, one, two, three = [job.config.stage for job in jobs]
    assert (one, two, three) == LESSONS
    assert others[:3] == ["export", "convert", "deploy"]
    assert not set(others) & {"report", *LESSONS}
    assert {job.why_unavailable for job in jobs} == {""}
    (deploy,) = {job.needs for job in jobs[-3:]}
    assert deploy in [job.result for job in jobs[:-3]]
    monkeypatch.setattr("helpers.pipeline.planning.why_unavailable", lambda _: "")
    given = parse(yaml.safe_load(group.parameters), group.target, "smoke.yaml")
    stages = [job.config.stage for job in jobs]
    chosen = select(given, [group.model], group.experiments)
    assert plan(given, chosen, stages, lambda _: "") == jobs


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


def test_a_group_names_the_experiments_that_were_chosen_and_not_those_that_share_with_them(
    tmp_path: Path,
) -> None:
    path = tmp_path / "shared.yaml"
    path.write_text(SHARED)

    given = read_file(path)
    plans = read_plans([path], ["resnet50"], ["two"], ["export", "perf_offline"], lambda _: "")
    (group,) = groups_of(plans, ["resnet50"], ["two"])

    assert [job.name for _, job in group.jobs] == [
        "resnet50 one export",
        "resnet50 two perf_offline",
    ]
    assert group.experiments == ["two"]
    stages = [job.config.stage for _, job in group.jobs]
    there = plan(given, select(given, [group.model], group.experiments), stages, lambda _: "")
    assert there == [job for _, job in group.jobs]


@pytest.mark.parametrize(
    ("chosen", "before"),
    [
        (("export", "convert", "deploy"), []),
        (("perf_online",), ["export", "convert", "deploy"]),
        (("convert", "perf_offline"), ["export", "deploy"]),
        (("precision",), ["export", "convert", "deploy"]),
    ],
)
def test_a_group_knows_the_jobs_before_it_that_are_not_run(
    chosen: tuple[str, ...], before: list[str]
) -> None:
    plans = read_plans([ROOT / "params/smoke.yaml"], ["resnet50"], [], chosen, ask=lambda _: "")

    for group in groups_of(plans):
        jobs = [*group.before, *(job for _, job in group.jobs)]
        assert {job.config.stage for job in group.before} == {*before}
        assert {job.needs for job in jobs} - {job.result for job in jobs} <= {None}


def test_a_report_is_made_when_only_lessons_are_left() -> None:
    plans = read_plans(
        [ROOT / "params/smoke.yaml"], ["resnet50"], [], [*STAGES, *LESSONS], ask=lambda _: ""
    )
    taught, *_ = groups_of(plans)
    stages = [job.config.stage for _, job in taught.jobs]

    can = []
    for count in range(len(stages) + 1):
        taught.settled = {job.name for _, job in taught.jobs[:count]}
        can.append(taught.may_be_reported)

    assert can == [False] * (len(stages) - len(LESSONS)) + [True] * (len(LESSONS) + 1)


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


def holding(folder: Path, how: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", HOLD, str(folder), how]
    return subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )


def said(process: "subprocess.Popen[str]") -> str:
    assert process.stdout
    return process.stdout.readline().strip()


@pytest.mark.slow
def test_one_who_measures_is_alone_and_others_go_in_together(tmp_path: Path) -> None:
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
        assert started[3].wait(10) == -signal.SIGINT
    finally:
        for each in started:
            each.kill()
            each.communicate()


def test_the_lock_is_the_same_whatever_the_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    assert Path("/tmp") == process.LOCK_FOLDER


# What is sent


def made(outputs: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(transfer, "PIECE", 10)
    with create_artifact(outputs / "data/dummy-dataset-0123456789ab") as (folder, facts):
        (folder / "inner").mkdir()
        (folder / "inner/a.bin").write_bytes(bytes(range(95)))
        (folder / "empty").write_text("")
        facts["fitted_seconds"] = 3.0
    return "data/dummy-dataset-0123456789ab"


def asked(outputs: Path, do, *arguments):  # type: ignore[no-untyped-def]
    return do(outputs, *arguments)


def test_an_artifact_travels_in_pieces_and_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    place, ask = made(one, monkeypatch), partial(asked, one)
    assert transfer.held(two, [place]) == []

    line = transfer.pull(ask, place, two)

    assert line.startswith(f"{place}: sent 0.0 MB in ")
    assert transfer.held(two, [place]) == [place]
    found, own = find_artifact(two / place), find_artifact(one / place)
    assert found
    assert own
    assert (found.sha256, found.facts) == (own.sha256, own.facts)
    assert not is_remote(found)


def test_what_comes_damaged_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    place = made(one, monkeypatch)
    (one / place / "inner/a.bin").write_bytes(b"x" * 95)

    with pytest.raises(ClusterError, match=r"inner/a\.bin was damaged in transfer\. Run again"):
        transfer.pull(partial(asked, one), place, two)

    assert list((two / "data").iterdir()) == []


@pytest.mark.parametrize("place", ["../x", "data/../../x", "data", "/etc/passwd", "a/b/c"])
def test_only_artifacts_travel(place: str, tmp_path: Path) -> None:
    with pytest.raises(ClusterError):
        transfer.artifact_at(tmp_path, place)
    outside = {"../../y": FileRecord(size=1, mtime_ns=0, sha256="0")}
    with pytest.raises(ClusterError, match="is not a file of an artifact"):
        transfer.pull(lambda *_: Artifact(tmp_path, outside, {}), "data/x", tmp_path)
    with pytest.raises(ClusterError):
        transfer.pull(lambda *_: Artifact(tmp_path, {}, {}), place, tmp_path)


def job_of(outputs: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.setenv("TRITON_NOTEBOOKS_OUTPUTS", str(outputs))
    return Job(configure(read_file(ROOT / "params/smoke.yaml"), "bert", "", "deploy"))


def test_the_files_of_a_result_are_of_its_stage_and_in_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_the_data_of_a_stages_figures_come_home_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_NOTEBOOKS_OUTPUTS", str(tmp_path))
    given = read_file(ROOT / "params/smoke.yaml")
    for model, stage, name in (
        ("bert", "convert", parity_plot.FILE),
        *(("resnet50", lesson, f"{lesson}.csv") for lesson in LESSONS),
    ):
        job = Job(configure(given, model, "", stage))
        job.result.parent.mkdir(parents=True, exist_ok=True)
        for each in (job.result.with_name(name), job.result):
            each.write_text("")

        found = transfer.results_of(tmp_path, str(job.result.relative_to(tmp_path)))
        assert [*found] == [name, job.result.name]


def test_the_index_says_what_a_stage_waits_for_and_a_report_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, folder = job_of(tmp_path, monkeypatch), tmp_path / "smoke"
    (folder / "bert").mkdir(parents=True)
    (folder / "parameters.yaml").write_text((ROOT / "params/smoke.yaml").read_text())
    head = {"model": "bert", "experiment": "", "stage": "report", "gpu": "CPU"}
    report = Result(**head, state="done", reason="so far: 1 of 2")
    (folder / "bert/report.json").write_text(report.model_dump_json())
    pending = {job.result: "running: on a T4", folder / "bert/report.json": "waiting"}

    found = {
        (each.experiment, each.stage): (each.state, each.reason)
        for each in stage_states(tmp_path, "smoke", pending)
        if each.model == "bert"
    }

    assert found[job.config.experiment, "deploy"] == ("running", "on a T4")
    assert found["", "report"] == ("waiting", "so far: 1 of 2")


def test_without_a_scheduler_dask_is_not_imported(finished: Project) -> None:
    seen = [path.read_text().split() for path in (finished.root / WATCHED).iterdir()]

    assert any("helpers" in names for names in seen)
    assert not [names for names in seen if {"dask", "distributed"} & set(names)]


def test_a_broken_installation_of_a_worker_counts_as_in_an_ordinary_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_NOTEBOOKS_OUTPUTS", str(tmp_path / "home"))
    monkeypatch.setattr("helpers.pipeline.cluster.submission.publish", lambda *_, **__: None)
    plans = read_plans([ROOT / "params/smoke.yaml"], ["bert"], [], ["export"], lambda _: "")
    (group,) = groups_of(plans)
    ((_, job),) = group.jobs
    group.worker = WorkerInfo("", "a processor", ("smoke",), False, "", 0.0, 0.0)
    runner = Runner(tmp_path / "home", {job.result: "waiting"}, {}, False, Lines(), None, 60)
    sent = Submission(cast(Any, None), runner, [group])
    found = {"model": "bert", "experiment": job.config.experiment, "stage": "export", "gpu": "CPU"}
    broken = Result(**found, state="skipped", reason=f"{BROKEN} torch cannot be loaded")
    files = {"export.json": broken.model_dump_json().encode()}
    monkeypatch.setattr(sent, "_files", lambda *_: files)

    sent._settle(group, job, "skipped", "")

    assert +sent._outcome == {BROKEN_INSTALLATION: 1}


def test_a_worker_that_is_silent_is_not_asked_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.monotonic()
    free = [
        WorkerInfo(name, "", ("smoke",), False, "", 0.0, now - quiet)
        for name, quiet in (("silent", worker_timeout()), ("one", 0.0), ("two", 0.0))
    ]
    asked = []

    def ask_all(_: object, addresses: list[str], *__: object) -> dict[str, list[str]]:
        asked.append(addresses)
        return {"two": ["data/x"]}

    monkeypatch.setattr(submission, "ask_all", ask_all)
    runner = Runner(tmp_path, {}, {}, False, Lines(), None, 60)
    sent = Submission(cast(Any, SimpleNamespace(client=None)), runner, [])

    assert sent._with_most(free, ["data/x"]).address == "two"
    assert sent._with_most(free[:2], ["data/x"]).address == "one"
    assert sent._with_most(free[:1], ["data/x"]).address == "silent"
    assert asked == [["one", "two"]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("", [{"over": True, "error": process.KILLED}]),  # before it reads its task
        (
            "import json, sys; print(sys.stdin.readline(), end='')",
            [{"is_shared": True}, {"over": True, "error": process.KILLED}],
        ),
        (
            'print(\'{"line": "a"}\'); print(\'{"over": true, "error": ""}\')',
            [{"line": "a"}, {"over": True, "error": ""}],
        ),
        ("import time; time.sleep(60)", [{"over": True, "error": process.KILLED}]),
    ],
)
def test_a_process_that_ends_in_any_way_is_the_last_event(
    script: str, expected: list[dict[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "COMMAND", (sys.executable, "-c", script))
    events: list[object] = []

    process.run_process({"is_shared": True}, events.append, lambda: "sleep" not in script)

    assert events == expected


def test_a_process_that_has_ended_before_its_task_is_written_is_one_event(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = subprocess.Popen

    def ended(*arguments: Any, **options: Any) -> "subprocess.Popen[str]":
        started = real(*arguments, **options)
        started.wait()
        return started

    monkeypatch.setattr(process, "COMMAND", ("true",))
    monkeypatch.setattr(process.subprocess, "Popen", ended)
    events: list[object] = []

    process.run_process({"is_shared": False}, events.append, lambda: True)

    assert events == [{"over": True, "error": process.KILLED}]


def test_what_is_done_elsewhere_is_taken_over_unless_it_is_done_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
