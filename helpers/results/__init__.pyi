from .saving import COLUMNS, SCHEMA, basis, of_model, read, rows, save

__all__ = [
    "COLUMNS",
    "SCHEMA",
    "basis",
    "of_model",
    "read",
    "rows",
    "save",
]
