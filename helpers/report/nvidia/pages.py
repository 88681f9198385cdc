"""The pages that need no run of ours, with their data as CSV: NVIDIA's rows, fidelity to them."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from helpers.display import ABSENT
from helpers.report import documents
from helpers.report.nvidia.rows import LITTLES_LAW, everything, published, violates_littles_law
from helpers.report.nvidia.sources import FOLDER, sources
from helpers.report.site import render, script
from helpers.results import TableRow
from helpers.store import ROOT, digest, file_digest, package_files, write_atomic

if TYPE_CHECKING:
    from pandas import DataFrame

    from helpers.report.nvidia.fidelity import Fidelity

PUBLISHED, FIDELITY = "published.html", "fidelity.html"
NOTE = FOLDER / "widedeep.md"
MANY = 8  # numbers, of which only the first and the last are shown
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
Content = tuple["DataFrame", dict[str, object]]  # the data of a page, and what its template shows


def write_pages(outputs: Path) -> None:
    """Write both pages and their CSV files into `outputs`, where they are not up to date.

    A parameter file at fault is named on the page. Raises `DataError` or `WorkspaceError` if rows
    cannot be read or `outputs` cannot be written.
    """
    rows = digest([package_files(), [file_digest(path) for path in sorted(FOLDER.iterdir())]])
    params = sorted((ROOT / "params").glob("*.yaml"))
    inputs = digest([rows, [file_digest(path) for path in params]])
    for name, made_from, content in ((PUBLISHED, rows, _published), (FIDELITY, inputs, _fidelity)):
        page, data = outputs / name, (outputs / name).with_suffix(".csv")
        if data.exists() and page.exists() and made_from in page.read_text(errors="replace"):
            continue
        table, context = content()
        write_atomic(data, table.to_csv(index=False))
        context |= {"made_from": made_from, "data": data.name}
        write_atomic(page, render(f"{name}.j2", context))


def _published() -> Content:
    """Return all published rows: a plain table, which a script sorts and filters."""
    from pandas import DataFrame

    rows = everything()
    laws = [None if row.littles_law is None else f"{row.littles_law:.4f}" for row in rows]
    return DataFrame([row.model_dump() for row in rows]).assign(littles_law=laws), {
        **script(),
        "columns": list(COLUMNS),
        "filters": [(list(COLUMNS).index(name), name) for name in FILTERS],
        "words": NUMBERS,
        "rows": [(violates_littles_law(row), list(_cells(row))) for row in rows],
        "tables": len({row.table for row in rows}),
        "broken": sum(violates_littles_law(row) for row in rows),
        "bounds": LITTLES_LAW,
        "sources": [(name, published(name)) for name in sources()],
        "note": documents.sources().get(NOTE),
        "fidelity": FIDELITY,
    }


def _cells(row: TableRow) -> Iterator[str]:
    """Yield the texts of a row's `COLUMNS`."""
    for name, form in COLUMNS.values():
        value = getattr(row, name)
        yield ABSENT if value in (None, "") else format(value, form)


def _fidelity() -> Content:
    """Return every setting of every published table, as NVIDIA's and as ours."""
    from pandas import DataFrame

    from helpers.report.nvidia.fidelity import LISTS, fidelities  # slow to import

    tables = fidelities()
    rows = [
        dict(zip(("model", "gpu", "scenario", "dataset", "served"), table.row.table, strict=True))
        | {"experiments": " ".join(table.experiments), "setting": line.name}
        | {"nvidia": "; ".join(map(str, line.theirs)), "ours": "; ".join(map(str, line.ours))}
        | {"comparison": line.comparison, "note": line.note}
        for table in tables
        for line in table.lines
    ]
    return DataFrame(rows), {
        "models": list(sources()),
        "tables": tables,
        "everywhere": everywhere([table for table in tables if not table.fault]),
        "lists": LISTS,
        "short": _short,
    }


def everywhere(tables: "list[Fidelity]") -> list[str]:
    """Return the settings that differ in every table."""
    names = [[line.name for line in table.of("differs")] for table in tables]
    return [name for name in names[0] if all(name in other for other in names)] if names else []


def _short(values: list[str | int]) -> str:
    """Write the values of a setting for reading: numbers in order, and not all of many."""
    numbers = sorted(value for value in values if isinstance(value, int))
    if len(numbers) > MANY:
        return f"{numbers[0]:,} to {numbers[-1]:,} ({len(numbers)} numbers)"
    return "; ".join([f"{value:,}" for value in numbers] or map(str, values)) or "none"
