"""Run the scheduler, to which workers and submitting machines connect."""

import asyncio
from pathlib import Path

from helpers.display import Lines
from helpers.errors import ClusterError
from helpers.pipeline.cluster import access


def serve_scheduler(host: str, port: int, outputs: Path, insecure: bool, say: Lines) -> None:
    """Run a Dask scheduler until Ctrl-C, and print how to join it.

    Connections from other machines use TLS, unless `insecure`, with a key that is written into
    `outputs`. Raises `ClusterError` if the port is in use.
    """
    access.configure()
    is_plain = insecure or access.is_loopback(host)
    key = None if is_plain else access.write_key(outputs / access.KEY_FILE)
    asyncio.run(_serve("tcp" if is_plain else "tls", host, port, key, say))


async def _serve(protocol: str, host: str, port: int, key: Path | None, say: Lines) -> None:
    from distributed import Scheduler

    own = access.Access(f"{protocol}://{host}:{port}", key, insecure=True)
    options = {"security": own.security, "dashboard_address": "127.0.0.1:0"}
    try:
        scheduler = await Scheduler(host=host, port=port, protocol=protocol, **options)
    except (OSError, RuntimeError) as error:
        line = " ".join(str(error).split())
        raise ClusterError(f"the scheduler cannot listen on {host}:{port}: {line}") from error
    async with scheduler:
        say(f"scheduler at {scheduler.address}; press Ctrl-C to stop")
        if key:
            say(f"Copy {key} to every machine. Keep it secret: it lets anyone run code there.")
        option = f" --key {key}" if key else ""
        say(f"On each machine, run: triton-notebooks worker {scheduler.address}{option}")
        await scheduler.finished()
