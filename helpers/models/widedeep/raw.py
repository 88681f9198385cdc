"""How outbrain's public files become the rows that the network takes, within bounded memory.

The steps are those of NVIDIA's NVTabular pipeline for Wide & Deep. The clicks and the events are
first laid on disk by spans of display ids; a span at a time is then joined with what is held of
documents and ads, once to learn the statistics of the training part and once to write the rows.
Memory holds the documents, the ads and one span, whatever the number of clicks.

Where the original rests on a GPU or on a library's accidents, this differs: ids are hashed by
another function (`raw_hashing`), those of lists directly rather than by their rank in the training
part; the uniform number that keeps a display from training is NumPy's (seed 0, one a display, in
order of display ids); medians are exact; training rows are shuffled within a span only.
"""

import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from helpers.display import Progress
from helpers.errors import DataError
from helpers.models.widedeep.data import PREPARED
from helpers.models.widedeep.features import CLICKED
from helpers.models.widedeep.raw_features import Tables
from helpers.models.widedeep.raw_files import Files, find
from helpers.models.widedeep.raw_spans import KEPT_OUT, SEED, TRAINING_DAYS, Spans
from helpers.models.widedeep.raw_statistics import Learner, Statistics
from helpers.models.widedeep.raw_tables import read_ads, read_documents, read_labels

PARTS = 8  # files of the validation part, as NVIDIA's


def holds_raw(path: Path) -> bool:
    """Tell whether `path` is a folder with Kaggle's clicks, rather than a prepared set."""
    return find(path, "clicks_train") is not None and not any(path.glob("valid/*.parquet"))


def prepare_raw(config: Any, source: Path, folder: Path) -> None:
    """Write `train/part_*.parquet` and the eight of `valid/` into `folder`, an empty folder.

    `source` holds the seven files, each `.csv` or `.csv.zip`. A row has the 29 features (int32,
    float32, lists of up to three int32), `clicked` and `display_id` (int32); validation rows are in
    order of `display_id`. Prints a line every few seconds. Raises DataError for a file that is
    missing, damaged or another one, and for an id that the file it refers to lacks.
    """
    progress, scratch = Progress(), folder / "scratch"
    files = Files(source, progress)
    scratch.mkdir()
    try:
        documents = read_documents(files)
        ads = read_ads(files, documents)
        tables = Tables(ads, documents, read_labels(files))
        spans = Spans(files, ads, scratch)
        learnt, rows = _learn(spans, tables, progress)
        if not all(rows.values()):
            lacking = next(part for part, count in rows.items() if not count)
            raise DataError(f"{files.path('clicks_train')} holds no display of the {lacking} part")
        _write(spans, tables, learnt, folder, progress)
        _divide(scratch / "valid", folder / "valid", rows["valid"], progress)
    finally:
        shutil.rmtree(scratch)
    split = {"last_training_day": TRAINING_DAYS, "kept_out": KEPT_OUT, "seed": SEED}
    facts = {"rows": rows, "split": split, "statistics": learnt.facts}
    temporary = folder / f"{PREPARED}.part"
    temporary.write_text(json.dumps({"files": files.names, **facts}, indent=1) + "\n")
    temporary.rename(folder / PREPARED)


def _learn(spans: Spans, tables: Tables, progress: Progress) -> tuple[Statistics, dict[str, int]]:
    """Take the statistics of the training part; count the rows of both."""
    learner, counts = Learner(tables.ads), {"train": 0, "valid": 0}
    for number, rows in enumerate(spans, start=1):
        chosen = rows.filter(rows["trains"])
        counts["train"] += len(chosen)
        counts["valid"] += len(rows) - len(chosen)
        clicked = chosen[CLICKED].to_numpy() == 1
        learner.add(chosen["ad"].to_numpy(), clicked, tables.ages(chosen))
        progress.say(f"statistics: {number} of {len(spans)} spans of displays")
    return learner.finish(), counts


def _write(
    spans: Spans, tables: Tables, learnt: Statistics, folder: Path, progress: Progress
) -> None:
    """Write the training parts, and the validation rows a span a file."""
    places = {"train": folder / "train", "valid": folder / "scratch" / "valid"}
    for place in places.values():
        place.mkdir()
    for number, rows in enumerate(spans):
        trains, features = rows["trains"].to_numpy(), tables.features(rows, learnt)
        order = np.random.default_rng([SEED, number]).permutation(np.flatnonzero(trains))
        for part, chosen in (("train", order), ("valid", np.flatnonzero(~trains))):
            if len(chosen):
                features[chosen].write_parquet(places[part] / f"part_{number:05d}.parquet")
        del rows, features  # else they would be held while the next span is read
        progress.say(f"features: {number + 1} of {len(spans)} spans of displays")


def _divide(source: Path, target: Path, rows: int, progress: Progress) -> None:
    """Cut files, in order, into eight of equal length but for one row."""
    import polars as pl

    target.mkdir()
    whole = pl.scan_parquet(sorted(source.iterdir()))
    bounds = np.linspace(0, rows, PARTS + 1).astype(int).tolist()
    for number, (first, end) in enumerate(pairwise(bounds)):
        path = target / f"part_{number}.parquet"
        whole.slice(first, end - first).sink_parquet(path)
        progress.say(f"validation part: {number + 1} of {PARTS} files")
