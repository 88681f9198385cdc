"""Tables of questions of an evaluation set: as tokens, and with the answers a network gives."""

import numpy as np

from helpers.models import Example
from helpers.models._arrays import Answers, answers, concatenate, spread
from helpers.models.bert.data import QuestionSet

AROUND = 60  # characters of the paragraph on both sides of an answer
READING = """\
passage = slice(*sample["passage"])  # its tokens; those before are the question's
start, end = (response.as_numpy(name)[0, passage] for name in {outputs})
scores = np.add.outer(start, end)
scores[np.tril_indices(len(scores), -1)] = -np.inf  # no answer ends before its start
first, last = np.unravel_index(scores.argmax(), scores.shape)
characters = sample["characters"]  # of each token of the passage
print(sample["question"])
print("answer:", str(sample["text"])[characters[first, 0]:characters[last, 1]])
print("expected:", sample["expected"])
"""


def show_answers(dataset: QuestionSet, infer: Answers, count: int = 5) -> list[dict[str, str]]:
    """Return a row for each of `count` questions, spread over the set; windows run one by one."""

    def row(index: int) -> dict[str, str]:
        question, windows = dataset.questions[index], dataset.windows_of(index)
        outputs = concatenate(
            answers(infer, dataset.take([window]), np.array([window])) for window in windows
        )
        context, expected = dataset.contexts[question.context], question.answers[0]
        return {
            "question": question.text,
            "answer": dataset.answers(outputs, windows)[question.id],
            "expected": expected,
            "context": _excerpt(context, expected),
        }

    return [row(index) for index in spread(len(dataset.questions), count).tolist()]


def example(dataset: QuestionSet, most: int) -> Example:
    """Choose the first question of `show_answers`, and the first window with its answer."""
    question, windows = dataset.questions[0], dataset.windows_of(0)
    text, expected = dataset.contexts[question.context], question.answers[0]
    spans = {index: dataset.characters(index) for index in windows}
    start = text.find(expected)
    with_answer = [index for index in windows if spans[index][0, 0] <= start < spans[index][-1, 1]]
    chosen = (with_answer or windows)[0]
    window = dataset.windows[chosen]
    beside = {
        "question": np.array(question.text),
        "text": np.array(text),
        "characters": spans[chosen],
        "passage": np.array([window.offset, window.offset + window.length]),
        "expected": np.array(expected),
    }
    return Example(dataset.take([chosen]), beside, READING.format(outputs=tuple(dataset.outputs)))


def show_features(dataset: QuestionSet, count: int = 5) -> list[dict[str, str | int]]:
    """Return the tokens and the number of windows of `count` questions, spread over the set."""
    rows: list[dict[str, str | int]] = []
    for index in spread(len(dataset.questions), count).tolist():
        question, windows = dataset.questions[index], dataset.windows_of(index)
        last = dataset.windows[windows[-1]]
        rows.append(
            {
                "question": question.text,
                "tokens": " ".join(dataset.tokens_of(index)),
                "paragraph tokens": last.start + last.length,
                "windows": len(windows),
                "answer": question.answers[0],
            }
        )
    return rows


def _excerpt(context: str, answer: str) -> str:
    """Cut out the text around an answer, at white space."""
    start = max(context.find(answer), 0)
    first, last = max(start - AROUND, 0), start + len(answer) + AROUND
    text = context[first:last]
    if first:
        text = "… " + text.partition(" ")[2]
    return text.rpartition(" ")[0] + " …" if last < len(context) else text
