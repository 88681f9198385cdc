"""The charts of a performance stage: small panels of one experiment's measurements.

Their alternative text are the sentences of `noticed`. Points of more than one batch size or number
of clients are needed: one point is a table.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from helpers.display import COLOURS, GREY, INK, WIDTH, png, subplots
from helpers.report import style
from helpers.report.plots import RED

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame

TALL = 2.6  # inches of a panel
FIRST, SECOND = (COLOURS[0], "o"), (COLOURS[4], "s")


def show_offline(rows: "DataFrame", said: Iterable[str]) -> None:
    """Display throughput, latency and serving overhead over batch size, if there are several."""
    points = _points(rows[~rows["repeated"].astype(bool)], "batch_size")
    if len(points) > 1:
        _show(offline(points), said)


def show_online(rows: "DataFrame", budget_ms: float | None, said: Iterable[str]) -> None:
    """Display throughput, latency with the budget, average batch size and the two largest parts of
    the latency over the number of clients, if there are several.
    """
    points = _points(rows, "concurrency")
    if len(points) > 1:
        _show(online(points, budget_ms), said)


def offline(points: "DataFrame") -> "Figure":
    """Draw two panels, and two more where there is an in-process baseline."""
    has_baseline = points["relative_throughput"].notna().any()
    figure, found = subplots("Offline, by batch size", 4 if has_baseline else 2, TALL)
    _draw(found[0], points, "batch_size", {"throughput": ""}, "throughput (samples/s)")
    latencies = {"p50_latency_ms": "p50", "p99_latency_ms": "p99"}
    _draw(found[1], points, "batch_size", latencies, "latency (ms)")
    if has_baseline:
        trusted = points["quality"].isin(("stable", "imprecise"))
        qualities = points["relative_quality"].where(trusted, points["quality"])
        ratio = points.assign(quality=qualities)
        _draw(found[2], ratio, "batch_size", {"relative_throughput": ""}, "relative throughput")
        found[2].axhline(1, color=INK, lw=1, zorder=1)
        costs = {"serving_overhead_ms": "serving overhead", "noop_latency_ms": "no-op model"}
        _draw(found[3], points, "batch_size", costs, "time per request (ms)")
    _name_x(found, "batch size")
    return figure


def online(points: "DataFrame", budget_ms: float | None) -> "Figure":
    """Draw four panels; the budget is a line in that of the latency."""
    figure, found = subplots("Online, by number of clients", 4, TALL)
    _draw(found[0], points, "concurrency", {"throughput": ""}, "throughput (samples/s)")
    latencies = {"p50_latency_ms": "p50", "p99_latency_ms": "p99"}
    _draw(found[1], points, "concurrency", latencies, "latency (ms)", budget_ms)
    batches = {"average_batch_size": ""}
    _draw(found[2], points, "concurrency", batches, "average batch size")
    found[2].axhline(
        points["batch_size"].max(), color=GREY, lw=1, ls=":", label="batch size of a request"
    )
    found[2].legend(frameon=False, fontsize=8)
    parts = {"server_queue_ms": "server queue", "server_compute_infer_ms": "server inference"}
    _draw(found[3], points, "concurrency", parts, "mean time (ms)")
    _name_x(found, "clients")
    return figure


def _points(rows: "DataFrame", axis: str) -> "DataFrame":
    return rows[rows["throughput"].notna()].sort_values(axis)


def _draw(
    axes: "Axes",
    points: "DataFrame",
    x: str,
    columns: dict[str, str],
    label: str,
    budget_ms: float | None = None,
) -> None:
    """Draw columns as lines over `x`, with a legend where they have names."""
    from pandas import concat

    for look, fill, (column, name) in zip(
        (FIRST, SECOND), ("full", "left"), columns.items(), strict=False
    ):
        if points[column].notna().any():
            style.draw_line(axes, points, x, column, look, fill)
            if name:
                axes.plot([], [], color=look[0], marker=look[1], fillstyle=fill, label=name)
    axes.set_ylabel(label)
    values = concat([points[column] for column in columns]).dropna()
    if budget_ms:
        axes.axhline(budget_ms, color=RED, ls="--", lw=1.4, label=f"budget {budget_ms:,g} ms")
        values = concat([values, values.head(1) * 0 + budget_ms])
    if len(values):
        style.scale(axes, values)
        if values.min() < 0:
            axes.set_ylim(1.1 * values.min(), None)
            axes.axhline(0, color=INK, lw=1, zorder=1)
        if axes.get_yscale() == "linear":  # markers at the top are seen whole
            low, high = axes.get_ylim()
            axes.set_ylim(low, high + 0.06 * (high - low))
    style.mark_sizes(axes, points[x].unique())
    if any(columns.values()):
        axes.legend(frameon=False, fontsize=8)


def _name_x(panels: Iterable["Axes"], label: str) -> None:
    for axes in panels:
        axes.set_xlabel(label)


def _show(figure: "Figure", said: Iterable[str]) -> None:
    from IPython.display import Image, display

    found = Image(png(figure), width=round(WIDTH * 96), alt=" ".join(said))  # type: ignore[no-untyped-call]
    display(found)  # type: ignore[no-untyped-call]
