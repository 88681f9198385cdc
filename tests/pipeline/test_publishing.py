"""What a reader opens agrees with the results as they are now."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_markdown_cell, new_notebook
from pandas import read_csv

from helpers.config import LESSONS
from helpers.pipeline.publishing import publish, publish_indexes, stage_states, write_results
from helpers.report.answers import Answer, Recommendation, facts
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
        row = Row(batch_size=1, concurrency=1, quality="stable", experiment=name, throughput=5.0)
        measurement = Measurement(rows=(row,), distinct_rows=1, background_before=None)
        keep(outputs, name, "perf_offline", measurement=measurement)

    path = write_results(outputs, "smoke")

    found = read_csv(path)
    assert list(found) == list(Row.model_fields)
    assert list(found["experiment"]) == ["openvino-fp32"]


def test_the_indexes_say_what_runs_and_what_waits_and_are_loaded_again_meanwhile(
    outputs: Path,
) -> None:
    done = keep(outputs, "openvino-fp32", "export")
    running = keep(outputs, "openvino-fp32", "convert")  # an old result
    waiting = outputs / "smoke/bert/openvino-fp32/deploy.json"

    publish_indexes(outputs, "smoke", {running: "running", waiting: "waiting"})
    states = {
        (each.experiment, each.stage): each.state
        for each in stage_states(outputs, "smoke", {running: "running", waiting: "waiting"})
        if each.model == "bert"
    }

    assert states["openvino-fp32", done.stem] == "done"
    assert states["openvino-fp32", "convert"] == "running"
    assert states["openvino-fp32", "deploy"] == "waiting"
    assert states["", "report"] == "missing"
    for page in (outputs / "index.html", outputs / "smoke/index.html"):
        text = page.read_text()
        assert "A run is in progress" in text
        assert '<meta http-equiv="refresh" content="10">' in text
        assert "1 running" in text
    publish(outputs, "smoke")
    for page in (outputs / "index.html", outputs / "smoke/index.html"):
        text = page.read_text()
        assert "A run is in progress" not in text
        assert 'http-equiv="refresh"' not in text


def notebook_of(record: Path) -> Path:
    """Write an executed notebook beside a result, and return its page's path."""
    cells = [new_markdown_cell(f"# The stage {record.stem}")]  # type: ignore[no-untyped-call]
    nbformat.write(new_notebook(cells=cells), record.with_suffix(".ipynb"))  # type: ignore[no-untyped-call]
    return record.with_suffix(".html")


def links(page: Path) -> list[str]:
    return re.findall('<a href="([^"]*)"', page.read_text())


def test_pages_link_the_stages_before_and_after_theirs(outputs: Path) -> None:
    export, convert = (
        notebook_of(keep(outputs, "openvino-fp32", stage)) for stage in ("export", "convert")
    )
    deploy = outputs / "smoke/bert/openvino-fp32/deploy.json"

    publish(outputs, "smoke", pending={deploy: "waiting"})

    up = ["../../index.html", "../../../index.html", "../../../glossary.html"]
    up += ["../../../documentation.html"]
    assert links(export) == ["convert.html", *up]
    assert links(convert) == ["export.html", "deploy.html", *up]
    publish(outputs, "smoke", only_changed=True)  # the run has ended without it
    assert links(convert) == ["export.html", *up]
    written = export.stat().st_ino
    publish(outputs, "smoke", only_changed=True)
    assert export.stat().st_ino == written


def test_what_notebooks_ran_with_overrides_is_on_the_index_and_no_experiment(outputs: Path) -> None:
    keep(outputs, "openvino-fp32~threads=1", "deploy", reason="a try")

    publish(outputs, "smoke")

    text = (outputs / "smoke/index.html").read_text()
    assert "openvino-fp32~threads=1" in text.partition("Explored")[2]
    assert "openvino-fp32~threads=1" not in {
        each.experiment for each in stage_states(outputs, "smoke")
    }


