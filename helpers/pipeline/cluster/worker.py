"""A worker: it joins a scheduler, offers what its machine is, and joins again when cut off."""

import asyncio
import tempfile
from collections.abc import Sequence

from helpers.display import Lines
from helpers.pipeline.cluster import capabilities
from helpers.pipeline.cluster.access import Access, is_loopback, worker_timeout

AGAIN_SECONDS = 2.0  # between two attempts to join


def work(access: Access, targets: Sequence[str], say: Lines) -> None:
    """Offer targets, by default all that this machine can run, to a scheduler, and run what it is
    sent in the outputs folder, until Ctrl-C.

    Raises `ParameterError` for an address that cannot be joined like this.
    """
    _ = access.security  # an error at once
    targets = targets or capabilities.targets()
    machine = capabilities.description()
    say(f"targets offered: {', '.join(targets) or 'none'}; machine: {machine}")
    while True:
        asyncio.run(_work(access, capabilities.resources(targets), say))
        say(f"lost the connection to {access.address}; reconnecting")


async def _work(access: Access, resources: dict[str, float], say: Lines) -> None:
    """Run a worker until the scheduler is lost; closing it ends what it runs."""
    from distributed import Worker
    from distributed.utils import get_ip

    address = access.address
    with tempfile.TemporaryDirectory(prefix="triton-dask-") as scratch:
        told = False
        while True:
            worker = Worker(
                address,
                host="127.0.0.1" if is_loopback(access.host) else get_ip(access.host),
                nthreads=1,
                memory_limit=0,
                resources=resources,
                security=access.security,
                dashboard_address="127.0.0.1:0",
                local_directory=scratch,
            )
            try:
                await asyncio.wait_for(worker.start(), worker_timeout())
                break
            except (OSError, TimeoutError, RuntimeError) as error:
                await worker.close()
                if not told:
                    reason = " ".join(str(error.__cause__ or error).split()) or "no response"
                    say(f"waiting for a scheduler at {address}: {reason[:200]}")
                told = True
                await asyncio.sleep(AGAIN_SECONDS)
        say(f"joined {address}; press Ctrl-C to stop")
        try:
            await worker.finished()
        finally:
            await worker.close()
