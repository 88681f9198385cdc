"""The charts of measurements: what each shows, and one way to draw it, in a report and in a stage.

Colours and markers come from `helpers.report.style`, captions from `helpers.report.describe`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from helpers.display import GREY, INK, canvas, mark_decades, subplots
from helpers.measure import TOLERANCES
from helpers.report import style
from helpers.report.analysis import TRUSTED, UNLIMITED, leaders, measured, pareto, workloads
from helpers.results import Peaks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from pandas import DataFrame

RED = "#b3261e"
TALL = 2.6  # inches of a panel
AXES = {"batch_size": "batch size", "concurrency": "clients", "sent": "rate (samples/s)"}
FILLS = ("full", "left")  # of the markers of a panel's first and second column


@dataclass(frozen=True)
class Panel:
    """What a pair of axes shows: one or two columns of measurements over their load."""

    label: str  # of the y axis, with the unit
    columns: Mapping[str, str]  # with the name of each, "" of one that is alone
    x: str = "batch_size"
    quality: str = "quality"  # the column of the quality by which markers are hollow
    equal: float | None = None  # the ratio at which both sides are equal
    has_budget: bool = False


THROUGHPUT = Panel("throughput (samples/s)", {"throughput": ""})
P99 = Panel("p99 latency (ms)", {"p99_latency_ms": ""})
PERCENTILES = Panel(
    "latency (ms)", {"p99_latency_ms": "p99", "p50_latency_ms": "p50"}, has_budget=True
)
RATIO = Panel(
    "relative throughput", {"relative_throughput": ""}, quality="relative_quality", equal=1
)
OVERHEAD = Panel(
    "time per request (ms)",
    {"serving_overhead_ms": "serving overhead", "noop_latency_ms": "no-op model"},
)
BATCHES = Panel("batch size", {"average_batch_size": "average", "batch_size": "of a request"})
PARTS = Panel(
    "mean time (ms)",
    {"server_compute_infer_ms": "server inference", "server_queue_ms": "server queue"},
)
STAGE_OFFLINE = (THROUGHPUT, PERCENTILES, RATIO, OVERHEAD)
STAGE_ONLINE = tuple(
    replace(panel, x="concurrency") for panel in (THROUGHPUT, PERCENTILES, BATCHES, PARTS)
)


def throughput_over_batch(rows: "DataFrame") -> "Figure":
    """Draw offline throughput over batch size."""
    title = "Throughput over batch size, offline"
    return _chart(title, rows, measured(rows, "offline"), THROUGHPUT)


def latency_over_batch(rows: "DataFrame") -> "Figure":
    """Draw offline p99 latency over batch size; with too few requests there is no bar."""
    return _chart("p99 latency over batch size, offline", rows, measured(rows, "offline"), P99)


def relative_throughput(rows: "DataFrame") -> "Figure":
    """Draw throughput relative to in-process by batch size, the lines a little apart."""
    title = "Throughput relative to in-process, offline"
    return _chart(title, rows, measured(rows, "offline"), RATIO, apart=0.1)


def latency_over_rate(rows: "DataFrame", limit: float = UNLIMITED) -> "Figure":
    """Draw p50 and p99 latency in request-rate mode over the rate."""
    points = rows.assign(sent=rows["rate"] * rows["batch_size"]).sort_values("sent")
    panel = replace(PERCENTILES, x="sent", label="latency since due (ms)")
    return _chart("Latency over request rate (Poisson arrivals)", rows, points, panel, limit)


def offline_panels(points: "DataFrame") -> "Figure":
    """Draw a stage's measurements over batch size, two more panels if they have a baseline."""
    count = 4 if points["relative_throughput"].notna().any() else 2
    return _panels("Offline, by batch size", points, STAGE_OFFLINE[:count])


def online_panels(points: "DataFrame", limit: float = UNLIMITED) -> "Figure":
    """Draw a stage's measurements over the number of clients."""
    return _panels("Online, by number of clients", points, STAGE_ONLINE, limit)


