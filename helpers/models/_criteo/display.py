"""Showing tables and predictions of click logs, as pictures with words beside them."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from helpers.display import COLOURS, INK, mark_decades, number, panels, picture
from helpers.models import Arrays
from helpers.models._criteo.data import SplitBinary

if TYPE_CHECKING:
    from IPython.display import Image

SHARE = 0.01  # of a table's rows: those that are looked up most
SAMPLES = 32_768  # that lookups are counted in
GROUPS = 10


def show_tables(dataset: SplitBinary) -> "Image":
    """Draw the rows of each table, and the share of lookups that the most frequent 1 % of them get.

    The lookups are those of up to 32,768 samples, spread over the set.
    """
    rows = np.array(dataset.spec.cardinalities)
    shares, lookups = _frequent(dataset)
    figure, (left, right) = panels("The tables of the 26 categorical features", 2, 4.7)
    places = np.arange(len(rows))
    left.barh(places, rows, 0.7, color=COLOURS[0])
    left.set_xscale("log")
    left.set_xlim(1, None)
    mark_decades(left.xaxis)
    left.set_xlabel("rows of the table, log scale")
    left.set_ylabel("feature")
    large = rows >= 1 / SHARE  # of a smaller table, 1 % is not even a row
    for chosen, face, label in (
        (large, COLOURS[1], "of 100 rows or more"),
        (~large, "white", "smaller: one row"),
    ):
        style: dict[str, Any] = {"color": COLOURS[1], "mfc": face, "marker": "o", "ls": ""}
        right.plot(100 * shares[chosen], places[chosen], label=label, **style)
    figure.legend(loc="outside lower right", ncols=2, frameon=False, fontsize=8)
    right.set_xlim(0, 102)
    right.set_xlabel("lookups of the top 1 % of rows (%)")
    for axes in (left, right):
        axes.set_yticks(places[::5])
        axes.set_ylim(len(rows) - 0.4, -0.6)
    text = f"The 26 tables have {rows.min():,} to {rows.max():,} rows, {rows.sum():,} together."
    if large.any():
        text += (
            f" In {lookups:,} samples the most frequent 1 % of the rows get "
            f"{shares[large].min():.0%} to {shares[large].max():.0%} of the lookups of a table of "
            "100 rows or more."
        )
    return picture(figure, text)


def show_predictions(
    dataset: SplitBinary,
    infer: Callable[[Arrays], Arrays],
    count: int = 4096,
    batch_size: int = 256,
) -> "Image":
    """Draw the predicted beside the observed share of clicks, by tenths of rising prediction.

    `infer` maps a batch as the data set gives it to the network's logits: a session's `run`, or a
    client of a server. It gets `count` samples, spread over the set.
    """
    logits: list[NDArray[Any]] = []
    clicks: list[NDArray[Any]] = []
    for samples in dataset.test.batches(batch_size, count):
        (found,) = infer(dataset.inputs(samples)).values()
        logits.append(np.asarray(found, dtype=np.float64).reshape(-1))
        clicks.append(samples.clicks)
    predicted, observed, deviations = _tenths(np.concatenate(logits), np.concatenate(clicks))
    figure, (axes, zoom) = panels("Predicted and observed clicks", 2, 3.3)
    places = np.arange(1, len(predicted) + 1)
    axes.bar(places, 100 * observed, 0.7, color=COLOURS[0], label="observed")
    style: dict[str, Any] = {"color": INK, "marker": "o", "ms": 5, "lw": 1, "label": "predicted"}
    axes.plot(places, 100 * predicted, **style)
    axes.set_xticks(places)
    axes.set_xlabel("tenth of the samples, by rising prediction")
    axes.set_ylabel("clicks (%)")
    axes.legend(frameon=False, fontsize=8)
    top = 105 * max(predicted.max(), observed.max())
    zoom.plot([0, top], [0, top], color=INK, lw=0.8, ls=":", label="as predicted")
    bars: dict[str, Any] = {
        "fmt": "o",
        "color": COLOURS[1],
        "ms": 5,
        "lw": 1,
        "label": "±2 standard errors",
    }
    zoom.errorbar(100 * predicted, 100 * observed, 200 * deviations, **bars)
    zoom.set_xlabel("predicted clicks (%)")
    zoom.set_ylabel("observed clicks (%)")
    zoom.legend(frameon=False, fontsize=8)
    for each in (axes, zoom):
        each.yaxis.set_major_formatter(number)
    text = (
        f"Of {len(np.concatenate(clicks)):,} samples in {len(places)} groups of rising prediction, "
        f"the lowest has {observed[0]:.1%} clicks where {predicted[0]:.1%} are predicted, the "
        f"highest {observed[-1]:.1%} where {predicted[-1]:.1%} are; the largest distance is "
        f"{np.abs(observed - predicted).max():.1%}."
    )
    return picture(figure, text)


def _frequent(dataset: SplitBinary) -> tuple[NDArray[np.float64], int]:
    """Give each table's share of lookups that go to its most frequent 1 % of rows, and of how many
    samples; a table of less than 100 rows has one such row.
    """
    (samples,) = dataset.test.batches(SAMPLES, SAMPLES)
    shares = []
    for ids, rows in zip(samples.categorical.T, dataset.spec.cardinalities, strict=True):
        _, lookups = np.unique(ids, return_counts=True)
        most = np.sort(lookups)[::-1][: max(1, round(rows * SHARE))]
        shares.append(most.sum() / len(ids))
    return np.array(shares), len(samples.clicks)


def _tenths(
    logits: NDArray[np.float64], clicks: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Give the predicted and the observed share of clicks of each tenth of the samples, by rising
    logit, and the standard error of the latter.
    """
    order = np.array_split(np.argsort(logits, kind="stable"), min(GROUPS, len(logits)))
    probability = np.exp(-np.logaddexp(0, -logits))
    predicted = np.array([probability[group].mean() for group in order])
    observed = np.array([clicks[group].mean() for group in order])
    sizes = np.array([len(group) for group in order])
    return predicted, observed, np.sqrt(observed * (1 - observed) / sizes)
