"""Generated questions, each set fixed by its seed, and the paragraphs that answer them.

A paragraph states a few facts about one person, one per sentence, among unrelated sentences.
"""

import json
import re
import string
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.random import Generator

from helpers.models import Config
from helpers.models._synthetic import lookup_size
from helpers.models._tables import GENERATED
from helpers.models.bert.data import VOCABULARY
from helpers.models.bert.features import SPECIAL
from helpers.models.bert.squad import FILE, TRAINING

SEED, FILE_SEED = 1, 3  # of the questions to evaluate, and of those of the training file
SETS = {"generated": 48, "generated-few": 4, "generated-small": 7}  # paragraphs
TRAINING_SETS = {"generated": 56, "generated-few": 14, "generated-small": 7}
SHORT, LONG = (0, 6), (40, 58)  # unrelated sentences of a paragraph: [smallest, largest)
LONG_EVERY = 7  # one paragraph in so many is long and needs several windows
FACTS = (  # a sentence with the answer in brackets, and its question
    ("{name} was born in [{place}{ending}].", "Where was {name} born?"),
    ("{name} died on [{day} {month} {year}].", "When did {name} die?"),
    ("{name} worked as a [{rank} {job}].", "What did {name} work as?"),
    ("{name} invented the [{material} {thing}].", "Which invention made {name} famous?"),
    ("{name} owned [{number}] boats.", "How many boats did {name} own?"),
)
WORDS = {
    "name": "Ada Boris Clara Edwin Flora Hugo Irma Jonas Lena Otto Ruth Victor",
    "place": "Bal Dor Gar Hel Lan Mar Nor Quin Ros Tal Val Wel",
    "ending": "bury ford ham stead ton wick",
    "day": " ".join(map(str, range(1, 29))),
    "month": "January March April June July August October November December",
    "year": " ".join(map(str, range(1700, 2000))),
    "rank": "chief city coastal court garden junior naval private royal senior",
    "job": "baker banker carpenter chemist judge mason painter pilot surgeon weaver",
    "material": "brass copper folding glass hanging iron paper rotating silent steel",
    "thing": "camera clock compass engine kite lamp loom organ pump telescope",
    "number": "two three four five six seven eight nine ten twelve twenty",
}
FILLERS = (
    "Few people of that time ever saw the sea.",
    "Most of the old papers were lost in a fire.",
    "The river was too low during most of the summer.",
    "A road to the coast was built only much later.",
    "Some letters from these years are kept in the library.",
    "Neither the weather nor the war made much of a change.",
)
T = TypeVar("T")


@dataclass(frozen=True)
class Asked:
    """A question, its answer, and the index of the answer's first character in the paragraph."""

    question: str
    answer: str
    start: int


def write(config: Config, folder: Path) -> None:
    """Write the set `config.dataset` in SQuAD's format, a training file, and the vocabulary."""
    name = config.dataset
    count = lookup_size(name, SETS, f" or a folder that holds {FILE} and {VOCABULARY}")
    _write(folder / FILE, name, count, SEED)
    _write(folder / TRAINING, name, TRAINING_SETS[name], FILE_SEED)
    (folder / VOCABULARY).write_text("\n".join(vocabulary()) + "\n")
    (folder / GENERATED).write_text(json.dumps({"name": name, "seed": SEED}) + "\n")


def _write(path: Path, name: str, count: int, seed: int) -> None:
    paragraphs = []
    for index in range(count):
        rng = np.random.default_rng([seed, index])
        context, qas = write_paragraph(rng, long=index % LONG_EVERY == LONG_EVERY // 2)
        questions = [
            {
                "id": f"{index:04d}-{number}",
                "question": qa.question,
                "answers": [{"answer_start": qa.start, "text": qa.answer}],
            }
            for number, qa in enumerate(qas)
        ]
        paragraphs.append({"context": context, "qas": questions})
    document = {"version": "1.1", "data": [{"title": name, "paragraphs": paragraphs}]}
    path.write_text(json.dumps(document, indent=1) + "\n")


def write_paragraph(rng: Generator, long: bool) -> tuple[str, list[Asked]]:
    """State every fact about one person among unrelated sentences, in any order."""
    words = {kind: _pick(rng, choices.split()) for kind, choices in WORDS.items()}
    fillers = int(rng.integers(*(LONG if long else SHORT)))
    sentences = [*FACTS, *((_pick(rng, FILLERS), "") for _ in range(fillers))]
    context, qas = "", []
    for index in rng.permutation(len(sentences)):
        sentence, question = (template.format_map(words) for template in sentences[index])
        if question:
            before, answer, after = re.split(r"[\[\]]", sentence)
            qas.append(Asked(question, answer, len(context) + len(before)))
            sentence = before + answer + after
        context += f"{sentence} "
    return context.rstrip(), qas


def vocabulary() -> list[str]:
    """List the tokens: words, and pieces into which any other word of a-z and 0-9 splits."""
    texts = [*FILLERS, *WORDS.values(), *(text for fact in FACTS for text in fact)]
    words = re.findall("[a-z]+", " ".join(texts).lower())
    pairs = [f"{number:02d}" for number in range(100)]  # of a year's digits
    pieces = [*string.ascii_lowercase, *string.digits, *pairs, *WORDS["ending"].split()]
    tokens = [*SPECIAL, *string.punctuation, *words, *pieces, *(f"##{piece}" for piece in pieces)]
    return list(dict.fromkeys(tokens))


def _pick(rng: Generator, values: Sequence[T]) -> T:
    return values[int(rng.integers(len(values)))]
