"""The state of every stage of a target, as it lies on disk."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import yaml

from helpers import results
from helpers.config import STAGES, StageConfig, configure, folder
from helpers.errors import DeploymentError
from helpers.pipeline.planning import owner
from helpers.report import StageState, Target
from helpers.results import Result


def targets(outputs: Path) -> list[str]:
    """Name the targets that lie in an outputs folder."""
    return sorted(path.parent.name for path in outputs.glob("*/parameters.yaml"))


def stage_states(outputs: Path, target: str) -> list[StageState]:
    """List every stage of every experiment of a target, and each model's report; what two
    experiments share is listed for both.
    """
    content = yaml.safe_load((outputs / target / "parameters.yaml").read_text())
    found = []
    for model, section in content["models"].items():
        for experiment in section["experiments"]:
            for stage in STAGES[:-1]:
                place = (model, experiment, stage)
                try:
                    config = owner(content, target, *place)
                except DeploymentError as error:  # the file was written by another release
                    state = StageState(*place, state="missing", reason=str(error))
                else:
                    state = _state(*place, config, outputs / target)
                found.append(state)
        report = configure(content, target, model, "", "report")
        found.append(_state(model, "", "report", report, outputs / target))
    return found


def _state(model: str, experiment: str, stage: str, config: StageConfig, base: Path) -> StageState:
    path = folder(config) / f"{config.stage}.json"
    result, page = results.read(path), path.with_suffix(".html")
    href = str(page.relative_to(base)) if page.exists() else None
    if result is None:
        return StageState(model, experiment, stage, state="missing", href=href)
    return StageState(
        model,
        experiment,
        stage,
        state=result.state,
        headline=result.headline,
        reason=result.reason,
        href=href,
        seconds=result.seconds,
        finished=result.finished,
    )


def measured(outputs: Path, target: str) -> Iterator[Result]:
    """Read the results of the performance stages of every experiment that the target has now."""
    content = yaml.safe_load((outputs / target / "parameters.yaml").read_text())
    for model, section in content["models"].items():
        for experiment in section["experiments"]:
            for path in sorted((outputs / target / model / experiment).glob("perf_*.json")):
                if result := results.read(path):
                    yield result


def summary(outputs: Path, name: str) -> Target:
    """Count the stages of a target in each state."""
    content = yaml.safe_load((outputs / name / "parameters.yaml").read_text())
    counts = Counter(each.state for each in stage_states(outputs, name))
    return Target(name=name, gpu=content["gpu"], counts=counts, href=f"{name}/index.html")
