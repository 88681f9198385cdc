"""The tables of a report: experiments, parity checks, metrics, load generators and provenance."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from helpers.config import OF_LOOKUPS, STAGE, ReportConfig, Value, results_folder
from helpers.display import pretty
from helpers.measure import Ratio
from helpers.report import analysis
from helpers.report.analysis import stages
from helpers.results import ParityCheck, Result, Results

if TYPE_CHECKING:
    from pandas import DataFrame, Series

# columns of the GPU's load, and how to print them
GPU_LOAD = {"gpu_utilisation": ".0%", "gpu_memory_mb": ",.0f", "gpu_power_w": ",.0f"}


def configurations(config: ReportConfig, results: Results) -> list[dict[str, Value]]:
    """Return a row for each experiment: how it was made and served, and what was not done."""
    fields = ["variant", "dataset", "max_seq_length", "crop_size", "export_format", "format"]
    fields += ["precision", "accelerator", "max_batch_size", "preferred_batch_sizes"]
    rows: list[dict[str, Value]] = []
    for name in config.experiments:
        by_stage = results[name]
        reached = by_stage.get("perf_offline") or by_stage.get("deploy")
        settings = reached.fingerprint.config if reached and reached.fingerprint else {}
        missing = defaultdict(list)  # a state and its reason -> the stages that share it
        for result in in_order(by_stage):
            if result.state != "done":
                missing[f"{result.state}: {result.reason}"].append(result.stage)
        not_done = "; ".join(f"{', '.join(them)} {why}" for why, them in missing.items())
        converted = by_stage["convert"].artifact if "convert" in by_stage else None
        row: dict[str, Value] = {field: settings.get(field) for field in fields}
        if settings.get("lookup"):
            row |= {field: settings.get(field) or None for field in OF_LOOKUPS}
        row["size_mb"] = converted.size_mb if converted else None
        row["server_peak_memory_mb"] = _peak_memory_mb(by_stage)
        row["not done"] = not_done if by_stage else "nothing has run yet"
        rows.append({"experiment": name, **row})
    names = dict.fromkeys(name for row in rows for name in row)
    columns = [
        name for name in names if any(row.get(name) not in (None, "", "none") for row in rows)
    ]
    return [{name: row.get(name) for name in columns} for row in rows]


def _peak_memory_mb(by_stage: Mapping[str, Result]) -> float | None:
    """Return the largest peak memory of an experiment's server; None if no row has one."""
    measured = [result.measurement for result in by_stage.values() if result.measurement]
    peaks = [row.server_peak_memory_mb for measurement in measured for row in measurement.rows]
    return max((peak for peak in peaks if peak is not None), default=None)


def parity(results: Results) -> list[dict[str, Value]]:
    """Return a row for each output of each check: differences in standard deviations of the
    reference. Equal checks of an experiment share a row, and experiments whose rows are equal.
    """
    rows = [{"experiment": name, **row} for name, check in checks(results) for row in check.rows()]
    return _folded(_folded(rows, "check"), "experiment")


def _folded(rows: Iterable[Mapping[str, Value]], column: str) -> list[dict[str, Value]]:
    """Put rows that differ in `column` alone into the first of them, which then names all."""
    names: dict[str, list[str]] = {}
    first: dict[str, dict[str, Value]] = {}
    for row in rows:
        same = repr([(name, value) for name, value in row.items() if name != column])
        first.setdefault(same, dict(row))
        names.setdefault(same, []).append(str(row[column]))
    return [row | {column: ", ".join(names[same])} for same, row in first.items()]


def checks(results: Results) -> list[tuple[str, ParityCheck]]:
    """Return every check that ran with its experiment, in the order of the stages."""
    return [
        (name, check)
        for name, by_stage in results.items()
        for result in in_order(by_stage)
        for check in result.checks
    ]


def in_order(by_stage: Mapping[str, Result]) -> list[Result]:
    """Return the results of an experiment in the order of its stages."""
    return [by_stage[stage] for stage in STAGE if stage in by_stage]


def metrics(results: Results) -> list[dict[str, Value]]:
    """Return a row for each metric of each experiment: as served, and of the reference. Experiments
    whose rows are equal share one.
    """
    rows = [
        {
            "experiment": name,
            **score.model_dump(),
            "metric": pretty(score.metric),
            "result": "failed" if score.failure else "passed",
        }
        for name, result in stages(results, "deploy")
        for score in result.scores
    ]
    return _folded(rows, "experiment")


def load_generators(config: ReportConfig, results: Results) -> list[dict[str, Value]]:
    """Return a row for each number that two load generators measured, or the command for it."""
    rows: list[dict[str, Value]] = []
    for name, by_stage in results.items():
        path, deploy = results_folder(config) / name / "crosscheck.json", by_stage.get("deploy")
        crosscheck = json.loads(path.read_text()) if path.exists() else {}
        current = (
            deploy and deploy.artifact and deploy.artifact.sha256 == crosscheck.get("deployed")
        )
        every = f"triton-notebooks crosscheck params/{config.target}.yaml --model {config.model}"
        none = {"quality": "not measured", "reason": f"run {every} --experiment {name}"}
        for row in crosscheck["rows"] if current else [none]:
            shown = {"result" if key == "quality" else key: value for key, value in row.items()}
            rows.append({"experiment": name, **shown})
    return rows


