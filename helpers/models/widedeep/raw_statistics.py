"""What is learnt from the training rows: rates of clicks, counts and typical ages.

As in NVIDIA's workflow, which is fitted to the training part and then applied to both: a
validation row never adds to a statistic.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from helpers.models.widedeep.raw_tables import NEVER, Ads, Integers

# Each key that a rate of clicks is taken by -> the number of rows below which the rate counts as 0.
THRESHOLDS = {
    "ad_id": 5,
    "source_id_promo": 10,
    "publisher_id_promo": 10,
    "advertiser_id": 10,
    "campaign_id": 10,
    "document_id_promo": 5,
}
COUNTED = ("document_id_promo", "ad_id")  # whose counts are features themselves
EPOCH = 1_465_876_799_998  # milliseconds since 1970 at timestamp 0 of events.csv, as Kaggle states
DAY = 24 * 60 * 60 * 1000  # milliseconds
OLDEST = 10 * 365  # days; an older document counts as new, as one of the future does
UNKNOWN = -1  # days of a document without a time of publication

Floats = NDArray[np.float32]


def ages(timestamps: Integers, published: Integers) -> Integers:
    """Give whole days from publication to the event, 0 outside 0 to 3650, and UNKNOWN: [rows]."""
    days = (timestamps + EPOCH - np.where(published == NEVER, 0, published)) // DAY
    days[(days < 0) | (days > OLDEST)] = 0
    return np.where(published == NEVER, UNKNOWN, days)


@dataclass(frozen=True)
class Statistics:
    """The features that follow from an ad alone, and what fills an age that is not known."""

    rates: dict[str, Floats]  # key -> [ads]
    counts: dict[str, Floats]  # key -> [ads], standardised
    medians: dict[str, float]  # feature -> days
    facts: dict[str, Any]


class Learner:
    """Takes the training rows part by part."""

    def __init__(self, ads: Ads) -> None:
        self._ads, self._rows = ads, 0
        self._shown = np.zeros(len(ads), dtype=np.int64)
        self._clicked = np.zeros(len(ads), dtype=np.int64)
        self._ages: dict[str, Integers] = {}

    def add(self, ads: NDArray[Any], clicked: NDArray[np.bool_], days: dict[str, Integers]) -> None:
        """Take rows: the place of the ad, whether it was clicked, and ages: [rows] each."""
        self._rows += len(ads)
        self._shown += np.bincount(ads, minlength=len(self._shown))
        self._clicked += np.bincount(ads[clicked], minlength=len(self._shown))
        for name, values in days.items():
            known = np.bincount(values[values != UNKNOWN], minlength=OLDEST + 1)
            self._ages[name] = self._ages.get(name, 0) + known

    def finish(self) -> Statistics:
        """Give the statistics of all rows; a missing key is a key like others.

        rate = clicks / rows, 0 below the threshold and for what never was in a training row.
        count = (ln(rows + 1) - mean) / deviation, both over training rows; the deviation is that
        of a sample (divided by n - 1). The median is exact, where NVIDIA's is dask's approximation.
        """
        rates: dict[str, Floats] = {}
        counts: dict[str, Floats] = {}
        facts: dict[str, Any] = {"training_rows": self._rows}
        for key, threshold in THRESHOLDS.items():
            _, group = np.unique(self._ads.keys[key], return_inverse=True)
            rows = np.bincount(group, weights=self._shown)
            clicks = np.bincount(group, weights=self._clicked)
            rate = np.where(rows >= threshold, clicks / np.maximum(rows, 1), 0)
            rates[key] = rate[group].astype(np.float32)
            if key in COUNTED:
                logs = np.log1p(rows[group])
                mean = float(self._shown @ logs) / max(1, self._rows)
                squares = float(self._shown @ (logs - mean) ** 2)
                deviation = (squares / max(1, self._rows - 1)) ** 0.5
                counts[key] = ((logs - mean) / (deviation or 1)).astype(np.float32)
                facts[f"{key}_count"] = {"mean": mean, "deviation": deviation}
        medians = {name: _median(known) for name, known in self._ages.items()}
        facts |= {"thresholds": THRESHOLDS, "median_days": medians}
        return Statistics(rates, counts, medians, facts)


def _median(counts: Integers) -> float:
    """Give the median of 0, 1, ... that come `counts` times each; 0 of nothing."""
    ends = np.cumsum(counts)
    if not ends[-1]:
        return 0.0
    middle = np.searchsorted(ends, [(ends[-1] - 1) // 2, ends[-1] // 2], side="right")
    return float(middle.mean())
