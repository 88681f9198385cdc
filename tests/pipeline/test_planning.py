"""Which stages a run consists of, and what makes one stale."""

import hashlib
import subprocess
import sys

import pytest
import yaml

from helpers.config import LESSONS, STAGES, artifact_folder, configure, parse, read_file, resolve
from helpers.pipeline import planning
from helpers.pipeline.planning import Job, due, parameters, plan
from helpers.pipeline.running import missing_prerequisite, write_status
from helpers.results import fingerprint
from helpers.store import ROOT, create_artifact, find_artifact, mark_failed

BERT = ("bert", "openvino-fp32")
SMOKE = ROOT / "params/smoke.yaml"
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


def test_a_shared_export_runs_if_any_of_its_experiments_can_run_here():
    given = parse(yaml.safe_load(SHARED), "planning", "planning.yaml")
    chosen = [("resnet50", "accelerated"), ("resnet50", "plain")]
    jobs = plan(given, chosen, ["export", "convert"])
    found = {job.name: job.why_unavailable for job in jobs}

    assert "does not support accelerator trt." in found.pop("resnet50 accelerated convert")
    assert found == {"resnet50 accelerated export": "", "resnet50 plain convert": ""}


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
def test_a_stage_needs_its_framework_for_a_file_of_it(model, experiment, stage, expected):
    given = read_file(ROOT / "params/cpu.yaml")
    assert planning.framework(configure(given, model, experiment, stage)) == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cpu", "smoke", "NVIDIA-T4"])
def test_a_notebook_gets_from_its_parameters_what_the_file_says(name):
    """Also an empty list where the default is none, and of a comparison with papermill -f."""
    path = ROOT / f"params/{name}.yaml"
    given, content = read_file(path), yaml.safe_load(path.read_text())
    every = [(model, each) for model in given.file.models for each in given.experiments(model)]

    for job in plan(given, every, [*STAGES, *LESSONS]):
        model, stage, sent = job.config.model, job.config.stage, parameters(job)
        found = resolve(model, stage, **sent)
        assert found.cache_fields(stage) == job.config.cache_fields(stage), job.name
        if stage == "convert":  # a notebook shows only what its stage reads
            assert "batch_sizes" not in sent["defaults"]
            assert [*sent["models"][model]["experiments"]] == [job.config.experiment]
        if stage == "compare":
            by_file = resolve(model, stage, **content)
            assert [one.experiment for one in by_file.candidates] == [*given.experiments(model)]
            assert found.candidates == by_file.candidates
            assert found.cache_fields(stage) == by_file.cache_fields(stage)


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


def test_a_module_edited_while_a_stage_runs_keeps_the_hash_of_before(fresh):
    path = fresh.root / "helpers/triton/owner.py"
    before = hashlib.sha256(path.read_bytes()).hexdigest()

    code = (sys.executable, "-c", EDITED)
    done = subprocess.run(code, cwd=fresh.root, capture_output=True, text=True)

    assert (done.stdout, done.stderr) == (f"{before}\n", "")
    assert path.read_text().endswith("# changed")


def test_what_follows_a_stage_that_must_run_must_run_too_and_data_are_made_once():
    given = read_file(ROOT / "params/cpu.yaml")
    chosen = [("resnet50", each) for each in given.experiments("resnet50")]
    jobs = plan(given, chosen, list(STAGES))

    reasons, seconds = due(jobs, force=False), planning.estimates(jobs)

    assert set(reasons) == {job.result for job in jobs}
    first, *others = (job for job in jobs if job.config.stage == "export")
    assert reasons[first.result] == "no previous result"
    assert {reasons[job.result] for job in jobs if job.needs} == {"an earlier stage runs again"}
    usual = planning.DEFAULT_STAGE_SECONDS["export"]
    assert seconds[first.result] == planning.DATA_SECONDS + usual
    assert {seconds[job.result] for job in others} == {usual}


