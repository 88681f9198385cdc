"""The process in which a worker runs stages, one after the other, so that kernels start at once.

It is started with the number of a pipe for its answers. An order comes as a line of JSON on its
standard input, without what is known at home, which the worker has written already; answers are
lines of JSON: `{"said": ...}` as the notebook prints, then `{"state": ..., "reason": ...}`. If the
worker ends, or sends SIGINT, the stage ends as by Ctrl-C and so does this process.
"""

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from queue import SimpleQueue
from typing import IO

import yaml

from helpers import results
from helpers.config import parse
from helpers.display import Lines
from helpers.errors import DeploymentError, WorkspaceError
from helpers.fleet.orders import Order
from helpers.pipeline import Here, Job, Runner, here, kernel_environment, plan
from helpers.store import clear_leftovers, locked, outputs, write_atomic

SHARED_VARIABLE = "TRITON_NOTEBOOKS_SHARED"  # set by a worker on the submitter's own folder
END_SECONDS = 20.0  # that ending a stage may take


class Wire(Lines):
    """Passes on what the notebook prints, and nothing else."""

    def __init__(self, answers: IO[str]) -> None:
        self._answers = answers

    def __call__(self, line: str) -> None:
        """Say nothing: the submitter says what becomes of a stage."""

    def printed(self, line: str) -> None:
        self.send(said=line)

    def send(self, **answer: str) -> None:
        """Send an answer."""
        print(json.dumps(answer), file=self._answers, flush=True)

    @contextmanager
    def stage(self, name: str, why: str, seconds: float) -> Iterator[None]:
        self.send(why=why)
        yield


def main() -> None:
    """Run stages until the worker ends."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also as a background process
    orders: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=_receive, args=[orders], daemon=True).start()
    wire = Wire(os.fdopen(int(sys.argv[1]), "w"))
    is_shared = bool(os.environ.get(SHARED_VARIABLE))
    with suppress(WorkspaceError):
        if not is_shared:
            with locked(outputs()):
                clear_leftovers(outputs())
    with suppress(KeyboardInterrupt), here(0) as place:
        while line := orders.get():
            order = Order(**json.loads(line))
            try:
                with nullcontext() if is_shared else locked(outputs()):
                    answer = perform(order, place, wire)
            except WorkspaceError as error:
                answer = {"state": "refused", "reason": f"on the worker: {error}"}
            wire.send(**answer)


def _receive(orders: "SimpleQueue[str]") -> None:
    for line in sys.stdin:
        orders.put(line)
    orders.put("")  # if it waits for an order
    os.kill(os.getpid(), signal.SIGINT)  # if it runs one
    threading.Event().wait(END_SECONDS)
    os._exit(1)


def perform(order: Order, place: Here, wire: Wire) -> dict[str, str]:
    """Run the stage of an order if it must run, and say what became of it."""
    try:
        job = job_of(order)
        path = outputs() / order.target / "parameters.yaml"
        if not path.exists() or path.read_text() != order.parameters:
            write_atomic(path, order.parameters)
        own = replace(place, cell_seconds=order.cell_seconds)
        pending = {job.result: "waiting"}
        runner = Runner(outputs(), pending, {job.result: 0.0}, order.force, wire, own)
        with kernel_environment(order.target, order.command):
            state = runner.settle(job, job.name, True)
    except DeploymentError as error:
        return {"state": "refused", "reason": str(error)}
    found = results.read(job.result)
    return {"state": state, "reason": found.reason if found else job.obstacle}


def job_of(order: Order) -> Job:
    """Find the job of an order on this machine, with what stands in its way here.

    Raises `ParameterError`.
    """
    given = parse(yaml.safe_load(order.parameters), order.target, f"{order.target}.yaml")
    chosen = [(order.model, name) for name in given.experiments(order.model)]
    jobs = plan(given, chosen, [order.stage])
    return next(job for job in jobs if job.config.experiment == order.experiment)


if __name__ == "__main__":
    main()
