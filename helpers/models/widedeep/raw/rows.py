"""Clicks joined with their events, ads and documents, one span of display ids at a time.

Both files are first partitioned on disk by spans. So memory holds one span, however the files are
sorted, and however long they are.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from helpers.errors import DataError
from helpers.models.widedeep.features import CLICKED, DISPLAY, MULTI_HOT
from helpers.models.widedeep.raw.files import Files, refuse_repeated
from helpers.models.widedeep.raw.statistics import AGES
from helpers.models.widedeep.raw.tables import KINDS, Tables

if TYPE_CHECKING:
    from polars import DataFrame, Expr

SPAN = 100_000  # display ids: about 520,000 rows of the public clicks
TRAINING_DAYS = 10  # the last day, counted from 0, whose displays may train
KEPT_OUT = 0.2  # of the displays of those days
SEED = 0
EPOCH = 1_465_876_799_998  # milliseconds since 1970 at timestamp 0 of events.csv, as Kaggle states
DAY = 24 * 60 * 60 * 1000  # milliseconds
OLDEST = 10 * 365  # days; an older document counts as new, as one of the future does
OF_EVENT = ("document_id", "source_id", "publisher_id", "platform", "geo_location", *MULTI_HOT)


def partition(files: Files, folder: Path) -> list[int]:
    """Write clicks and events into `folder` by spans of display ids; give the spans of clicks."""
    import polars as pl

    for name in ("events", "clicks_train"):
        spans = pl.PartitionBy(folder / name, key={"span": pl.col(DISPLAY) // SPAN})
        table = files.scan(name).select(pl.exclude("uuid"))
        table.sink_parquet(spans, compression="lz4", mkdir=True)
    return sorted(int(path.name.partition("=")[2]) for path in (folder / "clicks_train").iterdir())


def join(files: Files, tables: Tables, folder: Path, spans: list[int]) -> Iterator["DataFrame"]:
    """Yield each span's rows in order of displays; those of one keep the file's order.

    Columns: display_id, clicked, ad_id, `trains` (whether the display is of the training part),
    what is known of the event and its document, the features of similarity, and the ages in days
    of both documents (null if not known). Raises DataError for a display without an event or with
    two, and for an ad that promoted_content.csv lacks.
    """
    import polars as pl

    trains = (pl.col("timestamp") // DAY <= TRAINING_DAYS) & (pl.col("draw") > KEPT_OUT)
    columns = {"trains": trains} | {
        f"document_id_document_id_promo_sim_{kind}": tables.similarity(kind) for kind in KINDS
    }
    for name, published in zip(AGES, ("published", "published_promo"), strict=True):
        columns[name] = age(pl.col("timestamp"), pl.col(published))
    random = np.random.default_rng(SEED)
    for span in spans:
        clicks, events = (
            pl.scan_parquet(folder / name, hive_partitioning=True)
            .filter(pl.col("span") == span)
            .sort(DISPLAY, maintain_order=True)
            .collect()
            for name in ("clicks_train", "events")
        )
        refuse_repeated(events, DISPLAY, files.paths["events"])
        _refuse_lost(clicks, events, DISPLAY, files, "events")
        _refuse_lost(clicks, tables.ads, "ad_id", files, "promoted_content")
        displays = clicks[DISPLAY].unique(maintain_order=True)
        draws = pl.LazyFrame({DISPLAY: displays, "draw": random.random(len(displays))})
        shown = draws.join(events.lazy(), on=DISPLAY)
        shown = shown.join(tables.documents.lazy(), on="document_id", how="left")
        rows = clicks.lazy()
        for table, key in ((shown, DISPLAY), (tables.ads.lazy(), "ad_id")):
            rows = rows.join(table, on=key, how="left", maintain_order="left")
        yield rows.select(DISPLAY, CLICKED, "ad_id", *OF_EVENT, **columns).collect()


def age(timestamp: "Expr", published: "Expr") -> "Expr":
    """Give whole days from publication to the event, 0 outside 0 to `OLDEST`, null if unknown.

    `timestamp` counts milliseconds from the start of events.csv, `published` from 1970.
    """
    import polars as pl

    days = (timestamp + EPOCH - published) // DAY
    return pl.when(days.is_null() | days.is_between(0, OLDEST)).then(days).otherwise(0)


def _refuse_lost(
    clicks: "DataFrame", table: "DataFrame", key: str, files: Files, name: str
) -> None:
    """Raise DataError for a click whose key is not in `table`, which is of the file `name`."""
    if len(lost := clicks.join(table, on=key, how="anti", maintain_order="left")):
        path, other = files.paths["clicks_train"], files.paths[name].name
        raise DataError(f"{path} holds {key} {lost[key][0]}, which {other} lacks")
