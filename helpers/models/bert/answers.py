"""How logits become answers: the best span of each question over all its windows.

The rules are those of the published SQuAD scripts for BERT: of each window the 20 best starts and
ends; a start only in the window that shows most around it; at most 30 tokens.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from helpers.models.bert.features import Window, fullest

N_BEST = 20
ANSWER_TOKENS = 30
CHUNK = 512  # windows at once, which bounds the memory

Bools = NDArray[np.bool_]
Logits = NDArray[Any]


def best_spans(
    windows: Sequence[Window], start: Logits, end: Logits
) -> dict[int, tuple[int, int] | None]:
    """Give the first and last token of the paragraph for each question, or None if no span is
    allowed.

    `windows` holds all windows of each question, one after the other; `start` and `end` are
    [windows, tokens]. A logit that is not a number belongs to no span.
    """
    best: dict[int, tuple[float, tuple[int, int] | None]] = {}
    allowed = _allowed(windows, start.shape[1])
    for first in range(0, len(windows), CHUNK):
        part = slice(first, first + CHUNK)
        usable = np.stack([next(allowed) for _ in windows[part]])
        spans = zip(*_best_of_each(windows[part], start[part], end[part], usable), strict=True)
        for window, (score, left, right) in zip(windows[part], spans, strict=True):
            known = best.setdefault(window.question, (-np.inf, None))
            if score > known[0]:
                shift = window.start - window.offset
                best[window.question] = (score, (int(left) + shift, int(right) + shift))
    return {question: span for question, (_, span) in best.items()}


def _allowed(windows: Sequence[Window], length: int) -> Iterator[Bools]:
    """Mark, for one window after the other, the places of a sequence where an answer may start."""
    for _, group in groupby(windows, lambda window: window.question):
        siblings = list(group)
        best = fullest(siblings)
        for place, window in enumerate(siblings):
            mask = np.zeros(length, dtype=bool)
            inside = best[window.start : window.start + window.length] == place
            mask[window.offset : window.offset + window.length] = inside
            yield mask


def _best_of_each(
    windows: Sequence[Window], start: Logits, end: Logits, usable: Bools
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """Give each window's largest sum of a start and an end logit, and their places."""
    starts, ends = _highest(start), _highest(end)
    last = np.array([[window.offset + window.length] for window in windows])
    sums = _taken(start, starts)[:, :, None] + _taken(end, ends)[:, None, :]
    length = ends[:, None, :] - starts[:, :, None] + 1
    allowed = np.take_along_axis(usable, starts, 1)[:, :, None] & (ends < last)[:, None, :]
    allowed &= (length >= 1) & (length <= ANSWER_TOKENS) & ~np.isnan(sums)
    flat = np.where(allowed, sums, -np.inf).reshape(len(sums), -1)
    row, best = np.arange(len(flat)), flat.argmax(axis=1)
    left, right = np.divmod(best, ends.shape[1])
    return flat[row, best], starts[row, left], ends[row, right]


def _highest(logits: Logits) -> NDArray[np.int64]:
    return np.argsort(-logits.astype(np.float64), axis=1, kind="stable")[:, :N_BEST]


def _taken(logits: Logits, places: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.take_along_axis(logits, places, 1).astype(np.float64)
