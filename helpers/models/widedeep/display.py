"""Tables of displays and their ads, and a picture of where the clicked ad is ranked."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from helpers.display import canvas, legend_below, paired_bars, picture
from helpers.models import Arrays, Example
from helpers.models._arrays import Answers, answers, spread, take
from helpers.models.widedeep.data import Displays
from helpers.models.widedeep.features import PAD
from helpers.models.widedeep.metric import CUT, first_click_ranks, mean_average_precision

if TYPE_CHECKING:
    from IPython.display import Image

COLUMNS = {  # of a table of ads -> the feature that it shows
    "ad": "ad_id",
    "campaign": "campaign_id",
    "advertiser": "advertiser_id",
    "platform": "platform",
    "country": "geo_location_country",
    "ad's rate": "ad_id_ctr",
    "topics alike": "document_id_document_id_promo_sim_topics",
    "categories": "category_id_list",
}
ROWS = 5_000  # that a picture is drawn from
READING = """\
chances = response.as_numpy("{output}")[:, 0]
for index in chances.argsort()[::-1]:  # the likeliest click first
    label = "clicked" if sample["clicked"][index] else ""
    print(f"ad {{sample['ad_id'][index, 0]}}: {{chances[index]:.1%}} {{label}}")
"""
Row = dict[str, str | int | float]


def show_displays(dataset: Displays, count: int = 3) -> list[Row]:
    """Return a row for each ad of `count` displays, spread over the set: features and click."""
    rows: list[Row] = []
    for places in _displays(dataset, count):
        features = dataset.take(places)
        for number, index in enumerate(places):
            shown = {name: _plain(features[of][number]) for name, of in COLUMNS.items()}
            display = str(dataset.displays[index])
            rows.append({"display": display, **shown, "clicked": _clicked(dataset, index)})
    return rows


def show_ranking(dataset: Displays, infer: Answers, count: int = 3) -> list[Row]:
    """Return a row for each ad of `count` displays, ranked by the predicted probability."""
    rows: list[Row] = []
    for places in _displays(dataset, count):
        features = dataset.take(places)
        predicted, ads = _predicted(infer, features, places), features["ad_id"][:, 0]
        for rank, number in enumerate(np.argsort(-predicted, kind="stable"), start=1):
            index = places[number]
            row: Row = {"display": str(dataset.displays[index]), "place": rank}
            row |= {"ad": str(ads[number]), "probability": float(predicted[number])}
            rows.append(row | {"clicked": _clicked(dataset, index)})
    return rows


def example(dataset: Displays, most: int) -> Example:
    """Choose the ads of the first display that `show_ranking` ranks."""
    places = next(_displays(dataset, 1))[:most]
    beside = {"clicked": dataset.clicked[places]}
    return Example(dataset.take(places), beside, READING.format(output=dataset.output))


def show_ranks(dataset: Displays, infer: Answers, batch_size: int = 64) -> "Image":
    """Draw the clicked ad's rank, and by chance, in whole displays with about 5,000 rows."""
    count = max(1, round(ROWS / len(dataset) * len(np.unique(dataset.displays))))
    places = np.sort(np.concatenate(list(_displays(dataset, count))))
    features = dataset.take(places)
    batches = (slice(first, first + batch_size) for first in range(0, len(places), batch_size))
    predicted = np.concatenate(
        [_predicted(infer, take(features, batch), places[batch]) for batch in batches]
    )
    displays, clicked = dataset.displays[places], dataset.clicked[places]
    ranks = first_click_ranks(displays, clicked, predicted)
    chance = _chance(displays, clicked)
    numbers = np.arange(1, len(chance) + 1)
    shares = np.bincount(ranks, minlength=len(chance) + 1)[1:] / len(ranks)
    random = (chance / numbers)[:CUT].sum()
    title = "Where the clicked ad is ranked"
    figure, axes = canvas(title, "place in its display", "share of displays (%)")
    paired_bars(axes, {"ranked by the network": shares * 100, "by chance": chance * 100})
    axes.set_xticks(numbers)
    legend_below(figure, axes)
    text = (
        f"In {len(ranks):,} displays the clicked ad is ranked first in {shares[0]:.0%} and in the "
        f"first three places in {shares[:3].sum():.0%}; by chance it would be {chance[0]:.0%} and "
        f"{chance[:3].sum():.0%}. MAP@12 of these displays is {mean_average_precision(ranks):.3f}, "
        f"by chance {random:.3f}."
    )
    return picture(figure, text)


def _chance(displays: NDArray[np.int64], clicked: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the share of displays whose one clicked ad a random order puts at each rank."""
    ids, sizes = np.unique(displays, return_counts=True)
    sizes = sizes[np.isin(ids, displays[clicked])]
    places = np.arange(1, sizes.max() + 1)
    shares = (places <= sizes[:, None]) / sizes[:, None]
    return np.asarray(shares.mean(axis=0))


def _displays(dataset: Displays, count: int) -> Iterator[NDArray[np.int64]]:
    """Return the rows of each of `count` displays, spread evenly over the set."""
    order = np.argsort(dataset.displays, kind="stable")
    _, starts = np.unique(dataset.displays[order], return_index=True)
    rows = np.split(order, starts[1:])
    for index in spread(len(rows), count):
        yield np.sort(rows[index])


def _predicted(infer: Answers, batch: Arrays, places: NDArray[np.int64]) -> NDArray[np.float64]:
    (output,) = answers(infer, batch, places).values()
    return np.asarray(output, dtype=np.float64)[:, 0]


def _clicked(dataset: Displays, index: int) -> str:
    return "clicked" if dataset.clicked[index] else ""


def _plain(values: NDArray[np.generic]) -> str | float:
    """Return a number as it is; ids as text, without padding."""
    if values.dtype.kind == "f":
        return float(values[0])
    return ", ".join(str(value) for value in values if value != PAD)
