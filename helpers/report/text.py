"""A report's texts and tables: answer, parity checks, metrics, findings and provenance."""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import reduce
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from helpers import results
from helpers.config import OF_LOOKUPS, STAGE, STAGES, ReportConfig, Value, results_folder
from helpers.display import pretty
from helpers.perf import Window, highest_peaks, judge_budget
from helpers.report import findings
from helpers.report.findings import UNLIMITED
from helpers.results import ParityCheck, Peaks, Result, Results, Row, Score

if TYPE_CHECKING:
    from IPython.display import Markdown
    from pandas import DataFrame

# columns of the GPU's load, and how to print them
GPU_LOAD = {"gpu_utilisation": ".0%", "gpu_memory_mb": ",.0f", "gpu_power_w": ",.0f"}


def frame(config: ReportConfig, found: Results, open_loop: bool = False) -> "DataFrame":
    """Put the measurements of all experiments into one table, with the result of `judge_budget`:
    those of request-rate mode (`open_loop`), or all others. A repeated batch: see `stores`.
    """
    from pandas import DataFrame

    everything = results.rows(result for stages in found.values() for result in stages.values())
    everything = [row for row in everything if bool(row.rate) == open_loop and not row.repeated]
    rows = [row.model_dump(exclude_none=True) | _within_budget(config, row) for row in everything]
    return DataFrame(rows, columns=[*Row.model_fields, "budget", "budget_needs"]).infer_objects()


def _within_budget(config: ReportConfig, row: Row) -> dict[str, Value]:
    """Judge a row by all its requests but each client's first; return nothing without a budget."""
    if not config.latency_budget_ms:
        return {}
    runs = [Window(run, 1, row.concurrency) for run in results.read_requests(config, row)]
    latencies = np.concatenate([np.empty(0), *(run.steady.latencies_ms for run in runs)])
    word, needed = judge_budget(latencies, budget(config))
    return {"budget": word, "budget_needs": needed}


def escaped(text: str) -> str:
    """Return Markdown that shows a text as it is: nothing in it is markup, HTML or a formula."""
    one_line = escape(" ".join(text.split()), quote=False)
    return re.sub(r"[\\`*_\[\]|~$]", lambda found: f"&#{ord(found[0])};", one_line)


def markdown(text: str) -> "Markdown":
    """Return Markdown that a notebook displays."""
    from IPython.display import Markdown

    return Markdown(text)  # type: ignore[no-untyped-call]


def budget(config: ReportConfig) -> float:
    """The latency budget at p99 in milliseconds; infinite without one."""
    return config.latency_budget_ms or UNLIMITED


def answer(config: ReportConfig, found: Results, rows: "DataFrame") -> "Markdown":
    """Return the answer: fastest, best within the budget, serving overhead, and accuracy."""
    from pandas import concat

    offline, online = findings.measured(rows, "offline"), findings.measured(rows, "online")
    rates = frame(config, found, open_loop=True)
    lines = [
        *_fastest(rows, online, config.latency_budget_ms),
        f"**Request-rate mode.** {escaped(findings.describe_rates(rates, budget(config)))}",
        f"**Relative throughput.** {escaped(findings.describe_relative_throughput(offline))}",
        f"**Serving overhead.** {escaped(findings.describe_floor(offline))}",
        f"**Run-to-run variation.** {escaped(findings.describe_pace(rows))}",
        f"**Accuracy.** {escaped(accuracy_in_words(found))}",
        f"**Quality.** {escaped(findings.describe_qualities(concat([rows, rates])))}",
    ]
    if config.checkpoint == "fitted":
        lines.append(
            f"**Note.** The checkpoint was trained for minutes on generated data "
            f"(`{config.dataset}`). The accuracy shows whether deployment preserved the model, not "
            "how good the model is."
        )
    return markdown("\n\n".join(lines))


def _fastest(rows: "DataFrame", online: "DataFrame", limit: float | None) -> list[str]:
    """Name the fastest, and the best within the budget: once if they are the same."""
    fastest = escaped(findings.describe_fastest(rows))
    if limit is None:
        return [f"**Fastest.** {fastest}", "**No latency budget** is set for this model."]
    if findings.keeps_budget(rows, limit):
        return [f"**Fastest, and within {limit:g} ms (p99).** {fastest}"]
    best = escaped(findings.describe_fastest(online, limit))
    return [f"**Fastest.** {fastest}", f"**Within {limit:g} ms (p99).** {best}"]


