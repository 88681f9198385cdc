"""Run perf_analyzer, Triton's own load generator, and read what it records.

Its stability check is switched off, because an unstable point would leave no record at all.
`statistics` judges instead.
"""

import csv
import json
import mmap
import os
import re
import subprocess
import time
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from math import ceil, nan
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from helpers.errors import MeasurementError, ServerError
from helpers.measure.rows import Window
from helpers.models import Arrays
from helpers.results import LATENCY_COMPONENTS
from helpers.store import has_room, temporary_folder
from helpers.triton import (
    Server,
    exit_reason,
    last_lines,
    libraries,
    perf_analyzer,
    remove_shared_memory,
    supervised,
)

WINDOWS = 3  # perf_analyzer reports once it has three
WINDOW_STRETCH = 1.2  # by which it lengthens its measurement interval
ATTEMPTS = 4
FEWEST_REQUESTS = 5  # in a run, for a throughput of its own
SHORTEST_INTERVAL_MS = 100
CLOCK_SECONDS = 0.05  # by which the system's clock may move in a run: an adjustment, not a step
ANSWER_SECONDS = 60  # in which a server responds after a run, on a busy machine
START_SECONDS = 20.0  # in which an open loop has had a response
SEED = 14
OUTPUT_BYTES = 524288  # of a response whose length Triton does not know; NVIDIA's: 131,072 logits
# it wants two requests in each window; with an empty one a point is unstable at any percentage, and
# on a machine with too few cores it may find no statistics of the model that it loads
TOO_SHORT = re.compile(
    "only one request|larger time window|stable measurement|find the requested model version"
)
NO_ACCESS = ". If the server runs as another user, set shared_memory to none."
OVERHEAD = re.compile(r"Avg client overhead: ([\d.]+)%")
# What Triton counted of a model, at the end of the log: first of the one that requests name
COUNTED = re.compile(
    r"(?:^ *(?P<model>\S+), version: \S+)?\s+Inference count: (?P<samples>\d+)"
    r"\s+Execution count: (?P<executions>\d+)(?:\s+Cache.*)*"
    r"\s+Successful request count: (?P<requests>\d+)\s+Avg request latency: (?P<spent>.*)",
    re.MULTILINE,
)
SERVER_COMPONENTS = [name for name in LATENCY_COMPONENTS if name.startswith("server")]
SPENT = re.compile(  # in microseconds
    r"queue (?P<server_queue_ms>\d+) usec \+ compute input (?P<server_compute_input_ms>\d+) usec "
    r"\+ compute infer (?P<server_compute_infer_ms>\d+) usec "
    r"\+ compute output (?P<server_compute_output_ms>\d+) usec"
)
TIMES = re.compile(rb'"timestamp":(\d+)|"response_timestamps":\[([\d,]*)\]')


@contextmanager
def input_data(samples: Arrays) -> Iterator[Path]:
    """Write a batch of real samples as perf_analyzer's JSON; it sends them one after the other."""
    columns = {
        name: [
            {"content": {"b64": b64encode(row.tobytes()).decode()}, "shape": row.shape}
            for row in array
        ]
        for name, array in samples.items()
    }
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    with temporary_folder() as folder:
        path = folder / "inputs.json"
        path.write_text(json.dumps({"data": rows}))
        yield path


def shared_memory_patterns(inputs: Sequence[str], outputs: Sequence[str]) -> list[str]:
    """Return patterns of the names that perf_analyzer gives its regions, the same in every run on a
    host. The name of an output has a number only if the output is fixed to one of several.
    """
    return [*(f"{name}_[0-9]*" for name in (*inputs, *outputs)), *outputs]


@dataclass(frozen=True)
class LoadPoint:
    """One load of a sweep: the model, the data and the number of clients."""

    model: str
    data: Path
    regions: Sequence[str]  # from `shared_memory_patterns`
    batch_size: int = 1
    concurrency: int = 1
    parts: Sequence[str] = ("",)  # of an ensemble, in order; the last is the graph
    interval_ms: int = 1000  # the length of a window
    shared_memory: str = "none"
    rate: float | None = None  # requests per second at random times, in an open loop
    requests: int = 0  # then as many
    flat: bool = False  # whether a request, to Triton one sample, holds a whole batch


