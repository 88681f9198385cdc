"""Stacked bars of the parts of the mean latency: of a request in a stage, of all loads in a report.

The parts come from perf_analyzer and Triton. *Network* is the rest. It can be negative, and is then
drawn on the other side of 0.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from helpers.display import INK, canvas, number, short
from helpers.report import style
from helpers.report.analysis import measured
from helpers.report.describe import say
from helpers.report.figures import THROUGHPUT
from helpers.results import LATENCY_COMPONENTS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame, Series

# In the order of LATENCY_COMPONENTS; what passes outside the server is also hatched.
COLOURS = ("#5b5b5b", "#aab2bb", "#de8f05", "#56b4e9", "#0173b2", "#029e73", "#cc78bc")
LIGHT = ("#aab2bb", "#56b4e9", "#de8f05", "#cc78bc")  # on which dark letters can be read
FEWEST_BARS = 4  # for which there is room: one alone is not drawn as wide as the figure
WRITTEN = 0.07  # of the mean latency: a smaller step has no room for its name
BAR = 0.62  # inches, of a request
REQUEST = "The steps of a request, from the client and back"


def name_of(row: "Series[float]") -> str:
    """Return the name of a measurement: by its clients, or by the batch that one client sends."""
    if row["concurrency"] > 1 or row["scenario"] == "online":
        return f"{row['concurrency']:,.0f} client{'s' if row['concurrency'] > 1 else ''}"
    return f"batch {row['batch_size']:,.0f}{', repeated' if row['repeated'] else ''}"


def known(rows: "DataFrame") -> "DataFrame":
    """Return the measurements whose parts of the latency are known."""
    return rows[rows["avg_latency_ms"].notna() & rows["server_compute_infer_ms"].notna()]


def describe(rows: "DataFrame") -> str:
    """Return the steps of each measurement with their share of the mean latency."""
    sentences = [f"{REQUEST}."]
    for _, row in rows.iterrows():
        mean_ms = row["avg_latency_ms"]
        shares = [(label, row[part] / mean_ms) for part, label in LATENCY_COMPONENTS.items()]
        sentences.append(say("parts", mean_ms=mean_ms, name=name_of(row), shares=shares))
    return " ".join(sentences)


def draw_requests(rows: "DataFrame") -> "Figure":
    """Draw a bar for each measurement, with the names of its longer steps on it."""
    figure, axes = canvas(REQUEST, "share of the mean latency (%)", height=1.9 + BAR * len(rows))
    positions = list(range(len(rows)))
    for parts, starts, look in _stacked(rows, 100 / rows["avg_latency_ms"]):
        axes.barh(positions, parts, 0.66, starts, **look)
        for position, share, start, mean_ms in zip(
            positions, parts, starts, rows["avg_latency_ms"], strict=True
        ):
            if share >= 100 * WRITTEN:
                name = look["label"].removeprefix("server ")
                text = f"{name}\n{short(share / 100 * mean_ms)} ms"
                _write(axes, (start + share / 2, position), text, look["color"])
    names = [f"{name_of(row)}\n{short(row['avg_latency_ms'])} ms" for _, row in rows.iterrows()]
    axes.set_yticks(positions, names)
    axes.invert_yaxis()
    axes.axvline(0, color=INK, lw=1)
    axes.grid(visible=False, axis="y")
    handles = axes.get_legend_handles_labels()[0]
    below: dict[str, Any] = {"ncols": 7, "frameon": False, "fontsize": 8}
    figure.legend(handles=handles, loc="outside lower left", **below)
    return figure


def draw_loads(rows: "DataFrame") -> "Figure":
    """Draw the parts of one experiment's average online latency, and its throughput.

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
    positions, lowest, highest = list(range(len(points))), 0.0, points["avg_latency_ms"].max()
    for parts, starts, look in _stacked(points):
        axes.bar(positions, parts, 0.75, starts, lw=0.5, **look)
        ends = starts + parts
        lowest, highest = min(lowest, ends.min()), max(highest, ends.max())
    step = -(-len(points) // 16)
    axes.set_xticks(positions[::step], [number(value) for value in points["concurrency"][::step]])
    beside = max(0.0, FEWEST_BARS - len(points)) / 2
    axes.set_xlim(-0.5 - beside, len(points) - 0.5 + beside)
    axes.grid(visible=False, axis="x")
    right = axes.twinx()
    right.set_ylabel(THROUGHPUT.label)
    right.grid(visible=False)
    right.spines[:].set_visible(False)
    style.draw_line(right, points.assign(x=positions), "x", "throughput", (INK, "D"), "full")
    fastest = points[["throughput", "throughput_high"]].max(axis=None)
    for side, height in ((axes, highest), (right, fastest)):
        side.set_ylim(height * lowest / highest * 1.1, height * 1.1)
        side.yaxis.set_major_formatter(number)
    entries = [*axes.get_legend_handles_labels()[0], style.marker("throughput", INK, "D")]
    style.add_legend(figure, measured(rows, "online"), entries)
    return figure


def _stacked(
    points: "DataFrame", scale: "Series[float] | float" = 1.0
) -> "Iterator[tuple[Series[float], Series[float], dict[str, Any]]]":
    """Yield for each part the lengths of its bars, where they start, and how they look. Negative
    parts are stacked on the other side of 0.
    """
    above = points["avg_latency_ms"] * 0
    below = above.copy()
    for (column, label), colour in zip(LATENCY_COMPONENTS.items(), COLOURS, strict=True):
        part = points[column].fillna(0) * scale
        hatch = "" if column.startswith("server") else "////"
        look = {"color": colour, "hatch": hatch, "ec": "white", "label": label}
        yield part, above.where(part >= 0, below), look
        above, below = above + part.clip(lower=0), below + part.clip(upper=0)


def _write(axes: "Axes", position: tuple[float, float], text: str, colour: str) -> None:
    """Write on a bar."""
    box = {"boxstyle": "square,pad=0.1", "fc": colour, "ec": "none"}
    ink = INK if colour in LIGHT else "white"
    axes.text(*position, text, ha="center", va="center", color=ink, fontsize=8, bbox=box)
