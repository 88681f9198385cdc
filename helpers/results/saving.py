"""A stage's result: what is kept of it, when it still holds, and the rows of all measurements.

`<stage>.json` beside the executed notebook; `results.csv` has the columns of
`params/published/*.csv` and ours.
"""

import io
import json
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil

from helpers import formats
from helpers.config import ExportConfig, LoadConfig, StageConfig, folder, notebook_file
from helpers.errors import AccuracyError, MeasurementError
from helpers.inference import inputs
from helpers.machine import provenance
from helpers.store import (
    ROOT,
    Artefact,
    digest,
    file_digest,
    locked,
    mark_red,
    outputs,
    shown,
    write_atomic,
)

if TYPE_CHECKING:  # a stage that does not measure must not depend on how measuring is done
    from helpers.accuracy import Rung, Score
    from helpers.perf import Measurement

SCHEMA = 1
UNITS = {
    "*_ms": "milliseconds",
    "throughput": "inferences (samples) per second",
    "others_load": "cores",
    "gpu_utilisation": "share of the time",
    "*_mb": "megabytes",
    "*_w": "watts",
}


def notebook_digest(model: str, stage: str) -> str:
    """Hash what a notebook says and does: the sources of its cells."""
    cells = json.loads(notebook_file(model, stage).read_text())["cells"]
    return digest([(cell["cell_type"], cell["source"]) for cell in cells])


def basis(config: StageConfig) -> dict[str, Any]:
    """All that a result of this stage depends on and that can be known without running it, but for
    the loaded modules.
    """
    return {
        "config": config.cache_fields(config.stage),
        "notebook": notebook_digest(config.model, config.stage),
        "versions": provenance.versions(provenance.runtimes(config)),
        "inputs": inputs(config, config.stage)
        if isinstance(config, ExportConfig)
        else _report_inputs(config),
    }


def _report_inputs(config: StageConfig) -> dict[str, str]:
    base = folder(config)
    found = [path for name in config.experiments for path in sorted((base / name).glob("*.json"))]
    published = ROOT / "params" / "published" / f"{config.model}.csv"
    return {shown(path): file_digest(path) for path in (*found, published) if path.exists()}


def save(
    config: StageConfig,
    headline: str,
    *,
    artefact: Artefact | None = None,
    rungs: Iterable["Rung"] = (),
    scores: Iterable["Score"] = (),
    measurement: "Measurement | None" = None,
    facts: dict[str, Any] | None = None,
) -> None:
    """Write the stage's result, whole or not at all.

    A red rung or a point that was not measured is written too, as a failed stage, and then raised:
    `AccuracyError` or `MeasurementError`.
    """
    rungs, scores = list(rungs), list(scores)
    where = folder(config)
    faults = [rung.fault for rung in rungs] + [score.fault for score in scores]
    red = next(filter(None, faults), "")
    lost = [row for row in measurement.rows if row["verdict"] == "failed"] if measurement else []
    broken = red or next(
        (f"batch {r['batch_size']}, {r['concurrency']} clients: {r['reason']}" for r in lost), ""
    )
    result: dict[str, Any] = {
        "schema": SCHEMA,
        "model": config.model,
        "experiment": config.experiment,
        "stage": config.stage,
        "gpu": config.gpu,
        "state": "failed" if broken else "done",
        "reason": broken,
        "headline": headline,
        "finished": datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        "seconds": round(time.time() - psutil.Process().create_time(), 1),  # of this kernel
        **basis(config),
        "modules": provenance.loaded_modules(),
        "source": provenance.source(),
        "machine": provenance.machine(config.gpu, config.device),
        "rungs": [rung.to_dict() for rung in rungs],
        "scores": [score.to_dict() for score in scores],
        "facts": facts or {},
    }
    if artefact:
        result["artefact"] = {
            "folder": artefact.folder.name,
            "sha256": artefact.sha256,
            "size_mb": round(artefact.size_mb, 1),
            **artefact.facts,
            "files": {name: file.sha256 for name, file in artefact.files.items()},
        }
    with locked(outputs()):
        if artefact and broken:
            mark_red(artefact, broken)
        if measurement:
            assert isinstance(config, LoadConfig)
            arrays = {
                f"{name}_{i}": part
                for name, parts in measurement.samples.items()
                for i, part in enumerate(parts)
            }
            buffer = io.BytesIO()
            np.savez_compressed(buffer, **arrays)
            samples = write_atomic(where / f"{config.stage}_requests.npz", buffer.getvalue())
            result |= {
                "units": UNITS,
                "rows": [complete(config, row) for row in measurement.rows],
                "requests_file": samples.name,
                "distinct_rows": measurement.distinct_rows,
                "others_before": measurement.others_before,
                "gpu_state": measurement.gpu,
            }
        path = write_atomic(where / f"{config.stage}.json", json.dumps(result, indent=1))
    if broken:
        raise (AccuracyError if red else MeasurementError)(broken)
    print(f"wrote {shown(path)}")