def interval_ms(
    request_count: int,
    runs: int,
    request_seconds: float,
    shortest: int = SHORTEST_INTERVAL_MS,
) -> int:
    """Return the length of a window (ms), `shortest` at least. `runs` runs then have
    `request_count` requests after the first ones, and each run has one more than a throughput
    needs.
    """
    per_run = max(ceil(request_count / runs), FEWEST_REQUESTS) + 1
    needed_ms = (ceil(per_run / WINDOWS) + 1 / WINDOWS) * request_seconds * 1000
    return max(shortest, ceil(1.1 * needed_ms / WINDOW_STRETCH))


def gaps_us(point: LoadPoint) -> NDArray[np.int64]:
    """Return the microseconds before each request of an open loop. They are exponential, so that
    the times are a Poisson process, and with one seed the same at every rate but for the scale.
    """
    assert point.rate
    gaps = np.random.default_rng(SEED).exponential(1e6 / point.rate, point.requests)
    return np.maximum(gaps.round().astype(np.int64), 1)


def arguments(point: LoadPoint, url: str, folder: Path) -> list[str]:
    """Return perf_analyzer's command line; its records go to `folder`."""
    size = 1 if point.flat else point.batch_size
    return [
        str(perf_analyzer()),
        *("-m", point.model, "-v", "-u", url, "-i", "http", "-b", str(size)),
        *("--input-data", str(point.data)),
        *(("--shared-memory", point.shared_memory) if point.shared_memory != "none" else ()),
        *(("--output-shared-memory-size", str(OUTPUT_BYTES)) if point.flat else ()),
        *(_open_loop(point, folder) if point.rate else _closed_loop(point)),
        *("--verbose-csv", "-f", f"{folder}/out.csv"),
        *("--profile-export-file", f"{folder}/out.json"),
    ]


def _closed_loop(point: LoadPoint) -> list[str]:
    return [
        *("--concurrency-range", f"{point.concurrency}:{point.concurrency}"),
        *("--measurement-mode", "time_windows", "--measurement-interval", str(point.interval_ms)),
        *("--stability-percentage", "999", "--max-trials", str(WINDOWS)),
    ]


def _open_loop(point: LoadPoint, folder: Path) -> list[str]:
    """Return the options of request-rate mode. It is asynchronous, because a thread that waits for
    a response would be late for the next request. It has one thread, because perf_analyzer
    announces the start without a lock, and another thread may miss that.
    """
    every = ("--request-intervals", str(folder / "gaps"), "--request-count", str(point.requests))
    return [*every, "--async", "--max-threads", "1"]


def run(point: LoadPoint, server: Server) -> Window:
    """Load the server for three windows, or with all requests of an open loop. Return every
    request, the mean latency by component, and the server's counts.

    Remove shared memory of earlier runs before, and of this run after. Raises `ServerError` if
    Triton ended meanwhile, `MeasurementError` if perf_analyzer did not measure.
    """
    failure = "perf_analyzer left no record of its requests"
    for _ in range(ATTEMPTS):
        remove_shared_memory(point.regions)
        with temporary_folder() as folder:
            clock = time.time() - time.monotonic()
            code = _perform(point, server, folder)
            was_set = abs(time.time() - time.monotonic() - clock) > CLOCK_SECONDS
            if not server.is_live(ANSWER_SECONDS):
                did = "ended" if server.end() else f"did not answer for {ANSWER_SECONDS} s"
                raise ServerError(f"Triton {did} during the measurement: {server.exit_report()}")
            if code is None:  # it never began
                continue
            if code:
                message = last_lines(folder / "log", 2)
                if not TOO_SHORT.search(message):
                    advice = NO_ACCESS if "shared memory" in message else ""
                    raise MeasurementError(f"perf_analyzer {exit_reason(code)}: {message}{advice}")
                point = replace(point, interval_ms=2 * point.interval_ms)
            elif was_set:
                failure = "the system clock was set during the measurement"
            elif window := _read(folder, point):
                return window
            elif not has_room(folder):
                raise OSError("the disk has no space for perf_analyzer's record of requests")
    raise MeasurementError(f"{failure} ({ATTEMPTS} attempts)")


