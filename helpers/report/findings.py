"""What the measurements say: the best points, the Pareto front, and a text for each figure.

A finding uses stable and wide rows with the 95% intervals of their throughputs, and compares only
those of one workload: one variant of the network and one data set. Each text ends with the qualities
of all its rows, because it is also the alternative text of a figure and must stand alone.
"""

from typing import TYPE_CHECKING

from helpers.display import digits, short
from helpers.perf import interval
from helpers.results import LATENCY_COMPONENTS, Peaks

if TYPE_CHECKING:
    from pandas import DataFrame, Series

UNLIMITED = float("inf")


def stable(rows: "DataFrame") -> "Series[bool]":
    """Tell which rows are stable."""
    return rows["quality"] == "stable"


def known(rows: "DataFrame") -> "DataFrame":
    """Return the rows that take part in an answer: stable or wide, with an interval."""
    return rows[rows["quality"].isin(("stable", "imprecise")) & rows["throughput_low"].notna()]


def workloads(rows: "DataFrame") -> "list[tuple[str, DataFrame]]":
    """Part rows by workload, each with its name: what tells it from the others, "" if alone."""
    different = [name for name in ("variant", "dataset") if rows[name].nunique() > 1]
    parts = rows.groupby(different, sort=False) if different else [((), rows)]
    return [(", ".join(filter(None, key)), one) for key, one in parts]


def leaders(rows: "DataFrame", latency_budget_ms: float = UNLIMITED) -> "DataFrame":
    """Return the row of the highest throughput that is known to be within the budget, then all
    those whose intervals overlap with its own.
    """
    rows = known(rows).sort_values("throughput", ascending=False)
    if latency_budget_ms < UNLIMITED:
        rows = rows[rows["budget"] == "met"]
    return rows[rows["throughput_high"] >= rows["throughput_low"].head(1).max()]


