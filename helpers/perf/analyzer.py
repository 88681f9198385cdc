"""Running perf_analyzer, Triton's own load generator, and reading what it leaves: every request,
and latency by component.

Its stability gate is switched off, because an unstable point would leave no record at all;
`statistics` judges instead.
"""

import base64
import csv
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from helpers.errors import MeasurementError, ServerError
from helpers.models import Arrays
from helpers.triton import process
from helpers.triton.client import Server
from helpers.triton.embedded import last_lines, libraries
from helpers.triton.guard import sweep

WINDOWS = 3  # perf_analyzer reports once it has three
WINDOW_STRETCH = 1.2  # by which it lengthens the interval it is given
WARMUP_REQUESTS = 2
COMPONENTS = {
    "Client Send": "client_send_ms",
    "Network+Server Send/Recv": "network_server_send_recv_ms",
    "Server Queue": "server_queue_ms",
    "Server Compute Input": "server_compute_input_ms",
    "Server Compute Infer": "server_compute_infer_ms",
    "Server Compute Output": "server_compute_output_ms",
    "Client Recv": "client_recv_ms",
}


@dataclass(frozen=True)
class Load:
    """What one run of perf_analyzer saw: start and end of each request (ns, [n, 2]) and mean
    latency by component (ms).
    """

    requests: NDArray[np.int64]
    components: dict[str, float]


@contextmanager
def input_data(samples: Sequence[Arrays]) -> Iterator[Path]:
    """Write real samples, without their batch dimension, as perf_analyzer's JSON; it sends them in
    turn.
    """
    rows = [
        {
            name: {
                "content": {"b64": base64.b64encode(a.tobytes()).decode()},
                "shape": list(a.shape),
            }
            for name, a in s.items()
        }
        for s in samples
    ]
    with tempfile.TemporaryDirectory(prefix="triton-") as folder:
        path = Path(folder) / "inputs.json"
        path.write_text(json.dumps({"data": rows}))
        yield path


def split(batch: Arrays) -> list[Arrays]:
    """Split a batch into its samples."""
    count = len(next(iter(batch.values())))
    return [
        {name: np.ascontiguousarray(array[i]) for name, array in batch.items()}
        for i in range(count)
    ]


def shared_memory_patterns(inputs: Sequence[str], outputs: Sequence[str]) -> list[str]:
    """Patterns of the names that perf_analyzer gives its regions: they are the same in every run on
    a host.
    """
    return [f"{name}_[0-9]*" for name in (*inputs, *outputs)]


def run(
    server: Server,
    model: str,
    *,
    data: Path,
    batch_size: int,
    concurrency: int,
    interval_ms: int,
    shared_memory: str,
    regions: Sequence[str],
) -> Load:
    """Load `model` with `concurrency` clients for three windows of `interval_ms` and return every
    request.

    `regions` are the patterns of `shared_memory_patterns`: what an earlier run left behind is swept
    before, and this run's after. Raises `ServerError` if Triton ended meanwhile, `MeasurementError`
    if perf_analyzer did not measure.
    """
    sweep(list(regions))
    with (
        tempfile.TemporaryDirectory(prefix="triton-") as name,
        (folder := Path(name) / "log").open("wb") as log,
    ):
        libs = Path(name)
        for library in ("libb64.so.0d", "libcudart.so.12"):
            stem = library.partition(".")[0]
            (libs / library).symlink_to(next(libraries().glob(f"{stem}-*")))
        command = [
            str(Path(sys.executable).parent / "perf_analyzer"),
            *("-m", model, "-u", server.url, "-i", "http", "-b", str(batch_size)),
            *("--concurrency-range", f"{concurrency}:{concurrency}", "--input-data", str(data)),
            *("--shared-memory", shared_memory) * (shared_memory != "none"),
            *("--measurement-mode", "time_windows", "--measurement-interval", str(interval_ms)),
            *("--stability-percentage", "999", "--max-trials", str(WINDOWS)),
            *("--warmup-request-count", str(WARMUP_REQUESTS * concurrency)),
            *(
                "--verbose-csv",
                "-f",
                f"{name}/out.csv",
                "--profile-export-file",
                f"{name}/out.json",
            ),
        ]
        env = {**os.environ, "LD_LIBRARY_PATH": str(libs)}
        started = process.start(command, log=log, env=env, sweep=regions)
        try:
            code = started.wait()
        finally:
            process.stop(started)
        if not server.is_alive():
            raise ServerError(f"Triton ended while it was measured: {last_lines(server.log)}")
        if code:
            what = (
                f"was killed by signal {code - 128}"
                if code > 128
                else f"ended with exit code {code}"
            )
            raise MeasurementError(
                f"perf_analyzer {what}: {last_lines(folder, 2) or 'it said nothing'}"
            )
        return _read(Path(name))


def _read(folder: Path) -> Load:
    experiment = json.loads((folder / "out.json").read_text())["experiments"][0]
    times = [
        (request["timestamp"], request["response_timestamps"][-1])
        for request in experiment["requests"]
        if request["response_timestamps"]
    ]
    if not times:
        raise MeasurementError(
            "perf_analyzer saw no request through: the interval is shorter than one takes"
        )
    with (folder / "out.csv").open() as file:
        row = next(csv.DictReader(file))
    components = {ours: float(row[theirs]) / 1000 for theirs, ours in COMPONENTS.items()}
    return Load(np.array(sorted(times, key=lambda pair: pair[1]), dtype=np.int64), components)
