"""The tables of a report: experiments, parity checks, metrics, load generators and provenance."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping

from helpers.config import OF_LOOKUPS, ReportConfig, Value, results_folder
from helpers.display import pretty
from helpers.report.analysis import stages
from helpers.results import ParityCheck, Result, Results
from helpers.results import rows as measured_rows

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
        for _, result in stages({name: by_stage}):
            if result.state != "done":
                missing[f"{result.state}: {result.reason}"].append(result.stage)
        not_done = "; ".join(f"{', '.join(them)} {why}" for why, them in missing.items())
        converted = by_stage["convert"].artifact if "convert" in by_stage else None
        shown = [*fields, *(OF_LOOKUPS if settings.get("lookup") else ())]
        row: dict[str, Value] = {field: settings.get(field) or None for field in shown}
        row["size_mb"] = converted.size_mb if converted else None
        peaks = [
            measured.server_peak_memory_mb or 0 for measured in measured_rows(by_stage.values())
        ]
        row["server_peak_memory_mb"] = max(peaks, default=0) or None
        row["not done"] = not_done if by_stage else "nothing has run yet"
        rows.append({"experiment": name, **row})
    names = dict.fromkeys(name for row in rows for name in row)
    columns = [
        name for name in names if any(row.get(name) not in (None, "", "none") for row in rows)
    ]
    return [{name: row.get(name) for name in columns} for row in rows]


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
    return [(name, check) for name, result in stages(results) for check in result.checks]


def metrics(results: Results) -> list[dict[str, Value]]:
    """Return a row for each metric, served and of the reference; equal experiments share one."""
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
        deployed = deploy.artifact.sha256 if deploy and deploy.artifact else ""
        is_current = crosscheck.get("deployed") == deployed
        # rows without a ratio were judged by an older rule
        judged = [row for row in crosscheck.get("rows", []) if "ratio" in row and is_current]
        every = f"triton-notebooks crosscheck params/{config.target}.yaml --model {config.model}"
        none = {"quality": "not measured", "reason": f"run {every} --experiment {name}"}
        for row in judged or [none]:
            shown = {"result" if key == "quality" else key: value for key, value in row.items()}
            rows.append({"experiment": name, **shown})
    return rows


def provenance(results: Results) -> dict[str, Value]:
    """Return the origin of the numbers; machine and source are those of the last stage."""
    ran = {f"{name} {result.stage}": result for name, result in stages(results) if result.machine}
    if not ran:
        return {"provenance": "nothing has run yet"}
    last = max(ran.values(), key=lambda result: result.finished)
    versions, exports, inputs = dict[str, Value](), dict[str, Value](), dict[str, Value]()
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
    by_time = sorted((result.finished, name) for name, result in ran.items())
    measured = {name: ran[name].measurement for _, name in by_time}
    states = {name: one.gpu for name, one in measured.items() if one and one.gpu}
    if not states:
        return {}
    in_order = list(states.values())
    load: dict[str, Value] = {}
    for column, form in GPU_LOAD.items():
        every = [getattr(row, column) for row in measured_rows(ran.values())]
        if values := [value for value in every if value is not None]:
            load[pretty(column)] = f"{min(values):{form}} to {max(values):{form}}"
    changes: dict[str, Value] = {
        name: "; ".join(state.changes) for name, state in states.items() if state.changes
    }
    return {
        "GPU before the first measurement": _pretty(in_order[0].start),
        "GPU after the last measurement": _pretty(in_order[-1].end),
        "GPU under load (lowest to highest mean)": load,
        "GPU changes": changes or "none",
    }


def _pretty(record: Mapping[str, Value]) -> dict[str, Value]:
    return {pretty(name): value for name, value in record.items()}
