"""The page of all published rows, which needs no run of ours: `outputs/published.html` and its CSV.

One script of the page's own sorts and filters; its hash stands in the page's content security
policy, so that nothing else can run. Without it the page is a plain table.
"""

import base64
import csv
import hashlib
import io
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from helpers.display import NOTHING, style
from helpers.report import published
from helpers.report.plots import png
from helpers.report.published import DOCUMENTS, PublishedRow
from helpers.report.site import TEMPLATE, render
from helpers.store import digest, file_digest, write_atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "published.html"
LEGEND_WIDTH = 38  # characters of an entry's line
# Header -> whether one may filter by it; in the order of `_cells`
COLUMNS = {
    "model": True,
    "GPU": True,
    "scenario": True,
    "data set": False,
    "format": True,
    "precision": True,
    "instances": False,
    "batch size": False,
    "clients": False,
    "throughput (samples/s)": False,
    "p50 (ms)": False,
    "p95 (ms)": False,
    "p99 (ms)": False,
    "average (ms)": False,
    "Little's law": False,
}
NUMBERS = 6  # the columns before this one hold words
STEPPED = "TensorRT"  # the runtime whose latency moves in steps
STEP, TOP = 81_920, 131_072  # batches of Wide & Deep that cost the same


def write(outputs: Path) -> Path:
    """Write the page and `published.csv` into `outputs`, unless both are there as they would be.

    Raises `DataError` if the published rows cannot be read, `WorkspaceError` if `outputs` cannot
    be written.
    """
    page, data = outputs / NAME, (outputs / NAME).with_suffix(".csv")
    made_from = _made_from()
    if page.exists() and data.exists() and made_from in page.read_text(errors="replace"):
        return page
    rows = published.everything()
    write_atomic(data, _csv(rows))
    script = (TEMPLATE / "published.js").read_text()
    steps = power_of_two_rows(rows)
    context = {
        "made_from": made_from,
        "script": script,
        "script_hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        "columns": list(COLUMNS),
        "filters": [(place, name) for place, name in enumerate(COLUMNS) if COLUMNS[name]],
        "words": NUMBERS,
        "rows": [(row.breaks_littles_law, _cells(row)) for row in rows],
        "tables": len(published.tables(rows)),
        "broken": sum(row.breaks_littles_law for row in rows),
        "bounds": published.LITTLES_LAW,
        "documents": [(name, each, len(published.rows(name))) for name, each in DOCUMENTS.items()],
        "steps": describe(steps),
        "costs": _costs(steps),
        "picture": base64.b64encode(png(figure(steps))).decode(),
        "width": round(style.WIDTH * 96),
        "data": data.name,
    }
    return write_atomic(page, render("published.html.j2", context))


def _made_from() -> str:
    """Hash everything that the page is made from."""
    sources = [Path(__file__), Path(published.__file__), Path(style.__file__)]
    files = [*sources, *TEMPLATE.iterdir(), *sorted(published.FOLDER.glob("*.csv"))]
    return digest({path.name: file_digest(path) for path in files})


def _csv(rows: Sequence[PublishedRow]) -> str:
    buffer = io.StringIO()
    writer = csv.DictWriter(
        buffer, [*PublishedRow.model_fields, "littles_law"], lineterminator="\n"
    )
    writer.writeheader()
    for row in rows:
        law = row.littles_law
        shown = {"littles_law": None if law is None else f"{law:.4f}"}
        writer.writerow(row.model_dump() | shown)
    return buffer.getvalue()


def _cells(row: PublishedRow) -> list[str]:
    """Spell a row as the texts of `COLUMNS`."""
    latencies = (row.p50_latency_ms, row.p95_latency_ms, row.p99_latency_ms, row.avg_latency_ms)
    words = (row.gpu, row.scenario, row.dataset, row.format, row.precision)
    counts = (row.instances, row.batch_size, row.concurrency)
    return [
        row.model,
        *(word or NOTHING for word in words),
        *(f"{count:,}" for count in counts),
        f"{row.throughput:,.10g}",
        *(NOTHING if value is None else f"{value:,.10g}" for value in latencies),
        NOTHING if row.littles_law is None else f"{row.littles_law:.3f}",
    ]