def _chart(
    title: str,
    rows: "DataFrame",
    points: "DataFrame",
    panel: Panel,
    limit: float = UNLIMITED,
    apart: float = 0,
) -> "Figure":
    """Draw one panel of all experiments; those of `rows` have the same look in every chart."""
    if points[next(iter(panel.columns))].isna().all():
        return style.empty_figure(title, rows)
    figure, axes = canvas(title)
    _draw(axes, points, panel, style.styles(rows), limit, apart)
    shown = points.dropna(subset=[next(iter(panel.columns))])
    entries = [*style.legend_handles(rows, shown), *_kinds(panel.columns.values())]
    style.add_legend(figure, points, entries)
    return figure


def _panels(
    title: str, points: "DataFrame", panels: Sequence[Panel], limit: float = UNLIMITED
) -> "Figure":
    """Draw several panels of one experiment."""
    figure, all_axes = subplots(title, len(panels), TALL)
    for axes, panel in zip(all_axes, panels, strict=True):
        _draw(axes, points, panel, style.styles(points), limit)
        if kinds := _kinds(panel.columns.values()):
            axes.legend(handles=kinds, frameon=False, fontsize=8)
    return figure


def _kinds(names: Iterable[str]) -> "list[Line2D]":
    """Return the legend's entries of the columns that have a name."""
    pairs = zip(names, FILLS, strict=False)
    return [style.marker(name, GREY, "o", fill=fill) for name, fill in pairs if name]


def _draw(
    axes: "Axes",
    points: "DataFrame",
    panel: Panel,
    looks: Mapping[str, style.Style],
    limit: float,
    apart: float = 0,
) -> None:
    """Draw a panel's columns over its load, the lines of experiments `apart` by powers of two."""
    trusted = points["quality"].isin(TRUSTED)
    points = points.assign(quality=points[panel.quality].where(trusted, points["quality"]))
    names = points["experiment"].unique()
    for index, name in enumerate(names):
        line = points[points["experiment"] == name]
        x = line[panel.x] * 2 ** (apart * (index - (len(names) - 1) / 2))
        for column, fill in zip(panel.columns, FILLS, strict=False):
            if line[column].notna().any():
                style.draw_line(axes, line.assign(x=x), "x", column, looks[name], fill)
    axes.set(xlabel=AXES[panel.x], ylabel=panel.label)
    _scale(axes, points, panel, limit)


def _scale(axes: "Axes", points: "DataFrame", panel: Panel, limit: float) -> None:
    """Scale both axes of a panel, and mark the budget or the ratio of 1 in it."""
    from pandas import Series, concat

    values = points[[*panel.columns]].stack().dropna()
    if panel.has_budget and limit < UNLIMITED:
        _mark_budget(axes, limit)
        values = concat([values, Series([limit])])
    if panel.equal is not None:
        columns = [*panel.columns, *TOLERANCES["relative_throughput"]]
        low, high = points[columns].min(axis=None), points[columns].max(axis=None)
        axes.set_ylim(max(0, low - 0.1), max(panel.equal, high) + 0.03)
        axes.axhline(panel.equal, color=INK, lw=1, zorder=1)
    elif len(values):
        style.scale(axes, values)
    if len(values) and values.min() < 0:
        axes.set_ylim(1.1 * values.min(), None)
        axes.axhline(0, color=INK, lw=1, zorder=1)
    if panel.x == "sent":
        style.scale(axes, points[panel.x], "x")
    else:
        style.mark_sizes(axes, points[panel.x].unique())


def _mark_budget(axes: "Axes", limit: float, is_across: bool = True) -> None:
    """Draw the latency budget as a line across the axes, or upright."""
    look: dict[str, Any] = {"color": RED, "ls": "--", "lw": 1.4}
    if is_across:
        axes.axhline(limit, **look)
        transform, x, y, side = axes.get_yaxis_transform(), 0.01, limit, "left"
    else:
        axes.axvline(limit, **look)
        transform, x, y, side = axes.get_xaxis_transform(), limit, 1.0, "center"
    axes.text(x, y, f"budget {limit:,g} ms", color=RED, va="bottom", ha=side, transform=transform)


