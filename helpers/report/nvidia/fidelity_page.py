"""The page on fidelity to NVIDIA's setup, table by table: `outputs/fidelity.html` and its CSV. It
needs no run of ours, and no script.
"""

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from helpers.report.nvidia.documents import documents
from helpers.report.nvidia.fidelity import LISTS, Fidelity, fidelities
from helpers.report.site import render
from helpers.store import write_atomic

PAGE = "fidelity.html"
MANY = 8  # numbers, of which only the first and the last are shown


def write_fidelity(outputs: Path, made_from: str) -> Path:
    """Write the page and `fidelity.csv` into `outputs`; `made_from` is a hash of their sources.

    A parameter file at fault is named in its tables. Raises `DataError` or `WorkspaceError` if the
    published rows cannot be read or `outputs` cannot be written.
    """
    from pandas import DataFrame

    page, data = outputs / PAGE, outputs / "fidelity.csv"
    found = fidelities()
    rows = [
        dict(zip(("model", "gpu", "scenario", "dataset", "served"), each.row.table, strict=True))
        | {"experiments": " ".join(each.experiments), "setting": line.name}
        | {"nvidia": "; ".join(map(str, line.theirs)), "ours": "; ".join(map(str, line.ours))}
        | {"comparison": line.comparison, "note": line.note}
        for each in found
        for line in each.lines
    ]
    write_atomic(data, DataFrame(rows).to_csv(index=False))
    compared = [each for each in found if not each.fault]
    context = {
        "made_from": made_from,
        "models": [(name, list(_scenarios(name, found))) for name in documents()],
        "tables": len(found),
        "everywhere": everywhere(compared),
        "lists": LISTS,
        "short": _short,
        "data": data.name,
    }
    return write_atomic(page, render("fidelity.html.j2", context))


def everywhere(found: list[Fidelity]) -> list[str]:
    """Name the settings that differ in every table."""
    names = [[line.name for line in each.of("differs")] for each in found]
    return [name for name in names[0] if all(name in each for each in names)] if names else []


def _scenarios(model: str, found: list[Fidelity]) -> Iterator[tuple[str, list[Fidelity]]]:
    own = [each for each in found if each.row.model == model]
    for scenario, tables in groupby(own, lambda each: each.row.scenario):
        yield scenario, list(tables)


def _short(values: list[str | int]) -> str:
    """Spell the values of a setting for reading: numbers in order, and not all of many."""
    numbers = sorted(value for value in values if isinstance(value, int))
    if len(numbers) > MANY:
        return f"{numbers[0]:,} to {numbers[-1]:,} ({len(numbers)} numbers)"
    return "; ".join([f"{value:,}" for value in numbers] or map(str, values)) or "none"
