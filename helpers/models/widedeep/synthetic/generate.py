"""Generated displays, each set fixed by its seed, in NVIDIA's Parquet layout.

Ads have a quality, which the click-through rates of their ids show, and each platform has a taste
for some categories. In each display one ad is clicked, by chance: the better, the likelier.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from helpers.models import Config
from helpers.models._synthetic import lookup_size
from helpers.models._tables import GENERATED
from helpers.models.widedeep.features import (
    CLICKED,
    DISPLAY,
    HOTNESS,
    MULTI_HOT,
    NUMERIC,
    PAD,
    ROWS,
)

if TYPE_CHECKING:
    from polars import DataFrame

SEED = 1
ADS = np.arange(3, 13)  # of a display; small displays are the most
VALID_FILES, TRAIN_FILES = 8, 4
SCATTER = 7919  # a prime: it spreads the frequent ids over their table
APPEARANCES = 2_000_000  # of ads, from which counts and rates are
SELDOM = 5  # appearances below which there is no rate

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
Columns = dict[str, NDArray[Any]]
SIZES = {"generated": (24_000, 3_200), "generated-small": (1_500, 250)}  # displays, of both parts


def write(config: Config, folder: Path) -> None:
    """Write the set `config.dataset` into `train/*.parquet` and `valid/*.parquet` of a folder.

    The displays of the two are different and lie between each other; rows are sorted by display.
    Raises DataError if there is no such set.
    """
    name = config.dataset
    otherwise = ", NVIDIA's prepared folder or the folder of outbrain's CSV files"
    sizes, rng = lookup_size(name, SIZES, otherwise), np.random.default_rng(SEED)
    table = _table(displays := sum(sizes), rng)
    valid = np.sort(rng.choice(displays, sizes[1], replace=False)) + 1
    train = np.setdiff1d(np.arange(1, displays + 1), valid)
    for part, ids, files in (("train", train, TRAIN_FILES), ("valid", valid, VALID_FILES)):
        (folder / part).mkdir()
        for index, chosen in enumerate(np.array_split(ids, files)):
            rows = table.filter(table[DISPLAY].is_in(chosen))
            rows.write_parquet(folder / part / f"part_{index}.parquet")
    (folder / GENERATED).write_text(json.dumps({"name": name, "seed": SEED}) + "\n")


def power_law(rng: np.random.Generator, rows: int, count: int) -> Integers:
    """Draw ids of a table: the one of rank r with a probability that falls as r to the -2/3."""
    ranks = (rows * rng.random(count) ** 3).astype(np.int64)
    return np.asarray(ranks * SCATTER % rows)


def draw_ads(rng: np.random.Generator) -> tuple[Columns, Columns, Floats]:
    """Draw ads, each of a campaign and promoting a document, and count their appearances.

    Returns their ids and numbers, [ads] each; the lists of the promoted documents, [documents, 3]
    each, padded; and how good the ads are, [ads].
    """
    ads = np.arange(ROWS["ad_id"])
    ids = {"ad_id": ads}
    for name, of in (
        ("campaign_id", "ad_id"),
        ("document_id_promo", "ad_id"),
        ("advertiser_id", "campaign_id"),
        ("source_id_promo", "document_id_promo"),
        ("publisher_id_promo", "source_id_promo"),
    ):
        ids[name] = power_law(rng, ROWS[name], ROWS[of])[ids[of]]
    quality = 0.6 * rng.standard_normal(len(ads))
    quality += 0.8 * rng.standard_normal(ROWS["campaign_id"])[ids["campaign_id"]]
    rank = ads * pow(SCATTER, -1, len(ads)) % len(ads)
    share = ((rank + 1) ** (1 / 3) - rank ** (1 / 3)) / len(ads) ** (1 / 3)  # of the appearances
    numbers: dict[str, Floats] = {}
    for name, owners in ids.items():
        count = APPEARANCES * np.bincount(owners, share, ROWS[name])
        total = APPEARANCES * np.bincount(owners, share * quality, ROWS[name])
        rate = 1 / (1 + np.exp(1 - total / np.maximum(count, SELDOM)))
        numbers[f"{name}_ctr"] = np.where(count < SELDOM, 0, rate)[owners]
        size = np.log1p(count)[owners]
        apart = size - np.average(size, weights=share)
        numbers[f"{name}_count"] = apart / np.average(apart**2, weights=share) ** 0.5
    age = np.log1p(rng.exponential(60, ROWS["document_id_promo"]))
    numbers["publish_time_promo_days_since_published"] = age[ids["document_id_promo"]]
    numeric = {name: values for name, values in numbers.items() if name in NUMERIC}
    lists = {name: _lists(rng, ROWS["document_id_promo"], ROWS[name]) for name in MULTI_HOT}
    return {**ids, **numeric}, lists, quality


def draw_pages(rng: np.random.Generator, count: int) -> Columns:
    """Draw who looks at which document, [count] each."""
    ids = {"platform": rng.choice(3, count, p=(0.4, 0.5, 0.1))}  # of four rows one is unused
    ids["document_id"] = power_law(rng, ROWS["document_id"], count)
    ids["geo_location"] = power_law(rng, ROWS["geo_location"], count)
    for name, of in (
        ("source_id", "document_id"),
        ("publisher_id", "source_id"),
        ("geo_location_state", "geo_location"),
        ("geo_location_country", "geo_location_state"),
    ):
        ids[name] = power_law(rng, ROWS[name], ROWS[of])[ids[of]]
    age = np.log1p(rng.exponential(30, ROWS["document_id"]))[ids["document_id"]]
    return {**ids, "publish_time_days_since_published": age}


def _lists(rng: np.random.Generator, count: int, rows: int) -> Integers:
    """Draw up to three different ids each, [count, 3], with padding in place of the others."""
    ids = power_law(rng, rows, count * HOTNESS).reshape(count, HOTNESS)
    places = np.arange(HOTNESS)
    is_first = (ids[:, :, None] == ids[:, None, :]).argmax(axis=2) == places
    return np.where(is_first & (places < rng.integers(0, HOTNESS + 1, (count, 1))), ids, PAD)


def _different_ads(rng: np.random.Generator, display: Integers) -> Integers:
    """Draw an ad for each row, none twice in one display."""
    rows = ROWS["ad_id"]
    ads = power_law(rng, rows, len(display))
    while True:
        _, first = np.unique(display * rows + ads, return_index=True)
        again = np.setdiff1d(np.arange(len(ads)), first)
        if not again.size:
            return ads
        ads[again] = power_law(rng, rows, len(again))


def _table(displays: int, rng: np.random.Generator) -> "DataFrame":
    """Draw displays, each with its ads and one click."""
    import polars as pl

    shown = rng.choice(ADS, displays, p=(1 / ADS) / (1 / ADS).sum())
    display = np.repeat(np.arange(displays), shown)
    (ads, labels, quality), ad = draw_ads(rng), _different_ads(rng, display)
    columns = {name: values[display] for name, values in draw_pages(rng, displays).items()}
    columns |= {name: values[ad] for name, values in ads.items()}
    lists = {name: ids[columns["document_id_promo"]] for name, ids in labels.items()}
    for name in ("categories", "topics", "entities"):
        alike = rng.random(len(ad)) * (rng.random(len(ad)) < 0.5)
        columns[f"document_id_document_id_promo_sim_{name}"] = alike
    taste = rng.standard_normal((ROWS["platform"], ROWS["category_id_list"]))
    categories = lists["category_id_list"]
    liked = np.where(categories == PAD, 0, taste[columns["platform"][:, None], categories])
    score = 2 * quality[ad] + liked.sum(axis=1) + rng.gumbel(size=len(ad))
    score += 2 * columns["document_id_document_id_promo_sim_topics"]
    best = np.maximum.reduceat(score, np.cumsum(shown) - shown)
    columns |= {DISPLAY: display + 1, CLICKED: score == best[display]}
    kinds = {DISPLAY: np.int64} | dict.fromkeys(NUMERIC, np.float32)
    typed = {n: column.astype(kinds.get(n, np.int32)) for n, column in (columns | lists).items()}
    cut = pl.col(list(lists)).arr.to_list().list.eval(pl.element().filter(pl.element() != PAD))
    return pl.DataFrame(typed).with_columns(cut)
