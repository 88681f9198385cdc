"""The workers of a fleet as a submitter sees them: what they offer, and which are lost."""

import time
import uuid
from asyncio import CancelledError
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from helpers.errors import FleetError
from helpers.fleet.access import Access, silence
from helpers.fleet.software import difference, software
from helpers.store import write_atomic

if TYPE_CHECKING:
    from distributed import Client

ENDED = "The worker ended (killed, out of memory or stopped). Start it and run again."
PROBE = ".fleet-{}"  # a file by which a worker finds that it shares the outputs folder
CUT_OFF = "Lost the connection to the worker. Check its network and run again."


@contextmanager
def joined(access: Access) -> "Iterator[Client]":
    """Reach a scheduler for the time of the block; raise `FleetError`."""
    from distributed import Client

    try:
        client = Client(
            access.address,
            security=access.security,
            timeout=silence(),
            set_as_default=False,
            direct_to_workers=False,
        )
    except (OSError, TimeoutError, RuntimeError) as error:
        line = " ".join(str(error).split()) or "no response"
        raise FleetError(f"no scheduler at {access.address}: {line[:200]}") from error
    try:
        yield client
    finally:
        with suppress(Exception):  # it may be gone
            client.close(timeout=2)


@contextmanager
def probed(outputs: Path) -> Iterator[Path]:
    """Leave a file in a folder for the time of the block, by which others find that they see it."""
    path = write_atomic(outputs / PROBE.format(uuid.uuid4().hex[:8]), "")
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


@dataclass
class WorkerInfo:
    """One worker."""

    address: str
    description: str  # what it is
    targets: tuple[str, ...]  # that it offers
    is_shared: bool  # whether its outputs folder is the submitter's
    difference: str  # what software it has otherwise than we have
    seen: float  # by the scheduler, on its clock
    heard: float  # when that was new, on ours
    lost: str = ""  # why it is
    busy: str = ""  # with what of ours

    @property
    def reason(self) -> str:
        """Return why it is lost, by how long it had been silent."""
        quiet = time.monotonic() - self.heard > silence() / 2
        return CUT_OFF if quiet else ENDED

    def match(self, wanted: Sequence[str]) -> str:
        """Return what it offers of what a target wants; empty if nothing. One is enough."""
        return next((name for name in wanted if name in self.targets), "")


class Workers:
    """Follows the workers of a scheduler."""

    def __init__(self, client: "Client", address: str, probe: Path) -> None:
        self._client, self._address, self._probe = client, address, probe
        self._software = software()
        self._known: dict[str, WorkerInfo] = {}  # by Dask's name of the process
        self._strangers: set[str] = set()

    def __iter__(self) -> Iterator[WorkerInfo]:
        """Iterate over the workers that are not lost."""
        return (each for each in [*self._known.values()] if not each.lost)

    def refresh(self) -> None:
        """Ask the scheduler which workers there are, and new ones what they are; raise `FleetError`
        if the scheduler is gone.
        """
        now, found = time.monotonic(), self._workers()
        for name, info in self._known.items():
            if info.lost:
                continue
            if name not in found:
                info.lost = info.reason
            elif (seen := float(found[name]["last_seen"])) != info.seen:
                info.seen, info.heard = seen, now
        for name in found.keys() - self._known.keys() - self._strangers:
            self._meet(name, found[name])

    def _workers(self) -> dict[str, dict[str, Any]]:
        """List the workers by address and identity: an address may be used again."""
        gone = f"Lost the scheduler at {self._address}. Results so far are kept. "
        gone += "Restart scheduler and workers, then run the same command."
        if self._client.status != "running":
            raise FleetError(gone)
        try:
            asked = self._client.scheduler.identity
            found = self._client.sync(asked, n_workers=-1, callback_timeout=silence())
        except (OSError, TimeoutError, RuntimeError, CancelledError) as error:
            raise FleetError(gone) from error
        return {
            f"{address} {each['id']}": {**each, "address": address}
            for address, each in found["workers"].items()
        }

    def _meet(self, name: str, worker: dict[str, Any]) -> None:
        from helpers.fleet.tasks import about

        address = worker["address"]
        try:
            told = self.ask(address, about, self._probe.name)
        except FleetError:
            return  # the next refresh tries again, or finds it gone
        if told is None:
            self._strangers.add(name)
            return
        self._known[name] = WorkerInfo(
            address,
            description=told["description"],
            targets=tuple(told["targets"]),
            is_shared=told["shared"],
            difference=difference(self._software, told["software"]),
            seen=float(worker["last_seen"]),
            heard=time.monotonic(),
        )

    def ask(self, address: str, question: Callable[..., object], *arguments: object) -> Any:
        """Return a worker's answer, which it gives beside whatever it runs; raise `FleetError`."""
        return ask(self._client, address, question, *arguments)

    def refuse_others(self, wanted: Iterable[Sequence[str]]) -> None:
        """Raise `FleetError` if a worker that offers what is wanted has other software."""
        for names in wanted:
            for info in self:
                if info.difference and (name := info.match(names)):
                    raise FleetError(
                        f"The worker for {name} ({info.description}) has {info.difference}. "
                        "Install the same commit and docker/requirements.lock, and restart it."
                    )

    def why_none(self, wanted: Sequence[str]) -> str:
        """Return why no worker can take what is wanted now."""
        fitting = [each for each in self if each.match(wanted)]
        alike = [each for each in fitting if not each.difference]
        if not fitting:
            return f"no worker offers {' or '.join(wanted)}"
        if not alike:
            return f"the worker has {fitting[0].difference}"
        return f"the worker is running {alike[0].busy}"


def ask(
    client: "Client | None", address: str, question: Callable[..., object], *arguments: object
) -> object:
    """Return a worker's answer, which it gives beside whatever it runs; raise `FleetError`."""
    assert client
    try:
        return client.sync(
            client._run,
            question,
            *arguments,
            workers=[address],
            callback_timeout=max(60.0, silence()),
        )[address]
    except FleetError:
        raise
    except Exception as error:  # of Dask, or what the question raised there
        line = " ".join(str(error).split()) or type(error).__name__
        raise FleetError(f"the worker at {address} does not respond: {line[:200]}") from error
