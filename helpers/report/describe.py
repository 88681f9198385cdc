"""What measurements show, in sentences: the captions of charts, the answer of a report, and what to
notice in a performance stage.

A sentence uses stable and imprecise measurements with the 95% CIs of their throughputs. A caption
is also the alternative text of its chart.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from helpers.config import OnlineConfig
from helpers.display import digits, short
from helpers.inference import physical_cores
from helpers.perf import Ratio, interval
from helpers.report.analysis import TRUSTED, UNLIMITED, known, leaders, measured, workloads
from helpers.results import LATENCY_COMPONENTS, Peaks, clients_of

if TYPE_CHECKING:
    from pandas import DataFrame, Series

Name = Callable[["Series[float]"], str]  # names a measurement
JOINED = 1.01  # average batch size over that of a request: above it, requests were batched


def batch_of(row: "Series[float]") -> str:
    """Name a measurement by its batch size."""
    return f"batch size {row['batch_size']:,.0f}"


def load_of(row: "Series[float]") -> str:
    """Name a measurement by its clients."""
    return clients_of(row["concurrency"])


# Phrases


def within(limit: float) -> str:
    """Name a latency budget; "" if there is none."""
    return "" if limit == UNLIMITED else f" within {limit:g} ms (p99)"


def counted(rows: "DataFrame") -> str:
    """Return how many rows have each quality."""
    counts = [f"{count} {word}" for word, count in rows["quality"].value_counts().items()]
    return ", ".join(counts)


def per_workload(
    rows: "DataFrame", say: "Callable[[DataFrame], str]", between: str, after: str = ": "
) -> str:
    """Join what is said of each workload, with its name if there are several."""
    said = [(name, say(one)) for name, one in workloads(rows)]
    return between.join(f"{name}{after}{text}" if name else text for name, text in said if text)


def _named(row: "Series[float]") -> str:
    return f"{row['experiment']}, {batch_of(row)}, {load_of(row)}, {row['scenario']}"


def _samples(row: "Series[float]") -> str:
    return f"{digits(row['throughput'])} samples/s"


def _rate(row: "Series[float]") -> str:
    """Return a throughput with its 95% CI."""
    return f"{_samples(row)} (95% CI {interval(row['throughput_low'], row['throughput_high'])})"


def _names(found: "DataFrame") -> str:
    """Name the fastest, and those whose 95% CIs overlap; of many the best of each experiment."""
    shown = found if len(found) < 4 else found.drop_duplicates("experiment")
    first, *others = [_named(row) for _, row in shown.iterrows()]
    if len(found) > len(shown):
        others.append(f"{len(found) - len(shown)} more measurements")
    return f"{first}. No clear winner (95% CIs overlap): {'; '.join(others)}" if others else first


def _is_positive(value: float | None) -> bool:
    return value is not None and value > 0


# Captions


def fastest(rows: "DataFrame", limit: float = UNLIMITED) -> str:
    """Return the fastest measurement of each workload within the budget, those that may be as fast,
    and a faster one that needs more requests to be confirmed.
    """
    return per_workload(rows, lambda points: _fastest(points, limit), " ")


def _fastest(points: "DataFrame", limit: float) -> str:
    found = leaders(points, limit)
    said = "No throughput is known."
    if limit < UNLIMITED:
        said = f"No configuration is confirmed to meet the p99 budget of {limit:g} ms."
    if len(found):
        top = found.iloc[0]
        p99 = top["p99_latency_ms"]
        said = f"{_rate(top)}{f', p99 {short(p99)} ms' if p99 > 0 else ''}: {_names(found)}."
    unknown = known(points[points["budget"] == "unconfirmed"])
    faster = unknown[~(unknown["throughput"] <= found["throughput"].max())]
    if limit < UNLIMITED:
        for _, top in faster.sort_values("throughput").tail(1).iterrows():
            said += (
                f" Not confirmed: {_named(top)}, {_rate(top)}. It has {top['requests']:,.0f} "
                f"requests and needs at least {top['budget_needs']:,.0f}."
            )
    return said


def frontier(rows: "DataFrame", limit: float = UNLIMITED) -> str:
    """Return the caption of throughput against latency."""
    head = "" if leaders(rows, limit).empty else f"Fastest{within(limit)}: "
    return f"{head}{fastest(rows, limit)}"


def throughput(rows: "DataFrame") -> str:
    """Return the caption of offline throughput: the highest of each workload."""
    offline = rows[rows["scenario"] == "offline"]
    none = "No offline throughput is known."
    return none if known(offline).empty else f"Highest offline throughput: {fastest(offline)}"


def latency(rows: "DataFrame") -> str:
    """Return the caption of offline p99 latency: at the smallest and at the largest batch size."""
    points, lines = known(measured(rows, "offline", "p99_latency_ms")), []
    for name, line in points.groupby("experiment", sort=False):
        ends = [
            f"{short(row['p99_latency_ms'])} ms at {batch_of(row)}"
            for _, row in line.iloc[[0, -1]].iterrows()
        ]
        lines.append(f"{name} {' to '.join(dict.fromkeys(ends))}")
    return f"Offline p99 latency: {'; '.join(lines)}." if lines else "No offline p99 is known."


def latency_parts(rows: "DataFrame") -> str:
    """Return the caption of the latency's parts: the largest, and where throughput peaks."""
    points = known(measured(rows, "online", "avg_latency_ms"))
    if points.empty:
        return "No online latency is known."
    highest = leaders(points)
    low, high = highest["concurrency"].min(), highest["concurrency"].max()
    clients = (
        clients_of(low) if low == high else f"{low:,.0f} to {clients_of(high)} (no clear winner)"
    )
    return (
        f"{largest_part(points.iloc[-1], load_of)} Throughput is highest with {clients}, "
        f"{_rate(highest.iloc[0])}."
    )


