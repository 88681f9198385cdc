"""Time starts of the server, with warm-up and without: until it is ready, and first requests."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from helpers.config import DeployConfig, Value, artifact_folder, results_folder
from helpers.inference import open_dataset, request
from helpers.measure import background
from helpers.measure.interleave import interleave
from helpers.measure.statistics import geometric_mean, log_interval
from helpers.results import Estimate
from helpers.store import Artifact, link_or_copy
from helpers.triton import serve

COLUMNS = ("seconds until ready", "first request (ms)", "second request (ms)")


def time_starts(config: DeployConfig, repository: Artifact) -> list[dict[str, Value]]:
    """Start the server `cold_starts` times with the repository's warm-up and as often without, in
    turn. Return one row for each: the geometric means with their 95% CIs. Files are in the page
    cache. A remote server is not started, so there are none of it. Raises `ServerError`.
    """
    if not config.cold_starts or config.server.kind == "remote":
        return []
    with background.exclusive_lock(), _without_warmup(config, repository) as bare:
        variants = {"with": repository, "without": bare} if bare else {"none": repository}
        calls = [partial(_start, config, one) for one in variants.values()]
        background.wait_until_quiet()
        runs = interleave(calls, config.cold_starts)
    return [_row(name, starts) for name, starts in zip(variants, runs, strict=True)]


def _start(config: DeployConfig, repository: Artifact) -> tuple[float, float, float]:
    """Return the seconds until the server is ready, and the milliseconds of two requests."""
    one = request(config, next(iter(open_dataset(config).batches(1, limit=1))))
    log, clocks = results_folder(config) / "cold_start_server.log", [time.perf_counter()]
    with serve(config, repository, "online", log=log) as server:
        server.ready()
        clocks.append(time.perf_counter())
        for _ in range(2):
            server.infer(config.model, one)
            clocks.append(time.perf_counter())
    start, ready, first, second = clocks
    return ready - start, 1000 * (first - ready), 1000 * (second - first)


def _row(name: str, starts: Sequence[tuple[float, float, float]]) -> dict[str, Value]:
    row: dict[str, Value] = {"warm-up": name, "starts": len(starts)}
    for column, figures in zip(COLUMNS, zip(*starts, strict=True), strict=True):
        ends = log_interval(figures)
        row[column] = Estimate.of(geometric_mean(figures), ends and (ends.low, ends.high)).shown()
    return row


@contextmanager
def _without_warmup(config: DeployConfig, repository: Artifact) -> Iterator[Artifact | None]:
    """Yield a copy of the repository without warm-up; None if it has none."""
    folder = artifact_folder(config, "deploy").parent
    with TemporaryDirectory(dir=folder, prefix=".cold-starts.") as name:
        found = False
        for source in sorted(repository.folder.rglob("*")):  # a folder before what it has
            target = Path(name) / source.relative_to(repository.folder)
            if source.is_dir():  # an ensemble's version is an empty one
                target.mkdir()
                continue
            if source.suffix != ".pbtxt":
                link_or_copy(source, target)
                continue
            message = text_format.Parse(source.read_text(), pb.ModelConfig())
            found |= bool(message.model_warmup)
            message.ClearField("model_warmup")
            target.write_text(text_format.MessageToString(message))
        yield Artifact(Path(name), {}, {}) if found else None
