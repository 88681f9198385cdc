"""Small figures of several panels for the models' own displays, with words beside them."""

from io import BytesIO
from typing import TYPE_CHECKING

from helpers.display.style import INK, WIDTH

if TYPE_CHECKING:
    from IPython.display import Image
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def panels(title: str, count: int, tall: float = 2.2) -> tuple["Figure", "list[Axes]"]:
    """Make a white figure with `count` panels, two in a row and `tall` inches each; the style is
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


def picture(figure: "Figure", text: str) -> "Image":
    """Turn a figure into what a notebook shows, with its alternative text."""
    from IPython.display import Image

    drawn = BytesIO()
    figure.savefig(drawn, format="png", dpi=192)
    return Image(drawn.getvalue(), width=round(WIDTH * 96), alt=text)  # type: ignore[no-untyped-call]