def peaks(found: Results) -> Peaks | None:
    """Return the highest of each of the machine's rates that any stage measured."""
    measurements = [each.measurement for stages in found.values() for each in stages.values()]
    return reduce(highest_peaks, [each.peaks for each in measurements if each], None)


def reasons(found: Results) -> list[str]:
    """Return for each experiment where its time goes, and what keeps it from the roofline."""
    lines = []
    for name, stages in found.items():
        if "convert" in stages and (profile := stages["convert"].profile):
            said = [profile.reason] if profile.reason else profile.findings
            lines += [f"{name}: {' '.join(said)}"] if said else []
        exported = stages["export"].artifact if "export" in stages else None
        if exported and isinstance(why := exported.facts.get("work"), str):
            lines.append(f"{name}: operations {why}")
        for stage in ("perf_offline", "perf_online"):
            lines += [f"{name}: {line}" for line in _surplus(stages.get(stage))]
    return lines


def _surplus(result: Result | None) -> list[str]:
    """Return whether a measured experiment had more threads than physical cores."""
    settings = result.fingerprint.config if result and result.fingerprint else {}
    cores = result.machine.get("host_processor_core_count") if result else None
    threads, instances = settings.get("threads"), settings.get("instances")
    if not result or not isinstance(threads, int) or not isinstance(instances, dict):
        return []
    count = instances[result.stage.removeprefix("perf_")]
    if not isinstance(cores, int) or not isinstance(count, int) or threads * count <= cores:
        return []
    return [
        f"{result.stage} used {threads * count} threads on {cores} physical cores. More than one "
        "thread per core does not compute faster."
    ]


def where_time_goes(found: Results) -> "Markdown":
    """Return for each experiment where its time goes, as far as that is known."""
    lines = reasons(found) or ["Nothing was profiled, so it is unknown where the time goes."]
    return markdown("".join(f"- {escaped(line)}\n" for line in lines))


def accuracy_in_words(found: Results) -> str:
    """Return the served metrics, and the checks that failed."""
    served = {name: stages["deploy"] for name, stages in found.items() if "deploy" in stages}
    parts = [
        f"{name}: "
        + ", ".join(f"{pretty(each.metric)} {each.served:.4f}" for each in result.scores)
        for name, result in served.items()
        if result.scores
    ]
    checks = _checks(found)
    failed = [f"{name} ({check.fault})" for name, check in checks if check.fault]
    failed += [f"{name} ({each.reason})" for name, each in served.items() if each.state == "failed"]
    passed = "All parity checks that ran passed." if checks else "No parity check has run."
    result = f"Failed: {'; '.join(dict.fromkeys(failed))}." if failed else passed
    return f"{'; '.join(parts) or 'Nothing was served'}. {result}"


def accuracy_kept(stages: Mapping[str, Result]) -> str:
    """Return in a word or two whether every check and every metric of an experiment passed."""
    judged: list[ParityCheck | Score] = []
    for result in stages.values():
        judged += [*result.checks, *result.scores]
    if any(each.fault for each in judged):
        return "not kept"
    return "kept" if any(result.scores for result in stages.values()) else "not checked"


def configurations(config: ReportConfig, found: Results) -> list[dict[str, Value]]:
    """One row for each experiment: how it was made and served, and what was not done."""
    fields = ["variant", "dataset", "max_seq_length", "crop_size", "export_format", "format"]
    fields += ["precision", "accelerator", "max_batch_size", "preferred_batch_sizes"]
    rows: list[dict[str, Value]] = []
    for name in config.experiments:
        stages = found[name]
        reached = stages.get("perf_offline") or stages.get("deploy")
        settings = reached.fingerprint.config if reached and reached.fingerprint else {}
        missing = defaultdict(list)  # a state and its reason -> the stages that share it
        for stage, result in sorted(stages.items(), key=lambda each: [*STAGE].index(each[0])):
            if result.state != "done":
                missing[f"{result.state}: {result.reason}"].append(stage)
        not_done = "; ".join(f"{', '.join(them)} {why}" for why, them in missing.items())
        converted = stages["convert"].artifact if "convert" in stages else None
        row: dict[str, Value] = {field: settings.get(field) for field in fields}
        if settings.get("lookup"):
            row |= {field: settings.get(field) or None for field in OF_LOOKUPS}
        row["size_mb"] = converted.size_mb if converted else None
        row["server_peak_memory_mb"] = _peak_memory_mb(stages)
        row["not done"] = not_done if stages else "nothing has run yet"
        rows.append({"experiment": name, **row})
    names = dict.fromkeys(name for row in rows for name in row)
    said = [name for name in names if any(row.get(name) not in (None, "", "none") for row in rows)]
    return [{name: row.get(name) for name in said} for row in rows]


