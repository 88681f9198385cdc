"""The command on the real server: its trials, its page, and an experiment that runs."""

import re

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.thorough]


def test_tune_measures_on_real_servers_and_its_winner_is_an_experiment(project):
    answer = project.run("tune", "params/dummy.yaml", "--model", "dummy", "--minutes", "1")

    assert answer.code == 0, answer.output
    assert answer.executed() == ["dummy onnx-fp32 tune"]
    result = project.result("onnx-fp32", "tune")
    trials = result.facts["trials"]
    formats = [trial["choice"]["format"] for trial in trials[:2]]
    assert formats == ["onnx-fp32", "openvino-fp32"]
    assert all(trial["ratio"] > 0 and trial["pairs"] for trial in trials)
    assert [check.failure for check in result.checks] == ["", "", ""]
    assert all(score.failure == "" for score in result.scores)
    page = project.target / "dummy/onnx-fp32/tune.html"
    assert "The search" in page.read_text()
    assert 'href="dummy/onnx-fp32/tune.html"' in (project.target / "index.html").read_text()

    path = project.target / "dummy/dummy-dummy-tuned.yaml"
    assert f"dummy/{path.name}. For your own parameter file: tuned: {{" in answer.output
    assert "\n      tuned:\n" in path.read_text()
    dry = project.run("run", str(path), "--dry-run")
    assert dry.code == 0, dry.output
    assert "dummy tuned perf_online: would run" in dry.output

    again = project.run("tune", "params/dummy.yaml", "--model", "dummy", "--minutes", "1")
    assert again.code == 0, again.output
    assert again.executed() == []


def test_a_bound_on_memory_refuses_what_is_above_it_and_a_price_gives_costs(project):
    own = project.params.read_text()
    tune = ("tune", "params/dummy.yaml", "--model", "dummy", "--minutes", "0.5")

    project.params.write_text(own.replace("defaults:", "defaults:\n      max_memory_mb: 1", 1))
    refused = project.run(*tune)
    bounds = {"max_memory_mb": 100_000, "price_per_hour": 0.5, "max_cost_per_million": 1000}
    lines = "".join(f"\n      {name}: {value}" for name, value in bounds.items())
    project.params.write_text(own.replace("defaults:", f"defaults:{lines}", 1))
    priced = project.run(*tune)

    assert refused.code != 0
    reason = r"within the limits. Trial 0: the server uses [\d.]+ MB, max_memory_mb is 1"
    assert re.search(reason, refused.output)
    assert priced.code == 0, priced.output
    trials = project.result("onnx-fp32", "tune").facts["trials"]
    assert {trial["reason"] for trial in trials} == {""}
    assert all(30 < trial["peak_memory_mb"] < 2000 for trial in trials)
    for trial in trials:
        cost = 0.5 / 3600 / trial["throughput"] * 1e6
        assert trial["cost_per_million"]["value"] == pytest.approx(cost)
    written = (project.target / "dummy/dummy-dummy-tuned.yaml").read_text()
    assert "\n# A million inferences cost 0." in written
    assert "\n        price_per_hour: 0.5\n" in written
    assert "cost per million" in (project.target / "dummy/onnx-fp32/tune.html").read_text()