def largest_part(row: "Series[float]", name: Name) -> str:
    """Return the mean latency of a measurement, and its largest part if the parts are known."""
    whole = row["avg_latency_ms"]
    parts = row[list(LATENCY_COMPONENTS)].dropna().astype(float).nlargest(1)
    share = "".join(
        f", {ms / whole:.0%} of it {LATENCY_COMPONENTS[str(part)]}" for part, ms in parts.items()
    )
    return f"With {name(row)} the average latency is {short(whole)} ms{share}."


def rates(rows: "DataFrame", limit: float = UNLIMITED) -> str:
    """Return the caption of latency over request rate: the highest rate of each workload that is
    confirmed to meet the budget; without a budget the highest that the server kept up with.
    """
    if rows.empty:
        return "The request-rate mode was not measured."

    def highest(points: "DataFrame") -> str:
        kept = points[points["quality"].isin(TRUSTED)]
        kept = kept if limit == UNLIMITED else kept[kept["budget"] == "met"]
        return "".join(
            f"{row['rate']:.4g} requests/s of {row['batch_size']:,.0f} samples with "
            f"{row['experiment']} (p50 {short(row['p50_latency_ms'])} ms, p99 "
            f"{short(row['p99_latency_ms'])} ms)"
            for _, row in kept.sort_values("throughput").tail(1).iterrows()
        )

    said = per_workload(rows, highest, "; ")
    none = f"No request rate is confirmed{within(limit)}."
    return f"Highest request rate{within(limit)}: {said}." if said else none


def relative_throughput(rows: "DataFrame") -> str:
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
        f"{low['experiment']} at {batch_of(low)}."
    )


def overhead(rows: "DataFrame") -> str:
    """Return the latency of the no-op model, and where the residual overhead is largest."""
    points = known(rows).dropna(subset=["noop_latency_ms"])
    if points.empty:
        reasons = ", ".join(filter(None, rows["noop_reason"].dropna().unique()))
        return f"The no-op model was not measured{f': {reasons}' * bool(reasons)}."
    medians = points.groupby("batch_size")["noop_latency_ms"].median()
    said = [f"{short(ms)} ms at batch size {size:,.0f}" for size, ms in medians.items()]
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
            f"The residual overhead is largest for {row['experiment']} at {batch_of(row)}: "
            f"{short(row['residual_overhead_ms'])} ms (95% CI {ci})."
        )
    if len(bounded) and above.empty:
        lines.append("There is no measurable residual overhead.")
    return " ".join(lines)


