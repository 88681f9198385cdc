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
from threading import Condition, Thread
from typing import TYPE_CHECKING, Any, TypeVar

import yaml

from helpers import results
from helpers.config import ExportConfig
from helpers.display import Lines
from helpers.errors import DeploymentError, ParameterError, StageError
from helpers.fleet import cargo, offers
from helpers.fleet.access import Access, configure, silence
from helpers.fleet.moving import (
    End,
    Road,
    end_at,
    end_here,
    fetch,
    held,
    is_awaited,
    needed,
)
from helpers.fleet.orders import Bundle, Order, known, receive
from helpers.fleet.roster import Machine, Roster, joined, probed
from helpers.pipeline import (
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
    stale,
    write_status,
)
from helpers.results import Result

if TYPE_CHECKING:
    from distributed import Client

Answer = TypeVar("Answer")

TICK_SECONDS = 1.0  # between two looks at the workers
MADE_SECONDS = 3.0  # between two looks whether data that another machine makes are there
COMMAND = "triton-notebooks run {} --scheduler ADDRESS"  # results name no machine


@dataclass(frozen=True)
class Options:
    """How a run over a fleet goes about it."""

    force: bool = False
    cell_seconds: int = 7200
    fetch: bool = False  # whether artefacts come home too


@dataclass
class Group:
    """Stages that run on one machine, in order."""

    target: str
    model: str
    wanted: list[str]  # what a worker must offer, one of these
    parameters: str  # the parameter file
    jobs: list[tuple[str, Job]]  # with its place in the target's run
    state: str = "waiting"  # then "running", then "over"
    reason: str = ""  # why it waits
    machine: Machine | None = None  # that it went to

    @property
    def name(self) -> str:
        """Its name in a line."""
        return f"{self.target} {self.model}"


class Ended(BaseException):
    """The run ends before this stage has; no error of the stage."""


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
        raise ParameterError("--stage tune is not for a fleet: run it where the GPU is")
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


def groups_of(plans: Sequence[Plan]) -> list[Group]:
    """Form the groups of all targets, in order: the jobs that share an export."""
    found: dict[tuple[str, str], Group] = {}
    for path, given, jobs in plans:
        content = yaml.safe_dump(given.file.model_dump(exclude_unset=True), sort_keys=False)
        for turn, job in enumerate(jobs, 1):
            config, place = job.config, f"{path.stem}: [{turn}/{len(jobs)}]"
            shared = config.key("export") if isinstance(config, ExportConfig) else "report"
            new = Group(path.stem, config.model, offers.names(given), content, [])
            group = found.setdefault((path.stem, f"{config.model} {shared}"), new)
            group.jobs.append((place, job))
    return list(found.values())


