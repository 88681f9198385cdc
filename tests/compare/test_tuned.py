"""The command on the real server: its trials, its page, and an experiment that runs."""

import pytest

from tests.conftest import Project

pytestmark = pytest.mark.slow


def test_tune_measures_on_real_servers_and_its_winner_is_an_experiment(project: Project) -> None:
    answer = project.run("tune", "params/dummy.yaml", "--model", "dummy", "--minutes", "1")

    assert answer.code == 0, answer.output
    assert answer.executed() == ["dummy onnx-fp32 tune"]
    result = project.result("onnx-fp32", "tune")
    trials = result.facts["trials"]
    assert isinstance(trials, list)
    formats = [trial["choice"]["format"] for trial in trials]
    assert formats[:2] == ["onnx-fp32", "openvino-fp32"]
    assert all(trial["ratio"] > 0 and trial["pairs"] for trial in trials)
    assert [check.failure for check in result.checks] == ["", "", ""]
    assert all(score.failure == "" for score in result.scores)
    page = project.target / "dummy/onnx-fp32/tune.html"
    assert "The search" in page.read_text()
    assert 'href="dummy/onnx-fp32/tune.html"' in (project.target / "index.html").read_text()

    path = project.target / "dummy/dummy-dummy-tuned.yaml"
    line = f"outputs/dummy/dummy/{path.name}. For your own parameter file: tuned: {{"
    assert line in answer.output
    assert "\n      tuned:\n" in path.read_text()
    dry = project.run("run", str(path), "--dry-run")
    assert dry.code == 0, dry.output
    assert "dummy tuned perf_online: would run" in dry.output

    again = project.run("tune", "params/dummy.yaml", "--model", "dummy", "--minutes", "1")
    assert again.code == 0, again.output
    assert again.executed() == []