def power_of_two_rows(rows: Sequence[PublishedRow]) -> dict[str, dict[str, list[PublishedRow]]]:
    """Choose Wide & Deep's offline rows above a batch of one: runtime -> GPU -> rows by batch."""
    found: dict[str, dict[str, list[PublishedRow]]] = {}
    for row in rows:
        if row.model == "widedeep" and row.scenario == "offline" and row.batch_size > 1:
            found.setdefault(row.label, {}).setdefault(row.gpu, []).append(row)
    return found


def _share(line: Sequence[PublishedRow], batch: int) -> float:
    """Give the average latency of a batch as a share of the largest batch's."""
    latencies = {row.batch_size: row.avg_latency_ms or 0 for row in line}
    return latencies[batch] / latencies[TOP]


def describe(steps: dict[str, dict[str, list[PublishedRow]]]) -> str:
    """Say what the figure shows: it is its alternative text too."""
    parts = []
    for label, lines in steps.items():
        low, *_, high = sorted(_share(line, STEP) for line in lines.values())
        parts.append(f"{label}: {low:.0%} to {high:.0%}")
    return (
        f"A batch of {STEP:,} holds {STEP / TOP:.1%} of the samples of one of {TOP:,}. What it "
        f"costs of that one's average latency, over {len(_gpus(steps))} GPUs: "
        f"{'; '.join(parts)}. TensorRT's latency moves in powers of two, TensorFlow's with the "
        "number of samples."
    )


def figure(steps: dict[str, dict[str, list[PublishedRow]]]) -> "Figure":
    """Draw latency over batch, as a share of the largest batch's: steps, or a straight line."""
    title, share = "Wide & Deep offline: what a batch costs", f"share of batch {TOP:,}'s"
    drawn, axes = style.canvas(title, "batch size", f"average latency, {share}")
    looks = dict(zip(_gpus(steps), zip(style.COLOURS, style.MARKERS, strict=True), strict=False))
    entries = [style.mark(gpu, *look) for gpu, look in looks.items()]
    for label, lines in steps.items():
        is_stepped = label.startswith(STEPPED)
        for gpu, line in lines.items():
            (colour, marker), sizes = looks[gpu], [row.batch_size for row in line]
            line_style: dict[str, Any] = {
                "color": colour,
                "marker": marker,
                "ls": ":",
                "mfc": "white",
            }
            line_style |= {"ls": "-", "mfc": colour} if is_stepped else {}
            axes.plot(sizes, [_share(line, size) for size in sizes], **line_style)
            axes.set_xticks(sizes)
        kind, face = ("filled", "") if is_stepped else ("hollow", "white")
        words = fill(f"{kind}: {label}", LEGEND_WIDTH)
        entries.append(style.mark(words, style.GREY, "o", face=face))
    axes.xaxis.set_major_formatter(style.number)
    axes.tick_params(axis="x", labelrotation=30)
    axes.set_ylim(0, 1.08)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    drawn.legend(handles=entries, loc="outside lower left", ncols=2, frameon=False)
    return drawn


def _gpus(steps: dict[str, dict[str, list[PublishedRow]]]) -> list[str]:
    return list(next(iter(steps.values())))


def _costs(steps: dict[str, dict[str, list[PublishedRow]]]) -> dict[str, Any]:
    """Tabulate the average latencies of TensorRT: a row for each batch, a column for each GPU."""
    lines = next(lines for label, lines in steps.items() if label.startswith(STEPPED))
    sizes = [row.batch_size for row in next(iter(lines.values()))]
    return {
        "gpus": list(lines),
        "rows": [
            (f"{size:,}", [f"{line[i].avg_latency_ms:,.4g}" for line in lines.values()])
            for i, size in enumerate(sizes)
        ],
    }
