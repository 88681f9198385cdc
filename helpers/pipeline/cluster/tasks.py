"""Functions that run in a worker: a group of stages, and queries and transfers in parallel."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from distributed import get_client, get_worker
from distributed.core import Status

from helpers.errors import ClusterError
from helpers.pipeline.cluster import capabilities, transfer
from helpers.pipeline.cluster.process import host_lock, run_process
from helpers.pipeline.cluster.software import software
from helpers.store import outputs

ALIVE = (Status.running, Status.paused, Status.closing_gracefully)


def run_group(
    task: Mapping[str, object],
    topic: str,
    number: int,
    artifacts: Sequence[str],
    done: Mapping[str, bytes],
    sources: Sequence[str],
) -> None:
    """Run a group of stages as a Dask task; log its events on `topic` with its `number`.

    First write the results `done`, and copy the `artifacts` that are missing on this machine from
    the workers `sources`.
    """
    worker, is_wanted = get_worker(), _wanted()

    def tell(event: Mapping[str, object]) -> None:
        worker.log_event(topic, {"number": number, **event})

    transfer.take(outputs(), done)
    if sources and (missing := transfer.lacking(outputs(), artifacts)):
        with suppress(ClusterError):  # a worker was lost
            for line in transfer.pull_missing(get_client(), sources, outputs(), missing):
                tell({"sent": line})
    if not is_wanted():
        raise ClusterError("the run that requested this stage has ended")
    run_process(task, tell, is_wanted)


def call(do: Callable[..., object], arguments: Sequence[object]) -> object:
    """Make a call of a preparation as a Dask task, once no measurement runs on this host."""
    is_wanted = _wanted()
    with host_lock(False, lambda _: None):
        if not is_wanted():
            raise ClusterError("the preparation that requested this part has ended")
        return do(*arguments)


def _wanted() -> Callable[[], bool]:
    """Return a function that returns whether the calling task must continue."""
    worker = get_worker()
    key = worker.get_current_task()

    def is_wanted() -> bool:
        task = worker.state.tasks.get(key)
        return task is not None and task.state == "executing" and worker.status in ALIVE

    return is_wanted


# `Client.run` calls the following functions while a task runs.


def about(probe: str) -> dict[str, object]:
    """Return the description and software of this worker, and whether it sees the file `probe`."""
    return {
        "description": capabilities.description(),
        "software": software(),
        "shared": (outputs() / probe).exists(),
    }


def see(paths: Sequence[str]) -> bool:
    """Return whether this worker sees all of these files."""
    return all(Path(path).exists() for path in paths)


async def in_outputs(do: Callable[..., object], *arguments: object) -> object:
    """Call a function of `transfer` in this worker's outputs folder, in a thread of its own."""
    return await asyncio.to_thread(do, outputs(), *arguments)
