"""Outbrain's tables prepared in parts: two files cut by spans, each span joined, each file written.

The bytes are those of `prepare_raw`. Each worker reads the documents and ads once, and then holds
one span of displays at a time. One worker computes the statistics of all training rows.
"""

import json
from functools import lru_cache
from itertools import accumulate
from pathlib import Path

import polars as pl

from helpers.display import Progress
from helpers.models import Config, ParallelMap
from helpers.models._parts import atomic_output
from helpers.models.widedeep.raw import parts_of, rows, statistics, tables, write_facts
from helpers.models.widedeep.raw.files import Files
from helpers.store import fingerprint

CUT = ("events", "clicks_train")
KNOWN = "known.json"


def prepare_parts(
    config: Config, source: Path, folder: Path, scratch: Path, spread: ParallelMap
) -> None:
    """Write the set of `prepare_raw` by calls of `spread`: see `RawParts.prepare_parts`."""
    files = Files(source, Progress())
    spread(cut, [(source, scratch, name) for name in CUT])
    spans = rows.spans_of(scratch)
    displays = spread(rows.displays_of, [(scratch, span) for span in spans])
    for part in ("train", "valid"):
        (scratch / part).mkdir(exist_ok=True)
    before = [0, *accumulate(displays)]
    calls = [(source, scratch, number, span, before[number]) for number, span in enumerate(spans)]
    results = spread(join, calls)
    counts = {part: sum(result[part] for result in results) for part in ("train", "valid")}
    rows.check_parts(files, counts)
    (metadata,) = spread(learn, [(source, scratch)])
    names = parts_of(scratch, counts["valid"])
    spread(write, [(scratch, folder, name, counts["valid"]) for name in names])
    write_facts(folder, files, counts, metadata)


def cut(source: Path, scratch: Path, name: str) -> None:
    """Cut clicks or events by spans of displays."""
    with atomic_output(scratch / name) as temporary:
        if temporary:
            rows.partition(Files(source, Progress()), temporary, name)


def join(source: Path, scratch: Path, number: int, span: int, drawn: int) -> dict[str, int]:
    """Join a span; count the rows of each part."""
    done = scratch / "joined" / f"{number:05d}.json"
    with atomic_output(done) as temporary:
        if temporary:
            files, known = Files(source, Progress()), _tables(source, fingerprint(source))
            counts, _ = rows.join_span(files, known, scratch, number, span, drawn)
            temporary.write_text(json.dumps(counts))
    result: dict[str, int] = json.loads(done.read_text())
    return result


def learn(source: Path, scratch: Path) -> dict[str, object]:
    """Compute the statistics of all training rows."""
    with atomic_output(scratch / "learnt") as temporary:
        if temporary:
            temporary.mkdir()
            ads = _tables(source, fingerprint(source)).ads
            computed = statistics.learn(pl.scan_parquet(scratch / "train"), ads)
            computed.ads.write_parquet(temporary / "ads.parquet")
            content = {"medians": computed.medians, "facts": computed.facts}
            (temporary / KNOWN).write_text(json.dumps(content))
    return _learnt(scratch).facts


def write(scratch: Path, folder: Path, name: str, valid: int) -> None:
    """Write one file of the result."""
    with atomic_output(folder / name) as temporary:
        if temporary:
            _learnt(scratch).features(parts_of(scratch, valid)[name]).sink_parquet(temporary)


def _learnt(scratch: Path) -> statistics.Statistics:
    ads = pl.read_parquet(scratch / "learnt/ads.parquet")
    return statistics.Statistics(ads, **json.loads((scratch / "learnt" / KNOWN).read_text()))


@lru_cache(1)
def _tables(source: Path, _: str) -> tables.Tables:
    """Read documents and ads, once in a process as long as the files are the same."""
    return tables.read_tables(Files(source, Progress()))
