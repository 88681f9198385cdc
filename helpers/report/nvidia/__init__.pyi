from .comparison import Comparison, compare
from .rows_page import write_page
from .section import as_table, data, describe, draw, in_words

__all__ = [
    "Comparison",
    "as_table",
    "compare",
    "data",
    "describe",
    "draw",
    "in_words",
    "write_page",
]
