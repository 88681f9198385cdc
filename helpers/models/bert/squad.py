"""Files in the format of SQuAD v1.1: paragraphs, questions and their answers.

Rajpurkar et al., "SQuAD: 100,000+ Questions for Machine Comprehension of Text".
"""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field, ValidationError

from helpers.errors import DataError

FILE, TRAINING = "dev-v1.1.json", "train-v1.1.json"
FILES = {"test": FILE, "train": TRAINING}


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
    """A question, the index of its paragraph, and the accepted answers."""

    id: str
    text: str
    context: int
    answers: tuple[str, ...]


def parse(content: bytes, path: Path) -> tuple[list[str], list[Question]]:
    """Read paragraphs and questions in order; raise DataError naming the field that is wrong."""
    try:
        document = _Document.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        location = "".join(f"[{e}]" if isinstance(e, int) else f".{e}" for e in first["loc"])
        where = f"{location.removeprefix('.')}: " if location else ""
        raise DataError(f"{path} is not in SQuAD's format: {where}{first['msg']}") from None
    paragraphs = [paragraph for article in document.data for paragraph in article.paragraphs]
    questions = [
        Question(entry.id, entry.question, index, tuple(answer.text for answer in entry.answers))
        for index, paragraph in enumerate(paragraphs)
        for entry in paragraph.qas
    ]
    if not questions:
        raise DataError(f"{path} is not in SQuAD's format: it has no question")
    name, count = Counter(question.id for question in questions).most_common(1)[0]
    if count > 1:
        raise DataError(f"{path} is not in SQuAD's format: id '{name}' occurs twice")
    return [paragraph.context for paragraph in paragraphs], questions