def is_report(group: Group) -> bool:
    """Whether a group is a model's report, which is made here."""
    return group.jobs[0][1].config.stage == "report"


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
        self.turn = Condition()
        self.road = Road()
        self.is_ending = False
        self.heard: dict[str, Callable[[dict[str, str]], None]] = {}  # by ticket
        self._groups = groups
        self._making: dict[str, Machine] = {}  # place -> who makes it now
        self._outcome = Counter(executed=0, unchanged=0, skipped=0, failed=0, blocked=0)
        self._threads: list[Thread] = []

    def run(self, plans: Sequence[Plan]) -> Counter[str]:
        """Run all groups to their end."""
        from helpers.fleet.tasks import topic

        pending = self.runner.pending
        unchanged = [
            group
            for group in self._groups
            if not is_report(group) and not any(job.result in pending for _, job in group.jobs)
        ]
        stack = ExitStack()
        try:
            self.roster.refresh()
            others = [g for g in self._groups if g not in unchanged and not is_report(g)]
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
            if group.state != "waiting" or is_report(group):
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
        """Choose the machine that has most of the artefacts which a group made before."""
        if len(free) == 1:
            return free[0]
        places = [*needed([job for _, job in group.jobs])]
        counts = [len(held(self.end_of(machine), places)) for machine in free]
        return free[counts.index(max(counts))]

    def _wait(self, group: Group, reason: str) -> None:
        if reason == group.reason:
            return
        group.reason, pending = reason, self.runner.pending
        self.say(f"{group.name}: waits, {reason}")
        for _, job in group.jobs:
            if job.result in pending:
                pending[job.result] = f"waiting: {reason}"
        publish_indexes(self.outputs, group.target, pending)

    def _run_group(self, group: Group, machine: Machine) -> None:
        away = Away(self, group, machine)
        try:
            with suppress(Ended), self.turn:
                try:
                    self.say(f"{group.name}: goes to {machine.words}")
                    obstacles = self.outside(away.obstacles)
                    self._bring(group, machine)
                except DeploymentError as error:
                    obstacles, away.trouble = {}, str(error)
                group.jobs = [
                    (place, replace(job, obstacle=obstacles.get(job.name, "")))
                    for place, job in group.jobs
                ]
                self._settle(replace(self.runner, place=away), group, away, machine)
        finally:
            with self.turn:
                group.state, machine.busy = "over", ""
                self._made(machine)
                self.turn.notify_all()

    def _settle(
        self,
        runner: Runner,
        group: Group,
        away: "Away | None" = None,
        machine: Machine | None = None,
    ) -> None:
        """Run a group's jobs, or say of each that it is unchanged."""
        for place, job in group.jobs:
            if away and (away.trouble or (machine and machine.lost)):
                state = self._block(job, f"{place} {job.name}", away.trouble or away.lost)
            else:
                if away:
                    self.runner.pending.setdefault(job.result, "waiting")
                state = runner.step(group.target, job, f"{place} {job.name}")
            self._outcome[state] += 1
            if machine and job.config.stage == "export":
                self._made(machine)
        group.state = "over"

    def _block(self, job: Job, name: str, reason: str) -> str:
        """Say of a job whose worker is gone that it did not run, unless its result holds."""
        if self.runner.pending.pop(job.result, None) is None:
            return "unchanged"
        self.say(f"{name}: blocked, {reason}")
        write_status(job, "blocked", reason)
        return "blocked"

    def _report(self, stack: ExitStack) -> None:
        """Make the reports of models whose other stages are over."""
        for group in self._groups:
            others = [
                each
                for each in self._groups
                if (each.target, each.model) == (group.target, group.model) and each is not group
            ]
            if group.state != "waiting" or not is_report(group):
                continue
            if all(each.state == "over" for each in others):
                if self.runner.place is None:
                    place = stack.enter_context(here(self.options.cell_seconds))
                    self.runner = replace(self.runner, place=place)
                if any(each.machine for each in others):  # something may have run
                    self.runner.pending.setdefault(group.jobs[0][1].result, "waiting")
                command = COMMAND.format(f"params/{group.target}.yaml")
                with self.turn, kernel_environment(group.target, command):
                    self._settle(self.runner, group)

    # Artefacts that travel

    def outside(self, do: Callable[..., Answer], *arguments: object) -> Answer:
        """Do what takes long while others have their turn."""
        self.turn.release()
        try:
            return do(*arguments)
        finally:
            self.turn.acquire()

    def end_of(self, machine: Machine | None) -> End:
        """Give how `cargo` works on a machine, or here."""
        return end_at(self.roster, machine) if machine else end_here(self.outputs)

    def _bring(self, group: Group, machine: Machine) -> None:
        """Bring a worker the data and artefacts that others have, where that is quicker, and wait
        for what another one is making.
        """
        jobs = [job for _, job in group.jobs]
        seconds = needed(jobs)
        while True:
            missing = {*seconds} - {*self.outside(held, self.end_of(machine), [*seconds])}
            for other in (None, *self.roster):
                if other is machine or not missing:
                    continue
                source, target = self.end_of(other), self.end_of(machine)
                for place in self.outside(held, source, sorted(missing)):
                    if self.outside(self.road.is_quicker, source, place, seconds[place]):
                        sent = self.outside(self.road.send, source, target, place)
                        self.say(f"{group.name}: {sent}")
                    missing.discard(place)
            data = {place for place in missing if is_awaited(place)}
            if not (made := sorted(data & self._making.keys())):
                self._making |= dict.fromkeys(data, machine)
                return
            self._wait(group, f"{made[0]} is being made on {self._making[made[0]].words}")
            self.turn.wait(MADE_SECONDS)
            if self.is_ending:
                raise Ended

    def _made(self, machine: Machine) -> None:
        """Note that a machine makes no data any more: they are there, or failed."""
        for place in [place for place, maker in self._making.items() if maker is machine]:
            del self._making[place]
        self.turn.notify_all()

    def _fetch(self) -> None:
        """Bring the artefacts of all groups home."""
        jobs = [job for group in self._groups for _, job in group.jobs]
        places = [place for place in needed(jobs) if not place.startswith(f"{cargo.DATA}/")]
        fetch(self.roster, self.outputs, places, self.say)


