"""Which stages a run consists of, and what makes one stale."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from helpers.config import LESSONS, STAGES, configure, parse, read_file, resolve
from helpers.pipeline.planning import (
    DATA_SECONDS,
    DEFAULT_STAGE_SECONDS,
    Job,
    due,
    estimates,
    framework,
    parameters,
    plan,
    why_outdated,
)
from helpers.pipeline.running import missing_prerequisite, write_status
from helpers.results import fingerprint
from helpers.store import OUTPUTS_VARIABLE, ROOT
from tests.conftest import Project

SHARED = """
gpu: CPU (planning)
device: cpu
models:
  resnet50:
    defaults: {export_format: onnx, export_precision: fp32, format: onnx, precision: fp32,
               max_batch_size: 1}
    experiments:
      accelerated: {accelerator: trt}
      plain: {}
"""


def test_a_shared_export_runs_if_any_of_its_experiments_can_run_here() -> None:
    given = parse(yaml.safe_load(SHARED), "planning", "planning.yaml")
    chosen = [("resnet50", "accelerated"), ("resnet50", "plain")]

    jobs = {job.name: job.why_unavailable for job in plan(given, chosen, ["export"])}
    converted = {job.name: job.why_unavailable for job in plan(given, chosen, ["convert"])}

    assert jobs == {"resnet50 accelerated export": ""}
    assert converted["resnet50 plain convert"] == ""
    assert "does not support accelerator trt." in converted["resnet50 accelerated convert"]


@pytest.mark.parametrize(
    ("model", "experiment", "stage", "expected"),
    [
        ("resnet50", "openvino-fp32", "export", ("torch", True)),
        ("resnet50", "openvino-fp32", "convert", ("torch", False)),
        ("resnet50", "ts-trace-fp32", "perf_online", ("torch", True)),
        ("dlrm", "onnx-fp32", "convert", ("tensorflow", True)),
        ("dlrm", "onnx-fp32", "deploy", ("tensorflow", False)),
        ("dlrm", "savedmodel-fp32", "deploy", ("tensorflow", True)),
        ("bert", "", "report", ("torch", False)),
    ],
)
def test_a_stage_needs_its_framework_where_it_makes_reads_or_runs_a_file_of_it(
    model: str, experiment: str, stage: str, expected: tuple[str, bool]
) -> None:
    given = read_file(ROOT / "params/cpu.yaml")
    assert framework(configure(given, model, experiment, stage)) == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cpu", "smoke", "NVIDIA-T4"])
def test_a_notebook_gets_from_its_parameters_what_the_file_says(name: str) -> None:
    """Also an empty list where the default is none."""
    given = read_file(ROOT / f"params/{name}.yaml")
    every = [(model, each) for model in given.file.models for each in given.experiments(model)]

    for job in plan(given, every, [*STAGES, *LESSONS]):
        found = resolve(job.config.model, job.config.stage, **parameters(job))
        assert found.cache_fields(found.stage) == job.config.cache_fields(found.stage), job.name


@pytest.mark.slow
@pytest.mark.parametrize("name", ["adapter", "supervisor"])
def test_a_file_that_is_copied_or_started_and_not_imported_makes_stages_stale(
    project: Project, name: str
) -> None:
    with (project.root / f"helpers/triton/{name}.py").open("a") as file:
        file.write("\n# changed\n")

    answer = project.run("run", "params/dummy.yaml", "--dry-run", "--experiment", "onnx-fp32")

    reason = f"would run (helpers/triton/{name}.py changed, about "
    assert f"dummy onnx-fp32 deploy: {reason}" in answer.output


EDITED = """
import sys
from pathlib import Path
from helpers.config import resolve
resolve("resnet50", "export")
path = Path("helpers/triton/owner.py")
path.write_text(path.read_text() + "# changed")
import helpers.triton.owner
from helpers.results.fingerprints import files_read
print(files_read()[str(path)])
"""


def test_a_module_edited_while_a_stage_runs_keeps_the_hash_of_before(fresh: Project) -> None:
    path = fresh.root / "helpers/triton/owner.py"
    before = subprocess.run(["sha256sum", path], capture_output=True, text=True, check=True)

    done = subprocess.run(
        [sys.executable, "-c", EDITED], cwd=fresh.root, capture_output=True, text=True
    )

    assert (done.stdout.split(), done.stderr) == (before.stdout.split()[:1], "")
    assert path.read_text().endswith("# changed")


def test_what_follows_a_stage_that_must_run_must_run_too_and_data_are_made_once(
    fresh: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OUTPUTS_VARIABLE, str(fresh.root / "outputs"))
    given = read_file(ROOT / "params/cpu.yaml")
    chosen = [("resnet50", each) for each in given.experiments("resnet50")]
    jobs = plan(given, chosen, list(STAGES))

    reasons, seconds = due(jobs, force=False), estimates(jobs)

    assert set(reasons) == {job.result for job in jobs}
    first, *others = (job for job in jobs if job.config.stage == "export")
    assert reasons[first.result] == "no previous result"
    assert {reasons[job.result] for job in jobs if job.needs} == {"an earlier stage runs again"}
    assert seconds[first.result] == DATA_SECONDS + DEFAULT_STAGE_SECONDS["export"]
    assert {seconds[job.result] for job in others} == {DEFAULT_STAGE_SECONDS["export"]}


def test_a_report_is_due_for_the_target_whose_stages_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OUTPUTS_VARIABLE, str(tmp_path))
    of = {name: read_file(ROOT / f"params/{name}.yaml") for name in ("smoke", "cpu")}
    export = Job(configure(of["smoke"], "bert", "", "export"))
    reports = [Job(configure(given, "bert", "", "report")) for given in of.values()]
    monkeypatch.setattr(
        "helpers.pipeline.planning.why_outdated", lambda job, *_: "new" if job == export else ""
    )

    found = due([export, *reports], force=False)

    assert [*found] == [export.result, reports[0].result]


def names(chosen: list[tuple[str, str]], stages: list[str]) -> list[str]:
    return [job.name for job in plan(read_file(ROOT / "params/smoke.yaml"), chosen, stages)]


def test_lessons_come_after_a_models_report_with_the_experiment_that_they_are_about() -> None:
    first, second = ("resnet50", "onnx-fp32"), ("resnet50", "openvino-bf16")
    taught = [f"resnet50 {lesson}" for lesson in LESSONS]

    assert names([first, second, ("bert", "openvino-fp32")], [])[-10:-6] == [
        "resnet50 report",
        *taught,
    ]
    assert names([first], [])[-3:] == taught
    assert names([second], [])[-1:] == ["resnet50 report"]
    assert names([second], ["instances"]) == ["resnet50 instances"]
    assert names([("bert", "openvino-fp32")], ["instances"]) == []
    assert names([first], ["export", "report"])[-1:] == ["resnet50 report"]


def test_a_file_that_names_no_lesson_has_none_unless_it_is_asked_for() -> None:
    given = read_file(ROOT / "params/cpu.yaml")
    chosen = [("resnet50", "onnx-fp32")]

    assert not {job.config.stage for job in plan(given, chosen, [])} & set(LESSONS)
    assert [job.name for job in plan(given, chosen, ["precision"])] == ["resnet50 precision"]


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_lesson_needs_the_deployment_of_the_experiment_that_it_is_about(
    lesson: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OUTPUTS_VARIABLE, str(tmp_path))
    given = read_file(ROOT / "params/smoke.yaml")
    (job,) = plan(given, [("resnet50", "onnx-fp32")], [lesson])

    assert job.result == tmp_path / f"smoke/resnet50/lessons/{lesson}.json"
    assert missing_prerequisite(job) == "deploy has not run"
    deploy, *_ = plan(given, [("resnet50", "onnx-fp32")], ["deploy"])
    write_status(deploy, "failed", "a failed check")
    assert missing_prerequisite(job) == "deploy failed"
    write_status(deploy, "done", "")
    assert missing_prerequisite(job) == ""
    assert why_outdated(job) == "no previous result"
    assert set(due([deploy, job], force=False)) == {deploy.result, job.result}


def test_configurations_are_not_compared_on_a_server_that_is_there_already(tmp_path: Path) -> None:
    content = yaml.safe_load((ROOT / "params/smoke.yaml").read_text())
    content["server"] = {"kind": "remote", "url": "127.0.0.1:1"}
    path = tmp_path / "remote.yaml"
    path.write_text(yaml.safe_dump(content))
    given = read_file(path)

    stages = ["perf_online", "tune", *LESSONS]
    jobs = plan(given, [("resnet50", "onnx-fp32")], stages, lambda config: "")

    reasons = {job.config.stage: job.why_unavailable for job in jobs}
    words = "The stage starts one server per configuration, which is impossible with a remote "
    assert reasons.pop("perf_online") == ""
    assert len(reasons) == 1 + len(LESSONS)
    assert all(reason.startswith(words) for reason in reasons.values())


def test_another_openvino_makes_the_lesson_that_converts_to_it_stale() -> None:
    given = read_file(ROOT / "params/smoke.yaml")
    read = {
        lesson: set(fingerprint(configure(given, "resnet50", "onnx-fp32", lesson)).versions)
        for lesson in LESSONS
    }

    assert [lesson for lesson in LESSONS if "openvino" in read[lesson]] == ["precision"]
    assert all("onnxruntime" in names for names in read.values())
