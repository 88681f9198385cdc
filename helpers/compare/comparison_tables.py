"""Show the measurements of the stage `compare` as tables and a chart."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from helpers.display import COLOURS, GREY, INK, canvas, display, picture, short, table
from helpers.results import ComparedExperiment, Comparison, Estimate, clients_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BUSY_CORES = 0.1  # of other processes, from which on a table tells them
BAR, OTHER = 0.42, "#b9c2cc"  # inches of a bar, and the colour of what is not recommended


def comparison_headline(comparisons: Sequence[Comparison]) -> str:
    """Return what to deploy for each workload, in one line."""
    lines = [f"{_head(one)}{one.headline}. {one.ties}".strip(". ") for one in comparisons]
    return " | ".join(lines) or "Not measured"


def show_ratios(comparisons: Iterable[Comparison]) -> None:
    """Display for each workload the ratios as a chart, then with all that an experiment costs."""
    for comparison in comparisons:
        if any(one.ratio_to_baseline for one in comparison.experiments):
            display(picture(draw_ratios(comparison), ratios_in_words(comparison), is_photo=False))
        rows = [_row(comparison, one) for one in comparison.experiments]
        used = [name for name in rows[0] if any(row[name] not in (None, "") for row in rows)]
        display(table([{name: row[name] for name in used} for row in rows], caption(comparison)))


def show_latencies(comparisons: Iterable[Comparison]) -> None:
    """Display p50 and p90 of one client with one sample per request."""
    columns = ("p50_latency_ms", "p90_latency_ms")
    title = "Single requests (1 client, batch size 1), with 95% CIs"
    for comparison in comparisons:
        rows = [
            {"experiment": one.experiment} | {name: _figure(getattr(one, name)) for name in columns}
            for one in comparison.experiments
        ]
        display(table(rows, f"{_head(comparison)}{title}"))


def show_budgets(comparisons: Iterable[Comparison]) -> None:
    """Display which experiments meet the latency budget, and with how many clients."""
    for comparison in comparisons:
        budget_ms, rows = comparison.latency_budget_ms, list[dict[str, object]]()
        if not budget_ms:
            print(f"{_head(comparison)}No budget was measured: latency_budget_ms is not set.")
            continue
        for one in comparison.experiments:
            name: dict[str, object] = {"experiment": one.experiment}
            for check in one.budgets:
                figures = check.model_dump(exclude={"state"})
                rows.append(name | figures | {"budget": check.in_words(budget_ms)})
            rows += [] if one.budgets else [name | {"budget": "not measured"}]
        title = f"Latency budget of {budget_ms:,g} ms at p99, with 95% confidence"
        display(table(rows, f"{_head(comparison)}{title}"))


def caption(comparison: Comparison) -> str:
    """Return the load of the throughputs, whether servers ran in groups, and beside what load."""
    load = f"{clients_of(comparison.clients)}, batch size {comparison.batch_size}"
    title = f"{_head(comparison)}Interleaved rounds ({load}), with 95% CIs"
    if comparison.groups > 1:
        title += f". Memory was too small for all servers at once: they ran in {comparison.groups} "
        title += f"groups, and ratios between groups go through {comparison.baseline}"
    busy = max((one.background_cpu_cores or 0.0 for one in comparison.experiments), default=0.0)
    if busy > BUSY_CORES:
        title += f". Other processes used up to {short(busy)} cores. Where the rounds show what "
        title += "this costs, ratios are without it; throughputs are as measured"
    return title


def ratios_in_words(comparison: Comparison) -> str:
    """Return the chart's alternative text: the ratio of each experiment."""
    ratios = "; ".join(f"{one.experiment} {ratio.times}" for one, ratio in _ratios(comparison))
    return f"{_head(comparison)}Throughput compared with {comparison.baseline}: {ratios}."


def draw_ratios(comparison: Comparison) -> "Figure":
    """Draw each throughput compared with the baseline's as a bar, with its CI."""
    bars = _ratios(comparison)[::-1]
    title = f"{_head(comparison)}Throughput compared with {comparison.baseline}"
    figure, axes = canvas(title, "ratio, with 95% CI", height=1.4 + BAR * len(bars))
    for place, (one, ratio) in enumerate(bars):
        colour = COLOURS[0] if one is comparison.recommended else OTHER
        end = ratio.high or ratio.value
        axes.barh(place, ratio.value, 0.62, color=colour)
        axes.hlines(place, ratio.low or ratio.value, end, INK, lw=2)
        axes.text(end, place, f"  {ratio.value:.2f}×", va="center", color=INK)
    axes.axvline(1, color=GREY, lw=1, ls="--")
    axes.set_yticks(range(len(bars)), [one.experiment for one, _ in bars])
    axes.set_xlim(0, 1.12 * max(ratio.high or ratio.value for _, ratio in bars))
    axes.grid(visible=False, axis="y")
    return figure


def _ratios(comparison: Comparison) -> list[tuple[ComparedExperiment, Estimate]]:
    """Return the experiments with a ratio to the baseline, the fastest first."""
    return [(one, one.ratio_to_baseline) for one in comparison.ranked if one.ratio_to_baseline]


def _row(comparison: Comparison, one: ComparedExperiment) -> dict[str, object]:
    return {
        "experiment": one.experiment,
        "throughput": _figure(one.throughput),
        f"ratio to {comparison.baseline}": _figure(one.ratio_to_baseline, ".2f"),
        "ratio to the fastest": _figure(one.ratio_to_fastest, ".2f"),
        "rounds": one.rounds or None,
        "memory_mb": one.server_peak_memory_mb,
        "cost per million": _figure(one.cost_per_million),
        "joules per inference": one.joules_per_inference,
        "reason": one.reason,
    }


def _figure(estimate: Estimate | None, spec: str = "") -> str:
    """Return a figure with its CI in parentheses."""
    return estimate.shown(spec) if estimate else ""


def _head(comparison: Comparison) -> str:
    return f"{comparison.workload}: " if comparison.workload else ""
