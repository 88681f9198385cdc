"""Results of parameter servers in tables and text: cold and warm cache, and one batch sent again
and again.
"""

from typing import TYPE_CHECKING, Any

from helpers.config import Value
from helpers.display import table
from helpers.report.text import markdown
from helpers.results import Measurement, Results, Row

if TYPE_CHECKING:
    from collections.abc import Iterator


def _measured(found: Results) -> "Iterator[tuple[str, Measurement]]":
    for name, stages in found.items():
        if "perf_offline" in stages and (measured := stages["perf_offline"].measurement):
            yield name, measured


def passes(found: Results) -> list[dict[str, Value]]:
    """One row for each pass of the evaluation set, with a cold and a warm cache: hit rate, default
    vectors, scores and latency.
    """
    return [
        {"experiment": name, **each.row}
        for name, measured in _measured(found)
        for each in measured.passes
    ]


def repeated_batches(found: Results) -> list[dict[str, Any]]:
    """One row for each batch size at which one batch was also sent again and again."""
    rows: list[dict[str, Any]] = []
    for name, measured in _measured(found):
        different = {row.batch_size: row for row in measured.rows if not row.repeated}
        for row in measured.rows:
            other = different.get(row.batch_size)
            if row.repeated and other and row.throughput and other.throughput:
                rows.append(
                    {
                        "experiment": name,
                        "batch_size": row.batch_size,
                        "throughput": other.throughput,
                        "hit rate": other.hit_rate,
                        "throughput, repeated (samples/s)": row.throughput,
                        "hit rate, repeated": row.hit_rate,
                        "ratio": row.throughput / other.throughput,
                        "95% CIs": _overlap(row, other),
                    }
                )
    return rows


def _overlap(row: Row, other: Row) -> str:
    """Return whether the 95% CIs of two throughputs overlap; empty if one has none."""
    ends = row.throughput_low, row.throughput_high, other.throughput_low, other.throughput_high
    low, high, other_low, other_high = (each or 0.0 for each in ends)
    if not (low and other_low):
        return ""
    return "overlap" if low <= other_high and other_low <= high else "do not overlap"


def in_words(found: Results) -> str:
    """Return what a cold cache costs in accuracy, and how much faster a repeated batch is."""
    lines, exact = [], []
    for name, measured in _measured(found):
        if not measured.passes:
            continue
        cold, *_, warm = measured.passes
        scores = ", ".join(
            f"{metric} {score:.4f} cold, {warm.scores[metric]:.4f} warm"
            for metric, score in cold.scores.items()
        )
        if cold.default_share == 0:
            exact.append(name)
        elif cold.default_share is None:
            lines.append(f"{name}: {scores}. The server does not count default vectors.")
        else:
            share = f"{cold.default_share:.1%}"
            lines.append(
                f"{name}: with a cold cache {share} of the vectors are defaults ({scores})."
            )
    if exact:
        lines.append(
            f"{', '.join(exact)}: no vector is a default, so a cold cache only costs time."
        )
    if rows := sorted(repeated_batches(found), key=lambda row: row["ratio"]):
        least, most = rows[0]["ratio"], rows[-1]
        ratios = " to ".join(dict.fromkeys((f"{least:.2f}×", f"{most['ratio']:.2f}×")))
        hits, own, other = "", most["hit rate, repeated"], most["hit rate"]
        if None not in (own, other):
            hits = f" (hit rate {own:.1%} instead of {other:.1%})"
        lines.append(
            f"Sending one batch again and again, as NVIDIA did, has {ratios} the throughput of "
            f"different batches: the most with {most['experiment']} at batch size "
            f"{most['batch_size']:,}{hits}."
        )
        if any(row["95% CIs"] != "do not overlap" for row in rows):
            lines[-1] += " Where 95% CIs overlap or are unknown, there is no clear winner."
    return "\n".join(f"- {line}" for line in lines)


def show(found: Results) -> None:
    """Display both tables and the text, where an experiment has a parameter server."""
    from IPython.display import display

    for rows, caption in (
        (passes(found), "Evaluation set through the parameter server: cold and warm cache"),
        (repeated_batches(found), "One repeated batch compared with different batches"),
    ):
        if rows:
            display(table(rows, caption))  # type: ignore[no-untyped-call]
    if words := in_words(found):
        display(markdown(words))  # type: ignore[no-untyped-call]
