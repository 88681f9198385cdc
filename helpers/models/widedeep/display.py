"""Showing displays: their ads, how a network ranks them, and where the clicked ad ends up."""

from collections.abc import Callable, Iterator
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from helpers.display import COLOURS, WIDTH, canvas
from helpers.models import Arrays
from helpers.models.widedeep.data import Displays
from helpers.models.widedeep.features import PAD
from helpers.models.widedeep.metric import CUT, first_click_ranks, mean_average_precision

if TYPE_CHECKING:
    from IPython.display import Image

SHOWN = {  # what a table of ads shows -> the feature it is
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


def show_displays(dataset: Displays, count: int = 3) -> list[dict[str, Any]]:
    """Give a row for each ad of `count` displays, spread over the set: features, and the click."""
    rows = []
    for places in _spread(dataset, count):
        features = dataset.rows(places)
        for number, place in enumerate(places):
            row: dict[str, Any] = {"display": str(dataset.displays[place])}
            for name, feature in SHOWN.items():
                row[name] = _plain(features[feature][number])
            rows.append({**row, "clicked": "clicked" if dataset.clicked[place] else ""})
    return rows


def show_ranking(
    dataset: Displays, infer: Callable[[Arrays], Arrays], count: int = 3
) -> list[dict[str, Any]]:
    """Rank the ads of `count` displays, spread over the set, by the probability that `infer` gives.

    `infer` turns a batch of the data set into the network's output: a session's `run`, or a client
    of a server. Gives a row for each ad.
    """
    rows = []
    for places in _spread(dataset, count):
        features = dataset.rows(places)
        predicted, ads = _predicted(infer, features), features["ad_id"][:, 0]
        for rank, number in enumerate(np.argsort(-predicted, kind="stable"), start=1):
            rows.append(
                {
                    "display": str(dataset.displays[places[number]]),
                    "place": rank,
                    "ad": str(ads[number]),
                    "probability": float(predicted[number]),
                    "clicked": "clicked" if dataset.clicked[places[number]] else "",
                }
            )
    return rows


def show_ranks(
    dataset: Displays, infer: Callable[[Arrays], Arrays], batch_size: int = 64
) -> "Image":
    """Draw in which place the clicked ad is, beside where chance would put it.

    Whole displays are taken from all over the set, until they have about 5,000 rows.
    """
    wanted = max(1, round(ROWS / len(dataset) * len(np.unique(dataset.displays))))
    places = np.sort(np.concatenate(list(_spread(dataset, wanted))))
    features = dataset.rows(places)
    parts = [
        {name: array[first : first + batch_size] for name, array in features.items()}
        for first in range(0, len(places), batch_size)
    ]
    predicted = np.concatenate([_predicted(infer, part) for part in parts])
    displays, clicked = dataset.displays[places], dataset.clicked[places]
    ranks = first_click_ranks(displays, clicked, predicted)
    chance = _chance(displays, clicked)
    last = max(int(ranks.max()), len(chance))
    found = np.bincount(ranks, minlength=last + 1)[1:] / len(ranks)
    chance = np.pad(chance, (0, last - len(chance)))
    score = mean_average_precision(ranks)
    random = (chance / np.arange(1, last + 1))[:CUT].sum()
    text = (
        f"In {len(ranks):,} displays the clicked ad is ranked first in {found[0]:.0%} and in the "
        f"first three places in {found[:3].sum():.0%}; by chance it would be {chance[0]:.0%} and "
        f"{chance[:3].sum():.0%}. MAP@12 of these displays is {score:.3f}, by chance {random:.3f}."
    )
    return _image(_bars(found, chance), text)


def _bars(found: NDArray[Any], chance: NDArray[Any]) -> Any:
    figure, axes = canvas(
        "Where the clicked ad is ranked", "place in its display", "share of displays (%)"
    )
    places = np.arange(1, len(found) + 1)
    for offset, colour, hatch, label, shares in (
        (-0.2, COLOURS[0], "", "ranked by the network", found),
        (0.2, COLOURS[1], "///", "by chance", chance),
    ):
        style: dict[str, Any] = {"color": colour, "hatch": hatch, "ec": "white", "label": label}
        axes.bar(places + offset, shares * 100, 0.38, **style)
    axes.set_xticks(places)
    axes.grid(visible=False, axis="x")
    figure.legend(loc="outside lower left", ncols=2, frameon=False)
    return figure


def _chance(displays: NDArray[Any], clicked: NDArray[Any]) -> NDArray[np.float64]:
    """Give the share of displays whose one clicked ad a random order puts in each place."""
    ids, sizes = np.unique(displays, return_counts=True)
    sizes = sizes[np.isin(ids, displays[clicked])]
    places = np.arange(1, sizes.max() + 1)
    shares = (places <= sizes[:, None]) / sizes[:, None]
    return np.asarray(shares.mean(axis=0))


def _spread(dataset: Displays, count: int) -> Iterator[NDArray[np.int64]]:
    """Give the rows of each of `count` displays, spread evenly over the set."""
    order = np.argsort(dataset.displays, kind="stable")
    _, starts = np.unique(dataset.displays[order], return_index=True)
    ends = [*starts[1:], len(order)]
    count = min(count, len(starts))
    for number in range(count):
        place = number * len(starts) // count
        yield np.sort(order[starts[place] : ends[place]])


def _predicted(infer: Callable[[Arrays], Arrays], batch: Arrays) -> NDArray[np.float64]:
    (output,) = infer(batch).values()
    return np.asarray(output, dtype=np.float64)[:, 0]


def _plain(values: NDArray[Any]) -> Any:
    """Give a number as it is; ids as text, without padding."""
    if values.dtype.kind == "f":
        return float(values[0])
    return ", ".join(str(each) for each in values if each != PAD)


def _image(figure: Any, text: str) -> "Image":
    """Turn a figure into what a notebook shows, with its alternative text."""
    from IPython.display import Image

    drawn = BytesIO()
    figure.savefig(drawn, format="png", dpi=192)
    return Image(drawn.getvalue(), width=round(WIDTH * 96), alt=text)  # type: ignore[no-untyped-call]
