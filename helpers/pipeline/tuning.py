"""Tuning an experiment: the parity checks of every format that it may take, then the search."""

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
    """Search the fastest configuration of an experiment, by default the model's first, and say
    where the parameter file with it is and which line to paste into another.

    Each format gets an experiment of its own, which shares what the file's experiments have made
    already. Raises `ParameterError`, and `StageError` if the search failed.
    """
    given, say = read_file(path), say or Lines()
    select(given, [model], [experiment] if experiment else [])
    name = experiment or given.experiments(model)[0]
    timed = _with(given, model, {name: {"tune_minutes": minutes}}) if minutes else given
    config = configure(timed, model, name, "tune")
    assert isinstance(config, TuneConfig)
    more = experiments(given, config)
    wider = _with(given, model, {name: {"tune_minutes": config.tune_minutes}, **more})
    jobs = plan(wider, [(model, each) for each in (name, *more)], CHECK_STAGES)
    jobs += plan(wider, [(model, name)], ["tune"])
    run_plans([(path, given, jobs)], outputs, False, cell_seconds, say)
    result = results.read(jobs[-1].result)
    if result is None or result.state != "done":
        raise StageError(result.reason if result else "The search left no result. Run it again.")
    written, changes = (result.facts[each] for each in ("written", "differs"))
    assert isinstance(changes, dict)
    fields = (given.file.models[model].experiments[name] or {}) | changes
    line = yaml.safe_dump(fields, default_flow_style=True, sort_keys=False, width=1000).strip()
    say(f"wrote {written}. For your own parameter file: {EXPERIMENT}: {line}")


def experiments(given: Parameters, config: TuneConfig) -> dict[str, dict[str, Value]]:
    """Return an experiment for each format that the search may take."""
    own, (found, _) = given.merged(config.model, config.experiment), candidates(config)
    return {PREFIX + name: own | fields for name, fields in found.items()}


def _with(given: Parameters, model: str, more: dict[str, dict[str, Value]]) -> Parameters:
    """Add experiments, or fields to those that are there."""
    section = given.file.models[model]
    experiments = dict(section.experiments)
    for name, fields in more.items():
        experiments[name] = (experiments.get(name) or {}) | fields
    models = given.file.models | {model: section.model_copy(update={"experiments": experiments})}
    return replace(given, file=given.file.model_copy(update={"models": models}))
