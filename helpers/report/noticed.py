"""What is to be noticed in the rows of one performance stage, computed from them, in sentences.

As in `findings` a sentence uses stable and wide rows with the intervals of their throughputs.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from helpers.config import OnlineConfig
from helpers.display import digits, short
from helpers.inference import physical_cores
from helpers.report.findings import known, leaders
from helpers.report.text import escaped, markdown
from helpers.results import LATENCY_COMPONENTS

if TYPE_CHECKING:
    from IPython.display import Markdown
    from pandas import DataFrame, Series

Name = Callable[["Series[float]"], str]  # names a point
JOINED = 1.01  # samples in an execution, relative to those of a request: above, some were joined


def in_words(said: Iterable[str]) -> "Markdown":
    """Show sentences as a list."""
    return markdown("".join(["**What to notice**\n\n", *(f"- {escaped(each)}\n" for each in said)]))


def offline(rows: "DataFrame") -> list[str]:
    """Say what a larger batch gains and costs, what serving adds to a bare call, and where the time
    goes. A batch that is sent again and again is left out.
    """
    every = rows[~rows["repeated"].astype(bool)]
    points = known(every).sort_values("batch_size")
    if points.empty:
        return [_unknown(every, "batch size")]

    def name(row: "Series[float]") -> str:
        return f"batch size {row['batch_size']:,.0f}"

    return [*_growth(points, name), *_serving(points), *_largest_part(points.iloc[-1], name)]


def online(rows: "DataFrame", config: OnlineConfig, is_local: bool) -> list[str]:
    """Say where throughput stops growing, what the batcher did, where the time goes, which clients
    the budget allows, and whether the client shares the server's cores (`is_local`).
    """
    points = known(rows).sort_values("concurrency")
    if points.empty:
        return [_unknown(rows, "number of clients"), cores(config, is_local)]

    def name(row: "Series[float]") -> str:
        count = f"{row['concurrency']:,.0f}"
        return f"{count} client{'' if count == '1' else 's'}"

    return [
        *_growth(points, name),
        *_batches(points, name),
        *_largest_part(points.iloc[-1], name),
        *_budget(points, name, config.latency_budget_ms),
        cores(config, is_local),
    ]


def _unknown(rows: "DataFrame", what: str) -> str:
    counts = [f"{count} {word}" for word, count in rows["quality"].value_counts().items()]
    return (
        f"No {what} has a throughput that is known with an interval ({', '.join(counts)}): the "
        "table says why."
    )


def _growth(points: "DataFrame", name: Name) -> Iterator[str]:
    """Say how much more the first point has whose throughput is not told apart from the highest,
    and what those beyond it have.
    """
    first, last = points.iloc[0], points.iloc[-1]
    enough = points[points.index.isin(leaders(points).index)].iloc[0]
    if len(points) == 1:
        yield f"Only {name(first)} is known: {_rate(first)}. What more of it gains needs others."
        return
    if enough.name != first.name:
        ratio = enough["throughput"] / first["throughput"]
        more = f"{ratio - 1:.0%} more than" if ratio < 2 else f"{short(ratio)} times that"
        yield (
            f"With {name(enough)} throughput is {_rate(enough)}, {more} with {name(first)}; "
            f"{_longer(enough, first)}."
        )
    if enough.name == last.name:
        yield f"It still grows at {name(last)}, the most that was measured: more may be faster."
    else:
        yield (
            f"From {name(enough)} on no higher throughput is told apart: it is {_rate(enough)} "
            f"there and {_rate(last)} with {name(last)}, where {_longer(last, enough)}."
        )


def _longer(row: "Series[float]", other: "Series[float]") -> str:
    ratio = row["p50_latency_ms"] / other["p50_latency_ms"]
    before, now = short(other["p50_latency_ms"]), short(row["p50_latency_ms"])
    return f"p50 is {now} ms instead of {before} ({ratio:.2g} times)"


def _rate(row: "Series[float]") -> str:
    return f"{digits(row['throughput'])} samples/s"


def _serving(points: "DataFrame") -> Iterator[str]:
    """Say what serving adds to a bare call at the smallest and at the largest batch size."""
    compared = points.dropna(subset=["relative_throughput", "serving_overhead_ms"])
    ends = compared.iloc[[0, -1]] if len(compared) > 1 else compared
    for place, (_, row) in enumerate(ends.iterrows()):
        bare = 1000 * row["batch_size"] / row["in_process_throughput"]
        added, share = row["serving_overhead_ms"], row["relative_throughput"]
        line = f"At batch size {row['batch_size']:,.0f} a bare call takes {short(bare)} ms"
        if added <= 0:
            yield f"{line}, and serving adds nothing that can be told ({share:.0%} of bare)."
            continue
        line += f" and serving adds {short(added)} ms: Triton serves {share:.0%} of the bare rate."
        if place == 0 and _is_positive(row["noop_latency_ms"]):
            line += (
                " A request with these tensors to a model that computes nothing takes "
                f"{short(row['noop_latency_ms'])} ms, the floor of serving"
            )
            if _is_positive(row["residual_overhead_ms"]):
                line += (
                    f"; {short(row['residual_overhead_ms'])} ms are beyond it, where the copies between the "
                    "parts of an ensemble count too"
                )
            line += "."
        yield line


def _is_positive(value: float | None) -> bool:
    return value is not None and value > 0


def _largest_part(row: "Series[float]", name: Name) -> Iterator[str]:
    parts, whole = row[list(LATENCY_COMPONENTS)].dropna().astype(float), row["avg_latency_ms"]
    for part, ms in parts.nlargest(1).items():
        yield (
            f"With {name(row)} the mean latency is {short(whole)} ms; its largest part is "
            f"{LATENCY_COMPONENTS[str(part)]}, {ms / whole:.0%}."
        )


def _batches(points: "DataFrame", name: Name) -> Iterator[str]:
    """Say how many samples an execution had, with the fewest and the most clients."""
    told = points.dropna(subset=["average_batch_size"])
    if told.empty:
        return
    ends = [told.iloc[0], told.iloc[-1]][: len(told)]
    said = " and ".join(f"{short(row['average_batch_size'])} with {name(row)}" for row in ends)
    line = f"An execution had {said}, in samples on average; a request has "
    line += f"{ends[0]['batch_size']:,.0f}"
    if (told["average_batch_size"] <= JOINED * told["batch_size"]).all():
        line += ", so no requests were joined"
    yield f"{line}."


def _budget(points: "DataFrame", name: Name, limit: float | None) -> Iterator[str]:
    """Say with which numbers of clients p99, as it was seen, is within the budget."""
    told = points.dropna(subset=["p99_latency_ms"])
    if not limit or told.empty:
        return
    within = told["p99_latency_ms"] <= limit
    kept, broken = (
        ", ".join(
            f"{name(row)} ({short(row['p99_latency_ms'])} ms)" for _, row in chosen.iterrows()
        )
        for chosen in (told[within], told[~within])
    )
    said = [f"within the budget of {limit:g} ms with {kept}"] if kept else []
    said += [f"over {'it' if kept else f'the budget of {limit:g} ms'} with {broken}"] * bool(broken)
    yield (
        f"p99 is {', and '.join(said)}. Whether the budget is kept with 95% confidence is said by "
        "the report."
    )


def cores(config: OnlineConfig, is_local: bool) -> str:
    """Say whether the load generator takes cores from the server."""
    if not is_local:
        return (
            f"The server is on another host, {config.server.url}: the load generator takes none of "
            "its cores, and latency includes the network between them."
        )
    count = physical_cores()
    own = "" if config.device == "cpu" else ", while the model computes on the GPU"
    return (
        f"Client and server share the {count} core{'s' * (count > 1)} of this machine{own}: what "
        "the load generator takes, the server does not have. Clients on other hosts would leave it "
        "more, and add their network."
    )