def roofline(rows: "DataFrame", peaks: Peaks | None) -> str:
    """Return the caption of the roofline: the highest share of it for each experiment."""
    if peaks is None:
        return "The roofline was not measured."
    points = known(rows).dropna(subset=["roofline_share"])
    lines = [
        f"{name} {row['roofline_share']:.0%} ({row['roofline_bound']} bound, "
        f"{row['precision'].lower()}, {batch_of(row)}, {row['scenario']})"
        for name, one in points.groupby("experiment", sort=False)
        for _, row in one.nlargest(1, "roofline_share").iterrows()
    ]
    lacking = sorted({*rows["experiment"]} - {*points["experiment"]})
    lines += [f"unknown for {', '.join(lacking)}"] if lacking else []
    return (
        "Highest share of the roofline (measured rates of matrix multiplication and memory): "
        f"{'; '.join(lines) or 'unknown'}."
    )


def machine_speed(rows: "DataFrame") -> str:
    """Return the run-to-run variation: how much the machine's speed moved between measurements."""
    speeds = rows["machine_gflops"].dropna()
    if len(speeds) < 2:
        return "The machine's speed was not measured."
    low, high = (speeds / speeds.median()).quantile([0.025, 0.975])
    return (
        f"The speed of the machine (a reference kernel) was {low:.1%} to {high:.1%} of its median "
        f"in 95% of {len(speeds)} measurements. Smaller differences may come from the machine."
    )


def qualities(rows: "DataFrame") -> str:
    """Return how many measurements have each quality."""
    total = f"{len(rows)} measurement{'s' * (len(rows) != 1)}"
    return f"{total}: {counted(rows) or 'none'}. Findings use stable and imprecise ones."


def headline(rows: "DataFrame") -> str:
    """Return the result of a report in one line, for an index."""

    def fastest_of(points: "DataFrame") -> str:
        found = leaders(points)
        names = found["experiment"].unique()
        several = " (no clear winner)" * (len(names) > 1)
        return "".join(
            f"{top:,.1f} samples/s: {' or '.join(names)}{several}"
            for top in found["throughput"].head(1)
        )

    nothing = "no throughput is known" if len(rows) else "nothing was measured"
    return per_workload(rows, fastest_of, "; ", " ") or nothing


# What to notice in a stage


def offline(rows: "DataFrame") -> list[str]:
    """Return what a larger batch gains and costs, what serving adds to an in-process call, and
    where the time goes. A batch that is sent again and again is left out.
    """
    every = rows[~rows["repeated"].astype(bool)]
    points = known(every).sort_values("batch_size")
    if points.empty:
        return [_unknown(every, "batch size")]
    last = largest_part(points.iloc[-1], batch_of)
    return [*_growth(points, batch_of), *_serving(points), last]


def online(rows: "DataFrame", config: OnlineConfig, is_local: bool) -> list[str]:
    """Return where throughput stops growing, what the batcher did, where the time goes, how many
    clients the budget allows, and whether the client shares the server's cores (`is_local`).
    """
    points = known(rows).sort_values("concurrency")
    if points.empty:
        return [_unknown(rows, "number of clients"), cores(config, is_local)]
    return [
        *_growth(points, load_of),
        *_batches(points),
        largest_part(points.iloc[-1], load_of),
        *_budget(points, config.latency_budget_ms),
        cores(config, is_local),
    ]


def _unknown(rows: "DataFrame", what: str) -> str:
    return f"No {what} has a known throughput ({counted(rows)}). The table has the reasons."


def _growth(points: "DataFrame", name: Name) -> Iterator[str]:
    """Return how much more throughput the first point has whose 95% CI overlaps with the highest's,
    and what those beyond it have.
    """
    first, last = points.iloc[0], points.iloc[-1]
    enough = points[points.index.isin(leaders(points).index)].iloc[0]
    if len(points) == 1:
        yield f"Only {name(first)} has a known throughput: {_samples(first)}."
        return
    if enough.name != first.name:
        ratio = enough["throughput"] / first["throughput"]
        more = f"{ratio - 1:.0%} more than" if ratio < 2 else f"{Ratio(ratio)} that"
        if enough["throughput_low"] <= first["throughput_high"]:
            more = "not measurably more than"
        yield (
            f"With {name(enough)} throughput is {_samples(enough)}, {more} with {name(first)}. "
            f"{_longer(enough, first)}"
        )
    if enough.name == last.name:
        yield f"Throughput still grows at {name(last)}, the last with a known throughput."
    else:
        yield (
            f"Beyond {name(enough)} throughput does not measurably grow: with {name(last)} it is "
            f"{_samples(last)}. {_longer(last, enough)}"
        )


