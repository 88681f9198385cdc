"""The perf_analyzer command line of a measurement, as a user types it."""

import shlex
from dataclasses import replace
from pathlib import Path

from helpers.config import LoadConfig, OfflineConfig
from helpers.measure import analyzer
from helpers.measure.analyzer import LoadPoint
from helpers.triton import remote

URLS = {"http": "localhost:8000", "grpc": "localhost:8001"}  # Triton's ports by default


def command_line(config: LoadConfig) -> str:
    """Return the command line of the stage's largest measurement, and one in request-rate mode if
    the experiment has `rates`. A measurement has other files, and chooses `--measurement-interval`
    by how long a request takes.
    """
    load = LoadPoint(config.model, Path("inputs.json"), (), flat=config.lookup == "hps")
    load = replace(load, protocol=config.protocol)
    url = URLS[config.protocol]
    if config.server.kind == "remote":
        is_grpc = config.protocol == "grpc"
        url = remote.grpc_address(config.server) if is_grpc else config.server.url
    if isinstance(config, OfflineConfig):
        shared = "none" if config.server.kind == "remote" else config.shared_memory
        load = replace(load, batch_size=max(config.batch_sizes), shared_memory=shared)
        head = f"Batch size {load.batch_size}, 1 client. Other batch sizes change -b."
        return _command(head, load, url)
    load = replace(load, batch_size=config.online_batch_size, concurrency=max(config.concurrency))
    head = f"Concurrency mode, {load.concurrency} clients."
    lines = [_command(f"{head} Other numbers change --concurrency-range.", load, url)]
    if config.rates:
        head = "Request-rate mode. The file `gaps` has the microseconds between two requests."
        lines.append(_command(head, replace(load, rate=1.0, requests=config.request_count), url))
    return "\n\n".join(lines)


def _command(head: str, load: LoadPoint, url: str) -> str:
    _, *options = analyzer.arguments(load, url, Path())
    text = shlex.join(["perf_analyzer", *options])
    return f"# {head}\n" + text.replace(" ./", " ").replace(" --", " \\\n    --")