def keeps_budget(rows: "DataFrame", latency_budget_ms: float) -> bool:
    """Tell whether the fastest point of every workload is one of clients over HTTP that is known
    to keep the budget.
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
    """Say which offline point is fastest."""
    return f"Offline: {describe_frontier(rows[rows['scenario'] == 'offline'])}"


def describe_latency(rows: "DataFrame") -> str:
    """Say how p99 latency grows from the smallest to the largest batch."""
    points = known(measured(rows, "offline", "p99_latency_ms"))
    lines = []
    for name, line in points.groupby("experiment", sort=False):
        ends = [
            f"{short(row['p99_latency_ms'])} ms at batch size {row['batch_size']:,.0f}"
            for _, row in line.iloc[[0, -1]].iterrows()
        ]
        alone = len(line) == 1
        lines.append(f"{name} {ends[0]}" if alone else f"{name} from {ends[0]} to {ends[1]}")
    found = "; ".join(lines) or "none is known"
    return f"Offline p99 latency: {found}. {_verdicts(rows, 'offline')}"


def describe_components(rows: "DataFrame") -> str:
    """Say where the time goes at the highest concurrency, and where throughput peaks."""
    points = known(measured(rows, "online", "avg_latency_ms"))
    if points.empty:
        return f"No online latency is known. {_verdicts(rows, 'online')}"
    last, peaks = points.iloc[-1], leaders(points)
    components = last[list(LATENCY_COMPONENTS)].dropna().astype(float).nlargest(1)
    largest = [
        f"; its largest part is {LATENCY_COMPONENTS[str(name)]}, {ms / last['avg_latency_ms']:.0%}"
        for name, ms in components.items()
    ]
    low, high = peaks["concurrency"].min(), peaks["concurrency"].max()
    clients = f"{low:,.0f}" if low == high else f"{low:,.0f} to {high:,.0f} (not told apart)"
    return (
        f"At concurrency {last['concurrency']:,.0f} the average latency is "
        f"{short(last['avg_latency_ms'])} ms{''.join(largest)}. Throughput peaks at concurrency "
        f"{clients} with {_rate(peaks.iloc[0])}. {_verdicts(rows, 'online')}"
    )


def describe_frontier(rows: "DataFrame", latency_budget_ms: float = UNLIMITED) -> str:
    """Say of each workload which point to choose within the budget, and which may be faster."""
    limit = "" if latency_budget_ms == UNLIMITED else f" within {latency_budget_ms:g} ms"
    said = []
    for workload, points in workloads(rows):
        found = leaders(points, latency_budget_ms)
        said.append(f"{workload}: " if workload else "")
        if found.empty:
            said[-1] += f"No point{limit} is known."
        else:
            said[-1] += (
                f"The highest throughput{limit} is {_rate(found.iloc[0])} at p99 latency "
                f"{short(found['p99_latency_ms'].iloc[0])} ms: {_names(found)}."
            )
        unknown = known(points[points["budget"] == "not known"])
        faster = unknown[~(unknown["throughput"] <= found["throughput"].max())]
        if limit and len(faster):
            top = faster.nlargest(1, "throughput")
            said.append(
                f"Not known for {_names(top)}, {_rate(top.iloc[0])}: it would take "
                f"{top['budget_needs'].iloc[0]:,.0f} requests if no more took longer."
            )
    return " ".join([*said, _verdicts(rows)])


def describe_rates(rows: "DataFrame", latency_budget_ms: float = UNLIMITED) -> str:
    """Say of each workload the highest rate, of requests at random times, that is known to be
    within the budget; without a budget the highest that was kept.
    """
    if rows.empty:
        return "No requests were sent at random times."
    limit = "" if latency_budget_ms == UNLIMITED else f" within {latency_budget_ms:g} ms"
    said = []
    for workload, points in workloads(rows):
        kept = points[points["quality"].isin(("stable", "imprecise"))]
        top = (kept[kept["budget"] == "met"] if limit else kept).sort_values("throughput").tail(1)
        said.append(f"{workload}: " if workload else "")
        if top.empty:
            said[-1] += f"No rate{limit} is known."
        for _, row in top.iterrows():
            said[-1] += (
                f"The highest rate of requests at random times{limit} that is known is "
                f"{row['rate']:.4g}/s of {row['batch_size']:,.0f} samples, {row['experiment']}: "
                f"p50 {short(row['p50_latency_ms'])} ms, p99 {short(row['p99_latency_ms'])} ms."
            )
    return " ".join([*said, _verdicts(rows)])


def describe_relative_throughput(rows: "DataFrame") -> str:
    """Say how much of the bare throughput is served: the median, and the worst point."""
    points = known(rows).dropna(subset=["relative_throughput", "relative_throughput_low"])
    if points.empty:
        return f"No ratio of served to bare is known. {_verdicts(rows, 'offline')}"
    low = points.nsmallest(1, "relative_throughput").iloc[0]
    wide = (points["relative_quality"] != "stable").sum()
    return (
        f"Triton serves {points['relative_throughput'].median():.0%} of the bare throughput (median "
        f"of {len(points)} points, {wide} of them wide); the lowest is "
        f"{low['relative_throughput']:.0%} (95% interval {low['relative_throughput_low']:.0%} to "
        f"{low['relative_throughput_high']:.0%}), {low['experiment']} at batch size "
        f"{low['batch_size']:,.0f}. A request takes {short(points['serving_overhead_ms'].min())} to "
        f"{short(points['serving_overhead_ms'].max())} ms more than bare. {_verdicts(rows, 'offline')}"
    )


def describe_floor(rows: "DataFrame") -> str:
    """Say what Triton, the wire and the adapter cost for these inputs, and what serving costs more
    than that.
    """
    points = known(rows).dropna(subset=["noop_latency_ms"])
    if points.empty:
        reasons = ", ".join(filter(None, rows["noop_reason"].dropna().unique()))
        return f"The floor of serving is not known{f': {reasons}' * bool(reasons)}."
    floors = points.groupby("batch_size")["noop_latency_ms"].median()
    said = [f"{short(ms)} ms at batch size {size:,.0f}" for size, ms in floors.items()]
    ends = " to ".join(dict.fromkeys((said[0], said[-1])))
    lines = [
        "What Triton, the wire and the adapter cost for these inputs: a request to a model with "
        f"the same tensors that computes nothing takes {ends}."
    ]
    beyond = points.dropna(subset=["residual_overhead_ms"])
    for _, row in beyond.sort_values("residual_overhead_ms").tail(1).iterrows():
        lines.append(
            "Beyond this floor and a bare call a request takes "
            f"{short(beyond['residual_overhead_ms'].median())} ms (median of {len(beyond)} points), and most "
            f"at batch size {row['batch_size']:,.0f} of "
            f"{row['experiment']}: {short(row['residual_overhead_ms'])} ms (95% interval "
            f"{interval(row['residual_overhead_low_ms'], row['residual_overhead_high_ms'])})."
        )
    return " ".join(lines)


def describe_limits(rows: "DataFrame", peaks: Peaks | None) -> str:
    """Give the machine's peaks, and of each experiment how near it comes to the nearer one."""
    if peaks is None:
        return f"The machine's peaks were not measured. {_verdicts(rows)}"
    points = known(rows).dropna(subset=["roofline_share"])
    products = ", ".join(f"{name} {rate:,.0f}" for name, rate in peaks.gflops.items())
    lines = [
        f"{name} reaches at most {row['roofline_share']:.0%} of the {row['roofline_bound']} limit of "
        f"{row['precision'].lower()} (batch size {row['batch_size']:,.0f}, {row['scenario']})"
        for name, one in points.groupby("experiment", sort=False)
        for _, row in one.nlargest(1, "roofline_share").iterrows()
    ]
    lacking = sorted({*rows["experiment"]} - {*points["experiment"]})
    lines += [f"no share is known of {', '.join(lacking)}"] if lacking else []
    return (
        f"The machine's peaks are {products} GFLOP/s and {short(peaks.memory_gb_s)} GB/s: "
        f"{'; '.join(lines)}. {_verdicts(rows)}"
    )


