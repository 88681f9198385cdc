"""What a reader sees of an outputs folder: each stage's state, results.csv, pages and indexes."""

import csv
import io
import math
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from helpers import results
from helpers.config import (
    STAGE,
    STAGES,
    Parameters,
    StageConfig,
    Value,
    configure,
    parse,
    results_folder,
)
from helpers.errors import DeploymentError
from helpers.pipeline.planning import owners
from helpers.report import Link, StageState, Target, nvidia, outputs_index, page, target_index
from helpers.results import Row
from helpers.store import display_path, write_atomic


def targets(outputs: Path) -> list[str]:
    """Name the targets that lie in an outputs folder."""
    return sorted(path.parent.name for path in outputs.glob("*/parameters.yaml"))


def last_parameters(outputs: Path, target: str) -> Parameters:
    """Read what the last run of a target was given."""
    path = outputs / target / "parameters.yaml"
    return parse(yaml.safe_load(path.read_text()), target, display_path(path))


def stage_states(outputs: Path, target: str) -> list[StageState]:
    """List each stage of each experiment of a target, also shared ones, and each model's report."""
    given, base = last_parameters(outputs, target), outputs / target
    found = []
    for model in given.file.models:
        places = [
            (name, stage)
            for name in given.experiments(model)
            for stage in STAGE
            if stage in STAGES[:-1] or (base / model / name / f"{stage}.json").exists()
        ]
        try:
            configs = owners(given, model)
            found += [_state(configs[place], place[0], base) for place in places]
        except DeploymentError as error:  # the file was written by an older release
            reason = str(error)
            found += [StageState(model, *each, state="missing", reason=reason) for each in places]
        found.append(_state(configure(given, model, "", "report"), "", base))
    return found


def _state(config: StageConfig, experiment: str, base: Path) -> StageState:
    path = results_folder(config) / f"{config.stage}.json"
    result, page = results.read(path), path.with_suffix(".html")
    href = str(page.relative_to(base)) if page.exists() else None
    shown: dict[str, Any] = {"state": "missing"}
    if result:
        shown = result.model_dump(include={"state", "headline", "reason", "seconds", "finished"})
        shown["measuring_seconds"] = result.measurement and result.measurement.measuring_seconds
    return StageState(config.model, experiment, config.stage, href=href, **shown)


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
    nvidia.write_fidelity(outputs)
    found = []
    for name in targets(outputs):
        gpu = last_parameters(outputs, name).file.gpu
        counts = Counter(each.state for each in stage_states(outputs, name))
        found.append(Target(name, gpu, counts, href=f"{name}/index.html"))
    return outputs_index(outputs, found)
