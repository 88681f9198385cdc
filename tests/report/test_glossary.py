"""The page that explains the terms: complete, plain, and one file like the others."""

import re
from typing import NamedTuple, get_args

import pytest

from helpers.config.old_names import QUALITIES
from helpers.display import pretty
from helpers.report import documents
from helpers.results import LATENCY_COMPONENTS, Quality

FORMERLY = re.compile(r"\*Formerly:\s([^*]*)\.\*")  # the words of older results
ORIGIN = re.compile(r"\*\([^)]*\)\*")


class Term(NamedTuple):
    """A term of the glossary, its definition, and the words that stood in its place."""

    name: str
    meaning: str
    formerly: tuple[str, ...]


def terms():
    text = documents.TERMS.read_text(encoding="utf-8")
    found = []
    for name, rest in re.findall(r"^(\S.*)\n: (.+(?:\n  .+)*)", text, re.MULTILINE):
        line = " ".join(rest.split())
        formerly = FORMERLY.search(line)
        meaning = ORIGIN.sub("", FORMERLY.sub("", line)).strip()
        found.append(Term(name, meaning, tuple(formerly[1].split(", ") if formerly else ())))
    return found


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("outputs")
    documents.write_pages(folder)
    return (folder / "glossary.html").read_text()


def test_the_page_has_the_eight_steps_of_a_request_with_the_column_of_each(page):
    steps = re.findall(r"<tr>\s*<td>(\d\. [^<]*)</td>\s*<td>[^<]*</td>\s*<td>([^<]*)</td>", page)

    assert [step[:2] for step, _ in steps] == [f"{number}." for number in range(1, 9)]
    columns = {pretty(name).removesuffix(" (ms)") for name in LATENCY_COMPONENTS}
    assert {column for _, named in steps for column in named.split(", ")} == columns
    assert steps[4] == (
        "5. server compute",
        "server compute input, server compute infer, server compute output",
    )


def test_every_quality_is_defined_and_those_of_old_results_are_found():
    meanings = {term.name: term.meaning for term in terms()}
    formerly = {word: term.name for term in terms() for word in term.formerly}
    qualities = set(get_args(Quality)) - {"unstable"}  # of older schemas

    assert qualities - set(meanings) == {"failed"}
    assert all(name in meanings["measurement quality"] for name in qualities)
    assert {old: formerly[old] for old in QUALITIES} == QUALITIES


def test_the_terms_are_in_order_and_a_definition_is_short():
    names = [term.name for term in terms()]

    assert names == sorted(set(names), key=str.lower)
    assert [term.name for term in terms() if len(term.meaning) >= 240] == []


def test_the_page_has_an_anchor_for_each_term(page):
    anchors = re.findall(r'<dt id="([^"]*)"', page)
    assert len(set(anchors)) == len(anchors) == len(terms()) > 60
    assert not any(re.search(r"\s", anchor) for anchor in anchors)
    assert 'href="published.html"' in page
    assert 'href="documentation-notebooks.html#columns"' in page
