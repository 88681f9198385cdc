"""Which notebooks a run consists of, which results still hold, and what the rest will cost."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers import results
from helpers.config import (
    STAGE,
    STAGES,
    ConvertConfig,
    ExportConfig,
    Parameters,
    StageConfig,
    artefact_folder,
    configure,
    results_folder,
)
from helpers.inference import checkpoint_place, dataset_place
from helpers.machine import obstacle
from helpers.store import ROOT, file_digest, find_artefact, is_unchanged

FIRST_SECONDS = dict(zip(STAGE, (60, 10, 40, 90, 45, 10, 420), strict=True))
DATA_SECONDS = 130  # generating a data set and fitting a checkpoint to it


@dataclass(frozen=True)
class Job:
    """One notebook to run: a stage of an experiment, or a model's report."""

    config: StageConfig
    obstacle: str = ""  # why this machine cannot run it
    needs: Path | None = None  # the result that must be there first

    @property
    def name(self) -> str:
        c = self.config
        return f"{c.model} {'' if c.stage == 'report' else c.experiment + ' '}{c.stage}"

    @property
    def result(self) -> Path:
        return results_folder(self.config) / f"{self.config.stage}.json"


def plan(given: Parameters, chosen: list[tuple[str, str]], stages: Sequence[str]) -> list[Job]:
    """List the jobs in order; what experiments share is one job, of the first that has it."""
    jobs: dict[Path, Job] = {}
    for model in dict.fromkeys(model for model, _ in chosen):
        configs = owners(given, model)
        for _, experiment in (each for each in chosen if each[0] == model):
            conversion = configure(given, model, experiment, "convert")
            assert isinstance(conversion, ConvertConfig)
            reason = obstacle(conversion)
            for stage in stages or STAGES:
                if stage != "report":
                    before = STAGE[stage].needs
                    needs = Job(configs[experiment, before]).result if before else None
                    job = Job(configs[experiment, stage], reason, needs)
                    known = jobs.get(job.result)
                    if known is None or known.obstacle:  # one that can run here is enough
                        jobs[job.result] = job
        if not stages or "report" in stages:
            report = Job(configure(given, model, "", "report"))
            jobs[report.result] = report
    return list(jobs.values())


def owners(given: Parameters, model: str) -> dict[tuple[str, str], StageConfig]:
    """Give for each experiment of a model and each of its stages the configuration in whose name
    the stage runs: that of the first experiment with the same key where an artefact is made.
    """
    first: dict[str, StageConfig] = {}
    found = {}
    for experiment in given.experiments(model):
        for stage in (name for name in STAGE if name != "report"):
            config = configure(given, model, experiment, stage)
            if STAGE[stage].makes_artefact:
                config = first.setdefault(config.key(stage), config)
            found[experiment, stage] = config
    return found


def stale(job: Job) -> str:
    """Say why the stage must run; empty if its result holds, even if blocked or skipped since."""
    found = results.read(job.result)
    if found is None:
        return "there is no result"
    if found.state == "failed" or found.fingerprint is None:
        return f"it {'' if found.state == 'failed' else 'was '}{found.state} before"
    if changed := results.difference(found.fingerprint, results.fingerprint(job.config)):
        return changed
    for name, digest in found.fingerprint.modules.items():
        path = ROOT / name
        if not path.exists() or file_digest(path) != digest:
            return f"{name} changed"
    if STAGE[job.config.stage].makes_artefact:
        artefact = find_artefact(artefact_folder(job.config, job.config.stage))
        if artefact is None or not is_unchanged(artefact):
            return "its artefact is gone or changed on disk"
    if _lacks_data(job.config):
        return "its data set or checkpoint is gone"
    return "" if job.result.with_suffix(".ipynb").exists() else "its executed notebook is gone"


def _lacks_data(config: StageConfig) -> bool:
    """Whether this is an export whose data set or checkpoint is yet to be made."""
    if not isinstance(config, ExportConfig) or config.stage != "export":
        return False
    return checkpoint_place(config).is_missing or dataset_place(config).is_missing


def parameters(job: Job) -> dict[str, Any]:
    """Give the notebook's parameters: what this stage reads, so that no page shows more."""
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


def seconds(job: Job) -> float:
    """Estimate how long a job takes: as last time, or as such a stage takes on two cores."""
    found = results.read(job.result)
    if found and found.seconds:
        return found.seconds
    return FIRST_SECONDS[job.config.stage] + (DATA_SECONDS if _lacks_data(job.config) else 0)


def explain(path: Path, jobs: list[Job], force: bool, say: Callable[[str], None]) -> None:
    """Say what a run would do and about how long it would take."""
    total, will_run = 0.0, set[str]()
    for job in jobs:
        if job.obstacle:
            say(f"{job.name}: would be skipped, {job.obstacle}")
            continue
        before = STAGE[job.config.stage].needs
        upstream = bool(before) and job.config.key(before) in will_run
        why = "--force" if force else "its input will be made again" if upstream else stale(job)
        if why:
            total += seconds(job)
            will_run.add(job.config.key(job.config.stage))
            say(f"{job.name}: would run, because {why} (about {seconds(job):.0f} s)")
        else:
            say(f"{job.name}: unchanged, would be skipped")
    say(f"{path.name}: about {total / 60:.0f} min")
