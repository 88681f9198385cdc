"""What a reader opens agrees with the results as they are now."""

import os
import re

import nbformat
import pytest
from nbformat.v4 import new_markdown_cell, new_notebook
from pandas import read_csv

from helpers.config import LESSONS
from helpers.pipeline.publishing import publish, publish_indexes, stage_states, write_results
from helpers.results import Measurement, Result, Row
from tests.comparisons import compared


def keep(outputs, experiment, stage, state="done", model="bert", **fields):
    path = outputs / "smoke" / model / experiment / f"{stage}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    named = {"model": model, "experiment": experiment, "stage": stage, "gpu": "CPU"}
    path.write_text(Result(**named, state=state, **fields).model_dump_json())
    return path


def notebook_of(record):
    """Write an executed notebook beside a result, and return its page's path."""
    cells = [new_markdown_cell(f"# The stage {record.stem}")]
    nbformat.write(new_notebook(cells=cells), record.with_suffix(".ipynb"))
    return record.with_suffix(".html")


def links(page):
    return re.findall('<a href="([^"]*)"', page.read_text())


def states(outputs, model="bert", pending=None, value="state"):
    return {
        (each.experiment, each.stage): getattr(each, value)
        for each in stage_states(outputs, "smoke", pending)
        if each.model == model
    }


def indexes(outputs):
    return [(outputs / name).read_text() for name in ("index.html", "smoke/index.html")]


@pytest.mark.parametrize("state", ["blocked", "skipped"])
def test_a_stage_that_is_now_blocked_or_skipped_has_a_banner_on_its_old_page(outputs, state):
    path = keep(outputs, "openvino-fp32", "deploy")
    page = notebook_of(path)
    publish(outputs, "smoke", only_changed=True)
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


def test_results_csv_holds_only_the_experiments_that_the_target_has_now(outputs):
    for name in ("openvino-fp32", "renamed-since"):
        row = Row(batch_size=1, concurrency=1, quality="stable", experiment=name, throughput=5.0)
        measurement = Measurement(rows=(row,), distinct_rows=1, background_before=None)
        keep(outputs, name, "perf_offline", measurement=measurement)

    found = read_csv(write_results(outputs, "smoke"))

    assert list(found) == list(Row.model_fields)
    assert list(found["experiment"]) == ["openvino-fp32"]


def test_the_indexes_say_what_runs_and_what_waits_and_are_loaded_again_meanwhile(outputs):
    keep(outputs, "openvino-fp32", "export")
    running = keep(outputs, "openvino-fp32", "convert")  # an old result
    waiting = outputs / "smoke/bert/openvino-fp32/deploy.json"
    report = keep(outputs, "", "report", reason="so far: 1 of 2")
    pending = {running: "running: on a T4", waiting: "waiting", report: "waiting"}

    publish_indexes(outputs, "smoke", pending)

    found = states(outputs, pending=pending)
    shown = [found["openvino-fp32", stage] for stage in ("export", "convert", "deploy")]
    assert shown == ["done", "running", "waiting"]
    assert (found["", "report"], found["", "compare"]) == ("waiting", "missing")
    reasons = states(outputs, pending=pending, value="reason")
    assert reasons["openvino-fp32", "convert"] == "on a T4"
    assert reasons["", "report"] == "so far: 1 of 2"
    for text in indexes(outputs):
        assert "A run is in progress" in text
        assert '<meta http-equiv="refresh" content="10">' in text
        assert "1 running" in text
    with (outputs / "smoke/index.html").open() as reader:
        publish(outputs, "smoke")
        assert "A run is in progress" in reader.read()  # the page is replaced whole
    for text in indexes(outputs):
        assert "A run is in progress" not in text
        assert 'http-equiv="refresh"' not in text


def test_pages_link_the_stages_before_and_after_theirs(outputs):
    stages = ("export", "convert")
    export, convert = (notebook_of(keep(outputs, "openvino-fp32", stage)) for stage in stages)
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


def test_what_notebooks_ran_with_overrides_is_on_the_index_and_no_experiment(outputs):
    keep(outputs, "openvino-fp32~threads=1", "deploy", reason="a try")

    publish(outputs, "smoke")

    assert "openvino-fp32~threads=1" in indexes(outputs)[1].partition("Explored")[2]
    assert not [name for name, _ in states(outputs) if "threads=1" in name]


def test_a_stage_that_experiments_share_names_the_one_in_whose_name_it_runs(outputs):
    shared = {
        (each.experiment, each.stage): each.shared_with
        for each in stage_states(outputs, "smoke")
        if each.model == "resnet50" and each.shared_with
    }

    assert shared == {("openvino-bf16", "export"): "onnx-fp32"}


def test_lessons_are_on_the_index_and_link_one_another(outputs):
    """Also one that the parameter file does not name, once it has run; never as an experiment."""
    pages = [
        notebook_of(keep(outputs, "lessons", lesson, model="resnet50", headline=f"{lesson} done"))
        for lesson in ("dynamic_batching", "instances")
    ]
    path = outputs / "smoke/parameters.yaml"
    text = path.read_text()
    path.write_text(text.replace("lessons: [dynamic_batching, ", "lessons: ["))
    assert path.read_text() != text

    publish(outputs, "smoke")

    found = {key: state for key, state in states(outputs, "resnet50").items() if key[1] in LESSONS}
    assert list(found) == [("", lesson) for lesson in LESSONS]
    assert list(found.values()) == ["done", "done", "missing", "missing"]
    index = indexes(outputs)[1]
    section = index.partition('<h2 id="lessons">')[2].partition("</section>")[0]
    assert 'href="resnet50/lessons/instances.html">Instances</a>' in section
    assert "instances done" in section
    assert "<strong>Precision</strong>" in section
    assert '<th scope="col">instances</th>' not in index
    assert [links(page)[0] for page in pages] == ["instances.html", "dynamic_batching.html"]


def test_the_comparison_is_on_the_indexes_also_while_it_is_made_again(outputs):
    speeds = {"onnx-fp32": 1.0, "openvino-fp32": 2.0}
    found = compared(**speeds).model_copy(update={"seconds": 12.0})
    measured = [keep(outputs, "openvino-fp32", name) for name in ("perf_offline", "perf_online")]
    headline = "openvino-fp32: none is faster"
    last = [keep(outputs, "", "compare", comparisons=(found,), headline=headline)]
    last.append(keep(outputs, "", "report"))
    pages = [notebook_of(path) for path in (*measured, *last)]

    publish(outputs, "smoke")

    for text in indexes(outputs):
        assert "<strong>openvino-fp32</strong>" in text
        assert "a run is in progress" not in text
    text = indexes(outputs)[1]
    assert re.search(f'Comparison: <a href="bert/compare.html">.*{headline}', text)
    assert text.count("<p>Comparison: ") == 6
    assert states(outputs)["", "compare"] == "done"
    assert states(outputs, value="measuring_seconds")["", "compare"] == 12.0
    assert "../compare.html" in links(pages[1])
    assert links(pages[2])[:2] == ["openvino-fp32/perf_online.html", "report.html"]
    assert "compare.html" not in links(pages[3])
    publish_indexes(outputs, "smoke", {last[1]: "waiting"})
    for text in indexes(outputs):
        assert "<strong>openvino-fp32</strong>" in text
        assert "a run is in progress, " in text
