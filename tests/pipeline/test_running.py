"""What a run leaves of a stage that it does not execute, and what it says at its end."""

import os
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from helpers.measure import RETRY_VARIABLE
from helpers.pipeline import kernels, running
from helpers.results import Measurement, Result
from helpers.store import OUTPUTS_VARIABLE
from tests.conftest import ROOT, Project

CONVERT = ("run", "params/dummy.yaml", "--experiment", "onnx-fp32", "--stage", "convert")

KERNELS = SimpleNamespace(preload=lambda *_: None)  # that nobody starts


@pytest.mark.slow
def test_a_stage_that_is_blocked_says_so_on_its_page_and_holds_again_afterwards(
    project: Project,
) -> None:
    folder = project.target / "dummy/onnx-fp32"
    export, page = folder / "export.json", folder / "convert.html"
    content, before = export.read_text(), project.result("onnx-fp32", "convert")
    assert '"state": "done"' in content
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
def test_a_run_says_what_a_machine_that_was_not_quiet_took(
    again: float,
    said: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    measured = Measurement(
        rows=(), distinct_rows=1, background_before=0, again_seconds=again, waited_seconds=3.5
    )
    fields = {"model": "dlrm", "experiment": "onnx-fp32", "stage": "perf_online", "gpu": ""}
    done = Result(**fields, state="done", measurement=measured)
    monkeypatch.setattr(running, "execute", lambda *_: done)
    monkeypatch.setattr(running, "missing_prerequisite", lambda _: "")
    monkeypatch.setattr(kernels, "kernel_server_context", lambda: nullcontext(KERNELS))

    params = ROOT / "params/smoke.yaml"
    outcome = running.run([params], tmp_path, models=["dlrm"], stages=["perf_online"])

    assert outcome["executed"] == 1
    line = "Other load disturbed the measurements: 12 s were spent waiting and measuring again.\n"
    assert (line in capsys.readouterr().out) == said


def test_the_stages_of_a_run_share_the_patience_for_a_quiet_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = []

    def execute(*_: object) -> Result:
        given.append(float(os.environ[RETRY_VARIABLE]))
        measured = Measurement(
            rows=(), distinct_rows=1, background_before=0, again_seconds=3, waited_seconds=1.5
        )
        fields = {"model": "bert", "experiment": "onnx-fp32", "stage": "perf_online", "gpu": ""}
        return Result(**fields, state="done", measurement=measured)

    monkeypatch.setattr(running, "execute", execute)
    monkeypatch.setattr(running, "missing_prerequisite", lambda _: "")
    monkeypatch.setattr(kernels, "kernel_server_context", lambda: nullcontext(KERNELS))
    monkeypatch.setenv(RETRY_VARIABLE, "2")
    monkeypatch.setenv(OUTPUTS_VARIABLE, str(tmp_path))

    running.run([ROOT / "params/cpu.yaml"], tmp_path, models=["bert"], stages=["perf_online"])

    assert given == [2, 2, 2, 0, 0]  # of 12 s, each took 4.5
    assert os.environ[RETRY_VARIABLE] == "2"


@pytest.mark.slow
@pytest.mark.parametrize(("seconds", "after"), [(180.0, [1, 5]), (0.0, [1, 2, 3, 4, 5])])
def test_reports_meanwhile_are_three_minutes_apart(
    seconds: float, after: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []

    def execute(source: Path, *_: object) -> Result:
        ran.append(source.stem)
        fields = {"model": "bert", "experiment": "onnx-fp32", "stage": source.stem, "gpu": ""}
        return Result(**fields, state="done")

    monkeypatch.setattr(running, "execute", execute)
    monkeypatch.setattr(running, "missing_prerequisite", lambda _: "")
    monkeypatch.setattr(kernels, "kernel_server_context", lambda: nullcontext(KERNELS))
    assert running.REPORT_SECONDS == 180
    monkeypatch.setattr(running, "REPORT_SECONDS", seconds)
    monkeypatch.setenv(OUTPUTS_VARIABLE, str(tmp_path))

    stages = ["perf_online", "report"]
    running.run([ROOT / "params/cpu.yaml"], tmp_path, models=["bert"], stages=stages)

    measured = [ran[: i + 1].count("perf_online") for i, name in enumerate(ran) if name == "report"]
    assert measured == after
