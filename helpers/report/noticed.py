"""What to notice in the measurements of one performance stage, computed from them, in sentences.

As in `findings` a sentence uses stable and imprecise measurements with the 95% CIs of their
throughputs.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from helpers.config import OnlineConfig
from helpers.display import digits, short
from helpers.inference import physical_cores
from helpers.report.findings import known, leaders
from helpers.report.text import escaped, markdown
from helpers.results import LATENCY_COMPONENTS, clients_of

if TYPE_CHECKING:
    from IPython.display import Markdown
    from pandas import DataFrame, Series

Name = Callable[["Series[float]"], str]  # names a measurement
JOINED = 1.01  # average batch size over that of a request: above it, requests were batched


def in_words(said: Iterable[str]) -> "Markdown":
    """Show sentences as a list."""
    return markdown("".join(["**What to notice**\n\n", *(f"- {escaped(each)}\n" for each in said)]))


def offline(rows: "DataFrame") -> list[str]:
    """Return what a larger batch gains and costs, what serving adds to an in-process call, and
    where the time goes. A batch that is sent again and again is left out.
    """
    every = rows[~rows["repeated"].astype(bool)]
    points = known(every).sort_values("batch_size")
    if points.empty:
        return [_unknown(every, "batch size")]

    def name(row: "Series[float]") -> str:
        return f"batch size {row['batch_size']:,.0f}"

    return [*_growth(points, name), *_serving(points), *_largest_part(points.iloc[-1], name)]


def online(rows: "DataFrame", config: OnlineConfig, is_local: bool) -> list[str]:
    """Return where throughput stops growing, what the batcher did, where the time goes, how many
    clients the budget allows, and whether the client shares the server's cores (`is_local`).
    """
    points = known(rows).sort_values("concurrency")
    if points.empty:
        return [_unknown(rows, "number of clients"), cores(config, is_local)]

    def name(row: "Series[float]") -> str:
        return clients_of(row["concurrency"])

    return [
        *_growth(points, name),
        *_batches(points, name),
        *_largest_part(points.iloc[-1], name),
        *_budget(points, name, config.latency_budget_ms),
        cores(config, is_local),
    ]


def _unknown(rows: "DataFrame", what: str) -> str:
    counts = [f"{count} {word}" for word, count in rows["quality"].value_counts().items()]
    return f"No {what} has a known throughput ({', '.join(counts)}). The table has the reasons."


def _growth(points: "DataFrame", name: Name) -> Iterator[str]:
    """Return how much more throughput the first point has whose 95% CI overlaps with the highest's,
    and what those beyond it have.
    """
    first, last = points.iloc[0], points.iloc[-1]
    enough = points[points.index.isin(leaders(points).index)].iloc[0]
    if len(points) == 1:
        yield f"Only {name(first)} has a known throughput: {_rate(first)}."
        return
    if enough.name != first.name:
        ratio = enough["throughput"] / first["throughput"]
        more = f"{ratio - 1:.0%} more than" if ratio < 2 else f"{short(ratio)}× that"
        if enough["throughput_low"] <= first["throughput_high"]:
            more = "not measurably more than"
        yield (
            f"With {name(enough)} throughput is {_rate(enough)}, {more} with {name(first)}. "
            f"{_longer(enough, first)}"
        )
    if enough.name == last.name:
        yield f"Throughput still grows at {name(last)}, the last with a known throughput."
    else:
        yield (
            f"Beyond {name(enough)} throughput does not measurably grow: with {name(last)} it is "
            f"{_rate(last)}. {_longer(last, enough)}"
        )


def _longer(row: "Series[float]", other: "Series[float]") -> str:
    ratio = row["p50_latency_ms"] / other["p50_latency_ms"]
    before, now = short(other["p50_latency_ms"]), short(row["p50_latency_ms"])
    return f"p50 is {now} ms instead of {before} ms ({ratio:.2g}×)."


def _rate(row: "Series[float]") -> str:
    return f"{digits(row['throughput'])} samples/s"


def _serving(points: "DataFrame") -> Iterator[str]:
    """Return what serving adds to an in-process call at the smallest and largest batch size."""
    compared = points.dropna(subset=["relative_throughput", "serving_overhead_ms"])
    ends = compared.iloc[[0, -1]] if len(compared) > 1 else compared
    for place, (_, row) in enumerate(ends.iterrows()):
        call = 1000 * row["batch_size"] / row["in_process_throughput"]
        added, share = row["serving_overhead_ms"], row["relative_throughput"]
        line = f"At batch size {row['batch_size']:,.0f} an in-process call takes {short(call)} ms"
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


def _is_positive(value: float | None) -> bool:
    return value is not None and value > 0


def _largest_part(row: "Series[float]", name: Name) -> Iterator[str]:
    parts, whole = row[list(LATENCY_COMPONENTS)].dropna().astype(float), row["avg_latency_ms"]
    for part, ms in parts.nlargest(1).items():
        yield (
            f"With {name(row)} the average latency is {short(whole)} ms, {ms / whole:.0%} of it "
            f"{LATENCY_COMPONENTS[str(part)]}."
        )


def _batches(points: "DataFrame", name: Name) -> Iterator[str]:
    """Return the average batch size with the fewest and the most clients."""
    counted = points.dropna(subset=["average_batch_size"])
    if counted.empty:
        return
    ends = [counted.iloc[0], counted.iloc[-1]][: len(counted)]
    said = " and ".join(f"{short(row['average_batch_size'])} with {name(row)}" for row in ends)
    line = f"The average batch size is {said}; that of a request is {ends[0]['batch_size']:,.0f}."
    if (counted["average_batch_size"] <= JOINED * counted["batch_size"]).all():
        line += " The batcher joined no requests."
    yield line


def _budget(points: "DataFrame", name: Name, limit: float | None) -> Iterator[str]:
    """Return with which numbers of clients the measured p99 is within the budget."""
    counted = points.dropna(subset=["p99_latency_ms"])
    if not limit or counted.empty:
        return
    within = counted["p99_latency_ms"] <= limit
    kept, broken = (
        ", ".join(
            f"{name(row)} ({short(row['p99_latency_ms'])} ms)" for _, row in chosen.iterrows()
        )
        for chosen in (counted[within], counted[~within])
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
