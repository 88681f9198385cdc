"""How ours look beside NVIDIA's: throughput on a log scale, ours in colour and theirs in grey, and
what that figure says in words.
"""

from typing import TYPE_CHECKING, Any

from helpers.display import (
    GREY,
    add_legend,
    canvas,
    draw_line,
    keys,
    looks,
    mark,
    mark_decades,
    mark_sizes,
    nothing,
)
from helpers.report import published
from helpers.report.findings import measured
from helpers.report.nvidia_text import Beside
from helpers.report.published import PublishedRow

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARKERS = ("x", "+", "1", "2", "3", "4")  # none of them an experiment's
AXES = {"offline": "batch size", "online": "samples in flight (clients x samples of a request)"}
MARKED = 12  # points of a grey line, at most about


def draw(both: Beside, scenario: str) -> "Figure":
    """Draw throughput over the samples in flight, which offline are the batch size."""
    title, drawn = f"Beside NVIDIA's tables, {scenario}", both.drawn(scenario)
    mine = both.ours[both.ours["scenario"] == scenario]
    if not drawn:
        return nothing(title, mine)
    figure, axes = canvas(title, AXES[scenario], "throughput (samples/s), log scale")
    names = list(dict.fromkeys(_name(both, row) for row in drawn))
    marks = {name: MARKERS[i % len(MARKERS)] for i, name in enumerate(names)}
    for line in published.tables(drawn).values():
        x, y = [row.batch_size * row.concurrency for row in line], [row.throughput for row in line]
        style: dict[str, Any] = {"marker": marks[_name(both, line[0])], "ms": 6, "mew": 1.2}
        style["markevery"] = -(-len(line) // MARKED)
        axes.plot(x, y, color=GREY, ls="--", lw=0.9, **style)
    points = measured(both.ours, scenario)
    points = points[points["throughput"] > 0]
    points = points.assign(x=points["batch_size"] * points["concurrency"])
    for name, look in looks(both.ours).items():
        draw_line(axes, points[points["experiment"] == name], "x", "throughput", look, "full")
    axes.set_yscale("log")
    mark_decades(axes.yaxis)
    mark_sizes(axes, {row.batch_size * row.concurrency for row in drawn} | {*points["x"]})
    grey = [mark(name, GREY, marker) for name, marker in marks.items()]
    add_legend(figure, mine, [*keys(both.ours, points), *grey])
    return figure


def _name(both: Beside, row: PublishedRow) -> str:
    """Name a grey line: by its GPU where several are drawn, else by how the model was served."""
    return row.gpu if both.of(row.scenario) and not both.is_own else f"NVIDIA's {row.label}"


def describe(both: Beside, scenario: str) -> str:
    """Say what the figure shows: it is its alternative text."""
    drawn = both.drawn(scenario)
    if not drawn:
        return f"NVIDIA published no {scenario} rows of {both.model} on {both.chosen}."
    top = max(drawn, key=lambda row: row.throughput)
    theirs = (
        f"Throughput {scenario} on a log scale. NVIDIA's fastest row here reaches "
        f"{top.throughput:,.0f} samples/s with {top.batch_size * top.concurrency:,} in flight: "
        f"{top.gpu}, {top.label}."
    )
    pairs = both.of(scenario)
    if not pairs:
        return f"{theirs} Nothing of ours was measured."
    ratios = [pair.ratio for pair in pairs]
    best = max(pairs, key=lambda pair: pair.ours.throughput or 0).ours
    return (
        f"{theirs} Ours reaches {best.throughput:,.0f} samples/s with "
        f"{best.batch_size * best.concurrency:,} in flight: {best.experiment}. Beside the "
        f"nearest rows of {both.chosen} ours are {min(ratios):.3g} to {max(ratios):.3g} times as "
        "fast."
    )
