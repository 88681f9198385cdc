"""Writing what a reader opens: results.csv, a page for each notebook, and the indexes."""

import csv
import io
import math
from pathlib import Path

from helpers import results
from helpers.config import Value
from helpers.pipeline.status import measured, parameters, stage_states, summary, targets
from helpers.report import Link, nvidia, outputs_index, page, target_index
from helpers.results import Row
from helpers.store import write_atomic


def write_results(outputs: Path, target: str) -> Path:
    """Write all measured rows of a target to its `results.csv`, in the columns of the published
    tables and ours.
    """
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(Row.model_fields), lineterminator="\n")
    writer.writeheader()
    for row in results.rows(measured(outputs, target)):
        writer.writerow({name: _plain(value) for name, value in row.model_dump().items()})
    return write_atomic(outputs / target / "results.csv", buffer.getvalue())


def _plain(value: Value) -> Value:
    """Spell a value as the published tables do: an empty cell for what is not known, booleans in
    lower case.
    """
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.6g}" if isinstance(value, float) else value


def publish(outputs: Path, target: str, only_changed: bool = False) -> Path:
    """Write results.csv, the pages and the two indexes; with `only_changed`, pages that are newer
    than their notebook and result are left as they are.
    """
    folder = outputs / target
    write_results(outputs, target)
    for notebook in sorted(folder.glob("*/**/*.ipynb")):
        if "artefacts" in notebook.relative_to(folder).parts:
            continue
        html = notebook.with_suffix(".html")
        if only_changed and html.exists() and _time(html) >= max(map(_time, _sources(notebook))):
            continue
        result = results.read(notebook.with_suffix(".json"))
        up = "/".join([".."] * (len(notebook.relative_to(folder).parts) - 1))
        links = [
            Link(href=f"{up}/index.html", text=target),
            Link(href=f"{up}/../index.html", text="All targets"),
        ]
        state, note = (result.state, result.reason) if result else ("", "")
        page(notebook, html, links, state=state, note=note)
    gpu = parameters(outputs, target).file.gpu
    index = target_index(folder, stage_states(outputs, target), gpu=gpu)
    publish_front(outputs)
    return index


def _sources(notebook: Path) -> list[Path]:
    return [path for path in (notebook, notebook.with_suffix(".json")) if path.exists()]


def _time(path: Path) -> int:
    return path.stat().st_mtime_ns


def publish_front(outputs: Path) -> Path:
    """Write what belongs to no target: NVIDIA's rows, and the index of all targets."""
    nvidia.write_page(outputs)
    return outputs_index(outputs, [summary(outputs, name) for name in targets(outputs)])
