"""Write what a reader sees of an outputs folder: stage states, results.csv, pages and indexes."""

import csv
import io
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import yaml

from helpers import models, results
from helpers.config import (
    LESSONS,
    SEPARATOR,
    STAGE,
    STAGES,
    Parameters,
    StageConfig,
    Value,
    configure,
    parse,
    renamed_parameters,
    result_file,
    stages,
)
from helpers.errors import DeploymentError
from helpers.pipeline.planning import NOT_PLANNED, is_planned, lessons, shared_configs
from helpers.report import (
    Link,
    StageState,
    Target,
    answers_of,
    background,
    documents,
    has_links,
    nvidia,
    outputs_index,
    page,
    target_index,
)
from helpers.results import Row
from helpers.store import display_path, write_atomic

SHOWN = {"state", "headline", "reason", "finished"}  # fields of a result
# By model: the configurations by experiment and stage, or the error of one
Configs = dict[str, dict[tuple[str, str], StageConfig | str]]


def targets(outputs: Path) -> list[str]:
    """List the targets of an outputs folder, without those whose models no longer exist."""
    paths = sorted(outputs.glob("*/parameters.yaml"))
    return [path.parent.name for path in paths if _content(path, path.stat().st_mtime_ns)]


def last_parameters(outputs: Path, target: str) -> Parameters:
    """Read the parameters of a target's last run, without models that no longer exist."""
    return _last_run(outputs, target)[0]


def _last_run(outputs: Path, target: str) -> tuple[Parameters, Configs]:
    """Return the parameters of a target's last run, and each model's configurations."""
    path = outputs / target / "parameters.yaml"
    return _read_run(path, path.stat().st_mtime_ns)


@cache
def _read_run(path: Path, changed: int) -> tuple[Parameters, Configs]:
    parameters = parse(_content(path, changed), path.parent.name, display_path(path))
    return parameters, {model: _configs(parameters, model) for model in parameters.file.models}


@cache
def _content(path: Path, _: int) -> object:
    """Read a parameter file without models that no longer exist; return None if none is left."""
    content: Any = renamed_parameters(yaml.load(path.read_text(), yaml.CSafeLoader))
    sections = content.get("models") if isinstance(content, dict) else None
    if not isinstance(sections, dict):
        return content or {"models": sections}
    left = {name: section for name, section in sections.items() if name in models.names()}
    return content | {"models": left} if left else None


def stage_states(
    outputs: Path, target: str, pending: Mapping[Path, str] | None = None
) -> list[StageState]:
    """List the stages of a target's experiments (also shared ones), and those of its models.

    An optional stage is listed if the parameter file names it or it has run. `pending` has the
    results of a run in progress: "running" or "waiting", and after a colon the reason.
    """
    base, states = outputs / target, []
    parameters, configs = _last_run(outputs, target)
    for model in parameters.file.models:
        for (experiment, stage), config in configs[model].items():
            is_asked = not STAGE[stage].is_optional or stage in parameters.lessons(model)
            if isinstance(config, str):
                if is_asked:
                    states.append(StageState(model, experiment, stage, "missing", reason=config))
            elif is_asked or result_file(config).exists():
                states.append(_state(config, experiment, base, pending or {}))
    return states


def _configs(parameters: Parameters, model: str) -> dict[tuple[str, str], StageConfig | str]:
    """Return the configuration of each stage of a model's experiments, or why it is invalid.

    An older release may have written the parameter file. Stages of a model have no experiment.
    """
    configs: dict[tuple[str, str], StageConfig | str] = {}
    try:
        configs |= shared_configs(parameters, model)
        configs |= {("", lesson.stage): lesson for lesson in lessons(parameters, model)}
        if "compare" in stages(model):
            configs["", "compare"] = configure(parameters, model, "", "compare")
    except DeploymentError as error:
        keys = product(parameters.experiments(model), STAGE)
        configs = {key: str(error) for key in keys if not STAGE[key[1]].of_model}
    return configs | {("", "report"): configure(parameters, model, "", "report")}


def _state(
    config: StageConfig, experiment: str, base: Path, pending: Mapping[Path, str]
) -> StageState:
    if not is_planned(config):
        return StageState(config.model, experiment, config.stage, "unplanned", reason=NOT_PLANNED)
    path = result_file(config)
    result, page = results.read(path), path.with_suffix(".html")
    owner = "" if experiment in ("", config.experiment) else config.experiment
    shown: dict[str, Any] = {"state": "missing", "shared_with": owner}
    if path in pending:  # a stage that experiments share runs once
        state, _, reason = pending[path].partition(": ")
        if config.stage == "report":  # of the report that is shown until then
            reason = result.reason if result else ""
        shown |= {"state": "waiting" if owner else state, "reason": reason}
    elif result:
        shown |= result.model_dump(include={*SHOWN, "seconds"})
        seconds = sum(comparison.seconds for comparison in result.comparisons) or None
        measured = result.measurement
        shown["measuring_seconds"] = measured.measuring_seconds if measured else seconds
    shown["href"] = str(page.relative_to(base)) if page.exists() else None
    return StageState(config.model, experiment, config.stage, **shown)


