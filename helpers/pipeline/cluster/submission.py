"""A run over a cluster: which stages go to which worker, what is returned, and what is lost.

One worker runs a group of stages as one Dask task, by the ordinary run; groups run side by side. If
a worker is lost, so is what it ran, and the run says so. Reports are made here, of the results.
"""

import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from helpers import results
from helpers.display import Lines
from helpers.errors import ClusterError, ParameterError
from helpers.machine import BROKEN
from helpers.pipeline import (
    BROKEN_INSTALLATION,
    Job,
    Runner,
    explain,
    kernel_environment,
    kernel_server,
    open_run,
    publish,
    publish_indexes,
    read_plans,
    why_outdated,
    write_status,
)
from helpers.pipeline.cluster import capabilities, transfer
from helpers.pipeline.cluster.access import Access, worker_timeout
from helpers.pipeline.cluster.groups import Group, groups_of
from helpers.pipeline.cluster.workers import WorkerInfo, Workers, ask, ask_all, joined

if TYPE_CHECKING:
    from distributed import Future

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
    """Run the outdated stages, each target's on workers that offer it, and publish the pages as
    results are returned; count what became of them.

    Raises `ParameterError`, `WorkspaceError` if the outputs folder is in use, and `ClusterError` if
    the scheduler cannot be reached or is lost, or a worker has other software.
    """
    say = say or Lines()
    if "tune" in stages:
        raise ParameterError("--stage tune cannot run on a cluster. Run it on the GPU's machine.")
    _ = access.security  # an error before anything else
    plans = read_plans(files, models, experiments, stages, ask=lambda _: "")
    if dry_run:
        explain(plans, force, say, away=True)
        return Counter()
    groups = groups_of(plans, models, experiments)
    with (
        joined(access, outputs) as workers,
        open_run(plans, outputs, force, say, away=True) as (pending, expected),
        kernel_server(True) as server,
    ):
        runner = Runner(outputs, pending, expected, force, say, server, cell_seconds)
        try:
            outcome = Submission(workers, runner, groups).run()
        finally:
            pending.clear()
            for path, _, _ in plans:
                publish(outputs, path.stem, only_changed=True)
        if fetch:
            places = transfer.artifacts_of(job for _, _, jobs in plans for job in jobs)
            transfer.fetch(workers, outputs, places, say)
    return outcome


