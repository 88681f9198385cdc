"""How results become web pages: a page for each notebook, an index for each target and one above.

Every page is one file that loads nothing: its style is inline, its figures are embedded, and its
content security policy forbids requests and scripts but for a page's own. The same input gives the
same bytes. nbconvert
and jinja2 are imported when a page is written.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from helpers.config import STAGES
from helpers.errors import WorkspaceError
from helpers.store import display_path, write_atomic

if TYPE_CHECKING:
    from jinja2 import Environment
    from nbformat import NotebookNode

STATES = ("done", "failed", "blocked", "skipped", "running", "missing")
TEMPLATE = Path(__file__).parent / "template"


class Link(TypedDict):
    """A link of a page's navigation; `href` is relative to the page."""

    href: str
    text: str


@dataclass(frozen=True)
class StageState:
    """What an index says of one stage of one experiment; a report has an empty `experiment`."""

    model: str
    experiment: str
    stage: str
    state: str
    headline: str = ""
    reason: str = ""
    href: str | None = None
    seconds: float | None = None
    finished: str = ""


class Target(TypedDict):
    """What the first page says of one target; `counts` is the number of stages in each state."""

    name: str
    gpu: str
    counts: Mapping[str, int]
    href: str


class _Shown(NamedTuple):
    """A table cell of the target's index, over `span` stages that share a state and its reason."""

    state: str
    href: str | None
    headline: str
    reason: str
    took: str
    stage: str = ""
    span: int = 1


def page(
    notebook: Path, html: Path, links: Sequence[Link] = (), *, state: str = "", note: str = ""
) -> Path:
    """Write an executed notebook as the page `html` and return it.

    `state` and `note` stand at the top: what the runner knows and the notebook
    cannot (a timeout, a dead kernel). Raises WorkspaceError if the notebook cannot be read.
    """
    import nbformat
    from nbconvert import HTMLExporter
    from traitlets.config import Config

    try:
        nb = nbformat.read(notebook, as_version=4)  # type: ignore[no-untyped-call]
    except (OSError, ValueError) as cause:
        raise WorkspaceError(
            f"{display_path(notebook)} cannot be read as a notebook: {cause}"
        ) from cause
    heading = _heading(nb)
    error = _error(nb)
    nb.metadata["publish"] = {
        "title": heading or notebook.stem,
        "has_heading": bool(heading),
        "links": list(links),
        "state": state,
        "note": note,
        "error": error,
        "stopped": bool(error) or state not in ("", "done"),
    }
    config = Config()
    config.CoalesceStreamsPreprocessor.enabled = True  # of a progress bar, its last state
    config.NbConvertBase.display_data_priority = [
        "text/html",
        "image/svg+xml",
        "image/png",
        "image/jpeg",
        "text/markdown",
        "text/latex",
        "text/plain",
    ]
    exporter = HTMLExporter(  # type: ignore[no-untyped-call]
        config=config,
        template_name=TEMPLATE.name,
        extra_template_basedirs=[str(TEMPLATE.parent)],
        exclude_anchor_links=True,
    )
    text, _ = exporter.from_notebook_node(nb)
    start, end, rest = text.partition("</h1>")
    rest = rest.replace("<h1", "<h2").replace("</h1>", "</h2>")
    return write_atomic(html, start + end + rest)


def target_index(
    folder: Path,
    cells: Sequence[StageState],
    *,
    gpu: str,
    note: str = "",
    links: Sequence[Link] = ({"href": "../index.html", "text": "All targets"},),
) -> Path:
    """Write `folder/index.html`: the reports, then every stage, in the order of `cells`."""
    finished = [cell.finished for cell in cells if cell.finished]
    reports = [cell for cell in cells if cell.stage == "report"]
    models = _models(cell for cell in cells if cell.stage != "report")
    counts = Counter(report.state for report in reports)
    for shown_cell in (c for model in models for row in model["rows"] for c in row["cells"]):
        counts[shown_cell.state] += shown_cell.span
    context = {
        "target": folder.name,
        "gpu": gpu,
        "note": note,
        "links": links,
        "finished": max(finished, default=""),
        "results": "results.csv" if (folder / "results.csv").exists() else "",
        "counts": _in_order(counts),
        "reports": reports,
        "stages": _stage_names(),
        "models": models,
    }
    return _write(folder / "index.html", "target.html.j2", context)


def outputs_index(outputs: Path, targets: Sequence[Target]) -> Path:
    """Write `outputs/index.html`, which links every target, and NVIDIA's rows if they are there."""
    shown_targets = [{**target, "counts": _in_order(target["counts"])} for target in targets]
    published = "published.html" if (outputs / "published.html").exists() else ""
    context = {"targets": shown_targets, "published": published}
    return _write(outputs / "index.html", "outputs.html.j2", context)


def _heading(nb: "NotebookNode") -> str:
    """Return the notebook's first level-one heading as plain text, or ''."""
    for cell in nb.cells:
        if cell.cell_type == "markdown" and cell.source.startswith("# "):
            line: str = cell.source.splitlines()[0]
            return line[2:].replace("`", "").replace("*", "").strip()
    return ""


def _error(nb: "NotebookNode") -> str:
    """Return the first error among the outputs as one line, or ''."""
    for cell in nb.cells:
        for output in cell.get("outputs", []):
            if output.output_type == "error":
                return f"{output.ename}: {output.evalue}"
    return ""


def _models(cells: Iterable[StageState]) -> list[dict[str, Any]]:
    """Group cells by model and experiment; both keep the order in which they first appear."""
    models: dict[str, dict[str, dict[str, StageState]]] = {}
    for cell in cells:
        rows = models.setdefault(cell.model, {})
        rows.setdefault(cell.experiment, {})[cell.stage] = cell
    return [
        {
            "name": name,
            "rows": [
                {"experiment": experiment, "cells": _row([row.get(stage) for stage in STAGES[:-1]])}
                for experiment, row in rows.items()
            ],
        }
        for name, rows in models.items()
    ]


def _row(cells: Iterable[StageState | None]) -> list[_Shown]:
    """Lay out one experiment's stages; neighbours not done for the same reason share a cell."""
    single = [
        _Shown(c.state, c.href, c.headline, c.reason, _took(c.seconds))
        if c
        else _Shown("missing", None, "", "", "")
        for c in cells
    ]
    row: list[_Shown] = []
    for first, group in groupby(single):
        same = list(group)
        size = len(same) if first.state != "done" and not first.href else 1
        for _ in same[::size]:
            names, start = _stage_names(), sum(cell.span for cell in row)
            label = names[start] if size == 1 else f"{names[start]} to {names[start + size - 1]}"
            row.append(first._replace(stage=label, span=size))
    return row


def _stage_names() -> list[str]:
    return [stage.replace("_", " ") for stage in STAGES[:-1]]


def _took(seconds: float | None) -> str:
    """Return a duration in the two units that matter, such as '2 min 5 s'."""
    if seconds is None:
        return ""
    if seconds < 60:
        return f"{seconds:.0f} s" if seconds >= 1 else "< 1 s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _in_order(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return the counts that are not zero, in the order of STATES."""
    return [(state, counts[state]) for state in STATES if counts.get(state)]


def _write(path: Path, template: str, context: Mapping[str, Any]) -> Path:
    return write_atomic(path, render(template, context))


def render(template: str, context: Mapping[str, Any]) -> str:
    """Fill in one of the package's templates; what it is given is escaped."""
    return _environment().get_template(template).render(context) + "\n"


def _environment() -> "Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(TEMPLATE), autoescape=True, undefined=StrictUndefined
    )
