"""A worker's machine as the place where stages run: what is asked and sent, and what comes home."""

import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING, Any

from helpers import results
from helpers.errors import StageError
from helpers.fleet import offers
from helpers.fleet.access import silence
from helpers.fleet.groups import Group
from helpers.fleet.orders import Bundle, Order, known, receive
from helpers.fleet.roster import Machine
from helpers.pipeline import Job, publish_indexes, stale
from helpers.results import Result

if TYPE_CHECKING:
    from helpers.fleet.submission import Submission

LOST = "Lost its worker. Start the worker and run again."
COMMAND = "triton-notebooks run params/{}.yaml --scheduler ADDRESS"  # results name no machine


class Ended(BaseException):
    """The run ends before this stage has; no error of the stage."""


@dataclass
class Away:
    """A worker, as the place where a group's stages run."""

    run: "Submission"
    group: Group
    machine: Machine
    unready: str = ""  # why none of its stages can begin

    @property
    def trouble(self) -> str:
        """Say why no stage can begin there now."""
        return self.unready or (LOST if self.machine.lost else "")

    def obstacles(self) -> dict[str, str]:
        """Ask what stands in the way of the jobs on that machine, by their names."""
        from helpers.fleet.tasks import obstacles

        orders = [self._order(job) for _, job in self.group.jobs]
        found: dict[str, str] = self.run.roster.ask(self.machine.address, obstacles, orders)
        return found

    def stale(self, job: Job) -> str:
        """Ask why the stage must run there, or say that its result is not home yet."""
        at_home = stale(job, away=True)
        return self.check(job) or (at_home and "its result has not been downloaded yet")

    def check(self, job: Job) -> str:
        """Ask why the stage must run there, and tell what is known of it here."""
        from helpers.fleet.tasks import check

        order = replace(self._order(job), known=known(self.run.outputs / self.group.target, job))
        ask, address = self.run.roster.ask, self.machine.address
        why: str = self.run.turn.outside(ask, address, check, order, self.machine.is_shared)
        return why

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
            bundle = run.turn.outside(self._bundle, future)
        finally:
            with suppress(Exception):  # the scheduler may be gone
                future.cancel()
            del run.heard[order.ticket]
        receive(run.outputs / self.group.target, job, bundle)
        found = results.read(job.result)
        if bundle.state in ("failed", "refused", "blocked"):
            raise StageError(bundle.reason)
        if found is None or found.state != "done":
            raise StageError(f"the worker returned the stage as {bundle.state}, without a result")
        return found

    def _bundle(self, future: Any) -> Bundle:
        if future.status == "finished":
            found = future.result(timeout=max(60.0, silence()))
            assert isinstance(found, Bundle)
            return found
        if future.status == "cancelled":
            if self.run.client.status != "running":
                raise Ended  # with the scheduler, which the run says
            raise StageError("The scheduler or the worker canceled the stage. Run again.")
        error = future.exception(timeout=silence())
        if type(error).__name__ == "KilledWorker":  # Dask says a paragraph
            raise StageError(self.machine.fault)
        line = " ".join(str(error).split())
        raise StageError(f"the worker failed: {type(error).__name__}: {line}")

    def _notify(self) -> None:
        with self.run.turn:
            self.run.turn.notify_all()

    def _tell(self, job: Job, said: Callable[[str], None], what: dict[str, str]) -> None:
        """Pass on what a stage tells; called in Dask's thread."""
        if line := what.get("said"):
            said(f"{self.group.target} {job.name}: {line.strip()}")
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
                    self.run.say(f"{self.group.target}: {job.name} {state}")
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
            command=COMMAND.format(self.group.target),
        )