@dataclass
class Away:
    """A worker, as the place where a group's stages run."""

    run: Submission
    group: Group
    machine: Machine
    trouble: str = ""  # why none of its stages can begin
    lost: str = "its worker is lost: start it, then run again"

    def obstacles(self) -> dict[str, str]:
        """Ask what stands in the way of the jobs on that machine, by their names."""
        from helpers.fleet.tasks import obstacles

        orders = [self._order(job) for _, job in self.group.jobs]
        found: dict[str, str] = self.run.roster.ask(self.machine.address, obstacles, orders)
        return found

    def stale(self, job: Job) -> str:
        """Ask why the stage must run there, or say that its result is not home yet."""
        from helpers.fleet.tasks import check

        at_home = stale(job, away=True)
        content = {} if at_home else known(self.run.outputs / job.config.target, job)
        order = replace(self._order(job), known=content)
        ask, address = self.run.roster.ask, self.machine.address
        why: str = self.run.outside(ask, address, check, order, self.machine.is_shared)
        return why or (at_home and "its result has not come home yet")

    def execute(self, job: Job, said: Callable[[str], None]) -> Result:
        """Have the stage run there, once, and return its result when it has come home."""
        from helpers.fleet.tasks import run_stage

        run, order, machine = self.run, self._order(job), self.machine
        run.heard[order.ticket] = partial(self._tell, job, said)
        future = run.client.submit(
            run_stage,
            order,
            machine.is_shared,
            key=f"{job.name.replace(' ', '-')}-{order.ticket}",
            workers=[machine.address],
            allow_other_workers=False,
            resources={offers.resource(machine.fits(self.group.wanted)): 1},
            retries=0,
            pure=False,
        )
        future.add_done_callback(lambda _: self._notify())
        try:
            run.turn.wait_for(lambda: future.done() or machine.lost or run.is_ending)
            if run.is_ending:
                raise Ended
            if machine.lost:
                raise StageError(machine.lost)
            bundle = run.outside(self._bundle, future)
        finally:
            with suppress(Exception):  # the scheduler may be gone
                future.cancel()
            del run.heard[order.ticket]
        receive(run.outputs / self.group.target, job, bundle)
        found = results.read(job.result)
        if bundle.state in ("failed", "refused", "blocked"):
            raise StageError(bundle.reason)
        if found is None or found.state != "done":
            raise StageError(f"it came home as {bundle.state}, without its result")
        return found

    def _bundle(self, future: Any) -> Bundle:
        if future.status == "finished":
            found = future.result(timeout=max(60.0, silence()))
            assert isinstance(found, Bundle)
            return found
        if future.status == "cancelled":
            if self.run.client.status != "running":
                raise Ended  # with the scheduler, which the run says
            raise StageError("the scheduler or the worker gave it up: run it again")
        error = future.exception(timeout=silence())
        if type(error).__name__ == "KilledWorker":  # Dask says a paragraph
            raise StageError(self.machine.fault)
        raise StageError(f"on its worker: {type(error).__name__}: {' '.join(str(error).split())}")

    def _notify(self) -> None:
        with self.run.turn:
            self.run.turn.notify_all()

    def _tell(self, job: Job, said: Callable[[str], None], what: dict[str, str]) -> None:
        """Pass on what a stage tells; called in Dask's thread."""
        if line := what.get("said"):
            said(f"{self.group.target}: {line.strip()}")
            return
        waits = what.get("waits")
        state = f"waiting: {waits}" if waits else f"running: on {self.machine.words}"
        Thread(target=self._show, args=(job, state), daemon=True).start()

    def _show(self, job: Job, state: str) -> None:
        pending = self.run.runner.pending
        with self.run.turn:
            if job.result in pending and pending[job.result] != state:
                pending[job.result] = state
                if state.startswith("waiting"):
                    self.run.say(f"{self.group.target}: {job.name} {state.replace(':', ' for')}")
                publish_indexes(self.run.outputs, self.group.target, pending)

    def _order(self, job: Job) -> Order:
        config, options = job.config, self.run.options
        return Order(
            ticket=uuid.uuid4().hex,
            run=self.run.identity,
            worker=self.machine.identity,
            target=self.group.target,
            parameters=self.group.parameters,
            model=config.model,
            experiment=config.experiment,
            stage=config.stage,
            force=options.force,
            cell_seconds=options.cell_seconds,
            command=COMMAND.format(f"params/{self.group.target}.yaml"),
        )