COLUMNS = [
    "gpu",
    "model",
    "dataset",
    "scenario",
    "backend",
    "backend_accelerator",
    "precision",
    "model_format",
    "cuda_graph",
    "max_batch_size",
    "instances",
    "batch_size",
    "concurrency",
    "throughput",
    *("client_send_ms", "network_server_send_recv_ms", "server_queue_ms"),
    *("server_compute_input_ms", "server_compute_infer_ms", "server_compute_output_ms"),
    "client_recv_ms",
    *("p50_latency_ms", "p90_latency_ms", "p95_latency_ms", "p99_latency_ms", "avg_latency_ms"),
    "source",
    "experiment",
    "variant",
    "verdict",
    "reason",
    "spread",
    "requests",
    "distinct_rows",
    "others_load",
    "littles_law",
    "bare_throughput",
    "served_bare_ratio",
    "served_bare_min",
    "served_bare_max",
    *("gpu_utilisation", "gpu_utilisation_max", "gpu_memory_mb", "gpu_memory_max_mb"),
    *("gpu_power_w", "gpu_power_max_w"),
]


def complete(config: LoadConfig, row: dict[str, Any]) -> dict[str, Any]:
    """Add to a measured row what identifies it, in the columns of the published tables."""
    scenario = config.stage.removeprefix("perf_")
    backend, model_format = formats.get(config.format).SHOWN
    known = {
        "gpu": config.gpu,
        "model": config.model,
        "dataset": config.dataset,
        "scenario": scenario,
        "backend": backend
        + ("" if config.server.kind != "embedded" else " (Triton Python backend)"),
        "backend_accelerator": "" if config.accelerator == "none" else config.accelerator,
        "precision": config.precision.upper(),
        "model_format": model_format,
        "cuda_graph": config.capture_cuda_graph,
        "max_batch_size": config.max_batch_size,
        "instances": getattr(config.instances, scenario),
        "source": f"{config.experiment}/{config.stage}.json",
        "experiment": config.experiment,
        "variant": config.variant,
    }
    return {name: (known | row).get(name) for name in COLUMNS}


def read(path: Path) -> dict[str, Any] | None:
    """Read a result; None if there is none or it is of another schema."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and found.get("schema") == SCHEMA else None


def of_model(config: StageConfig) -> dict[str, dict[str, dict[str, Any]]]:
    """Read the results of all experiments of the model, as experiment -> stage -> result; what is
    not there is left out.
    """
    base = outputs() / config.target / config.model
    found: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in config.experiments}
    for name in config.experiments:
        for path in sorted((base / name).glob("*.json")):
            if result := read(path):
                found[name][path.stem] = result
    return found


def rows(results: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Collect the measured rows of many results."""
    return [row for result in results for row in result.get("rows", [])]
