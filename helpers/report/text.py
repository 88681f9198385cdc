"""What a report says in words and tables: the answer first, then the ladder, the findings and where
it all comes from.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from helpers import results
from helpers.config import STAGES, ReportConfig
from helpers.machine import gpu_in_words
from helpers.report import findings
from helpers.report.findings import UNLIMITED

if TYPE_CHECKING:
    from IPython.display import Markdown
    from pandas import DataFrame

Results = Mapping[str, Mapping[str, Mapping[str, Any]]]  # experiment -> stage -> result


def frame(found: Results) -> "DataFrame":
    """Put the measured rows of all experiments into one table."""
    from pandas import DataFrame

    everything = results.rows(result for stages in found.values() for result in stages.values())
    return DataFrame(everything, columns=list(results.COLUMNS)).infer_objects()


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
        f"{name}: "
        + ", ".join(f"{s['metric']} {s['served']:.4f}" for s in result.get("scores", []))
        for name, result in served.items()
        if result.get("scores")
    ]
    red = [
        f"{name} ({result['reason']})"
        for name, result in served.items()
        if result["state"] == "failed"
    ]
    verdict = f"Red: {'; '.join(red)}." if red else "Every rung that was reached holds."
    return f"{'; '.join(parts) or 'Nothing was served'}. {verdict}"


def configurations(config: ReportConfig, found: Results) -> list[dict[str, Any]]:
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
    rows = []
    for name in config.experiments:
        stages = found[name]
        reached = stages.get("perf_offline") or stages.get("deploy") or {}
        settings = reached.get("config", {})
        missing: dict[str, list[str]] = {}  # a state and its reason -> the stages that share it
        for stage in (stage for stage in STAGES if stage in stages):
            if stages[stage]["state"] != "done":
                words = f"{stages[stage]['state']}: {stages[stage]['reason']}"
                missing.setdefault(words, []).append(stage)
        rows.append(
            {
                "experiment": name,
                **{field: settings.get(field) for field in fields},
                "size_mb": stages.get("convert", {}).get("artefact", {}).get("size_mb"),
                "not done": "; ".join(f"{', '.join(them)} {why}" for why, them in missing.items())
                or ("" if stages else "nothing has run yet"),
            }
        )
    said = [name for name in rows[0] if any(row[name] not in (None, "", "none") for row in rows)]
    return [{name: row[name] for name in said} for row in rows]


def ladder(found: Results) -> list[dict[str, Any]]:
    """One row for each rung of each experiment: the differences in deviations of the framework's
    output, and the bounds.
    """
    rows = []
    for name, stages in found.items():
        for stage in ("export", "convert", "deploy"):
            for rung in stages.get(stage, {}).get("rungs", []):
                for each in rung["differences"]:
                    head = {
                        "experiment": name,
                        "rung": rung["name"],
                        "precision": rung["precision"],
                    }
                    rows.append({**head, **each, "verdict": "green" if rung["ok"] else "red"})
    return rows


def metrics(found: Results) -> list[dict[str, Any]]:
    """One row for each metric of each experiment, served beside the framework's."""
    return [
        {
            "experiment": name,
            **{k: v for k, v in score.items() if k != "ok"},
            "verdict": "green" if score["ok"] else "red",
        }
        for name, stages in found.items()
        for score in stages.get("deploy", {}).get("scores", [])
    ]


def provenance(found: Results) -> dict[str, Any]:
    """Say where the figures come from: machine, versions, source, command, inputs; taken from the
    last stage that ran.
    """
    every = [
        result for stages in found.values() for result in stages.values() if result.get("machine")
    ]
    if not every:
        return {"nothing has run": "yet"}
    last = max(every, key=lambda result: str(result["finished"]))
    versions: dict[str, str] = {}
    for result in every:
        versions |= result["versions"]
    inputs = {
        f"{name} export": stages["export"]["artefact"]["sha256"]
        for name, stages in found.items()
        if stages.get("export", {}).get("artefact")
    }
    first = min(str(result["finished"]) for result in every)
    measured = {
        f"{name} {stage}": result
        for name, stages in found.items()
        for stage, result in stages.items()
        if "gpu_state" in result
    }
    return {
        **last["machine"],
        "versions": versions,
        **last["source"],
        "measured": f"{first} to {last['finished']}",
        **gpu_in_words(measured),
        "SHA-256 of exports": inputs,
        "SHA-256 of inputs": {
            f"{name} {what}": value
            for name, stages in found.items()
            for what, value in stages.get("export", {}).get("facts", {}).get("sha256", {}).items()
        },
    }


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
