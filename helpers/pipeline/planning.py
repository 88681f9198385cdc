"""Plan a run: its notebooks, the results that are up to date, and the time that the rest takes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers import formats, models, results
from helpers.config import (
    LESSONS,
    STAGE,
    STAGES,
    TUTORIAL_MODEL,
    ConvertConfig,
    ExportConfig,
    Parameters,
    StageConfig,
    artifact_folder,
    configure,
    needed,
    result_file,
)
from helpers.config import stages as config_stages
from helpers.inference import checkpoint_place, dataset_place
from helpers.machine import why_lesson_unavailable, why_unavailable
from helpers.store import ROOT, find_artifact, is_remote, is_unchanged, known_digest

DEFAULT_STAGE_SECONDS = dict(zip(STAGE, (11, 6, 10, 14, 10, 6, 420, 120, 90, 90), strict=True))
DATA_SECONDS = 40  # generating a data set and fitting a checkpoint to it


@dataclass(frozen=True)
class Job:
    """One notebook to run: a stage of an experiment, or a model's report or lesson."""

    config: StageConfig
    why_unavailable: str = ""  # why this machine cannot run it
    needs: Path | None = None  # the result that must exist first

    @property
    def name(self) -> str:
        c = self.config
        return f"{c.model} {'' if STAGE[c.stage].of_model else c.experiment + ' '}{c.stage}"

    @property
    def result(self) -> Path:
        return result_file(self.config)


def plan(
    params: Parameters,
    chosen: list[tuple[str, str]],
    stages: Sequence[str],
    ask: Callable[[ConvertConfig], str] = why_unavailable,
) -> list[Job]:
    """List the jobs in order; a stage that experiments share is one job, of the first of them.

    `ask` returns why an experiment cannot run, by default on this machine.
    """
    jobs: dict[Path, Job] = {}
    for model in dict.fromkeys(model for model, _ in chosen):
        configs = shared_configs(params, model)
        for _, experiment in (pair for pair in chosen if pair[0] == model):
            deployment = configure(params, model, experiment, "deploy")  # has all that `ask` reads
            assert isinstance(deployment, ConvertConfig)
            reason = ask(deployment)
            model_stages = config_stages(model)
            for stage in stages or STAGES:
                if stage in model_stages and not STAGE[stage].of_model:
                    before = needed(model, stage)
                    needs = Job(configs[experiment, before]).result if before else None
                    config = configs[experiment, stage]
                    job = Job(config, reason or why_lesson_unavailable(config), needs)
                    previous = jobs.get(job.result)
                    if previous is None or previous.why_unavailable:  # one that can run is enough
                        jobs[job.result] = job
        if not stages or "report" in stages:
            report = Job(configure(params, model, "", "report"))
            jobs[report.result] = report
        first = params.experiments(model)[0]  # which the lessons are about
        lesson_stages = stages or (params.lessons(model) if (model, first) in chosen else ())
        for lesson in (
            lesson for lesson in lessons(params, model) if lesson.stage in lesson_stages
        ):
            needs = Job(configs[first, STAGE[lesson.stage].needs]).result
            conversion = configs[first, "convert"]
            assert isinstance(conversion, ConvertConfig)
            job = Job(lesson, ask(conversion) or why_lesson_unavailable(lesson), needs)
            jobs[job.result] = job
    return list(jobs.values())


def lessons(params: Parameters, model: str) -> list[StageConfig]:
    """Return the configurations of a model's lessons, which use its first experiment."""
    return [configure(params, model, "", stage) for stage in LESSONS if model == TUTORIAL_MODEL]


def shared_configs(params: Parameters, model: str) -> dict[tuple[str, str], StageConfig]:
    """Return the configuration of each stage of each experiment of a model.

    Experiments that share an artifact have the configuration of the first of them.
    """
    first: dict[str, StageConfig] = {}
    configs = {}
    for experiment in params.experiments(model):
        for stage in (name for name in config_stages(model) if not STAGE[name].of_model):
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
            path = ROOT / name
            digests[name] = known_digest(path) if path.exists() else ""
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
    config, read = job.config, job.config.fields_for(job.config.stage)
    values = config.model_dump(include=read).items()
    # an empty list may differ from the default
    defaults = {name: value for name, value in values if value not in (None, "")}
    names = config.experiments if config.stage == "report" else (config.experiment,)
    return {
        "gpu": config.gpu,
        "device": config.device,
        "server": config.server.model_dump(exclude_defaults=True),
        "defaults": defaults,
        "models": {config.model: {"experiments": {name: {} for name in names}}},
        "experiment": config.experiment,
        "overrides": {},
    }


def framework(config: StageConfig) -> tuple[str, bool]:
    """Return the framework of a stage's model, and whether the stage's notebook imports it."""
    name = models.get(config.model).FRAMEWORK
    used = set[str]()
    if isinstance(config, ConvertConfig):
        used.update(formats.get(config.format).RUNTIME)
        if config.stage == "convert":
            used.update(formats.get(config.export_format).RUNTIME)
    return name, config.stage == "export" or name in used


def due(jobs: Sequence[Job], force: bool, away: bool = False) -> dict[Path, str]:
    """Return the reason of each job that must run, by its result; `away` as for `why_outdated`."""
    reasons: dict[Path, str] = {}
    renewed = set[tuple[str, str]]()  # targets and models
    digests: dict[str, str] = {}
    for job in jobs:
        config = job.config
        if job.why_unavailable:
            continue
        model = (config.target, config.model)
        is_upstream = job.needs in reasons or (config.stage == "report" and model in renewed)
        why = "--force" if force else "an earlier stage runs again" if is_upstream else ""
        why = why or why_outdated(job, digests, away)
        if why:
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
        if result and result.seconds:
            seconds[job.result] = result.seconds
            continue
        seconds[job.result] = DEFAULT_STAGE_SECONDS[config.stage]
        if _lacks_data(config):
            assert isinstance(config, ExportConfig)
            folder = checkpoint_place(config).path
            seconds[job.result] += 0 if folder in generated else DATA_SECONDS
            generated.add(folder)
    return seconds


def explain(
    path: Path, jobs: Sequence[Job], reasons: Mapping[Path, str], say: Callable[[str], None]
) -> None:
    """Print what a run would do, by the `reasons` of `due`, and how long it would take."""
    expected = estimates(jobs)
    for job in jobs:
        if job.why_unavailable:
            say(f"{job.name}: would be skipped: {job.why_unavailable}")
        elif why := reasons.get(job.result):
            say(f"{job.name}: would run ({why}, about {expected[job.result]:.0f} s)")
        else:
            say(f"{job.name}: unchanged")
    say(f"{path.name}: about {sum(expected[result] for result in reasons) / 60:.0f} min")
