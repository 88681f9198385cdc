"""The charts of measurements. Colours and markers come from `style`, captions from `describe`."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from helpers.display import GREY, INK, canvas, mark_decades, number, subplots
from helpers.measure import TOLERANCES
from helpers.report import style
from helpers.report.analysis import TRUSTED, measured, pareto, stable, workloads
from helpers.results import Peaks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from pandas import DataFrame

RED = "#b3261e"
TALL = 2.6  # inches of a panel
AXES = {"batch_size": "batch size", "concurrency": "clients", "sent": "rate (samples/s)"}
LOADS = {"batch_size": "batch size {}", "concurrency": "{} clients", "sent": "{} samples/s"}
FEWEST_BARS = 4  # for which there is room: one alone is not as high as the figure
APART = 0.1  # powers of two between the lines of two experiments, where all are near one value
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


def _offline(title: str, rows: "DataFrame", panel: Panel) -> "Figure":
    return _chart(title, rows, measured(rows, "offline"), panel)


def throughput_over_batch(rows: "DataFrame") -> "Figure":
    """Draw offline throughput over batch size."""
    return _offline("Throughput over batch size, offline", rows, THROUGHPUT)


def latency_over_batch(rows: "DataFrame") -> "Figure":
    """Draw offline p99 latency over batch size; with too few requests there is no bar."""
    return _offline("p99 latency over batch size, offline", rows, P99)


def relative_throughput(rows: "DataFrame") -> "Figure":
    """Draw throughput relative to in-process by batch size, the lines a little apart."""
    return _offline("Throughput relative to in-process, offline", rows, RATIO)


def latency_over_rate(rows: "DataFrame", limit: float | None = None) -> "Figure":
    """Draw p50 and p99 latency in request-rate mode over the rate."""
    points = rows.assign(sent=rows["rate"] * rows["batch_size"]).sort_values("sent")
    panel = replace(PERCENTILES, x="sent", label="latency since due (ms)")
    return _chart("Latency over request rate (Poisson arrivals)", rows, points, panel, limit)


def offline_panels(points: "DataFrame") -> "Figure":
    """Draw a stage's measurements over batch size, two more panels if they have a baseline."""
    count = 4 if points["relative_throughput"].notna().any() else 2
    return _panels("Offline, by batch size", points, STAGE_OFFLINE[:count])


def online_panels(points: "DataFrame", limit: float | None = None) -> "Figure":
    """Draw a stage's measurements over the number of clients."""
    return _panels("Online, by number of clients", points, STAGE_ONLINE, limit)


def _chart(
    title: str, rows: "DataFrame", points: "DataFrame", panel: Panel, limit: float | None = None
) -> "Figure":
    """Draw one panel of all experiments; those of `rows` have the same look in every chart."""
    shown = points.dropna(subset=[next(iter(panel.columns))])
    if shown.empty:
        return style.empty_figure(title, rows)
    figure, axes = canvas(title)
    kinds = _draw(axes, points, panel, style.styles(rows), limit)
    names = [] if axes.patches else style.legend_handles(rows, shown)
    style.add_legend(figure, points, [*names, *kinds])
    return figure


def _panels(
    title: str, points: "DataFrame", panels: Sequence[Panel], limit: float | None = None
) -> "Figure":
    """Draw several panels of one experiment."""
    figure, all_axes = subplots(title, len(panels), TALL)
    for axes, panel in zip(all_axes, panels, strict=True):
        if kinds := _draw(axes, points, panel, style.styles(points), limit):
            axes.legend(handles=kinds, frameon=False, fontsize=8)
    return figure


def _kinds(names: Iterable[str]) -> "list[Line2D]":
    """Return the legend's entries of the columns that have a name."""
    pairs = zip(names, FILLS, strict=False)
    return [style.marker(name, GREY, "o", fill=fill) for name, fill in pairs if name]


