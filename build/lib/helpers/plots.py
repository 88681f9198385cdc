"""What figures of measurements look like: each question is one function from rows to a figure.

Colour and marker name the experiment; a hollow marker is a point that is not stable. Rows without
figures are not drawn but counted in the legend. The words for `show` come from `helpers.findings`.
"""

from collections.abc import Callable
from html import escape
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from helpers.findings import COMPONENTS, UNLIMITED, best, measured, pareto, stable
from helpers.workspace import write_atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from pandas import DataFrame, Series

    Bars = tuple[Series[Any], Series[Any]]  # below and above each point

# Seaborn's colour-blind palette, without its yellow and pink, which are too pale on white.
COLOURS = ("#0173b2", "#de8f05", "#029e73", "#cc78bc", "#a3480a", "#56b4e9", "#5b5b5b", "#b00068")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p")
# In the order of COMPONENTS; what passes outside the server is also hatched.
PARTS = ("#5b5b5b", "#aab2bb", "#de8f05", "#56b4e9", "#0173b2", "#029e73", "#cc78bc")
INK, GREY, RED = "#111111", "#5b5b5b", "#b3261e"
RATE, LATENCY = "throughput (samples/s)", "p99 latency (ms)"
WIDTH = 7.0  # inches, of 96 pixels on a page


def throughput_over_batch(rows: "DataFrame") -> "Figure":
    """Draw offline throughput over batch size; bars show the relative `spread` between windows."""

    def bars(line: "DataFrame") -> "Bars":
        spread = line["throughput"] * line.get("spread", 0)
        return spread, spread

    title, note = "Throughput over batch size, offline", "bar: spread between windows"
    return _over_batch(rows, title, RATE, "throughput", bars, note)


def latency_over_batch(rows: "DataFrame") -> "Figure":
    """Draw offline p99 latency over batch size; the bar of a point goes down to its median."""

    def bars(line: "DataFrame") -> "Bars":
        return line["p99_latency_ms"] - line["p50_latency_ms"], line["p99_latency_ms"] * 0

    title, note = "p99 latency over batch size, offline", "bar: from p99 down to p50"
    return _over_batch(rows, title, LATENCY, "p99_latency_ms", bars, note)


def served_over_bare(rows: "DataFrame") -> "Figure":
    """Draw served over bare throughput by batch size, with the range of the repetitions."""
    ratio, title = "served_bare_ratio", "Served throughput over the bare runtime's, offline"

    def bars(line: "DataFrame") -> "Bars":
        return line[ratio] - line["served_bare_min"], line["served_bare_max"] - line[ratio]

    note = "bar: lowest to highest repetition"
    figure = _over_batch(rows, title, "served / bare throughput", ratio, bars, note, apart=0.1)
    points = measured(rows, "offline", ratio)
    if not points.empty:
        low, high = points["served_bare_min"].min(), points["served_bare_max"].max()
        figure.axes[0].set_ylim(max(0, low - 0.1), max(1, high) + 0.03)
        figure.axes[0].axhline(1, color=INK, lw=1, zorder=1)
    return figure


def latency_components(rows: "DataFrame") -> "Figure":
    """Draw where one experiment's average online latency goes, and its throughput.

    Raises ValueError if `rows` hold several experiments.
    """
    names = rows["experiment"].unique()
    if len(names) > 1:
        raise ValueError(f"one experiment a figure, not {len(names)}: {', '.join(names)}")
    points = measured(rows, "online", "avg_latency_ms")
    title = f"Average latency and throughput online: {', '.join(names)}"
    if points.empty:
        return _nothing(title, rows)
    figure, axes = _canvas(title, "concurrency (requests in flight)", "average latency (ms)")
    places, base = list(range(len(points))), points["avg_latency_ms"] * 0
    for (column, name), colour in zip(COMPONENTS.items(), PARTS, strict=True):
        part, hatch = points[column].fillna(0), "" if column.startswith("server") else "////"
        style: dict[str, Any] = {"color": colour, "ec": "white", "lw": 0.5, "hatch": hatch}
        axes.bar(places, part, bottom=base, width=0.75, label=name, **style)
        base = base + part
    axes.set_xticks(places, [_number(value) for value in points["concurrency"]])
    axes.grid(visible=False, axis="x")
    right = axes.twinx()
    right.set_ylabel(RATE)
    right.grid(visible=False)
    right.spines[:].set_visible(False)
    _line(right, points.assign(x=places), "x", "throughput", (INK, "D"), "full")
    for side, top in ((axes, base.max()), (right, points["throughput"].max())):
        side.set_ylim(0, top * 1.1)
        side.yaxis.set_major_formatter(_number)
    bars = axes.get_legend_handles_labels()[0]
    _legend(figure, measured(rows, "online"), [*bars, _key("throughput", INK, "D")])
    return figure


