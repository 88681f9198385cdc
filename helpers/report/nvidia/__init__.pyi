from .comparison import compare
from .pages import write_pages
from .section import as_table, data, describe, draw, summary

__all__ = [
    "as_table",
    "compare",
    "data",
    "describe",
    "draw",
    "summary",
    "write_pages",
]