def test_the_indexes_show_what_a_report_keeps_also_while_it_is_made_again(outputs: Path) -> None:
    best = Recommendation(
        "for throughput", "openvino-fp32", "why", 50.0, 9.0, "batch size 1", "kept"
    )
    path = outputs / "smoke/bert/report.json"
    keep(outputs, "", "report")  # makes the folder
    result = Result(
        model="bert",
        experiment="",
        stage="report",
        gpu="CPU",
        state="done",
        facts=facts([Answer("", (best,), {"openvino-fp32": 50.0})]),
    )
    path.write_text(result.model_dump_json())

    publish_indexes(outputs, "smoke")

    pages = [outputs / "index.html", outputs / "smoke/index.html"]
    for page in pages:
        assert "<strong>openvino-fp32</strong>" in page.read_text()
        assert "a run is in progress" not in page.read_text()
    publish_indexes(outputs, "smoke", {path: "waiting"})
    for page in pages:
        assert "<strong>openvino-fp32</strong>" in page.read_text()
        assert "from the last report; a run is in progress, 0 of 5 stages" in page.read_text()


def test_a_stage_that_experiments_share_names_the_one_in_whose_name_it_runs(outputs: Path) -> None:
    shared = {
        (each.experiment, each.stage): each.shared_with
        for each in stage_states(outputs, "smoke")
        if each.model == "resnet50" and each.shared_with
    }

    assert shared == {("openvino-bf16", "export"): "onnx-fp32"}


def test_lessons_are_on_the_index_and_link_one_another(outputs: Path) -> None:
    """Also one that the parameter file does not name, once it has run; never as an experiment."""
    folder = outputs / "smoke/resnet50/lessons"
    folder.mkdir(parents=True)
    for lesson in ("dynamic_batching", "instances"):
        head = {"model": "resnet50", "experiment": "onnx-fp32", "stage": lesson, "gpu": "CPU"}
        result = Result(**head, state="done", headline=f"what {lesson} did")
        (folder / f"{lesson}.json").write_text(result.model_dump_json())
        notebook_of(folder / f"{lesson}.json")
    path = outputs / "smoke/parameters.yaml"
    text = path.read_text()
    assert "lessons: [dynamic_batching, instances, precision]" in text
    path.write_text(
        text.replace("[dynamic_batching, instances, precision]", "[instances, precision]")
    )

    publish(outputs, "smoke")

    states = {
        (each.experiment, each.stage): each.state
        for each in stage_states(outputs, "smoke")
        if each.stage in LESSONS
    }
    assert states == {
        ("", "dynamic_batching"): "done",
        ("", "instances"): "done",
        ("", "precision"): "missing",
    }
    index = (outputs / "smoke/index.html").read_text()
    section = index.partition('<h2 id="lessons">')[2].partition("</section>")[0]
    assert 'href="resnet50/lessons/instances.html">Instances</a>' in section
    assert "what instances did" in section
    assert "<strong>Precision</strong>" in section
    assert '<th scope="col">instances</th>' not in index
    first, second = (folder / f"{lesson}.html" for lesson in ("dynamic_batching", "instances"))
    assert links(first)[:1] == ["instances.html"]
    assert links(second)[:1] == ["dynamic_batching.html"]


FILL = """
import os, sys
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from helpers.__main__ import main
outputs = Path(sys.argv[1])
(outputs / "smoke").mkdir()
(outputs / "smoke/parameters.yaml").write_text(Path("params/smoke.yaml").read_text())
def published():
    code = main(["publish", "--outputs", str(outputs)])
    return code, {path: path.read_bytes() for path in outputs.rglob("*.*") if path.is_file()}
with redirect_stderr(sys.stdout), redirect_stdout(open(os.devnull, 'w')):
    code, before = published()
    with suppress(OSError), (outputs / "zeros").open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    code_full, after = published()
print(code, code_full, len(before) > 5, before == after)
"""


@pytest.mark.slow
def test_publishing_on_a_full_disk_is_one_line_and_keeps_the_pages(
    on_a_small_disk: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    done = on_a_small_disk(tmp_path, "20m", sys.executable, "-c", FILL, str(tmp_path))

    assert done.stdout.splitlines() == [
        f"error: cannot write {tmp_path.name}/smoke/results.csv: no space left on device",
        "0 1 True True",
    ]
