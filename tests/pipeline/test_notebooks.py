"""Every notebook is committed stripped, short, and the same code in each model; its prose says what
is always true, and it ends with something to try.
"""

import ast
import re
import warnings
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from helpers import models
from helpers.config import LESSONS, SEPARATOR, STAGE, notebook_file, resolve, stages
from helpers.config.parameter_file import ParameterFile
from helpers.store.paths import ROOT
from tests.pipeline import notebooks
from tests.pipeline.notebooks import BOOKS, code_cells, common_code, prose, read, require_rules

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its own imports warn of deprecations
    import papermill

NAMES = [*ParameterFile.model_fields, "experiment", "overrides"]
TYPES = {"gpu": "str", "device": "str", "experiment": "str"}  # the others are dicts
FOLDED = {"jupyter": {"source_hidden": True}}  # a first read leaves the parameters out
KERNEL = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def test_every_model_has_the_eight_notebooks_there_are_three_lessons_and_no_other():
    found = {path.relative_to(ROOT / "notebooks") for path in ROOT.glob("notebooks/**/*.ipynb")}

    expected = {Path(model) / f"{s}.ipynb" for model in models.names() for s in stages(model)}
    assert found == expected | {Path("lessons") / f"{lesson}.ipynb" for lesson in LESSONS}


@pytest.mark.parametrize(("model", "stage"), BOOKS)
def test_a_notebook_keeps_the_rules(model, stage):
    book = read(model, stage)

    require_rules(book)
    assert book.metadata == KERNEL
    assert book.cells[1].metadata in ({"tags": ["parameters"]}, {"tags": ["parameters"], **FOLDED})
    if STAGE[stage].makes_artifact:
        # drawings and tags are left out, and code in a line counts as one word
        text = re.sub(r"```.*?```|<[^>]*>", " ", prose(book), flags=re.DOTALL)
        assert len(re.sub(r"`[^`\n]+`", "x", text).split()) <= notebooks.MOST_WORDS


@pytest.mark.parametrize(("model", "stage"), BOOKS)
def test_its_parameters_have_types_help_and_the_defaults_of_resolve(model, stage):
    found = papermill.inspect_notebook(str(notebook_file(model, stage)))

    assert {name: each["inferred_type_name"] for name, each in found.items()} == {
        name: TYPES.get(name, "dict") for name in NAMES
    }
    assert all(len(each["help"]) >= 10 for each in found.values())
    given = {name: ast.literal_eval(each["default"]) for name, each in found.items()}
    assert resolve(model, stage, **given) == resolve(model, stage)


@pytest.mark.parametrize(("model", "stage"), BOOKS)
def test_each_variation_is_of_the_stage_and_changes_it(model, stage):
    for given in notebooks.variations(notebook_file(model, stage)):
        found = resolve(model, stage, overrides=given)

        assert found.overrides == given, "it is what the first experiment has"
        assert found.experiment.count(SEPARATOR) == 1


@pytest.mark.parametrize("model", models.names())
def test_convert_begins_with_an_experiment_that_changes_the_precision(model):
    config = resolve(model, "convert")

    assert config.precision != config.export_precision
    assert config.experiment != resolve(model, "deploy").experiment


@pytest.mark.parametrize(("model", "stage"), BOOKS)
def test_what_it_imports_is_there(model, stage):
    for cell in code_cells(read(model, stage)):
        for node in ast.walk(ast.parse(cell.source)):
            if isinstance(node, ast.ImportFrom):
                module = import_module(node.module)
                for alias in node.names:
                    inside = f"{node.module}.{alias.name}"
                    is_module = hasattr(module, "__path__") and find_spec(inside)
                    assert hasattr(module, alias.name) or is_module, inside


@pytest.mark.parametrize("stage", [stage for stage in STAGE if stage not in LESSONS])
def test_the_code_of_a_stage_is_the_same_in_every_model(stage):
    having = [model for model in models.names() if stage in stages(model)]
    found = {model: common_code(read(model, stage), model) for model in having}

    first = next(iter(found.values()))
    assert len(first) >= 3
    assert found == dict.fromkeys(found, first)


@pytest.mark.parametrize("figure", notebooks.SOURCES)
def test_a_figure_is_what_its_source_says(figure):
    number = figure.partition(" ")[0]
    last = 10.0 ** -len(number.partition(".")[2])

    assert abs(float(number) - notebooks.SOURCES[figure]) <= last / 2 + 1e-9
