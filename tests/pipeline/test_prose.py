"""Prose says what is always true: a figure with a unit has a source, and what a run measures is not
stated.
"""

import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import nbformat
import pytest
from onnx.checker import MAXIMUM_PROTOBUF

from helpers import models
from helpers.compare.variants import DELAYS_US
from helpers.config import LESSONS, TUTORIAL_MODEL, notebook_file, stages
from helpers.formats._tensorrt import WORKSPACE_BYTES
from helpers.measure.checks import KEPT_SHARE, MATCHED_SHARE
from helpers.measure.statistics import BUDGET_SHARE, CONFIDENCE
from helpers.models._criteo import network as criteo
from helpers.models._criteo.tables import (
    CATEGORICAL,
    DIMENSION,
    NUMERICAL,
    TABLES,
    THRESHOLDS,
)
from helpers.models._rounding import UNIT_ROUNDOFF
from helpers.models.bert import LENGTH as TOKENS
from helpers.models.resnet50 import CROPPED
from helpers.models.tft.variants import HORIZON, LENGTH, QUANTILES
from helpers.models.widedeep import features

BOOKS = [(model, stage) for model in models.names() for stage in stages(model)]
BOOKS += [(TUTORIAL_MODEL, lesson) for lesson in LESSONS]
UNITS = "ms|µs|s|seconds?|minutes?|hours?|%|times|[kMGT]i?B|GFLOP/s|(?:images|samples)/s"
FIGURE = re.compile(rf"(?<![\w.`-])(\d[\d,.]*)[ -]?({UNITS})(?!\w)")
# what only a run can know
MEASURED = re.compile(
    r"\b(?:twice|half|\w+ times) as (?:fast|slow|long|much time)\b|\bhalf the time\b"
    r"|\babout (?:a|one|two|three|\d+) (?:second|minute|hour)s?\b|\bthe machine was ours\b"
    r"|\b(?:doubles?|halves?) (?:the )?(?:throughput|latency|speed)\b",
    re.IGNORECASE,
)
GIB, GB = 2**30, 1e9
MOST_WORDS = 300  # of a notebook
P10, P50, P90 = QUANTILES


def table_bytes(variant: str) -> float:
    return sum(TABLES[variant]) * DIMENSION * 4


def products(widths: Sequence[int]) -> int:
    """Multiplications of dense layers, each from one width to the next; their weights too."""
    return sum(before * after for before, after in pairwise(widths))


def dense_half(top: int, interaction: int) -> int:
    """Multiplications of a recommender whose top layers take `top` numbers."""
    bottom = products((NUMERICAL, *criteo.BOTTOM))
    return bottom + interaction + products((top, *criteo.TOP))


