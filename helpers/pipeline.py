"""The order of the stages, what can be skipped, what a failure blocks, and running what remains."""

import os
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from helpers import doctor, overview, results
from helpers.artefacts import checkpoint_file, dataset_folder, folder_of, is_generated
from helpers.errors import DeploymentError, ParameterError
from helpers.params import FIELDS, STAGES, TARGET_VARIABLE, Config, read_file, resolve
from helpers.provenance import COMMAND_VARIABLE
from helpers.workspace import (
    LOCKED_VARIABLE,
    OUTPUTS_VARIABLE,
    ROOT,
    file_digest,
    find,
    is_unchanged,
    locked,
    write_atomic,
)

NEEDS = {
    "convert": "export",
    "deploy": "convert",
    "perf_offline": "deploy",
    "perf_online": "deploy",
}
MAKES = ("export", "convert", "deploy")
FIRST_SECONDS = {
    "export": 60,
    "convert": 10,
    "deploy": 40,
    "perf_offline": 90,
    "perf_online": 45,
    "report": 10,
}
DATA_SECONDS = 130  # generating a data set and fitting a checkpoint to it

Say = Callable[[str], None]


@dataclass(frozen=True)
class Job:
    """One notebook to run: a stage of an experiment, or a model's report; `obstacle` says why this
    machine cannot.
    """

    config: Config
    obstacle: str = ""

    @property
    def name(self) -> str:
        c = self.config
        return f"{c.model} {'' if c.stage == 'report' else c.experiment + ' '}{c.stage}"

    @property
    def folder(self) -> Path:
        return results.folder(self.config)

    @property
    def result(self) -> Path:
        return self.folder / f"{self.config.stage}.json"


def select(
    content: dict[str, Any], models: Sequence[str], experiments: Sequence[str]
) -> list[tuple[str, str]]:
    """Choose model and experiment names of a parameter file; raise `ParameterError` for a name that
    it has not.
    """
    sections = content["models"]
    for model in models:
        if model not in sections:
            raise ParameterError(f"--model {model}: the parameter file has {', '.join(sections)}")
    known = {name for section in sections.values() for name in section["experiments"]}
    for experiment in experiments:
        if experiment not in known:
            raise ParameterError(
                f"--experiment {experiment}: the parameter file has {', '.join(sorted(known))}"
            )
    return [
        (model, name)
        for model, section in sections.items()
        if not models or model in models
        for name in section["experiments"]
        if not experiments or name in experiments
    ]


def configure(
    content: dict[str, Any], target: str, model: str, experiment: str, stage: str
) -> Config:
    """Resolve one stage of one experiment of a parameter file."""
    given = {
        name: content[name]
        for name in ("gpu", "device", "server", "defaults", "models")
        if name in content
    }
    return resolve(model, stage, experiment=experiment, **given).model_copy(
        update={"target": target}
    )


def plan(
    content: dict[str, Any], target: str, chosen: list[tuple[str, str]], stages: Sequence[str]
) -> list[Job]:
    """List the jobs in order: what two experiments share is one job, in the name of the first that
    has it.
    """
    jobs: dict[Path, Job] = {}
    for model, experiment in chosen:
        obstacle = doctor.obstacle(configure(content, target, model, experiment, "convert"))
        for stage in stages or STAGES:
            if stage != "report":
                job = Job(owner(content, target, model, experiment, stage), obstacle)
                jobs.setdefault(job.result, job)
    for model in dict.fromkeys(model for model, _ in chosen):
        if not stages or "report" in stages:
            job = Job(configure(content, target, model, "", "report"))
            jobs[job.result] = job
    order = list(content["models"])
    return sorted(jobs.values(), key=lambda job: order.index(job.config.model))


def owner(content: dict[str, Any], target: str, model: str, experiment: str, stage: str) -> Config:
    """Find the experiment in whose name `stage` runs: the first of the file with the same slice."""
    mine = configure(content, target, model, experiment, stage)
    if stage not in MAKES:
        return mine
    others = (
        configure(content, target, model, name, stage)
        for name in content["models"][model]["experiments"]
    )
    return next(other for other in others if other.key(stage) == mine.key(stage))


def stale(job: Job) -> str:
    """Say why the stage must run, in a few words; empty if its result still holds."""
    found = results.read(job.result)
    if found is None:
        return "there is no result"
    if found["state"] != "done":
        return (
            f"it {found['state']} before"
            if found["state"] == "failed"
            else f"it was {found['state']} before"
        )
    now = results.basis(job.config)
    for part, words in (
        ("config", "configuration"),
        ("notebook", "notebook"),
        ("inputs", "input"),
        ("versions", "version"),
    ):
        if found[part] != now[part]:
            return f"its {words} changed{_names(found[part], now[part])}"
    for name, digest in found["modules"].items():
        path = ROOT / name
        if not path.exists() or file_digest(path) != digest:
            return f"{name} changed"
    if job.config.stage in MAKES:
        artefact = find(folder_of(job.config, job.config.stage))
        if artefact is None or not is_unchanged(artefact):
            return "its artefact is gone or changed on disk"
    if job.config.stage == "export" and not _data_is_there(job.config):
        return "its data set or checkpoint is gone"
    return "" if job.result.with_suffix(".ipynb").exists() else "its executed notebook is gone"


def _names(before: Any, now: Any) -> str:
    if not isinstance(before, dict) or not isinstance(now, dict):
        return ""
    changed = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    return f" ({', '.join(changed)})"


def _data_is_there(config: Config) -> bool:
    fitted = config.checkpoint != "fitted" or find(checkpoint_file(config).parent) is not None
    return fitted and (not is_generated(config) or find(dataset_folder(config)) is not None)


