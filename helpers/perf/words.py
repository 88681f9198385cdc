"""How 95% intervals are written in tables."""

from math import isnan
from typing import TYPE_CHECKING, Any

import numpy as np

from helpers.display import ABSENT, digits
from helpers.perf.statistics import requests_needed

if TYPE_CHECKING:
    from pandas import DataFrame, Series

OF_SOME = {"repeated", "hit_rate", "default_share", "noop_reason"}  # shown where they say anything
BOUNDS = {  # of columns that have an interval: its ends
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
    said = values[values.notna() & (values != "")]
    return bool(len(said) and (values.dtype != bool or values.any()))


def with_intervals(rows: "DataFrame", columns: list[str]) -> "DataFrame":
    """Choose columns of rows, and put after each figure its interval as text. A p99 that has none
    says how many requests it needs at least: "needs 299". Columns that only
    some rows have are left out where none has.
    """
    kept = [each for each in columns if each not in OF_SOME or _is_used(rows[each])]
    chosen = rows[kept].copy()
    for name, (lowest, highest) in BOUNDS.items():
        if name not in columns:
            continue
        values = np.asarray(rows[[name, lowest, highest, "requests"]], np.float64)
        texts = [
            f"needs {max(requests_needed(0.99), requests + 1):,.0f}"
            if name == "p99_latency_ms" and isnan(low) and not isnan(value)
            else interval(low, high)
            for value, low, high, requests in values
        ]
        title = lowest.partition("_low")[0].replace("_", " ") + ", 95%"
        chosen.insert(chosen.columns.get_loc(name) + 1, title, texts)
    return chosen
