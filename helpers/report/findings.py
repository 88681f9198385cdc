"""What the measurements say: the best point, the Pareto front, and a text for each figure.

A finding uses stable rows only. Each text ends with how many rows are not stable or not measured,
because it is also the alternative text of a figure and must stand alone.
"""

from typing import TYPE_CHECKING

from helpers.results import LATENCY_COMPONENTS

if TYPE_CHECKING:
    from pandas import DataFrame, Series

UNLIMITED = float("inf")


def stable(rows: "DataFrame") -> "Series[bool]":
    """Tell which rows are stable."""
    return rows["verdict"] == "stable"


def pareto(rows: "DataFrame") -> "DataFrame":
    """Return the stable rows that no other stable row beats in throughput and p99 latency."""
    points = rows[stable(rows)].dropna(subset=["throughput", "p99_latency_ms"])
    points = points.sort_values(["p99_latency_ms", "throughput"], ascending=[True, False])
    return points[points["throughput"] > points["throughput"].cummax().shift(fill_value=-1)]


def best(rows: "DataFrame", latency_budget_ms: float = UNLIMITED) -> "DataFrame":
    """Return the stable row of the highest throughput within the budget for p99: one, or none."""
    front = pareto(rows)
    return front[front["p99_latency_ms"] <= latency_budget_ms].tail(1)


def measured(rows: "DataFrame", scenario: str, column: str = "throughput") -> "DataFrame":
    """Return a scenario's rows in the order of an axis; none if no row has a value in `column`."""
    chosen = rows[rows["scenario"] == scenario].sort_values(["batch_size", "concurrency"])
    return chosen if chosen[column].notna().any() else chosen.head(0)


def describe_throughput(rows: "DataFrame") -> str:
    """Say which batch size of which experiment is fastest, and by how much."""
    points = _reliable(rows, "offline", "throughput")
    if points.empty:
        return f"No stable offline throughput was measured. {_caveats(rows, 'offline')}"
    top = points.nlargest(1, "throughput").iloc[0]
    first = points[points["experiment"] == top["experiment"]].iloc[0]
    return (
        f"Offline throughput is highest for {top['experiment']} at batch size "
        f"{top['batch_size']:,.0f}: {top['throughput']:,.0f} samples/s, "
        f"{top['throughput'] / first['throughput']:.1f} times that of batch size "
        f"{first['batch_size']:,.0f}. {_caveats(rows, 'offline')}"
    )


def describe_latency(rows: "DataFrame") -> str:
    """Say how p99 latency grows from the smallest to the largest batch."""
    points = _reliable(rows, "offline", "p99_latency_ms")
    lines = [
        f"{name} from {line['p99_latency_ms'].iloc[0]:,.3g} ms at batch size "
        f"{line['batch_size'].iloc[0]:,.0f} to {line['p99_latency_ms'].iloc[-1]:,.3g} ms at "
        f"{line['batch_size'].iloc[-1]:,.0f}"
        for name, line in points.groupby("experiment", sort=False)
    ]
    found = "; ".join(lines) or "no stable point"
    return f"Offline p99 latency: {found}. {_caveats(rows, 'offline')}"


def describe_components(rows: "DataFrame") -> str:
    """Say where the time goes at the highest concurrency, and where throughput peaks."""
    points = _reliable(rows, "online", "avg_latency_ms")
    if points.empty:
        return f"No stable online latency was measured. {_caveats(rows, 'online')}"
    last, peak = points.iloc[-1], points.nlargest(1, "throughput").iloc[0]
    components = last[list(LATENCY_COMPONENTS)].fillna(0).astype(float)
    return (
        f"At concurrency {last['concurrency']:,.0f} the average latency is "
        f"{last['avg_latency_ms']:,.3g} ms; its largest component, "
        f"{LATENCY_COMPONENTS[str(components.idxmax())]}, takes "
        f"{components.max() / last['avg_latency_ms']:.0%}. Throughput peaks at concurrency "
        f"{peak['concurrency']:,.0f} with {peak['throughput']:,.0f} samples/s. "
        f"{_caveats(rows, 'online')}"
    )


def describe_frontier(rows: "DataFrame", latency_budget_ms: float = UNLIMITED) -> str:
    """Say which point to choose within the budget."""
    limit = "" if latency_budget_ms == UNLIMITED else f" within {latency_budget_ms:g} ms"
    found = best(rows, latency_budget_ms)
    if found.empty:
        return f"No stable point{limit}. {_caveats(rows)}"
    top = found.iloc[0]
    return (
        f"The highest stable throughput{limit} is {top['throughput']:,.0f} samples/s "
        f"at p99 latency {top['p99_latency_ms']:,.3g} ms: {top['experiment']}, {top['scenario']}, "
        f"batch size {top['batch_size']:,.0f}, concurrency {top['concurrency']:,.0f}. "
        f"{_caveats(rows)}"
    )


def describe_served_over_bare(rows: "DataFrame") -> str:
    """Say how much of the bare throughput is served: the median, and the worst point."""
    points = _reliable(rows, "offline", "served_bare_ratio")
    if points.empty:
        return f"No stable ratio of served to bare. {_caveats(rows, 'offline')}"
    low = points.nsmallest(1, "served_bare_ratio").iloc[0]
    return (
        f"Triton serves {points['served_bare_ratio'].median():.0%} of the bare throughput (median "
        f"of {len(points)} stable points); the lowest is {low['served_bare_ratio']:.0%}, "
        f"{low['experiment']} at batch size {low['batch_size']:,.0f}. {_caveats(rows, 'offline')}"
    )


def _reliable(rows: "DataFrame", scenario: str, column: str) -> "DataFrame":
    points = measured(rows, scenario, column)
    return points[stable(points)].dropna(subset=column)


def _caveats(rows: "DataFrame", scenario: str = "") -> str:
    """Say how many rows a finding leaves out because they are not stable or failed."""
    rows = rows[rows["scenario"] == scenario] if scenario else rows
    lost = rows["throughput"].isna()
    shaky = ~stable(rows) & ~lost
    return f"Of {len(rows)} points, {shaky.sum()} not stable and {lost.sum()} not measured."
