"""The cost per million inferences, and the bounds on cost and memory that a configuration meets."""

from math import inf

from helpers.config import BoundFields
from helpers.display import digits, number
from helpers.measure.statistics import Interval
from helpers.results import Estimate


def cost_per_million(
    price_per_hour: float | None, throughput: float, interval: Interval | None
) -> Estimate | None:
    """Return price / (3600 x throughput) x 10^6 with its 95% CI; None without a price."""
    if price_per_hour is None:
        return None
    price = price_per_hour / 3600 * 1e6  # of a million seconds
    ends = (price / interval.high, price / interval.low) if interval else None
    return Estimate.of(price / throughput, ends)


def cost_in_words(cost: Estimate | None) -> str:
    """Return a cost with its 95% CI; empty without one."""
    bounds = cost and cost.low and cost.high and f"{digits(cost.low)} to {digits(cost.high)}"
    return f"{digits(cost.value)}{f' (95% CI {bounds})' if bounds else ''}" if cost else ""


def over_cost(bounds: BoundFields, cost: Estimate | None) -> str:
    """Return the reason if a cost is known to be above `max_cost_per_million`; else empty."""
    limit, least = bounds.max_cost_per_million or inf, (cost and cost.low) or 0
    words = f"cost per million is {cost_in_words(cost)}, max_cost_per_million is {number(limit)}"
    return words if least > limit else ""


def over_memory(bounds: BoundFields, peak_mb: float | None) -> str:
    """Return the reason if a peak memory is known to be above `max_memory_mb`; else empty."""
    limit, used = bounds.max_memory_mb or inf, peak_mb or 0
    words = f"the server uses {digits(used)} MB, max_memory_mb is {number(limit)}"
    return words if used > limit else ""
