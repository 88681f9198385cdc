"""Tune an experiment: run the parity checks of each format in the search space, then search."""

from dataclasses import replace
from pathlib import Path

import yaml

from helpers import results
from helpers.compare import CHECK_STAGES, EXPERIMENT, PREFIX, candidates
from helpers.config import Parameters, TuneConfig, Value, configure, read_file, select
from helpers.display import Lines
from helpers.errors import StageError
from helpers.pipeline.planning import plan
from helpers.pipeline.running import run_plans


def tune(
    path: Path,
    outputs: Path,
    model: str,
    experiment: str = "",
    minutes: float | None = None,
    cell_seconds: int = 7200,
    say: Lines | None = None,
) -> None:
    """Search the fastest configuration of an experiment, by default the model's first.

    Prints the path of the new parameter file, and the line to paste into another. Each format has
    an experiment of its own, which shares artifacts with those of the file. Raises
    `ParameterError`, and `StageError` if the search failed.
    """
    parameters, say = read_file(path), say or Lines()
    select(parameters, [model], [experiment] if experiment else [])
    name = experiment or parameters.experiments(model)[0]
    timed = _with(parameters, model, {name: {"tune_minutes": minutes}}) if minutes else parameters
    config = configure(timed, model, name, "tune")
    assert isinstance(config, TuneConfig)
    more = experiments(parameters, config)
    wider = _with(parameters, model, {name: {"tune_minutes": config.tune_minutes}, **more})
    jobs = plan(wider, [(model, label) for label in (name, *more)], CHECK_STAGES)
    jobs += plan(wider, [(model, name)], ["tune"])
    run_plans([(path, parameters, jobs)], outputs, False, cell_seconds, say)
    result = results.read(jobs[-1].result)
    if result is None or result.state != "done":
        raise StageError(result.reason if result else "The search left no result. Run it again.")
    written, changes = (result.facts[key] for key in ("written", "differs"))
    assert isinstance(changes, dict)
    fields = (parameters.file.models[model].experiments[name] or {}) | changes
    line = yaml.safe_dump(fields, default_flow_style=True, sort_keys=False, width=1000).strip()
    say(f"wrote {written}. For your own parameter file: {EXPERIMENT}: {line}")


def experiments(parameters: Parameters, config: TuneConfig) -> dict[str, dict[str, Value]]:
    """Return an experiment for each format of the search space."""
    fields, (formats, _) = parameters.merged(config.model, config.experiment), candidates(config)
    return {PREFIX + name: fields | changes for name, changes in formats.items()}


def _with(parameters: Parameters, model: str, more: dict[str, dict[str, Value]]) -> Parameters:
    """Return parameters with more experiments, or with more fields of existing ones."""
    file, section = parameters.file, parameters.file.models[model]
    combined = {name: (section.experiments.get(name) or {}) | more[name] for name in more}
    section = section.model_copy(update={"experiments": section.experiments | combined})
    models = {"models": file.models | {model: section}}
    return replace(parameters, file=file.model_copy(update=models))
