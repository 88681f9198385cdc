"""The state of every stage of a target, as it lies on disk."""

from pathlib import Path
from typing import Any

import yaml

from helpers import results
from helpers.config import STAGES, Parameters, StageConfig, configure, parse, results_folder
from helpers.errors import DeploymentError
from helpers.pipeline.planning import owners
from helpers.report import StageState
from helpers.store import display_path


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
        places = [(name, stage) for name in given.experiments(model) for stage in STAGES[:-1]]
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
    return StageState(config.model, experiment, config.stage, href=href, **shown)
