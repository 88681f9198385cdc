"""Every stage of a target as it lies on disk: the table of states, all measured rows, and the pages
made from them.
"""

import csv
import io
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from helpers import results
from helpers.config import STAGES, Parameters, configure, parse
from helpers.errors import DeploymentError
from helpers.pipeline.planning import Job, owners
from helpers.report import Link, StageCell, Target, published_page
from helpers.report import site as pages
from helpers.store import shown, write_atomic


def dump(result: dict[str, Any]) -> str:
    """Render a result as JSON."""
    return json.dumps(result, indent=1)


def targets(outputs: Path) -> list[str]:
    """Name the targets that lie in an outputs folder."""
    return sorted(path.parent.name for path in outputs.glob("*/parameters.yaml"))


def cells(outputs: Path, target: str) -> list[StageCell]:
    """List every model x experiment x stage of a target with its state; what two experiments share
    appears for both.
    """
    given = _parameters(outputs, target)
    found = []
    for model in given.file.models:
        configs, reason = {}, ""
        try:
            configs = owners(given, model)
        except DeploymentError as error:  # the file was written by an older release
            reason = str(error)
        for experiment in given.experiments(model):
            for stage in STAGES[:-1]:
                path = Job(configs[experiment, stage]).result if configs else None
                found.append(_cell(model, experiment, stage, path, outputs / target, reason))
        report = Job(configure(given, model, "", "report"))
        found.append(_cell(model, "", "report", report.result, outputs / target))
    return found


def _parameters(outputs: Path, target: str) -> Parameters:
    """Read what the last run of a target was given."""
    path = outputs / target / "parameters.yaml"
    return parse(yaml.safe_load(path.read_text()), target, shown(path))


def _cell(
    model: str, experiment: str, stage: str, path: Path | None, base: Path, reason: str = ""
) -> StageCell:
    result = (results.read(path) if path else None) or {}
    page = path.with_suffix(".html") if path else None
    href = str(page.relative_to(base)) if page and page.exists() else None
    return StageCell(
        model=model,
        experiment=experiment,
        stage=stage,
        state=result.get("state", "missing"),
        headline=result.get("headline", ""),
        reason=result.get("reason", reason),
        href=href,
        seconds=result.get("seconds"),
        finished=result.get("finished"),
    )


def write_results(folder: Path) -> Path:
    """Write all measured rows of a target to its `results.csv`, in the columns of the published
    tables and ours.
    """
    found = [
        result for path in sorted(folder.glob("*/*/perf_*.json")) if (result := results.read(path))
    ]
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, results.COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in results.rows(found):
        writer.writerow({name: _plain(row.get(name)) for name in results.COLUMNS})
    return write_atomic(folder / "results.csv", buffer.getvalue())


def _plain(value: Any) -> Any:
    """Spell a value as the published tables do: an empty cell for what is not known, booleans in
    lower case.
    """
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.6g}" if isinstance(value, float) else value


def publish(outputs: Path, target: str, only: set[Path] | None = None) -> Path:
    """Write results.csv, the pages and the two indexes; with `only`, pages that are current are
    left as they are.
    """
    folder = outputs / target
    write_results(folder)
    for notebook in sorted(folder.glob("*/**/*.ipynb")):
        if "artefacts" in notebook.relative_to(folder).parts:
            continue
        html = notebook.with_suffix(".html")
        if (
            only is None
            or not html.exists()
            or html.stat().st_mtime_ns < notebook.stat().st_mtime_ns
        ):
            result = results.read(notebook.with_suffix(".json")) or {}
            up = "/".join([".."] * (len(notebook.relative_to(folder).parts) - 1))
            links = [
                Link(href=f"{up}/index.html", text=target),
                Link(href=f"{up}/../index.html", text="All targets"),
            ]
            pages.page(
                notebook, html, links, state=result.get("state", ""), note=result.get("reason", "")
            )
    found = cells(outputs, target)
    index = pages.target_index(folder, found, gpu=_parameters(outputs, target).file.gpu)
    front(outputs)
    return index


def front(outputs: Path) -> Path:
    """Write what belongs to no target: NVIDIA's rows, and the index of all targets."""
    published_page.write(outputs)
    return pages.outputs_index(outputs, [_target(outputs, name) for name in targets(outputs)])


def _target(outputs: Path, name: str) -> Target:
    counts = Counter(cell["state"] for cell in cells(outputs, name))
    return Target(
        name=name, gpu=_parameters(outputs, name).file.gpu, counts=counts, href=f"{name}/index.html"
    )
