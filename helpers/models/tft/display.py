"""Pictures of series, of forecasts and of the network's weights, with alternative text."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from helpers.display import COLOURS, GREY, INK, legend_below, number, paired_bars, picture, subplots
from helpers.models import Config, Example
from helpers.models._arrays import Answers, answers, spread
from helpers.models.tft.data import Windows
from helpers.models.tft.variants import HISTORY, HORIZON, LENGTH

if TYPE_CHECKING:
    from IPython.display import Image
    from matplotlib.axes import Axes

DAY = 24
HOURS = np.arange(LENGTH) - HISTORY
TAIL = slice(HISTORY - 3 * DAY, HISTORY)  # the history that is drawn beside a forecast
WEEK_TICKS, TAIL_TICKS = range(-6 * DAY, DAY + 1, 2 * DAY), range(-3 * DAY, DAY + 1, DAY)
SAMPLES = 64  # windows that weights are averaged over
PAST: dict[str, Any] = {"color": COLOURS[0], "lw": 1.2, "label": "history"}
READING = """\
day = response.as_numpy("{output}")[0] * sample["scale"] + sample["mean"]  # in units of the data
print(sample["quantity"])
for hour in range(0, {hours}, 4):
    low, middle, high = (f"{{value:.4g}}" for value in day[hour])
    actual = sample["actual"][hour]
    print(f"hour {{hour + 1}}: {{middle}} ({{low}} to {{high}}), actual {{actual:.4g}}")
"""
ACTUAL: dict[str, Any] = {"color": INK, "lw": 0.7, "marker": "o", "ms": 2.8}


def show_series(dataset: Windows, count: int = 4) -> "Image":
    """Draw a window of `count` series, spread over the set: a week, and the day to forecast."""
    chosen = spread(len(dataset), count)
    values, ahead = dataset.targets(chosen), HOURS[HISTORY:]
    figure, drawn = subplots("A week of history and the day to forecast", len(chosen))
    for axes, series, line in zip(drawn, dataset.series[chosen], values, strict=True):
        axes.plot(HOURS[:HISTORY], line[:HISTORY], **PAST)
        axes.plot(ahead, line[HISTORY:], label="to forecast", **ACTUAL)
        _label(axes, f"series {series}", dataset.variant.quantity, WEEK_TICKS)
    legend_below(figure, drawn[0])
    text = (
        f"Hourly {dataset.variant.quantity} of {len(chosen)} series, eight days each, from "
        f"{values.min():.3g} to {values.max():.3g}; the last 24 hours of each are to be forecast."
    )
    return picture(figure, text)


def show_forecasts(dataset: Windows, infer: Answers, count: int = 4) -> "Image":
    """Draw forecasts of `count` windows, spread over the set, and the actual values."""
    chosen = spread(len(dataset), count)
    (scaled,) = answers(infer, dataset.take(chosen), chosen).values()
    forecasts = dataset.inverse_transform(np.asarray(scaled, dtype=np.float64), chosen)
    actual, ahead = dataset.targets(chosen), HOURS[HISTORY:]
    figure, drawn = subplots("Forecasts of a day and actual values", len(chosen))
    panels = zip(drawn, dataset.series[chosen], actual, forecasts, strict=True)
    for axes, series, line, day in panels:
        low, median, high = day.T
        axes.plot(HOURS[TAIL], line[TAIL], **PAST)
        axes.fill_between(ahead, low, high, label="P10 to P90", color=COLOURS[1], alpha=0.3, lw=0)
        axes.plot(ahead, median, color=COLOURS[4], ls="--", lw=1.8, label="P50")
        axes.plot(ahead, line[HISTORY:], label="actual", **ACTUAL)
        _label(axes, f"series {series}", dataset.variant.quantity, TAIL_TICKS)
    legend_below(figure, drawn[0])
    days = actual[:, HISTORY:]
    inside = ((days >= forecasts[..., 0]) & (days <= forecasts[..., 2])).mean()
    error = np.abs(days - forecasts[..., 1]).sum() / np.abs(days).sum()
    text = (
        f"Forecasts of {dataset.variant.quantity} for {len(chosen)} windows of 24 hours: "
        f"{inside:.0%} of the actual values lie between P10 and P90, and P50 is off by "
        f"{error:.0%} of the mean."
    )
    return picture(figure, text)


def example(dataset: Windows, most: int) -> Example:
    """Choose the first window that `show_forecasts` draws."""
    chosen = spread(len(dataset), 1)
    ((mean, one),) = dataset.inverse_transform(np.array([[0.0, 1.0]]), chosen)
    beside = {
        "mean": np.array(mean),
        "scale": np.array(one - mean),
        "actual": dataset.targets(chosen)[0, HISTORY:],
        "quantity": np.array(f"series {dataset.series[chosen[0]]}, {dataset.variant.quantity}"),
    }
    reading = READING.format(output=dataset.names[-1], hours=HORIZON)
    return Example(dataset.take(chosen), beside, reading)


def show_weights(config: Config, dataset: Windows, checkpoint: Path) -> "Image":
    """Draw the mean weights of the inputs, and how the attention spreads over the hours."""
    history, future, attention = _explained(config, dataset, checkpoint)
    names = [*dataset.variant.known, dataset.variant.target]
    figure, (left, right) = subplots("What the network looks at", 2)
    pairs = {f"history, {HISTORY} hours": history, f"future, {HORIZON} hours": future}
    paired_bars(left, pairs, across=True)
    left.set(xlabel="mean selection weight (share)", ylim=(len(names) + 0.5, 0.5))
    left.set_yticks(range(1, len(names) + 1), names)
    left.set_title("Inputs", loc="left", fontsize=10)
    left.legend(frameon=False, fontsize=8)
    right.plot(HOURS, attention * 100, color=COLOURS[0], lw=1, marker="o", ms=2.5)
    _label(right, "Attention", "mean attention (%)", WEEK_TICKS)
    right.set_ylim(0, None)
    text = (
        f"Of the history the network weighs {names[int(history.argmax())]} most "
        f"({history.max():.0%}), of the future {names[int(future.argmax())]} ({future.max():.0%}). "
        f"{attention[:HISTORY].sum():.0%} of the attention goes to the history; the hour with most "
        f"of it is {HOURS[attention.argmax()]}, counted from the first forecast hour."
    )
    return picture(figure, text)


def _explained(config: Config, dataset: Windows, checkpoint: Path) -> list[NDArray[np.float64]]:
    """Average over windows and hours: weights [4] and [3], and attention [192]."""
    import torch

    from helpers.models.tft import MODEL

    (batch,) = dataset.batches(SAMPLES, SAMPLES)
    with torch.inference_mode():
        inputs = [torch.from_numpy(array) for array in batch.values()]
        _, *tensors = MODEL.build(config, checkpoint).explain(*inputs)
    return [tensor.mean(dim=(0, 1)).numpy() for tensor in tensors]


def _label(axes: "Axes", title: str, quantity: str, ticks: range) -> None:
    axes.set(xlabel="hours from the first forecast hour", ylabel=quantity, xticks=ticks)
    axes.set_title(title, loc="left", fontsize=10)
    axes.yaxis.set_major_formatter(number)
    axes.axvline(-0.5, color=GREY, lw=0.8, ls=":")
