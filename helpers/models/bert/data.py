"""Batches from SQuAD's questions and a vocabulary, and scores of outputs."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from helpers.errors import DataError
from helpers.models import Arrays, Dataset
from helpers.models._tables import GENERATED
from helpers.models.bert import metric
from helpers.models.bert.answers import best_spans
from helpers.models.bert.features import Window, WordPiece, windows
from helpers.models.bert.squad import FILE, parse

VOCABULARY = "vocab.txt"
PUBLISHED = "3e85deb501d4e538b6bc56f786231552"  # MD5 of the public file


class QuestionSet(Dataset):
    """The questions of `file`, tokenized with `vocab.txt`, from anywhere in a folder.

    A sample is a window of `length` tokens over one question's paragraph. Raises DataError for
    another layout, a damaged file, or a vocabulary of more than `rows` tokens.
    """

    def __init__(
        self,
        folder: Path,
        length: int,
        rows: int,
        inputs: Sequence[str],
        outputs: Sequence[str],
        file: str = FILE,
    ) -> None:
        self.length, self._inputs, self.outputs = length, inputs, outputs
        path = _only(folder, file)
        content = path.read_bytes()
        self.tokenizer = WordPiece(_only(folder, VOCABULARY), rows)
        self.contexts, self.questions = parse(content, path)
        self._origin = _origin(content, path.with_name(GENERATED))
        self._contexts = self.tokenizer.encode(self.contexts)
        self._queries = self.tokenizer.encode([question.text for question in self.questions])
        self.windows: list[Window] = []
        for index, question in enumerate(self.questions):
            query, context = self._queries[index], self._contexts[question.context]
            self.windows += windows(index, len(query.ids), len(context.ids), length)

    @property
    def facts(self) -> dict[str, str | int]:
        """Return the numbers of paragraphs, questions and windows, and the questions' origin."""
        return {
            "paragraphs": len(self.contexts),
            "questions": len(self.questions),
            "features": len(self),
            "origin": self._origin,
        }

    def __len__(self) -> int:
        return len(self.windows)

    def windows_of(self, question: int) -> list[int]:
        """Return the indices of all windows of the question with that index."""
        return [i for i, window in enumerate(self.windows) if window.question == question]

    def tokens_of(self, question: int) -> list[str]:
        """Return all tokens of the question with that index."""
        return self.tokenizer.tokens(self._queries[question])

    def characters(self, window: int) -> NDArray[np.int32]:
        """Return each token's first and past-last character in the paragraph, [tokens, 2]."""
        part = self.windows[window]
        context = self._contexts[self.questions[part.question].context]
        return context.spans[part.start : part.start + part.length]

    def take(self, places: Sequence[int] | NDArray[np.int64]) -> Arrays:
        """Return ids, segments and mask of the windows at `places`, int32 [windows, length]."""
        rows = []
        for index in places:
            window = self.windows[index]
            query = self._queries[window.question]
            context = self._contexts[self.questions[window.question].context]
            rows.append(self.tokenizer.sequence(query, context, window, self.length))
        return dict(zip(self._inputs, map(np.stack, zip(*rows, strict=True)), strict=True))

    def answers(self, outputs: Arrays, places: Sequence[int] | None = None) -> dict[str, str]:
        """Return the best text for each question's id; it is empty where no span is allowed.

        The outputs, [windows, length] each, are those of all windows in order, or of those at
        `places`, which hold all windows of their questions. Raises DataError for another shape.
        """
        chosen = self.windows if places is None else [self.windows[index] for index in places]
        for name in self.outputs:
            actual, expected = list(outputs[name].shape), [len(chosen), self.length]
            if actual != expected:
                raise DataError(f"{name} is {actual} and should be {expected}")
        start, end = (outputs[name] for name in self.outputs)
        spans = best_spans(chosen, start, end)
        return {self.questions[index].id: self._text(index, span) for index, span in spans.items()}

    def score(self, outputs: Arrays) -> dict[str, float]:
        """Return SQuAD v1.1's F1 and exact match over every question, in percent."""
        answers = self.answers(outputs)
        return metric.score((answers[question.id], question.answers) for question in self.questions)

    def decisions(self, outputs: Arrays) -> NDArray[np.str_]:
        """Return the answer to each question."""
        return np.array(list(self.answers(outputs).values()))

    def _text(self, question: int, span: tuple[int, int] | None) -> str:
        """Cut the answer out of the paragraph as it was written."""
        if span is None:
            return ""
        context = self.questions[question].context
        characters = self._contexts[context].spans
        return self.contexts[context][characters[span[0], 0] : characters[span[1], 1]]


def _only(folder: Path, name: str) -> Path:
    """Find the one file of that name below a folder."""
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder. Use one that has {FILE} and {VOCABULARY}.")
    paths = sorted(path for path in folder.rglob(name) if path.is_file())
    if not paths:
        raise DataError(f"{folder} has no {name}, nor have its subfolders")
    if len(paths) > 1:
        places = " and ".join(str(path.relative_to(folder)) for path in paths[:2])
        raise DataError(f"{folder} has {len(paths)} files {name}. Keep one of them: {places}")
    return paths[0]


def _origin(content: bytes, marker: Path) -> str:
    if marker.is_file():
        return "generated"
    is_public = hashlib.md5(content, usedforsecurity=False).hexdigest() == PUBLISHED
    return "SQuAD v1.1 dev set (md5 verified)" if is_public else "another file in SQuAD's format"
