"""Which notebooks a run consists of, which results still hold, and what the rest will cost."""

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
from helpers.machine import compare_obstacle, obstacle
from helpers.store import ROOT, find_artifact, is_remote, is_unchanged, known_digest

DEFAULT_STAGE_SECONDS = dict(zip(STAGE, (11, 6, 10, 14, 10, 6, 420, 120, 90, 90), strict=True))
DATA_SECONDS = 40  # generating a data set and fitting a checkpoint to it


@dataclass(frozen=True)
class Job:
    """One notebook to run: a stage of an experiment, or a model's report or lesson."""

    config: StageConfig
    obstacle: str = ""  # why this machine cannot run it
    needs: Path | None = None  # the result that must be there first

    @property
    def name(self) -> str:
        c = self.config
        return f"{c.model} {'' if STAGE[c.stage].of_model else c.experiment + ' '}{c.stage}"

    @property
    def result(self) -> Path:
        return result_file(self.config)


def plan(
    given: Parameters,
    chosen: list[tuple[str, str]],
    stages: Sequence[str],
    ask: Callable[[ConvertConfig], str] = obstacle,
) -> list[Job]:
    """List the jobs in order; what experiments share is one job, of the first that has it. `ask`
    says why an experiment cannot run, by default on this machine.
    """
    jobs: dict[Path, Job] = {}
    for model in dict.fromkeys(model for model, _ in chosen):
        configs = shared_configs(given, model)
        for _, experiment in (each for each in chosen if each[0] == model):
            deployment = configure(given, model, experiment, "deploy")  # it has all that is needed
            assert isinstance(deployment, ConvertConfig)
            reason = ask(deployment)
            own = config_stages(model)
            for stage in stages or STAGES:
                if stage in own and not STAGE[stage].of_model:
                    before = needed(model, stage)
                    needs = Job(configs[experiment, before]).result if before else None
                    config = configs[experiment, stage]
                    job = Job(config, reason or compare_obstacle(config), needs)
                    known = jobs.get(job.result)
                    if known is None or known.obstacle:  # one that can run here is enough
                        jobs[job.result] = job
        if not stages or "report" in stages:
            report = Job(configure(given, model, "", "report"))
            jobs[report.result] = report
        first = given.experiments(model)[0]  # which the lessons are about
        wanted = stages or (given.lessons(model) if (model, first) in chosen else ())
        for lesson in (each for each in lessons(given, model) if each.stage in wanted):
            needs = Job(configs[first, STAGE[lesson.stage].needs]).result
            conversion = configs[first, "convert"]
            assert isinstance(conversion, ConvertConfig)
            job = Job(lesson, ask(conversion) or compare_obstacle(lesson), needs)
            jobs[job.result] = job
    return list(jobs.values())


def lessons(given: Parameters, model: str) -> list[StageConfig]:
    """Return the configuration of each lesson about a model, of its first experiment."""
    return [configure(given, model, "", stage) for stage in LESSONS if model == TUTORIAL_MODEL]


def shared_configs(given: Parameters, model: str) -> dict[tuple[str, str], StageConfig]:
    """Return for each experiment of a model and each of its stages the configuration in whose
    name the stage runs: that of the first experiment with the same key where an artifact is made.
    """
    first: dict[str, StageConfig] = {}
    found = {}
    for experiment in given.experiments(model):
        for stage in (name for name in config_stages(model) if not STAGE[name].of_model):
            config = configure(given, model, experiment, stage)
            if STAGE[stage].makes_artifact:
                config = first.setdefault(config.key(stage), config)
            found[experiment, stage] = config
    return found


def why_outdated(job: Job, digests: dict[str, str] | None = None, away: bool = False) -> str:
    """Return why the stage must run; empty if its result holds, even if blocked or skipped since.

    `digests` keeps those of the modules for other stages, which read mostly the same ones. `away`
    says that data, and artifacts of which there is the manifest, may lie on other machines.
    """
    digests = {} if digests is None else digests
    found = results.read(job.result)
    if found is None:
        return "no previous result"
    if found.state == "failed" or found.fingerprint is None:
        return f"{'' if found.state == 'failed' else 'was '}{found.state} before"
    if changed := results.difference(found.fingerprint, results.fingerprint(job.config)):
        return changed
    for name, digest in found.fingerprint.modules.items():
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
    """Return the notebook's parameters: what this stage reads, so that no page shows more."""
    config, read = job.config, job.config.fields_for(job.config.stage)
    values = config.model_dump(include=read).items()
    own = {name: value for name, value in values if value not in (None, "")}  # [] may be no default
    names = config.experiments if config.stage == "report" else (config.experiment,)
    return {
        "gpu": config.gpu,
        "device": config.device,
        "server": config.server.model_dump(exclude_defaults=True),
        "defaults": own,
        "models": {config.model: {"experiments": {name: {} for name in names}}},
        "experiment": config.experiment,
        "overrides": {},
    }


def framework(config: StageConfig) -> tuple[str, bool]:
    """Return the framework of a stage's model, and whether its notebook imports that."""
    name = models.get(config.model).FRAMEWORK
    used = set[str]()
    if isinstance(config, ConvertConfig):
        used.update(formats.get(config.format).RUNTIME)
        if config.stage == "convert":
            used.update(formats.get(config.export_format).RUNTIME)
    return name, config.stage == "export" or name in used


def due(jobs: Sequence[Job], force: bool, away: bool = False) -> dict[Path, str]:
    """Return why each job that must run must, by its result; `away` as for `why_outdated`."""
    found: dict[Path, str] = {}
    renewed = set[tuple[str, str]]()  # targets and models
    digests: dict[str, str] = {}
    for job in jobs:
        config = job.config
        if job.obstacle:
            continue
        model = (config.target, config.model)
        is_upstream = job.needs in found or (config.stage == "report" and model in renewed)
        why = "--force" if force else "an earlier stage runs again" if is_upstream else ""
        why = why or why_outdated(job, digests, away)
        if why:
            found[job.result] = why
            renewed.add(model)
    return found


def estimates(jobs: Sequence[Job]) -> dict[Path, float]:
    """Estimate how many seconds each job takes, by its result: as last time, or as such a stage
    takes on two cores. A data set and a checkpoint that are missing are made once.
    """
    found: dict[Path, float] = {}
    made = set[Path]()
    for job in jobs:
        known, config = results.read(job.result), job.config
        if known and known.seconds:
            found[job.result] = known.seconds
            continue
        found[job.result] = DEFAULT_STAGE_SECONDS[config.stage]
        if _lacks_data(config):
            assert isinstance(config, ExportConfig)
            place = checkpoint_place(config).path
            found[job.result] += 0 if place in made else DATA_SECONDS
            made.add(place)
    return found


def explain(
    path: Path, jobs: Sequence[Job], reasons: Mapping[Path, str], say: Callable[[str], None]
) -> None:
    """Print what a run would do, for the `reasons` that are due, and how long it would take."""
    expected = estimates(jobs)
    for job in jobs:
        if job.obstacle:
            say(f"{job.name}: would be skipped: {job.obstacle}")
        elif why := reasons.get(job.result):
            say(f"{job.name}: would run ({why}, about {expected[job.result]:.0f} s)")
        else:
            say(f"{job.name}: unchanged")
    say(f"{path.name}: about {sum(expected[each] for each in reasons) / 60:.0f} min")