def frontier(rows: "DataFrame", limit: float = UNLIMITED) -> "Figure":
    """Draw throughput against p99 latency of all rows; Pareto points are ringed and joined, those
    of each workload apart.

    The point of the highest throughput that is confirmed to meet the budget carries its value.
    """
    title = "Throughput against p99 latency"
    points = rows.dropna(subset=["throughput", "p99_latency_ms"])
    if points.empty:
        return style.empty_figure(title, rows)
    figure, axes = canvas(title, f"{P99.label}, log scale", THROUGHPUT.label)
    kinds = _draw_scenarios(axes, rows, points, "p99_latency_ms", "throughput")
    latencies = points["p99_latency_ms"]
    middle = (latencies.min() * latencies.max()) ** 0.5  # of the logarithmic axis
    for _, one in workloads(rows):
        front = pareto(one)
        x, y = front["p99_latency_ms"], front["throughput"]
        axes.plot(x, y, drawstyle="steps-post", color=INK, lw=0.9, alpha=0.6, zorder=1)
        axes.plot(x, y, "o", ms=13, mfc="none", mec=INK, mew=1.1)
        for _, top in leaders(one, limit).head(1).iterrows():
            note, at = (
                f"{top['throughput']:,.0f} samples/s",
                (top["p99_latency_ms"], top["throughput"]),
            )
            side, away = ("right", -9) if at[0] > middle else ("left", 9)
            axes.annotate(
                note, at, (away, 8), textcoords="offset points", ha=side, color=INK, weight="bold"
            )
    axes.set_xscale("log")
    if limit < UNLIMITED:
        _mark_budget(axes, limit, is_across=False)
    mark_decades(axes.xaxis)
    style.scale(axes, points["throughput"])
    ring = style.marker("Pareto point", INK, "o", face="none", size=11)
    style.add_legend(figure, rows, [*style.legend_handles(rows, points), *kinds, ring])
    return figure


def roofline(rows: "DataFrame", peaks: Peaks | None) -> "Figure":
    """Draw the operations/s of all rows over their operations per byte, below the machine's
    measured rates. Those of memory are on the left, those of matrix multiplications in each
    precision on the right.
    """
    title = "Roofline"
    points = rows.dropna(subset=["intensity", "gflops"])
    if points.empty or peaks is None:
        return style.empty_figure(title, points)
    figure, axes = canvas(title, "FLOP/byte, log scale", "GFLOP/s, log scale")
    roofs = {name: peaks.gflops[name.lower()] for name in points["precision"].unique()}
    corners = [roof / peaks.memory_gb_s for roof in roofs.values()]
    left = min(points["intensity"].min(), *corners) / 2
    right = max(points["intensity"].max(), *corners) * 4
    for name, roof in roofs.items():
        corner = roof / peaks.memory_gb_s
        x = [left, corner, right]
        axes.plot(x, [left * peaks.memory_gb_s, roof, roof], color=INK, lw=1.2, zorder=1)
        text = f"{name} {roof:,.0f} GFLOP/s"
        axes.annotate(text, (right, roof), (0, 3), textcoords="offset points", ha="right")
    text, low = f"{peaks.memory_gb_s:,.3g} GB/s", (left, left * peaks.memory_gb_s)
    axes.annotate(text, low, (4, 0), textcoords="offset points", va="top")
    kinds = _draw_scenarios(axes, rows, points, "intensity", "gflops")
    axes.set(xscale="log", yscale="log", xlim=(left, right), ylim=(None, 1.5 * max(roofs.values())))
    mark_decades(axes.xaxis)
    mark_decades(axes.yaxis)
    style.add_legend(figure, rows, [*style.legend_handles(rows, points), *kinds])
    return figure


def _draw_scenarios(
    axes: "Axes", rows: "DataFrame", points: "DataFrame", x: str, y: str
) -> "list[Line2D]":
    """Draw each experiment's lines offline and online, and return the legend's entries of both."""
    scenarios = ("offline", "online")
    for name, look in style.styles(rows).items():
        for scenario, fill in zip(scenarios, FILLS, strict=True):
            line = measured(points[points["experiment"] == name], scenario, y)
            style.draw_line(axes, line, x, y, look, fill)
    return _kinds(scenarios)
