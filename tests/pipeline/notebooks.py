"""The rules that every notebook keeps, also those that `new` writes."""

import ast
import re
from itertools import pairwise

import nbformat
from onnx.checker import MAXIMUM_PROTOBUF

from helpers import models
from helpers.compare.variants import DELAYS_US
from helpers.config import LESSONS, TUTORIAL_MODEL, notebook_file, stages
from helpers.measure.checks import KEPT_SHARE, MATCHED_SHARE
from helpers.measure.statistics import BUDGET_SHARE, CONFIDENCE
from helpers.models._criteo import network as criteo
from helpers.models._criteo.tables import CATEGORICAL, DIMENSION, NUMERICAL, TABLES
from helpers.models._rounding import UNIT_ROUNDOFF
from helpers.models.bert import LENGTH as TOKENS
from helpers.models.resnet50 import CROPPED
from helpers.models.tft.variants import HORIZON
from helpers.models.widedeep import features

BOOKS = [(model, stage) for model in models.names() for stage in stages(model)]
BOOKS += [(TUTORIAL_MODEL, lesson) for lesson in LESSONS]
OVERRIDES = re.compile(r"`overrides = (\{[^`]*\})`")
EXPECTED = re.compile(r"\b(?:expect|compare|look|see|how|which|where|why|because)\b", re.IGNORECASE)
FEWEST_WORDS = 15  # that say what to expect of a variation, and why
MOST_WORDS = 300  # of a notebook that makes an artifact
UNITS = "ms|µs|s|seconds?|minutes?|hours?|%|times|[kMGT]i?B|GFLOP/s|(?:images|samples)/s"
FIGURE = re.compile(rf"(?<![\w.`-])(\d[\d,.]*)[ -]?({UNITS})(?!\w)")
# what only a run can know
MEASURED = re.compile(
    r"\b(?:twice|half|\w+ times) as (?:fast|slow|long|much time)\b|\bhalf the time\b"
    r"|\babout (?:a|one|two|three|\d+) (?:second|minute|hour)s?\b|\bthe machine was ours\b"
    r"|\b(?:doubles?|halves?) (?:the )?(?:throughput|latency|speed)\b",
    re.IGNORECASE,
)
LOGIC = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Try, ast.TryStar)


def products(widths):
    """Multiplications of dense layers, each from one width to the next; their weights too."""
    return sum(before * after for before, after in pairwise(widths))


def dense_half(top, interaction):
    """Multiplications of a recommender whose top layers take `top` numbers."""
    bottom = products((NUMERICAL, *criteo.BOTTOM))
    return bottom + interaction + products((top, *criteo.TOP))


