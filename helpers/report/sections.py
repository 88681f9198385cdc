"""The sections of a report: which tables and charts each has, in their order."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from helpers.config import ReportConfig, results_folder
from helpers.display import show, table
from helpers.perf import with_intervals
from helpers.report import (
    analysis,
    describe,
    figures,
    latency_parts,
    nvidia,
    recommend,
    stores,
    tables,
    text,
)
from helpers.report.answers import Answer
from helpers.results import Results

if TYPE_CHECKING:
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
    """Display the answer: in a sentence, as cards, as a chart, and what it rests on."""
    limit = analysis.budget(config)
    _display(text.recommendation(answers))
    _display(recommend.card(answers))
    show(
        figures.frontier(rows, limit),
        describe.frontier(rows, limit),
        rows,
        results_folder(config) / "frontier.csv",
    )
    _display(text.answer(config, results, rows))


def show_accuracy(config: ReportConfig, results: Results, rows: "DataFrame") -> None:
    """Display the experiments, each format compared with fp32, the checks and the metrics."""
    _display(table(config.summary(), "What this report is about"))
    _display(table(tables.configurations(config, results), "Experiments"))
    against = tables.against_fp32(config, results, rows)
    caption = "Each format compared with fp32, offline, at different times: a drift of the machine "
    _display(table(against, f"{caption}between them is not in the 95% CIs"))
    _display(table(tables.parity(results), "The parity checks"))
    caption = f"The task's metrics over the whole set, through Triton{config.caveat}"
    _display(table(tables.metrics(results), caption))


def show_offline(config: ReportConfig, results: Results, rows: "DataFrame") -> None:
    """Display the measurements offline, and three charts over the batch size."""
    offline, folder = rows[rows["scenario"] == "offline"], results_folder(config)
    stores.show(results)
    _display(table(with_intervals(offline, OFFLINE), "Offline, with 95% CIs"))
    for draw, caption in (
        (figures.throughput_over_batch, describe.throughput),
        (figures.latency_over_batch, describe.latency),
        (figures.relative_throughput, describe.relative_throughput),
    ):
        show(draw(rows), caption(rows), offline, folder / f"{draw.__name__}.csv")


def show_roofline(config: ReportConfig, results: Results, rows: "DataFrame") -> None:
    """Display how near the measurements are to the machine's peaks, and where their time goes."""
    peaks = analysis.peaks(results)
    show(
        figures.roofline(rows, peaks),
        describe.roofline(rows, peaks),
        rows,
        results_folder(config) / "roofline.csv",
    )
    _display(text.where_time_goes(results))


def show_online(config: ReportConfig, rows: "DataFrame") -> None:
    """Display the measurements in concurrency mode, and where the latency of each goes."""
    online = rows[rows["scenario"] == "online"]
    _display(table(with_intervals(online, ONLINE), "Concurrency mode, with 95% CIs"))
    for name, one in online.groupby("experiment", sort=False):
        show(
            latency_parts.draw_loads(one),
            describe.latency_parts(one),
            one,
            results_folder(config) / f"online_{name}.csv",
        )


def show_rates(config: ReportConfig, results: Results) -> None:
    """Display the measurements in request-rate mode, if there are some."""
    rows, limit = analysis.frame(config, results, open_loop=True), analysis.budget(config)
    if rows.empty:
        _display(text.markdown("No experiment was measured in request-rate mode."))
        return
    _display(table(with_intervals(rows, RATES), "Request-rate mode, with 95% CIs"))
    show(
        figures.latency_over_rate(rows, limit),
        describe.rates(rows, limit),
        rows,
        results_folder(config) / "latency_over_rate.csv",
    )


def show_published(config: ReportConfig, results: Results) -> None:
    """Display the measurements next to NVIDIA's published ones."""
    comparison = nvidia.compare(config, results)
    _display(nvidia.in_words(comparison))
    _display(nvidia.as_table(comparison))
    for scenario in comparison.scenarios:
        show(
            nvidia.draw(comparison, scenario),
            nvidia.describe(comparison, scenario),
            nvidia.data(comparison, scenario),
            results_folder(config) / f"nvidia_comparison_{scenario}.csv",
        )


def show_origin(config: ReportConfig, results: Results) -> None:
    """Display what a second load generator measured, and the origin of all numbers."""
    _display(table(tables.load_generators(config, results), "Two load generators, with 95% CIs"))
    _display(table(tables.provenance(results), "Provenance"))


def _display(found: object) -> None:
    from IPython.display import display

    display(found)  # type: ignore[no-untyped-call]
