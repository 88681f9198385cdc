"""How results become web pages: a page for each notebook, an index for each target and one above.

Every page is one file that loads nothing: its style is inline, its figures are embedded, and its
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

from helpers.config import LESSONS, STAGE, STAGES
from helpers.display import digits
from helpers.errors import WorkspaceError
from helpers.store import GRAMMARS, display_path, without, write_atomic

if TYPE_CHECKING:
    from jinja2 import Environment
    from nbformat import NotebookNode

STATES = ("done", "failed", "blocked", "skipped", "running", "waiting", "missing")
PENDING = ("running", "waiting")  # states of a run that is under way
REFRESH_SECONDS = 10  # after which an index is loaded again, while a run is under way
HEAD_CHARACTERS = 2**16  # of a page, in which its navigation stands
FEWEST_SECTIONS = 3  # of a page that lists them
TEMPLATE = Path(__file__).parent / "template"


@dataclass(frozen=True)
class Link:
    """A link of a page's navigation; `href` is relative to the page."""

    href: str
    text: str


@dataclass(frozen=True)
class StageState:
    """What an index says about one stage of one experiment; a report and a lesson have an empty
    `experiment`.
    """

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

    @property
    def took(self) -> str:
        """The duration in the two units that matter, such as '2 min 5 s'."""
        if self.seconds is None:
            return ""
        if self.seconds < 60:
            return f"{self.seconds:.0f} s" if self.seconds >= 1 else "< 1 s"
        minutes, rest = divmod(round(self.seconds), 60)
        return (
            f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
        )


@dataclass(frozen=True)
class Target:
    """What the first page says about one target; `counts` is the number of stages by state."""

    name: str
    gpu: str
    counts: Mapping[str, int]
    href: str


def page(
    notebook: Path, html: Path, links: Sequence[Link] = (), *, state: str = "", note: str = ""
) -> Path:
    """Write an executed notebook as the page `html` and return it.

    `state` and `note` are shown at the top: what the runner knows and the notebook cannot (a
    timeout, a dead kernel). Raises WorkspaceError if the notebook cannot be read.
    """
    with without(GRAMMARS):
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
    outputs = (output for cell in nb.cells for output in cell.get("outputs", []))
    errors = [f"{each.ename}: {each.evalue}" for each in outputs if each.output_type == "error"]
    error = next(iter(errors), "")
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
    """Whether a page that `page` wrote has these links in its navigation."""
    macros: Any = _environment().get_template("macros.html.j2").module
    with html.open(encoding="utf-8") as file:
        return str(macros.navigation(links)).strip() in file.read(HEAD_CHARACTERS)


def _with_contents(body: str) -> str:
    """Give the sections of a page, what follows its title, anchors, and a list of them before it
    if there are several.
    """
    sections: dict[str, str] = {}  # title by anchor

    def anchored(found: re.Match[str]) -> str:
        title = re.sub("<[^>]*>", "", found[1]).strip()
        stem = re.sub(r"\W+", "-", unescape(title).lower()).strip("-")
        anchor = stem if stem not in sections else f"{stem}-{len(sections)}"
        sections[anchor] = title
        return f'<h2 id="{anchor}">{found[1]}</h2>'

    body = re.sub("<h2>(.*?)</h2>", anchored, body, flags=re.DOTALL)
    if len(sections) < FEWEST_SECTIONS:
        return body
    links = "".join(f'<a href="#{anchor}">{title}</a>\n' for anchor, title in sections.items())
    return f'\n<nav class="contents" aria-label="On this page">\n{links}</nav>{body}'


def target_index(
    folder: Path,
    states: Sequence[StageState],
    *,
    gpu: str,
    explored: Sequence[StageState] = (),
    throughputs: Mapping[str, Mapping[str, float]] | None = None,
) -> Path:
    """Write `folder/index.html` beside results.csv: the reports, each with the throughput of its
    model's experiments (samples/s), then every stage of `states`, and what notebooks ran with
    overrides.
    """
    models: dict[str, dict[str, list[StageState]]] = {}
    for each in states:
        if not STAGE[each.stage].of_model:
            models.setdefault(each.model, {}).setdefault(each.experiment, []).append(each)
    found = [each.stage for each in states if each.experiment]
    optional = tuple(stage for stage in STAGE if STAGE[stage].is_optional and stage in found)
    context = {
        "target": folder.name,
        "gpu": gpu,
        "links": [Link("../index.html", "All targets"), Link("../glossary.html", "Words")],
        "finished": max((each.finished for each in states), default=""),
        "counts": _in_order(Counter(each.state for each in states)),
        "refresh": REFRESH_SECONDS if any(each.state in PENDING for each in states) else 0,
        "reports": [each for each in states if each.stage == "report"],
        "lessons": [each for each in states if each.stage in LESSONS],
        "stages": [stage.replace("_", " ") for stage in (*STAGES[:-1], *optional)],
        "models": {
            model: {name: _cells(row) for name, row in rows.items()}
            for model, rows in models.items()
        },
        "explored": explored,
        "charts": {model: _bars(found) for model, found in (throughputs or {}).items()},
        **_script("target.js"),
    }
    return write_atomic(folder / "index.html", render("target.html.j2", context))


def _bars(found: Mapping[str, float]) -> list[tuple[str, str, int]]:
    """Give each experiment's throughput as text, and as a share of the highest in percent."""
    highest = max(found.values(), default=0.0)
    return [(name, digits(value), round(100 * value / highest)) for name, value in found.items()]


def _script(name: str) -> dict[str, str]:
    """Give a page's own script, and the hash by which its security policy allows it."""
    script = (TEMPLATE / name).read_text()
    hashed = b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return {"script": script, "script_hash": hashed}


def outputs_index(outputs: Path, targets: Sequence[Target]) -> Path:
    """Write `outputs/index.html`, which links every target, and NVIDIA's rows."""
    is_running = any(each in target.counts for target in targets for each in PENDING)
    context = {
        "targets": [(target, _in_order(target.counts)) for target in targets],
        "refresh": REFRESH_SECONDS if is_running else 0,
    }
    return write_atomic(outputs / "index.html", render("outputs.html.j2", context))


def _heading(nb: "NotebookNode") -> str:
    """Return the notebook's first level-one heading as plain text, or ''."""
    for cell in nb.cells:
        if cell.cell_type == "markdown" and cell.source.startswith("# "):
            return re.sub("[`*]", "", cell.source.splitlines()[0][2:]).strip()
    return ""


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


def _in_order(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return the counts that are not zero, in the order of STATES."""
    return [(state, counts[state]) for state in STATES if counts.get(state)]


def render(template: str, context: Mapping[str, object]) -> str:
    """Fill in one of the package's templates; all values are escaped."""
    return _environment().get_template(template).render(context) + "\n"


@cache
def _environment() -> "Environment":
    """Keep the compiled templates: indexes are written before and after every stage."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(TEMPLATE), autoescape=True, undefined=StrictUndefined
    )