def test_a_report_is_due_for_the_target_whose_stages_run_again(monkeypatch):
    of = {name: read_file(ROOT / f"params/{name}.yaml") for name in ("smoke", "cpu")}
    export = Job(configure(of["smoke"], "bert", "", "export"))
    reports = [Job(configure(given, "bert", "", "report")) for given in of.values()]
    monkeypatch.setattr(planning, "why_outdated", lambda job, *_: "new" if job == export else "")

    found = due([export, *reports], force=False)

    assert [*found] == [export.result, reports[0].result]


def names(chosen, stages, file="smoke"):
    return [job.name for job in plan(read_file(ROOT / f"params/{file}.yaml"), chosen, stages)]


def test_lessons_come_after_a_models_report_with_the_experiment_that_they_are_about():
    first, second, other = ("resnet50", "onnx-fp32"), ("resnet50", "openvino-bf16"), BERT
    taught = [f"resnet50 {lesson}" for lesson in LESSONS]

    assert names([first, second, other], [])[-12:-7] == ["resnet50 report", *taught]
    assert names([first], [])[-len(taught) :] == taught
    assert names([second], [])[-1:] == ["resnet50 report"]
    assert names([second], ["instances"]) == ["resnet50 instances"]
    assert names([other], ["instances"]) == []
    assert names([first], ["export", "report"])[-1:] == ["resnet50 report"]
    # a file that names no lesson has none unless it is asked for
    assert not {*names([first], [], "cpu")} & {*taught}
    assert names([first], ["precision"], "cpu") == ["resnet50 precision"]


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_lesson_needs_the_deployment_of_its_experiment(lesson, tmp_path):
    deploy, job = plan(read_file(SMOKE), [("resnet50", "onnx-fp32")], ["deploy", lesson])

    assert job.result == tmp_path / f"outputs/smoke/resnet50/lessons/{lesson}.json"
    for state, why in (("", "deploy has not run"), ("failed", "deploy failed"), ("done", "")):
        if state:
            write_status(deploy, state, "")
        assert missing_prerequisite(job) == why
    assert planning.why_outdated(job) == "no previous result"
    assert set(due([deploy, job], force=False)) == {deploy.result, job.result}


def test_configurations_are_not_compared_on_a_server_that_is_there_already():
    content = yaml.safe_load(SMOKE.read_text())
    content["server"] = {"kind": "remote", "url": "127.0.0.1:1"}
    given = parse(content, "remote", "remote.yaml")

    stages = ["perf_online", "tune", *LESSONS]
    jobs = plan(given, [("resnet50", "onnx-fp32")], stages, lambda config: "")

    reasons = {job.config.stage: job.why_unavailable for job in jobs}
    words = "The stage starts one server per configuration, which is impossible with a remote "
    assert reasons.pop("perf_online") == ""
    assert len(reasons) == 1 + len(LESSONS)
    assert all(reason.startswith(words) for reason in reasons.values())


def planned(content, stages=(), lacks=()):
    """Plan the experiments of resnet50, of which this machine `lacks` some."""
    given = parse(content, "planning", "planning.yaml")
    chosen = [("resnet50", each) for each in given.experiments("resnet50")]
    why = {name: f"no {name} here" for name in lacks}
    return plan(given, chosen, stages, lambda config: why.get(config.experiment, ""))


def three(**fields):
    """Return a parameter file with three experiments; `fields` are those of the last."""
    content = yaml.safe_load(SHARED)
    experiments = {"first": {}, "second": {"threads": 2}, "third": {"threads": 3} | fields}
    content["models"]["resnet50"]["experiments"] = experiments
    return content


def comparison(jobs):
    (job,) = (job for job in jobs if job.config.stage == "compare")
    return job


def test_a_models_experiments_are_compared_once_after_all_of_them_and_before_the_report():
    jobs = planned(three())

    assert [job.name for job in jobs][-2:] == ["resnet50 compare", "resnet50 report"]
    assert [job.name for job in planned(three(), ["compare"])] == ["resnet50 compare"]
    given = parse(three(), "planning", "planning.yaml")
    alone = plan(given, [("resnet50", "second")], ["compare"], lambda _: "")
    assert alone == [comparison(jobs)]
    deployments = tuple(job.result for job in jobs if job.config.stage == "deploy")
    assert comparison(jobs).needs == deployments
    assert len(deployments) == 3


