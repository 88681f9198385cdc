"""The perf_analyzer command line of a measurement, as a user types it."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

from helpers.config import LoadConfig, OfflineConfig
from helpers.measure import analyzer
from helpers.measure.analyzer import LoadPoint

URL = "localhost:8000"  # Triton's HTTP port by default
HEADS = {  # what a command line is for
    "batch": "# Batch size {}, 1 client. Other batch sizes change -b.",
    "clients": "# Concurrency mode, {} clients. Other numbers change --concurrency-range.",
    "rate": "# Request-rate mode. The file `gaps` has the microseconds between two requests.",
}


def command_line(config: LoadConfig) -> str:
    """Return the command line of the stage's largest measurement, and one in request-rate mode if
    the experiment has `rates`.

    The files in it are examples. A measurement chooses `--measurement-interval` by how long a
    request takes.
    """
    shared = config.shared_memory if isinstance(config, OfflineConfig) else "none"
    load = LoadPoint(
        config.model,
        Path("inputs.json"),
        (),
        shared_memory="none" if config.server.kind == "remote" else shared,
        flat=config.lookup == "hps",
    )
    url = config.server.url or URL
    if isinstance(config, OfflineConfig):
        size = max(config.batch_sizes)
        return _command("batch", size, load, url, batch_size=size)
    size, clients = config.online_batch_size, max(config.concurrency)
    lines = [_command("clients", clients, load, url, batch_size=size, concurrency=clients)]
    if config.rates:
        count = config.request_count
        lines.append(_command("rate", count, load, url, batch_size=size, rate=1.0, requests=count))
    return "\n\n".join(lines)


def _command(head: str, value: int, load: LoadPoint, url: str, **fields: Any) -> str:
    _, *options = analyzer.arguments(replace(load, **fields), url, Path())
    text = shlex.join(["perf_analyzer", *options])
    return f"{HEADS[head].format(value)}\n" + text.replace(" ./", " ").replace(" --", " \\\n    --")
