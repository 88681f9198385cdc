"""Tables, text and a chart of an embedding cache: cold, warm, and with one repeated batch."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from helpers.config import Value
from helpers.display import COLOURS, INK, display, number, picture, subplots, table
from helpers.report import analysis, text
from helpers.report.describe import say
from helpers.results import Estimate, LookupPass, Measurement, Results, Row

if TYPE_CHECKING:
    from IPython.display import Image

REPEATED = (
    "One repeated batch compared with different batches. They were measured apart: the 95% CI of "
    "the ratio leaves out a drift of the machine between them"
)


def show(results: Results) -> None:
    """Display both tables and the text, where an experiment has a parameter server."""
    for rows, caption in (
        (passes(results), "Evaluation set through the parameter server: cold and warm cache"),
        (repeated_batches(results), REPEATED),
    ):
        if rows:
            display(table(rows, caption))
    if lines := sentences(results):
        display(text.bullets(lines))


def show_warmup(lookups: Sequence[LookupPass]) -> None:
    """Display how the cache of a stage's server warms up; nothing without a parameter server."""
    if lookups:
        rows = [{"samples per request": lookup.batch_size, **lookup.row} for lookup in lookups]
        display(table(rows, "All requests of the evaluation set, from the first"), _warmup(lookups))


def _warmup(lookups: Sequence[LookupPass]) -> "Image":
    """Draw the shares and the latency of each request of both passes."""
    figure, (shares, times) = subplots("Cache warm-up", 2, 3.3)
    ends = np.cumsum([lookup.course[-1][0] for lookup in lookups]) / 1000
    sent, *shown, took_ms = np.concatenate([np.array(lookup.course, float) for lookup in lookups]).T
    sent = sent / 1000 + np.repeat([0, *ends[:-1]], [len(lookup.course) for lookup in lookups])
    labels = ("in the cache (of different keys)", "default vectors (of all)")
    for values, label, colour, dash in zip(shown, labels, COLOURS, ("-", "--"), strict=False):
        shares.plot(sent, 100 * values, color=colour, lw=1.3, ls=dash, label=label)
    times.plot(sent, took_ms, color=COLOURS[0], lw=1.3)
    shares.set(ylabel="share (%)", ylim=(-3, 103))
    shares.legend(frameon=False, fontsize=8)
    times.set(ylabel="request latency (ms)", ylim=(0, None))
    for axes in (shares, times):
        axes.set_xlabel("samples sent (thousands)")
        axes.yaxis.set_major_formatter(number)
        for end in ends:
            axes.axvline(end, color=INK, lw=0.6, ls=":")
    return picture(figure, say("warmup", cold=lookups[0], warm=lookups[-1]))


def _measurements(results: Results) -> Iterator[tuple[str, Measurement]]:
    for name, result in analysis.stages(results, "perf_offline"):
        if result.measurement:
            yield name, result.measurement


def passes(results: Results) -> list[dict[str, Value]]:
    """Return a row for each pass of the evaluation set, with a cold and with a warm cache."""
    return [
        {"experiment": name, **lookup.row}
        for name, measured in _measurements(results)
        for lookup in measured.passes
    ]


def _repeated(results: Results) -> Iterator[tuple[str, Row, Row, Estimate]]:
    """Yield each repeated batch, the different batches of that size, and the ratio of both."""
    for name, measured in _measurements(results):
        different = {row.batch_size: row for row in measured.rows if not row.repeated}
        for row in measured.rows:
            other = different.get(row.batch_size)
            if row.repeated and other and (ratio := analysis.ratio(row, other)):
                yield name, row, other, ratio


def repeated_batches(results: Results) -> list[dict[str, Value]]:
    """Return a row for each batch size at which one batch was also sent again and again."""
    return [
        {
            "experiment": name,
            "batch_size": row.batch_size,
            "throughput": other.throughput,
            "hit rate": other.hit_rate,
            "throughput, repeated (samples/s)": row.throughput,
            "hit rate, repeated": row.hit_rate,
            "ratio": ratio.times,
        }
        for name, row, other, ratio in _repeated(results)
    ]


def sentences(results: Results) -> list[str]:
    """Return what a cold cache costs in accuracy, and how much faster a repeated batch is."""
    measured = [(name, run.passes) for name, run in _measurements(results) if run.passes]
    exact = [name for name, (cold, *_) in measured if cold.default_share == 0]
    lines = [
        say("cold_cache", name=name, cold=cold, warm=warm)
        for name, (cold, *_, warm) in measured
        if name not in exact
    ]
    lines += [say("exact_cache", names=exact)] if exact else []
    if repeated := sorted(_repeated(results), key=lambda entry: entry[3].value):
        ratios = [ratio for *_, ratio in repeated]
        name, row, other, _ = repeated[-1]
        ends = dict.fromkeys(Estimate(value=ratio.value).times for ratio in (ratios[0], ratios[-1]))
        is_clear = all(ratio.is_significant for ratio in ratios)
        values = {"name": name, "row": row, "other": other, "is_clear": is_clear}
        lines.append(say("repeated", ratios=[*ends], **values))
    return lines