class Submission:
    """One run over a cluster, in one thread: Dask's threads only put events into a queue."""

    def __init__(self, workers: Workers, runner: Runner, groups: list[Group]) -> None:
        self._workers, self._runner, self._groups = workers, runner, groups
        self._say, self._outputs, self._pending = runner.say, runner.outputs, runner.pending
        self._topic = f"triton-notebooks-{uuid.uuid4().hex[:12]}"
        self._events: SimpleQueue[Mapping[str, Any]] = SimpleQueue()
        self._futures: list[Future] = []
        self._outcome = Counter(executed=0, unchanged=0, skipped=0, failed=0, blocked=0)

    def run(self) -> Counter[str]:
        """Run all groups to their end, and count what became of their jobs."""
        client = self._workers.client
        self._workers.refuse_others(g.wanted for g in self._groups if self._is_remote(g))
        client.subscribe_topic(self._topic, lambda event: self._events.put(event[1]))
        try:
            while any(group.state != "over" for group in self._groups):
                self._run_here()
                self._workers.refresh()
                for group in self._groups:
                    if group.state == "running" and group.worker and group.worker.lost:
                        self._end(group, group.worker.lost)
                self._assign()
                self._handle_events()
        finally:
            with suppress(Exception):  # the scheduler may be gone
                client.cancel(self._futures)
        return self._outcome

    def _is_remote(self, group: Group) -> bool:
        """Return whether a group needs a worker."""
        return not group.is_report and any(job.result in self._pending for _, job in group.jobs)

    def _run_here(self) -> None:
        """Run what needs no worker: unchanged groups, and reports of models that are complete."""
        for group in self._groups:
            if self._is_remote(group) or not self._is_next(group):
                continue
            others = self._followed(group) if group.is_report else []
            if any(other.worker for other in others):  # something may have run
                self._pending.setdefault(group.jobs[0][1].result, "waiting")
            with kernel_environment(group.target, COMMAND.format(group.target)):
                for place, job in group.jobs:
                    state = self._runner.run_and_publish(group.target, job, f"{place} {job.name}")
                    self._count(group, job, state)
            group.state = "over"

    def _followed(self, group: Group) -> list[Group]:
        """Return the groups that a group follows."""
        earlier = self._groups[: self._groups.index(group)] if group.is_last else []
        return [g for g in earlier if (g.target, g.model) == (group.target, group.model)]

    def _is_next(self, group: Group) -> bool:
        """Return whether a group waits for no other."""
        others = self._followed(group)
        return group.state == "waiting" and all(other.may_be_followed for other in others)

    def _assign(self) -> None:
        """Send each waiting group to a free worker, or show why there is none."""
        for group in self._groups:
            if not self._is_remote(group) or not self._is_next(group):
                continue
            fitting = [w for w in self._workers if w.match(group.wanted) and not w.difference]
            if not (free := [worker for worker in fitting if not worker.busy]):
                self._wait(group, self._workers.why_none(group.wanted))
                continue
            jobs = [job for _, job in group.jobs]
            kept = [*group.before, *(job for job in jobs if job.result not in self._pending)]
            artifacts = [*transfer.data_of([*kept, *jobs]), *transfer.artifacts_of(kept)]
            self._send(group, self._with_most(free, artifacts), artifacts)

    def _with_most(self, free: Sequence[WorkerInfo], artifacts: Sequence[str]) -> WorkerInfo:
        """Choose the worker that has most of some artifacts, of those that are heard of."""
        heard = {worker.address: worker for worker in free if not worker.is_silent}
        if len(heard) < 2:
            return next(iter(heard.values()), free[0])
        call = transfer.in_outputs, transfer.held, artifacts
        held = ask_all(self._workers.client, [*heard], *call)
        return heard[max(heard, key=lambda address: len(held.get(address, ())))]

    def _send(self, group: Group, worker: WorkerInfo, artifacts: Sequence[str]) -> None:
        """Submit a group to a worker, once."""
        from helpers.pipeline.cluster.tasks import run_group

        self._say.queued(group.name, "")
        self._say(f"{group.name}: assigned to {worker.description}")
        group.state, group.worker, worker.busy = "running", worker, group.name
        jobs, number = [job for _, job in group.jobs], self._groups.index(group)
        done, sources = dict[str, bytes](), list[str]()
        if not worker.is_shared:
            done = transfer.done_files(self._outputs, [*group.before, *jobs])
            sources = [address for address in self._workers.addresses if address != worker.address]
        task = {
            "target": group.target,
            "parameters": group.parameters,
            "model": group.model,
            "experiments": group.experiments,
            "stages": list(dict.fromkeys(job.config.stage for job in jobs)),
            "force": self._runner.force,
            "cell_seconds": self._runner.cell_seconds,
            "command": COMMAND.format(group.target),
            "is_shared": worker.is_shared,
        }
        options = {
            "key": f"{group.name.replace(' ', '-')}-{uuid.uuid4().hex}",
            "workers": [worker.address],
            "allow_other_workers": False,
            "resources": {capabilities.WORKER_RESOURCE: 1},
        }
        content = (task, self._topic, number, artifacts, done, sources)
        future = self._workers.client.submit(run_group, *content, retries=0, pure=False, **options)
        self._futures.append(future)
        future.add_done_callback(lambda done: self._events.put({"number": number, "done": done}))

    def _wait(self, group: Group, reason: str) -> None:
        """Show why a group waits, once for all groups of a model that wait for the same."""
        if reason == group.reason:
            return
        waiting = [other for other in self._groups if other.state == "waiting"]
        if (group.name, reason) not in {(other.name, other.reason) for other in waiting}:
            self._say.queued(group.name, reason)
        group.reason = reason
        jobs = [job for _, job in group.jobs if job.result in self._pending]
        self._pending |= {job.result: "waiting" for job in jobs}
        firsts = {job.config.experiment: job.result for job in reversed(jobs)}
        self._pending |= dict.fromkeys(firsts.values(), f"waiting: {reason}")
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
            self._end_broken(group, event["done"])
        elif "over" in event:
            self._end(group, event["error"])
        elif "sent" in event:
            self._say(f"{group.name}: {event['sent']}")
        elif event.get("ended") in jobs:
            self._settle(group, jobs[event["ended"]], event["state"], event["line"])
        elif "line" in event and "ended" not in event:
            self._say(f"{group.target}: {event['line']}")
        elif "printed" in event and group.running:
            self._say.printed(event["printed"].strip(), f"{group.target} {group.running.name}")
        elif "waits" in event:
            state = f"waiting: {event['why']}"
            self._say(f"{group.target}: {event['waits']} {state}")
            self._show(group, jobs[event["waits"]], state)
        elif "began" in event:
            self._begin(group, jobs[event["began"].partition("] ")[2]], event)

    def _show(self, group: Group, job: Job, state: str) -> None:
        self._pending[job.result] = state
        publish_indexes(self._outputs, group.target, self._pending)

    def _begin(self, group: Group, job: Job, event: Mapping[str, Any]) -> None:
        """Show that a worker runs a job."""
        assert group.worker
        group.running = job
        name = f"{group.target}: {event['began']}"
        group.shown.enter_context(self._say.stage(name, event["why"], event["seconds"]))
        if not group.worker.is_shared:  # the worker has written it, and perhaps more since
            write_status(job, "failed", "the run was interrupted")
        self._show(group, job, f"running: on {group.worker.description}")

    def _settle(self, group: Group, job: Job, state: str, line: str) -> None:
        """Copy what a job left on its worker, and count its state."""
        group.shown.close()
        try:
            if state != "unchanged" or why_outdated(job, away=True):
                transfer.receive(job.result, self._files(group, job))
        except ClusterError as error:
            write_status(job, "failed", str(error))
            place = line.partition(job.name)[0]
            state, line = "failed", f"{place}{job.name}: failed: {error}"
        group.running = None
        result = results.read(job.result)
        is_broken = state == "skipped" and result and result.reason.startswith(BROKEN)
        self._count(group, job, BROKEN_INSTALLATION if is_broken else state)
        self._say(f"{group.target}: {line}")
        publish(self._outputs, group.target, only_changed=True, pending=self._pending)

    def _files(self, group: Group, job: Job) -> dict[str, bytes]:
        """Fetch the files of a job from its group's worker."""
        assert group.worker
        call = transfer.in_outputs, transfer.results_of, str(job.result.relative_to(self._outputs))
        files: dict[str, bytes] = ask(self._workers.client, group.worker.address, *call)
        return files

    def _count(self, group: Group, job: Job, state: str) -> None:
        group.settled.add(job.name)
        self._pending.pop(job.result, None)
        self._outcome[state] += 1

    def _end_broken(self, group: Group, future: "Future") -> None:
        """End a group whose task failed or was canceled; of one that finished an event tells."""
        assert group.worker
        if future.status == "error":
            error = future.exception(timeout=worker_timeout())
            kind, line = type(error).__name__, " ".join(str(error).split())
            reason = f"the worker failed: {kind}: {line}"
            if kind == "KilledWorker":  # Dask says a paragraph
                reason = group.worker.lost = group.worker.reason
            self._end(group, reason)
        elif future.status != "finished" and self._workers.client.status == "running":
            self._end(group, CANCELED)

    def _end(self, group: Group, reason: str) -> None:
        """End a group; what has not run did not for a `reason`."""
        assert group.worker
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
            state: results.State = "failed" if is_victim else "blocked"
            why = LOST if group.worker.lost and not is_victim else reason
            self._say(f"{place} {job.name}: {state}: {why}")
            write_status(job, state, why)
            self._count(group, job, state)
        group.running, group.state, group.worker.busy = None, "over", ""
        publish(self._outputs, group.target, only_changed=True, pending=self._pending)
