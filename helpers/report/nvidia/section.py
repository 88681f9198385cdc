"""A report's section on NVIDIA's rows: ours compared with them, or they alone without ours."""

from html import escape
from statistics import median
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from helpers.config import Value
from helpers.display import GREY, Table, canvas, mark_decades, table
from helpers.measure import interval
from helpers.report import style
from helpers.report.analysis import measured
from helpers.report.describe import fill_in, say
from helpers.report.nvidia.comparison import Comparison, Pair, by_experiment, common
from helpers.report.nvidia.rows import PublishedRow, tables, violates_littles_law
from helpers.report.text import markdown
from helpers.results import TableRow

if TYPE_CHECKING:
    from IPython.display import Markdown
    from matplotlib.figure import Figure
    from pandas import DataFrame

PAGE = "../../published.html"  # from the folder of a model's report
FIDELITY = "../../fidelity.html"
MARKERS = ("x", "+", "1", "2", "3", "4")  # none of them an experiment's
AXES = {"offline": "batch size", "online": "samples in flight (clients × batch size)"}
# Columns of a figure's data, ours and NVIDIA's
SAMPLES = ("batch_size", "concurrency", "throughput")
BOUNDS = ("throughput_low", "throughput_high")
OURS = ("gpu", "scenario", *SAMPLES, *BOUNDS, "experiment", "p99_latency_ms")
THEIRS = ("gpu", "dataset", "served", *SAMPLES, "p99_latency_ms", "littles_law")
MARKED = 12  # points of a grey line, at most about


def summary(comparison: Comparison) -> "Markdown":
    """Return what is compared with what, the ratio, and why it may be unfair."""
    ratios = [pair.ratio for pair in comparison.pairs]
    return markdown(
        fill_in(
            "published.md.j2",
            comparison=comparison,
            rows=f"{PAGE}#{urlencode({'model': comparison.model, 'gpu': comparison.chosen})}",
            fidelity=f"{FIDELITY}#{comparison.model}",
            ratios=ratios,
            median=median(ratios or [1]),
            shared=common(comparison.pairs),
            experiments=by_experiment(comparison.pairs),
            common=common,
        )
    )


def as_table(comparison: Comparison) -> Table:
    """Return a table of the pairs, folded if of another GPU; without pairs, of NVIDIA's rows."""
    pairs, chosen = comparison.pairs, comparison.chosen
    if not pairs:
        rows = [row for row in comparison.published if row.gpu == chosen]
        return table(_published_rows(rows), f"NVIDIA's rows: {chosen or 'none'}")
    experiments = by_experiment(pairs).values()
    lines = [_line(pair, common(group)) for group in experiments for pair in group]
    caption = f"Ours ({comparison.gpu}) compared with NVIDIA's ({chosen})"
    shown = table(lines, caption, {"ratio": ".3g"})
    if comparison.is_own:
        return shown
    return Table(f"<details><summary>{escape(caption)}</summary>{shown.html}</details>", caption)


def _line(pair: Pair, shared: list[str]) -> dict[str, Value]:
    """Return a pair as a table row; below its quality are the reasons that are not `shared`."""
    ours, theirs = pair.measured, pair.published
    shared = [*shared, f"our measurement is {ours.quality}"]
    return {
        "experiment": ours.experiment,
        "scenario": ours.scenario,
        "batch size × clients": f"{ours.batch_size:,} × {ours.concurrency:,}",
        "NVIDIA's": f"{theirs.batch_size:,} × {theirs.concurrency:,}",
        "ours (samples/s)": ours.throughput,
        "95% CI": interval(ours.throughput_low, ours.throughput_high),
        "NVIDIA's (samples/s)": theirs.throughput,
        "ratio": pair.ratio,
        "our p99 (ms)": ours.p99_latency_ms,
        "NVIDIA's p99 (ms)": theirs.p99_latency_ms,
        "quality": ours.quality,
        "reason": "; ".join(reason for reason in pair.reasons if reason not in shared),
    }


