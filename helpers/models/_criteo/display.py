"""Pictures of the tables and of predictions of click logs, with alternative text."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from helpers.display import COLOURS, INK, mark_decades, number, picture, subplots
from helpers.models import Example
from helpers.models._arrays import Answers, answers, concatenate, spread
from helpers.models._criteo.data import OUTPUT, SplitBinary

if TYPE_CHECKING:
    from IPython.display import Image

SHARE = 0.01  # of a table's rows: those that are looked up most
COUNTED, PREDICTED = 32_768, 4_096  # samples, spread over the set
BATCH, GROUPS = 256, 10
SHOWN = 8  # samples that are shown one by one, half of them clicks
READING = f"""\
for logit, clicked in zip(response.as_numpy("{OUTPUT}").ravel(), sample["clicked"]):
    chance = 1 / (1 + np.exp(-logit))
    print(f"a click with {{chance:.1%}};", "clicked" if clicked else "not clicked")
"""


def show_tables(dataset: SplitBinary) -> "Image":
    """Draw the rows of each table, and the share of lookups that its most frequent 1% get."""
    rows = np.array(dataset.spec.cardinalities)
    shares, lookups = _frequent(dataset)
    figure, (left, right) = subplots("The tables of the 26 categorical features", 2, 4.7)
    places = np.arange(len(rows))
    left.barh(places, rows, 0.7, color=COLOURS[0])
    left.set(xscale="log", xlim=(1, None), xlabel="rows of the table, log scale", ylabel="feature")
    mark_decades(left.xaxis)
    large = rows >= 1 / SHARE  # of a smaller table, 1% is not even a row
    style: dict[str, Any] = {"color": COLOURS[1], "marker": "o", "ls": ""}
    right.plot(100 * shares[large], places[large], label="of 100 rows or more", **style)
    style["mfc"] = "white"
    right.plot(100 * shares[~large], places[~large], label="smaller: one row", **style)
    right.set(xlim=(0, 102), xlabel="lookups of the top 1% of rows (%)")
    figure.legend(loc="outside lower right", ncols=2, frameon=False, fontsize=8)
    for axes in (left, right):
        axes.set(yticks=places[::5], ylim=(len(rows) - 0.4, -0.6))
    text = f"The 26 tables have {rows.min():,} to {rows.max():,} rows, {rows.sum():,} together."
    if large.any():
        least, most = shares[large].min(), shares[large].max()
        text += f" In {lookups:,} samples the most frequent 1% of the rows get {least:.0%} to "
        text += f"{most:.0%} of the lookups of a table of 100 rows or more."
    return picture(figure, text)


def show_predictions(dataset: SplitBinary, infer: Answers) -> "Image":
    """Draw the predicted and the observed share of clicks, by tenths of rising prediction."""
    places = spread(len(dataset), PREDICTED)
    parts = [places[first : first + BATCH] for first in range(0, len(places), BATCH)]
    outputs = concatenate(answers(infer, dataset.take(part), part) for part in parts)
    (logits,) = (np.asarray(output, np.float64).reshape(-1) for output in outputs.values())
    clicks = dataset.clicks(places)
    predicted, observed, deviations = (100 * share for share in _tenths(logits, clicks))
    figure, (axes, zoom) = subplots("Predicted and observed clicks", 2, 3.3)
    places = np.arange(1, len(predicted) + 1)
    axes.bar(places, observed, 0.7, color=COLOURS[0], label="observed")
    axes.plot(places, predicted, color=INK, marker="o", ms=5, lw=1, label="predicted")
    axes.set(
        xticks=places, xlabel="tenth of the samples, by rising prediction", ylabel="clicks (%)"
    )
    top = 1.05 * max(predicted.max(), observed.max())
    zoom.plot([0, top], [0, top], color=INK, lw=0.8, ls=":", label="as predicted")
    style: dict[str, Any] = {"fmt": "o", "color": COLOURS[1], "ms": 5, "lw": 1}
    zoom.errorbar(predicted, observed, 2 * deviations, label="±2 standard errors", **style)
    zoom.set(xlabel="predicted clicks (%)", ylabel="observed clicks (%)")
    for panel in (axes, zoom):
        panel.legend(frameon=False, fontsize=8)
        panel.yaxis.set_major_formatter(number)
    text = (
        f"Of {len(clicks):,} samples in {len(places)} groups of rising prediction, the lowest has "
        f"{observed[0]:.1f}% clicks where {predicted[0]:.1f}% are predicted, the highest "
        f"{observed[-1]:.1f}% where {predicted[-1]:.1f}% are; the largest distance is "
        f"{np.abs(observed - predicted).max():.1f} percentage points."
    )
    return picture(figure, text)


def show_clicks(dataset: SplitBinary, infer: Answers) -> list[dict[str, str | int | float]]:
    """Return the predicted probability of a click and the label of eight samples, four clicks."""
    places = _shown(dataset)
    samples = dataset.read(places)
    (logits,) = answers(infer, samples.inputs, places).values()
    chances = 1 / (1 + np.exp(-np.asarray(logits, np.float64).reshape(-1)))
    labels = np.where(samples.clicks, "clicked", "not clicked")
    columns = places.tolist(), chances.tolist(), labels.tolist()
    names = ("sample", "probability of a click", "actual")
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def example(dataset: SplitBinary, most: int) -> Example:
    """Choose the samples that `show_clicks` shows."""
    samples = dataset.read(_shown(dataset)[:most])
    return Example(samples.inputs, {"clicked": samples.clicks}, READING)


def _shown(dataset: SplitBinary) -> NDArray[np.int64]:
    """Choose samples from all over the set, as many clicks as others if there are enough."""
    places = spread(len(dataset), PREDICTED)
    clicked = dataset.clicks(places)
    kinds = (places[clicked], places[~clicked])
    return np.sort(np.concatenate([kind[spread(len(kind), SHOWN // 2)] for kind in kinds]))


def _frequent(dataset: SplitBinary) -> tuple[NDArray[np.float64], int]:
    """Return each table's share of lookups of its top 1% of rows, one at least; the samples."""
    samples = dataset.read(spread(len(dataset), COUNTED))
    shares = []
    for ids, rows in zip(samples.categorical.T, dataset.spec.cardinalities, strict=True):
        lookups = np.sort(np.unique(ids, return_counts=True)[1])[::-1]
        shares.append(lookups[: max(1, round(rows * SHARE))].sum() / len(ids))
    return np.array(shares), len(samples.clicks)


def _tenths(
    logits: NDArray[np.float64], clicks: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return each tenth's predicted share of clicks, the observed one and its standard error."""
    groups = np.array_split(np.argsort(logits, kind="stable"), min(GROUPS, len(logits)))
    probability = np.exp(-np.logaddexp(0, -logits))
    predicted = np.array([probability[group].mean() for group in groups])
    observed = np.array([clicks[group].mean() for group in groups])
    sizes = np.array([len(group) for group in groups])
    return predicted, observed, np.sqrt(observed * (1 - observed) / sizes)
