"""Tables of questions of an evaluation set: as tokens, and with the answers a network gives."""

import numpy as np

from helpers.models._arrays import Answers, answers, concatenate, spread
from helpers.models.bert.data import QuestionSet

AROUND = 60  # characters of the paragraph on both sides of an answer


def show_answers(dataset: QuestionSet, infer: Answers, count: int = 5) -> list[dict[str, str]]:
    """Answer `count` questions, spread over the set, by `infer`, which turns a batch into outputs,
    or holds those of all windows.

    Gives one row for each question; every window over its paragraph is run, one at a time.
    """
    rows = []
    for place in spread(len(dataset.questions), count).tolist():
        question, windows = dataset.questions[place], dataset.windows_of(place)
        outputs = concatenate(
            answers(infer, dataset.batch([window]), np.array([window])) for window in windows
        )
        context, expected = dataset.contexts[question.context], question.answers[0]
        rows.append(
            {
                "question": question.text,
                "answer": dataset.answers(outputs, windows)[question.id],
                "expected": expected,
                "context": _excerpt(context, expected),
            }
        )
    return rows


def show_features(dataset: QuestionSet, count: int = 5) -> list[dict[str, str | int]]:
    """Say of `count` questions, spread over the set, what tokens and windows they make."""
    rows: list[dict[str, str | int]] = []
    for place in spread(len(dataset.questions), count).tolist():
        question, windows = dataset.questions[place], dataset.windows_of(place)
        last = dataset.windows[windows[-1]]
        rows.append(
            {
                "question": question.text,
                "tokens": " ".join(dataset.tokens_of(place)),
                "paragraph tokens": last.start + last.length,
                "windows": len(windows),
                "answer": question.answers[0],
            }
        )
    return rows


def _excerpt(context: str, answer: str) -> str:
    """Cut out what stands around an answer, at white space."""
    place = max(context.find(answer), 0)
    first, last = max(place - AROUND, 0), place + len(answer) + AROUND
    text = context[first:last]
    if first:
        text = "… " + text.partition(" ")[2]
    return text.rpartition(" ")[0] + " …" if last < len(context) else text
