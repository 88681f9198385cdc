"""Text of a report and of a stage that a notebook displays, as Markdown."""

from collections.abc import Iterable, Sequence
from math import inf
from typing import TYPE_CHECKING, Any

from helpers.config import ReportConfig
from helpers.display import Table, pretty
from helpers.report import analysis, describe, tables
from helpers.report.answer import Answer
from helpers.report.describe import escaped
from helpers.report.site import render
from helpers.results import Result, Results

if TYPE_CHECKING:
    from IPython.display import Markdown
    from pandas import DataFrame


COMPANIONS = ("template/answer.html.j2",)


def markdown(text: str) -> "Markdown":
    """Return Markdown that a notebook displays."""
    from IPython.display import Markdown

    return Markdown(text)  # type: ignore[no-untyped-call]


def bullets(lines: Iterable[str], title: str = "") -> "Markdown":
    """Return sentences as a list."""
    head = f"**{title}**\n\n" if title else ""
    return markdown(head + "".join(f"- {escaped(line)}\n" for line in lines))


def what_to_deploy(config: ReportConfig, answers: Sequence[Answer]) -> Table:
    """Return what to deploy for each workload: a sentence, three figures, and the command."""
    shown = render("answer.html.j2", {"answers": answers, "config": config})
    return Table(shown, "What to deploy")


def details(config: ReportConfig, results: Results, rows: "DataFrame") -> "Markdown":
    """Return what the scenario stages found: serving overhead, accuracy and quality."""
    from pandas import concat

    offline = analysis.measured(rows, "offline")
    rates = analysis.frame(config, results, open_loop=True)
    lines = {
        "Request-rate mode.": describe.rates(rates, config.latency_budget_ms),
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
    nothing = "Nothing was profiled, so it is unknown where the time goes."
    return bullets(reasons(results) or [nothing])


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
    settings: Any = result.fingerprint.config if result and result.fingerprint else {}
    if not result or not isinstance(settings.get("instances"), dict):
        return []
    machine: Any = result.machine
    cores = machine.get("host_processor_core_count", inf)  # of each of the processors
    cores *= machine.get("host_processors_per_node", 1)
    threads = settings.get("threads", 0) * settings["instances"][result.stage.removeprefix("perf_")]
    if threads <= cores:
        return []
    return [
        f"{result.stage} used {threads} threads on {cores} physical cores. More than one thread "
        "per core does not compute faster."
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
