"""How outbrain's public files become the rows that the network takes, within bounded memory.

The steps are those of NVIDIA's NVTabular pipeline for Wide & Deep. Memory holds the documents
with their labels, the ads and one span of displays: 1.3 GB for as many as the public files have,
whatever the number of clicks. The disk takes as much again as the result, for what is between.

Where the original depends on a GPU or on a library's details, this differs: ids are hashed by
another function (`hashing`), those of lists directly rather than by their rank in the training
part; the uniform number that keeps a display from training is NumPy's (seed 0, one a display, in
order of display ids); medians are exact; training rows are shuffled within a span only.
"""

import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from helpers.display import Progress
from helpers.models.widedeep.data import PREPARED
from helpers.models.widedeep.features import CLICKED, DISPLAY, NAMES
from helpers.models.widedeep.raw.files import Files, find
from helpers.models.widedeep.raw.rows import KEPT_OUT, SEED, TRAINING_DAYS, join
from helpers.models.widedeep.raw.statistics import Statistics, learn
from helpers.models.widedeep.raw.tables import read_tables

if TYPE_CHECKING:
    from polars import LazyFrame

PARTS = 8  # files of the validation part, as NVIDIA's


def holds_raw(path: Path) -> bool:
    """Tell whether `path` is a folder with Kaggle's clicks, rather than a prepared set."""
    return find(path, "clicks_train") is not None and not any(path.glob("valid/*.parquet"))


def prepare_raw(config: object, source: Path, folder: Path) -> None:
    """Write `train/part_*.parquet` and the eight of `valid/` into `folder`, an empty folder.

    `source` holds the seven files, each `.csv` or `.csv.zip`. A row has the 29 features (int32,
    float32, lists of up to three int32), `clicked` and `display_id` (int32); validation rows are in
    order of `display_id`. Prints a line every few seconds. Raises DataError for a file that is
    missing, damaged or another one, and for an id that the file it refers to lacks.
    """
    progress, scratch = Progress(), folder / "scratch"
    files = Files(source, progress)
    try:
        facts = _prepare(files, folder, scratch, progress)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    temporary = folder / f"{PREPARED}.part"
    temporary.write_text(json.dumps(facts, indent=1) + "\n")
    temporary.rename(folder / PREPARED)


def _prepare(files: Files, folder: Path, scratch: Path, progress: Progress) -> dict[str, object]:
    """Write the set, with `scratch` for what is between; give what is to be known of it."""
    import polars as pl

    tables = read_tables(files)
    counts = join(files, tables, scratch, progress)
    learnt = learn(pl.scan_parquet(scratch / "train"), tables.ads)
    parts = {f"train/{path.name}": pl.scan_parquet(path) for path in (scratch / "train").iterdir()}
    bounds = [counts["valid"] * number // PARTS for number in range(PARTS + 1)]
    for number, (first, end) in enumerate(pairwise(bounds)):
        rows = pl.scan_parquet(scratch / "valid").slice(first, end - first)
        parts[f"valid/part_{number}.parquet"] = rows
    for number, (name, rows) in enumerate(sorted(parts.items()), start=1):
        _features(rows, learnt).sink_parquet(folder / name, mkdir=True)
        progress.say(f"features: {number} of {len(parts)} files")
    split = {"last_training_day": TRAINING_DAYS, "kept_out": KEPT_OUT, "seed": SEED}
    names = [path.name for path in files.paths.values()]
    return {"files": names, "rows": counts, "split": split, "statistics": learnt.facts}


def _features(rows: "LazyFrame", learnt: Statistics) -> "LazyFrame":
    """Add what was learnt to joined rows."""
    import polars as pl

    rows = rows.rename({"ad_id": "ad"})
    rows = rows.join(learnt.ads.lazy(), on="ad", how="left", maintain_order="left")
    medians = learnt.medians.items()
    ages = (pl.col(name).fill_null(days).log1p().cast(pl.Float32) for name, days in medians)
    return rows.with_columns(ages).select(*NAMES, pl.col(CLICKED).cast(pl.Int32), DISPLAY)