def _longer(row: "Series[float]", other: "Series[float]") -> str:
    before, now = other["p50_latency_ms"], row["p50_latency_ms"]
    return f"p50 is {short(now)} ms instead of {short(before)} ms ({Ratio(now / before)})."


def _serving(points: "DataFrame") -> Iterator[str]:
    """Return what serving adds to an in-process call at the smallest and largest batch size."""
    compared = points.dropna(subset=["relative_throughput", "serving_overhead_ms"])
    ends = compared.iloc[[0, -1]] if len(compared) > 1 else compared
    for place, (_, row) in enumerate(ends.iterrows()):
        call = 1000 * row["batch_size"] / row["in_process_throughput"]
        added, share = row["serving_overhead_ms"], row["relative_throughput"]
        line = f"At {batch_of(row)} an in-process call takes {short(call)} ms"
        low, high = row["relative_throughput_low"], row["relative_throughput_high"]
        if added <= 0 or (_is_positive(low) and low <= 1 <= high):
            yield f"{line}. There is no measurable serving overhead (throughput {share:.0%})."
            continue
        line += f", and serving adds {short(added)} ms: {share:.0%} of the in-process throughput."
        if place == 0 and _is_positive(row["noop_latency_ms"]):
            line += f" The no-op model takes {short(row['noop_latency_ms'])} ms"
            if _is_positive(row["residual_overhead_low_ms"]):
                line += (
                    f"; the residual overhead is {short(row['residual_overhead_ms'])} ms, copies "
                    "between the models of an ensemble included"
                )
            line += "."
        yield line


def _batches(points: "DataFrame") -> Iterator[str]:
    """Return the average batch size with the fewest and the most clients."""
    counted = points.dropna(subset=["average_batch_size"])
    if counted.empty:
        return
    ends = [counted.iloc[0], counted.iloc[-1]][: len(counted)]
    said = " and ".join(f"{short(row['average_batch_size'])} with {load_of(row)}" for row in ends)
    line = f"The average batch size is {said}; that of a request is {ends[0]['batch_size']:,.0f}."
    if (counted["average_batch_size"] <= JOINED * counted["batch_size"]).all():
        line += " The batcher joined no requests."
    yield line


def _budget(points: "DataFrame", limit: float | None) -> Iterator[str]:
    """Return with which numbers of clients the measured p99 is within the budget."""
    counted = points.dropna(subset=["p99_latency_ms"])
    if not limit or counted.empty:
        return
    is_within = counted["p99_latency_ms"] <= limit
    kept, broken = (
        ", ".join(
            f"{load_of(row)} ({short(row['p99_latency_ms'])} ms)" for _, row in chosen.iterrows()
        )
        for chosen in (counted[is_within], counted[~is_within])
    )
    said = [f"within the budget of {limit:g} ms with {kept}"] if kept else []
    said += [f"over {'it' if kept else f'the budget of {limit:g} ms'} with {broken}"] * bool(broken)
    yield (
        f"The measured p99 is {', and '.join(said)}. The report shows what is confirmed with 95% "
        "confidence."
    )


def cores(config: OnlineConfig, is_local: bool) -> str:
    """Return whether the load generator takes cores from the server."""
    if not is_local:
        return (
            f"The server is on another host ({config.server.url}), so the load generator takes "
            "none of its cores. Latency includes the network."
        )
    count = physical_cores()
    own = "" if config.device == "cpu" else ", while the model computes on the GPU"
    return (
        f"The load generator and the server share the {count} core{'s' * (count > 1)} of this "
        f"machine{own}. Clients on other hosts would leave it more, and add network latency."
    )
