from .figures import (
    COLOURS,
    GREY,
    INK,
    WIDTH,
    canvas,
    legend_below,
    mark_decades,
    number,
    paired_bars,
    picture,
    subplots,
)
from .progress import Lines, Progress, lines_or_live
from .tables import ABSENT, Table, digits, pretty, short, table

__all__ = [
    "ABSENT",
    "COLOURS",
    "GREY",
    "INK",
    "WIDTH",
    "Lines",
    "Progress",
    "Table",
    "canvas",
    "digits",
    "legend_below",
    "lines_or_live",
    "mark_decades",
    "number",
    "paired_bars",
    "picture",
    "pretty",
    "short",
    "subplots",
    "table",
]
