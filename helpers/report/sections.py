"""The sections of a report: which tables and charts each has, in their order."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from helpers.compare import show_budgets, show_latencies, show_ratios
from helpers.config import ReportConfig, results_folder
from helpers.display import display, show, table
from helpers.measure import with_intervals
from helpers.report import (
    analysis,
    describe,
    embedding_cache,
    figures,
    latency_parts,
    nvidia,
    tables,
    text,
)
from helpers.report.answer import Answer
from helpers.results import Results

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

OFFLINE = ["experiment", "batch_size", "quality", "throughput", "p50_latency_ms"]
OFFLINE += ["p99_latency_ms", "relative_throughput", "serving_overhead_ms"]
OFFLINE += ["noop_latency_ms", "residual_overhead_ms", "roofline_share"]
OFFLINE += ["requests", "reason"]
ONLINE = ["experiment", "concurrency", "quality", "throughput", "p50_latency_ms"]
ONLINE += ["p99_latency_ms", "budget", "average_batch_size", "requests", "reason"]
RATES = ["experiment", "rate", "quality", "p50_latency_ms", "p99_latency_ms", "budget"]
RATES += ["p99_sent_ms", "send_delay_p99_ms", "requests", "reason"]


def show_answer(
    config: ReportConfig, results: Results, rows: "DataFrame", answers: Sequence[Answer]
) -> None:
    """Display what to deploy, with its evidence, and what the scenario stages found."""
    display(text.what_to_deploy(config, answers))
    comparisons = [each.comparison for each in answers if each.comparison]
    show_ratios(comparisons)
    show_latencies(comparisons)
    show_budgets(comparisons)
    figure = figures.frontier(rows, config.latency_budget_ms)
    _show_chart(config, "frontier", figure, describe.frontier(rows), rows)
    display(text.details(config, results, rows))


def show_accuracy(config: ReportConfig, results: Results) -> None:
    """Display the experiments, the checks and the metrics."""
    caption = f"The task's metrics over the whole set, through Triton{config.caveat}"
    display(
        table(config.summary(), "What this report is about"),
        table(tables.configurations(config, results), "Experiments"),
        table(tables.parity(results), "The parity checks"),
        table(tables.metrics(results), caption),
    )


def show_offline(config: ReportConfig, results: Results, rows: "DataFrame") -> None:
    """Display the measurements offline, and three charts over the batch size."""
    offline = rows[rows["scenario"] == "offline"]
    embedding_cache.show(results)
    display(table(with_intervals(offline, OFFLINE), "Offline, with 95% CIs"))
    for draw, caption in (
        (figures.throughput_over_batch, describe.throughput),
        (figures.latency_over_batch, describe.latency),
        (figures.relative_throughput, describe.relative_throughput),
    ):
        _show_chart(config, draw.__name__, draw(rows), caption(rows), offline)


def show_roofline(config: ReportConfig, results: Results, rows: "DataFrame") -> None:
    """Display the measurements and the machine's measured rates, and where their time goes."""
    peaks = analysis.peaks(results)
    caption = describe.roofline(rows, peaks)
    _show_chart(config, "roofline", figures.roofline(rows, peaks), caption, rows)
    display(text.where_time_goes(results))


def show_online(config: ReportConfig, rows: "DataFrame") -> None:
    """Display the measurements in concurrency mode, and where the latency of each goes."""
    online = rows[rows["scenario"] == "online"]
    display(table(with_intervals(online, ONLINE), "Concurrency mode, with 95% CIs"))
    if spent := latency_parts.in_models(online):
        display(spent)
    for name, one in online.groupby("experiment", sort=False):
        caption = describe.latency_parts(one)
        _show_chart(config, f"online_{name}", latency_parts.draw_loads(one), caption, one)


def show_rates(config: ReportConfig, results: Results) -> None:
    """Display the measurements in request-rate mode, if there are some."""
    rows, limit = analysis.frame(config, results, open_loop=True), config.latency_budget_ms
    if rows.empty:
        display(text.markdown("No experiment was measured in request-rate mode."))
        return
    display(table(with_intervals(rows, RATES), "Request-rate mode, with 95% CIs"))
    draw, caption = figures.latency_over_rate, describe.rates(rows, limit)
    _show_chart(config, draw.__name__, draw(rows, limit), caption, rows)


def show_published(config: ReportConfig, results: Results) -> None:
    """Display the measurements next to NVIDIA's published ones."""
    comparison = nvidia.compare(config, results)
    display(nvidia.summary(comparison), nvidia.as_table(comparison))
    for scenario in comparison.scenarios:
        figure, caption = nvidia.draw(comparison, scenario), nvidia.describe(comparison, scenario)
        data = nvidia.data(comparison, scenario)
        _show_chart(config, f"nvidia_comparison_{scenario}", figure, caption, data)


def show_origin(config: ReportConfig, results: Results) -> None:
    """Display what a second load generator measured, and the origin of all numbers."""
    generators = tables.load_generators(config, results)
    display(
        table(generators, "Two load generators, with 95% CIs"),
        table(tables.provenance(results), "Provenance"),
    )


def _show_chart(
    config: ReportConfig, name: str, figure: "Figure", caption: str, data: "DataFrame"
) -> None:
    show(figure, caption, data, results_folder(config) / f"{name}.csv")
