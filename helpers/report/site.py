"""How results become web pages: a page for each notebook, an index for each target and one for all.

Every page is one file that loads nothing: its style is inline and its figures are embedded. Its
content security policy forbids requests and all scripts but the page's own. The same input gives
the same bytes.
"""

import hashlib
import re
from base64 import b64encode
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import unescape
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from helpers.config import LESSONS, STAGE
from helpers.errors import WorkspaceError
from helpers.report.answer import Answer
from helpers.store import GRAMMARS, ROOT, block_import, display_path, write_atomic

if TYPE_CHECKING:
    from jinja2 import Environment

STATES = ("done", "failed", "blocked", "skipped", "running", "waiting", "missing")
PENDING = ("running", "waiting")  # states of a run in progress
REFRESH_SECONDS = 10  # after which an index reloads during a run
HEAD_CHARACTERS = 2**16  # of a page, in which its navigation stands
FEWEST_SECTIONS = 3  # of a page that lists them
TEMPLATE = Path(__file__).parent / "template"
GLOSSARY, DOCUMENTS = "glossary.html", "documentation.html"  # of the outputs folder


@dataclass(frozen=True)
class Link:
    """A link of a page's navigation; `href` is relative to the page."""

    href: str
    text: str


def background(up: str = "") -> list[Link]:
    """Return links to the pages that explain the others; `up` leads to the outputs folder."""
    links = [Link(f"{up}{GLOSSARY}", "Glossary")]
    return [*links, Link(f"{up}{DOCUMENTS}", "Documentation")] if has_documents() else links


def has_documents() -> bool:
    """Return whether the documents are here: an installed package has no repository."""
    return (ROOT / "README.md").exists() and (ROOT / "notebooks/README.md").exists()


@dataclass(frozen=True)
class StageState:
    """What an index shows about a stage of an experiment, or of a model with `experiment` ""."""

    model: str
    experiment: str
    stage: str
    state: str
    headline: str = ""
    reason: str = ""
    href: str | None = None
    seconds: float | None = None
    measuring_seconds: float | None = None
    finished: str = ""
    shared_with: str = ""  # the experiment in whose name it runs, if another

    @property
    def took(self) -> str:
        """Return the duration in the two units that matter, such as '2 min 5 s'."""
        if self.seconds is None:
            return ""
        if self.seconds < 60:
            return f"{self.seconds:.0f} s" if self.seconds >= 1 else "< 1 s"
        minutes, rest = divmod(round(self.seconds), 60)
        hours, minutes = divmod(minutes, 60)
        return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def counts(states: Iterable[StageState]) -> list[tuple[str, int]]:
    """Count stages by their state, in the order of STATES; what experiments share counts once."""
    by_state = Counter(state.state for state in states if not state.shared_with)
    return [(state, by_state[state]) for state in STATES if by_state[state]]


@dataclass(frozen=True)
class Target:
    """What an index shows about one target; `answers` are those of each model."""

    name: str
    gpu: str
    states: Sequence[StageState]
    answers: Mapping[str, Sequence[Answer]]

    @property
    def refresh(self) -> int:
        """Return after how many seconds its index reloads; 0 if no run is in progress."""
        return REFRESH_SECONDS if any(state.state in PENDING for state in self.states) else 0


@dataclass(frozen=True)
class IndexRow:
    """A line of an index: what to deploy for one workload of a model."""

    report: StageState
    answer: Answer
    note: str
    states: Sequence[str]  # of the model's stages

    @property
    def bars(self) -> list[tuple[str, str, int]]:
        """Return each experiment's ratio to the baseline, and its percentage of the highest."""
        ranked = self.answer.comparison.ranked if self.answer.comparison else []
        found = ((one.experiment, one.ratio_to_baseline) for one in ranked)
        ratios = {name: ratio.value for name, ratio in found if ratio}
        highest = max(ratios.values(), default=0.0)
        return [(name, f"{x:.2f}×", round(100 * x / highest)) for name, x in ratios.items()]


def page(
    notebook: Path, html: Path, links: Sequence[Link] = (), *, state: str = "", note: str = ""
) -> Path:
    """Write an executed notebook as the page `html` and return it.

    `state` and `note` are shown at the top: what the runner knows and the notebook cannot (a
    timeout, a dead kernel). Raises WorkspaceError if the notebook cannot be read.
    """
    with block_import(GRAMMARS):
        import nbformat
        from nbconvert import HTMLExporter
    from traitlets.config import Config

    try:
        nb = nbformat.read(notebook, as_version=4)  # type: ignore[no-untyped-call]
    except (OSError, ValueError) as cause:
        raise WorkspaceError(
            f"{display_path(notebook)} cannot be read as a notebook: {cause}"
        ) from cause
    heading = first_heading(*(cell.source for cell in nb.cells if cell.cell_type == "markdown"))
    outputs = (output for cell in nb.cells for output in cell.get("outputs", []))
    errors = (each for each in outputs if each.output_type == "error")
    error = next((f"{each.ename}: {each.evalue}" for each in errors), "")
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
    config.CoalesceStreamsPreprocessor.enabled = True  # a progress bar's last state
    images = ("image/svg+xml", "image/png", "image/jpeg")
    texts = ("text/markdown", "text/latex", "text/plain")
    config.NbConvertBase.display_data_priority = ["text/html", *images, *texts]
    exporter = HTMLExporter(  # type: ignore[no-untyped-call]
        config=config,
        template_name=TEMPLATE.name,
        extra_template_basedirs=[str(TEMPLATE.parent)],
        exclude_anchor_links=True,
    )
    text, _ = exporter.from_notebook_node(nb)
    start, end, rest = text.partition("</h1>")
    rest = rest.replace("<h1", "<h2").replace("</h1>", "</h2>")
    return write_atomic(html, start + end + _with_contents(rest))


