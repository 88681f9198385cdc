"""A chart of configurations: latency and throughput, for each number of clients."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from helpers.compare.findings import frame
from helpers.display import COLOURS, GREY, digits, legend_below, show, subplots
from helpers.measure import Point
from helpers.results import clients_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame

SERIES = {  # column -> its ends, label, colour, marker and its fill
    "p50_latency_ms": ("p50_low_ms", "p50_high_ms", "p50", COLOURS[0], "o", "full"),
    "p99_latency_ms": ("p99_low_ms", "p99_high_ms", "p99", COLOURS[1], "D", "none"),
    "throughput": ("throughput_low", "throughput_high", "throughput", COLOURS[2], "s", "full"),
}
ROW = 0.27  # inches, of a configuration


def show_points(points: Sequence[Point], title: str, path: Path) -> None:
    """Display the measurements as a chart with its caption, and a link to its data in `path`."""
    rows = frame(points)
    show(draw(rows, title), in_words(rows), rows, path)


def draw(rows: "DataFrame", title: str) -> "Figure":
    """Draw the measurements, with 95% CIs where they are known."""
    counts = rows["clients"].unique()
    tall = 0.9 + ROW * len(rows) / len(counts)
    figure, panels = subplots(title, 2 * len(counts), tall)
    for index, count in enumerate(counts):
        left, right = panels[2 * index : 2 * index + 2]
        some = rows[rows["clients"] == count].iloc[::-1]  # the first on top
        for axes, columns, label in (
            (left, ("p50_latency_ms", "p99_latency_ms"), "latency (ms)"),
            (right, ("throughput",), "throughput (samples/s)"),
        ):
            for column in columns:
                _draw(axes, some, column)
            axes.set_title(clients_of(count), loc="left", fontsize="medium")
            axes.set_xlabel(label)
            axes.set_xlim(0, None)
        left.set_yticks(range(len(some)), some["configuration"])
        right.set_yticks(range(len(some)), [""] * len(some))
    _draw(panels[0], rows.iloc[:0], "throughput")  # the legend is that of the first subplot
    panels[0].plot([], [], color=GREY, lw=1.5, label="95% CI")
    legend_below(figure, panels[0])
    return figure


def _draw(axes: "Axes", rows: "DataFrame", column: str) -> None:
    low, high, label, colour, mark, fill = SERIES[column]
    positions = range(len(rows))
    axes.hlines(positions, rows[low].astype(float), rows[high].astype(float), colour, lw=1.5)
    axes.plot(rows[column], positions, mark, color=colour, fillstyle=fill, label=label, ls="none")


def in_words(rows: "DataFrame") -> str:
    """Return where each number is lowest and highest: the chart's caption."""
    sentences = []
    for count, some in rows.groupby("clients", sort=False):
        ends = []
        for name, column, unit in (
            ("p50 latency", "p50_latency_ms", "ms"),
            ("throughput", "throughput", "samples/s"),
        ):
            values = some.set_index("configuration")[column]
            low, high = f"{digits(values.min())} {unit}", f"{digits(values.max())} {unit}"
            ends.append(f"{name} is {low} ({values.idxmin()}) to {high} ({values.idxmax()})")
        sentences.append(f"with {clients_of(count)} {' and '.join(ends)}")
    caption = "; ".join(sentences)
    return f"{caption[:1].upper()}{caption[1:]}."
