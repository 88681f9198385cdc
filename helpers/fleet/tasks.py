"""The functions that run inside a worker: a group of stages, questions and files beside it."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

from distributed import Worker, get_client, get_worker
from distributed.core import Status

from helpers.errors import FleetError
from helpers.fleet import capabilities, transfer
from helpers.fleet.process import END_SECONDS, host_lock
from helpers.fleet.software import software
from helpers.fleet.workers import ask
from helpers.store import LOCKED_VARIABLE

ATTRIBUTE = "triton_notebooks"  # of a Dask worker, for its station
ALIVE = (Status.running, Status.paused, Status.closing_gracefully)
POLL_SECONDS = 0.1
KILLED = "The worker process was killed, probably out of memory. Run again."
NOT_WANTED = "the run that requested this stage has ended"


@dataclass
class Station:
    """What a worker of the fleet has: its outputs folder, its targets, the process that runs."""

    outputs: Path
    targets: list[str]
    process: "subprocess.Popen[str] | None" = None

    def start(self, is_shared: bool) -> "subprocess.Popen[str]":
        """Start the process of a group; in the submitter's own folder, which that has locked."""
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "helpers.fleet.process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **({LOCKED_VARIABLE: "1"} if is_shared else {})},
            start_new_session=True,  # Ctrl-C ends the worker, which ends it
        )
        return self.process

    def close(self) -> None:
        """End the process as Ctrl-C does, and kill it if that does not help."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def install(worker: Worker, station: Station) -> None:
    """Make a Dask worker one of the fleet."""
    setattr(worker, ATTRIBUTE, station)


def station_of(worker: Worker) -> Station:
    """Return the station of a worker of the fleet."""
    found = getattr(worker, ATTRIBUTE)
    assert isinstance(found, Station)
    return found


def run_group(
    task: Mapping[str, object],
    topic: str,
    number: int,
    places: Mapping[str, float],
    sources: Sequence[str],
    is_shared: bool,
) -> dict[str, object]:
    """Run a group of stages, a Dask task; return the states of its jobs by their names, and why
    others have none.

    Artifacts of `places` that the workers `sources` have are copied if that is quicker than the
    seconds that making them takes. What happens is logged on `topic` with the group's `number`.
    """
    worker, states, left = get_worker(), dict[str, str](), {"error": KILLED}
    key, station = worker.get_current_task(), station_of(worker)

    def tell(event: Mapping[str, object]) -> None:
        worker.log_event(topic, {"number": number, **event})

    def relay(lines: Any) -> None:
        for line in lines:
            event = json.loads(line)
            if "ended" in event:
                states[event["ended"]] = event["state"]
            if "over" in event:
                left["error"] = event["error"]
            else:
                tell(event)

    def is_wanted() -> bool:
        found = worker.state.tasks.get(key)
        return found is not None and found.state == "executing" and worker.status in ALIVE

    if not is_shared:
        _copy(station.outputs, places, sources, tell)
    if not is_wanted():
        raise FleetError(NOT_WANTED)
    process = station.start(is_shared)
    reader = Thread(target=relay, args=[process.stdout], daemon=True)
    reader.start()
    assert process.stdin
    assert process.stdout
    with suppress(BrokenPipeError):  # it has ended
        process.stdin.write(json.dumps(task) + "\n")
        process.stdin.flush()
    while process.poll() is None:
        with suppress(subprocess.TimeoutExpired):
            process.wait(POLL_SECONDS)
        if not is_wanted():
            station.close()
    reader.join()
    process.stdout.close()
    with suppress(BrokenPipeError):
        process.stdin.close()
    return {"states": states, **left}


def _copy(
    outputs: Path,
    places: Mapping[str, float],
    sources: Sequence[str],
    tell: Callable[[Mapping[str, object]], None],
) -> None:
    missing = {*places} - {*transfer.held(outputs, [*places])}
    client = get_client() if missing and sources else None
    for address in sources if client else ():
        source: transfer.Ask = partial(ask, client, address, at_work)
        with suppress(FleetError):  # of a worker that is lost meanwhile
            for place in source(transfer.held, sorted(missing)):
                if transfer.is_quicker(source, place, places[place]):
                    tell({"sent": transfer.pull(source, place, outputs)})
                missing.discard(place)


def call(do: Callable[..., object], arguments: Sequence[object]) -> object:
    """Make a call of a preparation, when nobody measures on this host; a Dask task."""
    worker = get_worker()
    key = worker.get_current_task()
    with host_lock(False, lambda _: None):
        if key not in worker.state.tasks or worker.status not in ALIVE:
            raise FleetError("the preparation that requested this part has ended")
        return do(*arguments)


# What follows runs beside a task, by `Client.run`; Dask gives its worker by this name.


def sees(path: str, dask_worker: Worker) -> bool:
    """Return whether a worker of the fleet sees a file."""
    return Path(path).exists()


def about(probe: str, dask_worker: Worker) -> dict[str, object] | None:
    """Return what the submitter must know of a worker; None if it is none of the fleet."""
    station: Station | None = getattr(dask_worker, ATTRIBUTE, None)
    if station is None:
        return None
    return {
        "description": capabilities.description(),
        "targets": station.targets,
        "software": software(),
        "shared": (station.outputs / probe).exists(),
    }


async def at_work(do: Callable[..., object], *arguments: object, dask_worker: Worker) -> object:
    """Call a function of `transfer` in the worker's outputs folder, in a thread beside it."""
    return await asyncio.to_thread(do, station_of(dask_worker).outputs, *arguments)