def _published_rows(rows: list[PublishedRow]) -> "DataFrame":
    """Return published rows as a table, without the columns that are empty in all of them."""
    from pandas import DataFrame

    columns = ["scenario", "dataset", "served", *SAMPLES, "p50_latency_ms", "p99_latency_ms"]
    frame = DataFrame([{name: getattr(row, name) for name in columns} for row in rows])
    broken = [row.littles_law if violates_littles_law(row) else None for row in rows]
    frame["caveat"] = [law and f"contradicts Little's law (ratio {law:.2f})" for law in broken]
    return frame.replace("", None).dropna(axis=1, how="all")


def draw(comparison: Comparison, scenario: str) -> "Figure":
    """Draw throughput over the samples in flight: ours in colour, NVIDIA's in grey."""
    title, drawn = f"Compared with NVIDIA's rows, {scenario}", comparison.drawn(scenario)
    rows = comparison.measured
    ours = rows[rows["scenario"] == scenario]
    if not drawn:
        return style.empty_figure(title, ours)
    figure, axes = canvas(title, AXES[scenario], "throughput (samples/s), log scale")
    several_gpus = bool(comparison.of(scenario)) and not comparison.is_own
    shapes: dict[str, str] = {}
    for line in tables(drawn):
        name = line[0].gpu if several_gpus else f"NVIDIA's {line[0].served}"
        shape = shapes.setdefault(name, MARKERS[len(shapes) % len(MARKERS)])
        x, y = [_in_flight(row) for row in line], [row.throughput for row in line]
        every = -(-len(line) // MARKED)
        axes.plot(x, y, color=GREY, ls="--", lw=0.9, marker=shape, mew=1.2, markevery=every)
    points = measured(rows, scenario).query("throughput > 0")
    points = points.assign(x=points["batch_size"] * points["concurrency"])
    for name, look in style.styles(rows).items():
        style.draw_line(axes, points[points["experiment"] == name], "x", "throughput", look, "full")
    axes.set_yscale("log")
    mark_decades(axes.yaxis)
    style.mark_sizes(axes, {_in_flight(row) for row in drawn} | {*points["x"]})
    grey = [style.marker(name, GREY, shape) for name, shape in shapes.items()]
    style.add_legend(figure, ours, [*style.legend_handles(rows, points), *grey])
    return figure


def _in_flight(row: TableRow) -> int:
    """Return the samples in flight; offline that is the batch size."""
    return row.batch_size * row.concurrency


def describe(comparison: Comparison, scenario: str) -> str:
    """Return the chart's caption, which is also its alternative text."""
    drawn, pairs = comparison.drawn(scenario), comparison.of(scenario)
    if not drawn:
        return f"NVIDIA published no {scenario} rows of {comparison.model} for {comparison.chosen}."
    ratios = sorted(pair.ratio for pair in pairs)
    low, high = (f"{ratios[index]:.3g}" if ratios else "" for index in (0, -1))
    measured = [pair.measured for pair in pairs]
    return say(
        "published",
        scenario=scenario,
        top=max(drawn, key=lambda row: row.throughput),
        best=max(measured, key=lambda row: row.throughput or 0, default=None),
        low=low,
        high=high,
        chosen=comparison.chosen,
    )


def data(comparison: Comparison, scenario: str) -> "DataFrame":
    """Return what the figure shows: the pairs, then NVIDIA's other rows that are drawn."""
    from pandas import DataFrame

    pairs = comparison.of(scenario)
    rows: list[dict[str, Value]] = []
    for pair in pairs:
        ours, theirs = pair.measured.p99_latency_ms, pair.published.p99_latency_ms
        ratios: dict[str, Value] = {
            "throughput_ratio": pair.ratio,
            "p99_latency_ratio": ours / theirs if ours and theirs else None,
            "reasons": "; ".join(pair.reasons),
        }
        mine: dict[str, Value] = {name: getattr(pair.measured, name) for name in OURS}
        rows.append(mine | _theirs(pair.published) | ratios)
    others = [row for row in comparison.drawn(scenario) if row not in [p.published for p in pairs]]
    rows += [{"scenario": scenario, **_theirs(row)} for row in others]
    return DataFrame(rows)


def _theirs(row: PublishedRow) -> dict[str, Value]:
    return {f"nvidia_{name}": getattr(row, name) for name in THEIRS}