def _perform(point: LoadPoint, server: Server, folder: Path) -> int | None:
    """Run perf_analyzer to its end; return its exit code, or None if it does not begin."""
    for library in ("libb64.so.0d", "libcudart.so.12"):
        stem = library.partition(".")[0]
        (folder / library).symlink_to(next(libraries().glob(f"{stem}-*")))
    paths = ":".join(filter(None, (str(folder), os.environ.get("LD_LIBRARY_PATH"))))
    # libcurl takes a proxy from the environment, even for 127.0.0.1
    env = {**os.environ, "LD_LIBRARY_PATH": paths, "no_proxy": "*", "NO_PROXY": "*"}
    if point.rate:
        (folder / "gaps").write_text("".join(f"{gap}\n" for gap in gaps_us(point)))
    command = arguments(point, server.url, folder)
    before = server.statistics(point.model)["inference_count"] if point.rate else 0
    with (
        (folder / "log").open("wb") as log,
        supervised(command, log=log, env=env, shm_patterns=point.regions) as analyzer,
    ):
        if point.rate:
            with suppress(subprocess.TimeoutExpired):
                return analyzer.wait(START_SECONDS + gaps_us(point)[0] / 1e6)
            if server.is_live() and server.statistics(point.model)["inference_count"] == before:
                return None
        return analyzer.wait()


def _read(folder: Path, point: LoadPoint) -> Window | None:
    """Read the record of a run; return None if its list of requests is cut off or empty.

    perf_analyzer records every tensor next to the times: over HTTP all values of all inputs (3 MB
    per request for an image). The file is therefore searched for times, not parsed.

    With shared memory it writes arbitrary bytes as values. Once in thousands of requests they are
    not a number, and its JSON writer stops without a message. The times are not affected, so the
    run is repeated.
    """
    path = folder / "out.json"
    if not path.exists() or not path.stat().st_size:
        return None
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        if text[-1:] != b"}":
            return None
        records = [match.groups() for match in TIMES.finditer(text)]
    starts = [int(start) for start, _ in records if start]
    ends = [ends.split(b",") for start, ends in records if not start]
    times = [(s, int(e[-1])) for s, e in zip(starts, ends, strict=True) if e[-1]]
    if not times:
        raise MeasurementError("perf_analyzer completed no request: its windows are too short")
    with (folder / "out.csv").open() as csv_file:
        row = next(csv.DictReader(csv_file))
    # its client's parts, in microseconds; of an ensemble it leaves the queue of the parts out
    components = {
        "client_send_ms": float(row["Client Send"]) / 1000,
        "client_recv_ms": float(row["Client Recv"]) / 1000,
    }
    log = (folder / "log").read_text(errors="replace")
    overheads = OVERHEAD.findall(log)
    overhead = float(overheads[-1]) / 100 if overheads else nan
    requests = np.array(sorted(times, key=lambda pair: pair[1]), dtype=np.int64)
    sent = None
    if point.rate:
        if len(requests) != point.requests:
            raise MeasurementError(
                f"perf_analyzer completed {len(requests)} of {point.requests} requests"
            )
        due = np.cumsum(gaps_us(point) * 1000)
        ranks = np.argsort(np.argsort(requests[:, 0], kind="stable"))  # in the order of sending
        sent = requests[:, 0]
        due = due[ranks] + (sent - due[ranks]).min()  # the soonest was sent when it was due
        requests = np.stack([due, requests[:, 1]], axis=1)
    size, clients = point.batch_size, point.concurrency
    window = Window(requests, size, clients, sent, components, overhead)
    return _served(window, log, point.parts, size if point.flat else 1)


def _served(window: Window, log: str, parts: Sequence[str], samples: int = 1) -> Window:
    """Add Triton's counts of the windows, as perf_analyzer read them: requests and samples per
    execution. A sample that Triton counts stands for `samples`.

    Add the server's components of the mean latency too, summed over the parts of an ensemble.
    Network is the rest of the mean latency, and so may be negative. Without the statistics of a
    part there are no components: they are never attributed to another.
    """
    report = log.rpartition("  Server: ")[2]
    counted = {match["model"] or "": match for match in COUNTED.finditer(report)}
    spent = [SPENT.search(counted[name]["spent"]) if name in counted else None for name in parts]
    components: dict[str, float] = {}
    if all(spent):
        for column in SERVER_COMPONENTS:
            components[column] = sum(int(match[column]) for match in spent if match) / 1000
        components |= window.components
        some = window.steady if len(window.requests) > window.concurrency else window
        mean = float(some.sent_latencies_ms.mean())
        components["network_server_send_recv_ms"] = mean - sum(components.values())
    graph = counted.get(parts[-1])
    return replace(
        window,
        components=components,
        counted=int(counted[""]["requests"]) if "" in counted else None,
        average_batch_size=samples * int(graph["samples"]) / max(int(graph["executions"]), 1)
        if graph
        else None,
    )
