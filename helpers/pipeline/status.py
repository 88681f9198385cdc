"""The state of every stage of a target, as it lies on disk."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import yaml

from helpers import results
from helpers.config import STAGES, Parameters, StageConfig, configure, parse, results_folder
from helpers.errors import DeploymentError
from helpers.pipeline.planning import owners
from helpers.report import StageState, Target
from helpers.results import Result
from helpers.store import display_path


def targets(outputs: Path) -> list[str]:
    """Name the targets that lie in an outputs folder."""
    return sorted(path.parent.name for path in outputs.glob("*/parameters.yaml"))


def stage_states(outputs: Path, target: str) -> list[StageState]:
    """List every stage of every experiment of a target, and each model's report; what two
    experiments share is listed for both.
    """
    given = parameters(outputs, target)
    found = []
    for model in given.file.models:
        configs, reason = {}, ""
        try:
            configs = owners(given, model)
        except DeploymentError as error:  # the file was written by an older release
            reason = str(error)
        for experiment in given.experiments(model):
            for stage in STAGES[:-1]:
                place = (model, experiment, stage)
                found.append(
                    _state(*place, configs[experiment, stage], outputs / target)
                    if configs
                    else StageState(*place, state="missing", reason=reason)
                )
        report = configure(given, model, "", "report")
        found.append(_state(model, "", "report", report, outputs / target))
    return found


def parameters(outputs: Path, target: str) -> Parameters:
    """Read what the last run of a target was given."""
    path = outputs / target / "parameters.yaml"
    return parse(yaml.safe_load(path.read_text()), target, display_path(path))


def _state(model: str, experiment: str, stage: str, config: StageConfig, base: Path) -> StageState:
    path = results_folder(config) / f"{config.stage}.json"
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
    given = parameters(outputs, target)
    for model in given.file.models:
        for experiment in given.experiments(model):
            for path in sorted((outputs / target / model / experiment).glob("perf_*.json")):
                if result := results.read(path):
                    yield result


def summary(outputs: Path, name: str) -> Target:
    """Count the stages of a target in each state."""
    counts = Counter(each.state for each in stage_states(outputs, name))
    return Target(
        name=name, gpu=parameters(outputs, name).file.gpu, counts=counts, href=f"{name}/index.html"
    )
