"""The network's rows from outbrain's public files, within bounded memory.

The steps are those of NVIDIA's NVTabular pipeline for Wide & Deep. Memory holds the documents with
their labels, the ads and one span of displays. For the public files that is 1.3 GB, whatever the
number of clicks. Intermediate files need as much disk space as the result.

This differs where the original depends on a GPU or on a library's details. Another function hashes
ids (`hashed`), those of lists directly rather than by their rank in the training part. The uniform
number that keeps a display from training is NumPy's (seed 0, one per display, in order of display
ids). Medians are exact. Training rows are shuffled within a span only.
"""

import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from helpers.display import Progress
from helpers.models._tables import PREPARED

if TYPE_CHECKING:
    from polars import LazyFrame

    from helpers.models.widedeep.raw.files import Files

PARTS = 8  # files of the validation part, as NVIDIA's


def find(folder: Path, name: str) -> Path | None:
    """Return the path of a file in `folder`, plain or zipped."""
    paths = [folder / f"{name}.csv", folder / f"{name}.csv.zip"]
    return next((path for path in paths if path.is_file()), None)


def is_raw(path: Path) -> bool:
    """Return whether `path` is a folder with Kaggle's clicks, rather than a prepared set."""
    return find(path, "clicks_train") is not None and not any(path.glob("valid/*.parquet"))


def prepare_raw(config: object, source: Path, folder: Path) -> None:
    """Write `train/part_*.parquet` and the eight of `valid/` into `folder`, an empty folder.

    `source` holds the seven files, each `.csv` or `.csv.zip`. A row has the 29 features (int32,
    float32, lists of up to three int32), `clicked` and `display_id` (int32); validation rows are in
    order of `display_id`. Raises DataError for a file that is missing, damaged or another one, and
    for an id that the file it refers to lacks.
    """
    import polars as pl

    from helpers.models.widedeep.raw import rows, statistics, tables
    from helpers.models.widedeep.raw.files import Files

    progress, scratch = Progress(), folder / "scratch"
    files = Files(source, progress)
    try:
        documents = tables.read_tables(files)
        counts = rows.join(files, documents, scratch, progress)
        learnt = statistics.learn(pl.scan_parquet(scratch / "train"), documents.ads)
        parts = parts_of(scratch, counts["valid"])
        for number, (name, part) in enumerate(parts.items(), start=1):
            learnt.features(part).sink_parquet(folder / name, mkdir=True)
            progress.say(f"features: {number} of {len(parts)} files")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    write_facts(folder, files, counts, learnt.facts)


def parts_of(scratch: Path, valid: int) -> dict[str, "LazyFrame"]:
    """Return the joined rows of each file of the result; `valid` of them are not for training."""
    import polars as pl

    paths = sorted((scratch / "train").iterdir())
    parts = {f"train/{path.name}": pl.scan_parquet(path) for path in paths}
    bounds = [valid * number // PARTS for number in range(PARTS + 1)]
    for number, (first, end) in enumerate(pairwise(bounds)):
        rows = pl.scan_parquet(scratch / "valid").slice(first, end - first)
        parts[f"valid/part_{number}.parquet"] = rows
    return parts


def write_facts(
    folder: Path, files: "Files", counts: dict[str, int], statistics: dict[str, object]
) -> None:
    """Mark the folder as prepared, with its metadata."""
    from helpers.models.widedeep.raw import rows

    split = {"last_training_day": rows.TRAINING_DAYS, "kept_out": rows.KEPT_OUT, "seed": rows.SEED}
    names = [path.name for path in files.paths.values()]
    metadata = {"files": names, "rows": counts, "split": split, "statistics": statistics}
    (folder / PREPARED).write_text(json.dumps(metadata, indent=1) + "\n")