VECTORS = (CATEGORICAL + 1) * DIMENSION  # that interact
CROSS = criteo.CROSS_LAYERS * 2 * VECTORS * criteo.PROJECTION
DOT = (CATEGORICAL + 1) ** 2 * DIMENSION
DLRM_TOP = -(-(DIMENSION + 351) // criteo.MULTIPLE) * criteo.MULTIPLE  # 351 pairs of 27 vectors
# Wide & Deep: a weight for each row in the wide network, a vector in the deep one
WIDE_DEEP_TABLES = sum(rows * (1 + width) for rows, width in features.TABLES.values())
WIDE_DEEP_DENSE = products((1248, *[1024] * 5, 1)) + 5 * 1024 + 1
WIDE_DEEP = WIDE_DEEP_TABLES + WIDE_DEEP_DENSE + len(features.NUMERIC) + 1
# figure with a unit -> its value by the package's own constants
SOURCES = {
    "95 %": 100 * CONFIDENCE,
    "98 %": 100 * MATCHED_SHARE,
    "99 %": 100 * KEPT_SHARE,  # the rule of MLPerf Inference
    "1 %": 100 * BUDGET_SHARE,  # may exceed a budget at p99
    "0.4 %": 100 * UNIT_ROUNDOFF["bf16"],
    "94 %": 100 * WIDE_DEEP_TABLES / WIDE_DEEP,  # of Wide & Deep's parameters are tables
    "0.6 MB": 3 * CROPPED**2 * 4 / 1e6,  # an image in fp32
    "0.3 MB": 3 * CROPPED**2 * 2 / 1e6,  # in fp16
    "4.6 kB": TOKENS * 3 * 4 / 1e3,  # a window of BERT: three tensors of int32
    "13 kB": CATEGORICAL * DIMENSION * 4 / 1e3,  # a sample's embeddings
    "2 GB": MAXIMUM_PROTOBUF / 1e9,  # what protobuf allows an ONNX file
    "76 MB": sum(TABLES["T15-10k"]) * DIMENSION * 4 / 1e6,
    "91.1 GB": sum(TABLES["T3"]) * DIMENSION * 4 / 1e9,
    "84.9 GiB": sum(TABLES["T3"]) * DIMENSION * 4 / 2**30,
    "24 hours": HORIZON,  # TFT's forecast
    "10 ms": max(DELAYS_US) / 1000,  # the longest delay of the lesson on dynamic batching
    # the operations of DCNv2's dense half over DLRM's
    "6.5 times": dense_half(VECTORS, CROSS) / dense_half(DLRM_TOP, DOT),
}


def read(model, stage):
    return nbformat.read(notebook_file(model, stage), as_version=4)


def code_cells(book):
    return [cell for cell in book.cells if cell.cell_type == "code"]


def prose(book):
    return "\n".join(cell.source for cell in book.cells if cell.cell_type == "markdown")


def variations(path):
    last = nbformat.read(path, as_version=4).cells[-1].source
    return [ast.literal_eval(each) for each in OVERRIDES.findall(last)]


def require_rules(book):
    """Require a notebook to be stripped, a story with one title, of figures with sources, without
    logic, and with a variation to try at its end.
    """
    nbformat.validate(book)
    assert 6 <= len(book.cells) <= 15
    assert all(cell.source.strip() for cell in book.cells)
    assert len({cell.id for cell in book.cells}) == len(book.cells)
    assert not [cell for cell in code_cells(book) if cell.outputs or cell.execution_count]
    assert [place for place, cell in enumerate(book.cells) if cell.metadata] == [1]
    for cell in code_cells(book):
        assert not [node for node in ast.walk(ast.parse(cell.source)) if isinstance(node, LOGIC)]

    text = prose(book)
    assert book.cells[0].source.startswith("# ")
    assert len(re.findall(r"^#\s", text, re.MULTILINE)) == 1
    assert {" ".join(figure) for figure in FIGURE.findall(text)} <= set(SOURCES)
    assert MEASURED.findall(text) == []

    last = book.cells[-1]
    assert last.cell_type == "markdown"
    assert last.source.startswith("## Try it\n")
    assert text.lower().count("try it") == 1
    _, *parts = OVERRIDES.split(last.source)
    assert 1 <= len(parts) / 2 <= 2
    for words in parts[1::2]:  # after each of the overrides, until the next
        assert len(words.split()) >= FEWEST_WORDS
        assert EXPECTED.search(words), words


class Common(ast.NodeTransformer):
    """Takes out imports and the model's own displays: statements that use what was imported from
    the model's package, or what such a statement gave.
    """

    def __init__(self, own):
        self.own = own

    def visit(self, node):
        if isinstance(node, ast.ImportFrom):
            return None
        if isinstance(node, ast.Assign | ast.Expr):
            names = [each for each in ast.walk(node) if isinstance(each, ast.Name)]
            if self.own & {each.id for each in names}:
                self.own |= {each.id for each in names if isinstance(each.ctx, ast.Store)}
                return None
        return super().visit(node)


def common_code(book, model):
    """The code of a notebook without its model's name, its imports and its model's own displays;
    cells with nothing else are left out.
    """
    inside = (f"helpers.models.{model}", "helpers.models._")  # what is shared begins with _
    trees = [ast.parse(cell.source) for cell in code_cells(book)]
    own = {
        alias.asname or alias.name
        for tree in trees
        for each in ast.walk(tree)
        if isinstance(each, ast.ImportFrom) and str(each.module).startswith(inside)
        for alias in each.names
    }
    common = Common(own)
    cells = [ast.unparse(common.visit(tree)) for tree in trees]
    return [cell.replace(repr(model), "MODEL") for cell in cells if cell]
