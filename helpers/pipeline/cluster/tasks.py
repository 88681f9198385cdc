"""The Dask tasks that run in a worker: a group of stages, and a part of a preparation."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from distributed import get_client, get_worker
from distributed.core import Status

from helpers.errors import ClusterError
from helpers.pipeline.cluster import transfer
from helpers.pipeline.cluster.process import host_lock, run_process
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

    First write the results `done`, and copy the missing `artifacts` from the workers `sources`.
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
