"""Prose says what is always true: a figure with a unit has a source, and what a run measures is not
stated. What it invites to try can be tried.
"""

import ast
import re
from pathlib import Path

import nbformat
import pytest

from helpers import models
from helpers.config import LESSONS, STAGE, TAUGHT, notebook_file, resolve
from helpers.models._criteo.tables import CATEGORICAL, DIMENSION, TABLES

OWN = [stage for stage in STAGE if stage not in LESSONS]  # that each model has a notebook of
BOOKS = [(model, stage) for model in models.names() for stage in OWN]
BOOKS += [(TAUGHT, lesson) for lesson in LESSONS]
UNITS = "ms|µs|s|seconds?|minutes?|hours?|%|times|[kMGT]i?B|GFLOP/s|(?:images|samples)/s"
FIGURE = re.compile(rf"(?<![\w.`-])(\d[\d,.]*)[ -]({UNITS})(?!\w)")
OVERRIDES = re.compile(r"`(?:overrides = )?(\{\"[^`]*\})`")
# what only a run can know
MEASURED = re.compile(
    r"\b(?:twice|half|\w+ times) as (?:fast|slow|long|much time)\b|\bhalf the time\b"
    r"|\babout (?:a|one|two|three|\d+) (?:second|minute|hour)s?\b|\bthe machine was ours\b"
    r"|\b(?:doubles?|halves?) (?:the )?(?:throughput|latency|speed)\b",
    re.IGNORECASE,
)
GIB, GB = 2**30, 1e9


def table_bytes(variant: str) -> float:
    return sum(TABLES[variant]) * DIMENSION * 4


# figure -> what it is, computed where it can be
SOURCES = {
    "95 %": (95, "the intervals' confidence"),
    "98 %": (98, "of decisions must be the framework's: accuracy.ladder.AGREED_SHARE"),
    "99 %": (99, "of a metric must be kept: the rule of MLPerf Inference"),
    "1 %": (1, "may exceed a budget at p99"),
    "90 %": (90, "P90's meaning"),
    "0.4 %": (100 * 2.0**-8, "bf16's unit roundoff"),
    "50 %": (50, "P50's meaning"),
    "10 %": (10, "P10's meaning"),
    "5 %": (5, "ResNet v1.5's cost, as NVIDIA's model card states it"),
    "94 %": (100 * 86.30 / 91.78, "of Wide & Deep's parameters are tables"),
    "0.6 MB": (3 * 224 * 224 * 4 / 1e6, "an image in fp32"),
    "0.3 MB": (3 * 224 * 224 * 2 / 1e6, "an image in fp16"),
    "4.6 kB": (384 * 3 * 4 / 1e3, "a window of BERT: three tensors of 384 int32"),
    "3 kB": (384 * 2 * 4 / 1e3, "its answer: two logits for each token"),
    "13 kB": (CATEGORICAL * DIMENSION * 4 / 1e3, "a sample's embeddings"),
    "8 GiB": (8, "the workspace that NVIDIA's conversion gives TensorRT"),
    "2 GB": (2, "what protobuf allows an ONNX file"),
    "1 TB": (1, "the Criteo click logs' name"),
    "76 MB": (table_bytes("T15-10k") / 1e6, "the tables T15-10k"),
    "91.1 GB": (table_bytes("T3") / GB, "the tables T3"),
    "84.9 GiB": (table_bytes("T3") / GIB, "the same"),
    "420.9 GiB": (table_bytes("T0") / GIB, "the tables T0"),
    "452.0 GB": (table_bytes("T0") / GB, "the same"),
    "367 MB": (91.78e6 * 4 / 1e6, "Wide & Deep's parameters in fp32"),
    "192 hours": (192, "a window of TFT"),
    "24 hours": (24, "its forecast"),
    "3 times": (3, "the threshold of T3"),
    "6.5 times": (16_046_081 / 2_371_457, "DCNv2's dense half over DLRM's: see its notebook"),
}
ROUNDED = {"6.5 times": 0.3}  # counted in operations there, in parameters here


def prose(path: Path) -> str:
    cells = nbformat.read(path, as_version=4).cells  # type: ignore[no-untyped-call]
    return "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")


@pytest.mark.parametrize(("model", "stage"), BOOKS)
def test_a_figure_with_a_unit_has_a_source(model: str, stage: str) -> None:
    text = prose(notebook_file(model, stage))

    found = {" ".join(figure) for figure in FIGURE.findall(text)}

    assert found <= set(SOURCES)
    assert MEASURED.findall(text) == []


@pytest.mark.parametrize("figure", SOURCES)
def test_a_figure_is_what_its_source_says(figure: str) -> None:
    number, (value, _) = figure.partition(" ")[0], SOURCES[figure]
    last = 10.0 ** -len(number.partition(".")[2])

    assert abs(float(number) - value) <= ROUNDED.get(figure, last / 2 + 1e-9)


def test_a_figure_of_a_run_would_be_noticed() -> None:
    assert FIGURE.findall("it took 12.5 ms, or 3 s") == [("12.5", "ms"), ("3", "s")]
    assert MEASURED.search("which is twice as fast")
    assert MEASURED.search("in about two minutes on two cores")


@pytest.mark.parametrize(("model", "stage"), BOOKS)
def test_what_a_notebook_says_to_try_is_understood(model: str, stage: str) -> None:
    for text in OVERRIDES.findall(prose(notebook_file(model, stage))):
        given = ast.literal_eval(text)
        found = resolve(model, stage, overrides=given)

        assert found.overrides, f"{text} changes nothing of the first experiment"


@pytest.mark.parametrize("lesson", LESSONS)
def test_every_lesson_ends_with_something_to_try(lesson: str) -> None:
    last = nbformat.read(notebook_file(TAUGHT, lesson), as_version=4).cells[-1]  # type: ignore[no-untyped-call]

    assert last.source.startswith("## Try it\n")
    assert len(OVERRIDES.findall(last.source)) >= 1


@pytest.mark.parametrize("stage", ["export", "deploy", "perf_online"])
def test_every_model_says_what_to_try(stage: str) -> None:
    lacking = [m for m in models.names() if not OVERRIDES.search(prose(notebook_file(m, stage)))]

    assert lacking == []
