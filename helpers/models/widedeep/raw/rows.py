"""Clicks joined with their events, ads and documents, one span of display ids at a time.

Both files are first partitioned on disk by spans. So memory holds one span, however the files are
sorted, and however long they are.
"""

from pathlib import Path

import numpy as np
import polars as pl

from helpers.display import Progress
from helpers.errors import DataError
from helpers.models.widedeep.features import CLICKED, DISPLAY, MULTI_HOT, ONE_HOT
from helpers.models.widedeep.raw.files import Files, refuse_repeated
from helpers.models.widedeep.raw.statistics import AGES
from helpers.models.widedeep.raw.tables import KINDS, Tables, row_of

SPAN = 100_000  # display ids: about 520,000 rows of the public clicks
TRAINING_DAYS = 10  # the last day, counted from 0, whose displays may train
KEPT_OUT = 0.2  # of the displays of those days
SEED = 0
EPOCH = 1_465_876_799_998  # milliseconds since 1970 at timestamp 0 of events.csv, as Kaggle states
DAY = 24 * 60 * 60 * 1000  # milliseconds
OLDEST = 10 * 365  # days; an older document counts as new, as one of the future does
PLACES = {"geo_location": None, "geo_location_country": 2, "geo_location_state": 5}  # characters
OF_EVENT = ("document_id", "source_id", "publisher_id", "platform", *PLACES, *MULTI_HOT)


def join(files: Files, tables: Tables, folder: Path, progress: Progress) -> dict[str, int]:
    """Write joined rows into `train` and `valid` of `folder`, a file a span; count those of each.

    Columns: display_id, clicked, ad_id, the attributes of the event and its document, the
    similarities, and both documents' ages in days (null if unknown). Validation rows are in order
    of displays, those of one in the file's order; training rows are shuffled. Raises DataError for
    a display without an event or with two, an ad that promoted_content.csv lacks, and a part
    without rows.
    """
    counts, drawn = {"train": 0, "valid": 0}, 0
    for name in ("events", "clicks_train"):
        partition(files, folder / name, name)
    spans = spans_of(folder)
    for part in counts:
        (folder / part).mkdir()
    for number, span in enumerate(spans):
        added, displays = join_span(files, tables, folder, number, span, drawn)
        counts = {part: count + added[part] for part, count in counts.items()}
        drawn += displays
        progress.say(f"joined: {number + 1} of {len(spans)} spans of displays")
    check_parts(files, counts)
    return counts


def check_parts(files: Files, counts: dict[str, int]) -> None:
    """Raise `DataError` if a part has no rows."""
    if lacking := [part for part, count in counts.items() if not count]:
        path = files.paths["clicks_train"]
        raise DataError(f"{path} has no display of the {lacking[0]} part")


def join_span(
    files: Files, tables: Tables, folder: Path, number: int, span: int, drawn: int
) -> tuple[dict[str, int], int]:
    """Write the joined rows of the `number`th span, after `drawn` displays of the spans before it;
    return the rows of each part, and the number of its displays.
    """
    ages = zip(AGES, ("published", "published_promo"), strict=True)
    columns = {name: age(pl.col("timestamp"), pl.col(time)) for name, time in ages}
    for kind in KINDS:
        columns[f"document_id_document_id_promo_sim_{kind}"] = tables.similarity(kind)
    bits, counts = np.random.PCG64(SEED), {}
    bits.advance(drawn)  # a number of 64 bits each
    clicks, events = _read(files, tables, folder, span)
    displays = clicks[DISPLAY].unique(maintain_order=True)
    draws = np.random.Generator(bits).random(len(displays))
    draw = pl.DataFrame({DISPLAY: displays, "draw": draws})
    events = draw.join(events, on=DISPLAY).join(tables.documents, on="document_id", how="left")
    events = events.with_columns(**_of_event())
    trains = clicks.join(events, on=DISPLAY, how="left", maintain_order="left")["trains"]
    order = np.random.default_rng([SEED, number]).permutation(trains.arg_true())
    for part, places in (("train", order), ("valid", (~trains).arg_true())):
        rows = clicks[places].lazy()
        for table, key in ((events, DISPLAY), (tables.ads, "ad_id")):
            rows = rows.join(table.lazy(), on=key, how="left", maintain_order="left")
        rows = rows.select(DISPLAY, CLICKED, "ad_id", *OF_EVENT, **columns)
        if len(places):
            rows.sink_parquet(folder / part / f"part_{number:05d}.parquet", compression="lz4")
        counts[part] = len(places)
    return counts, len(displays)


def partition(files: Files, folder: Path, name: str) -> None:
    """Write clicks or events into `folder` by spans of display ids."""
    for number, block in enumerate(files.read(name)):
        spans = pl.PartitionBy(folder / f"{number:05d}", key={"span": pl.col(DISPLAY) // SPAN})
        rows = block.lazy().select(pl.exclude("uuid"))
        rows.sink_parquet(spans, compression="lz4", mkdir=True)


def spans_of(folder: Path) -> list[int]:
    """List the spans of the clicks that were partitioned."""
    paths = (folder / "clicks_train").glob("*/span=*")
    return sorted({int(path.name.partition("=")[2]) for path in paths})


def displays_of(folder: Path, span: int) -> int:
    """Count the displays of a span that were clicked."""
    rows = pl.scan_parquet(folder / "clicks_train", hive_partitioning=True)
    count = rows.filter(pl.col("span") == span).select(pl.col(DISPLAY).n_unique()).collect()
    return int(count.item())


def _read(
    files: Files, tables: Tables, folder: Path, span: int
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Read the clicks and events of a span in order of displays; those of one keep the file's."""
    frames = []
    for name in ("clicks_train", "events"):
        rows = pl.scan_parquet(folder / name, hive_partitioning=True).filter(pl.col("span") == span)
        frames.append(rows.drop("span").sort(DISPLAY, maintain_order=True).collect())
    clicks, events = frames
    refuse_repeated(events, DISPLAY, files.paths["events"])
    keys = ((DISPLAY, events, "events"), ("ad_id", tables.ads, "promoted_content"))
    for key, table, name in keys:
        if len(lost := clicks.join(table, on=key, how="anti", maintain_order="left")):
            path, other = files.paths["clicks_train"], files.paths[name].name
            raise DataError(f"{path} has {key} {lost[key][0]}, which {other} lacks")
    return clicks, events


def _of_event() -> dict[str, pl.Expr]:
    """Return whether a display trains, and the features of its event and document."""
    trains = (pl.col("timestamp") // DAY <= TRAINING_DAYS) & (pl.col("draw") > KEPT_OUT)
    ids = {name: pl.col(name) for name in ("document_id", "source_id", "publisher_id")}
    ids["platform"] = pl.col("platform").fill_null(1) - 1  # from 0, a missing one the first
    ids |= {name: pl.col("geo_location").str.slice(0, end) for name, end in PLACES.items()}
    columns = {name: row_of(column, ONE_HOT[name][0]) for name, column in ids.items()}
    nothing = pl.lit([], dtype=pl.List(pl.Int32))
    labels = {name: pl.col(name).fill_null(nothing) for name in MULTI_HOT}
    return {"trains": trains, **columns, **labels}


def age(timestamp: pl.Expr, published: pl.Expr) -> pl.Expr:
    """Return whole days from publication to the event, 0 outside 0 to `OLDEST`, null if unknown.

    `timestamp` counts milliseconds from the start of events.csv, `published` from 1970.
    """
    days = (timestamp + EPOCH - published) // DAY
    return pl.when(days.is_null() | days.is_between(0, OLDEST)).then(days).otherwise(0)
