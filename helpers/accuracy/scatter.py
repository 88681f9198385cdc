"""How the outputs of a converted model lie about the framework's, drawn."""

from typing import TYPE_CHECKING, Any

import numpy as np

from helpers import formats
from helpers.accuracy.ladder import artifact_outputs, reference_outputs
from helpers.config import ConvertConfig, results_folder
from helpers.display import COLOURS, INK, number, short, show, subplots
from helpers.formats import Arrays
from helpers.store import Artifact

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

POINTS = 3_000  # that are drawn, of all outputs together
FILE = "convert_outputs.csv"
MARKERS = ("o", "s", "^", "D")


def show_parity(config: ConvertConfig, artifact: Artifact) -> None:
    """Display what the converted model computes of the ladder's samples over what the framework
    does, or say that there is nothing to draw.
    """
    found = artifact_outputs(config, artifact)
    if not found:
        print("The exported file is served as it is: the export notebook has compared it.")
        return
    reference = reference_outputs(config)
    drawn, total = points(reference, found), sum(each.size for each in reference.values())
    name = f"{formats.get(config.format).SHOWN[1]} in {config.precision}"
    text = describe(drawn, name, total)
    show(scatter(drawn, name), text, drawn, results_folder(config) / FILE)


def points(reference: Arrays, found: Arrays, most: int = POINTS) -> "DataFrame":
    """Choose up to `most` values, evenly spread, and the one that is furthest off of each output.

    The columns are the output's name, the sample, the value's place in it (counted through all of
    its dimensions), the framework's value and the converted model's.
    """
    from pandas import DataFrame, concat

    parts = []
    for output, right in reference.items():
        pairs = np.stack([each.reshape(-1).astype(np.float64) for each in (right, found[output])])
        count = min(pairs.shape[1], most // len(reference))
        furthest = np.nanargmax(np.abs(pairs[0] - pairs[1]))
        chosen = np.union1d(np.arange(count) * pairs.shape[1] // count, furthest)
        sample, place = np.divmod(chosen, right[0].size)
        columns = {"sample": sample, "place": place}
        columns |= {"framework": pairs[0, chosen], "converted": pairs[1, chosen]}
        parts.append(DataFrame({"output": output, **columns}))
    return concat(parts, ignore_index=True)


def scatter(drawn: "DataFrame", name: str) -> "Figure":
    """Draw converted over framework with the line on which both are equal, and beside it by how
    much they differ.
    """
    figure, (axes, apart) = subplots(f"{name} against the framework", 2, tall=3.2)
    ends = drawn[["framework", "converted"]]
    line = [ends.min(axis=None), ends.max(axis=None)]
    axes.plot(line, line, color=INK, lw=0.8, label="equal", zorder=1)
    apart.axhline(0, color=INK, lw=0.8, zorder=1)
    for place, (output, one) in enumerate(drawn.groupby("output", sort=False)):
        look: dict[str, Any] = {
            "color": COLOURS[place % len(COLOURS)],
            "marker": MARKERS[place % len(MARKERS)],
        }
        look |= {"s": 9, "alpha": 0.5, "linewidths": 0}
        axes.scatter(one["framework"], one["converted"], label=str(output), **look)
        apart.scatter(one["framework"], one["converted"] - one["framework"], **look)
    axes.set(xlabel="framework, fp32", ylabel="converted")
    apart.set(xlabel="framework, fp32", ylabel="converted - framework")
    axes.legend(frameon=False, fontsize=8)
    for each in (axes, apart):
        each.xaxis.set_major_formatter(number)
        each.yaxis.set_major_formatter(number)
    return figure


def describe(drawn: "DataFrame", name: str, total: int) -> str:
    """Say what the figure shows: how far the values are from the line on which both are equal."""
    apart = (drawn["converted"] - drawn["framework"]).abs()
    worst = drawn.loc[apart.idxmax()]
    low, high = drawn["framework"].min(), drawn["framework"].max()
    return (
        f"{len(drawn):,} of {total:,} output values of {name} over the framework's, which lie "
        f"between {short(low)} and {short(high)}. They differ by {short(apart.mean())} on average, "
        f"and by {short(apart.max())} at most: sample {worst['sample']} is "
        f"{short(worst['converted'])} where the framework gives {short(worst['framework'])}."
    )
