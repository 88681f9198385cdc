"""What the measurements show: the best of them, the Pareto front, and a caption for each chart.

A finding uses stable and imprecise measurements with the 95% CIs of their throughputs, and compares
only those of one workload: one variant of the network and one data set. A caption is one sentence,
and also the alternative text of its chart. Where 95% CIs overlap there is no clear winner: that is
a convention, not a test.
"""

from typing import TYPE_CHECKING

from helpers.display import digits, short
from helpers.perf import interval
from helpers.results import LATENCY_COMPONENTS, Peaks, clients_of

if TYPE_CHECKING:
    from pandas import DataFrame, Series

UNLIMITED = float("inf")


def stable(rows: "DataFrame") -> "Series[bool]":
    """Return which rows are stable."""
    return rows["quality"] == "stable"


def known(rows: "DataFrame") -> "DataFrame":
    """Return the rows that findings use: stable or imprecise, with a 95% CI."""
    return rows[rows["quality"].isin(("stable", "imprecise")) & rows["throughput_low"].notna()]


def workloads(rows: "DataFrame") -> "list[tuple[str, DataFrame]]":
    """Return the rows of each workload with its name, "" if there is only one."""
    different = [name for name in ("variant", "dataset") if rows[name].nunique() > 1]
    parts = rows.groupby(different, sort=False) if different else [((), rows)]
    return [(", ".join(filter(None, key)), one) for key, one in parts]


def leaders(rows: "DataFrame", latency_budget_ms: float = UNLIMITED) -> "DataFrame":
    """Return the row of the highest throughput that is confirmed to meet the budget, then all whose
    95% CIs overlap with its own.
    """
    rows = known(rows).sort_values("throughput", ascending=False)
    if latency_budget_ms < UNLIMITED:
        rows = rows[rows["budget"] == "met"]
    return rows[rows["throughput_high"] >= rows["throughput_low"].head(1).max()]


def keeps_budget(rows: "DataFrame", latency_budget_ms: float) -> bool:
    """Return whether the fastest row of every workload is an online one that is confirmed to meet
    the budget.
    """
    found = [
        (leaders(one).index[:1], leaders(measured(one, "online"), latency_budget_ms).index[:1])
        for _, one in workloads(rows)
    ]
    return all(len(fastest) and fastest.equals(within) for fastest, within in found)


def pareto(rows: "DataFrame") -> "DataFrame":
    """Return the rows of one workload that no other beats in throughput and p99 latency."""
    points = known(rows).dropna(subset=["throughput", "p99_latency_ms"])
    points = points.sort_values(["p99_latency_ms", "throughput"], ascending=[True, False])
    return points[points["throughput"] > points["throughput"].cummax().shift(fill_value=-1)]


def measured(rows: "DataFrame", scenario: str, column: str = "throughput") -> "DataFrame":
    """Return a scenario's rows in the order of an axis; none if no row has a value in `column`."""
    chosen = rows[rows["scenario"] == scenario].sort_values(["batch_size", "concurrency"])
    return chosen if chosen[column].notna().any() else chosen.head(0)


def describe_throughput(rows: "DataFrame") -> str:
    """Return the caption of offline throughput: the highest of each workload."""
    tops = _tops(rows[rows["scenario"] == "offline"])
    return f"Highest offline throughput: {tops}." if tops else "No offline throughput is known."


def describe_latency(rows: "DataFrame") -> str:
    """Return the caption of offline p99 latency: at the smallest and at the largest batch size."""
    points = known(measured(rows, "offline", "p99_latency_ms"))
    lines = []
    for name, line in points.groupby("experiment", sort=False):
        ends = [
            f"{short(row['p99_latency_ms'])} ms at batch size {row['batch_size']:,.0f}"
            for _, row in line.iloc[[0, -1]].iterrows()
        ]
        alone = len(line) == 1
        lines.append(f"{name} {ends[0]}" if alone else f"{name} {ends[0]} to {ends[1]}")
    return f"Offline p99 latency: {'; '.join(lines)}." if lines else "No offline p99 is known."


def describe_components(rows: "DataFrame") -> str:
    """Return the caption of the latency's components: the largest, and where throughput peaks."""
    points = known(measured(rows, "online", "avg_latency_ms"))
    if points.empty:
        return "No online latency is known."
    last, peaks = points.iloc[-1], leaders(points)
    components = last[list(LATENCY_COMPONENTS)].dropna().astype(float).nlargest(1)
    largest = [
        f" ({ms / last['avg_latency_ms']:.0%} of it {LATENCY_COMPONENTS[str(name)]})"
        for name, ms in components.items()
    ]
    low, high = peaks["concurrency"].min(), peaks["concurrency"].max()
    clients = (
        clients_of(low) if low == high else f"{low:,.0f} to {clients_of(high)} (no clear winner)"
    )
    return (
        f"With {clients_of(last['concurrency'])} the average latency is "
        f"{short(last['avg_latency_ms'])} ms{''.join(largest)}; throughput is highest with "
        f"{clients}, {_rate(peaks.iloc[0])}."
    )


