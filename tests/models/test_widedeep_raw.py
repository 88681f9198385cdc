"""Kaggle's outbrain files, in small, against a slow reading with pandas and Python's integers."""

import json
import math
import subprocess
import sys
import zipfile
from collections.abc import Callable
from datetime import datetime, timedelta
from hashlib import blake2b
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

from helpers import models
from helpers.errors import DataError
from helpers.models._tables import LONGEST_LINE
from helpers.models.widedeep import MODEL as widedeep
from helpers.models.widedeep import raw
from helpers.models.widedeep.features import MULTI_HOT, NAMES, NUMERIC, ONE_HOT
from helpers.models.widedeep.raw import files, parts, rows, statistics, tables
from helpers.models.widedeep.raw.tables import row_of

CONFIG: Any = SimpleNamespace(dataset="x", export_precision="fp32")
DAY_MS = 86_400_000
START = datetime(2016, 6, 14, 4)  # timestamp 0, but for 2 ms: midnight in New York
LABELS = {
    "topics": ("topic_id", "topic_id_list"),
    "entities": ("entity_id", "entity_id_list"),
    "categories": ("category_id", "category_id_list"),
}
THRESHOLDS = {
    "ad_id": 5,
    "document_id_promo": 5,
    "source_id_promo": 10,
    "publisher_id_promo": 10,
    "advertiser_id": 10,
    "campaign_id": 10,
}


class World:
    """Tables of the public form, with every gap that the public ones have."""

    def __init__(self, seed: int = 0, displays: int = 400) -> None:
        rng = np.random.default_rng(seed)
        ids = np.sort(rng.choice(900, 70, replace=False) + 1)
        met = pd.DataFrame({"document_id": rng.permutation(ids)})  # in no order, as the public one
        met["source_id"] = self._gappy(rng.integers(1, 12, 70), rng, 0.1)
        met["publisher_id"] = self._gappy(rng.integers(1, 9, 70), rng, 0.15)
        days = rng.choice([-400, -30, 0, 3, 12, 250, 3000, 3640, 5000], 70)
        times = [
            START - timedelta(days=int(day), seconds=int(s))
            for day, s in zip(days, rng.integers(0, 86400, 70), strict=True)
        ]
        met["publish_time"] = self._gappy([f"{time:%Y-%m-%d %H:%M:%S}" for time in times], rng, 0.1)
        ads = pd.DataFrame({"ad_id": rng.permutation(np.arange(3, 53))})
        ads["document_id"] = rng.choice([*ids[:25], 1001], 50)  # one is not in documents_meta
        ads["campaign_id"] = rng.integers(1, 15, 50)
        ads["advertiser_id"] = rng.integers(1, 10, 50)
        shown = np.sort(rng.choice(np.arange(1, 3 * displays), displays, replace=False))
        events = pd.DataFrame({"display_id": np.append(shown, [4 * displays])})  # one of the test
        count = len(events)
        events["uuid"] = [f"{value:014x}" for value in rng.integers(0, 1 << 50, count)]
        events["document_id"] = rng.choice([*ids, 1002], count)
        events["timestamp"] = np.sort(rng.integers(61, 15 * DAY_MS, count))
        events["platform"] = self._gappy(rng.integers(1, 4, count), rng, 0.03)
        places = ["US>SC>519", "US>CA>807", "US", "SG>00", "CA>ON", "--"]
        events["geo_location"] = self._gappy(rng.choice(places, count), rng, 0.05, "")
        rows = [
            (display, ad, int(place == 0))
            for display in shown
            for place, ad in enumerate(self._shown(rng))
        ]
        clicks = pd.DataFrame(rows, columns=["display_id", "ad_id", "clicked"])
        self.tables = {
            "clicks_train": clicks,
            "events": events,
            "promoted_content": ads,
            "documents_meta": met,
        }
        for kind, (column, _) in LABELS.items():
            self.tables[f"documents_{kind}"] = self._labelled(ids, column, rng)

    @staticmethod
    def _gappy(values: Any, rng: Any, share: float, gap: str = "\\N") -> Any:
        texts = np.array([str(value) for value in values], dtype=object)
        texts[rng.random(len(texts)) < share] = gap
        return texts

    @staticmethod
    def _shown(rng: Any) -> Any:
        likely = 1 / np.arange(1, 51)
        return rng.choice(np.arange(3, 53), rng.integers(2, 9), False, likely / likely.sum())

    @staticmethod
    def _labelled(ids: Any, column: str, rng: Any) -> pd.DataFrame:
        rows: list[tuple[int, Any, float]] = []
        for document in rng.permutation([*ids, 1002]):
            labels = rng.choice(20, rng.integers(0, 6), replace=False)
            names = [f"{label:032x}" if column == "entity_id" else 100 + label for label in labels]
            rows += [(int(document), name, round(float(rng.uniform(0.05, 1)), 9)) for name in names]
        return pd.DataFrame(rows, columns=["document_id", column, "confidence_level"])

    def write(self, folder: Path, zips: bool = False) -> Path:
        folder.mkdir()
        for name, table in self.tables.items():
            text = table.to_csv(index=False)
            if not zips:
                (folder / f"{name}.csv").write_text(text)
                continue
            with zipfile.ZipFile(folder / f"{name}.csv.zip", "w", zipfile.ZIP_DEFLATED) as archive:
                archive.writestr(f"__MACOSX/._{name}.csv", "x")
                archive.writestr(f"{name}.csv", text)
        return folder