def test_a_comparison_runs_if_one_experiment_can_that_is_to_be_compared():
    every = ["first", "second", "third"]

    assert comparison(planned(three(), lacks=every[:2])).why_unavailable == ""
    assert comparison(planned(three(), lacks=every)).why_unavailable == "no first here"
    left_out = planned(three(compare=False), lacks=every[:2])
    assert comparison(left_out).why_unavailable == "no first here"
    assert len(comparison(left_out).needs) == 2
    none = planned(three() | {"defaults": {"compare": False}})
    assert comparison(none).why_unavailable == "Every experiment has compare: false."


def test_a_comparison_waits_for_one_deployment_and_runs_again_after_any(monkeypatch):
    jobs = planned(three())
    deployments, last = [j for j in jobs if j.config.stage == "deploy"], comparison(jobs)

    def due_after(*changed):
        monkeypatch.setattr(planning, "why_outdated", lambda job, *_: "new" * (job in changed))
        return [path.stem for path in due(jobs, force=False)]

    assert missing_prerequisite(last) == "deploy has not run"
    write_status(deployments[0], "failed", "a check")
    write_status(deployments[1], "skipped", "no such package")
    assert missing_prerequisite(last) == "deploy failed, deploy was skipped, deploy has not run"
    write_status(deployments[2], "done", "")
    assert missing_prerequisite(last) == ""
    for again in deployments:
        after = {"perf_offline", "perf_online", "compare", "report"}
        assert {*due_after(again)} == {"deploy", *after}
    assert due_after(last) == ["compare", "report"]


def test_what_an_experiment_serves_is_in_the_fingerprint_of_its_comparison():
    jobs = planned(three(compare=False))
    config = comparison(jobs).config
    _, second, _ = (job for job in jobs if job.config.stage == "deploy")

    def inputs():
        found = fingerprint(config).inputs
        return {name: value for name, value in found.items() if name.endswith("deployment")}

    nothing = {f"{name} deployment": "not deployed" for name in ("first", "second")}
    assert inputs() == nothing
    assert {"first data set", "second data set"} < set(fingerprint(config).inputs)
    hashes = set()
    for content in ("one", "another"):
        with create_artifact(artifact_folder(second.config, "deploy")) as (folder, _):
            (folder / "model").write_text(content)
        hashes.add(inputs()["second deployment"])
        assert inputs()["first deployment"] == "not deployed"
    assert len(hashes - {"not deployed"}) == 2
    for state in ("failed", "done"):
        write_status(second, state, "")
        assert (inputs() == nothing) == (state == "failed")
    mark_failed(find_artifact(artifact_folder(second.config, "deploy")), "a check")
    assert inputs() == nothing


def test_the_versions_of_all_runtimes_that_a_stage_uses_are_in_its_fingerprint():
    given = read_file(SMOKE)
    read = {
        stage: set(fingerprint(configure(given, "resnet50", "", stage)).versions)
        for stage in ("compare", "deploy", *LESSONS)
    }

    assert {"onnxruntime", "openvino", "tritonclient"} <= read["compare"]
    assert [stage for stage in read if "openvino" in read[stage]] == ["compare", "precision"]
    assert all("onnxruntime" in names for names in read.values())


def test_an_experiment_of_another_release_keeps_it_in_the_parameters_of_its_comparison():
    content = three(release="23.05")
    content["server"] = {"kind": "docker", "release": "24.10"}
    job = comparison(planned(content))

    found = resolve("resnet50", "compare", **parameters(job))
    assert [one.server.release for one in found.candidates] == ["24.10", "24.10", "23.05"]
    assert found.cache_fields("compare") == job.config.cache_fields("compare")


def test_without_clients_an_experiment_has_no_stage_perf_online():
    jobs = planned(three(concurrency=[]), ["perf_offline", "perf_online"])

    online = [job.config.experiment for job in jobs if job.config.stage == "perf_online"]
    assert online == ["first", "second"]
    assert len(jobs) == 3 + 2
