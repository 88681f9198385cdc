"""A chart of a converted model's outputs over the reference's."""

from typing import TYPE_CHECKING, Any

import numpy as np

from helpers import formats
from helpers.config import ConvertConfig, results_folder
from helpers.display import COLOURS, INK, number, short, show, subplots
from helpers.formats import Arrays
from helpers.measure.checks import cached_outputs, reference_outputs
from helpers.store import Artifact

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

POINTS = 3_000  # that are drawn, of all outputs together
FILE = "convert_outputs.csv"
MARKERS = ("o", "s", "^", "D")


def show_parity(config: ConvertConfig, artifact: Artifact) -> None:
    """Display the converted model's outputs for the 64 samples over the reference's, if any."""
    converted = cached_outputs(config, artifact)
    if not converted:
        print("The exported file is served unchanged: the export notebook has compared it.")
        return
    reference = reference_outputs(config)
    drawn, total = points(reference, converted), sum(array.size for array in reference.values())
    name = f"{formats.get(config.format).DISPLAY_NAMES[1]} in {config.precision}"
    text = describe(drawn, name, total)
    show(draw(drawn, name), text, drawn, results_folder(config) / FILE)


def points(reference: Arrays, converted: Arrays, most: int = POINTS) -> "DataFrame":
    """Choose up to `most` values, evenly spread, and the one that is furthest off of each output.

    The columns are the output's name, the sample, the value's index in it, the reference's value
    and the converted model's. The index counts through all dimensions of the sample.
    """
    from pandas import DataFrame, concat

    parts = []
    for output, right in reference.items():
        values, others = (array.ravel().astype(float) for array in (right, converted[output]))
        count = min(values.size, most // len(reference))
        furthest = np.nanargmax(np.abs(values - others))
        chosen = np.union1d(np.arange(count) * values.size // count, furthest)
        sample, index = np.divmod(chosen, right[0].size)
        part = DataFrame({"output": output, "sample": sample, "place": index})
        parts.append(part.assign(reference=values[chosen], converted=others[chosen]))
    return concat(parts, ignore_index=True)


def draw(drawn: "DataFrame", name: str) -> "Figure":
    """Draw converted over reference with the line where both are equal, and their difference."""
    figure, (axes, apart) = subplots(f"{name} compared with the reference", 2, tall=3.2)
    ends = drawn[["reference", "converted"]]
    line = [ends.min(axis=None), ends.max(axis=None)]
    axes.plot(line, line, color=INK, lw=0.8, label="equal", zorder=1)
    apart.axhline(0, color=INK, lw=0.8, zorder=1)
    for index, (output, one) in enumerate(drawn.groupby("output", sort=False)):
        look: dict[str, Any] = {"s": 9, "alpha": 0.5, "linewidths": 0}
        look |= {"color": COLOURS[index % len(COLOURS)], "marker": MARKERS[index % len(MARKERS)]}
        axes.scatter(one["reference"], one["converted"], label=str(output), **look)
        apart.scatter(one["reference"], one["converted"] - one["reference"], **look)
    axes.legend(frameon=False, fontsize=8)
    for panel, label in ((axes, "converted"), (apart, "converted - reference")):
        panel.set(xlabel="reference (fp32)", ylabel=label)
        panel.xaxis.set_major_formatter(number)
        panel.yaxis.set_major_formatter(number)
    return figure


def describe(drawn: "DataFrame", name: str, total: int) -> str:
    """Return the chart's caption: how far the values are from the reference's."""
    apart = (drawn["converted"] - drawn["reference"]).abs()
    worst = drawn.loc[apart.idxmax()]
    return (
        f"{len(drawn):,} of {total:,} output values of {name} over the reference's: the mean "
        f"difference is {short(apart.mean())}, the largest {short(apart.max())} "
        f"({short(worst['converted'])} instead of {short(worst['reference'])}, sample "
        f"{worst['sample']})."
    )
