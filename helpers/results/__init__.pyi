from .fingerprints import difference, fingerprint
from .reading import Results, of_model, read, rows
from .saving import save, timestamp, write
from .types import (
    SCHEMA,
    ArtefactFacts,
    Difference,
    Fingerprint,
    GpuState,
    Measurement,
    Result,
    Row,
    Rung,
    Score,
    State,
    Verdict,
)

__all__ = [
    "SCHEMA",
    "ArtefactFacts",
    "Difference",
    "Fingerprint",
    "GpuState",
    "Measurement",
    "Result",
    "Results",
    "Row",
    "Rung",
    "Score",
    "State",
    "Verdict",
    "difference",
    "fingerprint",
    "of_model",
    "read",
    "rows",
    "save",
    "timestamp",
    "write",
]
