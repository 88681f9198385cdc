from .comparison import compare
from .fidelity_page import write_fidelity
from .rows_page import write_page
from .section import as_table, data, describe, draw, in_words

__all__ = [
    "as_table",
    "compare",
    "data",
    "describe",
    "draw",
    "in_words",
    "write_fidelity",
    "write_page",
]
