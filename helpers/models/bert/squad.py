"""What a file in the format of SQuAD v1.1 holds: paragraphs, questions and their answers.

Rajpurkar et al., "SQuAD: 100,000+ Questions for Machine Comprehension of Text".
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field, ValidationError

from helpers.errors import DataError

FILE = "dev-v1.1.json"


class _Answer(BaseModel):
    text: str


class _Entry(BaseModel):
    id: str
    question: str
    answers: Annotated[list[_Answer], Field(min_length=1)]


class _Paragraph(BaseModel):
    context: str
    qas: list[_Entry]


class _Article(BaseModel):
    paragraphs: list[_Paragraph]


class _Document(BaseModel):
    data: list[_Article]


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
        document = _Document.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = "".join(f"[{e}]" if isinstance(e, int) else f".{e}" for e in first["loc"])
        where = f"{place.removeprefix('.')}: " if place else ""
        raise DataError(f"{path} is not in SQuAD's format: {where}{first['msg']}") from None
    paragraphs = [each for article in document.data for each in article.paragraphs]
    questions = [
        Question(entry.id, entry.question, place, tuple(answer.text for answer in entry.answers))
        for place, paragraph in enumerate(paragraphs)
        for entry in paragraph.qas
    ]
    if not questions:
        raise DataError(f"{path} is not in SQuAD's format: it holds no question")
    known: set[str] = set()
    for question in questions:
        if question.id in known:
            raise DataError(f"{path} is not in SQuAD's format: id '{question.id}' is there twice")
        known.add(question.id)
    return Squad(tuple(each.context for each in paragraphs), tuple(questions))
