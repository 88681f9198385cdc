"""Statistics of the training rows: rates of clicks, counts and median ages.

As in NVIDIA's workflow, which is fitted to the training part and then applied to both: a
validation row never adds to a statistic.
"""

from dataclasses import dataclass

import numpy as np
import polars as pl

from helpers.models.widedeep.features import CLICKED, DISPLAY, NAMES, ONE_HOT
from helpers.models.widedeep.raw.tables import row_of

# Each key that a rate of clicks is taken by -> the number of rows below which the rate counts as 0.
THRESHOLDS = {
    "ad_id": 5,
    "source_id_promo": 10,
    "publisher_id_promo": 10,
    "advertiser_id": 10,
    "campaign_id": 10,
    "document_id_promo": 5,
}
COUNTED = ("ad_id", "document_id_promo")  # whose counts are features themselves
AGES = ("publish_time_days_since_published", "publish_time_promo_days_since_published")


@dataclass(frozen=True)
class Statistics:
    """The features that follow from an ad alone, and what fills an age that is not known."""

    ads: pl.DataFrame  # `ad` (its id), the six keys hashed, rates and standardised counts
    medians: dict[str, float]  # age -> days
    facts: dict[str, object]

    def features(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """Turn joined rows into the features, the click and the display."""
        rows = rows.rename({"ad_id": "ad"})
        rows = rows.join(self.ads.lazy(), on="ad", how="left", maintain_order="left")
        medians = self.medians.items()
        ages = (pl.col(name).fill_null(days).log1p().cast(pl.Float32) for name, days in medians)
        return rows.with_columns(ages).select(*NAMES, pl.col(CLICKED).cast(pl.Int32), DISPLAY)


def learn(rows: pl.LazyFrame, ads: pl.DataFrame) -> Statistics:
    """Compute the statistics of training rows: `ad_id`, whether it was clicked, ages in whole days.

    rate = clicks / rows, 0 below the threshold and for a key without training rows.
    count = (ln(rows + 1) - mean) / deviation, both over training rows. The deviation is the
    sample's (divided by n - 1). The median is exact; NVIDIA's is dask's approximation. A
    missing key is a key like others. Memory holds a row for each ad and for each age.
    """
    shown = rows.group_by("ad_id").agg(shown=pl.len(), clicks=pl.col(CLICKED).sum())
    ads = ads.join(shown.collect(engine="streaming"), on="ad_id", how="left").sort("ad_id")
    ads = ads.select(*THRESHOLDS, pl.col("shown", "clicks").fill_null(0))
    for key, threshold in THRESHOLDS.items():
        count, clicks = (pl.col(name).sum().over(key) for name in ("shown", "clicks"))
        rate = pl.when(count >= threshold).then(clicks / count).otherwise(0)
        ads = ads.with_columns(rate.cast(pl.Float32).alias(f"{key}_ctr"))
    weights = ads["shown"].to_numpy()
    total = int(weights.sum())
    metadata: dict[str, object] = {"training_rows": total}
    for key in COUNTED:
        logs = np.log1p(ads.select(pl.col("shown").sum().over(key)).to_series().to_numpy())
        mean = float(weights @ logs) / max(1, total)
        squares = float(weights @ (logs - mean) ** 2)
        deviation = (squares / max(1, total - 1)) ** 0.5
        standard = pl.Series((logs - mean) / (deviation or 1), dtype=pl.Float32)
        ads = ads.with_columns(standard.alias(f"{key}_count"))
        metadata[f"{key}_count"] = {"mean": mean, "deviation": deviation}
    medians = {name: median(rows, name) for name in AGES}
    metadata |= {"thresholds": THRESHOLDS, "median_days": medians}
    hashed = {key: row_of(pl.col(key), ONE_HOT[key][0]) for key in THRESHOLDS}
    return Statistics(ads.with_columns(ad="ad_id", **hashed), medians, metadata)


def median(rows: pl.LazyFrame, name: str) -> float:
    """Return the median of a column of few distinct numbers, null not counted; 0 of nothing."""
    counts = rows.drop_nulls(name).group_by(name).len().sort(name).collect(engine="streaming")
    if not (total := int(counts["len"].sum())):
        return 0.0
    middle = pl.Series([(total - 1) // 2, total // 2])
    places = counts["len"].cum_sum().search_sorted(middle, side="right")
    return float(counts[name].gather(places).to_numpy().mean())