def _draw(
    axes: "Axes", points: "DataFrame", panel: Panel, looks: style.Looks, limit: float | None
) -> list[Any]:
    """Draw a panel's columns over its load: bars if each experiment has one point, otherwise lines.
    Return the legend's entries of the columns that have a name.
    """
    trusted = points["quality"].isin(TRUSTED)
    points = points.assign(quality=points[panel.quality].where(trusted, points["quality"]))
    shown = points.dropna(subset=[next(iter(panel.columns))])
    if len(shown) and shown["experiment"].is_unique:
        _draw_bars(axes, shown, panel, looks, limit)
        return list(axes.get_legend_handles_labels()[0])
    names, apart = points["experiment"].unique(), APART if panel.equal else 0
    for index, name in enumerate(names):
        line = points[points["experiment"] == name]
        x = line[panel.x] * 2 ** (apart * (index - (len(names) - 1) / 2))
        for column, fill in zip(panel.columns, FILLS, strict=False):
            if line[column].notna().any():
                style.draw_line(axes, line.assign(x=x), "x", column, looks[name], fill)
    axes.set(xlabel=AXES[panel.x], ylabel=panel.label)
    _scale(axes, points, panel, limit)
    return _kinds(panel.columns.values())


def _draw_bars(
    axes: "Axes", points: "DataFrame", panel: Panel, looks: style.Looks, limit: float | None
) -> None:
    """Draw a horizontal bar for each column of each point; it is hollow if that is not stable."""
    colours = [looks[name][0] for name in points["experiment"]]
    faces = np.where(stable(points), colours, "white")
    height, count = 0.8 / len(panel.columns), len(points)
    for index, (column, name) in enumerate(panel.columns.items()):
        at = np.arange(count) + (index + 0.5) * height - 0.4
        look: dict[str, Any] = {"color": faces, "ec": INK, "hatch": "//" * index, "label": name}
        axes.barh(at, points[column], 0.9 * height, **look)
        style.draw_intervals(axes, points, column, INK, "xerr", x=points[column], y=at)
    loads = (LOADS[panel.x].format(number(load)) for load in points[panel.x].round(3))
    axes.set_yticks(range(count), list(map("{}\n{}".format, points["experiment"], loads)))
    axes.set(xlabel=panel.label, ylim=(max(count, FEWEST_BARS) - 0.5, -0.5))  # the first on top
    axes.grid(visible=False, axis="y")
    axes.xaxis.set_major_formatter(number)
    if panel.equal is not None:
        axes.axvline(panel.equal, color=INK, lw=1)
    # further away it would hide the bars
    if panel.has_budget and limit and limit <= 2 * axes.get_xlim()[1]:
        _mark_budget(axes, limit, is_across=False)


def _scale(axes: "Axes", points: "DataFrame", panel: Panel, limit: float | None) -> None:
    """Scale both axes of a panel, and mark the budget or the ratio of 1 in it."""
    from pandas import Series, concat

    values = points[[*panel.columns]].stack().dropna()
    if panel.has_budget and limit:
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


def frontier(rows: "DataFrame", limit: float | None = None) -> "Figure":
    """Draw throughput against p99 latency; a workload's Pareto points are ringed and joined."""
    title = "Throughput against p99 latency"
    points = rows.dropna(subset=["throughput", "p99_latency_ms"])
    if points.empty:
        return style.empty_figure(title, rows)
    figure, axes = canvas(title, f"{P99.label}, log scale", THROUGHPUT.label)
    kinds = _draw_scenarios(axes, rows, points, "p99_latency_ms", "throughput")
    for _, one in workloads(rows):
        front = pareto(one)
        x, y = front["p99_latency_ms"], front["throughput"]
        axes.plot(x, y, drawstyle="steps-post", color=INK, lw=0.9, alpha=0.6, zorder=1)
        axes.plot(x, y, "o", ms=13, mfc="none", mec=INK, mew=1.1)
    axes.set_xscale("log")
    if limit:
        _mark_budget(axes, limit, is_across=False)
    mark_decades(axes.xaxis)
    style.scale(axes, points["throughput"])
    ring = style.marker("Pareto point", INK, "o", face="none", size=11)
    style.add_legend(figure, rows, [*style.legend_handles(rows, points), *kinds, ring])
    return figure


def roofline(rows: "DataFrame", peaks: Peaks | None) -> "Figure":
    """Draw operations/s over operations per byte, below the machine's measured rates: on the left
    that of memory, on the right those of matrix multiplications in each precision.
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
    for (name, roof), corner in zip(roofs.items(), corners, strict=True):
        axes.plot(
            [left, corner, right],
            [left * peaks.memory_gb_s, roof, roof],
            color=INK,
            lw=1.2,
            zorder=1,
        )
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
