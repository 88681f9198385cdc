"""How charts look: palette, white figures of one or several subplots, bars, legends and ticks."""

from collections.abc import Mapping
from html import escape
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np

from helpers.display.tables import display
from helpers.store import block_import, write_atomic

if TYPE_CHECKING:
    from IPython.display import Image
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from numpy.typing import NDArray
    from pandas import DataFrame

# Seaborn's colour-blind palette, without its yellow and pink, which are too pale on white.
COLOURS = ("#0173b2", "#de8f05", "#029e73", "#cc78bc", "#a3480a", "#56b4e9", "#5b5b5b", "#b00068")
INK, GREY = "#111111", "#5b5b5b"
DPI = 144  # 1.5 pixels of a picture per pixel of the page
PALETTE = 128  # colours of a chart: it looks the same, and the page is a third as large
WIDTH = 10.25  # inches of 96 pixels: the width of the page's text
CAPTION = "font-size:.9em;max-width:48rem;margin:0 0 1em"  # below a figure


def canvas(title: str, x: str = "", y: str = "", height: float = 4.8) -> tuple["Figure", "Axes"]:
    """Make a white figure with one pair of axes, `height` inches high."""
    figure, (axes,) = _white(height, 1)
    axes.set_title(title, loc="left", fontweight="bold", pad=20)
    axes.set(xlabel=x, ylabel=y)
    return figure, axes


def subplots(
    title: str, count: int, tall: float = 2.2, across: int = 2
) -> tuple["Figure", "list[Axes]"]:
    """Make a white figure with `count` subplots, `across` in a row and `tall` inches each."""
    figure, axes = _white(0.9 + tall * -(-count // across), count, across)
    figure.suptitle(title, x=0.01, ha="left", fontweight="bold", color=INK)
    return figure, axes


def _white(height: float, count: int, across: int = 2) -> tuple["Figure", "list[Axes]"]:
    """Make a figure without a title; its style does not change that of other figures."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    # only seaborn's estimates need it, and its import takes longer than a figure
    with block_import("scipy"):
        import seaborn

    with rc_context(seaborn.axes_style("whitegrid", {"grid.color": "#e4e7eb"})):
        figure = Figure((WIDTH, height), facecolor="white", layout="constrained")
        grid = (-(-count // across), min(count, across))
        axes = [figure.add_subplot(*grid, index) for index in range(1, count + 1)]
    for subplot in axes:
        seaborn.despine(ax=subplot)
    return figure, axes


def paired_bars(
    axes: "Axes", pairs: Mapping[str, "NDArray[np.float64]"], *, across: bool = False
) -> None:
    """Draw two named series of bars side by side at 1, 2 and so on, horizontal if `across`."""
    draw = axes.barh if across else axes.bar
    looks = ((-0.2, COLOURS[0], ""), (0.2, COLOURS[1], "///"))
    for (label, values), (offset, colour, hatch) in zip(pairs.items(), looks, strict=True):
        positions = np.arange(1, len(values) + 1) + offset
        draw(positions, values, 0.38, color=colour, hatch=hatch, ec="white", label=label)
    axes.grid(visible=False, axis="y" if across else "x")


def legend_below(figure: "Figure", axes: "Axes", fontsize: float = 10) -> None:
    """Put one legend with the series of `axes` below all subplots."""
    handles, labels = axes.get_legend_handles_labels()
    look: dict[str, Any] = {"ncols": len(labels), "frameon": False, "fontsize": fontsize}
    figure.legend(handles, labels, loc="outside lower left", **look)


def picture(figure: "Figure", text: str, *, is_photo: bool = True) -> "Image":
    """Return a figure as an image with alternative text; one with photos keeps all its colours."""
    from IPython.display import Image
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from PIL.Image import fromarray

    figure.set_dpi(DPI)
    canvas, encoded = FigureCanvasAgg(figure), BytesIO()
    canvas.draw()  # type: ignore[no-untyped-call]
    # the pixels of `savefig`, which would lay the figure out twice
    drawn = fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")  # type: ignore[no-untyped-call]
    drawn = drawn if is_photo else drawn.quantize(PALETTE)
    drawn.save(encoded, "PNG", optimize=not is_photo)
    return Image(encoded.getvalue(), width=round(WIDTH * 96), alt=text)  # type: ignore[no-untyped-call]


def show(figure: "Figure", sentence: str, data: "DataFrame", path: Path) -> None:
    """Display `figure`, its caption and a link to `data`, written to `path` next to the page."""
    from IPython.display import HTML

    write_atomic(path, data.to_csv(index=False))
    link = f'<a href="{escape(quote(path.name))}">data of this chart (CSV)</a>'
    # a screen reader has read the sentence as the figure's alternative text
    content = f'<span aria-hidden="true">{escape(sentence)}</span> {link}'
    caption = HTML(f'<p class="caption" style="{CAPTION}">{content}</p>')  # type: ignore[no-untyped-call]
    display(picture(figure, sentence, is_photo=False), caption)


def mark_decades(axis: "Axis") -> None:
    """Put ticks at 1, 2 and 5 of each decade, or only at the decades if there are many."""
    from matplotlib.ticker import LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 2000 * low else (1,)))
    axis.set_major_formatter(number)
    axis.set_minor_formatter(NullFormatter())


def number(value: float, _: object = None) -> str:
    return f"{value:,.10g}"