def provenance(results: Results) -> dict[str, Value]:
    """Return the origin of the numbers; machine and source are those of the last stage."""
    ran = {f"{name} {result.stage}": result for name, result in stages(results) if result.machine}
    if not ran:
        return {"provenance": "nothing has run yet"}
    last = max(ran.values(), key=lambda result: result.finished)
    versions: dict[str, Value] = {}
    exports: dict[str, Value] = {}
    inputs: dict[str, Value] = {}
    for name, result in ran.items():
        versions |= result.fingerprint.versions if result.fingerprint else {}
        if result.stage == "export" and result.artifact:
            exports[name] = result.artifact.sha256
        hashes = result.facts.get("sha256")
        if isinstance(hashes, dict):
            inputs |= {f"{result.experiment} {what}": value for what, value in hashes.items()}
    return {
        **last.machine,
        "versions": versions,
        **(last.source.model_dump() if last.source else {}),
        "measured": f"{min(result.finished for result in ran.values())} to {last.finished}",
        **gpu_state(ran),
        "SHA-256 of exports": exports,
        "SHA-256 of inputs": inputs,
    }


def gpu_state(ran: Mapping[str, Result]) -> dict[str, Value]:
    """Return the GPU's state before, during and after what `ran` measured; empty on a CPU."""
    measured = {
        name: (result.finished, result.measurement.rows, result.measurement.gpu)
        for name, result in ran.items()
        if result.measurement and result.measurement.gpu
    }
    if not measured:
        return {}
    by_time = sorted(measured.values(), key=lambda entry: entry[0])
    load: dict[str, Value] = {}
    for column, form in GPU_LOAD.items():
        every = [getattr(row, column) for _, rows, _ in by_time for row in rows]
        if values := [value for value in every if value is not None]:
            load[pretty(column)] = f"{min(values):{form}} to {max(values):{form}}"
    changes: dict[str, Value] = {
        name: "; ".join(state.changes) for name, (*_, state) in measured.items() if state.changes
    }
    return {
        "GPU before the first measurement": _pretty(by_time[0][2].start),
        "GPU after the last measurement": _pretty(by_time[-1][2].end),
        "GPU under load (lowest to highest mean)": load,
        "GPU changes": changes or "none",
    }


def _pretty(record: Mapping[str, Value]) -> dict[str, Value]:
    return {pretty(name): value for name, value in record.items()}


def against_fp32(
    config: ReportConfig, results: Results, rows: "DataFrame"
) -> list[dict[str, Value]]:
    """Return a row for each experiment of each workload: its metrics, latency, memory and size, and
    its offline throughput. That is relative to the first experiment in fp32. Batch sizes are the
    largest that most experiments of a workload have.
    """
    table: list[dict[str, Value]] = []
    for _, workload in analysis.workloads(rows):
        offline = analysis.measured(workload, "offline")
        shared = offline.groupby("batch_size")["experiment"].nunique()
        at_size = offline[offline["batch_size"] == shared[shared == shared.max()].index.max()]
        points = {str(row["experiment"]): row for _, row in at_size.iterrows()}
        names = [name for name in config.experiments if name in set(workload["experiment"])]
        plain = [name for name in names if name in points and points[name]["precision"] == "FP32"]
        base = points[plain[0]] if plain else None
        table += [_compared(name, results[name], points.get(name), base) for name in names]
    columns = dict.fromkeys(name for row in table for name in row)
    return [{name: row.get(name) for name in columns} for row in table]


def _compared(
    name: str,
    by_stage: Mapping[str, Result],
    point: "Series[float] | None",
    base: "Series[float] | None",
) -> dict[str, Value]:
    deploy, convert = by_stage.get("deploy"), by_stage.get("convert")
    settings = deploy.fingerprint.config if deploy and deploy.fingerprint else {}
    row: dict[str, Value] = {"experiment": name}
    row |= {field: settings.get(field) for field in ("format", "precision")}
    row |= {score.metric: f"{score.served:.4f}" for score in (deploy.scores if deploy else ())}
    if point is not None:
        row |= {"batch_size": int(point["batch_size"]), "throughput": float(point["throughput"])}
        row["compared with fp32"] = _ratio(point, base)
        row["p50_latency_ms"] = float(point["p50_latency_ms"])
        row |= {field: str(point[field]) for field in ("quality", "reason")}
        row["server_peak_memory_mb"] = point["server_peak_memory_mb"]
    row["size_mb"] = convert.artifact.size_mb if convert and convert.artifact else None
    return row


def _ratio(point: "Series[float]", base: "Series[float] | None") -> str | None:
    """Return a throughput relative to fp32; None if the 95% CI of one is unknown."""
    if base is None:
        return None
    if point["experiment"] == base["experiment"]:
        return str(Ratio(1.0))
    ratio = analysis.ratio(point, base)
    return str(ratio) if ratio.interval else None
