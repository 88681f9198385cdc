"""MAP@12 of outbrain's competition: how near the top of its display the clicked ad is ranked."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

CUT = 12  # places that count


def first_click_ranks(
    display: NDArray[Any], clicked: NDArray[Any], predicted: NDArray[Any]
) -> NDArray[np.int64]:
    """Rank the rows of each display by their prediction, from 1, and return the first click's rank.

    All are [rows]; of equal predictions the earlier row comes first, and a NaN comes last. The
    ranks are in order of display; a display without a click has none.
    """
    order = np.lexsort((-predicted, display))
    shown, hits = display[order], np.flatnonzero(np.asarray(clicked)[order])
    _, start, sizes = np.unique(shown, return_index=True, return_counts=True)
    rank = np.arange(len(shown)) - np.repeat(start, sizes) + 1
    _, first = np.unique(shown[hits], return_index=True)
    return np.asarray(rank[hits[first]], dtype=np.int64)


def mean_average_precision(ranks: NDArray[np.int64]) -> float:
    """Return MAP@12 from the first click's rank in each display.

    A display has one click, so that its average precision is 1 / rank, and 0 beyond place 12.
    """
    return float(np.where(ranks <= CUT, 1 / ranks, 0).mean())
