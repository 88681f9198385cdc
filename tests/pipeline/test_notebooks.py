"""Every notebook is committed stripped, short, and the same code in each model."""

import ast
import re
import warnings
from copy import deepcopy
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import nbformat
import pytest

from helpers import models
from helpers.config.loading import resolve
from helpers.config.parameter_file import TUTORIAL_MODEL, ParameterFile
from helpers.config.schema import LESSONS, STAGE, notebook_file, stages
from helpers.store.paths import ROOT

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its own imports warn of deprecations
    import papermill

NAMES = [*ParameterFile.model_fields, "experiment", "overrides"]
TYPES = {"gpu": "str", "device": "str", "experiment": "str"}  # the others are dicts
FOLDED = {"jupyter": {"source_hidden": True}}  # a first read leaves the parameters out
OWN = [stage for stage in STAGE if stage not in LESSONS]  # that each model has a notebook of
BOOKS = [(model, stage) for model in models.names() for stage in stages(model)]
BOOKS += [(TUTORIAL_MODEL, lesson) for lesson in LESSONS]


def read(model: str, stage: str) -> Any:
    return nbformat.read(notebook_file(model, stage), as_version=4)


def code_cells(book: Any) -> list[Any]:
    return [cell for cell in book.cells if cell.cell_type == "code"]


def parameter_cells(book: Any) -> list[Any]:
    return [cell for cell in book.cells if "parameters" in cell.metadata.get("tags", [])]


@pytest.fixture(params=BOOKS, ids="-".join)
def book(request: pytest.FixtureRequest) -> Any:
    return read(*request.param)


def test_every_model_has_the_seven_notebooks_there_are_three_lessons_and_no_other() -> None:
    found = {path.relative_to(ROOT / "notebooks") for path in ROOT.glob("notebooks/**/*.ipynb")}

    expected = {Path(model) / f"{s}.ipynb" for model in models.names() for s in stages(model)}
    assert found == expected | {Path("lessons") / f"{lesson}.ipynb" for lesson in LESSONS}


def test_it_is_committed_stripped(book: Any) -> None:
    nbformat.validate(book)

    assert book.metadata == {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    (metadata,) = (cell.metadata for cell in book.cells if cell.metadata)
    assert metadata in ({"tags": ["parameters"]}, {"tags": ["parameters"], **FOLDED})
    assert [(c.outputs, c.execution_count) for c in code_cells(book)] == [([], None)] * len(
        code_cells(book)
    )
    ids = [cell.get("id") for cell in book.cells]
    assert all(ids)
    assert len(set(ids)) == len(ids)


def test_it_is_a_story_of_6_to_15_cells_under_one_title(book: Any) -> None:
    titles = [
        index
        for index, cell in enumerate(book.cells)
        if cell.cell_type == "markdown"
        for line in cell.source.splitlines()
        if re.match(r"#\s", line)
    ]

    assert titles == [0]
    assert book.cells[0].source.startswith("# ")
    assert 6 <= len(book.cells) <= 15
    assert all(cell.source.strip() for cell in book.cells)


def test_its_second_cell_holds_the_seven_parameters_one_a_line(book: Any) -> None:
    (cell,) = parameter_cells(book)
    statements, lines = ast.parse(cell.source).body, cell.source.splitlines()

    assert cell is book.cells[1]
    assert len(lines) == len(statements) == 7
    for name, statement, line in zip(NAMES, statements, lines, strict=True):
        assert isinstance(statement, ast.AnnAssign)
        assert ast.unparse(statement.target) == name
        assert ast.unparse(statement.annotation) == TYPES.get(name, "dict")
        assert re.search(r"  # \S.{9,}$", line), f"{name} has no comment"


@pytest.mark.parametrize(("model", "stage"), BOOKS)
def test_papermill_sees_the_seven_parameters_with_types_and_help(model: str, stage: str) -> None:
    found = papermill.inspect_notebook(str(notebook_file(model, stage)))

    assert {name: each["inferred_type_name"] for name, each in found.items()} == {
        name: TYPES.get(name, "dict") for name in NAMES
    }
    assert all(each["help"] for each in found.values())


@pytest.mark.parametrize(("model", "stage"), BOOKS)
def test_its_defaults_are_those_of_resolve(model: str, stage: str) -> None:
    (cell,) = parameter_cells(read(model, stage))
    given = {
        statement.target.id: ast.literal_eval(statement.value)
        for statement in ast.parse(cell.source).body
        if isinstance(statement, ast.AnnAssign)
        and isinstance(statement.target, ast.Name)
        and statement.value
    }

    assert resolve(model, stage, **given) == resolve(model, stage)


@pytest.mark.parametrize("model", models.names())
def test_convert_begins_with_an_experiment_that_changes_the_precision(model: str) -> None:
    config: Any = resolve(model, "convert")

    assert config.precision != config.export_precision
    assert config.experiment != resolve(model, "deploy").experiment


def test_it_defines_nothing_and_catches_nothing(book: Any) -> None:
    logic = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Try, ast.TryStar)
    found = [
        ast.unparse(node)
        for cell in code_cells(book)
        for node in ast.walk(ast.parse(cell.source))
        if isinstance(node, logic)
    ]

    assert found == []


def test_what_it_imports_is_there(book: Any) -> None:
    for cell in code_cells(book):
        for node in ast.walk(ast.parse(cell.source)):
            if isinstance(node, ast.ImportFrom):
                module = import_module(str(node.module))
                missing = [alias.name for alias in node.names if not _offers(module, alias.name)]
                assert missing == [], node.module


def _offers(module: ModuleType, name: str) -> bool:
    inside = hasattr(module, "__path__") and find_spec(f"{module.__name__}.{name}") is not None
    return hasattr(module, name) or inside


class Common(ast.NodeTransformer):
    """Takes out imports and the model's own displays: statements that use what was imported from
    the model's package, or what such a statement gave.
    """

    def __init__(self, own: set[str]) -> None:
        self.own = own

    def visit(self, node: ast.AST) -> ast.AST | None:
        if isinstance(node, ast.ImportFrom):
            return None
        if isinstance(node, ast.Assign | ast.Expr):
            names = [each for each in ast.walk(node) if isinstance(each, ast.Name)]
            if self.own & {each.id for each in names}:
                self.own |= {each.id for each in names if isinstance(each.ctx, ast.Store)}
                return None
        return super().visit(node)


def common_code(book: Any, model: str) -> list[str]:
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


@pytest.mark.parametrize("stage", OWN)
def test_the_code_of_a_stage_is_the_same_in_every_model(stage: str) -> None:
    having = [model for model in models.names() if stage in stages(model)]
    found = {model: common_code(read(model, stage), model) for model in having}

    first = next(iter(found.values()))
    assert len(first) >= 3
    assert found == dict.fromkeys(found, first)


def test_the_comparison_ignores_a_models_name_displays_and_imports_and_nothing_else() -> None:
    one = read("resnet50", "export")
    other, changed = deepcopy(one), deepcopy(one)
    for cell in code_cells(other):
        cell.source = cell.source.replace("resnet50", "bert").replace("show_images", "show_words")
    own = [
        cell for cell in code_cells(changed) if "export(config, prepared, network)" in cell.source
    ]
    own[0].source = own[0].source.replace("prepared, network)", "prepared, None)")

    assert "show_images" in str(one)
    assert common_code(other, "bert") == common_code(one, "resnet50")
    assert common_code(changed, "resnet50") != common_code(one, "resnet50")
