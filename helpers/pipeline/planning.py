"""Plan a run: its notebooks, the results that are up to date, and the time that the rest takes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from helpers import formats, models, results
from helpers.config import (
    LESSONS,
    STAGE,
    STAGES,
    TUTORIAL_MODEL,
    CompareConfig,
    ConvertConfig,
    ExportConfig,
    OnlineConfig,
    Parameters,
    StageConfig,
    artifact_folder,
    configure,
    needed,
    result_file,
)
from helpers.config import stages as config_stages
from helpers.display import Lines
from helpers.inference import checkpoint_place, dataset_place
from helpers.machine import why_lesson_unavailable, why_unavailable
from helpers.store import ROOT, find_artifact, is_remote, is_unchanged, known_digest

DEFAULT_STAGE_SECONDS = dict(
    zip(STAGE, (11, 6, 10, 14, 10, 90, 6, 420, 120, 90, 90, 90), strict=True)
)
DATA_SECONDS = 40  # generating a data set and fitting a checkpoint to it
NOT_PLANNED = "concurrency is empty"
NONE_COMPARED = "Every experiment has compare: false."

Configs = dict[tuple[str, str], StageConfig]  # by experiment and stage
Ask = Callable[[ConvertConfig], str]  # returns why an experiment cannot run


@dataclass(frozen=True)
class Job:
    """One notebook to run: a stage of an experiment, or a model's comparison, report or lesson."""

    config: StageConfig
    why_unavailable: str = ""  # why this machine cannot run it
    needs: tuple[Path, ...] = ()  # results of which one must be done first

    @property
    def name(self) -> str:
        c = self.config
        return f"{c.model} {'' if STAGE[c.stage].of_model else c.experiment + ' '}{c.stage}"

    @property
    def result(self) -> Path:
        return result_file(self.config)


Plan = tuple[Path, Parameters, list[Job]]  # a parameter file, its content and its jobs


def plan(
    params: Parameters,
    chosen: list[tuple[str, str]],
    stages: Sequence[str],
    ask: Ask = why_unavailable,
) -> list[Job]:
    """List the jobs in order; a stage that experiments share is one job, of the first of them."""
    jobs: dict[Path, Job] = {}
    for model in dict.fromkeys(model for model, _ in chosen):
        configs = shared_configs(params, model)
        for _, experiment in (pair for pair in chosen if pair[0] == model):
            deployment = configure(params, model, experiment, "deploy")  # has all that `ask` reads
            assert isinstance(deployment, ConvertConfig)
            reason = ask(deployment)
            for stage in stages or STAGES:
                config, before = configs.get((experiment, stage)), needed(model, stage)
                if config and is_planned(config):
                    needs = (result_file(configs[experiment, before]),) if before else ()
                    job = Job(config, reason or why_lesson_unavailable(config), needs)
                    if job.result not in jobs or jobs[job.result].why_unavailable:
                        jobs[job.result] = job  # one that can run is enough
        of_model = []
        if "compare" in (stages or STAGES) and "compare" in config_stages(model):
            of_model.append(_comparison(params, model, configs, ask))
        if "report" in (stages or STAGES):
            of_model.append(Job(configure(params, model, "", "report")))
        first = params.experiments(model)[0]  # which the lessons are about
        asked = stages or (params.lessons(model) if (model, first) in chosen else ())
        for lesson in lessons(params, model):
            if lesson.stage in asked:
                conversion = configs[first, "convert"]
                assert isinstance(conversion, ConvertConfig)
                needs = (result_file(configs[first, STAGE[lesson.stage].needs]),)
                reason = ask(conversion) or why_lesson_unavailable(lesson)
                of_model.append(Job(lesson, reason, needs))
        jobs |= {job.result: job for job in of_model}
    return list(jobs.values())


def _comparison(params: Parameters, model: str, configs: Configs, ask: Ask) -> Job:
    """Return the job that compares a model's experiments. It can run if one of them can."""
    config = configure(params, model, "", "compare")
    assert isinstance(config, CompareConfig)
    compared = [one for one in config.candidates if one.compare]
    reasons = [ask(one) for one in compared]
    reason = next(iter(reasons), NONE_COMPARED) if all(reasons) else ""
    needs = tuple(result_file(configs[one.experiment, "deploy"]) for one in compared)
    return Job(config, reason or why_lesson_unavailable(config), needs)


def is_planned(config: StageConfig) -> bool:
    """Return whether a run includes a stage of an experiment: without clients, no perf_online."""
    has_clients = not isinstance(config, OnlineConfig) or bool(config.concurrency)
    return has_clients or config.stage != "perf_online"


def lessons(params: Parameters, model: str) -> list[StageConfig]:
    """Return the configurations of a model's lessons, which use its first experiment."""
    return [configure(params, model, "", stage) for stage in LESSONS if model == TUTORIAL_MODEL]


def shared_configs(params: Parameters, model: str) -> Configs:
    """Return the configuration of each stage of each experiment of a model.

    Experiments that share an artifact have the configuration of the first of them.
    """
    first: dict[str, StageConfig] = {}
    configs = {}
    names = [name for name in config_stages(model) if not STAGE[name].of_model]
    for experiment, stage in product(params.experiments(model), names):
        config = configure(params, model, experiment, stage)
        if STAGE[stage].makes_artifact:
            config = first.setdefault(config.key(stage), config)
        configs[experiment, stage] = config
    return configs


