"""What a performance notebook shows of its measurement: tables, charts and sentences."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from helpers.config import OnlineConfig
from helpers.display import Table, display, picture, table
from helpers.measure import with_intervals
from helpers.report import describe, embedding_cache, figures, latency_parts, text
from helpers.results import Measurement

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

OFFLINE = ["batch_size", "repeated", "throughput", "p50_latency_ms", "p99_latency_ms"]
OFFLINE += ["hit_rate", "default_share", "requests", "quality", "reason"]
IN_PROCESS = ["batch_size", "repeated", "in_process_throughput"]
IN_PROCESS += ["relative_throughput", "relative_quality", "serving_overhead_ms"]
IN_PROCESS += ["noop_latency_ms", "residual_overhead_ms", "noop_reason"]
ONLINE = ["concurrency", "throughput", "p50_latency_ms", "p99_latency_ms", "average_batch_size"]
ONLINE += ["hit_rate", "default_share", "requests", "quality", "reason"]
RATES = ["rate", "p50_latency_ms", "p99_latency_ms", "p50_sent_ms", "p99_sent_ms"]
RATES += ["send_delay_p99_ms", "average_batch_size", "requests", "quality", "reason"]
CONDITIONS = ["margin_of_error", "p90_latency_ms", "p95_latency_ms", "client_overhead"]
CONDITIONS += ["machine_gflops", "background_cpu_cores", "server_peak_memory_mb"]


def show_offline(measurement: Measurement) -> None:
    """Display the batch sizes, the comparison with an in-process baseline, and the conditions."""
    rows = measurement.frame()
    embedding_cache.show_warmup(measurement.passes)
    display(table(with_intervals(rows, OFFLINE), "Offline, with 95% CIs"))
    if rows["in_process_throughput"].notna().any():
        caption = "Compared with the same model in-process, without a server"
        display(table(with_intervals(rows, IN_PROCESS), caption))
    _conditions(measurement, rows, "batch_size")


def show_online(measurement: Measurement) -> None:
    """Display the numbers of clients, and the conditions, which are folded."""
    rows = clients(measurement)
    display(table(with_intervals(rows, ONLINE), "Concurrency mode, with 95% CIs"))
    _conditions(measurement, rows, "concurrency")


def show_rates(measurement: Measurement) -> None:
    """Display the rates of request-rate mode, or say that the experiment has none."""
    rows = measurement.frame().dropna(subset=["rate"])
    if len(rows):
        display(table(with_intervals(rows, RATES), "Request-rate mode, with 95% CIs"))
    else:
        print("This experiment has no `rates`, so nothing was measured in request-rate mode.")


def notice_offline(measurement: Measurement) -> None:
    """Display charts over batch size, where there are several, and the findings in sentences."""
    rows = measurement.frame()
    points = rows[~rows["repeated"].astype(bool)]
    _notice(points, "batch_size", figures.offline_panels, describe.offline(rows))


def notice_online(measurement: Measurement, config: OnlineConfig, is_local: bool) -> None:
    """Display charts over the number of clients, where there are several, and the findings."""
    rows = clients(measurement)
    draw = partial(figures.online_panels, limit=config.latency_budget_ms)
    _notice(rows, "concurrency", draw, describe.online(rows, config, is_local))


def _notice(
    rows: "DataFrame", axis: str, draw: "Callable[[DataFrame], Figure]", sentences: Sequence[str]
) -> None:
    """Display a chart if there is more than one measurement, and the sentences."""
    points = rows[rows["throughput"].notna()].sort_values(axis)
    if len(points) > 1:
        display(picture(draw(points), " ".join(sentences), is_photo=False))
    display(text.bullets(sentences, "What to notice"))


def show_request(measurement: Measurement) -> None:
    """Display the steps of a request with the share of the mean latency that each takes."""
    points = clients(measurement).dropna(subset=["avg_latency_ms", "server_compute_infer_ms"])
    if points.empty:
        print("Triton reported no times of single steps for these measurements.")
        return
    figure = latency_parts.draw_requests(points)
    display(picture(figure, latency_parts.describe(points), is_photo=False))
    if spent := latency_parts.in_models(points):
        display(spent)


def clients(measurement: Measurement) -> "DataFrame":
    """Return the rows of clients who wait for each response: all but those of request-rate mode."""
    rows = measurement.frame()
    return rows[rows["rate"].isna()]


def _conditions(measurement: Measurement, rows: "DataFrame", axis: str) -> None:
    """Display what else is known of the machine and the load generator, folded."""
    conditions = {
        "different samples sent": measurement.distinct_rows,
        "CPU cores used by others before a measurement, at most": measurement.background_before,
        "samples counted by the server": measurement.server_samples,
        "executions": measurement.server_executions,
        "this machine's highest measured rates": measurement.peaks
        and measurement.peaks.model_dump(),
    }
    caption = "Conditions of the measurement"
    body = table(rows[[axis, *CONDITIONS]]).html + table(conditions).html
    display(Table(f"<details><summary>{caption}</summary>{body}</details>", caption))
