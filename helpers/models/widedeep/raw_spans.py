"""Clicks and events, laid on disk by spans of display ids, and joined a span at a time.

However the files are sorted, and however long they are, memory holds a block of one or a span.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from helpers.errors import DataError
from helpers.models.widedeep.features import CLICKED, DISPLAY, ONE_HOT
from helpers.models.widedeep.raw_files import Files
from helpers.models.widedeep.raw_hashing import hash_texts
from helpers.models.widedeep.raw_statistics import DAY
from helpers.models.widedeep.raw_tables import Ads

if TYPE_CHECKING:
    from polars import DataFrame, Series

SPAN = 100_000  # display ids: about 520,000 rows of the public clicks
TRAINING_DAYS = 10  # the last day, counted from 0, whose displays may train
KEPT_OUT = 0.2  # of the displays of those days
SEED = 0
PLACES = {"geo_location": None, "geo_location_country": 2, "geo_location_state": 5}  # characters


class Spans:
    """The clicks with their events, by spans of display ids."""

    def __init__(self, files: Files, ads: Ads, folder: Path) -> None:
        """Read both files into `folder`; raise DataError for an ad that `ads` lacks."""
        self._files, self._folder = files, folder
        for block in files.blocks("events"):
            self._lay("events", _prepared(block))
        for block in files.blocks("clicks_train"):
            self._lay("clicks", self._checked(block, ads))
        self._folders = sorted((folder / "clicks").iterdir())

    def __len__(self) -> int:
        return len(self._folders)

    def __iter__(self) -> Iterator["DataFrame"]:
        """Yield each span's rows in order of displays; those of one keep the file's order.

        Columns: display_id, clicked, ad (its place in the table of ads), document_id, timestamp,
        platform (from 0), three hashed places, and `trains`: whether the display is of the training
        part. Raises DataError for a display without an event, or with two.
        """
        import polars as pl

        random = np.random.default_rng(SEED)
        for folder in self._folders:
            rows = _read(folder).sort(DISPLAY, maintain_order=True)
            events = self._events(folder.name, rows[DISPLAY][0])
            displays = rows[DISPLAY].unique().sort()
            draws = pl.DataFrame({DISPLAY: displays, "draw": random.random(len(displays))})
            events = draws.join(events, on=DISPLAY, how="left")
            rows = rows.join(events, on=DISPLAY, how="left", maintain_order="left")
            if (lost := rows[DISPLAY].filter(rows["timestamp"].is_null())).len():
                self._refuse(f"display_id {lost[0]}", "events")
            early = pl.col("timestamp") // DAY <= TRAINING_DAYS
            yield rows.with_columns(trains=early & (pl.col("draw") > KEPT_OUT)).drop("draw")

    def _events(self, span: str, display: int) -> "DataFrame":
        folder = self._folder / "events" / span
        if not folder.is_dir():
            self._refuse(f"display_id {display}", "events")
        events = _read(folder)
        if (twice := events[DISPLAY].filter(events[DISPLAY].is_duplicated())).len():
            path = self._files.path("events")
            raise DataError(f"{path} is damaged: display_id {twice[0]} comes twice")
        return events

    def _checked(self, block: "DataFrame", ads: Ads) -> "DataFrame":
        """Put each ad's place for its id."""
        import polars as pl

        places = ads.index.find(block["ad_id"].to_numpy())
        if (lost := block["ad_id"].filter(pl.Series(places == len(ads)))).len():
            self._refuse(f"ad_id {lost[0]}", "promoted_content")
        if (wrong := block[CLICKED].filter(block[CLICKED] > 1)).len():
            path = self._files.path("clicks_train")
            raise DataError(f"{path} is damaged: clicked is {wrong[0]}, expected 0 or 1")
        return block.with_columns(ad=pl.Series(places.astype(np.int32))).drop("ad_id")

    def _refuse(self, what: str, name: str) -> None:
        clicks, other = self._files.path("clicks_train"), self._files.path(name).name
        raise DataError(f"{clicks} holds {what}, which {other} lacks")

    def _lay(self, kind: str, block: "DataFrame") -> None:
        """Add a file to each span of the block; the public files are sorted, so these are few."""
        block = block.with_columns(span=block[DISPLAY] // SPAN)
        for (span,), rows in block.partition_by("span", as_dict=True, include_key=False).items():
            folder = self._folder / kind / f"{span:08d}"
            folder.mkdir(parents=True, exist_ok=True)
            number = sum(1 for _ in folder.iterdir())
            rows.write_parquet(folder / f"{number:08d}.parquet", compression="lz4")


def _prepared(events: "DataFrame") -> "DataFrame":
    """Number platforms from 0, a missing one as the first; hash places whole and in part."""
    import polars as pl

    platform = pl.col("platform").fill_null(1).cast(pl.Int32) - 1
    places = [_hashed(events["geo_location"], name, end) for name, end in PLACES.items()]
    return events.with_columns(platform, *places).drop("uuid")


def _hashed(places: "Series", name: str, end: int | None) -> "Series":
    """Hash the first `end` characters of each place, such as those of US>SC>519."""
    import polars as pl

    texts = places.str.slice(0, end).fill_null("")
    known = texts.unique()
    hashes = pl.Series(hash_texts(known.to_list(), ONE_HOT[name][0]))
    return texts.replace_strict(known, hashes, return_dtype=pl.Int32).alias(name)


def _read(folder: Path) -> "DataFrame":
    import polars as pl

    return pl.read_parquet(sorted(folder.iterdir()))