def describe_frontier(rows: "DataFrame", latency_budget_ms: float = UNLIMITED) -> str:
    """Return the caption of throughput against latency: the fastest of each workload within the
    budget.
    """
    limit = "" if latency_budget_ms == UNLIMITED else f" within {latency_budget_ms:g} ms (p99)"
    tops = [
        f"{f'{workload}: ' * bool(workload)}{top['experiment']}, "
        f"{digits(top['throughput'])} samples/s"
        for workload, points in workloads(rows)
        for _, top in leaders(points, latency_budget_ms).head(1).iterrows()
    ]
    return f"Fastest{limit}: {'; '.join(tops)}." if tops else _none(latency_budget_ms)


def describe_fastest(rows: "DataFrame", latency_budget_ms: float = UNLIMITED) -> str:
    """Return the fastest measurement of each workload within the budget, those that may be as fast,
    and a faster one that needs more requests to be confirmed.
    """
    said = []
    for workload, points in workloads(rows):
        found = leaders(points, latency_budget_ms)
        said.append(f"{workload}: " if workload else "")
        if found.empty:
            said[-1] += _none(latency_budget_ms)
        else:
            top = found.iloc[0]
            said[-1] += f"{_rate(top)}{_p99(top)}: {_names(found)}."
        unknown = known(points[points["budget"] == "unconfirmed"])
        faster = unknown[~(unknown["throughput"] <= found["throughput"].max())]
        if latency_budget_ms < UNLIMITED:
            for _, top in faster.sort_values("throughput").tail(1).iterrows():
                said.append(
                    f"Not confirmed: {_named(top)}, {_rate(top)}. It has {top['requests']:,.0f} "
                    f"requests and needs at least {top['budget_needs']:,.0f}."
                )
    return " ".join(said)


def describe_rates(rows: "DataFrame", latency_budget_ms: float = UNLIMITED) -> str:
    """Return the caption of latency over request rate: the highest rate of each workload that is
    confirmed to meet the budget; without a budget the highest that the server kept up with.
    """
    if rows.empty:
        return "The request-rate mode was not measured."
    is_free = latency_budget_ms == UNLIMITED
    said = []
    for workload, points in workloads(rows):
        kept = points[points["quality"].isin(("stable", "imprecise"))]
        top = (kept if is_free else kept[kept["budget"] == "met"]).sort_values("throughput").tail(1)
        for _, row in top.iterrows():
            head = f"{workload}: " if workload else ""
            said.append(
                f"{head}{row['rate']:.4g} requests/s of {row['batch_size']:,.0f} samples with "
                f"{row['experiment']} (p50 {short(row['p50_latency_ms'])} ms, p99 "
                f"{short(row['p99_latency_ms'])} ms)"
            )
    limit = "" if is_free else f" within {latency_budget_ms:g} ms (p99)"
    none = f"No request rate is confirmed{limit}."
    return f"Highest request rate{limit}: {'; '.join(said)}." if said else none


def describe_relative_throughput(rows: "DataFrame") -> str:
    """Return the caption of throughput relative to in-process: the median, and the lowest."""
    points = known(rows).dropna(subset=["relative_throughput", "relative_throughput_low"])
    if points.empty:
        return "No relative throughput is known."
    low = points.nsmallest(1, "relative_throughput").iloc[0]
    ends = low["relative_throughput_low"], low["relative_throughput_high"]
    none = ", no measurable difference" if ends[0] <= 1 <= ends[1] else ""
    count = len(points)
    return (
        f"Triton reaches {points['relative_throughput'].median():.0%} of the in-process throughput "
        f"(median of {count} measurement{'s' * (count > 1)}); the lowest is "
        f"{low['relative_throughput']:.0%} (95% CI {ends[0]:.0%} to {ends[1]:.0%}{none}), "
        f"{low['experiment']} at batch size {low['batch_size']:,.0f}."
    )