def prepared(source: Path, folder: Path) -> Path:
    folder.mkdir()
    raw.prepare_raw(CONFIG, source, folder)
    return folder


def rows_of(folder: Path, part: str) -> pl.DataFrame:
    return pl.concat([pl.read_parquet(path) for path in sorted((folder / part).iterdir())])


# The slow reading


def mixed(number: int) -> int:
    """SplitMix64, in Python's integers."""
    full = (1 << 64) - 1
    state = (number + 0x9E3779B97F4A7C15) & full
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & full
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & full
    return state ^ (state >> 31)


def hashed(value: Any, size: int) -> int:
    if isinstance(value, str):
        return int.from_bytes(blake2b(value.encode(), digest_size=8).digest(), "little") % size
    return mixed(int(value)) % size


def number(value: Any) -> int | None:
    return None if value is None or value == "\\N" else int(value)


class Slow:
    """Every feature of every row, by dictionaries and pandas."""

    def __init__(self, world: World) -> None:
        tables, self.world = world.tables, world
        self.meta: dict[int, tuple[int | None, int, str | None]] = {}
        publishers = [number(value) for value in tables["documents_meta"]["publisher_id"]]
        following = max(filter(None, publishers)) + 2
        for row, publisher in zip(tables["documents_meta"].itertuples(), publishers, strict=True):
            if publisher is None:
                publisher, following = following, following + 1
            published = None if row.publish_time == "\\N" else row.publish_time
            self.meta[row.document_id] = (number(row.source_id), publisher, published)
        frame = tables["clicks_train"].merge(tables["events"], on="display_id")
        frame = frame.merge(tables["promoted_content"], on="ad_id", suffixes=("", "_promo"))
        frame = frame.sort_values("display_id", kind="stable")
        for suffix, document in (("", "document_id"), ("_promo", "document_id_promo")):
            found = [self.meta.get(value, (None, None, None)) for value in frame[document]]
            for place, name in enumerate(("source_id", "publisher_id")):
                values = [-1 if each[place] is None else each[place] for each in found]
                frame[f"{name}{suffix}"] = values
            frame[f"age{suffix}"] = [
                self.age(timestamp, each[2])
                for timestamp, each in zip(frame["timestamp"], found, strict=True)
            ]
        displays = np.unique(frame["display_id"])
        draws = dict(zip(displays, np.random.default_rng(0).random(len(displays)), strict=True))
        early = frame["timestamp"] // DAY_MS <= 10
        self.trains = (early & (frame["display_id"].map(draws) > 0.2)).to_numpy()
        self.frame = frame

    @staticmethod
    def age(timestamp: int, published: str | None) -> float:
        if published is None:
            return math.nan
        time = START + timedelta(milliseconds=timestamp - 2)
        days = (time - datetime.strptime(published, "%Y-%m-%d %H:%M:%S")).days
        return days if 0 <= days <= 3650 else 0

    def features(self) -> pd.DataFrame:
        frame, train = self.frame, self.frame[self.trains]
        columns: dict[str, Any] = {}
        for key, least in THRESHOLDS.items():
            clicks = train.groupby(key)["clicked"].agg(["sum", "count"])
            rate = (clicks["sum"] / clicks["count"]).where(clicks["count"] >= least, 0)
            columns[f"{key}_ctr"] = frame[key].map(rate).fillna(0)
            logs = np.log(frame[key].map(clicks["count"]).fillna(0) + 1)
            columns[f"{key}_count"] = (logs - logs[self.trains].mean()) / logs[self.trains].std()
        for suffix in ("", "_promo"):
            ages = frame[f"age{suffix}"].fillna(train[f"age{suffix}"].median())
            columns[f"publish_time{suffix}_days_since_published"] = np.log(ages + 1)
        for kind, (column, feature) in LABELS.items():
            table = self.world.tables[f"documents_{kind}"]
            pairs = frame[["document_id", "document_id_promo"]].to_numpy()
            similar = similarities(table, pairs)
            columns[f"document_id_document_id_promo_sim_{kind}"] = similar
            lists = table.groupby("document_id", sort=False)[column].apply(list).to_dict()
            columns[feature] = [
                [hashed(label, MULTI_HOT[feature][0]) for label in lists.get(document, [])[:3]]
                for document in frame["document_id"]
            ]
        frame = frame.assign(
            platform=[(number(value) or 1) - 1 for value in frame["platform"]],
            geo_location_country=frame["geo_location"].str[:2],
            geo_location_state=frame["geo_location"].str[:5],
        )
        for name, (size, _) in ONE_HOT.items():
            columns[name] = [hashed(value, size) for value in frame[name]]
        columns |= {name: frame[name].to_numpy() for name in ("clicked", "display_id")}
        return pd.DataFrame(
            {name: list(columns[name]) for name in (*NAMES, "clicked", "display_id")}
        )


