"""How 95% intervals are written in tables."""

from math import isnan
from typing import TYPE_CHECKING, Any

import numpy as np

from helpers.display import ABSENT, digits
from helpers.measure.statistics import requests_needed

if TYPE_CHECKING:
    from pandas import DataFrame, Series

OF_SOME = {"repeated", "hit_rate", "default_share", "noop_reason"}  # shown if any row has a value
TOLERANCES = {  # the columns of an interval's ends, for each column that has one
    "throughput": ["throughput_low", "throughput_high"],
    "p99_latency_ms": ["p99_low_ms", "p99_high_ms"],
    "relative_throughput": ["relative_throughput_low", "relative_throughput_high"],
    "residual_overhead_ms": ["residual_overhead_low_ms", "residual_overhead_high_ms"],
}


def interval(low: float | None, high: float | None) -> str:
    """Write an interval; a dash where there is none."""
    if low is None or high is None or isnan(low):
        return ABSENT
    return f"{digits(low)} to {digits(high)}"


def _is_used(values: "Series[Any]") -> bool:
    present = values[values.notna() & (values != "")]
    return bool(len(present) and (values.dtype != bool or values.any()))


def with_intervals(rows: "DataFrame", columns: list[str]) -> "DataFrame":
    """Choose columns, and put after each number its 95% CI as text, or for a p99 how many requests
    it needs: "needs 299 requests". Columns that only some rows have are left out where none has.
    """
    shown = [name for name in columns if name not in OF_SOME or _is_used(rows[name])]
    chosen = rows[shown].copy()
    for name, (lowest, highest) in TOLERANCES.items():
        if name not in columns:
            continue
        values = np.asarray(rows[[name, lowest, highest, "requests"]], np.float64)
        texts = [
            f"needs {max(requests_needed(0.99), requests + 1):,.0f} requests"
            if name == "p99_latency_ms" and isnan(low) and not isnan(value)
            else interval(low, high)
            for value, low, high, requests in values
        ]
        title = lowest.partition("_low")[0].replace("_", " ") + ", 95% CI"
        chosen.insert(chosen.columns.get_loc(name) + 1, title, texts)
    return chosen
