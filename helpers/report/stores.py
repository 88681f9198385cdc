"""What stores of embeddings met, in tables and words: cold and warm, and one batch sent again and
again.
"""

from typing import TYPE_CHECKING, Any

from helpers.config import Value
from helpers.display import table
from helpers.report.text import markdown
from helpers.results import Measurement, Results

if TYPE_CHECKING:
    from collections.abc import Iterator


def _measured(found: Results) -> "Iterator[tuple[str, Measurement]]":
    for name, stages in found.items():
        if "perf_offline" in stages and (measured := stages["perf_offline"].measurement):
            yield name, measured


def passes(found: Results) -> list[dict[str, Value]]:
    """One row for each pass of a store over the evaluation set, cold and warm: what it met, what
    its answers were worth, and how long they took.
    """
    return [
        {"experiment": name, **each.row}
        for name, measured in _measured(found)
        for each in measured.passes
    ]


def repeated_batches(found: Results) -> list[dict[str, Any]]:
    """One row for each batch size at which one batch was sent again and again, too."""
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
                        "repeated: throughput": row.throughput,
                        "repeated: hit rate": row.hit_rate,
                        "ratio": row.throughput / other.throughput,
                    }
                )
    return rows


def in_words(found: Results) -> str:
    """Say what a cold cache costs in accuracy, and by how much a repeated batch flatters."""
    lines, exact = [], []
    for name, measured in _measured(found):
        if not measured.passes:
            continue
        cold, *_, warm = measured.passes
        scores = ", ".join(
            f"{metric} {score:.4f}, {warm.scores[metric]:.4f} warm"
            for metric, score in cold.scores.items()
        )
        if cold.default_share == 0:
            exact.append(name)
        elif cold.default_share is None:
            lines.append(f"{name}: the server counts no default vectors; cold, {scores}.")
        else:
            share = f"{cold.default_share:.1%}"
            lines.append(
                f"{name}: while the cache is cold {share} of the vectors are defaults ({scores})."
            )
    if exact:
        lines.append(
            f"{', '.join(exact)}: no vector is a default, so a cold cache costs time alone."
        )
    if rows := sorted(repeated_batches(found), key=lambda row: row["ratio"]):
        least, most = rows[0]["ratio"], rows[-1]
        hits = ""
        if most["hit rate"] is not None:
            own, other = most["repeated: hit rate"], most["hit rate"]
            hits = f", with {own:.1%} of its keys in the cache instead of {other:.1%}"
        lines.append(
            f"One batch again and again, as NVIDIA measured, has {least:.2f} to "
            f"{most['ratio']:.2f} times the throughput of different ones: the most in "
            f"{most['experiment']} at batch size {most['batch_size']:,}{hits}."
        )
    return "\n".join(f"- {line}" for line in lines)


def show(found: Results) -> None:
    """Display both tables and the words, where an experiment has a store."""
    from IPython.display import display

    for rows, caption in (
        (passes(found), "The whole test set through a store, cold and warm"),
        (repeated_batches(found), "One batch again and again beside different ones"),
    ):
        if rows:
            display(table(rows, caption))  # type: ignore[no-untyped-call]
    if words := in_words(found):
        display(markdown(words))  # type: ignore[no-untyped-call]