def has_links(html: Path, links: Sequence[Link]) -> bool:
    """Return whether a page that `page` wrote has these links in its navigation."""
    macros: Any = _environment().get_template("macros.html.j2").module
    with html.open(encoding="utf-8") as file:
        return str(macros.navigation(links)).strip() in file.read(HEAD_CHARACTERS)


def _with_contents(body: str) -> str:
    """Add anchors to the sections of a page, and a list of them first if there are several."""
    sections: dict[str, str] = {}  # title by anchor

    def anchored(match: re.Match[str]) -> str:
        title = re.sub("<[^>]*>", "", match[1]).strip()
        stem = re.sub(r"\W+", "-", unescape(title).lower()).strip("-")
        anchor = stem if stem not in sections else f"{stem}-{len(sections)}"
        sections[anchor] = title
        return f'<h2 id="{anchor}">{match[1]}</h2>'

    body = re.sub("<h2>(.*?)</h2>", anchored, body, flags=re.DOTALL)
    if len(sections) < FEWEST_SECTIONS:
        return body
    links = "".join(f'<a href="#{anchor}">{title}</a>\n' for anchor, title in sections.items())
    return f'\n<nav class="contents" aria-label="On this page">\n{links}</nav>{body}'


def target_index(folder: Path, target: Target, explored: Sequence[StageState] = ()) -> Path:
    """Write `folder/index.html`: what to deploy, every stage, and those with overrides."""
    models: dict[str, dict[str, list[StageState]]] = {}
    for state in target.states:
        if not STAGE[state.stage].of_model:
            models.setdefault(state.model, {}).setdefault(state.experiment, []).append(state)
    used = {state.stage for state in target.states if state.experiment}
    per_experiment = [name for name, stage in STAGE.items() if not stage.of_model]
    columns = [name for name in per_experiment if name in used or not STAGE[name].is_optional]
    context = {
        "target": target,
        "links": [Link("../index.html", "All targets"), *background("../")],
        "finished": max((state.finished for state in target.states), default=""),
        "counts": counts(target.states),
        "recommendations": _recommendations(target),
        "lessons": [state for state in target.states if state.stage in LESSONS],
        "comparisons": {each.model: each for each in target.states if each.stage == "compare"},
        "stages": [name.replace("_", " ") for name in columns],
        "models": models,
        "cells": _cells,
        "explored": explored,
        **(script() if models else {}),
    }
    return write_atomic(folder / "index.html", render("target.html.j2", context))


def outputs_index(outputs: Path, targets: Sequence[Target]) -> Path:
    """Write `outputs/index.html`: what to deploy on every target, and links to NVIDIA's rows."""
    context = {
        "targets": [
            (target, counts(target.states), _recommendations(target)) for target in targets
        ],
        "refresh": max((target.refresh for target in targets), default=0),
        **(script() if targets else {}),
    }
    return write_atomic(outputs / "index.html", render("outputs.html.j2", context))


def _recommendations(target: Target) -> list[IndexRow]:
    """Return what to deploy, one row for each workload of each model that has a report."""
    rows: list[IndexRow] = []
    for report in (state for state in target.states if state.stage == "report"):
        stages = [state for state in target.states if state.model == report.model]
        compared = next((state for state in stages if state.stage == "compare"), None)
        answers = target.answers.get(report.model) or (Answer(),)
        note = _note(report, compared, [state for state in stages if state is not report])
        states = list(dict.fromkeys(state.state for state in stages))
        rows += [IndexRow(report, answer, note, states) for answer in answers]
    return rows


def _note(report: StageState, compared: StageState | None, stages: Sequence[StageState]) -> str:
    """Return how old an answer is, and whether it may still change."""
    if report.state not in PENDING:
        return report.reason
    by_state = dict(counts(stages))
    progress = f"{by_state.get('done', 0)} of {sum(by_state.values())} stages are done"
    is_old = compared is not None and compared.state in PENDING and compared.href
    before = ["from the last comparison" if is_old else "", report.reason]
    return "; ".join(filter(None, [*before, f"a run is in progress, {progress}"]))


def script() -> dict[str, str]:
    """Return the script of filters, and the hash by which a page's security policy allows it."""
    text = (TEMPLATE / "filter.js").read_text()
    hashed = b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return {"script": text, "script_hash": hashed}


def first_heading(*texts: str) -> str:
    """Return the first level-one heading of Markdown as plain text, or ''."""
    match = re.search(r"^# (.+)$", "\n".join(texts), re.MULTILINE)
    return re.sub("[`*]", "", match[1]).strip() if match else ""


def _cells(row: Iterable[StageState]) -> list[tuple[StageState, str, int]]:
    """Lay out one experiment's stages as table cells: the first stage of each, all of them in
    words, and how many they are. Neighbours not done for the same reason share a cell.
    """

    def key(state: StageState) -> tuple[str, str]:
        alone = state.state in ("done", *PENDING) or state.href
        return ("", state.stage) if alone else (state.state, state.reason)

    cells = []
    for _, group in groupby(row, key):
        first, *rest = group
        stages = f"{first.stage} to {rest[-1].stage}" if rest else first.stage
        cells.append((first, stages.replace("_", " "), 1 + len(rest)))
    return cells


def render(template: str, context: Mapping[str, object]) -> str:
    """Fill in one of the package's templates; all values are escaped."""
    return _environment().get_template(template).render(context) + "\n"


@cache
def _environment() -> "Environment":
    """Return Jinja's environment, whose compiled templates serve every index of a run."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATE), autoescape=True, undefined=StrictUndefined
    )
    environment.globals.update(home=Link("index.html", "All targets"), background=background)
    return environment
