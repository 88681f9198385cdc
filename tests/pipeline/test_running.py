"""What a run leaves of a stage that it does not execute, and what it says at its end."""

import os

import pytest
import yaml

from helpers.measure import RETRY_VARIABLE
from helpers.pipeline import running, stage_states
from helpers.results import Measurement, Result, Row, read
from helpers.store import ROOT

CONVERT = ("run", "params/dummy.yaml", "--experiment", "onnx-fp32", "--stage", "convert")


@pytest.fixture
def file(tmp_path):
    """The default parameter file with clients for each experiment."""
    content = yaml.safe_load((ROOT / "params/cpu.yaml").read_text())
    content["defaults"]["concurrency"] = [4]
    (tmp_path / "cpu.yaml").write_text(yaml.safe_dump(content))
    return tmp_path / "cpu.yaml"


def measured(again=0.0, waited=0.0, rows=()):
    fields = {"distinct_rows": 1, "background_before": 0}
    return Measurement(rows=rows, again_seconds=again, waited_seconds=waited, **fields)


def test_a_stage_that_is_blocked_says_so_on_its_page_and_holds_again_afterwards(project):
    folder = project.target / "dummy/onnx-fp32"
    export, page = folder / "export.json", folder / "convert.html"
    content, before = export.read_text(), project.result("onnx-fp32", "convert")
    export.write_text(content.replace('"state": "done"', '"state": "failed"'))

    answer = project.run(*CONVERT)
    blocked = project.result("onnx-fp32", "convert")

    assert answer.code == 1
    assert blocked.state == "blocked"
    assert blocked.checks == before.checks
    assert "export failed" in page.read_text()

    export.write_text(content)
    answer = project.run(*CONVERT)

    assert (answer.code, answer.executed()) == (0, [])
    assert project.result("onnx-fp32", "convert") == before
    assert "export failed" not in page.read_text()


@pytest.mark.slow
@pytest.mark.parametrize(("again", "said"), [(8.0, True), (2.0, False)])
def test_a_run_says_what_a_machine_that_was_not_quiet_took(again, said, ran, outputs, capsys):
    ran.measured = lambda: measured(again, 3.5)

    path = ROOT / "params/smoke.yaml"
    outcome = running.run([path], outputs, models=["dlrm"], stages=["perf_online"])

    assert outcome["executed"] == 1
    line = "Other load disturbed the measurements: 12 s were spent waiting and measuring again.\n"
    assert (line in capsys.readouterr().out) == said


def test_the_stages_share_the_patience_for_a_quiet_machine(ran, file, tmp_path, monkeypatch):
    given = []

    def measure():
        given.append(float(os.environ[RETRY_VARIABLE]))
        return measured(3, 1.5)

    ran.measured = measure
    monkeypatch.setenv(RETRY_VARIABLE, "2")

    running.run([file], tmp_path / "outputs", models=["bert"], stages=["perf_online"])

    assert given == [2, 2, 2, 0, 0]  # of 12 s, each took 4.5
    assert os.environ[RETRY_VARIABLE] == "2"


@pytest.mark.slow
@pytest.mark.parametrize(("seconds", "after"), [(180.0, [1, 5]), (0.0, [1, 2, 3, 4, 5])])
def test_reports_meanwhile_are_some_time_apart(seconds, after, ran, file, tmp_path, monkeypatch):
    monkeypatch.setattr(running, "REPORT_SECONDS", seconds)

    stages = ["perf_online", "report"]
    running.run([file], tmp_path / "outputs", models=["bert"], stages=stages)

    names = [stage for _, stage in ran]
    found = [names[:i].count("perf_online") for i, name in enumerate(names) if name == "report"]
    assert found == after


def test_without_clients_an_old_result_is_removed_and_its_page_says_why(outputs, capsys):
    row = Row(batch_size=1, concurrency=4, quality="stable", experiment="x", throughput=5.0)
    paths = {}
    for experiment in ("onnx-fp32", "openvino-fp32"):
        fields = {"model": "bert", "experiment": experiment, "stage": "perf_online", "gpu": ""}
        path = paths[experiment] = outputs / "cpu/bert" / experiment / "perf_online.json"
        path.parent.mkdir(parents=True)
        result = Result(**fields, state="done", measurement=measured(rows=(row,)))
        path.write_text(result.model_dump_json())

    def run(**options):
        chosen = {"models": ["bert"], "experiments": ["openvino-fp32"], "stages": ["perf_online"]}
        return running.run([ROOT / "params/cpu.yaml"], outputs, **chosen, **options)

    run(dry_run=True)
    assert capsys.readouterr().out == "cpu.yaml: nothing to run\n"

    assert not +run()
    kept, removed = (read(paths[name]) for name in ("onnx-fp32", "openvino-fp32"))
    assert kept.measurement == measured(rows=(row,))
    assert removed.measurement is None
    assert (removed.state, removed.reason) == ("skipped", "concurrency is empty")
    assert (outputs / "cpu/results.csv").read_text().count("\n") == 2  # the head and one row
    found = {(s.model, s.stage, s.experiment): s for s in stage_states(outputs, "cpu")}
    shown, other = (found["bert", "perf_online", n] for n in ("openvino-fp32", "onnx-fp32"))
    assert (shown.state, shown.reason) == ("unplanned", "concurrency is empty")
    assert other.state == "done"
    assert "not planned</span>" in (outputs / "cpu/index.html").read_text()
    before = paths["openvino-fp32"].read_bytes()
    run()
    assert paths["openvino-fp32"].read_bytes() == before
