"""Stacked bars of the parts of the mean latency: of a request in a stage, of all loads in a report.

The parts come from perf_analyzer and Triton. *Network* is the rest. It can be negative, and is then
drawn on the other side of 0.
"""

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from helpers.display import INK, Table, canvas, legend_below, number, short, table
from helpers.report import style
from helpers.report.analysis import measured
from helpers.report.describe import say
from helpers.report.figures import FEWEST_BARS, THROUGHPUT
from helpers.results import LATENCY_COMPONENTS

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame, Series

# In the order of LATENCY_COMPONENTS; what passes outside the server is also hatched.
COLOURS = ("#5b5b5b", "#aab2bb", "#de8f05", "#56b4e9", "#0173b2", "#029e73", "#cc78bc")
LIGHT = ("#aab2bb", "#56b4e9", "#de8f05", "#cc78bc")  # on which dark letters can be read
WRITTEN = 0.07  # of the mean latency: a smaller step has no room for its name
BAR = 0.62  # inches, of a request
REQUEST = "The steps of a request, from the client and back"


def name_of(row: "Series[float]") -> str:
    """Return the name of a measurement: by its clients, or by the batch that one client sends."""
    if row["concurrency"] > 1 or row["scenario"] == "online":
        return f"{row['concurrency']:,.0f} client{'s' if row['concurrency'] > 1 else ''}"
    return f"batch {row['batch_size']:,.0f}{', repeated' if row['repeated'] else ''}"


def describe(rows: "DataFrame") -> str:
    """Return the steps of each measurement with their share of the mean latency."""
    sentences = [f"{REQUEST}."]
    for _, row in rows.iterrows():
        mean_ms = row["avg_latency_ms"]
        shares = [(label, row[part] / mean_ms) for part, label in LATENCY_COMPONENTS.items()]
        sentences.append(say("parts", mean_ms=mean_ms, name=name_of(row), shares=shares))
    return " ".join(sentences)


def in_models(rows: "DataFrame") -> Table | None:
    """Return the mean time of a request in each model of an ensemble; None if none is one."""
    lines, total = [], Counter[str]()
    for _, row in rows[rows["models_ms"].astype(bool)].iterrows():
        total += Counter(row["models_ms"])
        spent = {f"{name} (ms)": short(ms) for name, ms in row["models_ms"].items()}
        named = {"experiment": row["experiment"]} if row["experiment"] else {}
        lines.append(named | {"measurement": name_of(row), **spent})
    if not lines:
        return None
    ((longest, _),) = total.most_common(1)
    return table(lines, f"Mean time in each model of the ensemble: {longest} takes most")


def draw_requests(rows: "DataFrame") -> "Figure":
    """Draw a bar for each measurement, with the names of its longer steps on it."""
    figure, axes = canvas(REQUEST, "share of the mean latency (%)", height=1.9 + BAR * len(rows))
    positions = list(range(len(rows)))
    for parts, starts, look in _stacked(rows, 100 / rows["avg_latency_ms"]):
        axes.barh(positions, parts, 0.66, starts, **look)
        bars = zip(positions, parts, starts, rows["avg_latency_ms"], strict=True)
        for position, share, start, mean_ms in bars:
            if share >= 100 * WRITTEN:
                name, colour = look["label"].removeprefix("server "), look["color"]
                text = f"{name}\n{short(share / 100 * mean_ms)} ms"
                x, ink = start + share / 2, INK if colour in LIGHT else "white"
                box = {"boxstyle": "square,pad=0.1", "fc": colour, "ec": "none"}
                centred: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 8}
                axes.text(x, position, text, color=ink, bbox=box, **centred)
    names = [f"{name_of(row)}\n{short(row['avg_latency_ms'])} ms" for _, row in rows.iterrows()]
    axes.set_yticks(positions, names)
    axes.invert_yaxis()
    axes.axvline(0, color=INK, lw=1)
    axes.grid(visible=False, axis="y")
    legend_below(figure, axes, fontsize=8)
    return figure


def draw_loads(rows: "DataFrame") -> "Figure":
    """Draw the parts of one experiment's average online latency, and its throughput."""
    points = measured(rows, "online", "avg_latency_ms")
    title = f"Average latency and throughput online\n{', '.join(rows['experiment'].unique())}"
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
    """Yield for each part its bars' lengths, where they start and how they look."""
    above = points["avg_latency_ms"] * 0
    below = above.copy()
    for (column, label), colour in zip(LATENCY_COMPONENTS.items(), COLOURS, strict=True):
        part = points[column].fillna(0) * scale
        hatch = "" if column.startswith("server") else "////"
        look = {"color": colour, "hatch": hatch, "ec": "white", "label": label}
        yield part, above.where(part >= 0, below), look
        above, below = above + part.clip(lower=0), below + part.clip(upper=0)
