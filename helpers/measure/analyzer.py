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
import tempfile
import time
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from math import ceil, nan
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from helpers.config import Protocol
from helpers.errors import MeasurementError, ServerError
from helpers.measure.background import exclusive_lock
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
LOST_RECORDS = 12  # see `_read`: a fast model with many inputs loses every second record
FEWEST_REQUESTS = 5  # in a run, for a throughput of its own
SHORTEST_INTERVAL_MS = 100
CLOCK_SECONDS = 0.05  # by which the system's clock may move in a run: an adjustment, not a step
ANSWER_SECONDS = 60  # in which a server responds after a run, on a busy machine
START_SECONDS = 20.0  # in which an open loop has had a response
SEED = 14
SHARED_MEMORY = "/dev/shm"
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
    r"\s+Successful request count: (?P<requests>\d+)\s+Avg request latency: "
    # in microseconds; an ensemble itself has no such parts
    r"(?:.*queue (?P<server_queue_ms>\d+) usec \+ compute input (?P<server_compute_input_ms>\d+) "
    r"usec \+ compute infer (?P<server_compute_infer_ms>\d+) usec "
    r"\+ compute output (?P<server_compute_output_ms>\d+) usec)?",
    re.MULTILINE,
)
SERVER_COMPONENTS = [name for name in LATENCY_COMPONENTS if name.startswith("server")]
TIMES = re.compile(rb'"timestamp":(\d+)|"response_timestamps":\[([\d,]*)\]')


@contextmanager
def input_data(samples: Arrays) -> Iterator[Path]:
    """Write a batch of real samples as perf_analyzer's JSON; it sends them one after the other."""
    rows = [
        {
            name: {"content": {"b64": b64encode(array.tobytes()).decode()}, "shape": array.shape}
            for name, array in zip(samples, sample, strict=True)
        }
        for sample in zip(*samples.values(), strict=True)
    ]
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
    protocol: Protocol = "http"
    rate: float | None = None  # requests per second at random times, in an open loop
    requests: int = 0  # then as many
    flat: bool = False  # whether a request, to Triton one sample, holds a whole batch


def interval_ms(
    request_count: int, runs: int, request_seconds: float, shortest: int = SHORTEST_INTERVAL_MS
) -> int:
    """Return the length of a window (ms), `shortest` at least. `runs` runs then have enough
    requests after the first ones, and each run one more than a throughput needs.
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
    """Return perf_analyzer's command line; its records go to `folder`.

    An open loop is asynchronous, because a thread that waits for a response would be late for the
    next request. It has one thread, because perf_analyzer announces the start without a lock, and
    another thread may miss that.
    """
    size, clients = 1 if point.flat else point.batch_size, point.concurrency
    closed_loop = [
        *("--concurrency-range", f"{clients}:{clients}"),
        *("--measurement-mode", "time_windows", "--measurement-interval", str(point.interval_ms)),
        *("--stability-percentage", "999", "--max-trials", str(WINDOWS)),
    ]
    open_loop = [
        *("--request-intervals", str(folder / "gaps"), "--request-count", str(point.requests)),
        *("--async", "--max-threads", "1"),
    ]
    return [
        str(perf_analyzer()),
        *("-m", point.model, "-v", "-u", url, "-i", point.protocol, "-b", str(size)),
        *("--input-data", str(point.data)),
        *(("--shared-memory", point.shared_memory) if point.shared_memory != "none" else ()),
        *(("--output-shared-memory-size", str(OUTPUT_BYTES)) if point.flat else ()),
        *(open_loop if point.rate else closed_loop),
        *("--verbose-csv", "-f", f"{folder}/out.csv"),
        *("--profile-export-file", f"{folder}/out.json"),
    ]


def run(point: LoadPoint, server: Server) -> Window:
    """Load the server for three windows, or with all requests of an open loop. Return every
    request, the mean latency by component, and the server's counts.

    Remove shared memory of earlier runs before, and of this run after. Raises `ServerError` if
    Triton ended meanwhile, `MeasurementError` if perf_analyzer did not measure.
    """
    failure, attempts, lost = "perf_analyzer did not measure", 0, 0
    while attempts < ATTEMPTS and lost < LOST_RECORDS:
        attempts += 1
        with _own_regions(point), temporary_folder() as folder:
            remove_shared_memory(point.regions)
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
            else:
                failure = "perf_analyzer left no record of its requests"
                attempts, lost = attempts - 1, lost + 1
    raise MeasurementError(f"{failure} ({attempts + lost} attempts)")


def _own_regions(point: LoadPoint) -> AbstractContextManager[None]:
    """Let one run at a time on this host have regions, whose names are the same in every run. Where
    the folder of temporary files is theirs, the measurement has locked it.
    """
    has_none = point.shared_memory == "none"
    if has_none or os.path.samefile(tempfile.gettempdir(), SHARED_MEMORY):
        return nullcontext()
    return exclusive_lock(SHARED_MEMORY)


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
    command = arguments(point, server.inference_url, folder)
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
    not a number, and its JSON writer stops without a message. Such a run is repeated.
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
    columns = {"client_send_ms": "Client Send", "client_recv_ms": "Client Recv"}
    components = {name: float(row[column]) / 1000 for name, column in columns.items()}
    log = (folder / "log").read_text(errors="replace")
    overheads = OVERHEAD.findall(log)
    overhead = float(overheads[-1]) / 100 if overheads else nan
    requests = np.array(sorted(times, key=lambda pair: pair[1]), dtype=np.int64)
    sent = None
    if point.rate:
        if (done := len(requests)) != point.requests:
            raise MeasurementError(f"perf_analyzer completed {done} of {point.requests} requests")
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

    Add the server's components of the mean latency too, summed over the parts of an ensemble; none
    without the statistics of a part. Network is the rest of the mean, and so may be negative.
    """
    report = log.rpartition("  Server: ")[2]
    counted = {match["model"] or "": match for match in COUNTED.finditer(report)}
    spent = [counted.get(name) for name in parts]
    components, models = dict[str, float](), dict[str, float]()
    if all(match and match["server_queue_ms"] for match in spent):
        for column in SERVER_COMPONENTS:
            components[column] = sum(int(match[column]) for match in spent if match) / 1000
        for name, match in zip(parts, spent, strict=True) if len(parts) > 1 else ():
            models[name] = sum(int(match[column]) for column in SERVER_COMPONENTS if match) / 1000
        components |= window.components
        some = window.steady if len(window.requests) > window.concurrency else window
        mean = float(some.sent_latencies_ms.mean())
        components["network_server_send_recv_ms"] = mean - sum(components.values())
    model, graph = counted.get(""), counted.get(parts[-1])
    size = graph and samples * int(graph["samples"]) / max(int(graph["executions"]), 1)
    requests = model and int(model["requests"])
    window = replace(window, components=components, models=models)
    return replace(window, counted=requests, average_batch_size=size)
