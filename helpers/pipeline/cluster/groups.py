"""The groups of a run over a cluster: the stages that one machine runs, in order.

A group has the jobs of a target that share an export, whose artifacts stay on that machine. Each
model's comparison is a group of its own after these, and so is its report, which the submitting
machine runs.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from helpers.config import LESSONS, configure, select
from helpers.pipeline import Job, Plan, plan
from helpers.pipeline.cluster import capabilities
from helpers.pipeline.cluster.workers import WorkerInfo


@dataclass
class Group:
    """Stages that run on one machine, in order."""

    target: str
    model: str
    wanted: list[str]  # capabilities, of which a worker must offer one
    parameters: str  # the text of the parameter file
    jobs: list[tuple[str, Job]]  # each with its position in the target's run
    before: list[Job]  # jobs that do not run, but whose results these need
    experiments: list[str] = field(default_factory=list)  # the chosen ones
    settled: set[str] = field(default_factory=set)  # the names of jobs
    state: str = "waiting"  # then "running", then "over"
    reason: str = ""  # why it waits
    worker: WorkerInfo | None = None  # the one that runs it
    running: Job | None = None
    shown: ExitStack = field(default_factory=ExitStack)  # the display of the running stage

    @property
    def is_report(self) -> bool:
        """Return whether it is a model's report."""
        return self.jobs[0][1].config.stage == "report"

    @property
    def is_last(self) -> bool:
        """Return whether it follows the groups of its model that are listed before it."""
        return self.is_report or self.jobs[0][1].config.stage == "compare"

    @property
    def may_be_followed(self) -> bool:
        """Return whether all jobs are settled but lessons, which no other stage reads."""
        left = [job for _, job in self.jobs if job.name not in self.settled]
        return self.state == "over" or all(job.config.stage in LESSONS for job in left)

    @property
    def name(self) -> str:
        """Return its name in a line of output."""
        return f"{self.target} {self.model}"


def groups_of(
    plans: Sequence[Plan], models: Sequence[str] = (), experiments: Sequence[str] = ()
) -> list[Group]:
    """Return the groups of all targets in order; `models` and `experiments` are the chosen ones."""
    groups: dict[tuple[str, str], Group] = {}
    every: dict[Path, Job] = {}
    for path, parameters, jobs in plans:
        complete = plan(parameters, select(parameters, [], []), [], lambda _: "")
        every |= {job.result: job for job in complete}
        content = yaml.safe_dump(parameters.file.model_dump(exclude_unset=True), sort_keys=False)
        for turn, job in enumerate(jobs, 1):
            config, position = job.config, f"{path.stem}: [{turn}/{len(jobs)}]"
            is_whole = config.stage in ("compare", "report")
            shared = f"{config.model} {config.stage}" if is_whole else config.key("export")
            new = Group(path.stem, config.model, capabilities.names(parameters), content, [], [])
            groups.setdefault((path.stem, shared), new).jobs.append((position, job))
        for model, experiment in select(parameters, models, experiments):
            shared = configure(parameters, model, experiment, "convert").key("export")
            if sharing := groups.get((path.stem, shared)):
                sharing.experiments.append(experiment)
    for group in groups.values():
        group.before = _before(group.jobs, every)
    return [*groups.values()]


def _before(jobs: Sequence[tuple[str, Job]], every: Mapping[Path, Job]) -> list[Job]:
    """List the jobs that these jobs need, directly or not, and that are not among them."""
    own, needed = {job.result for _, job in jobs}, dict[Path, Job]()
    left = [path for _, job in jobs for path in job.needs]
    for path in left:  # it grows meanwhile
        if path not in own and path not in needed:
            needed[path] = every[path]
            left += every[path].needs
    return [*needed.values()]