def parameters(job: Job) -> dict[str, Any]:
    """Give the notebook's parameters: only what this stage reads, so that no page shows the whole
    file.
    """
    config = job.config
    fields = set(FIELDS[config.stage])
    own = {
        name: value
        for name, value in config.model_dump(include=fields).items()
        if value not in (None, "", [])
    }
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


def seconds(job: Job) -> float:
    """Estimate how long a job takes: as long as last time, or as such a stage takes on two
    cores.
    """
    found = results.read(job.result)
    if found and found.get("seconds"):
        return float(found["seconds"])
    extra = 0 if job.config.stage != "export" or _data_is_there(job.config) else DATA_SECONDS
    return FIRST_SECONDS[job.config.stage] + extra


@dataclass
class Outcome:
    """What a run did."""

    executed: int = 0
    unchanged: int = 0
    skipped: int = 0
    failed: int = 0
    blocked: int = 0


def run(
    files: Sequence[Path],
    outputs: Path,
    *,
    models: Sequence[str] = (),
    experiments: Sequence[str] = (),
    stages: Sequence[str] = (),
    force: bool = False,
    dry_run: bool = False,
    cell_seconds: int = 7200,
    say: Say = print,
) -> Outcome:
    """Run the stages of one or more parameter files that are not up to date, and publish the pages.

    A failed stage blocks what depends on it and everything else goes on. Raises `ParameterError`
    before anything runs, and `WorkspaceError` if the outputs folder is in use.
    """
    contents = [(path, read_file(path)) for path in files]
    outcome = Outcome()
    os.environ[OUTPUTS_VARIABLE] = str(outputs.resolve())
    plans = []
    for path, content in contents:
        chosen = select(content, models, experiments)
        plans.append((path, content, plan(content, path.stem, chosen, stages)))
    if dry_run:
        for path, _, jobs in plans:
            _explain(path, jobs, force, say)
        return outcome
    with locked(outputs):
        for path, content, jobs in plans:
            target = outputs / path.stem
            write_atomic(target / "parameters.yaml", yaml.safe_dump(content, sort_keys=False))
            with _kernel_environment(path.stem):
                for job, turn in zip(jobs, range(1, len(jobs) + 1), strict=True):
                    _one(job, f"[{turn}/{len(jobs)}]", force, cell_seconds, outcome, say)
            overview.publish(outputs, path.stem, {job.result for job in jobs})
    return outcome


def _kernel_environment(target: str) -> Any:
    from helpers.execution import environment

    command = shlex.join(["triton-notebooks", *sys.argv[1:]])
    variables = {TARGET_VARIABLE: target, LOCKED_VARIABLE: "1", COMMAND_VARIABLE: command}
    return environment(**variables, PYTHONWARNINGS="ignore", OMP_WAIT_POLICY="PASSIVE")


def _one(job: Job, turn: str, force: bool, cell_seconds: int, outcome: Outcome, say: Say) -> None:
    """Run one job, or say why not."""
    if job.obstacle:
        outcome.skipped += 1
        say(f"{turn} {job.name}: skipped, {job.obstacle}")
        if not job.result.exists():
            _note(job, "skipped", job.obstacle)
        return
    if waits := blocker(job):
        outcome.blocked += 1
        say(f"{turn} {job.name}: blocked by {waits}")
        _note(job, "blocked", f"blocked by {waits}")
        return
    why = "--force" if force else stale(job)
    if not why:
        outcome.unchanged += 1
        say(f"{turn} {job.name}: unchanged, skipped")
        return
    from helpers.execution import execute

    say(f"{turn} {job.name}: running, because {why} (about {seconds(job):.0f} s)")
    started = time.monotonic()
    executed = job.result.with_suffix(".ipynb")
    source = results.notebook_file(job.config.model, job.config.stage)
    try:
        found = execute(source, executed, job.result, parameters(job), cell_seconds)
    except (DeploymentError, OSError) as error:
        outcome.failed += 1
        say(f"{turn} {job.name}: failed, {error}")
        _note(job, "failed", str(error))
    else:
        outcome.executed += 1
        say(f"{turn} {job.name}: done in {time.monotonic() - started:.0f} s, {found['headline']}")


def blocker(job: Job) -> str:
    """Name the stage that must be done first and is not."""
    stage = NEEDS.get(job.config.stage)
    if stage is None:
        return ""
    artefact = find(folder_of(job.config, stage))
    if artefact is None:
        return stage
    return "" if not artefact.facts.get("red") else stage


def _note(job: Job, state: str, reason: str) -> None:
    """Write a result for a stage that could not write its own; one that it did write keeps its
    figures.
    """
    found = results.read(job.result) or {}
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    empty = {"schema": results.SCHEMA, "headline": "", "seconds": None, "gpu": job.config.gpu}
    identity = {name: getattr(job.config, name) for name in ("model", "experiment", "stage")}
    write_atomic(
        job.result,
        overview.dump(
            {**empty, **found, **identity, "state": state, "reason": reason, "finished": now}
        ),
    )


def _explain(path: Path, jobs: list[Job], force: bool, say: Say) -> None:
    """Say what a run would do and about how long it would take."""
    total, will_run = 0.0, set[str]()
    for job in jobs:
        before = NEEDS.get(job.config.stage)
        upstream = before is not None and job.config.key(before) in will_run
        why = (
            "--force"
            if force
            else "its input will be made again"
            if upstream
            else ""
            if job.obstacle
            else stale(job)
        )
        if job.obstacle:
            say(f"{job.name}: would be skipped, {job.obstacle}")
        elif why:
            total += seconds(job)
            will_run.add(job.config.key(job.config.stage))
            say(f"{job.name}: would run, because {why} (about {seconds(job):.0f} s)")
        else:
            say(f"{job.name}: unchanged, would be skipped")
    say(f"{path.name}: about {total / 60:.0f} min")
