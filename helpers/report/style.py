"""How the points, lines and legends of measurements look in every chart.

Colour and marker name the experiment; a hollow marker is a point that is not stable. Rows without
a measurement are not drawn but counted in the legend.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Literal

from helpers.display import COLOURS, GREY, WIDTH, canvas, mark_decades, number
from helpers.measure import TOLERANCES
from helpers.report.analysis import stable

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from pandas import DataFrame, Series

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p")
Style = tuple[str, str]  # colour and marker
Looks = dict[str, Style]  # by experiment


def styles(rows: "DataFrame") -> Looks:
    """Return a colour and a marker for each experiment; the pairs repeat only after 64."""
    names = enumerate(rows["experiment"].unique())
    return {name: (COLOURS[i % 8], MARKERS[(i + i // 8) % 8]) for i, name in names}


def draw_line(axes: "Axes", line: "DataFrame", x: str, y: str, style: Style, fill: str) -> None:
    """Draw one experiment's line with 95% intervals: a missing point is a gap, one that is not
    stable is hollow. `fill` is a marker's fill style; the line is dotted unless it is "full".
    """
    colour, shape = style
    axes.plot(line[x], line[y], color=colour, ls="-" if fill == "full" else ":", lw=1.5, alpha=0.8)
    for axis, column in (("xerr", x), ("yerr", y)):
        draw_intervals(axes, line, column, colour, x=line[x], y=line[y], axis=axis)
    for chosen, face in ((stable(line), colour), (~stable(line), "white")):
        points = marker("", colour, shape, face=face, fill=fill if face == colour else "full")
        points.set_data(line[x][chosen], line[y][chosen])
        axes.add_line(points)


def draw_intervals(
    axes: "Axes", line: "DataFrame", column: str, colour: str, axis: str, **at: Any
) -> None:
    """Draw the 95% intervals of a column along an axis, "xerr" or "yerr", where it has some."""
    ends = line[TOLERANCES.get(column, [])]
    if ends.notna().any(axis=None):
        reach = ends.sub(line[column], axis=0).abs().fillna(0).T
        axes.errorbar(**at, fmt="none", ecolor=colour, capsize=3, **{axis: reach})


def marker(
    label: str, colour: str, shape: str, *, face: str = "", fill: str = "full", size: float = 7
) -> "Line2D":
    """Return a marker without a line: points of a figure, or an entry of its legend."""
    from matplotlib.lines import Line2D

    faces: dict[str, Any] = {"mfc": face or colour, "mfcalt": "white", "mec": colour, "mew": 1.4}
    faces |= {"fillstyle": fill, "zorder": 3}
    return Line2D([], [], ls="", marker=shape, ms=size, label=label, **faces)


def legend_handles(rows: "DataFrame", points: "DataFrame") -> "list[Artist]":
    """Return the legend's entries for the experiments of `points`."""
    looks = styles(rows)
    return [marker(name, *looks[name]) for name in points["experiment"].unique()]


def add_legend(figure: "Figure", rows: "DataFrame", entries: "list[Artist]") -> None:
    """Put the legend below the axes; it also explains bars, hollow markers and missing rows."""
    if any(hasattr(container, "has_yerr") for axes in figure.axes for container in axes.containers):
        entries = [*entries, marker("95% CI", GREY, "|", size=12)]
    lost = rows["throughput"].isna()
    if (~stable(rows) & ~lost).any():
        entries = [*entries, marker("hollow: not stable", GREY, "o", face="white")]
    if lost.any():
        entries = [*entries, marker(f"not measured: {lost.sum()}", GREY, "")]
    if not entries:
        return
    columns = max(1, int(12 * WIDTH) // (5 + max(len(str(entry.get_label())) for entry in entries)))
    figure.set_figheight(4.0 + 0.24 * -(-len(entries) // columns))
    figure.legend(handles=entries, loc="outside lower left", ncols=columns, frameon=False)


def empty_figure(title: str, rows: "DataFrame") -> "Figure":
    """Return a low chart which says that nothing was measured, and the first reason."""
    figure, axes = canvas(title, height=1.6)
    axes.set_axis_off()
    reasons = [text for text in rows["reason"] if isinstance(text, str) and text]
    why = f"\nFirst reason: {reasons[0]}" if reasons else ""
    axes.text(0.5, 0.5, f"Nothing was measured.{why}", ha="center", va="center", wrap=True)
    return figure


def mark_sizes(axes: "Axes", sizes: Collection[float]) -> None:
    """Make the x axis logarithmic, with ticks at the measured sizes where there is room."""
    ticks: list[float] = []
    for size in sorted(sizes, reverse=True):
        if not ticks or ticks[-1] >= size * (max(sizes) / min(sizes)) ** 0.12:
            ticks.append(size)
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks[::-1])
    axes.set_xticks([], minor=True)
    axes.xaxis.set_major_formatter(number)


def scale(axes: "Axes", values: "Series[float]", which: Literal["x", "y"] = "y") -> None:
    """Start an axis at zero, unless only a logarithmic one shows the small values."""
    axis = axes.yaxis if which == "y" else axes.xaxis
    if values.max() > 30 * values.min() > 0:
        axes.set(**{f"{which}scale": "log", f"{which}label": f"{axis.get_label_text()}, log scale"})
        mark_decades(axis)
    else:
        axes.set(**{f"{which}lim": (0, None)})
        axis.set_major_formatter(number)
