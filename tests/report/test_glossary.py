"""The page that explains the words: complete, plain, and one file like the others."""

import re
from pathlib import Path
from typing import get_args

from helpers.report import glossary, steps
from helpers.results import Quality


def test_the_page_has_the_eight_steps_of_a_request_with_the_column_of_each(tmp_path: Path) -> None:
    text = glossary.write_page(tmp_path).read_text()

    assert len(steps.table_rows()) == 8
    for row in steps.table_rows():
        assert f"</th><td>{row['what happens']}</td><td>{row['column']}</td>" in text


def test_the_words_are_in_order_and_each_stands_once() -> None:
    words = [word for word, _ in glossary.WORDS]

    assert words == sorted(set(words), key=str.lower)


def test_the_commonest_verdicts_are_explained() -> None:
    words = {word for word, _ in glossary.WORDS}

    assert words & set(get_args(Quality)) == {"stable", "imprecise", "noisy", "client-bound"}


def test_the_page_asks_for_nothing_and_has_an_anchor_for_each_word(tmp_path: Path) -> None:
    text = glossary.write_page(tmp_path).read_text()

    assert not re.search(r'(?:src|href)="(?:https?:)?//', text)
    anchors = re.findall(r'<dt id="([^"]*)"', text)
    assert len(set(anchors)) == len(anchors) == len(glossary.WORDS)
    assert not any(re.search(r"\s", anchor) for anchor in anchors)
