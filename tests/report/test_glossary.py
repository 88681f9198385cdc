"""The page that explains the terms: complete, plain, and one file like the others."""

import re
from pathlib import Path
from typing import get_args

from helpers.config.old_names import QUALITIES
from helpers.report import glossary, steps
from helpers.results import Quality


def test_the_page_has_the_eight_steps_of_a_request_with_the_column_of_each(tmp_path: Path) -> None:
    text = glossary.write_page(tmp_path).read_text()

    assert len(steps.table_rows()) == 8
    for row in steps.table_rows():
        assert f"</th><td>{row['what happens']}</td><td>{row['column']}</td>" in text


def test_the_terms_are_in_order_and_each_stands_once() -> None:
    names = [term.name for term in glossary.TERMS]

    assert names == sorted(set(names), key=str.lower)


def test_every_quality_is_defined_and_named_by_the_term_for_all() -> None:
    terms = {term.name: term for term in glossary.TERMS}
    qualities = set(get_args(Quality)) - {"unstable"}  # of older schemas

    assert qualities - set(terms) == {"failed"}
    assert all(name in terms["measurement quality"].meaning for name in qualities)


def test_the_values_of_old_results_are_found_in_the_glossary() -> None:
    formerly = {word: term.name for term in glossary.TERMS for word in term.formerly}

    assert {old: formerly[old] for old in QUALITIES} == QUALITIES
    assert formerly["open loop"] == "request-rate mode"
    assert formerly["agreement"] == "match rate"


def test_a_definition_is_one_or_two_short_sentences() -> None:
    for term in glossary.TERMS:
        sentences = re.split(r"(?<=[.:;]) ", term.meaning)
        assert len(term.meaning) < 240, term.name
        assert max(len(each.split()) for each in sentences) <= 25, term.name


def test_the_page_asks_for_nothing_and_has_an_anchor_for_each_term(tmp_path: Path) -> None:
    text = glossary.write_page(tmp_path).read_text()

    assert not re.search(r'(?:src|href)="(?:https?:)?//', text)
    anchors = re.findall(r'<dt id="([^"]*)"', text)
    assert len(set(anchors)) == len(anchors) == len(glossary.TERMS)
    assert not any(re.search(r"\s", anchor) for anchor in anchors)
