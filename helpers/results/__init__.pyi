from .files import Results, of_model, read, read_requests, rows, save, timestamp, write
from .fingerprints import difference, fingerprint
from .types import (
    LATENCY_COMPONENTS,
    Difference,
    GpuState,
    Measurement,
    Result,
    Row,
    Rung,
    Score,
    State,
    TableRow,
    Verdict,
)

__all__ = [
    "LATENCY_COMPONENTS",
    "Difference",
    "GpuState",
    "Measurement",
    "Result",
    "Results",
    "Row",
    "Rung",
    "Score",
    "State",
    "TableRow",
    "Verdict",
    "difference",
    "fingerprint",
    "of_model",
    "read",
    "read_requests",
    "rows",
    "save",
    "timestamp",
    "write",
]
