"""Criteo's days prepared in parts: each day counted, each feature's hashes kept, each day encoded.

The bytes are those of `raw.prepare_raw`. To count, a worker holds the different hashes of a day, at
some 20 bytes per hash. To keep, it holds all counts of one feature, and to encode, all
dictionaries.
"""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from helpers.display import Progress
from helpers.models import Config, ParallelMap
from helpers.models._criteo import raw, spec
from helpers.models._criteo.data import write_part
from helpers.models._parts import atomic_output, joined
from helpers.store import fingerprint


def prepare_parts(
    config: Config, source: Path, folder: Path, scratch: Path, spread: ParallelMap
) -> None:
    """Write the set of `raw.prepare_raw` by calls of `spread`: see `RawParts.prepare_parts`."""
    plan = raw.Plan(source, config.variant)
    print(plan.line)
    features, (*train, last) = plan.features, plan.days
    counts, ids, pieces = scratch / "counts", scratch / "ids", scratch / "pieces"
    spread(count, [(day, features, counts / day.name) for day in plan.counted])
    sources = [counts / day.name for day in plan.counted]
    rows = spread(keep, [(name, sources, plan.threshold, ids) for name in features])
    plan.check_tables(rows)
    (lines,) = spread(raw.count_lines, [(last,)])
    parts: dict[str, list[tuple[Path, int, int | None, Path]]] = {
        "train": [(day, 0, None, pieces / "train" / day.name) for day in train],
        "test": [(last, 0, lines // 2, pieces / "test" / last.name)],
        "validation": [(last, lines // 2, None, pieces / "validation" / last.name)],
    }
    shared = (tuple(features), ids)
    spread(encode, [(*call, *shared) for calls in parts.values() for call in calls])
    targets = [
        ([piece / file for *_, piece in calls], folder / part / file)
        for part, calls in parts.items()
        for file in spec.FEATURES_OF
    ]
    spread(joined, targets)
    spec.write(folder, tuple(rows), plan.facts)


def count(day: Path, features: list[str], folder: Path) -> None:
    """Count the hashes of a day, into a file for each feature."""
    with atomic_output(folder) as temporary:
        if temporary:
            temporary.mkdir()
            for name, counts in raw.count_categories([day], features, Progress()).items():
                counts.write_parquet(temporary / f"{name}.parquet", compression="lz4")


def keep(name: str, counted: Sequence[Path], threshold: int, folder: Path) -> int:
    """Write the hashes of a feature that are frequent enough; return the rows of its table."""
    import polars as pl

    with atomic_output(folder / f"{name}.npy") as temporary:
        if temporary:
            total = pl.read_parquet(counted[0] / f"{name}.parquet")
            for path in counted[1:]:
                total = raw.merged([total, pl.read_parquet(path / f"{name}.parquet")])
            with temporary.open("wb") as file:
                np.save(file, raw.frequent(total, threshold).to_numpy())
    return len(np.load(folder / f"{name}.npy", mmap_mode="r")) + 1


def encode(
    day: Path, start: int, count: int | None, piece: Path, features: tuple[str, ...], ids: Path
) -> None:
    """Encode the lines of a day, or `count` of them after `start`, as a piece of a part."""
    with atomic_output(piece) as temporary:
        if temporary:
            dictionaries = _dictionaries(features, ids, fingerprint(ids))
            rows = [vocabulary.rows for vocabulary in dictionaries.values()]
            write_part(temporary, rows, raw.samples_of(day, dictionaries, start, count))


@lru_cache(1)
def _dictionaries(features: tuple[str, ...], ids: Path, _: str) -> dict[str, raw.Vocabulary]:
    """Load all dictionaries, once in a process as long as the files are the same."""
    import polars as pl

    series = {name: pl.Series(np.load(ids / f"{name}.npy")) for name in features}
    return {name: raw.Vocabulary(hashes) for name, hashes in series.items()}
