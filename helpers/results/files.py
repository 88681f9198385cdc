"""Write and read results: `<stage>.json` next to the executed notebook."""

import io
import os
import time
import zipfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from helpers import formats
from helpers.config import (
    LoadConfig,
    StageConfig,
    renamed_result,
    result_file,
    results_folder,
    save_overrides,
)
from helpers.errors import AccuracyError, MeasurementError
from helpers.machine import provenance
from helpers.results.comparison import Comparison
from helpers.results.fingerprints import files_read, fingerprint
from helpers.results.row import Row, clients_of
from helpers.results.types import (
    ArtifactFacts,
    Measurement,
    ParityCheck,
    Profile,
    Result,
    Score,
    Source,
)
from helpers.store import Artifact, display_path, locked, mark_failed, outputs, write_atomic

Results = Mapping[str, Mapping[str, Result]]  # experiment -> stage -> result


def _kernel_seconds() -> float:
    """Return the seconds since this process started (proc(5), field 22 of stat)."""
    ticks = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(ticks) / os.sysconf("SC_CLK_TCK")


def timestamp() -> str:
    """Return the current time in the format of results."""
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def write(config: StageConfig, result: Result) -> None:
    """Write a result atomically."""
    write_atomic(result_file(config), result.model_dump_json(indent=1))


def read(path: Path) -> Result | None:
    """Read a result; return None if it does not exist or cannot be parsed."""
    with suppress(OSError, ValueError):
        status = path.stat()
        return _read(path, status.st_ino, status.st_mtime_ns, status.st_size)
    return None


@cache
def _read(path: Path, *_: int) -> Result:
    return Result.model_validate_json(renamed_result(path.read_bytes()))


def of_model(config: StageConfig) -> Results:
    """Read the existing results of all experiments of a model."""
    base = outputs() / config.target / config.model
    files = {name: sorted((base / name).glob("*.json")) for name in config.experiments}
    return {
        name: {path.stem: result for path in paths if (result := read(path))}
        for name, paths in files.items()
    }


def rows(results: Iterable[Result]) -> list[Row]:
    """Return the measured rows of several results."""
    return [row for result in results if result.measurement for row in result.measurement.rows]


def read_requests(config: StageConfig, row: Row) -> list[NDArray[np.int64]]:
    """Read the start and end of all requests of a row, per run (ns, [n, 2]).

    The list is empty if their file, which is next to the result, does not exist.
    """
    path, point = outputs() / config.target / config.model / row.source, row.point(row.scenario)
    file = path.with_name(f"{path.stem}_requests.npz")
    with suppress(OSError, ValueError, zipfile.BadZipFile), np.load(file) as arrays:
        return [arrays[name] for name in arrays if name.rpartition("_")[0] == point]
    return []


def save(
    config: StageConfig,
    headline: str,
    *,
    artifact: Artifact | None = None,
    checks: Iterable[ParityCheck] = (),
    scores: Iterable[Score] = (),
    measurement: Measurement | None = None,
    profile: Profile | None = None,
    comparisons: Iterable[Comparison] = (),
    facts: dict[str, JsonValue] | None = None,
) -> None:
    """Write the stage's result.

    A failed check or measurement is written as a failed stage, and then raises `AccuracyError` or
    `MeasurementError`.
    """
    checks, scores = tuple(checks), tuple(scores)
    failures = [check.failure for check in checks] + [score.failure for score in scores]
    wrong = next(filter(None, failures), "")
    lost = (
        f"batch size {row.batch_size}, {clients_of(row.concurrency)}: {row.reason}"
        for row in (measurement.rows if measurement else ())
        if row.quality == "failed"
    )
    broken = wrong or next(lost, "")
    result = Result(
        **config.model_dump(include={"model", "experiment", "stage", "gpu"}),
        state="failed" if broken else "done",
        reason=broken,
        headline=headline,
        finished=timestamp(),
        seconds=round(_kernel_seconds(), 1),
        fingerprint=fingerprint(config).model_copy(update={"modules": files_read(config.stage)}),
        source=Source(**provenance.source()),
        machine=provenance.machine(config.gpu, config.device),
        checks=checks,
        scores=scores,
        facts=facts or {},
        artifact=_facts(artifact) if artifact else None,
        measurement=_identified(config, measurement) if measurement else None,
        profile=profile,
        comparisons=tuple(comparisons),
    )
    with locked(outputs()):
        if artifact and broken:
            mark_failed(artifact, broken)
        if result.measurement and (name := result.measurement.requests_file):
            buffer = io.BytesIO()
            np.savez_compressed(buffer, allow_pickle=False, **result.measurement.requests)
            write_atomic(results_folder(config) / name, buffer.getvalue())
        if config.overrides:
            save_overrides(config.target, config.model, config.experiment, config.overrides)
        write(config, result)
    if broken:
        raise (AccuracyError if wrong else MeasurementError)(broken)
    print(f"wrote {display_path(result_file(config))}")


def _facts(artifact: Artifact) -> ArtifactFacts:
    return ArtifactFacts(
        folder=artifact.folder.name,
        sha256=artifact.sha256,
        size_mb=round(artifact.size_mb, 1),
        files={name: file.sha256 for name, file in artifact.files.items()},
        facts=dict(artifact.facts),
    )


def _identified(config: StageConfig, measurement: Measurement) -> Measurement:
    """Add the columns of the published tables that identify each row."""
    assert isinstance(config, LoadConfig)
    scenario = config.stage.removeprefix("perf_")
    backend, model_format = formats.get(config.format).DISPLAY_NAMES
    backend += "" if config.server.is_native else " (Triton Python backend)"
    fields = {"gpu", "model", "dataset", "experiment", "variant", "max_batch_size"}
    columns = config.model_dump(include=fields) | {
        "scenario": scenario,
        "backend": backend,
        "backend_accelerator": "" if config.accelerator == "none" else config.accelerator,
        "precision": config.precision.upper(),
        "model_format": model_format,
        "cuda_graph": config.capture_cuda_graph,
        "instances": getattr(config.instances, scenario),
        "source": f"{config.experiment}/{config.stage}.json",
        "distinct_rows": measurement.distinct_rows,
    }
    paced = columns | {"scenario": "request rate"}
    rows = [row.model_copy(update=paced if row.rate else columns) for row in measurement.rows]
    file = f"{config.stage}_requests.npz" if measurement.requests else ""
    return measurement.model_copy(update={"rows": tuple(rows), "requests_file": file})
