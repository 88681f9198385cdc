"""A request as a bar: the steps that it goes through, and the share of its mean latency that each
takes.

The parts come from perf_analyzer and Triton. *Network* is what the other parts leave,
so it can be negative, and is then drawn on the left of 0.
"""

from typing import TYPE_CHECKING

from helpers.display import INK, canvas, picture, short
from helpers.report.plots import COMPONENT_COLOURS
from helpers.results import LATENCY_COMPONENTS

if TYPE_CHECKING:
    from IPython.display import Image
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame, Series

TITLE = "The steps of a request, from the client and back"
WRITTEN = 0.07  # of the mean latency: a smaller step has no room for its name
BAR = 0.62  # inches, of a measurement
LIGHT = ("#aab2bb", "#56b4e9", "#de8f05", "#cc78bc")  # on which dark letters can be read


def picture_of(rows: "DataFrame") -> "Image | None":
    """Draw the steps of each measurement; None if the parts of no latency are known."""
    known = rows[rows["avg_latency_ms"].notna() & rows["server_compute_infer_ms"].notna()]
    if known.empty:
        return None
    sentences = [
        f"{name_of(row)}: {short(row['avg_latency_ms'])} ms, of which "
        + ", ".join(f"{label} {share:.0%}" for label, share in shares(row).items())
        for _, row in known.iterrows()
    ]
    return picture(draw(known), f"{TITLE}. {'. '.join(sentences)}.")


def name_of(row: "Series[float]") -> str:
    """Return the name of a measurement: by its clients, or by the batch that one client sends."""
    if row["concurrency"] > 1 or row["scenario"] == "online":
        return f"{row['concurrency']:,.0f} client{'s' if row['concurrency'] > 1 else ''}"
    return f"batch {row['batch_size']:,.0f}{', repeated' if row['repeated'] else ''}"


def shares(row: "Series[float]") -> dict[str, float]:
    """Return the share of the mean latency of each part, by its label."""
    parts = row[list(LATENCY_COMPONENTS)].fillna(0.0).astype(float) / row["avg_latency_ms"]
    return {label: parts[column] for column, label in LATENCY_COMPONENTS.items()}


def draw(rows: "DataFrame") -> "Figure":
    """Draw a bar for each measurement, with the names of its longer steps on it."""
    figure, axes = canvas(TITLE, "share of the mean latency (%)", height=1.9 + BAR * len(rows))
    names = []
    for place, (_, row) in enumerate(rows.iterrows()):
        names.append(f"{name_of(row)}\n{short(row['avg_latency_ms'])} ms")
        _draw_bar(axes, place, shares(row), float(row["avg_latency_ms"]))
    axes.set_yticks(range(len(rows)), names)
    axes.invert_yaxis()
    axes.axvline(0, color=INK, lw=1)
    axes.grid(visible=False, axis="y")
    handles, labels = axes.get_legend_handles_labels()
    look = {"ncols": 7, "frameon": False, "fontsize": 8}
    figure.legend(handles, labels, loc="outside lower left", **look)
    return figure


def _draw_bar(axes: "Axes", place: int, parts: dict[str, float], mean_ms: float) -> None:
    right = left = 0.0
    for (label, share), colour in zip(parts.items(), COMPONENT_COLOURS, strict=True):
        start = right if share >= 0 else left
        hatch = "" if label.startswith("server") else "////"
        once = label if not place else None
        axes.barh(
            place, 100 * share, 0.66, 100 * start, color=colour, hatch=hatch, ec="white", label=once
        )
        if share >= WRITTEN:
            text = f"{label.removeprefix('server ')}\n{short(share * mean_ms)} ms"
            ink = INK if colour in LIGHT else "white"
            axes.text(
                100 * (start + share / 2),
                place,
                text,
                ha="center",
                va="center",
                color=ink,
                fontsize=8,
                bbox={"boxstyle": "square,pad=0.1", "fc": colour, "ec": "none"},
            )
        right, left = right + max(share, 0), left + min(share, 0)
