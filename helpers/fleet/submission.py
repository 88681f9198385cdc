"""A run over a cluster: which stages go to which worker, what is returned, and what is lost.

All experiments of a target that share an export are one group, which one worker runs as one Dask
task, by the ordinary run; groups run side by side. If a worker is lost, so is what it ran, and the
run says so. Reports are made here, of the results.
"""

import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from helpers import results
from helpers.display import Lines
from helpers.errors import FleetError, ParameterError
from helpers.fleet import capabilities, transfer
from helpers.fleet.access import Access, configure, silence
from helpers.fleet.groups import Group, groups_of
from helpers.fleet.transfer import needed
from helpers.fleet.workers import WorkerInfo, Workers, joined, probed
from helpers.machine import BROKEN
from helpers.pipeline import (
    KEPT_BACK,
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
from helpers.store import MANIFEST

if TYPE_CHECKING:
    from distributed import Client, Future

TICK_SECONDS = 1.0  # between two looks at the workers
LOST = "Lost its worker. Start the worker and run again."
CANCELED = "The scheduler or the worker canceled the stage. Run again."
COMMAND = "triton-notebooks run params/{}.yaml --scheduler ADDRESS"  # results name no machine


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
    the pages as results are returned; count what became of them.

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
    groups = groups_of(plans, models, experiments)
    with (
        joined(access) as client,
        probed(outputs) as probe,
        opened(plans, outputs, options.force, say, away=True) as (pending, expected),
    ):
        workers = Workers(client, access.address, probe)
        runner = Runner(outputs, pending, expected, options.force, say, None)
        return Submission(client, workers, runner, groups, options).run(plans)


@dataclass(frozen=True)
class Options:
    """How a run over a cluster goes about it."""

    force: bool = False
    cell_seconds: int = 7200
    fetch: bool = False  # whether artifacts are copied home too


class Submission:
    """One run over a cluster, in one thread: Dask's threads only put events into a queue."""

    def __init__(
        self,
        client: "Client",
        workers: Workers,
        runner: Runner,
        groups: list[Group],
        options: Options,
    ) -> None:
        self._client, self._workers, self._options = client, workers, options
        self._runner, self._say, self._outputs = runner, runner.say, runner.outputs
        self._pending, self._groups = runner.pending, groups
        self._topic = f"triton-notebooks-{uuid.uuid4().hex[:12]}"
        self._events: SimpleQueue[Mapping[str, Any]] = SimpleQueue()
        self._futures: list[Future] = []
        self._outcome = Counter(executed=0, unchanged=0, skipped=0, failed=0, blocked=0)

    def run(self, plans: Sequence[Plan]) -> Counter[str]:
        """Run all groups to their end."""
        due_groups = [
            group
            for group in self._groups
            if group.is_report or any(job.result in self._pending for _, job in group.jobs)
        ]
        stack = ExitStack()
        try:
            self._workers.refresh()
            self._workers.refuse_others(g.wanted for g in due_groups if not g.is_report)
            for group in self._groups:
                if group not in due_groups:
                    self._run_here(group)
            self._client.subscribe_topic(self._topic, lambda event: self._events.put(event[1]))
            while any(group.state != "over" for group in self._groups):
                self._report(stack)
                self._assign()
                self._handle_events()
                self._workers.refresh()
                self._end_lost()
            if self._options.fetch:
                jobs = [job for group in self._groups for _, job in group.jobs]
                places = [name for name in needed(jobs) if not name.startswith(transfer.DATA)]
                transfer.fetch(self._workers, self._outputs, places, self._say)
        finally:
            with suppress(Exception):  # the scheduler may be gone
                self._client.cancel(self._futures)
            stack.close()
            self._pending.clear()
            for path, _, _ in plans:
                publish(self._outputs, path.stem, only_changed=True)
        return self._outcome

    def _run_here(self, group: Group) -> None:
        """Run a group's jobs on this machine: a report, or what is unchanged."""
        for place, job in group.jobs:
            self._outcome[self._runner.step(group.target, job, f"{place} {job.name}")] += 1
            group.settled.add(job.name)
        group.state = "over"

    def _assign(self) -> None:
        """Give each waiting group to a free worker, or say why there is none."""
        for group in self._groups:
            if group.state != "waiting" or group.is_report:
                continue
            fitting = [w for w in self._workers if w.match(group.wanted) and not w.difference]
            if free := [each for each in fitting if not each.busy]:
                places = needed([job for _, job in group.jobs], group.before)
                try:
                    self._send(group, self._with_most(free, places), places)
                except FleetError as error:
                    self._end(group, str(error))
            else:
                self._wait(group, self._workers.why_none(group.wanted))

    def _with_most(self, free: Sequence[WorkerInfo], places: Mapping[str, float]) -> WorkerInfo:
        """Choose the worker that has most of the artifacts which a group made before."""

        def count(worker: WorkerInfo) -> int:
            with suppress(FleetError):
                return len(self._ask(worker, transfer.held, [*places]))
            return 0

        return free[0] if len(free) == 1 else max(free, key=count)

    def _ask(self, worker: WorkerInfo, do: Any, *arguments: object) -> Any:
        """Call a function of `transfer` in a worker's outputs folder."""
        from helpers.fleet.tasks import at_work

        return self._workers.ask(worker.address, at_work, do, *arguments)

    def _send(self, group: Group, worker: WorkerInfo, places: Mapping[str, float]) -> None:
        """Have a worker run a group, once."""
        from helpers.fleet.tasks import run_group

        self._say.queued(group.name, "")
        self._say(f"{group.name}: assigned to {worker.description}")
        group.state, group.worker, worker.busy = "running", worker, group.name
        if not worker.is_shared:
            self._tell_results(group, worker)
        task = {
            "target": group.target,
            "parameters": group.parameters,
            "model": group.model,
            "experiments": group.experiments,
            "stages": list(dict.fromkeys(job.config.stage for _, job in group.jobs)),
            "force": self._options.force,
            "cell_seconds": self._options.cell_seconds,
            "command": COMMAND.format(group.target),
        }
        others = [each.address for each in self._workers if each is not worker]
        number = self._groups.index(group)
        future = self._client.submit(
            run_group,
            task,
            self._topic,
            number,
            places,
            others,
            worker.is_shared,
            key=f"{group.name.replace(' ', '-')}-{uuid.uuid4().hex}",
            workers=[worker.address],
            allow_other_workers=False,
            resources={capabilities.resource(worker.match(group.wanted)): 1},
            retries=0,
            pure=False,
        )
        self._futures.append(future)
        future.add_done_callback(lambda done: self._events.put({"number": number, "done": done}))

    def _tell_results(self, group: Group, worker: WorkerInfo) -> None:
        """Send a worker the results that are done here and not there."""
        jobs = [*group.before, *(job for _, job in group.jobs)]
        base, known = self._outputs / group.target, list[str]()
        for job in jobs:
            found = results.read(job.result)
            if found is not None and found.state == "done":
                known.append(str(job.result.relative_to(base)))
        if missing := self._ask(worker, transfer.lacking, group.target, known):
            read = partial(transfer.results_of, self._outputs, group.target)
            files = {name: {**read(name)} for name in missing}
            for content in files.values():
                content.pop(MANIFEST, None)  # there is no artifact with it
            self._ask(worker, transfer.take, group.target, files)

    def _wait(self, group: Group, reason: str) -> None:
        if reason == group.reason:
            return
        said = {(each.name, each.reason) for each in self._groups if each.state == "waiting"}
        group.reason = reason
        if (group.name, reason) not in said:  # for another group of the model
            self._say.queued(group.name, reason)
        told = set[str]()  # experiments: each says once why it waits
        for _, job in group.jobs:
            if job.result in self._pending:
                is_first = job.config.experiment not in told
                self._pending[job.result] = f"waiting: {reason}" if is_first else "waiting"
                told.add(job.config.experiment)
        publish_indexes(self._outputs, group.target, self._pending)

    def _handle_events(self) -> None:
        """Handle what workers tell, waiting a while for it."""
        with suppress(Empty):
            event = self._events.get(timeout=TICK_SECONDS)
            while True:
                group = self._groups[event["number"]]
                if group.state == "running":
                    self._handle(group, event)
                event = self._events.get_nowait()

    def _handle(self, group: Group, event: Mapping[str, Any]) -> None:
        jobs = {job.name: job for _, job in group.jobs}
        if "done" in event:
            self._finish(group, event["done"])
        elif "sent" in event:
            self._say(f"{group.name}: {event['sent']}")
        elif "line" in event and "ended" not in event:
            self._say(f"{group.target}: {event['line']}")
        elif "printed" in event and group.running:
            self._say.printed(event["printed"].strip(), f"{group.target} {group.running.name}")
        elif "waits" in event:
            self._say(f"{group.target}: {event['waits']} waiting: {event['why']}")
            self._show(group, jobs[event["waits"]], f"waiting: {event['why']}")
        elif "began" in event:
            self._begin(group, jobs[event["began"].partition("] ")[2]], event)
        elif event.get("ended") in jobs:
            self._settle(group, jobs[event["ended"]], event["state"], event["line"])

    def _show(self, group: Group, job: Job, state: str) -> None:
        self._pending[job.result] = state
        publish_indexes(self._outputs, group.target, self._pending)

    def _begin(self, group: Group, job: Job, event: Mapping[str, Any]) -> None:
        assert group.worker
        group.running = job
        name = f"{group.target}: {event['began']}"
        group.shown.enter_context(self._say.stage(name, event["why"], event["seconds"]))
        if not group.worker.is_shared:  # the worker has written it, and perhaps more since
            write_status(job, "failed", "the run was interrupted")
        self._show(group, job, f"running: on {group.worker.description}")

    def _settle(self, group: Group, job: Job, state: str, line: str) -> None:
        """Take over what a job left on its worker."""
        assert group.worker
        group.shown.close()
        base = self._outputs / group.target
        name = str(job.result.relative_to(base))
        try:
            if state != "unchanged" or stale(job, away=True):
                files = self._ask(group.worker, transfer.results_of, group.target, name)
                transfer.receive(base, job.result, files)
        except FleetError as error:
            write_status(job, "failed", str(error))
            place = line.partition(job.name)[0]
            state, line = "failed", f"{place}{job.name}: failed: {error}"
        group.running = None
        found = results.read(job.result)
        is_broken = state == "skipped" and found and found.reason.startswith(BROKEN)
        self._count(group, job, KEPT_BACK if is_broken else state)
        if line:
            self._say(f"{group.target}: {line}")
        publish(self._outputs, group.target, only_changed=True, pending=self._pending)

    def _count(self, group: Group, job: Job, state: str) -> None:
        group.settled.add(job.name)
        self._pending.pop(job.result, None)
        self._outcome[state] += 1

    def _finish(self, group: Group, future: "Future") -> None:
        """End a group whose task has ended."""
        assert group.worker
        reason, states = "", dict[str, str]()
        if future.status == "finished":
            answer = future.result(timeout=max(60.0, silence()))
            states, reason = answer["states"], answer["error"]
        elif future.status == "error":
            error = future.exception(timeout=silence())
            line = " ".join(str(error).split())
            reason = f"the worker failed: {type(error).__name__}: {line}"
            if type(error).__name__ == "KilledWorker":  # Dask says a paragraph
                reason = group.worker.lost = group.worker.reason
        elif self._client.status == "running":
            reason = CANCELED
        else:
            return  # with the scheduler, which the next refresh finds
        for place, job in group.jobs:
            if job.name in states and job.name not in group.settled:
                state = states[job.name]
                self._settle(group, job, state, f"{place.partition(': ')[2]} {job.name}: {state}")
        self._end(group, reason)

    def _end(self, group: Group, reason: str) -> None:
        """End a group; what has not run did not for a `reason`."""
        assert group.worker
        after = LOST if group.worker.lost else reason
        victim = group.running
        group.shown.close()
        for place, job in group.jobs:
            if job.name in group.settled:
                continue
            if job.result not in self._pending:
                self._count(group, job, "unchanged")
                continue
            is_victim = job is victim or not (victim or group.worker.lost)
            victim = victim or job
            state, why = ("failed", reason) if is_victim else ("blocked", after)
            self._say(f"{place} {job.name}: {state}: {why}")
            write_status(job, "failed" if is_victim else "blocked", why)
            self._count(group, job, state)
        group.running, group.state, group.worker.busy = None, "over", ""
        publish(self._outputs, group.target, only_changed=True, pending=self._pending)

    def _end_lost(self) -> None:
        for group in self._groups:
            if group.state == "running" and group.worker and group.worker.lost:
                self._end(group, group.worker.lost)

    def _report(self, stack: ExitStack) -> None:
        """Make the reports of models of which there is nothing more to come."""
        for group in self._groups:
            if group.state != "waiting" or not group.is_report:
                continue
            model = (group.target, group.model)
            others = [g for g in self._groups if (g.target, g.model) == model and g is not group]
            if all(each.may_be_reported for each in others):
                if self._runner.place is None:
                    place = stack.enter_context(here(self._options.cell_seconds))
                    self._runner = replace(self._runner, place=place)
                if any(each.worker for each in others):  # something may have run
                    self._pending.setdefault(group.jobs[0][1].result, "waiting")
                with kernel_environment(group.target, COMMAND.format(group.target)):
                    self._run_here(group)
