"""Run a worker: it joins a scheduler, offers targets, and joins again after a lost connection."""

import asyncio
import tempfile
from collections.abc import Sequence

from helpers.display import Lines
from helpers.pipeline.cluster import capabilities
from helpers.pipeline.cluster.access import Access, is_loopback, worker_timeout

AGAIN_SECONDS = 2.0  # between two attempts to join


def work(access: Access, targets: Sequence[str], say: Lines) -> None:
    """Offer targets to a scheduler, and run its stages in the outputs folder, until Ctrl-C.

    The targets are by default all that this machine can run. Raises `ParameterError` for an invalid
    address or key.
    """
    _ = access.security  # raises before the first connection
    targets = targets or capabilities.targets()
    say(f"targets offered: {', '.join(targets) or 'none'}; machine: {capabilities.description()}")
    while True:
        asyncio.run(_work(access, capabilities.resources(targets), say))
        say(f"lost the connection to {access.address}; reconnecting")


async def _work(access: Access, resources: dict[str, float], say: Lines) -> None:
    """Run a worker until the scheduler is lost; closing it ends its stage."""
    from distributed import Worker
    from distributed.utils import get_ip

    address, is_reported = access.address, False
    with tempfile.TemporaryDirectory(prefix="triton-dask-") as scratch:
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
                if not is_reported:
                    reason = " ".join(str(error.__cause__ or error).split()) or "no response"
                    say(f"waiting for a scheduler at {address}: {reason[:200]}")
                is_reported = True
                await asyncio.sleep(AGAIN_SECONDS)
        say(f"joined {address}; press Ctrl-C to stop")
        try:
            await worker.finished()
        finally:
            await worker.close()