def describe_pace(rows: "DataFrame") -> str:
    """State the noise floor: how much the machine's own pace moved from point to point."""
    paces = rows["machine_gflops"].dropna()
    if len(paces) < 2:
        return "The machine's own pace was not measured."
    low, high = (paces / paces.median()).quantile([0.025, 0.975])
    return (
        f"The machine's own pace, that of a fixed kernel before and after each run, was between "
        f"{low:.1%} and {high:.1%} of its median at 95% of {len(paces)} points: smaller "
        "differences between points are the machine's."
    )


def _names(found: "DataFrame") -> str:
    """Name points that are not told apart, or the only one; of many the best of each experiment."""
    shown = found if len(found) < 4 else found.drop_duplicates("experiment")
    names = [
        f"{row['experiment']} at batch size {row['batch_size']:,.0f} and concurrency "
        f"{row['concurrency']:,.0f}, {row['scenario']}"
        for _, row in shown.iterrows()
    ]
    if len(found) > len(shown):
        names.append(f"{len(found) - len(shown)} more points of them")
    return "; not told apart from ".join(names)


def _rate(row: "Series[float]") -> str:
    """Write a throughput with its interval."""
    bounds = interval(row["throughput_low"], row["throughput_high"])
    return f"{digits(row['throughput'])} samples/s (95% interval {bounds})"


def _verdicts(rows: "DataFrame", scenario: str = "") -> str:
    """Count the qualities of all rows, of which a finding uses only the first two kinds."""
    rows = rows[rows["scenario"] == scenario] if scenario else rows
    counts = [f"{count} {word}" for word, count in rows["quality"].value_counts().items()]
    points = "1 point" if len(rows) == 1 else f"{len(rows)} points"
    return f"Of {points}: {', '.join(counts) or 'none'}."