def frontier(rows: "DataFrame", latency_budget_ms: float = UNLIMITED) -> "Figure":
    """Draw throughput against p99 latency of all rows; Pareto points are ringed and joined.

    The point of the highest stable throughput within the budget carries its value.
    """
    title = "Throughput against p99 latency"
    points = rows.dropna(subset=["throughput", "p99_latency_ms"])
    if points.empty:
        return _nothing(title, rows)
    figure, axes = _canvas(title, f"{LATENCY}, log scale", RATE)
    for name, look in _looks(rows).items():
        for scenario, fill in (("offline", "full"), ("online", "left")):
            line = measured(points[points["experiment"] == name], scenario)
            _line(axes, line, "p99_latency_ms", "throughput", look, fill)
    front = pareto(rows)
    x, y = front["p99_latency_ms"], front["throughput"]
    axes.plot(x, y, drawstyle="steps-post", color=INK, lw=0.9, alpha=0.6, zorder=1)
    axes.plot(x, y, "o", ms=13, mfc="none", mec=INK, mew=1.1)
    axes.set_xscale("log")
    if latency_budget_ms < UNLIMITED:
        axes.axvline(latency_budget_ms, color=RED, ls="--", lw=1.4)
        text, place = f"budget {latency_budget_ms:,g} ms", axes.get_xaxis_transform()
        axes.text(latency_budget_ms, 1, text, color=RED, ha="center", va="bottom", transform=place)
    _logarithmic(axes.xaxis)
    _scale(axes, points["throughput"])
    top = best(rows, latency_budget_ms)
    if top is not None:  # there is room: no stable point lies above and to the left of it
        at, text = (top["p99_latency_ms"], top["throughput"]), f"{top['throughput']:,.0f} samples/s"
        style: dict[str, Any] = {"textcoords": "offset points", "fontweight": "bold"}
        axes.annotate(text, at, xytext=(-9, 8), ha="right", color=INK, **style)
    keys = [_key("offline", GREY, "o"), _key("online", GREY, "o", fill="left")]
    ring = _key("Pareto point", INK, "o", face="none", size=11)
    _legend(figure, rows, [*_keys(rows, points), *keys, ring])
    return figure


def show(figure: "Figure", alt: str, data: "DataFrame", path: Path) -> None:
    """Display `figure` with its alternative text, and below it a link to `data`, written to `path`.

    The link is relative to the folder of `path`, which is the page's. The figure is emptied.
    """
    from IPython.display import HTML, display
    from PIL import Image

    drawn, picture = BytesIO(), BytesIO()
    figure.savefig(drawn, format="png", dpi=192)
    figure.clear()
    # A palette of 128 colours looks the same and makes the page a third of its size.
    Image.open(drawn).convert("RGB").quantize(128).save(picture, "PNG", optimize=True)
    write_atomic(path, data.to_csv(index=False))
    bundle = {"image/png": picture.getvalue(), "text/plain": alt}
    about = {"image/png": {"alt": alt, "width": round(WIDTH * 96)}}
    link = f'<a href="{escape(quote(path.name))}">data of this figure (CSV)</a>'
    display(bundle, raw=True, metadata=about)  # type: ignore[no-untyped-call]
    display(HTML(f"<p style='font-size:.85em;margin:0'>{link}</p>"))  # type: ignore[no-untyped-call]


