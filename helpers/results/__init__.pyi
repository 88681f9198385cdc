from .files import Results, of_model, read, read_requests, rows, save, timestamp, write
from .fingerprints import difference, fingerprint
from .row import LATENCY_COMPONENTS, Row, TableRow, Verdict
from .types import (
    Difference,
    GpuState,
    LookupPass,
    Measurement,
    Operator,
    Peaks,
    Profile,
    Result,
    Rung,
    Score,
    State,
)

__all__ = [
    "LATENCY_COMPONENTS",
    "Difference",
    "GpuState",
    "LookupPass",
    "Measurement",
    "Operator",
    "Peaks",
    "Profile",
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