def similarities(table: pd.DataFrame, pairs: Any) -> Any:
    """Weigh with dense matrices; the cosine is scikit-learn's, which gives 0 for what is empty."""
    from sklearn.metrics.pairwise import cosine_similarity  # seconds of every worker's start

    column = table.columns[1]
    dense = table.pivot(index="document_id", columns=column, values="confidence_level").fillna(0)
    held = table.groupby(column)["document_id"].nunique()[dense.columns]
    dense *= np.log((table["document_id"].max() + 1) / held)
    dense.loc[-1] = 0.0
    places = [[document if document in dense.index else -1 for document in pair] for pair in pairs]
    cosines = pd.DataFrame(cosine_similarity(dense), dense.index, dense.index)
    return [cosines.loc[one, other] for one, other in places]


def assert_same(found: pl.DataFrame, expected: pd.DataFrame) -> None:
    assert found.columns == list(expected.columns)
    for name in found.columns:
        wanted = expected[name].tolist()
        if name in NUMERIC:
            np.testing.assert_allclose(found[name], wanted, rtol=1e-5, atol=1e-6, err_msg=name)
        else:
            assert found[name].to_list() == wanted, name


@pytest.fixture(scope="module")
def world() -> World:
    return World()


@pytest.fixture(scope="module")
def source(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return world.write(tmp_path_factory.mktemp("world") / "source")


@pytest.fixture(scope="module")
def folder(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepared(source, tmp_path_factory.mktemp("prepared") / "folder")


# What is made


def test_the_split_and_every_feature_are_those_of_a_slow_reading(
    world: World, folder: Path
) -> None:
    slow = Slow(world)
    expected = slow.features()
    assert_same(rows_of(folder, "valid"), expected[~slow.trains])
    key = [*NAMES[:13], "ad_id", "display_id"]
    train = rows_of(folder, "train").sort("display_id", "ad_id", "clicked")
    wanted = expected[slow.trains].sort_values(["display_id", "ad_id", "clicked"])
    assert len(train) == len(wanted) > 500
    assert_same(train, wanted)
    assert all(expected[name].nunique() > 1 for name in key)  # else the test would show little


def test_types_are_those_of_the_contract(folder: Path) -> None:
    for part in ("train", "valid"):
        schema = rows_of(folder, part).schema
        for name in (*ONE_HOT, "clicked", "display_id"):
            assert schema[name] == pl.Int32
        assert all(schema[name] == pl.Float32 for name in NUMERIC)
        assert all(schema[name] == pl.List(pl.Int32) for name in MULTI_HOT)
        assert rows_of(folder, part).null_count().sum_horizontal().item() == 0
        lengths = rows_of(folder, part)["topic_id_list"].list.len()
        assert (lengths.min(), lengths.max()) == (0, 3)


def test_validation_is_eight_files_in_order_of_displays(folder: Path) -> None:
    paths = sorted((folder / "valid").iterdir())
    assert [path.name for path in paths] == [f"part_{n}.parquet" for n in range(8)]
    rows = [len(pl.read_parquet(path)) for path in paths]
    assert max(rows) - min(rows) <= 1
    displays = rows_of(folder, "valid")["display_id"]
    assert displays.is_sorted()
    train = rows_of(folder, "train")["display_id"]
    assert not train.is_sorted()
    assert not set(train) & set(displays)
    assert sorted(path.name for path in folder.iterdir()) == ["prepared.json", "train", "valid"]


def test_the_marker_tells_what_was_learnt(world: World, folder: Path) -> None:
    slow = Slow(world)
    train = slow.frame[slow.trains]
    marker = json.loads((folder / "prepared.json").read_text())
    assert marker["rows"] == {"train": len(train), "valid": int((~slow.trains).sum())}
    assert marker["split"] == {"last_training_day": 10, "kept_out": 0.2, "seed": 0}
    assert marker["statistics"]["thresholds"] == THRESHOLDS
    assert marker["statistics"]["median_days"] == {
        "publish_time_days_since_published": train["age"].median(),
        "publish_time_promo_days_since_published": train["age_promo"].median(),
    }
    logs = np.log(train.groupby("ad_id")["clicked"].transform("count") + 1)
    assert marker["statistics"]["ad_id_count"] == pytest.approx(
        {"mean": logs.mean(), "deviation": logs.std()}
    )
    assert marker["files"][0] == "clicks_train.csv"


def test_the_model_reads_what_is_made(world: World, folder: Path) -> None:
    dataset = widedeep.open_dataset(CONFIG, folder)
    slow = Slow(world)
    expected = slow.features()[~slow.trains]
    assert len(dataset) == len(expected)
    assert dataset.facts["origin"] == "prepared from the public files"
    batches = list(dataset.batches(100))
    assert sum(len(batch["ad_id"]) for batch in batches) == len(expected)
    first = batches[0]["entity_id_list"][:20].tolist()
    wanted = [([*ids, -1, -1, -1])[:3] for ids in expected["entity_id_list"][:20]]
    assert first == wanted
    perfect = expected["clicked"].to_numpy(np.float32)[:, None]
    assert dataset.score({"wide_deep_model": perfect}) == {"map12": 1.0}


@pytest.mark.slow
def test_zipped_files_and_small_pieces_give_the_same(
    world: World, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "BLOCK", 300)
    monkeypatch.setattr(rows, "SPAN", 150)
    other = prepared(world.write(tmp_path / "zips", zips=True), tmp_path / "out")
    assert rows_of(other, "valid").equals(rows_of(folder, "valid"))
    order = ["display_id", "ad_id", "clicked"]
    assert len(list((other / "train").iterdir())) > 1
    assert rows_of(other, "train").sort(order).equals(rows_of(folder, "train").sort(order))


def test_the_order_of_rows_does_not_matter(folder: Path, tmp_path: Path) -> None:
    shuffled = World()
    for name in ("events", "promoted_content", "documents_meta"):
        if name != "documents_meta":  # publishers that lack are numbered in its order
            shuffled.tables[name] = shuffled.tables[name].sample(frac=1, random_state=1)
    clicks = shuffled.tables["clicks_train"]
    shuffled.tables["clicks_train"] = clicks.iloc[::-1]
    other = prepared(shuffled.write(tmp_path / "source"), tmp_path / "out")
    order = ["display_id", "ad_id", "clicked"]
    for part in ("train", "valid"):
        assert rows_of(other, part).sort(order).equals(rows_of(folder, part).sort(order))


def test_line_ends_of_windows_and_a_missing_last_one_are_read(
    world: World, folder: Path, tmp_path: Path
) -> None:
    source = world.write(tmp_path / "source")
    for path in source.iterdir():
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    clicks = source / "clicks_train.csv"
    clicks.write_bytes(clicks.read_bytes().rstrip())
    other = prepared(source, tmp_path / "out")
    assert rows_of(other, "valid").equals(rows_of(folder, "valid"))


# By hand


def row_numbers(ids: pl.Series, size: int) -> list[int]:
    return ids.to_frame("id").select(row_of(pl.col("id"), size))["id"].to_list()


def test_hashes_are_published_ones() -> None:
    seed = pl.Series([1234567], dtype=pl.Int32)
    assert row_numbers(seed, (1 << 31) - 1) == [6457827717110365317 % ((1 << 31) - 1)]
    numbers = [0, 1, -1, (1 << 31) - 1, -(1 << 31)]
    missing = pl.Series([None], dtype=pl.Int64)  # is hashed as -1
    found = row_numbers(pl.Series(numbers).append(missing), 250_000)
    assert found == [mixed(value % (1 << 64)) % 250_000 for value in (*numbers, -1)]
    # b2sum -l 64 of coreutils prints a hash's bytes in order
    sums = {"US": "3d5f222b70485467", "US>SC>519": "ffb8cefd6a5725d3", None: "e4a6a0577479b2b4"}
    found = row_numbers(pl.Series(list(sums)), 2_000)
    assert found == [
        int.from_bytes(bytes.fromhex(each), "little") % 2_000 for each in sums.values()
    ]


def test_hashes_spread_evenly() -> None:
    counts = np.bincount(row_numbers(pl.Series(range(100_000)), 100), minlength=100)
    assert ((counts - 1000) ** 2 / 1000).sum() < 150  # chi-squared with 99 degrees of freedom


def test_ages_are_whole_days_and_0_outside_ten_years() -> None:
    first = 1_465_876_799_998  # 2016-06-14 03:59:59.998
    published = [first - 4 * DAY_MS, first - 4 * DAY_MS + 1, first + 1, first - 3650 * DAY_MS]
    published += [first - 3651 * DAY_MS, None, first - 4 * DAY_MS]
    table = pl.DataFrame({"timestamp": [0] * 6 + [DAY_MS], "published": published})
    found = table.select(rows.age(pl.col("timestamp"), pl.col("published"))).to_series()
    assert found.to_list() == [4, 3, 0, 3650, 0, None, 5]


@pytest.mark.parametrize(("key", "least"), THRESHOLDS.items())
def test_a_rate_counts_from_its_threshold_on(key: str, least: int) -> None:
    """Four ads: of a group at the threshold, one below it, one never shown in training."""
    groups = [7, 7, 8, 9] if key != "ad_id" else [6, 7, 8, 9]
    ads = pl.DataFrame({name: groups if name == key else range(4) for name in THRESHOLDS})
    ads = ads.with_columns(ad_id=pl.Series(groups if key == "ad_id" else range(4)))
    shown = [
        pl.DataFrame({"ad_id": [ads["ad_id"][place]] * count, "clicked": np.arange(count) < clicks})
        for place, count, clicks in ((1, least - 2, 1), (2, least - 1, least - 1), (1, 2, 1))
    ]
    train = pl.concat(shown).with_columns(pl.lit(0).alias(name) for name in statistics.AGES)
    rates = statistics.learn(train.lazy(), ads).ads[f"{key}_ctr"]
    found = 2 / least if key != "ad_id" else 0
    np.testing.assert_allclose(rates, [found, 2 / least, 0, 0], rtol=1e-6)


@pytest.mark.parametrize("days", [[], [7], [0, 0, 3], [1, 2], [5, 5, 9, 0], [3650] * 4])
def test_medians_of_counts_are_numpys(days: list[int]) -> None:
    expected = float(np.median(days)) if days else 0.0
    table = pl.LazyFrame({"age": pl.Series([*days, None], dtype=pl.Int64)})
    assert statistics.median(table, "age") == expected


def test_similarity_by_hand() -> None:
    table = pl.DataFrame(
        {
            "document_id": pl.Series([7, 1, 7, 1, 9], dtype=pl.Int32),
            "topic_id": pl.Series([1, 1, 2, 3, 3], dtype=pl.Int32),
            "confidence_level": [0.5, 0.2, 0.1, 0.3, 0.0],
        }
    )
    documents, weights = tables.read_labels([table[:2], table[2:]], "topics")
    two, one = math.log(10 / 2), math.log(10)  # ids go to 9; labels 1 and 3 are in two documents
    first = (0.2 * two, 0.0, 0.3 * two)
    seventh = (0.5 * two, 0.1 * one, 0.0)
    cosine = first[0] * seventh[0] / (math.hypot(*first) * math.hypot(*seventh))
    place = dict(zip(documents["document_id"], documents["topics_row"], strict=True))
    pairs = pl.DataFrame(
        {
            "topics_row": [place[each] for each in (1, 7, 1, 9, 1)],
            "topics_row_promo": [place[7], place[1], place[1], place[1], None],
        }
    )
    held = tables.Tables(documents, documents, {"topics": weights})
    found = pairs.select(held.similarity("topics")).to_series()
    np.testing.assert_allclose(found, [cosine, cosine, 1, 0, 0], rtol=1e-6)  # 9 has no weight
    lists = dict(zip(documents["document_id"], documents["topic_id_list"].to_list(), strict=True))
    assert lists[7] == [hashed(1, 350), hashed(2, 350)]
    assert lists[9] == [hashed(3, 350)]


# What is not the public data


def refusal(source: Path, folder: Path) -> str:
    with pytest.raises(DataError) as caught:
        prepared(source, folder)
    assert "\n" not in str(caught.value)
    assert not any(folder.iterdir())
    return str(caught.value).removeprefix(f"{source}").strip("/ ")


def test_only_a_folder_with_the_clicks_is_taken_for_raw(
    world: World, source: Path, folder: Path, tmp_path: Path
) -> None:
    assert models.raw("widedeep") is raw
    assert raw.is_raw(source)
    assert raw.is_raw(world.write(tmp_path / "zips", zips=True))
    assert not raw.is_raw(folder)
    assert not raw.is_raw(source / "clicks_train.csv")
    assert not raw.is_raw(tmp_path / "absent")
    (tmp_path / "zips" / "valid").mkdir()
    (tmp_path / "zips" / "valid" / "part_0.parquet").write_text("")
    assert not raw.is_raw(tmp_path / "zips")


def test_every_file_of_the_preparation_decides_the_name_of_a_prepared_set() -> None:
    files = models.recipe("widedeep", models.PREPARING)
    assert {*Path(raw.__file__).parent.glob("*.py")} - {*files} == {Path(parts.__file__)}
    assert {"features.py", "_tables.py"} < {path.name for path in files}
    assert not {path for path in files if "synthetic" in path.parts}


def test_files_that_are_missing_are_named(source: Path, world: World, tmp_path: Path) -> None:
    other = world.write(tmp_path / "source")
    (other / "events.csv").unlink()
    (other / "documents_topics.csv").unlink()
    text = "lacks events.csv, documents_topics.csv (or zipped, .csv.zip)"
    assert refusal(other, tmp_path / "out") == text


def changed(old: str, new: str) -> Callable[[bytes], bytes]:
    def change(text: bytes) -> bytes:
        assert old.encode() in text
        return text.replace(old.encode(), new.encode(), 1)

    return change


def line(place: int, new: str) -> Callable[[bytes], bytes]:
    """Put another line in place of line `place`, counted from 1."""

    def change(text: bytes) -> bytes:
        lines = text.split(b"\n")
        lines[place - 1] = new.encode()
        return b"\n".join(lines)

    return change


@pytest.mark.parametrize(
    ("name", "change", "text"),
    [
        ("clicks_train", lambda text: b"", "clicks_train.csv is empty"),
        ("events", lambda text: b"", "events.csv is empty"),
        ("events", lambda text: text[: text.index(b"\n") + 1], "events.csv has no rows"),
        ("documents_topics", lambda text: text.split(b"\n")[0], "documents_topics.csv has no rows"),
        (
            "clicks_train",
            changed("clicked", "label"),
            "clicks_train.csv starts with 'display_id,ad_id,label', "
            "expected 'display_id,ad_id,clicked'",
        ),
        ("promoted_content", lambda text: text.replace(b",", b";"), "starts with 'ad_id;document_"),
        ("events", lambda text: bytes(range(256)) * 9, "events.csv starts with"),
        ("clicks_train", line(5, "7,3"), "is damaged: line 5 has 2 fields, expected 3"),
        ("clicks_train", line(5, "7,3,0,1"), "is damaged: line 5 has 4 fields, expected 3"),
        ("clicks_train", line(5, ""), "is damaged: line 5 has 1 fields, expected 3"),
        ("clicks_train", line(5, "7,3,"), "is damaged: line 5 has no valid clicked"),
        ("clicks_train", line(5, "7,x,0"), "is damaged, at lines from 2: could not parse `x`"),
        ("clicks_train", line(5, "7,-3,0"), "is damaged: line 5 has no valid ad_id"),
        ("clicks_train", line(5, "7,99999999999,0"), "at lines from 2: could not parse `99999999"),
        ("clicks_train", line(5, "7,3.5,0"), "is damaged, at lines from 2: could not parse `3.5`"),
        ("clicks_train", line(5, "7,3,2"), "is damaged: line 5 has no valid clicked"),
        ("clicks_train", line(5, "\\N,3,0"), "is damaged: line 5 has no valid display_id"),
        ("clicks_train", line(5, "7,999,0"), "has ad_id 999, which promoted_content.csv lacks"),
        ("clicks_train", line(5, "1601,3,0"), "display_id 1601, which events.csv lacks"),
        ("clicks_train", line(5, "900000,3,0"), "display_id 900000, which events.csv lacks"),
        ("clicks_train", lambda text: text[:-4], "fields, expected 3"),
        ("events", lambda text: text[: text.rindex(b",")], "has 5 fields, expected 6"),
        ("events", line(3, "2,u,1,,1,US"), "is damaged: line 3 has no valid timestamp"),
        ("events", line(3, "2,u,1,noon,1,US"), "could not parse `noon`"),
        ("events", line(3, "1600,u,1,5,1,US"), "is damaged: display_id 1600 occurs twice"),
        ("promoted_content", line(3, "3,1,1,1\n3,1,1,1"), "is damaged: ad_id 3 occurs twice"),
        ("documents_meta", line(3, "5,1,1,noon"), "is damaged: publish_time 'noon'"),
        ("documents_meta", line(3, "5,1,1,2016-06-0"), "is damaged: publish_time '2016-06-0'"),
        ("documents_meta", line(3, "5,1,1,\n5,1,1,"), "is damaged: document_id 5 occurs twice"),
        ("documents_entities", line(3, "5,abc,nan"), "line 3 has no valid confidence_level"),
        ("documents_entities", line(3, "5,abc,-1"), "line 3 has no valid confidence_level"),
        ("documents_entities", line(3, "5,,0.5"), "line 3 has no valid entity_id"),
        ("documents_categories", line(3, "5,abc,0.5"), "could not parse `abc`"),
    ],
)
def test_a_damaged_file_is_one_line(
    name: str, change: Callable[[bytes], bytes], text: str, world: World, tmp_path: Path
) -> None:
    source = world.write(tmp_path / "source")
    path = source / f"{name}.csv"
    path.write_bytes(change(path.read_bytes()))
    found = refusal(source, tmp_path / "out")
    assert text in found
    assert f"{name}.csv" in found


def test_text_that_is_not_utf_8_is_one_line(world: World, tmp_path: Path) -> None:
    source = world.write(tmp_path / "source")
    path = source / "documents_entities.csv"
    path.write_bytes(line(3, "5,@,0.5")(path.read_bytes()).replace(b"@", b"\xff\xfe"))
    assert "documents_entities.csv is damaged, at lines from 2: " in refusal(
        source, tmp_path / "out"
    )


def test_a_line_without_an_end_is_not_gathered(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "BLOCK", 1 << 16)
    source = world.write(tmp_path / "source")
    with (source / "events.csv").open("ab") as file:
        file.write(bytes(LONGEST_LINE + (1 << 17)))
    found = refusal(source, tmp_path / "out")
    assert found == "events.csv is damaged: a line is longer than 8,388,608 bytes"


def test_a_time_that_no_calendar_has_counts_as_missing(world: World, tmp_path: Path) -> None:
    made = []
    for name, time in (("one", "2015-02-30 00:00:00"), ("two", "\\N")):
        source = world.write(tmp_path / name)
        path = source / "documents_meta.csv"
        third = path.read_text().splitlines()[2].rpartition(",")[0]
        path.write_bytes(line(3, f"{third},{time}")(path.read_bytes()))
        made.append(rows_of(prepared(source, tmp_path / f"{name}-out"), "valid"))
    assert made[0].equals(made[1])


@pytest.mark.parametrize(("day", "part"), [(0, "valid"), (14, "train")])
def test_a_set_with_an_empty_part_is_refused(day: int, part: str, tmp_path: Path) -> None:
    world = World(displays=3)
    world.tables["events"]["timestamp"] = day * DAY_MS
    clicks = world.tables["clicks_train"]
    keep = np.random.default_rng(0).random(3)[0] > 0.2  # of the first display
    assert keep
    world.tables["clicks_train"] = clicks[clicks["display_id"] == clicks["display_id"][0]]
    found = refusal(world.write(tmp_path / "source"), tmp_path / "out")
    assert found == f"clicks_train.csv has no display of the {part} part"


def broken(content: bytes) -> bytes:
    """Alter what is compressed of an archive, and nothing else."""
    middle = len(content) // 2
    return (
        content[:middle]
        + bytes(each ^ 0x55 for each in content[middle : middle + 40])
        + content[middle + 40 :]
    )


@pytest.mark.parametrize(
    ("name", "change", "text"),
    [
        ("clicks_train", lambda content: content[: len(content) // 2], "is damaged: File is not"),
        ("clicks_train", lambda content: b"", "is damaged: File is not a zip file"),
        ("clicks_train", broken, "is damaged"),
        ("documents_entities", broken, "is damaged"),
    ],
)
def test_a_damaged_zip_is_one_line(
    name: str, change: Callable[[bytes], bytes], text: str, world: World, tmp_path: Path
) -> None:
    source = world.write(tmp_path / "source", zips=True)
    path = source / f"{name}.csv.zip"
    path.write_bytes(change(path.read_bytes()))
    assert f"{name}.csv.zip {text}" in refusal(source, tmp_path / "out")


def test_a_zip_of_another_file_is_one_line(world: World, tmp_path: Path) -> None:
    source = world.write(tmp_path / "source", zips=True)
    with zipfile.ZipFile(source / "events.csv.zip", "w") as archive:
        archive.writestr("clicks_test.csv", "display_id,ad_id\n")
    assert refusal(source, tmp_path / "out") == "events.csv.zip lacks events.csv"


def test_an_encrypted_zip_is_one_line(world: World, tmp_path: Path) -> None:
    source = world.write(tmp_path / "source", zips=True)
    path = source / "events.csv.zip"
    content = bytearray(path.read_bytes())
    for mark, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):  # each header of the member
        content[content.rindex(mark) + place] |= 1
    path.write_bytes(content)
    assert refusal(source, tmp_path / "out") == "events.csv.zip is encrypted"


# Memory

GROWTH = """
import re, sys
from pathlib import Path
import polars, scipy.sparse
from helpers.display import progress
from helpers.models.widedeep import raw
from helpers.models.widedeep.raw import files, rows
def peak():
    return int(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024
progress.LINE_SECONDS, files.BLOCK, rows.SPAN, before = 0, 1 << 20, 10_000, peak()
raw.prepare_raw(None, Path(sys.argv[1]), Path(sys.argv[2]))
print(peak() - before)
"""


def large(folder: Path, displays: int) -> Path:
    """Write five ads a display, and few documents."""
    folder.mkdir()
    rng, ids = np.random.default_rng(0), np.arange(1, displays + 1)
    documents = np.arange(1, 20_001)
    tables: dict[str, dict[str, Any]] = {
        "clicks_train": {
            "display_id": np.repeat(ids, 5),
            "ad_id": rng.integers(1, 5_001, 5 * displays),
            "clicked": np.tile([0, 0, 1, 0, 0], displays),
        },
        "events": {
            "display_id": ids,
            "uuid": np.full(displays, "cb8c55702adb93"),
            "document_id": rng.integers(1, 20_001, displays),
            "timestamp": np.sort(rng.integers(0, 15 * DAY_MS, displays)),
            "platform": rng.integers(1, 4, displays),
            "geo_location": np.array(["US>SC>519", "SG>00"])[rng.integers(0, 2, displays)],
        },
        "promoted_content": {
            "ad_id": np.arange(1, 5_001),
            "document_id": rng.integers(1, 20_001, 5_000),
            "campaign_id": rng.integers(1, 900, 5_000),
            "advertiser_id": rng.integers(1, 90, 5_000),
        },
        "documents_meta": {
            "document_id": documents,
            "source_id": documents % 97,
            "publisher_id": documents % 89,
            "publish_time": np.full(20_000, "2016-06-05 00:00:00"),
        },
    }
    for kind, (column, _) in LABELS.items():
        labels = rng.integers(1, 90, 60_000)
        names = [f"{label:032x}" for label in labels] if kind == "entities" else labels
        tables[f"documents_{kind}"] = {
            "document_id": np.repeat(documents, 3),
            column: names,
            "confidence_level": rng.random(60_000),
        }
    for name, columns in tables.items():
        pl.DataFrame(columns).write_csv(folder / f"{name}.csv")
    return folder


def grown(source: Path, folder: Path, rows: int) -> float:
    """Prepare in another process; give the megabytes by which its memory peaks."""
    folder.mkdir()
    command = [sys.executable, "-c", GROWTH, str(source), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    *progress, last = done.stdout.splitlines()
    of = "rows (the public file has 87,141,731)"
    assert any(each.startswith(f"clicks_train: {rows:,} {of}, ") for each in progress)
    marker = json.loads((folder / "prepared.json").read_text())
    assert sum(marker["rows"].values()) == rows
    return float(last)


@pytest.mark.slow
@pytest.mark.thorough
def test_memory_does_not_grow_with_the_clicks(tmp_path: Path) -> None:
    """Of a million rows, the features alone are some 150 MB; a span of them is a twentieth."""
    few = grown(large(tmp_path / "few", 50_000), tmp_path / "few-out", 250_000)
    many = grown(large(tmp_path / "many", 200_000), tmp_path / "many-out", 1_000_000)
    print(few, many)
    assert many < few + 60
