"""The two scenarios: offline with the bare runtime interleaved, and online over a sweep of
clients.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from helpers import formats, models
from helpers.artefacts import open_dataset, require, threads
from helpers.errors import MeasurementError
from helpers.formats import Session
from helpers.models import Arrays
from helpers.params import Config
from helpers.perf import analyzer, host, statistics
from helpers.perf.statistics import Window
from helpers.triton.client import Server

DISTINCT_ROWS = 64  # different real samples that are sent in turn
REQUESTS_A_CLIENT = 8  # at least, online: fewer show more of the start than of the steady state
SHORTEST_INTERVAL_MS = 400
BARE_SECONDS = 0.8  # a bare run takes at least this long and three calls


@dataclass(frozen=True)
class Measurement:
    """The rows of a scenario, and start and end of every request behind them (ns)."""

    rows: list[dict[str, Any]]
    samples: dict[str, Any]
    distinct_rows: int
    others_before: float  # load from others just before, in cores


def _samples(config: Config) -> Arrays:
    parts = list(open_dataset(config).batches(DISTINCT_ROWS, DISTINCT_ROWS))
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


@contextmanager
def _ready(config: Config, samples: Arrays) -> Iterator[tuple[Path, list[str], float]]:
    """Wait for a quiet machine and give the input file, the names of shared-memory regions, and the
    load that remained.
    """
    outputs = [tensor.name for tensor in models.get(config.model).outputs(config)]
    regions = analyzer.shared_memory_patterns(list(samples), outputs)
    with host.alone(), analyzer.input_data(analyzer.split(samples)) as data:
        yield data, regions, host.wait_until_quiet()


def take(samples: Arrays, start: int, count: int) -> Arrays:
    """Take `count` rows from `start` on, beginning again after the last."""
    total = len(next(iter(samples.values())))
    chosen = np.arange(start, start + count) % total
    return {name: np.ascontiguousarray(array[chosen]) for name, array in samples.items()}


def run_bare(session: Session, batches: list[Arrays], seconds: float) -> float:
    """Call the session without a server, over different batches in turn; return calls per
    second.
    """
    calls, started = 0, time.perf_counter()
    while calls < 3 or time.perf_counter() - started < seconds:
        session.run(batches[calls % len(batches)])
        calls += 1
    return calls / (time.perf_counter() - started)


def bare_session(config: Config) -> Session:
    """Load the deployed artefact in this process, with the server's threads and settings."""
    fmt = formats.get(config.format)
    artefact = require(config, "deploy")
    path = artefact.folder / config.model / "1" / fmt.FILE
    return fmt.load(path, threads(config, "offline"), config.device)


def interval_ms(request_count: int, runs: int, request_seconds: float) -> int:
    """Length of a window such that `runs` runs of three windows see `request_count` requests, with
    one to spare in each.
    """
    per_window = ceil(request_count / runs / analyzer.WINDOWS)
    wanted = (per_window + 1 / analyzer.WINDOWS) * request_seconds * 1000 / analyzer.WINDOW_STRETCH
    return max(SHORTEST_INTERVAL_MS, ceil(wanted * 1.1))


def measure_offline(config: Config, server: Server) -> Measurement:
    """Measure each batch size at concurrency 1, bare and served runs alternating: bare, served,
    bare, ..., bare.

    The row's spread is between the served runs; `served_bare_ratio` is the median of the ratios of
    each served run to its neighbours. A point that cannot be measured is a row with the reason;
    raises `ServerError` if Triton ends.
    """
    samples, session = _samples(config), bare_session(config)
    rows, raw = [], {}
    with _ready(config, samples) as (data, regions, before):
        for size in config.batch_sizes:
            batches = [take(samples, start, size) for start in range(0, DISTINCT_ROWS, size)]
            run_bare(session, batches, 0)  # the first calls of a new shape are slow
            request_seconds = 1 / run_bare(session, batches, 0)
            interval = interval_ms(config.request_count, config.pairs, request_seconds)
            bare = [size * run_bare(session, batches, BARE_SECONDS)]
            parts, loads = [], []
            try:
                for _ in range(config.pairs):
                    with host.watched() as load:
                        loads.append(
                            analyzer.run(
                                server,
                                config.model,
                                data=data,
                                batch_size=size,
                                concurrency=1,
                                interval_ms=interval,
                                shared_memory=config.shared_memory,
                                regions=regions,
                            )
                        )
                    parts.append(Window(loads[-1].requests, size, 1, load.others_cores))
                    bare.append(size * run_bare(session, batches, BARE_SECONDS))
            except MeasurementError as error:
                rows.append(failed_row(size, 1, error))
                continue
            row = statistics.measure_row(parts, config.request_count) | _components(loads)
            pairs = statistics.ratios(bare, [part.throughput for part in parts])
            row["bare_throughput"] = float(np.median(bare))
            row["served_bare_ratio"] = float(np.median(pairs))
            row["served_bare_min"], row["served_bare_max"] = min(pairs), max(pairs)
            rows.append(row)
            raw[f"batch_{size}"] = [part.requests for part in parts]
            raw[f"batch_{size}_bare"] = [np.array(bare)]
            print(
                f"batch {size}: {row['throughput']:.1f} inferences/s, "
                f"{row['served_bare_ratio']:.3f} of bare, {row['verdict']}"
            )
    return Measurement(rows, raw, min(DISTINCT_ROWS, len(next(iter(samples.values())))), before)


def measure_online(config: Config, server: Server) -> Measurement:
    """Measure each number of clients over HTTP, each with one request of `online_batch_size`
    samples under way.
    """
    samples = _samples(config)
    rows, raw = [], {}
    with _ready(config, samples) as (data, regions, before):
        one = take(samples, 0, config.online_batch_size)
        server.infer(config.model, one)
        started = time.perf_counter()
        for _ in range(3):
            server.infer(config.model, one)
        request_seconds = (time.perf_counter() - started) / 3
        for clients in config.concurrency:
            interval = interval_ms(
                max(config.request_count, clients * REQUESTS_A_CLIENT), 1, request_seconds
            )
            try:
                with host.watched() as load:
                    seen = analyzer.run(
                        server,
                        config.model,
                        data=data,
                        batch_size=config.online_batch_size,
                        concurrency=clients,
                        interval_ms=interval,
                        shared_memory="none",
                        regions=regions,
                    )
            except MeasurementError as error:
                rows.append(failed_row(config.online_batch_size, clients, error))
                continue
            whole = Window(seen.requests, config.online_batch_size, clients, load.others_cores)
            row = statistics.measure_row([whole], config.request_count) | _components([seen])
            rows.append(row)
            raw[f"clients_{clients}"] = [seen.requests]
            request_seconds = row["avg_latency_ms"] / 1000 / clients
            print(
                f"{clients} clients: {row['throughput']:.1f} inferences/s, "
                f"p99 {row['p99_latency_ms']:.0f} ms, {row['verdict']}"
            )
    return Measurement(rows, raw, min(DISTINCT_ROWS, len(next(iter(samples.values())))), before)


def _components(loads: list[analyzer.Load]) -> dict[str, float]:
    """Average the components of several runs, weighted by their requests."""
    weights = [len(load.requests) for load in loads]
    return {
        name: float(np.average([load.components[name] for load in loads], weights=weights))
        for name in analyzer.COMPONENTS.values()
    }


def failed_row(batch_size: int, concurrency: int, error: Exception) -> dict[str, Any]:
    """Keep the place of a point that was not measured, with the reason."""
    return {
        "batch_size": batch_size,
        "concurrency": concurrency,
        "verdict": "failed",
        "reason": str(error),
    }
