"""A run over a fleet: which stages go to which worker, what comes home, and what is lost.

All experiments of a target that share an export are one group, whose stages run on one machine, in
order; groups run side by side. A stage is one Dask task for one process of one worker: if that is
lost, so is the stage, and the run says so. Reports are made here, of the results.
"""

import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from helpers.display import Lines
from helpers.errors import DeploymentError, ParameterError
from helpers.fleet import cargo
from helpers.fleet.access import Access, configure, silence
from helpers.fleet.away import COMMAND, Away, Ended
from helpers.fleet.groups import Group, groups_of
from helpers.fleet.moving import fetch, held, needed
from helpers.fleet.roster import Machine, Roster, joined, probed
from helpers.fleet.supply import Supply, Turn
from helpers.pipeline import (
    Here,
    Job,
    Plan,
    Runner,
    due,
    explain,
    here,
    kernel_environment,
    opened,
    publish,
    publish_indexes,
    read_plans,
    write_status,
)
from helpers.results import Result

if TYPE_CHECKING:
    from distributed import Client

TICK_SECONDS = 1.0  # between two looks at the workers
MADE_SECONDS = 3.0  # between two looks whether data that another machine makes are there


def run(
    files: Sequence[Path],
    outputs: Path,
    *,
    access: Access,
    models: Sequence[str] = (),
    experiments: Sequence[str] = (),
    stages: Sequence[str] = (),
    force: bool = False,
    dry_run: bool = False,
    cell_seconds: int = 7200,
    fetch: bool = False,
    say: Lines | None = None,
) -> Counter[str]:
    """Run the stages that are not up to date, each target's on workers that offer it, and publish
    the pages as results come home; count what became of them.

    Raises `ParameterError`, `WorkspaceError` if the outputs folder is in use, and `FleetError` if
    the scheduler cannot be reached or is lost, or a worker has other software.
    """
    say, options = say or Lines(), Options(force, cell_seconds, fetch)
    if "tune" in stages:
        raise ParameterError("--stage tune cannot run on a cluster. Run it on the GPU's machine.")
    configure()
    _ = access.security  # an error before anything else
    plans = read_plans(files, models, experiments, stages, ask=lambda _: "")
    if dry_run:
        for path, _, jobs in plans:
            explain(path, jobs, due(jobs, options.force, away=True), say)
        return Counter()
    with (
        joined(access) as client,
        probed(outputs) as probe,
        opened(plans, outputs, options.force, say, away=True) as (pending, expected),
    ):
        roster = Roster(client, access.address, probe)
        runner = Runner(outputs, pending, expected, options.force, say, None)
        return Submission(client, roster, runner, groups_of(plans), options).run(plans)


@dataclass(frozen=True)
class Options:
    """How a run over a fleet goes about it."""

    force: bool = False
    cell_seconds: int = 7200
    fetch: bool = False  # whether artifacts come home too


@dataclass(frozen=True)
class AtHome:
    """This machine, as the place where reports are made while other threads have their turn."""

    place: Here
    turn: Turn

    def stale(self, job: Job) -> str:
        """Say why the report must be made; empty if its result holds."""
        return self.place.stale(job)

    def execute(self, job: Job, said: Callable[[str], None]) -> Result:
        """Make the report."""
        return self.turn.outside(self.place.execute, job, said)


