"""What a file in the format of SQuAD v1.1 holds: paragraphs, questions and their answers.

Rajpurkar et al., "SQuAD: 100,000+ Questions for Machine Comprehension of Text".
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers.errors import DataError

FILE = "dev-v1.1.json"


@dataclass(frozen=True)
class Question:
    """A question, the place of its paragraph in `Squad.contexts`, and the accepted answers."""

    id: str
    text: str
    context: int
    answers: tuple[str, ...]


@dataclass(frozen=True)
class Squad:
    """Every paragraph and every question of a file, in order."""

    contexts: tuple[str, ...]
    questions: tuple[Question, ...]


def parse(content: bytes, path: Path) -> Squad:
    """Read what the file `path` holds; raise DataError naming the place that is not SQuAD's."""
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not JSON: {error}") from None
    contexts: list[str] = []
    questions: dict[str, Question] = {}
    try:
        for place, article in _entries(document, "data", ""):
            for where, paragraph in _entries(article, "paragraphs", place):
                contexts.append(_text(paragraph, "context", where))
                for spot, entry in _entries(paragraph, "qas", where):
                    question = _question(entry, spot, len(contexts) - 1)
                    if question.id in questions:
                        raise DataError(f"{spot}.id '{question.id}' is there twice")
                    questions[question.id] = question
    except DataError as error:
        raise DataError(f"{path} is not in SQuAD's format: {error}") from None
    if not questions:
        raise DataError(f"{path} is not in SQuAD's format: it holds no question")
    return Squad(tuple(contexts), tuple(questions.values()))


def _question(entry: Any, place: str, context: int) -> Question:
    answers = [_text(answer, "text", where) for where, answer in _entries(entry, "answers", place)]
    if not answers:
        raise DataError(f"{place}.answers is empty")
    name, text = _text(entry, "id", place), _text(entry, "question", place)
    return Question(name, text, context, tuple(answers))


def _entries(parent: Any, key: str, place: str) -> list[tuple[str, Any]]:
    """Pair each entry of a list with its place in the file."""
    found = _value(parent, key, place, list)
    return [(f"{_joined(place, key)}[{i}]", entry) for i, entry in enumerate(found)]


def _text(parent: Any, key: str, place: str) -> str:
    return str(_value(parent, key, place, str))


def _value(parent: Any, key: str, place: str, kind: type) -> Any:
    if not isinstance(parent, dict):
        raise DataError(f"{place or 'the whole'} is not an object")
    if key not in parent:
        raise DataError(f"{_joined(place, key)} is missing")
    if not isinstance(parent[key], kind):
        wanted = "a list" if kind is list else "a text"
        raise DataError(f"{_joined(place, key)} is not {wanted}")
    return parent[key]


def _joined(place: str, key: str) -> str:
    return f"{place}.{key}" if place else key
