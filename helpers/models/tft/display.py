"""Showing series, forecasts and what the network looked at, as pictures with words beside them."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from helpers.display import COLOURS, GREY, INK, number, panels, picture
from helpers.models import Arrays
from helpers.models.tft.data import Windows
from helpers.models.tft.variants import HISTORY, HORIZON, LENGTH

if TYPE_CHECKING:
    from IPython.display import Image
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DAY = 24
TAIL = 72  # hours of history that are drawn beside a forecast
SAMPLES = 64  # windows that weights are averaged over
HOURS = "hours from the first forecast one"


def show_series(dataset: Windows, count: int = 4) -> "Image":
    """Draw a window of `count` series, spread over the set: a week, and the day to forecast."""
    chosen = dataset.spread(count)
    values, hours = dataset.targets(chosen), np.arange(LENGTH) - HISTORY
    figure, drawn = panels("A week of history and the day to forecast", len(chosen))
    for axes, series, line in zip(drawn, dataset.series[chosen], values, strict=True):
        past = hours < 0
        axes.plot(hours[past], line[past], color=COLOURS[0], lw=1.2, label="history")
        _dots(axes, hours[~past], line[~past], "to forecast")
        _label(axes, f"series {series}", dataset.variant.quantity)
    _finish(figure, drawn)
    low, high = values.min(), values.max()
    text = (
        f"Hourly {dataset.variant.quantity} of {len(chosen)} series, eight days each, from "
        f"{low:.3g} to {high:.3g}; the last 24 hours of each are to be forecast."
    )
    return picture(figure, text)


def show_forecasts(dataset: Windows, infer: Callable[[Arrays], Arrays], count: int = 4) -> "Image":
    """Draw forecasts of `count` windows, spread over the set, beside what came.

    `infer` maps a batch as the data set gives it to the network's output: a session's `run`, or a
    client of a server.
    """
    chosen = dataset.spread(count)
    (batch,) = dataset.batches(len(chosen), len(chosen))
    (scaled,) = infer(batch).values()
    forecasts = dataset.unscaled(np.asarray(scaled, dtype=np.float64), chosen)
    actual, hours = dataset.targets(chosen), np.arange(LENGTH) - HISTORY
    figure, drawn = panels("Forecasts of a day and what came", len(chosen))
    for axes, series, line, day in zip(
        drawn, dataset.series[chosen], actual, forecasts, strict=True
    ):
        shown, ahead = slice(HISTORY - TAIL, HISTORY), hours[HISTORY:]
        axes.plot(hours[shown], line[shown], color=COLOURS[0], lw=1.2, label="history")
        band: dict[str, Any] = {"color": COLOURS[1], "alpha": 0.3, "lw": 0}
        axes.fill_between(ahead, day[:, 0], day[:, 2], label="P10 to P90", **band)
        axes.plot(ahead, day[:, 1], color=COLOURS[4], ls="--", lw=1.8, label="P50")
        _dots(axes, ahead, line[HISTORY:], "actual")
        _label(axes, f"series {series}", dataset.variant.quantity)
    _finish(figure, drawn)
    days = actual[:, HISTORY:]
    inside = ((days >= forecasts[..., 0]) & (days <= forecasts[..., 2])).mean()
    error = np.abs(days - forecasts[..., 1]).sum() / np.abs(days).sum()
    text = (
        f"Forecasts of {dataset.variant.quantity} for {len(chosen)} windows of 24 hours: "
        f"{inside:.0%} of the actual values lie between P10 and P90, and P50 is off by "
        f"{error:.0%} of the mean."
    )
    return picture(figure, text)


def show_weights(config: Any, dataset: Windows, checkpoint: Path) -> "Image":
    """Draw the mean weights of the inputs, and how the attention spreads over the hours."""
    history, future, attention = _explained(config, dataset, checkpoint)
    names = [*dataset.variant.known, dataset.variant.target]
    figure, (left, right) = panels("What the network looks at", 2)
    for offset, colour, hatch, label, weights in (
        (0.2, COLOURS[0], "", f"history, {HISTORY} hours", history),
        (-0.2, COLOURS[1], "///", f"future, {HORIZON} hours", future),
    ):
        places = np.arange(len(weights))
        style: dict[str, Any] = {"color": colour, "hatch": hatch, "ec": "white", "label": label}
        left.barh(places + offset, weights, 0.38, **style)
    left.set_yticks(range(len(names)), names)
    left.invert_yaxis()
    left.grid(visible=False, axis="y")
    left.set_xlabel("mean selection weight (share)")
    left.set_title("Inputs", loc="left", fontsize=10)
    left.legend(frameon=False, fontsize=8)
    hours = np.arange(LENGTH) - HISTORY
    right.plot(hours, attention * 100, color=COLOURS[0], lw=1, marker="o", ms=2.5)
    _label(right, "Attention", "mean attention (%)")
    right.set_ylim(0, None)
    top = hours[attention.argmax()]
    past = attention[:HISTORY].sum()
    best = names[int(history.argmax())]
    text = (
        f"Of the history the network weighs {best} most ({history.max():.0%}), of the future "
        f"{names[int(future.argmax())]} ({future.max():.0%}). {past:.0%} of the attention goes to "
        f"the history; the hour with most of it is {top}, counted from the first forecast one."
    )
    return picture(figure, text)


def _explained(config: Any, dataset: Windows, checkpoint: Path) -> tuple[NDArray[Any], ...]:
    """Average over windows and hours: weights [4] and [3], and attention [192]."""
    import torch

    from helpers.models.tft import MODEL

    network = MODEL.build(config, checkpoint)
    (batch,) = dataset.batches(SAMPLES, SAMPLES)
    with torch.inference_mode():
        found = network.explain(*(torch.from_numpy(array) for array in batch.values()))
    _, history, future, attention = found
    return tuple(each.mean(dim=(0, 1)).numpy() for each in (history, future, attention))


def _dots(axes: "Axes", hours: NDArray[Any], values: NDArray[Any], label: str) -> None:
    axes.plot(hours, values, color=INK, lw=0.7, marker="o", ms=2.8, label=label)


def _label(axes: "Axes", title: str, quantity: str) -> None:
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_xlabel(HOURS)
    axes.set_ylabel(quantity)
    whole = axes.get_xlim()[0] < -TAIL - DAY
    axes.set_xticks(range(-6 * DAY, DAY + 1, 2 * DAY) if whole else range(-TAIL, DAY + 1, DAY))
    axes.yaxis.set_major_formatter(number)
    axes.axvline(-0.5, color=GREY, lw=0.8, ls=":")


def _finish(figure: "Figure", panels: "list[Axes]") -> None:
    """Put one legend below all panels."""
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower left", ncols=len(labels), frameon=False)
