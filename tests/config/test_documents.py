"""The documents of parameter files and models say what the code has."""

import re

import pytest
import yaml

from helpers import models
from helpers.config.loading import configure, parse
from helpers.config.parameter_file import Experiment
from helpers.config.schema import STAGES
from tests.config.documents import CLASSES, FILES, FOLDER, TABLE, meanings, renewed

README = FOLDER / "README.md"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_tables_of_a_document_are_what_the_code_has(path):
    """After a change: python -m tests.config.documents"""
    assert path.read_text(encoding="utf-8") == renewed(path)


def test_each_field_of_a_parameter_file_has_a_meaning_and_a_line():
    text = (FOLDER / "FIELDS.md").read_text(encoding="utf-8")
    tables = [name for _, name in TABLE.findall(text)]
    texts = meanings()
    named = [field for classes in CLASSES.values() for name in classes for field in texts[name]]

    assert set(CLASSES) == set(tables)
    assert set(Experiment.model_fields) <= set(named)
    assert all(text.endswith(".") for fields in texts.values() for text in fields.values())


def test_the_example_is_a_parameter_file():
    (example,) = re.findall(r"```yaml\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    found = parse(yaml.safe_load(example), "mine", "mine.yaml")

    experiments = found.experiments("resnet50")
    resolved = [configure(found, "resnet50", name, each) for name in experiments for each in STAGES]
    assert len(resolved) == 2 * len(STAGES)


def test_each_model_has_a_page_that_the_readme_links():
    linked = re.findall(r"\]\(models/(\w+)\.md\)", README.read_text(encoding="utf-8"))

    assert {path.stem for path in (FOLDER / "models").glob("*.md")} == set(linked)
    assert set(linked) <= set(models.names())
    assert len(linked) == 6
