"""The functions that run inside a worker: stages as Dask tasks, questions and files beside them."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from distributed import Worker, get_worker
from distributed.core import Status

from helpers.errors import FleetError
from helpers.fleet import gate
from helpers.fleet.orders import Bundle, Order
from helpers.fleet.station import Station

ATTRIBUTE = "triton_notebooks"  # of a Dask worker, for its station
ALIVE = (Status.running, Status.paused, Status.closing_gracefully)


def install(worker: Worker, station: Station) -> None:
    """Make a Dask worker one of the fleet."""
    setattr(worker, ATTRIBUTE, station)


def station_of(worker: Worker) -> Station:
    """Give the station of a worker of the fleet."""
    found = getattr(worker, ATTRIBUTE)
    assert isinstance(found, Station)
    return found


def run_stage(order: Order, is_shared: bool) -> Bundle:
    """Run a stage; a Dask task."""
    worker = get_worker()
    key = worker.get_current_task()

    def is_wanted() -> bool:
        task = worker.state.tasks.get(key)
        return task is not None and task.state == "executing" and worker.status in ALIVE

    def tell(what: dict[str, str]) -> None:
        said = {"ticket": order.ticket, **what}
        worker.loop.add_callback(worker.log_event, topic(order.run), said)

    return station_of(worker).perform(order, is_shared, is_wanted, tell)


def call(do: Callable[..., object], arguments: Sequence[object]) -> object:
    """Make a call of a preparation, when nobody measures on this host; a Dask task."""
    worker = get_worker()
    key = worker.get_current_task()

    def is_wanted() -> bool:
        return key in worker.state.tasks and worker.status in ALIVE

    with gate.entered(False, is_wanted, lambda _: None) as inside:
        if not inside:
            raise FleetError("the preparation that requested this part has ended")
        return do(*arguments)


def sees(path: str, dask_worker: Worker) -> bool:
    """Ask whether a worker of the fleet sees a file."""
    return Path(path).exists()


def topic(run: str) -> str:
    """Name the topic on which a run's stages tell what they do."""
    return f"triton-notebooks-{run}"


# What follows runs beside a stage, by `Client.run`; Dask gives its worker by this name.


def about(probe: str, dask_worker: Worker) -> dict[str, object] | None:
    """Ask a worker about itself; None if it is none of the fleet."""
    station: Station | None = getattr(dask_worker, ATTRIBUTE, None)
    return station.about(probe) if station else None


async def at_work(do: Callable[..., object], *arguments: object, dask_worker: Worker) -> object:
    """Have a function of `cargo` work in the worker's outputs folder, in a thread beside it."""
    return await asyncio.to_thread(do, station_of(dask_worker).outputs, *arguments)


async def obstacles(orders: Sequence[Order], dask_worker: Worker) -> dict[str, str]:
    """Ask what stands in the way of stages on a worker's machine, by the names of their jobs."""
    return await asyncio.to_thread(station_of(dask_worker).obstacles, orders)


async def check(order: Order, is_shared: bool, dask_worker: Worker) -> str:
    """Ask why a stage must run on a worker's machine; empty if its result holds there."""
    return await asyncio.to_thread(station_of(dask_worker).check, order, is_shared)
