"""The embedding cache of a parameter server in tables and text: cold and warm, and with one batch
that is sent again and again.
"""

from collections.abc import Iterator

from helpers.config import Value
from helpers.display import display, table
from helpers.perf import Ratio
from helpers.report import analysis, text
from helpers.report.describe import say
from helpers.results import Measurement, Results, Row


def show(found: Results) -> None:
    """Display both tables and the text, where an experiment has a parameter server."""
    for rows, caption in (
        (passes(found), "Evaluation set through the parameter server: cold and warm cache"),
        (repeated_batches(found), "One repeated batch compared with different batches"),
    ):
        if rows:
            display(table(rows, caption))
    if lines := sentences(found):
        display(text.bullets(lines))


def _measurements(found: Results) -> Iterator[tuple[str, Measurement]]:
    for name, result in analysis.stages(found, "perf_offline"):
        if result.measurement:
            yield name, result.measurement


def passes(found: Results) -> list[dict[str, Value]]:
    """Return a row for each pass of the evaluation set, with a cold and a warm cache: hit rate,
    default vectors, scores and latency.
    """
    return [
        {"experiment": name, **each.row}
        for name, measured in _measurements(found)
        for each in measured.passes
    ]


def _repeated(found: Results) -> Iterator[tuple[str, Row, Row, Ratio]]:
    """Yield each repeated batch, the different batches of that size, and how many times as fast the
    first is.
    """
    for name, measured in _measurements(found):
        different = {row.batch_size: row for row in measured.rows if not row.repeated}
        for row in measured.rows:
            other = different.get(row.batch_size)
            if row.repeated and other and row.throughput and other.throughput:
                yield name, row, other, analysis.ratio(row.model_dump(), other.model_dump())


def repeated_batches(found: Results) -> list[dict[str, Value]]:
    """Return a row for each batch size at which one batch was also sent again and again."""
    return [
        {
            "experiment": name,
            "batch_size": row.batch_size,
            "throughput": other.throughput,
            "hit rate": other.hit_rate,
            "throughput, repeated (samples/s)": row.throughput,
            "hit rate, repeated": row.hit_rate,
            "ratio": str(ratio),
        }
        for name, row, other, ratio in _repeated(found)
    ]


def sentences(found: Results) -> list[str]:
    """Return what a cold cache costs in accuracy, and how much faster a repeated batch is."""
    measured = [(name, each.passes) for name, each in _measurements(found) if each.passes]
    exact = [name for name, (cold, *_) in measured if cold.default_share == 0]
    lines = [
        say("cold_cache", name=name, cold=cold, warm=warm)
        for name, (cold, *_, warm) in measured
        if name not in exact
    ]
    lines += [say("exact_cache", names=exact)] if exact else []
    if repeated := sorted(_repeated(found), key=lambda each: each[3].value):
        ratios = [ratio for *_, ratio in repeated]
        name, row, other, _ = repeated[-1]
        ends = dict.fromkeys(str(Ratio(ratio.value)) for ratio in (ratios[0], ratios[-1]))
        is_clear = all(ratio.is_above for ratio in ratios)
        lines.append(
            say("repeated", ratios=[*ends], name=name, row=row, other=other, is_clear=is_clear)
        )
    return lines
