"""Answers from logits: the best span of each question over all its windows.

The rules are those of the published SQuAD scripts for BERT. Each window contributes its 20 best
starts and ends. A start counts only in the window with most context around it. A span has at most
30 tokens.
"""

from collections.abc import Sequence
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from helpers.models.bert.features import Window, fullest

N_BEST = 20
ANSWER_TOKENS = 30

Floats = NDArray[np.float64]
Span = tuple[int, int]


def best_spans(
    windows: Sequence[Window], start: NDArray[np.generic], end: NDArray[np.generic]
) -> dict[int, Span | None]:
    """Return each question's first and last token of the paragraph; None if no span is allowed.

    `windows` holds all windows of each question, one after the other; `start` and `end` are
    [windows, tokens]. A logit that is not a number belongs to no span.
    """
    best: dict[int, Span | None] = {}
    rows = zip(start.astype(np.float64), end.astype(np.float64), strict=True)
    for question, group in groupby(windows, lambda window: window.question):
        siblings = list(group)
        shown = fullest(siblings)
        highest, best[question] = -np.inf, None
        for index, window in enumerate(siblings):
            score, span = _best_span(window, shown == index, *next(rows))
            if score > highest:
                highest, best[question] = score, span
    return best


def _best_span(
    window: Window, startable: NDArray[np.bool_], start: Floats, end: Floats
) -> tuple[float, Span]:
    """Return the largest sum of a start and an end logit, and the tokens of the paragraph.

    `startable` tells for each token of the paragraph whether an answer may start there.
    """
    starts, ends = (np.argsort(-logits, kind="stable")[:N_BEST] for logits in (start, end))
    usable = np.zeros(len(start), dtype=bool)
    inside = slice(window.offset, window.offset + window.length)
    usable[inside] = startable[window.start : window.start + window.length]
    sums = start[starts][:, None] + end[ends]
    length = ends - starts[:, None] + 1
    allowed = usable[starts][:, None] & (ends < inside.stop) & ~np.isnan(sums)
    allowed &= (length >= 1) & (length <= ANSWER_TOKENS)
    sums = np.where(allowed, sums, -np.inf)
    left, right = np.unravel_index(sums.argmax(), sums.shape)
    shift = window.start - window.offset
    return float(sums.max()), (int(starts[left]) + shift, int(ends[right]) + shift)
