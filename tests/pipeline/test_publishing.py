"""What a reader opens agrees with the results as they are now."""

import os
import shutil
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_markdown_cell, new_notebook
from pandas import read_csv

from helpers.pipeline.publishing import publish, write_results
from helpers.results import Measurement, Result, Row, State
from helpers.store.paths import OUTPUTS_VARIABLE, ROOT


@pytest.fixture
def outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An outputs folder with the smoke target, of which nothing has run."""
    monkeypatch.setenv(OUTPUTS_VARIABLE, str(tmp_path))
    (tmp_path / "smoke").mkdir()
    shutil.copyfile(ROOT / "params/smoke.yaml", tmp_path / "smoke/parameters.yaml")
    return tmp_path


def keep(
    outputs: Path,
    experiment: str,
    stage: str,
    state: State = "done",
    *,
    reason: str = "",
    measurement: Measurement | None = None,
) -> Path:
    """Write a result of BERT and return its path."""
    path = outputs / "smoke" / "bert" / experiment / f"{stage}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    result = Result(
        model="bert",
        experiment=experiment,
        stage=stage,
        gpu="CPU",
        state=state,
        reason=reason,
        measurement=measurement,
    )
    path.write_text(result.model_dump_json())
    return path


@pytest.mark.parametrize("state", ["blocked", "skipped"])
def test_a_stage_that_was_done_and_is_now_blocked_or_skipped_has_a_banner_on_its_old_page(
    outputs: Path, state: State
) -> None:
    path = keep(outputs, "openvino-fp32", "deploy")
    cells = [new_markdown_cell("# Deploy")]  # type: ignore[no-untyped-call]
    nbformat.write(new_notebook(cells=cells), path.with_suffix(".ipynb"))  # type: ignore[no-untyped-call]
    publish(outputs, "smoke", only_changed=True)
    page = path.with_suffix(".html")
    assert "state-done" in page.read_text().partition("<h1")[0]

    keep(outputs, "openvino-fp32", "deploy", state, reason="convert failed")
    later = page.stat().st_mtime_ns + 1_000_000
    os.utime(path, ns=(later, later))
    publish(outputs, "smoke", only_changed=True)

    header = page.read_text().partition("<h1")[0]
    assert f"state-{state}" in header
    assert "convert failed" in header
    before = page.stat().st_ino
    publish(outputs, "smoke", only_changed=True)
    assert page.stat().st_ino == before  # nothing changed since


def test_results_csv_holds_only_the_experiments_that_the_target_has_now(outputs: Path) -> None:
    for name in ("openvino-fp32", "renamed-since"):
        row = Row(batch_size=1, concurrency=1, verdict="stable", experiment=name, throughput=5.0)
        measurement = Measurement(rows=(row,), distinct_rows=1, background_before=None)
        keep(outputs, name, "perf_offline", measurement=measurement)

    path = write_results(outputs, "smoke")

    found = read_csv(path)
    assert list(found) == list(Row.model_fields)
    assert list(found["experiment"]) == ["openvino-fp32"]
