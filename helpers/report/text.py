"""What a report says in words and tables: the answer first, then the ladder, the findings and where
it all comes from.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from helpers import results
from helpers.config import STAGES, ReportConfig, Value
from helpers.display import pretty
from helpers.report import findings
from helpers.report.findings import UNLIMITED
from helpers.results import Result, Results, Row

if TYPE_CHECKING:
    from IPython.display import Markdown
    from pandas import DataFrame

# columns of the GPU's load, and how to print them
GPU_LOAD = {"gpu_utilisation": ".0%", "gpu_memory_mb": ",.0f", "gpu_power_w": ",.0f"}


def frame(found: Results) -> "DataFrame":
    """Put the measured rows of all experiments into one table."""
    from pandas import DataFrame

    everything = results.rows(result for stages in found.values() for result in stages.values())
    rows = [row.model_dump() for row in everything]
    return DataFrame(rows, columns=list(Row.model_fields)).infer_objects()


def budget(config: ReportConfig) -> float:
    """The latency budget at p99 in milliseconds; infinite without one."""
    return config.latency_budget_ms or UNLIMITED


def answer(config: ReportConfig, found: Results, rows: "DataFrame") -> "Markdown":
    """Say the answer in a few lines: fastest, best within the budget, what serving costs, what is
    missing.
    """
    from IPython.display import Markdown

    offline, online = findings.measured(rows, "offline"), findings.measured(rows, "online")
    lines = [
        f"**Fastest.** {findings.describe_frontier(rows)}",
        f"**Within the budget of {config.latency_budget_ms:g} ms at p99.** "
        + findings.describe_frontier(online, budget(config))
        if config.latency_budget_ms
        else "**No latency budget** is set for this model.",
        f"**What serving costs.** {findings.describe_served_over_bare(offline)}",
        f"**Accuracy.** {accuracy_in_words(found)}",
    ]
    if config.checkpoint == "fitted":
        lines.append(
            "**Mind:** the checkpoint was fitted in minutes to the generated data set "
            f"`{config.dataset}`. Its accuracy says that deployment keeps what was trained; "
            "it says nothing about the real task."
        )
    return Markdown("\n\n".join(lines))  # type: ignore[no-untyped-call]


def findings_in_words(config: ReportConfig, rows: "DataFrame") -> "Markdown":
    """Say what each figure shows, experiment by experiment where that differs."""
    from IPython.display import Markdown

    online = findings.measured(rows, "online")
    lines = [
        findings.describe_throughput(rows),
        findings.describe_latency(rows),
        findings.describe_served_over_bare(rows),
        *(
            f"{name}: {findings.describe_components(one)}"
            for name, one in online.groupby("experiment", sort=False)
        ),
        findings.describe_frontier(rows, budget(config)),
    ]
    text = "".join(f"- {line}\n" for line in lines)
    return Markdown(text)  # type: ignore[no-untyped-call]


def accuracy_in_words(found: Results) -> str:
    """Say what is served and whether every rung holds."""
    served = {name: stages["deploy"] for name, stages in found.items() if "deploy" in stages}
    parts = [
        f"{name}: " + ", ".join(f"{each.metric} {each.served:.4f}" for each in result.scores)
        for name, result in served.items()
        if result.scores
    ]
    red = [f"{name} ({each.reason})" for name, each in served.items() if each.state == "failed"]
    verdict = f"Red: {'; '.join(red)}." if red else "Every rung that was reached holds."
    return f"{'; '.join(parts) or 'Nothing was served'}. {verdict}"


def configurations(config: ReportConfig, found: Results) -> list[dict[str, Value]]:
    """One row for each experiment: how it was made and served, and what it came to."""
    fields = (
        "variant",
        "dataset",
        "max_seq_length",
        "export_format",
        "format",
        "precision",
        "accelerator",
        "max_batch_size",
        "preferred_batch_sizes",
    )
    rows: list[dict[str, Value]] = []
    for name in config.experiments:
        stages = found[name]
        reached = stages.get("perf_offline") or stages.get("deploy")
        settings = reached.fingerprint.config if reached and reached.fingerprint else {}
        missing: dict[str, list[str]] = {}  # a state and its reason -> the stages that share it
        for stage in (stage for stage in STAGES if stage in stages):
            if stages[stage].state != "done":
                words = f"{stages[stage].state}: {stages[stage].reason}"
                missing.setdefault(words, []).append(stage)
        converted = stages["convert"].artefact if "convert" in stages else None
        rows.append(
            {
                "experiment": name,
                **{field: settings.get(field) for field in fields},
                "size_mb": converted.size_mb if converted else None,
                "not done": "; ".join(f"{', '.join(them)} {why}" for why, them in missing.items())
                or ("" if stages else "nothing has run yet"),
            }
        )
    said = [name for name in rows[0] if any(row[name] not in (None, "", "none") for row in rows)]
    return [{name: row[name] for name in said} for row in rows]


def ladder(found: Results) -> list[dict[str, Value]]:
    """One row for each rung of each experiment: the differences in deviations of the framework's
    output, and the bounds.
    """
    return [
        {"experiment": name, **row}
        for name, stages in found.items()
        for stage in ("export", "convert", "deploy")
        if stage in stages
        for rung in stages[stage].rungs
        for row in rung.rows()
    ]


def metrics(found: Results) -> list[dict[str, Value]]:
    """One row for each metric of each experiment: served, and by the framework."""
    return [
        {
            "experiment": name,
            **score.model_dump(),
            "verdict": "red" if score.fault else "green",
        }
        for name, stages in found.items()
        if "deploy" in stages
        for score in stages["deploy"].scores
    ]


def provenance(found: Results) -> dict[str, Value]:
    """Say where the figures come from: machine, versions, source, command, inputs; taken from the
    last stage that ran.
    """
    every = [each for stages in found.values() for each in stages.values() if each.machine]
    if not every:
        return {"nothing has run": "yet"}
    last = max(every, key=lambda result: result.finished)
    versions: dict[str, Value] = {}
    for result in every:
        versions |= result.fingerprint.versions if result.fingerprint else {}
    exports = {name: stages["export"] for name, stages in found.items() if "export" in stages}
    measured = {
        f"{name} {stage}": result
        for name, stages in found.items()
        for stage, result in stages.items()
        if result.measurement
    }
    hashes = {name: result.facts.get("sha256") for name, result in exports.items()}
    return {
        **last.machine,
        "versions": versions,
        **(last.source.model_dump() if last.source else {}),
        "measured": f"{min(each.finished for each in every)} to {last.finished}",
        **gpu_in_words(measured),
        "SHA-256 of exports": {
            f"{name} export": result.artefact.sha256
            for name, result in exports.items()
            if result.artefact
        },
        "SHA-256 of inputs": {
            f"{name} {what}": value
            for name, known in hashes.items()
            if isinstance(known, dict)
            for what, value in known.items()
        },
    }


def gpu_in_words(measured: Mapping[str, Result]) -> dict[str, Value]:
    """Say what the GPU was like before, during and after all measurements (name -> result), and
    what mattered meanwhile; empty on a CPU.
    """
    kept = {
        name: (result.finished, result.measurement, result.measurement.gpu)
        for name, result in measured.items()
        if result.measurement and result.measurement.gpu
    }
    if not kept:
        return {}
    in_order = sorted(kept.values(), key=lambda each: each[0])
    rows = [row for _, measurement, _ in in_order for row in measurement.rows]
    load: dict[str, Value] = {}
    for column, form in GPU_LOAD.items():
        if values := [value for row in rows if (value := getattr(row, column)) is not None]:
            load[pretty(column)] = f"{min(values):{form}} to {max(values):{form}}"
    return {
        "GPU before the first measurement": _pretty(in_order[0][2].start),
        "GPU after the last": _pretty(in_order[-1][2].end),
        "GPU under load, lowest to highest mean": load,
        "GPU meanwhile": {
            name: "; ".join(state.changes) for name, (*_, state) in kept.items() if state.changes
        }
        or "nothing changed that matters",
    }


def _pretty(record: Mapping[str, Value]) -> dict[str, Value]:
    return {pretty(name): value for name, value in record.items()}


def headline(rows: "DataFrame") -> str:
    """Give the key figure for an index."""
    best = findings.best(rows)
    return (
        f"{best['throughput']:,.1f} inferences/s: {best['experiment']}"
        if best is not None
        else "nothing stable was measured"
        if len(rows)
        else "nothing was measured"
    )
