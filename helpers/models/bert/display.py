"""Showing questions of an evaluation set: as tokens, and with the answers a network gives."""

from collections.abc import Callable
from typing import Any

import numpy as np

from helpers.models import Arrays
from helpers.models.bert.data import QuestionSet

AROUND = 60  # characters of the paragraph on both sides of an answer


def show_answers(
    dataset: QuestionSet, infer: Callable[[Arrays], Arrays], count: int = 5
) -> list[dict[str, Any]]:
    """Answer `count` questions, spread over the set, by `infer`, which turns a batch into outputs.

    Gives one row for each question; every window over its paragraph is run, one at a time.
    """
    rows = []
    for place in _spread(len(dataset.squad.questions), count):
        question = dataset.squad.questions[place]
        windows = dataset.windows_of(place)
        parts = [infer(dataset.batch([window])) for window in windows]
        outputs = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        answer = dataset.answers(outputs, windows)[question.id]
        context = dataset.squad.contexts[question.context]
        rows.append(
            {
                "question": question.text,
                "answer": answer,
                "expected": question.answers[0],
                "context": _excerpt(context, question.answers[0]),
            }
        )
    return rows


def show_features(dataset: QuestionSet, count: int = 5) -> list[dict[str, Any]]:
    """Say of `count` questions, spread over the set, what tokens and windows they make."""
    rows = []
    for place in _spread(len(dataset.squad.questions), count):
        question = dataset.squad.questions[place]
        windows = [dataset.windows[window] for window in dataset.windows_of(place)]
        rows.append(
            {
                "question": question.text,
                "tokens": " ".join(dataset.tokens_of(place)),
                "paragraph tokens": windows[-1].start + windows[-1].length,
                "windows": len(windows),
                "answer": question.answers[0],
            }
        )
    return rows


def _spread(total: int, count: int) -> list[int]:
    count = min(count, total)
    return [i * total // count for i in range(count)]


def _excerpt(context: str, answer: str) -> str:
    """Cut out what stands around an answer, at white space."""
    place = max(context.find(answer), 0)
    first, last = max(place - AROUND, 0), place + len(answer) + AROUND
    text = context[first:last]
    if first:
        text = "… " + text.partition(" ")[2]
    return text.rpartition(" ")[0] + " …" if last < len(context) else text