def describe_floor(rows: "DataFrame") -> str:
    """Return the latency of the no-op model, and where the residual overhead is largest."""
    points = known(rows).dropna(subset=["noop_latency_ms"])
    if points.empty and rows["noop_latency_ms"].notna().any():
        return "The no-op model has no stable or imprecise measurement."
    if points.empty:
        reasons = ", ".join(filter(None, rows["noop_reason"].dropna().unique()))
        return f"The no-op model was not measured{f': {reasons}' * bool(reasons)}."
    floors = points.groupby("batch_size")["noop_latency_ms"].median()
    said = [f"{short(ms)} ms at batch size {size:,.0f}" for size, ms in floors.items()]
    ends = " to ".join(dict.fromkeys((said[0], said[-1])))
    lines = [
        f"A no-op model with the same tensors takes {ends}: the fixed overhead of Triton, "
        "transport and adapter."
    ]
    bounded = points.dropna(subset=["residual_overhead_low_ms"])
    above = bounded[bounded["residual_overhead_low_ms"] > 0]
    for _, row in above.sort_values("residual_overhead_ms").tail(1).iterrows():
        ci = interval(row["residual_overhead_low_ms"], row["residual_overhead_high_ms"])
        lines.append(
            f"The residual overhead is largest for {row['experiment']} at batch size "
            f"{row['batch_size']:,.0f}: {short(row['residual_overhead_ms'])} ms (95% CI {ci})."
        )
    if len(bounded) and above.empty:
        lines.append("There is no measurable residual overhead.")
    return " ".join(lines)


def describe_limits(rows: "DataFrame", peaks: Peaks | None) -> str:
    """Return the caption of the roofline: the highest share of it for each experiment."""
    if peaks is None:
        return "The roofline was not measured."
    points = known(rows).dropna(subset=["roofline_share"])
    lines = [
        f"{name} {row['roofline_share']:.0%} ({row['roofline_bound']} bound, "
        f"{row['precision'].lower()}, batch size {row['batch_size']:,.0f}, {row['scenario']})"
        for name, one in points.groupby("experiment", sort=False)
        for _, row in one.nlargest(1, "roofline_share").iterrows()
    ]
    lacking = sorted({*rows["experiment"]} - {*points["experiment"]})
    lines += [f"unknown for {', '.join(lacking)}"] if lacking else []
    return (
        "Highest share of the roofline (measured rates of matrix multiplication and memory): "
        f"{'; '.join(lines) or 'unknown'}."
    )


def describe_pace(rows: "DataFrame") -> str:
    """Return the run-to-run variation: how much the machine's speed moved between measurements."""
    speeds = rows["machine_gflops"].dropna()
    if len(speeds) < 2:
        return "The machine's speed was not measured."
    low, high = (speeds / speeds.median()).quantile([0.025, 0.975])
    return (
        f"The speed of the machine (a reference kernel) was {low:.1%} to {high:.1%} of its median "
        f"in 95% of {len(speeds)} measurements. Smaller differences may come from the machine."
    )


def describe_qualities(rows: "DataFrame") -> str:
    """Return how many measurements have each quality."""
    counts = [f"{count} {word}" for word, count in rows["quality"].value_counts().items()]
    total = "1 measurement" if len(rows) == 1 else f"{len(rows)} measurements"
    return f"{total}: {', '.join(counts) or 'none'}. Findings use stable and imprecise ones."


def _tops(rows: "DataFrame") -> str:
    """Name the fastest measurement of each workload; "" if none is known."""
    tops = []
    for workload, points in workloads(rows):
        found = leaders(points)
        for _, top in found.head(1).iterrows():
            head = f"{workload} " if workload else ""
            several = f"; no clear winner among {len(found)} measurements" * (len(found) > 1)
            tops.append(f"{head}{_rate(top)}{_p99(top)} ({_named(top)}{several})")
    return "; ".join(tops)


def _none(latency_budget_ms: float) -> str:
    if latency_budget_ms == UNLIMITED:
        return "No throughput is known."
    return f"No configuration is confirmed to meet the p99 budget of {latency_budget_ms:g} ms."


def _names(found: "DataFrame") -> str:
    """Name the fastest, and those whose 95% CIs overlap; of many the best of each experiment."""
    shown = found if len(found) < 4 else found.drop_duplicates("experiment")
    first, *others = [_named(row) for _, row in shown.iterrows()]
    if len(found) > len(shown):
        others.append(f"{len(found) - len(shown)} more measurements")
    return f"{first}. No clear winner (95% CIs overlap): {'; '.join(others)}" if others else first


def _named(row: "Series[float]") -> str:
    load = f"batch size {row['batch_size']:,.0f}, {clients_of(row['concurrency'])}"
    return f"{row['experiment']}, {load}, {row['scenario']}"


def _p99(row: "Series[float]") -> str:
    p99 = row["p99_latency_ms"]
    return f", p99 {short(p99)} ms" if p99 > 0 else ""


def _rate(row: "Series[float]") -> str:
    """Return a throughput with its 95% CI."""
    bounds = interval(row["throughput_low"], row["throughput_high"])
    return f"{digits(row['throughput'])} samples/s (95% CI {bounds})"
