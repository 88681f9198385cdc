"""Which generated sets of questions there are, on disk and in memory, each fixed by its seed."""

import json
import string
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from helpers.models._synthetic import size_of
from helpers.models.bert.data import MARKER, VOCABULARY
from helpers.models.bert.features import SPECIAL
from helpers.models.bert.squad import FILE
from helpers.models.bert.synthetic.synthetic_qa import SYLLABLES, Paragraph, words, write_paragraph

EVALUATION_SEED = 1
TRAINING_SEED = 2
FACTS = (3, 6)  # of a paragraph, from and below
SHORT, LONG = (0, 6), (40, 58)  # unrelated sentences, from and below
LONG_EVERY = 7  # a paragraph of so many is long and needs several windows
SETS = {"generated": 90, "generated-few": 5, "generated-small": 8}  # paragraphs


def write_questions(name: str, folder: Path) -> None:
    """Write the set `name` in SQuAD's format, and its vocabulary.

    Raises DataError if there is no such set.
    """
    count = size_of(name, SETS, f" or a folder that holds {FILE} and {VOCABULARY}")
    paragraphs = [
        evaluation_paragraph([EVALUATION_SEED, place], long=place % LONG_EVERY == 3)
        for place in range(count)
    ]
    articles = [_article(place, each) for place, each in enumerate(paragraphs)]
    document = {"version": "1.1", "data": articles}
    (folder / FILE).write_text(json.dumps(document, indent=1) + "\n")
    (folder / VOCABULARY).write_text("\n".join(vocabulary()) + "\n")
    (folder / MARKER).write_text(json.dumps({"name": name, "seed": EVALUATION_SEED}) + "\n")


def evaluation_paragraph(seed: list[int], long: bool) -> Paragraph:
    """Write the paragraph that `seed` fixes."""
    rng = np.random.default_rng(seed)
    return write_paragraph(
        rng, int(rng.integers(*FACTS)), int(rng.integers(*(LONG if long else SHORT)))
    )


def vocabulary() -> list[str]:
    """List the tokens: words, and pieces into which any other word of a-z and 0-9 splits."""
    characters = string.ascii_lowercase + string.digits
    pieces = [*characters, *SYLLABLES, *(f"{number:02d}" for number in range(100))]
    tokens = [*SPECIAL, *string.punctuation, *words(), *pieces, *(f"##{each}" for each in pieces)]
    return list(dict.fromkeys(tokens))


def _article(place: int, paragraph: Paragraph) -> dict[str, object]:
    questions = [
        {
            "id": f"{place:04d}-{number}",
            "question": asked.question,
            "answers": list(_annotated(paragraph.context, asked.answer, asked.start)),
        }
        for number, asked in enumerate(paragraph.asked)
    ]
    return {
        "title": paragraph.title,
        "paragraphs": [{"context": paragraph.context, "qas": questions}],
    }


def _annotated(context: str, answer: str, start: int) -> Iterator[dict[str, object]]:
    """Give the answer, and once more with the word before it, as annotators differ."""
    yield {"answer_start": start, "text": answer}
    before = context[: max(start - 1, 0)].rfind(" ") + 1
    yield {"answer_start": before, "text": context[before : start + len(answer)]}
