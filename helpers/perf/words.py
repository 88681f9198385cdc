"""How 95 % intervals are written in tables."""

from math import isnan
from typing import TYPE_CHECKING

import numpy as np

from helpers.display import ABSENT, digits
from helpers.perf.statistics import QUANTILES, requests_needed

if TYPE_CHECKING:
    from pandas import DataFrame


def interval(low: float | None, high: float | None, absent: str = ABSENT) -> str:
    """Write an interval, or `absent` where there is none."""
    return (
        absent if low is None or high is None or isnan(low) else f"{digits(low)} to {digits(high)}"
    )


def with_intervals(rows: "DataFrame") -> "DataFrame":
    """Add columns of text to rows: `throughput_interval`, `served_bare_interval` and those of the
    percentiles, as `p99_interval_ms`: "needs 299" says how many requests it needs at least.
    """
    texts: dict[str, list[str]] = {}
    for name in ("throughput", "served_bare"):
        bounds = np.asarray(rows[[f"{name}_low", f"{name}_high"]], np.float64)
        texts[f"{name}_interval"] = [interval(low, high) for low, high in bounds]
    for q in QUANTILES:
        names = [f"p{q}_latency_ms", f"p{q}_low_ms", f"p{q}_high_ms", "requests"]
        texts[f"p{q}_interval_ms"] = [
            ABSENT
            if isnan(value)
            else interval(low, high, f"needs {max(requests_needed(q / 100), requests + 1):,.0f}")
            for value, low, high, requests in np.asarray(rows[names], np.float64)
        ]
    return rows.assign(**texts)
