"""The groups of a run over a fleet: the stages that one machine runs, in order.

They are the jobs of a target that share an export, whose artifacts stay on that machine, and each
model's report, which is made at home.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from helpers.config import LESSONS, ExportConfig, select
from helpers.fleet import offers
from helpers.fleet.roster import Machine
from helpers.pipeline import Job, Plan, plan


@dataclass
class Group:
    """Stages that run on one machine, in order."""

    target: str
    model: str
    wanted: list[str]  # what a worker must offer, one of these
    parameters: str  # the parameter file
    jobs: list[tuple[str, Job]]  # with its place in the target's run
    before: list[Job]  # that are not run, and whose results these need
    settled: int = 0  # how many of the jobs are
    state: str = "waiting"  # then "running", then "over"
    reason: str = ""  # why it waits
    machine: Machine | None = None  # that it went to

    @property
    def is_report(self) -> bool:
        """Whether it is a model's report."""
        return self.jobs[0][1].config.stage == "report"

    @property
    def may_be_reported(self) -> bool:
        """Whether no job is left that the model's report is about; lessons are not among them."""
        left = self.jobs[self.settled :]
        return self.state == "over" or all(job.config.stage in LESSONS for _, job in left)

    @property
    def name(self) -> str:
        """Its name in a line."""
        return f"{self.target} {self.model}"


def groups_of(plans: Sequence[Plan]) -> list[Group]:
    """Form the groups of all targets, in order: the jobs that share an export."""
    found: dict[tuple[str, str], Group] = {}
    every: dict[Path, Job] = {}
    for path, given, jobs in plans:
        chosen = plan(given, select(given, [], []), [], lambda _: "")
        every |= {job.result: job for job in chosen}
        content = yaml.safe_dump(given.file.model_dump(exclude_unset=True), sort_keys=False)
        for turn, job in enumerate(jobs, 1):
            config, place = job.config, f"{path.stem}: [{turn}/{len(jobs)}]"
            shared = config.key("export") if isinstance(config, ExportConfig) else "report"
            new = Group(path.stem, config.model, offers.names(given), content, [], [])
            group = found.setdefault((path.stem, f"{config.model} {shared}"), new)
            group.jobs.append((place, job))
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
