"""The workers of a cluster as a submitter sees them: what they offer, and which are lost."""

import time
import uuid
from asyncio import CancelledError
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from helpers.errors import ClusterError
from helpers.pipeline.cluster.access import Access, worker_timeout
from helpers.pipeline.cluster.capabilities import WORKER_RESOURCE, description, offered
from helpers.pipeline.cluster.software import difference, software
from helpers.store import outputs, write_atomic

if TYPE_CHECKING:
    from distributed import Client

ENDED = "The worker ended (killed, out of memory or stopped). Start it and run again."
CUT_OFF = "Lost the connection to the worker. Check its network and run again."
GONE = (
    "Lost the scheduler at {}. Results so far are kept. "
    "Restart scheduler and workers, then run the same command."
)
PROBE = ".cluster-{}"  # a file by which a worker finds that it shares the outputs folder
ANSWER_SECONDS = 60.0  # at least, for an answer that a stage needs


@contextmanager
def joined(access: Access, outputs: Path) -> "Iterator[Workers]":
    """Connect to a scheduler for the block; raise `ClusterError` if it cannot be reached.

    A file in `outputs` lets workers find whether they see the same folder.
    """
    security = access.security
    from distributed import Client

    options = {"set_as_default": False, "direct_to_workers": False}
    try:
        client = Client(access.address, security=security, timeout=worker_timeout(), **options)
    except (OSError, TimeoutError, RuntimeError) as error:
        line = " ".join(str(error).split()) or "no response"
        raise ClusterError(f"no scheduler at {access.address}: {line[:200]}") from error
    probe = outputs / PROBE.format(uuid.uuid4().hex[:8])
    try:
        write_atomic(probe, "")
        workers = Workers(client, access.address, probe)
        workers.refresh()
        yield workers
    finally:
        probe.unlink(missing_ok=True)
        with suppress(Exception):  # it may be gone
            client.close(timeout=2)


@dataclass
class WorkerInfo:
    """One worker."""

    address: str
    description: str  # its processor, memory and GPU
    targets: tuple[str, ...]  # that it offers
    is_shared: bool  # whether its outputs folder is the submitter's
    difference: str  # between its software and ours
    seen: float  # by the scheduler, on its clock
    heard: float  # when that was new, on ours
    lost: str = ""  # why it is
    busy: str = ""  # with which group of ours

    @property
    def is_silent(self) -> bool:
        """Return whether the scheduler has not heard of it for a while."""
        return time.monotonic() - self.heard > worker_timeout() / 2

    @property
    def reason(self) -> str:
        """Return why it is lost, by how long it had been silent."""
        return CUT_OFF if self.is_silent else ENDED

    def match(self, wanted: Sequence[str]) -> str:
        """Return what it offers of what a target wants; empty if nothing. One is enough."""
        return next((name for name in wanted if name in self.targets), "")


class Workers:
    """Follows the workers of a scheduler."""

    def __init__(self, client: "Client", address: str, probe: Path) -> None:
        self.client, self.probe, self._software = client, probe, software()
        self._gone = GONE.format(address)
        self._known: dict[str, WorkerInfo] = {}  # by Dask's name of the process

    def __iter__(self) -> Iterator[WorkerInfo]:
        """Iterate over the workers that are not lost."""
        return (worker for worker in [*self._known.values()] if not worker.lost)

    @property
    def addresses(self) -> list[str]:
        """Return the addresses of the workers that are not lost."""
        return [worker.address for worker in self]

    def refresh(self) -> None:
        """Update the list of workers from the scheduler; raise `ClusterError` if it is gone."""
        now, present = time.monotonic(), self._present()
        for name, worker in self._known.items():
            if worker.lost:
                continue
            if name not in present:
                worker.lost = worker.reason
            elif (seen := float(present[name]["last_seen"])) != worker.seen:
                worker.seen, worker.heard = seen, now
        for name in present.keys() - self._known.keys():
            with suppress(ClusterError):  # the next refresh tries again, or finds it gone
                self._known[name] = self._meet(present[name])

    def _present(self) -> dict[str, dict[str, Any]]:
        """Return our workers by address and identity: an address may be used again."""
        if self.client.status != "running":
            raise ClusterError(self._gone)
        try:
            identity = self.client.scheduler.identity
            answer = self.client.sync(identity, n_workers=-1, callback_timeout=worker_timeout())
        except (OSError, TimeoutError, RuntimeError, CancelledError) as error:
            raise ClusterError(self._gone) from error
        return {
            f"{address} {worker['id']}": {**worker, "address": address}
            for address, worker in answer["workers"].items()
            if WORKER_RESOURCE in worker["resources"]
        }

    def _meet(self, worker: Mapping[str, Any]) -> WorkerInfo:
        answer = ask(self.client, worker["address"], about, self.probe.name)
        return WorkerInfo(
            worker["address"],
            targets=offered(worker["resources"]),
            difference=difference(self._software, answer.pop("software")),
            seen=float(worker["last_seen"]),
            heard=time.monotonic(),
            **answer,
        )

    def refuse_others(self, wanted: Iterable[Sequence[str]]) -> None:
        """Raise `ClusterError` if a worker that offers what is wanted has other software."""
        how = "Install the same commit and docker/requirements.lock, and restart it."
        for names, worker in product(wanted, self):
            if worker.difference and (name := worker.match(names)):
                other = f"({worker.description}) has {worker.difference}"
                raise ClusterError(f"The worker for {name} {other}. {how}")

    def why_none(self, wanted: Sequence[str]) -> str:
        """Return why no worker can take what is wanted now."""
        fitting = [worker for worker in self if worker.match(wanted)]
        if not fitting:
            return f"no worker offers {' or '.join(wanted)}"
        worker = min(fitting, key=lambda one: bool(one.difference))
        state = f"has {worker.difference}" if worker.difference else f"is running {worker.busy}"
        return f"the worker {state}"


def about(probe: str) -> dict[str, object]:
    """Return the description and software of this worker, and whether it sees the file `probe`."""
    is_shared = (outputs() / probe).exists()
    return {"description": description(), "software": software(), "is_shared": is_shared}


def ask(client: "Client", address: str, do: Callable[..., object], *arguments: object) -> Any:
    """Call a function on a worker beside whatever it runs; raise `ClusterError` if that fails."""
    limit = max(ANSWER_SECONDS, worker_timeout())
    to = {"workers": [address], "callback_timeout": limit}
    try:
        return client.sync(client._run, do, *arguments, **to)[address]
    except ClusterError:
        raise
    except Exception as error:  # of Dask, or what the function raised there
        line = " ".join(str(error).split()) or type(error).__name__
        raise ClusterError(f"the worker at {address} does not respond: {line[:200]}") from error


def ask_all(
    client: "Client", addresses: Sequence[str], do: Callable[..., object], *arguments: object
) -> dict[str, Any]:
    """Call a function on several workers at once, and return their answers by address.

    Workers that fail are left out; if one is silent, there is no answer.
    """
    answers: dict[str, Any] = {}
    options = {"on_error": "ignore", "callback_timeout": worker_timeout()}
    with suppress(Exception):
        answers = client.sync(client._run, do, *arguments, workers=[*addresses], **options)
    return answers
