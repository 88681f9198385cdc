"""Text of a report and of a stage that a notebook displays, as Markdown."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from helpers.config import ReportConfig
from helpers.display import pretty
from helpers.report import analysis, describe, tables
from helpers.report.answers import Answer
from helpers.report.describe import escaped
from helpers.results import Result, Results

if TYPE_CHECKING:
    from IPython.display import Markdown
    from pandas import DataFrame


def markdown(text: str) -> "Markdown":
    """Return Markdown that a notebook displays."""
    from IPython.display import Markdown

    return Markdown(text)  # type: ignore[no-untyped-call]


def bullets(lines: Iterable[str], title: str = "") -> "Markdown":
    """Return sentences as a list."""
    head = f"**{title}**\n\n" if title else ""
    return markdown(head + "".join(f"- {escaped(line)}\n" for line in lines))


def recommendation(answers: Iterable[Answer]) -> "Markdown":
    """Return what to deploy for each workload, in a sentence each."""
    return markdown("\n\n".join(map(_recommendation, answers)) or "**Nothing was measured yet.**")


def _recommendation(answer: Answer) -> str:
    head = f"{escaped(answer.workload)}: " if answer.workload else ""
    best = answer.recommended
    if best is None:
        return f"**{head}No configuration can be recommended yet: no throughput is known.**"
    return f"**{head}Deploy {escaped(best.experiment)}**: {escaped(best.figures)}."


def answer(config: ReportConfig, results: Results, rows: "DataFrame") -> "Markdown":
    """Return the answer: fastest, best within the budget, serving overhead, and accuracy."""
    from pandas import concat

    limit = analysis.budget(config)
    offline, online = (analysis.measured(rows, name) for name in ("offline", "online"))
    rates = analysis.frame(config, results, open_loop=True)
    best, in_time = describe.fastest(rows), describe.fastest(online, limit)
    if config.latency_budget_ms is None:
        first = {"Fastest.": best, "No latency budget": "is set for this model."}
    elif best == in_time:
        first = {f"Fastest, and{describe.within(limit)}.": best}
    else:
        first = {"Fastest.": best, f"{describe.within(limit).strip().capitalize()}.": in_time}
    lines = first | {
        "Request-rate mode.": describe.rates(rates, limit),
        "Relative throughput.": describe.relative_throughput(offline),
        "Serving overhead.": describe.overhead(offline),
        "Run-to-run variation.": describe.machine_speed(rows),
        "Accuracy.": accuracy(results),
        "Quality.": describe.qualities(concat([rows, rates])),
    }
    if config.checkpoint == "fitted":
        lines["Note."] = (
            f"The checkpoint was trained for minutes on generated data ({config.dataset}). The "
            "accuracy shows whether deployment preserved the model, not how good the model is."
        )
    return markdown("\n\n".join(f"**{head}** {escaped(line)}" for head, line in lines.items()))


def where_time_goes(results: Results) -> "Markdown":
    """Return for each experiment where its time goes, as far as that is known."""
    return bullets(
        reasons(results) or ["Nothing was profiled, so it is unknown where the time goes."]
    )


def reasons(results: Results) -> list[str]:
    """Return for each experiment where its time goes, and what keeps it from the roofline."""
    lines = []
    for name, stages in results.items():
        if "convert" in stages and (profile := stages["convert"].profile):
            findings = [profile.reason] if profile.reason else profile.findings
            lines += [f"{name}: {' '.join(findings)}"] if findings else []
        exported = stages["export"].artifact if "export" in stages else None
        if exported and isinstance(why := exported.facts.get("work"), str):
            lines.append(f"{name}: operations {why}")
        for stage in ("perf_offline", "perf_online"):
            lines += [f"{name}: {line}" for line in _surplus(stages.get(stage))]
    return lines


def _surplus(result: Result | None) -> list[str]:
    """Return whether a measured experiment had more threads than physical cores."""
    settings = result.fingerprint.config if result and result.fingerprint else {}
    machine = result.machine if result else {}
    cores = machine.get("host_processor_core_count")  # of each of the processors
    processors = machine.get("host_processors_per_node", 1)
    threads, instances = settings.get("threads"), settings.get("instances")
    if not result or not isinstance(threads, int) or not isinstance(instances, dict):
        return []
    count = instances[result.stage.removeprefix("perf_")]
    if not (isinstance(cores, int) and isinstance(processors, int) and isinstance(count, int)):
        return []
    cores *= processors
    if threads * count <= cores:
        return []
    return [
        f"{result.stage} used {threads * count} threads on {cores} physical cores. More than one "
        "thread per core does not compute faster."
    ]


def accuracy(results: Results) -> str:
    """Return the served metrics, and the checks that failed."""
    served = [*analysis.stages(results, "deploy")]
    parts = [
        f"{name}: "
        + ", ".join(f"{pretty(score.metric)} {score.served:.4f}" for score in result.scores)
        for name, result in served
        if result.scores
    ]
    checks = tables.checks(results)
    failed = [f"{name} ({check.failure})" for name, check in checks if check.failure]
    failed += [f"{name} ({result.reason})" for name, result in served if result.state == "failed"]
    passed = "All parity checks that ran passed." if checks else "No parity check has run."
    result = f"Failed: {'; '.join(dict.fromkeys(failed))}." if failed else passed
    return f"{'; '.join(parts) or 'Nothing was served'}. {result}"


def accuracy_kept(stages: Mapping[str, Result]) -> str:
    """Return in a word or two whether every check and every metric of an experiment passed."""
    checks = [check.failure for result in stages.values() for check in result.checks]
    scores = [score.failure for result in stages.values() for score in result.scores]
    if any(checks + scores):
        return "not kept"
    return "kept" if scores else "not checked"