def _over_batch(
    rows: "DataFrame",
    title: str,
    label: str,
    column: str,
    bars: Callable[["DataFrame"], "Bars"],
    note: str,
    apart: float = 0,
) -> "Figure":
    """Draw `column` of every experiment over batch size, the lines `apart` by powers of two."""
    points = measured(rows, "offline", column)
    if points.empty:
        return _nothing(title, rows)
    figure, axes = _canvas(title, "batch size", label)
    looks = _looks(rows)
    for place, name in enumerate(points["experiment"].unique()):
        line = points[points["experiment"] == name]
        x = line["batch_size"] * 2 ** (apart * (place - (points["experiment"].nunique() - 1) / 2))
        low, high = (bar.fillna(0).clip(lower=0) for bar in bars(line))
        style: dict[str, Any] = {"ecolor": looks[name][0], "elinewidth": 1.3, "capsize": 3}
        axes.errorbar(x, line[column], (low, high), fmt="none", **style)
        _line(axes, line.assign(x=x), "x", column, looks[name], "full")
    sizes = sorted(points["batch_size"].unique())
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes[:: -(-len(sizes) // 10)])
    axes.set_xticks([], minor=True)
    axes.xaxis.set_major_formatter(_number)
    _scale(axes, points[column])
    keys = [*_keys(rows, points), _key(note, GREY, "|", size=12)]
    _legend(figure, measured(rows, "offline"), keys)
    return figure


def _line(
    axes: "Axes", line: "DataFrame", x: str, y: str, look: tuple[str, str], fill: str
) -> None:
    """Draw one experiment's line: a missing point is a gap, one that is not stable is hollow."""
    colour, marker = look
    axes.plot(line[x], line[y], color=colour, ls="-" if fill == "full" else ":", lw=1.5, alpha=0.8)
    for chosen, face in ((stable(line), colour), (~stable(line), "white")):
        mark = _key("", colour, marker, face=face, fill=fill if face == colour else "full")
        mark.set_data(line[x][chosen], line[y][chosen])
        axes.add_line(mark)


def _key(
    label: str, colour: str, marker: str, *, face: str = "", fill: str = "full", size: float = 7
) -> "Line2D":
    """Return a marker without a line: points of a figure, or an entry of its legend."""
    from matplotlib.lines import Line2D

    style: dict[str, Any] = {"mfc": face or colour, "mfcalt": "white", "mec": colour, "mew": 1.4}
    style |= {"fillstyle": fill, "zorder": 3}
    return Line2D([], [], ls="", marker=marker, ms=size, label=label, **style)


def _looks(rows: "DataFrame") -> dict[str, tuple[str, str]]:
    """Give each experiment a colour and a marker; the pairs repeat only after 64."""
    names = enumerate(rows["experiment"].unique())
    return {name: (COLOURS[i % 8], MARKERS[(i + i // 8) % 8]) for i, name in names}


def _keys(rows: "DataFrame", points: "DataFrame") -> "list[Line2D]":
    """Return the legend's entries for the experiments of `points`."""
    looks = _looks(rows)
    return [_key(name, *looks[name]) for name in points["experiment"].unique()]


def _legend(figure: "Figure", rows: "DataFrame", keys: list[Any]) -> None:
    """Put the legend below the axes, with what hollow means and how many rows are not drawn."""
    lost = rows["throughput"].isna()
    if (~stable(rows) & ~lost).any():
        keys = [*keys, _key("hollow: not stable", GREY, "o", face="white")]
    if lost.any():
        keys = [*keys, _key(f"not measured: {lost.sum()}", GREY, "")]
    columns = max(1, 84 // (5 + max(len(key.get_label()) for key in keys)))
    figure.legend(handles=keys, loc="outside lower left", ncols=columns, frameon=False)


def _canvas(title: str, x: str = "", y: str = "") -> tuple["Figure", "Axes"]:
    """Make a white figure with one pair of axes; the style is this figure's only."""
    import seaborn
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(seaborn.axes_style("whitegrid", {"grid.color": "#e4e7eb"})):
        figure = Figure((WIDTH, 4.8), facecolor="white", layout="constrained")
        axes = figure.add_subplot()
    seaborn.despine(ax=axes)
    axes.set_title(title, loc="left", fontweight="bold", pad=20)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    return figure, axes


def _nothing(title: str, rows: "DataFrame") -> "Figure":
    """Say in words that there is nothing to draw, and the first reason."""
    figure, axes = _canvas(title)
    axes.set_axis_off()
    reasons = [text for text in rows.get("reason", ()) if isinstance(text, str) and text]
    why = f"\nThe first reason: {reasons[0]}" if reasons else ""
    axes.text(0.5, 0.5, f"Nothing was measured.{why}", ha="center", va="center", wrap=True)
    return figure


def _scale(axes: "Axes", values: "Series[Any]") -> None:
    """Start the value axis at zero, unless only a logarithmic one shows the small values."""
    if values.max() > 30 * values.min() > 0:
        axes.set_yscale("log")
        axes.set_ylabel(f"{axes.get_ylabel()}, log scale")
        _logarithmic(axes.yaxis)
    else:
        axes.set_ylim(0, None)
        axes.yaxis.set_major_formatter(_number)


def _logarithmic(axis: "Axis") -> None:
    """Mark 1, 2 and 5 of each decade, or the decades alone if there are many."""
    from matplotlib.ticker import LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 2000 * low else (1,)))
    axis.set_major_formatter(_number)
    axis.set_minor_formatter(NullFormatter())


def _number(value: float, _: object = None) -> str:
    return f"{value:,.10g}"
