"""The four lessons on real servers: their pages, and that these say what was measured. They are
measured by one code: the first is run by the batch command, each other in the variation that it
names.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from helpers.config import (
    LESSONS,
    SEPARATOR,
    TARGET_VARIABLE,
    TUTORIAL_MODEL,
    notebook_file,
    resolve,
)
from helpers.display import short
from helpers.results import read
from helpers.store import OUTPUTS_VARIABLE
from tests.conftest import OWN_MEMORY, ROOT
from tests.pipeline.test_try_it import FILE, run_once, variations

# without shared memory of their own, they are on the worker that runs this model elsewhere
GROUP = pytest.mark.xdist_group("lessons" if OWN_MEMORY else TUTORIAL_MODEL)
pytestmark = [pytest.mark.slow, pytest.mark.thorough, GROUP]

TARGET = Path(FILE).stem
BY_COMMAND, *TRIED = LESSONS
MINUTES = 3  # that a lesson may take on two cores


def command(outputs, *words):
    env = {**os.environ, OUTPUTS_VARIABLE: str(outputs), TARGET_VARIABLE: TARGET}
    env |= {"PYTHONWARNINGS": "ignore"}
    options = {"cwd": ROOT, "env": env, "capture_output": True, "text": True, "timeout": 900}
    return subprocess.run([*OWN_MEMORY, *words], **options)


def helpers(outputs, *words):
    return command(outputs, sys.executable, "-m", "helpers", *words, "--outputs", str(outputs))


def run(outputs, *stages):
    chosen = [word for stage in stages for word in ("--stage", stage)]
    only = ("--model", TUTORIAL_MODEL, "--experiment", "onnx-fp32", *chosen)
    return helpers(outputs, "run", str(outputs.with_name(FILE)), *only)


def try_variation(outputs, lesson):
    (given,) = variations(notebook_file(TUTORIAL_MODEL, lesson))
    content = yaml.safe_load(outputs.with_name(FILE).read_text())
    config = resolve(TUTORIAL_MODEL, lesson, overrides=given, **content)
    place = outputs / TARGET / TUTORIAL_MODEL / config.experiment
    place.mkdir(parents=True)
    with_file = ("-f", str(outputs.with_name(FILE)), "-y", yaml.safe_dump({"overrides": given}))
    notebooks = (str(notebook_file(TUTORIAL_MODEL, lesson)), str(place / f"{lesson}.ipynb"))
    done = command(outputs, sys.executable, "-m", "papermill", *notebooks, *with_file)
    assert done.returncode == 0, done.stderr
    assert read(place / f"{lesson}.json"), "its results lie elsewhere"


@pytest.fixture(scope="module")
def outputs(shared, tmp_path_factory):
    """An experiment of ResNet50, deployed, and its lessons."""
    folder = tmp_path_factory.mktemp("lessons")
    content = run_once(TUTORIAL_MODEL, shared, folder)
    # as many clients as fill a batch
    filled = {"max_batch_size": 4, "preferred_batch_sizes": [4]}
    content["models"][TUTORIAL_MODEL]["defaults"] |= filled
    (folder / FILE).write_text(yaml.safe_dump(content))
    done = run(folder / "outputs", "export", "convert", "deploy", BY_COMMAND)
    assert done.returncode == 0, done.stdout + done.stderr
    for lesson in TRIED:
        try_variation(folder / "outputs", lesson)
    assert helpers(folder / "outputs", "publish").returncode == 0
    return folder / "outputs"


def place(outputs, lesson):
    if lesson == BY_COMMAND:
        return outputs / f"{TARGET}/{TUTORIAL_MODEL}/lessons/{lesson}"
    (found,) = outputs.glob(f"{TARGET}/{TUTORIAL_MODEL}/*{SEPARATOR}*/{lesson}.json")
    return found.with_suffix("")


def result(outputs, lesson):
    return read(place(outputs, lesson).with_suffix(".json"))


def points(outputs, lesson):
    return result(outputs, lesson).facts["points"]


def page(outputs, lesson):
    return place(outputs, lesson).with_suffix(".html").read_text()


def section(text, title):
    return text.partition(f">{title}</h2>")[2].partition("<h2")[0]


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_lesson_is_done_in_time_with_a_page_a_chart_and_its_data(lesson, outputs):
    found, text = result(outputs, lesson), page(outputs, lesson)

    assert found.state == "done"
    assert found.seconds < 60 * MINUTES
    assert re.search(r'<img [^>]*alt="With 1 client p50 latency is ', text)
    assert f'href="{lesson}.csv"' in text
    assert place(outputs, lesson).with_suffix(".csv").exists()
    assert "overrides = {" in section(text, "Try it")
    assert "measurements are stable" in section(text, "What to notice")
    index = (outputs / f"{TARGET}/index.html").read_text()
    own = f"{TUTORIAL_MODEL}/lessons/{lesson}"
    assert (f"{own}.html" if lesson == BY_COMMAND else SEPARATOR) in index
    assert (outputs / TARGET / f"{own}.json").exists() is (lesson == BY_COMMAND)
    assert all(point["throughput"] > 0 and point["requests"] for point in points(outputs, lesson))


def test_the_batcher_joins_only_requests_that_meet(outputs):
    found = {(p["configuration"], p["clients"]): p for p in points(outputs, "dynamic_batching")}

    assert {p["average_batch_size"] for (_, count), p in found.items() if count == 1} == {1.0}
    assert found["no batcher", 4]["average_batch_size"] == 1.0
    joined = found["delay 10 ms", 4]["average_batch_size"]
    assert joined > 1.5
    assert found["delay 10 ms", 1]["server_queue_ms"] > 9  # it waits for nobody
    assert f"{short(joined)} with delay 10 ms;" in page(outputs, "dynamic_batching")


def test_precisions_keep_their_bounds_and_are_no_copies_of_fp32(outputs):
    found = result(outputs, "precision")

    checks = [(check.precision, check.failure) for check in found.checks]
    assert checks == [("fp32", ""), ("bf16", ""), ("int8", "")]
    fp32, *_, int8 = (check.differences[0].max_difference or 0.0 for check in found.checks)
    assert 0 < fp32 < int8


def test_a_lesson_is_run_again_only_after_a_change(outputs):
    again = run(outputs, BY_COMMAND)

    assert (again.returncode, again.stdout.count(": unchanged\n")) == (0, 1), again.stdout
