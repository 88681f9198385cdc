"""The page of all published rows, which needs no run of ours: `outputs/published.html` and its CSV.

One script of the page's own sorts and filters. Its hash is in the page's content security policy,
so that nothing else can run; without scripts the page is a plain table.
"""

from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

from helpers.display import ABSENT, COLOURS, GREY, WIDTH, canvas, number, png
from helpers.report import style
from helpers.report.nvidia import fidelity_page
from helpers.report.nvidia.documents import documents
from helpers.report.nvidia.rows import LITTLES_LAW, contradictory, everything, published
from helpers.report.site import render, script
from helpers.results import TableRow
from helpers.store import write_atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

LEGEND_WIDTH = 38  # characters of an entry's line
# Header -> what of a row the column shows, and its format
COLUMNS = {
    "model": ("model", ""),
    "GPU": ("gpu", ""),
    "scenario": ("scenario", ""),
    "data set": ("dataset", ""),
    "format": ("format", ""),
    "precision": ("precision", ""),
    "instances": ("instances", ","),
    "batch size": ("batch_size", ","),
    "clients": ("concurrency", ","),
    "throughput (samples/s)": ("throughput", ",.10g"),
    "p50 (ms)": ("p50_latency_ms", ",.10g"),
    "p95 (ms)": ("p95_latency_ms", ",.10g"),
    "p99 (ms)": ("p99_latency_ms", ",.10g"),
    "average (ms)": ("avg_latency_ms", ",.10g"),
    "Little's law": ("littles_law", ".3f"),
}
FILTERS = ("model", "GPU", "scenario", "format", "precision")
NUMBERS = 6  # the columns before this one hold words
TENSORRT = "TensorRT, FP16"  # its latency moves in steps
STEP, TOP = 81_920, 131_072  # batch sizes of Wide & Deep that cost the same


def write_page(outputs: Path, made_from: str) -> Path:
    """Write the page and `published.csv` into `outputs`; `made_from` is a hash of their sources.

    Raises `DataError` or `WorkspaceError` if rows cannot be read or `outputs` cannot be written.
    """
    from pandas import DataFrame

    page, data = outputs / "published.html", outputs / "published.csv"
    rows = everything()
    laws = [None if row.littles_law is None else f"{row.littles_law:.4f}" for row in rows]
    columns = DataFrame([row.model_dump() for row in rows]).assign(littles_law=laws)
    write_atomic(data, columns.to_csv(index=False))
    latencies = power_of_two_latencies()
    context = {
        "made_from": made_from,
        **script("published.js"),
        "columns": list(COLUMNS),
        "filters": [(list(COLUMNS).index(name), name) for name in FILTERS],
        "words": NUMBERS,
        "rows": [(contradictory(row), list(_cells(row))) for row in rows],
        "tables": len({row.table for row in rows}),
        "broken": sum(contradictory(row) for row in rows),
        "bounds": LITTLES_LAW,
        "documents": [(name, published(name)) for name in documents()],
        "steps": describe(latencies),
        "costs": latencies[TENSORRT],
        "picture": b64encode(png(draw(latencies))).decode(),
        "width": round(WIDTH * 96),
        "data": data.name,
        "fidelity": fidelity_page.PAGE,
    }
    return write_atomic(page, render("published.html.j2", context))


def _cells(row: TableRow) -> Iterator[str]:
    """Yield the texts of a row's `COLUMNS`."""
    for name, form in COLUMNS.values():
        value = getattr(row, name)
        yield ABSENT if value in (None, "") else format(value, form)


def power_of_two_latencies() -> "DataFrame":
    """Return the average latency (ms) of Wide & Deep's offline rows above a batch size of one: a
    row for each batch size, a column for each way of serving and GPU.
    """
    from pandas import Series

    latencies = {
        (row.batch_size, row.served, row.gpu): row.avg_latency_ms
        for row in published("widedeep")
        if row.scenario == "offline" and row.batch_size > 1
    }
    return Series(latencies).unstack([1, 2], sort=False)


def describe(latencies: "DataFrame") -> str:
    """Return the chart's caption, which is also its alternative text."""
    shares = latencies.loc[STEP] / latencies.loc[TOP]
    parts = [
        f"{served} {each.min():.0%} to {each.max():.0%}"
        for served, each in shares.groupby(level=0, sort=False)
    ]
    return (
        f"A batch of {STEP:,} has {STEP / TOP:.1%} of the samples of a batch of {TOP:,} and takes "
        f"this share of its latency on {len(latencies[TENSORRT].columns)} GPUs: {'; '.join(parts)}."
    )


def draw(latencies: "DataFrame") -> "Figure":
    """Draw latency over batch size, as a share of the largest batch's: steps or a straight line."""
    title, share = "Wide & Deep offline: latency by batch size", f"share of batch {TOP:,}'s"
    figure, axes = canvas(title, "batch size", f"average latency, {share}")
    looks = dict(zip(latencies[TENSORRT], zip(COLOURS, style.MARKERS, strict=True), strict=False))
    for (served, gpu), line in (latencies / latencies.loc[TOP]).items():
        colour, shape = looks[gpu]
        ls, face = ("-", colour) if served == TENSORRT else (":", "white")
        axes.plot(line.index, line, color=colour, marker=shape, ls=ls, mfc=face)
    axes.set_xticks(latencies.index)
    axes.xaxis.set_major_formatter(number)
    axes.tick_params(axis="x", labelrotation=30)
    axes.set_ylim(0, 1.08)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    entries = [style.marker(gpu, *look) for gpu, look in looks.items()]
    for served in latencies.columns.unique(0):
        kind, face = ("filled", "") if served == TENSORRT else ("hollow", "white")
        entries.append(style.marker(fill(f"{kind}: {served}", LEGEND_WIDTH), GREY, "o", face=face))
    figure.legend(handles=entries, loc="outside lower left", ncols=2, frameon=False)
    return figure