class Submission:
    """One run over a fleet.

    Threads take turns: each group's holds `turn` but while it waits for a worker or sends files.
    """

    def __init__(
        self,
        client: "Client",
        roster: Roster,
        runner: Runner,
        groups: list[Group],
        options: Options,
    ) -> None:
        self.client, self.roster, self.options = client, roster, options
        self.runner, self.say, self.outputs = runner, runner.say, runner.outputs
        self.identity = uuid.uuid4().hex[:12]
        self.turn = Turn()
        self.supply = Supply(self.turn, roster, self.outputs, self.say)
        self.is_ending = False
        self.heard: dict[str, Callable[[dict[str, str]], None]] = {}  # by ticket
        self._groups = groups
        self._outcome = Counter(executed=0, unchanged=0, skipped=0, failed=0, blocked=0)
        self._threads: list[Thread] = []

    def run(self, plans: Sequence[Plan]) -> Counter[str]:
        """Run all groups to their end."""
        from helpers.fleet.tasks import topic

        pending = self.runner.pending
        unchanged = [
            group
            for group in self._groups
            if not group.is_report and not any(job.result in pending for _, job in group.jobs)
        ]
        stack = ExitStack()
        try:
            self.roster.refresh()
            others = [g for g in self._groups if g not in unchanged and not g.is_report]
            self.roster.refuse_others(group.wanted for group in others)
            for group in unchanged:
                self._settle(self.runner, group)
            self.client.subscribe_topic(topic(self.identity), self._listen)
            while any(group.state != "over" for group in self._groups):
                self._report(stack)
                with self.turn:
                    self._assign()
                    self.turn.wait(TICK_SECONDS)
                self.roster.refresh()
                with self.turn:
                    self.turn.notify_all()
            if self.options.fetch:
                self._fetch()
        finally:
            self._end()
            stack.close()
            pending.clear()
            for path, _, _ in plans:
                publish(self.outputs, path.stem, only_changed=True)
        return self._outcome

    def _listen(self, event: tuple[float, dict[str, str]]) -> None:
        if tell := self.heard.get(event[1]["ticket"]):
            tell(event[1])

    def _end(self) -> None:
        """Let the threads end, which gives up their stages, and wait for that."""
        with self.turn:
            self.is_ending = True
            self.turn.notify_all()
        for thread in self._threads:
            thread.join(silence())

    def _assign(self) -> None:
        """Give each waiting group to a free worker, or say why there is none."""
        for group in self._groups:
            if group.state != "waiting" or group.is_report:
                continue
            fitting = [m for m in self.roster if m.fits(group.wanted) and not m.difference]
            free = [each for each in fitting if not each.busy]
            if not free:
                self._wait(group, self.roster.why_none(group.wanted))
                continue
            machine = self._with_most(free, group)
            group.state, group.machine, machine.busy = "running", machine, group.name
            thread = Thread(target=self._run_group, args=(group, machine), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _with_most(self, free: Sequence[Machine], group: Group) -> Machine:
        """Choose the machine that has most of the artifacts which a group made before."""
        if len(free) == 1:
            return free[0]
        places = [*needed([job for _, job in group.jobs], group.before)]
        counts = [len(held(self.supply.end_of(machine), places)) for machine in free]
        return free[counts.index(max(counts))]

    def _wait(self, group: Group, reason: str) -> None:
        if reason == group.reason:
            return
        said = {(each.name, each.reason) for each in self._groups if each.state == "waiting"}
        group.reason, pending = reason, self.runner.pending
        if (group.name, reason) not in said:  # for another group of the model
            self.say(f"{group.name}: waiting: {reason}")
        told = set[str]()  # experiments: each says once why it waits
        for _, job in group.jobs:
            if job.result in pending:
                is_first = job.config.experiment not in told
                pending[job.result] = f"waiting: {reason}" if is_first else "waiting"
                told.add(job.config.experiment)
        publish_indexes(self.outputs, group.target, pending)

    def _wait_for_data(self, group: Group, reason: str) -> None:
        self._wait(group, reason)
        self.turn.wait(MADE_SECONDS)
        if self.is_ending:
            raise Ended

    def _run_group(self, group: Group, machine: Machine) -> None:
        away = Away(self, group, machine)
        try:
            with suppress(Ended), self.turn:
                try:
                    self.say(f"{group.name}: assigned to {machine.words}")
                    obstacles = self.turn.outside(away.obstacles)
                    self.supply.bring(group, machine, partial(self._wait_for_data, group))
                    for job in group.before:
                        away.check(job)
                except DeploymentError as error:
                    obstacles, away.unready = {}, str(error)
                group.jobs = [
                    (place, replace(job, obstacle=obstacles.get(job.name, "")))
                    for place, job in group.jobs
                ]
                self._settle(replace(self.runner, place=away), group, away)
        except Exception as error:  # of this package or Dask: the other groups go on
            line = " ".join(str(error).split())
            self.say(f"{group.name}: failed: {type(error).__name__}: {line}")
            self._outcome["failed"] += 1
        finally:
            with self.turn:
                group.state, machine.busy = "over", ""
                self.supply.made(machine)
                self.turn.notify_all()

    def _settle(self, runner: Runner, group: Group, away: Away | None = None) -> None:
        """Run a group's jobs, or say of each that it is unchanged."""
        for place, job in group.jobs:
            if away and (trouble := away.trouble):
                state = self._block(job, f"{place} {job.name}", trouble)
            else:
                if away:
                    self.runner.pending.setdefault(job.result, "waiting")
                state = runner.step(group.target, job, f"{place} {job.name}")
            self._outcome[state] += 1
            group.settled += 1
            if away and job.config.stage == "export":
                self.supply.made(away.machine)
        group.state = "over"

    def _block(self, job: Job, name: str, reason: str) -> str:
        """Say of a job whose worker is gone that it did not run, unless its result holds."""
        if self.runner.pending.pop(job.result, None) is None:
            return "unchanged"
        self.say(f"{name}: blocked: {reason}")
        write_status(job, "blocked", reason)
        return "blocked"

    def _report(self, stack: ExitStack) -> None:
        """Make the reports of models of which there is nothing more to come."""
        for group in self._groups:
            others = [
                each
                for each in self._groups
                if (each.target, each.model) == (group.target, group.model) and each is not group
            ]
            if group.state != "waiting" or not group.is_report:
                continue
            if all(each.may_be_reported for each in others):
                if self.runner.place is None:
                    place = stack.enter_context(here(self.options.cell_seconds))
                    self.runner = replace(self.runner, place=AtHome(place, self.turn))
                if any(each.machine for each in others):  # something may have run
                    self.runner.pending.setdefault(group.jobs[0][1].result, "waiting")
                command = COMMAND.format(group.target)
                with self.turn, kernel_environment(group.target, command):
                    self._settle(self.runner, group)

    def _fetch(self) -> None:
        """Bring the artifacts of all groups home."""
        jobs = [job for group in self._groups for _, job in group.jobs]
        places = [place for place in needed(jobs) if not place.startswith(f"{cargo.DATA}/")]
        fetch(self.roster, self.outputs, places, self.say)
