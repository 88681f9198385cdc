"""Writing what a reader opens: results.csv, a page for each notebook, and the indexes."""

import csv
import io
import math
from collections import Counter
from pathlib import Path

from helpers import results
from helpers.config import Value
from helpers.pipeline.status import last_parameters, stage_states, targets
from helpers.report import Link, Target, nvidia, outputs_index, page, target_index
from helpers.results import Row
from helpers.store import write_atomic


def write_results(outputs: Path, target: str) -> Path:
    """Write the measured rows of every experiment that a target has now to its `results.csv`."""
    buffer, given = io.StringIO(), last_parameters(outputs, target)
    writer = csv.DictWriter(buffer, list(Row.model_fields), lineterminator="\n")
    writer.writeheader()
    for model in given.file.models:
        for experiment in given.experiments(model):
            paths = sorted((outputs / target / model / experiment).glob("perf_*.json"))
            for row in results.rows(filter(None, map(results.read, paths))):
                writer.writerow({name: _plain(value) for name, value in row.model_dump().items()})
    return write_atomic(outputs / target / "results.csv", buffer.getvalue())


def _plain(value: Value) -> Value:
    """Spell a value as the published tables do: unknown ones empty, booleans in lower case."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.6g}" if isinstance(value, float) else value


def publish(outputs: Path, target: str, only_changed: bool = False) -> Path:
    """Write results.csv, the indexes, and the pages; `only_changed` those that are out of date."""
    folder = outputs / target
    write_results(outputs, target)
    for notebook in sorted(folder.glob("*/**/*.ipynb")):
        if "artefacts" in notebook.relative_to(folder).parts:
            continue
        html, record = notebook.with_suffix(".html"), notebook.with_suffix(".json")
        if only_changed and _time(html) >= max(_time(notebook), _time(record)):
            continue
        result = results.read(record)
        up = "/".join([".."] * (len(notebook.relative_to(folder).parts) - 1))
        links = [
            Link(href=f"{up}/index.html", text=target),
            Link(href=f"{up}/../index.html", text="All targets"),
        ]
        state, note = (result.state, result.reason) if result else ("", "")
        page(notebook, html, links, state=state, note=note)
    gpu = last_parameters(outputs, target).file.gpu
    index = target_index(folder, stage_states(outputs, target), gpu=gpu)
    publish_front(outputs)
    return index


def _time(path: Path) -> int:
    return path.stat().st_mtime_ns if path.exists() else 0


def publish_front(outputs: Path) -> Path:
    """Write what belongs to no target: NVIDIA's rows, and the index of all targets."""
    nvidia.write_page(outputs)
    found = []
    for name in targets(outputs):
        gpu = last_parameters(outputs, name).file.gpu
        counts = Counter(each.state for each in stage_states(outputs, name))
        found.append(Target(name, gpu, counts, href=f"{name}/index.html"))
    return outputs_index(outputs, found)
