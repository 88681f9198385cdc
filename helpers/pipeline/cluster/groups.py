"""The groups of a run over a cluster: the stages that one machine runs, in order.

They are the jobs of a target that share an export, whose artifacts stay on that machine, and each
model's report, which is made at home.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from helpers.config import LESSONS, ExportConfig, configure, select
from helpers.pipeline import Job, Plan, plan
from helpers.pipeline.cluster import capabilities
from helpers.pipeline.cluster.workers import WorkerInfo


@dataclass
class Group:
    """Stages that run on one machine, in order."""

    target: str
    model: str
    wanted: list[str]  # what a worker must offer, one of these
    parameters: str  # the parameter file
    jobs: list[tuple[str, Job]]  # with its place in the target's run
    before: list[Job]  # that are not run, and whose results these need
    experiments: list[str] = field(default_factory=list)  # that were chosen
    settled: set[str] = field(default_factory=set)  # the names of jobs
    state: str = "waiting"  # then "running", then "over"
    reason: str = ""  # why it waits
    worker: WorkerInfo | None = None  # that it went to
    running: Job | None = None
    shown: ExitStack = field(default_factory=ExitStack)  # of the stage that is running

    @property
    def is_report(self) -> bool:
        """Return whether it is a model's report."""
        return self.jobs[0][1].config.stage == "report"

    @property
    def may_be_reported(self) -> bool:
        """Return whether no job is left that the model's report is about: lessons are not."""
        left = [job for _, job in self.jobs if job.name not in self.settled]
        return self.state == "over" or all(job.config.stage in LESSONS for job in left)

    @property
    def name(self) -> str:
        """Return its name in a line."""
        return f"{self.target} {self.model}"


def groups_of(
    plans: Sequence[Plan], models: Sequence[str] = (), experiments: Sequence[str] = ()
) -> list[Group]:
    """Return the groups of all targets, in order: the jobs that share an export. `models` and
    `experiments` are those that were chosen for the plans.
    """
    found: dict[tuple[str, str], Group] = {}
    every: dict[Path, Job] = {}
    for path, given, jobs in plans:
        complete = plan(given, select(given, [], []), [], lambda _: "")
        every |= {job.result: job for job in complete}
        content = yaml.safe_dump(given.file.model_dump(exclude_unset=True), sort_keys=False)
        for turn, job in enumerate(jobs, 1):
            config, place = job.config, f"{path.stem}: [{turn}/{len(jobs)}]"
            shared = config.key("export") if isinstance(config, ExportConfig) else "report"
            new = Group(path.stem, config.model, capabilities.names(given), content, [], [])
            group = found.setdefault((path.stem, f"{config.model} {shared}"), new)
            group.jobs.append((place, job))
        for model, experiment in select(given, models, experiments):
            shared = configure(given, model, experiment, "convert").key("export")
            if sharing := found.get((path.stem, f"{model} {shared}")):
                sharing.experiments.append(experiment)
    for group in found.values():
        group.before = _before(group.jobs, every)
    return [*found.values()]


def _before(jobs: Sequence[tuple[str, Job]], every: Mapping[Path, Job]) -> list[Job]:
    """List what jobs need, one of the other, and is not among them."""
    found = {job.result: job for _, job in jobs}
    for _, job in jobs:
        needs = job.needs
        while needs and needs not in found:
            found[needs] = every[needs]
            needs = every[needs].needs
    return [*found.values()][len(jobs) :]