VECTORS = (CATEGORICAL + 1) * DIMENSION  # that interact
CROSS = criteo.CROSS_LAYERS * 2 * VECTORS * criteo.PROJECTION
DOT = (CATEGORICAL + 1) ** 2 * DIMENSION
DLRM_TOP = -(-(DIMENSION + 351) // criteo.MULTIPLE) * criteo.MULTIPLE  # 351 pairs of 27 vectors
IMAGE = 3 * CROPPED**2
# Wide & Deep: a weight for each row in the wide network, a vector in the deep one
WIDE_DEEP_TABLES = sum(rows * (1 + width) for rows, width in features.TABLES.values())
WIDE_DEEP_DENSE = products((1248, *[1024] * 5, 1)) + 5 * 1024 + 1
WIDE_DEEP = WIDE_DEEP_TABLES + WIDE_DEEP_DENSE + len(features.NUMERIC) + 1

# figure -> what it is, by the package's own constants where there are such
SOURCES = {
    "95 %": (100 * CONFIDENCE, "the intervals' confidence"),
    "98 %": (100 * MATCHED_SHARE, "of decisions must be the framework's"),
    "99 %": (100 * KEPT_SHARE, "of a metric must be kept: the rule of MLPerf Inference"),
    "1 %": (100 * BUDGET_SHARE, "may exceed a budget at p99"),
    "90 %": (100 * (1 - P10), "P10's meaning"),
    "50 %": (100 * (1 - P50), "P50's meaning"),
    "10 %": (100 * (1 - P90), "P90's meaning"),
    "0.4 %": (100 * UNIT_ROUNDOFF["bf16"], "bf16's unit roundoff"),
    "5 %": (5, "ResNet v1.5's cost, as NVIDIA's model card states it"),
    "94 %": (100 * WIDE_DEEP_TABLES / WIDE_DEEP, "of Wide & Deep's parameters are tables"),
    "0.6 MB": (IMAGE * 4 / 1e6, "an image in fp32"),
    "0.3 MB": (IMAGE * 2 / 1e6, "an image in fp16"),
    "4.6 kB": (TOKENS * 3 * 4 / 1e3, "a window of BERT: three tensors of int32"),
    "3 kB": (TOKENS * 2 * 4 / 1e3, "its answer: two logits for each token"),
    "13 kB": (CATEGORICAL * DIMENSION * 4 / 1e3, "a sample's embeddings"),
    "8 GiB": (WORKSPACE_BYTES / GIB, "the workspace that NVIDIA's conversion gives TensorRT"),
    "2 GB": (MAXIMUM_PROTOBUF / GB, "what protobuf allows an ONNX file"),
    "1 TB": (1, "the Criteo click logs' name"),
    "76 MB": (table_bytes("T15-10k") / 1e6, "the tables T15-10k"),
    "91.1 GB": (table_bytes("T3") / GB, "the tables T3"),
    "84.9 GiB": (table_bytes("T3") / GIB, "the same"),
    "420.9 GiB": (table_bytes("T0") / GIB, "the tables T0"),
    "452.0 GB": (table_bytes("T0") / GB, "the same"),
    "367 MB": (WIDE_DEEP * 4 / 1e6, "Wide & Deep's parameters in fp32"),
    "192 hours": (LENGTH, "a window of TFT"),
    "24 hours": (HORIZON, "its forecast"),
    "10 ms": (max(DELAYS_US) / 1000, "the longest delay of the lesson on dynamic batching"),
    "3 times": (THRESHOLDS["T3"], "that an id occurs at least to have a row of its own"),
    "6.5 times": (
        dense_half(VECTORS, CROSS) / dense_half(DLRM_TOP, DOT),
        "the operations of DCNv2's dense half over DLRM's",
    ),
}


def prose(path: Path) -> str:
    cells = nbformat.read(path, as_version=4).cells  # type: ignore[no-untyped-call]
    return "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")


@pytest.mark.parametrize(("model", "stage"), BOOKS)
def test_a_figure_with_a_unit_has_a_source(model: str, stage: str) -> None:
    text = prose(notebook_file(model, stage))

    found = {" ".join(figure) for figure in FIGURE.findall(text)}

    assert found <= set(SOURCES)
    assert MEASURED.findall(text) == []


@pytest.mark.parametrize("stage", ["export", "convert", "deploy"])
@pytest.mark.parametrize("model", models.names())
def test_it_is_short(model: str, stage: str) -> None:
    """Drawings and tags are left out, and code in a line counts as one word."""
    text = re.sub(r"```.*?```|<[^>]*>", " ", prose(notebook_file(model, stage)), flags=re.DOTALL)

    assert len(re.sub(r"`[^`\n]+`", "x", text).split()) <= MOST_WORDS


@pytest.mark.parametrize("figure", SOURCES)
def test_a_figure_is_what_its_source_says(figure: str) -> None:
    number, (value, _) = figure.partition(" ")[0], SOURCES[figure]
    last = 10.0 ** -len(number.partition(".")[2])

    assert abs(float(number) - value) <= last / 2 + 1e-9


def test_a_figure_of_a_run_would_be_noticed() -> None:
    figures = [("12.5", "ms"), ("3", "s"), ("40", "%")]
    assert FIGURE.findall("it took 12.5 ms, or 3 s, which is 40%") == figures
    assert MEASURED.search("which is twice as fast")
    assert MEASURED.search("in about two minutes on two cores")