def why_outdated(job: Job, digests: dict[str, str] | None = None, away: bool = False) -> str:
    """Return why the stage must run; empty if its result is up to date.

    `digests` caches those of modules, as stages read mostly the same ones. With `away`, data and
    artifacts with a manifest here may be on other machines.
    """
    digests = {} if digests is None else digests
    result = results.read(job.result)
    if result is None:
        return "no previous result"
    if result.state == "failed" or result.fingerprint is None:
        return f"{'' if result.state == 'failed' else 'was '}{result.state} before"
    if changed := results.difference(result.fingerprint, results.fingerprint(job.config)):
        return changed
    for name, digest in result.fingerprint.modules.items():
        if name not in digests:
            digests[name] = known_digest(ROOT / name) if (ROOT / name).exists() else ""
        if digests[name] != digest:
            return f"{name} changed"
    if STAGE[job.config.stage].makes_artifact:
        artifact = find_artifact(artifact_folder(job.config, job.config.stage))
        if artifact is None or not (is_unchanged(artifact) or (away and is_remote(artifact))):
            return "its artifact is missing or changed on disk"
    if not away and _lacks_data(job.config):
        return "its data set or checkpoint is missing"
    return "" if job.result.with_suffix(".ipynb").exists() else "its executed notebook is missing"


def _lacks_data(config: StageConfig) -> bool:
    """Return whether this is a model's first stage and its data set or checkpoint is missing."""
    if not isinstance(config, ExportConfig) or config.stage != config_stages(config.model)[0]:
        return False
    return checkpoint_place(config).is_missing or dataset_place(config).is_missing


def parameters(job: Job) -> dict[str, Any]:
    """Return the notebook's parameters: only those that its stage reads."""
    config = job.config
    names = config.experiments if config.stage == "report" else (config.experiment,)
    defaults, experiments = _fields(config), {name: dict[str, Any]() for name in names}
    if isinstance(config, CompareConfig):
        defaults, each = {}, config.candidates
        experiments = {o.experiment: _fields(o) | {"release": o.server.release} for o in each}
    return {
        "gpu": config.gpu,
        "device": config.device,
        "server": config.server.model_dump(exclude_defaults=True),
        "defaults": defaults,
        "models": {config.model: {"experiments": experiments}},
        "experiment": config.experiment,
        "overrides": {},
    }


def _fields(config: StageConfig) -> dict[str, Any]:
    """Return the fields that the stage reads. An empty list may differ from the default."""
    values = config.model_dump(include=config.fields_for(config.stage)).items()
    return {name: value for name, value in values if value not in (None, "")}


def framework(config: StageConfig) -> tuple[str, bool]:
    """Return the framework of a stage's model, and whether the stage's notebook imports it."""
    name, used = models.get(config.model).FRAMEWORK, []
    if isinstance(config, ConvertConfig):
        used.append(config.format)
        used += [config.export_format] if config.stage == "convert" else []
    is_used = any(name in formats.get(used_format).RUNTIME for used_format in used)
    return name, config.stage == "export" or is_used


def due(jobs: Sequence[Job], force: bool, away: bool = False) -> dict[Path, str]:
    """Return the reason of each job that must run, by its result; `away` as for `why_outdated`."""
    reasons, digests = dict[Path, str](), dict[str, str]()
    renewed = set[tuple[str, str]]()  # targets and models
    for job in (job for job in jobs if not job.why_unavailable):
        model = (job.config.target, job.config.model)
        is_upstream = not reasons.keys().isdisjoint(job.needs)
        is_upstream |= job.config.stage == "report" and model in renewed
        why = "--force" if force else "an earlier stage runs again" if is_upstream else ""
        if why := why or why_outdated(job, digests, away):
            reasons[job.result] = why
            renewed.add(model)
    return reasons


def estimates(jobs: Sequence[Job]) -> dict[Path, float]:
    """Estimate the seconds of each job, by its result: those of the last run, or a default.

    The default is for two cores. A missing data set and checkpoint are generated once.
    """
    seconds: dict[Path, float] = {}
    generated = set[Path]()
    for job in jobs:
        result, config = results.read(job.result), job.config
        measured = result and result.seconds
        seconds[job.result] = measured or DEFAULT_STAGE_SECONDS[config.stage]
        if not measured and isinstance(config, ExportConfig) and _lacks_data(config):
            folder = checkpoint_place(config).path
            seconds[job.result] += 0 if folder in generated else DATA_SECONDS
            generated.add(folder)
    return seconds


def explain(plans: Sequence[Plan], force: bool, say: Lines, away: bool = False) -> None:
    """Print what a run would do, and how long it would take; `away` as for `why_outdated`."""
    for path, _, jobs in plans:
        expected, reasons = estimates(jobs), due(jobs, force, away)
        for job in jobs:
            why, seconds = reasons.get(job.result), f"{expected[job.result]:.0f} s"
            state = f"would run ({why}, about {seconds})" if why else "unchanged"
            if job.why_unavailable:
                state = f"would be skipped: {job.why_unavailable}"
            say(f"{job.name}: {state}")
        minutes = sum(expected[result] for result in reasons) / 60
        say(f"{path.name}: about {minutes:.0f} min" if jobs else f"{path.name}: nothing to run")
