"""Small figures of several subplots for the models' own displays, with alternative text."""

from collections.abc import Mapping
from io import BytesIO
from typing import TYPE_CHECKING

import numpy as np

from helpers.display.style import COLOURS, INK, WIDTH

if TYPE_CHECKING:
    from IPython.display import Image
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray


def subplots(title: str, count: int, tall: float = 2.2) -> tuple["Figure", "list[Axes]"]:
    """Make a white figure with `count` subplots, two in a row and `tall` inches each; the style is
    this figure's only.
    """
    import seaborn
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    rows = -(-count // 2)
    with rc_context(seaborn.axes_style("whitegrid", {"grid.color": "#e4e7eb"})):
        figure = Figure((WIDTH, 0.9 + tall * rows), facecolor="white", layout="constrained")
        found = [figure.add_subplot(rows, min(count, 2), place + 1) for place in range(count)]
    figure.suptitle(title, x=0.01, ha="left", fontweight="bold", color=INK)
    for axes in found:
        seaborn.despine(ax=axes)
    return figure, found


def paired_bars(
    axes: "Axes", pairs: Mapping[str, "NDArray[np.float64]"], *, across: bool = False
) -> None:
    """Draw two named series of bars next to each other, at the places 1, 2 and so on.

    The bars stand, or lie one below the other if `across`; hatches tell them apart without colour.
    """
    draw = axes.barh if across else axes.bar
    looks = ((-0.2, COLOURS[0], ""), (0.2, COLOURS[1], "///"))
    for (label, values), (offset, colour, hatch) in zip(pairs.items(), looks, strict=True):
        places = np.arange(1, len(values) + 1) + offset
        draw(places, values, 0.38, color=colour, hatch=hatch, ec="white", label=label)
    axes.grid(visible=False, axis="y" if across else "x")


def legend_below(figure: "Figure", axes: "Axes") -> None:
    """Put one legend below all subplots, with what `axes` shows."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower left", ncols=len(labels), frameon=False)


def picture(figure: "Figure", text: str) -> "Image":
    """Turn a figure into what a notebook shows, with its alternative text."""
    from IPython.display import Image

    drawn = BytesIO()
    figure.savefig(drawn, format="png", dpi=192)
    return Image(drawn.getvalue(), width=round(WIDTH * 96), alt=text)  # type: ignore[no-untyped-call]
