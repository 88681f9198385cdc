"""The charts of measurements: each question is one function from rows to a chart.

Colours and markers come from `helpers.report.style`, captions from `helpers.report.findings`.
"""

from typing import TYPE_CHECKING

from helpers.display import GREY, INK, canvas, mark_decades, number
from helpers.display import show as show  # beside what it shows
from helpers.report import style
from helpers.report.findings import UNLIMITED, leaders, measured, pareto, workloads
from helpers.results import LATENCY_COMPONENTS, Peaks

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

# In the order of LATENCY_COMPONENTS; what passes outside the server is also hatched.
COMPONENT_COLOURS = ("#5b5b5b", "#aab2bb", "#de8f05", "#56b4e9", "#0173b2", "#029e73", "#cc78bc")
FEWEST_BARS = 4  # for which there is room: one alone is not drawn as wide as the figure
RED = "#b3261e"
RATE, LATENCY = "throughput (samples/s)", "p99 latency (ms)"


def throughput_over_batch(rows: "DataFrame") -> "Figure":
    """Draw offline throughput over batch size."""
    points = measured(rows, "offline")
    return _over_batch(rows, points, "Throughput over batch size, offline", RATE, "throughput")


def latency_over_batch(rows: "DataFrame") -> "Figure":
    """Draw offline p99 latency over batch size; with too few requests there is no bar."""
    points, title = measured(rows, "offline", "p99_latency_ms"), "p99 latency over batch size"
    return _over_batch(rows, points, f"{title}, offline", LATENCY, "p99_latency_ms")


def relative_throughput(rows: "DataFrame") -> "Figure":
    """Draw throughput relative to in-process by batch size; hollow: not stable."""
    title, label = "Throughput relative to in-process, offline", "relative throughput"
    trusted = rows["quality"].isin(("stable", "imprecise"))
    rows = rows.assign(quality=rows["relative_quality"].where(trusted, rows["quality"]))
    points = measured(rows, "offline", "relative_throughput")
    figure = _over_batch(rows, points, title, label, "relative_throughput", apart=0.1)
    if not points.empty:
        ratios = points.filter(regex="^relative_throughput")
        low, high = ratios.min(axis=None), ratios.max(axis=None)
        figure.axes[0].set_ylim(max(0, low - 0.1), max(1, high) + 0.03)
        figure.axes[0].axhline(1, color=INK, lw=1, zorder=1)
    return figure


def _over_batch(
    rows: "DataFrame",
    points: "DataFrame",
    title: str,
    label: str,
    column: str,
    apart: float = 0,
) -> "Figure":
    """Draw `column` of every experiment over batch size, the lines `apart` by powers of two."""
    if points.empty:
        return style.empty_figure(title, rows)
    figure, axes = canvas(title, "batch size", label)
    names, looks = points["experiment"].unique(), style.styles(rows)
    for place, name in enumerate(names):
        line = points[points["experiment"] == name]
        x = line["batch_size"] * 2 ** (apart * (place - (len(names) - 1) / 2))
        style.draw_line(axes, line.assign(x=x), "x", column, looks[name], "full")
    style.mark_sizes(axes, points["batch_size"].unique())
    style.scale(axes, points[column])
    style.add_legend(figure, measured(rows, "offline"), style.legend_handles(rows, points))
    return figure