def explored(outputs: Path, target: str) -> list[StageState]:
    """List the stages that notebooks ran with overrides, which belong to no experiment."""
    paths = sorted((outputs / target).glob(f"*/*{SEPARATOR}*/*.json"))
    return [
        StageState(one.model, one.experiment, one.stage, **one.model_dump(include=SHOWN))
        for one in filter(None, map(results.read, paths))
    ]


def write_results(outputs: Path, target: str) -> Path:
    """Write the measured rows of a target's current experiments to its `results.csv`."""
    buffer, parameters = io.StringIO(), last_parameters(outputs, target)
    writer = csv.DictWriter(buffer, list(Row.model_fields), lineterminator="\n")
    writer.writeheader()
    for model, section in parameters.file.models.items():
        for experiment in section.experiments:
            paths = sorted((outputs / target / model / experiment).glob("perf_*.json"))
            for row in results.rows(filter(None, map(results.read, paths))):
                writer.writerow({name: _plain(value) for name, value in row.model_dump().items()})
    return write_atomic(outputs / target / "results.csv", buffer.getvalue())


def _plain(value: Value) -> Value:
    """Format a value as the published tables do: unknown ones empty, booleans in lower case."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "; ".join(f"{name} {_plain(each)}" for name, each in value.items())
    return f"{value:.6g}" if isinstance(value, float) else value


def publish(
    outputs: Path,
    target: str,
    only_changed: bool = False,
    pending: Mapping[Path, str] | None = None,
) -> Path:
    """Write results.csv, the indexes, and the pages, with `only_changed` only outdated ones.

    `pending` has the stages that a run in progress has not finished: see `stage_states`.
    """
    folder, order = outputs / target, _reading_order(outputs, target)
    pending = pending or {}
    write_results(outputs, target)
    for notebook in sorted(folder.glob("*/**/*.ipynb")):
        html, record = notebook.with_suffix(".html"), notebook.with_suffix(".json")
        parts = notebook.relative_to(folder).parts
        if "artifacts" in parts or record in pending:  # the latter are about to run again
            continue
        up = "/".join([".."] * (len(parts) - 1))
        links = [
            *_neighbours(notebook, order, pending),
            Link(href=f"{up}/index.html", text=target),
            Link(href=f"{up}/../index.html", text="All targets"),
            *background(f"{up}/../"),
        ]
        is_newer = _time(html) >= max(_time(notebook), _time(record))
        if only_changed and is_newer and has_links(html, links):
            continue
        result = results.read(record)
        state, note = (result.state, result.reason) if result else ("", "")
        page(notebook, html, links, state=state, note=note)
    return publish_indexes(outputs, target, pending)


def _reading_order(outputs: Path, target: str) -> list[list[Path]]:
    """List the notebooks of each experiment, and of a model's lessons; the report is the last."""
    listed: list[list[Path]] = []
    for model, configs in _last_run(outputs, target)[1].items():
        order: dict[str, list[Path]] = {}
        for (experiment, stage), config in configs.items():
            is_read = stage in LESSONS or (experiment and stage in STAGES)
            if is_read and not isinstance(config, str) and is_planned(config):
                order.setdefault(experiment, []).append(result_file(config).with_suffix(".ipynb"))
        for experiment, notebooks in order.items():
            last = ("compare", "report") if experiment else ("report",)
            listed.append(notebooks + [outputs / target / model / f"{name}.ipynb" for name in last])
    return listed


def _neighbours(
    notebook: Path, order: Sequence[Sequence[Path]], pending: Mapping[Path, str]
) -> Iterator[Link]:
    """Yield links to the stages before and after a notebook that have run or are about to."""
    # the last notebook of each is the report
    notebooks = next((notebooks for notebooks in order if notebook in notebooks[:-1]), [])
    there = [path for path in notebooks if path.exists() or path.with_suffix(".json") in pending]
    beside = [(path, "← {}") for path, following in pairwise(there) if following == notebook]
    beside += [(path, "{} →") for previous, path in pairwise(there) if previous == notebook]
    for path, words in beside:
        href = os.path.relpath(path.with_suffix(".html"), notebook.parent)
        yield Link(href, words.format(path.stem.replace("_", " ")))


def _time(path: Path) -> int:
    return path.stat().st_mtime_ns if path.exists() else 0


def publish_indexes(outputs: Path, target: str, pending: Mapping[Path, str] | None = None) -> Path:
    """Write the index of a target and the index of all targets."""
    indexed = {name: _target(outputs, name, pending) for name in targets(outputs)}
    outputs_index(outputs, list(indexed.values()))
    return target_index(outputs / target, indexed[target], explored(outputs, target))


def _target(outputs: Path, name: str, pending: Mapping[Path, str] | None) -> Target:
    """Return what the indexes show of a target; its answers come from its comparisons' results."""
    states, folder = stage_states(outputs, name, pending), outputs / name
    reports = [state.model for state in states if state.stage == "report"]
    answers = {model: answers_of(folder / model) for model in reports}
    return Target(name, last_parameters(outputs, name).file.gpu, states, answers)


def publish_front(outputs: Path) -> Path:
    """Write what belongs to no target: the pages of NVIDIA's measurements, documents and index."""
    nvidia.write_pages(outputs)
    index = outputs_index(outputs, [_target(outputs, name, None) for name in targets(outputs)])
    documents.write_pages(outputs)
    return index