def _peak_memory_mb(stages: Mapping[str, Result]) -> float | None:
    """Give the largest peak memory of an experiment's server; None if no row has one."""
    measurements = [each.measurement for each in stages.values()]
    peaks = [row.server_peak_memory_mb for each in measurements if each for row in each.rows]
    return max((peak for peak in peaks if peak is not None), default=None)


def parity(found: Results) -> list[dict[str, Value]]:
    """One row for each output of each check: differences in standard deviations of the reference.
    Equal checks of an experiment share a row, and experiments whose rows are equal.
    """
    rows = [{"experiment": name, **row} for name, check in _checks(found) for row in check.rows()]
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


def _checks(found: Results) -> list[tuple[str, ParityCheck]]:
    """Every check that ran with its experiment, in the order of the stages."""
    ran = [(name, stages[key]) for name, stages in found.items() for key in STAGES if key in stages]
    return [(name, check) for name, result in ran for check in result.checks]


def metrics(found: Results) -> list[dict[str, Value]]:
    """One row for each metric of each experiment: as served, and of the reference. Experiments
    whose rows are equal share one.
    """
    rows = [
        {
            "experiment": name,
            **score.model_dump(),
            "metric": pretty(score.metric),
            "result": "failed" if score.fault else "passed",
        }
        for name, stages in found.items()
        if "deploy" in stages
        for score in stages["deploy"].scores
    ]
    return _folded(rows, "experiment")


def meters(config: ReportConfig, found: Results) -> list[dict[str, Value]]:
    """One row for each number that two load generators measured, or the command that does that."""
    rows: list[dict[str, Value]] = []
    for name, stages in found.items():
        path, deploy = results_folder(config) / name / "crosscheck.json", stages.get("deploy")
        facts = json.loads(path.read_text()) if path.exists() else {}
        current = deploy and deploy.artifact and deploy.artifact.sha256 == facts.get("deployed")
        every = f"triton-notebooks crosscheck params/{config.target}.yaml --model {config.model}"
        none = {"quality": "not measured", "reason": f"run {every} --experiment {name}"}
        for row in facts["rows"] if current else [none]:
            shown = {"result" if key == "quality" else key: value for key, value in row.items()}
            rows.append({"experiment": name, **shown})
    return rows


def provenance(found: Results) -> dict[str, Value]:
    """Return the origin of the numbers; machine and source are those of the last stage."""
    ran = {
        f"{name} {stage}": result
        for name, stages in found.items()
        for stage, result in stages.items()
        if result.machine
    }
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
        "measured": f"{min(each.finished for each in ran.values())} to {last.finished}",
        **gpu_in_words(ran),
        "SHA-256 of exports": exports,
        "SHA-256 of inputs": inputs,
    }


def gpu_in_words(ran: Mapping[str, Result]) -> dict[str, Value]:
    """Return the GPU's state before, during and after what `ran` measured; empty on a CPU."""
    kept = {
        name: (result.finished, result.measurement.rows, result.measurement.gpu)
        for name, result in ran.items()
        if result.measurement and result.measurement.gpu
    }
    if not kept:
        return {}
    in_order = sorted(kept.values(), key=lambda each: each[0])
    load: dict[str, Value] = {}
    for column, form in GPU_LOAD.items():
        every = [getattr(row, column) for _, rows, _ in in_order for row in rows]
        if values := [value for value in every if value is not None]:
            load[pretty(column)] = f"{min(values):{form}} to {max(values):{form}}"
    changes: dict[str, Value] = {
        name: "; ".join(state.changes) for name, (*_, state) in kept.items() if state.changes
    }
    return {
        "GPU before the first measurement": _pretty(in_order[0][2].start),
        "GPU after the last measurement": _pretty(in_order[-1][2].end),
        "GPU under load (lowest to highest mean)": load,
        "GPU changes": changes or "none",
    }


def _pretty(record: Mapping[str, Value]) -> dict[str, Value]:
    return {pretty(name): value for name, value in record.items()}


def headline(rows: "DataFrame") -> str:
    """Return the result of a report in one line, for an index."""
    parts = []
    for name, one in findings.workloads(rows):
        found = findings.leaders(one)
        for top in found["throughput"].head(1):
            names = found["experiment"].unique()
            several = " (no clear winner)" * (len(names) > 1)
            parts.append(f"{name} {top:,.1f} samples/s: {' or '.join(names)}{several}".strip())
    nothing = "no throughput is known" if len(rows) else "nothing was measured"
    return "; ".join(parts) or nothing