def latency_components(rows: "DataFrame") -> "Figure":
    """Draw the components of one experiment's average online latency, and its throughput. One that
    is negative hangs below 0.

    Raises ValueError if `rows` hold several experiments.
    """
    names = rows["experiment"].unique()
    if len(names) > 1:
        raise ValueError(f"one experiment per chart, not {len(names)}: {', '.join(names)}")
    points = measured(rows, "online", "avg_latency_ms")
    title = f"Average latency and throughput online\n{', '.join(names)}"
    if points.empty:
        return style.empty_figure(title, rows)
    figure, axes = canvas(title, "concurrency (requests in flight)", "average latency (ms)")
    places, top = list(range(len(points))), points["avg_latency_ms"] * 0
    bottom = top.copy()
    for (column, label), colour in zip(LATENCY_COMPONENTS.items(), COMPONENT_COLOURS, strict=True):
        part, hatch = points[column].fillna(0), "" if column.startswith("server") else "////"
        base = top.where(part >= 0, bottom)
        axes.bar(
            places, part, 0.75, base, color=colour, ec="white", lw=0.5, hatch=hatch, label=label
        )
        top, bottom = top + part.clip(lower=0), bottom + part.clip(upper=0)
    step = -(-len(points) // 16)
    axes.set_xticks(places[::step], [number(value) for value in points["concurrency"][::step]])
    beside = max(0.0, FEWEST_BARS - len(points)) / 2
    axes.set_xlim(-0.5 - beside, len(points) - 0.5 + beside)
    axes.grid(visible=False, axis="x")
    right = axes.twinx()
    right.set_ylabel(RATE)
    right.grid(visible=False)
    right.spines[:].set_visible(False)
    style.draw_line(right, points.assign(x=places), "x", "throughput", (INK, "D"), "full")
    highest = max(top.max(), points["avg_latency_ms"].max())
    fastest = points[["throughput", "throughput_high"]].max(axis=None)
    for side, height in ((axes, highest), (right, fastest)):
        side.set_ylim(height * bottom.min() / highest * 1.1, height * 1.1)
        side.yaxis.set_major_formatter(number)
    entries = [*axes.get_legend_handles_labels()[0], style.marker("throughput", INK, "D")]
    style.add_legend(figure, measured(rows, "online"), entries)
    return figure


def latency_over_rate(rows: "DataFrame", latency_budget_ms: float = UNLIMITED) -> "Figure":
    """Draw p50 and p99 latency in request-rate mode over the rate."""
    title = "Latency over request rate (Poisson arrivals)"
    points = rows.dropna(subset=["rate", "p99_latency_ms"])
    if points.empty:
        return style.empty_figure(title, rows)
    points = points.assign(sent=points["rate"] * points["batch_size"]).sort_values("sent")
    figure, axes = canvas(title, "rate (samples/s)", "latency since due (ms), log scale")
    for name, look in style.styles(rows).items():
        line = points[points["experiment"] == name]
        style.draw_line(axes, line, "sent", "p99_latency_ms", look, "full")
        style.draw_line(axes, line, "sent", "p50_latency_ms", look, "left")
    axes.set_yscale("log")
    if latency_budget_ms < UNLIMITED:
        axes.axhline(latency_budget_ms, color=RED, ls="--", lw=1.4)
        text, place = f"budget {latency_budget_ms:,g} ms", axes.get_yaxis_transform()
        axes.text(0.01, latency_budget_ms, text, color=RED, va="bottom", transform=place)
    mark_decades(axes.yaxis)
    if points["sent"].max() > 30 * points["sent"].min():
        axes.set_xscale("log")
        mark_decades(axes.xaxis)
    else:
        axes.set_xlim(0, None)
        axes.xaxis.set_major_formatter(number)
    kinds = [style.marker("p99", GREY, "o"), style.marker("p50", GREY, "o", fill="left")]
    style.add_legend(figure, rows, [*style.legend_handles(rows, points), *kinds])
    return figure


def frontier(rows: "DataFrame", latency_budget_ms: float = UNLIMITED) -> "Figure":
    """Draw throughput against p99 latency of all rows; Pareto points are ringed and joined, those
    of each workload apart.

    The point of the highest throughput that is confirmed to meet the budget carries its value.
    """
    title = "Throughput against p99 latency"
    points = rows.dropna(subset=["throughput", "p99_latency_ms"])
    if points.empty:
        return style.empty_figure(title, rows)
    figure, axes = canvas(title, f"{LATENCY}, log scale", RATE)
    for name, look in style.styles(rows).items():
        for scenario, fill in (("offline", "full"), ("online", "left")):
            line = measured(points[points["experiment"] == name], scenario, "p99_latency_ms")
            style.draw_line(axes, line, "p99_latency_ms", "throughput", look, fill)
    latencies = points["p99_latency_ms"]
    middle = (latencies.min() * latencies.max()) ** 0.5  # of the logarithmic axis
    for _, one in workloads(rows):
        front = pareto(one)
        x, y = front["p99_latency_ms"], front["throughput"]
        axes.plot(x, y, drawstyle="steps-post", color=INK, lw=0.9, alpha=0.6, zorder=1)
        axes.plot(x, y, "o", ms=13, mfc="none", mec=INK, mew=1.1)
        for _, top in leaders(one, latency_budget_ms).head(1).iterrows():
            note, at = (
                f"{top['throughput']:,.0f} samples/s",
                (top["p99_latency_ms"], top["throughput"]),
            )
            side, away = ("right", -9) if at[0] > middle else ("left", 9)
            axes.annotate(
                note, at, (away, 8), textcoords="offset points", ha=side, color=INK, weight="bold"
            )
    axes.set_xscale("log")
    if latency_budget_ms < UNLIMITED:
        axes.axvline(latency_budget_ms, color=RED, ls="--", lw=1.4)
        text, place = f"budget {latency_budget_ms:,g} ms", axes.get_xaxis_transform()
        axes.text(latency_budget_ms, 1, text, color=RED, ha="center", va="bottom", transform=place)
    mark_decades(axes.xaxis)
    style.scale(axes, points["throughput"])
    kinds = [style.marker("offline", GREY, "o"), style.marker("online", GREY, "o", fill="left")]
    ring = style.marker("Pareto point", INK, "o", face="none", size=11)
    style.add_legend(figure, rows, [*style.legend_handles(rows, points), *kinds, ring])
    return figure


def roofline(rows: "DataFrame", peaks: Peaks | None) -> "Figure":
    """Draw the operations/s of all rows over their operations per byte, below the machine's
    measured rates: of memory on the left, of matrix multiplications in each precision on the right.
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
    for name, look in style.styles(rows).items():
        for scenario, fill in (("offline", "full"), ("online", "left")):
            line = measured(points[points["experiment"] == name], scenario, "gflops")
            style.draw_line(axes, line, "intensity", "gflops", look, fill)
    axes.set(xscale="log", yscale="log", xlim=(left, right), ylim=(None, 1.5 * max(roofs.values())))
    mark_decades(axes.xaxis)
    mark_decades(axes.yaxis)
    kinds = [style.marker("offline", GREY, "o"), style.marker("online", GREY, "o", fill="left")]
    style.add_legend(figure, rows, [*style.legend_handles(rows, points), *kinds])
    return figure
