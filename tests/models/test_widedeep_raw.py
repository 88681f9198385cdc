"""Kaggle's outbrain files, in small, against a slow reading with pandas and Python's integers."""

import json
import math
import zipfile
from datetime import datetime, timedelta
from hashlib import blake2b
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import polars as pl
import pytest

from helpers import models
from helpers.errors import DataError
from helpers.models.widedeep import MODEL as widedeep
from helpers.models.widedeep import raw
from helpers.models.widedeep.features import MULTI_HOT, NAMES, NUMERIC, ONE_HOT
from helpers.models.widedeep.raw import files, parts, rows, statistics
from helpers.models.widedeep.raw.tables import row_of
from tests.models.builders import grown, refusal

CONFIG = SimpleNamespace(dataset="x", export_precision="fp32")
DAY_MS = 86_400_000
START = datetime(2016, 6, 14, 4)  # timestamp 0, but for 2 ms: midnight in New York
LABELS = {
    "topics": ("topic_id", "topic_id_list"),
    "entities": ("entity_id", "entity_id_list"),
    "categories": ("category_id", "category_id_list"),
}
THRESHOLDS = {
    **dict.fromkeys(("ad_id", "document_id_promo"), 5),
    **dict.fromkeys(("source_id_promo", "publisher_id_promo", "advertiser_id", "campaign_id"), 10),
}


class World:
    """Tables of the public form, with every gap that the public ones have."""

    def __init__(self, seed=0, displays=400):
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
        self.tables = {"clicks_train": clicks, "events": events}
        self.tables |= {"promoted_content": ads, "documents_meta": met}
        for kind, (column, _) in LABELS.items():
            self.tables[f"documents_{kind}"] = self._labelled(ids, column, rng)

    @staticmethod
    def _gappy(values, rng, share, gap="\\N"):
        texts = np.array([str(value) for value in values], dtype=object)
        texts[rng.random(len(texts)) < share] = gap
        return texts

    @staticmethod
    def _shown(rng):
        likely = 1 / np.arange(1, 51)
        return rng.choice(np.arange(3, 53), rng.integers(2, 9), False, likely / likely.sum())

    @staticmethod
    def _labelled(ids, column, rng):
        rows = []
        for document in rng.permutation([*ids, 1002]):
            labels = rng.choice(20, rng.integers(0, 6), replace=False)
            names = [f"{label:032x}" if column == "entity_id" else 100 + label for label in labels]
            most = 0 if document == 1002 else 1  # of one document, no label has a weight
            levels = [round(float(rng.uniform(0.05, 1)), 9) * most for _ in names]
            rows += [(int(document), *each) for each in zip(names, levels, strict=True)]
        return pd.DataFrame(rows, columns=["document_id", column, "confidence_level"])

    def write(self, folder, zips=False):
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


def prepared(source, folder):
    folder.mkdir()
    raw.prepare_raw(CONFIG, source, folder)
    return folder


def refused(source, folder):
    found = refusal(DataError, prepared, source, folder)
    assert not any(folder.iterdir())
    return found.removeprefix(f"{source}").strip("/ ")


def assert_alike(one, other, order=("display_id",)):
    """Compare both parts; rows of training have no order, those of validation the given one."""
    for part, columns in (("train", ("display_id", "ad_id", "clicked")), ("valid", order)):
        frames = (rows_of(each, part).sort(*columns, maintain_order=True) for each in (one, other))
        assert next(frames).equals(next(frames))


def rows_of(folder, part):
    return pl.concat([pl.read_parquet(path) for path in sorted((folder / part).iterdir())])


# The slow reading


def mixed(number):
    """SplitMix64, in Python's integers."""
    full = (1 << 64) - 1
    state = (number + 0x9E3779B97F4A7C15) & full
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & full
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & full
    return state ^ (state >> 31)


def hashed(value, size):
    if isinstance(value, str):
        return int.from_bytes(blake2b(value.encode(), digest_size=8).digest(), "little") % size
    return mixed(int(value)) % size


def number(value):
    return None if value is None or value == "\\N" else int(value)


class Slow:
    """Every feature of every row, by dictionaries and pandas."""

    def __init__(self, world):
        tables, self.world = world.tables, world
        self.meta = {}
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
    def age(timestamp, published):
        if published is None:
            return math.nan
        time = START + timedelta(milliseconds=timestamp - 2)
        days = (time - datetime.strptime(published, "%Y-%m-%d %H:%M:%S")).days
        return days if 0 <= days <= 3650 else 0

    def features(self):
        frame, train = self.frame, self.frame[self.trains]
        columns = {}
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
        names = (*NAMES, "clicked", "display_id")
        return pd.DataFrame({name: list(columns[name]) for name in names})


def similarities(table, pairs):
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


def assert_same(found, expected):
    assert found.columns == list(expected.columns)
    for name in found.columns:
        wanted = expected[name].tolist()
        if name in NUMERIC:
            np.testing.assert_allclose(found[name], wanted, rtol=1e-5, atol=1e-6, err_msg=name)
        else:
            assert found[name].to_list() == wanted, name


@pytest.fixture(scope="module")
def world():
    return World()


@pytest.fixture(scope="module")
def source(world, tmp_path_factory):
    return world.write(tmp_path_factory.mktemp("world") / "source")


@pytest.fixture(scope="module")
def folder(source, tmp_path_factory):
    return prepared(source, tmp_path_factory.mktemp("prepared") / "folder")


# What is made


def test_the_split_and_every_feature_are_those_of_a_slow_reading(world, folder):
    slow = Slow(world)
    expected = slow.features()
    assert_same(rows_of(folder, "valid"), expected[~slow.trains])
    train = rows_of(folder, "train").sort("display_id", "ad_id", "clicked")
    wanted = expected[slow.trains].sort_values(["display_id", "ad_id", "clicked"])
    assert len(train) == len(wanted) > 500
    assert_same(train, wanted)
    # else the test would show little
    assert all(expected[name].nunique() > 1 for name in (*NAMES[:13], "ad_id", "display_id"))


def test_types_are_those_of_the_contract_and_validation_is_eight_files(folder):
    types = dict.fromkeys(NUMERIC, pl.Float32) | dict.fromkeys(ONE_HOT, pl.Int32)
    types |= dict.fromkeys(MULTI_HOT, pl.List(pl.Int32))
    train, valid = (rows_of(folder, part) for part in ("train", "valid"))
    for frame in (train, valid):
        assert dict(frame.schema) == {**types, "clicked": pl.Int32, "display_id": pl.Int32}
        assert frame.null_count().sum_horizontal().item() == 0
        lengths = frame["topic_id_list"].list.len()
        assert (lengths.min(), lengths.max()) == (0, 3)
    paths = sorted((folder / "valid").iterdir())
    assert [path.name for path in paths] == [f"part_{n}.parquet" for n in range(8)]
    lengths = [len(pl.read_parquet(path)) for path in paths]
    assert max(lengths) - min(lengths) <= 1
    assert valid["display_id"].is_sorted()
    assert not train["display_id"].is_sorted()
    assert not set(train["display_id"]) & set(valid["display_id"])
    assert sorted(path.name for path in folder.iterdir()) == ["prepared.json", "train", "valid"]


def test_the_marker_tells_what_was_learnt(world, folder):
    slow = Slow(world)
    train = slow.frame[slow.trains]
    marker = json.loads((folder / "prepared.json").read_text())
    assert marker["rows"] == {"train": len(train), "valid": int((~slow.trains).sum())}
    assert marker["split"] == {"last_training_day": 10, "kept_out": 0.2, "seed": 0}
    found = marker["statistics"]
    assert found["thresholds"] == THRESHOLDS
    assert [*found["median_days"].values()] == [train[n].median() for n in ("age", "age_promo")]
    logs = np.log(train.groupby("ad_id")["clicked"].transform("count") + 1)
    assert found["ad_id_count"] == pytest.approx({"mean": logs.mean(), "deviation": logs.std()})
    assert marker["files"][0] == "clicks_train.csv"


def test_the_model_reads_what_is_made(folder):
    dataset = widedeep.open_dataset(CONFIG, folder)
    assert dataset.facts["origin"] == "prepared from the public files"
    clicked = rows_of(folder, "valid")["clicked"].to_numpy()[:, None]
    assert dataset.score({"wide_deep_model": clicked.astype(np.float32)}) == {"map12": 1.0}


@pytest.mark.slow
def test_zipped_files_and_small_pieces_give_the_same(world, folder, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "BLOCK", 300)
    monkeypatch.setattr(rows, "SPAN", 150)
    other = prepared(world.write(tmp_path / "zips", zips=True), tmp_path / "out")
    assert len(list((other / "train").iterdir())) > 1
    assert_alike(other, folder)


def test_the_order_of_rows_and_the_ends_of_lines_do_not_matter(folder, tmp_path):
    shuffled = World()
    for name in ("events", "promoted_content"):  # publishers that lack are numbered by order
        shuffled.tables[name] = shuffled.tables[name].sample(frac=1, random_state=1)
    shuffled.tables["clicks_train"] = shuffled.tables["clicks_train"].iloc[::-1]
    source = shuffled.write(tmp_path / "source")
    for path in source.iterdir():
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n").rstrip())
    assert_alike(prepared(source, tmp_path / "out"), folder, ("display_id", "ad_id", "clicked"))


# By hand


def row_numbers(ids, size):
    return ids.to_frame("id").select(row_of(pl.col("id"), size))["id"].to_list()


def test_hashes_are_published_ones():
    seed = pl.Series([1234567], dtype=pl.Int32)
    assert row_numbers(seed, (1 << 31) - 1) == [6457827717110365317 % ((1 << 31) - 1)]
    numbers = pl.Series([0, 1, -1, (1 << 31) - 1, -(1 << 31), None])  # None is hashed as -1
    expected = [mixed((-1 if value is None else value) % (1 << 64)) % 250_000 for value in numbers]
    assert row_numbers(numbers, 250_000) == expected
    # b2sum -l 64 of coreutils prints a hash's bytes in order
    sums = {"US": "3d5f222b70485467", "US>SC>519": "ffb8cefd6a5725d3", None: "e4a6a0577479b2b4"}
    expected = [int.from_bytes(bytes.fromhex(each), "little") % 2_000 for each in sums.values()]
    assert row_numbers(pl.Series(list(sums)), 2_000) == expected


def test_ages_are_whole_days_and_0_outside_ten_years():
    first = 1_465_876_799_998  # 2016-06-14 03:59:59.998
    published = [first - 4 * DAY_MS, first - 4 * DAY_MS + 1, first + 1, first - 3650 * DAY_MS]
    published += [first - 3651 * DAY_MS, None, first - 4 * DAY_MS]
    table = pl.DataFrame({"timestamp": [0] * 6 + [DAY_MS], "published": published})
    found = table.select(rows.age(pl.col("timestamp"), pl.col("published"))).to_series()
    assert found.to_list() == [4, 3, 0, 3650, 0, None, 5]


@pytest.mark.parametrize("days", [[], [7], [0, 0, 3], [1, 2], [5, 5, 9, 0], [3650] * 4])
def test_medians_of_counts_are_numpys(days):
    expected = float(np.median(days)) if days else 0.0
    table = pl.LazyFrame({"age": pl.Series([*days, None], dtype=pl.Int64)})
    assert statistics.median(table, "age") == expected


# What is not the public data


def test_only_a_folder_with_the_clicks_is_taken_for_raw(world, source, folder, tmp_path):
    assert models.raw("widedeep") is raw
    zips = world.write(tmp_path / "zips", zips=True)
    assert raw.is_raw(source)
    assert raw.is_raw(zips)
    for other in (folder, source / "clicks_train.csv", tmp_path / "absent"):
        assert not raw.is_raw(other)
    (zips / "valid").mkdir()
    (zips / "valid" / "part_0.parquet").write_text("")
    assert not raw.is_raw(zips)


def test_every_file_of_the_preparation_decides_the_name_of_a_prepared_set():
    files = models.recipe("widedeep", models.PREPARING)
    assert {*Path(raw.__file__).parent.glob("*.py")} - {*files} == {Path(parts.__file__)}
    assert {"features.py", "_tables.py"} < {path.name for path in files}
    assert not {path for path in files if "synthetic" in path.parts}


def test_files_that_are_missing_are_named(source, world, tmp_path):
    other = world.write(tmp_path / "source")
    (other / "events.csv").unlink()
    (other / "documents_topics.csv").unlink()
    text = "lacks events.csv, documents_topics.csv (or zipped, .csv.zip)"
    assert refused(other, tmp_path / "out") == text


def line(place, new):
    """Put another line in place of line `place`, counted from 1."""

    def change(text):
        lines = text.split(b"\n")
        lines[place - 1] = new.encode("latin-1")
        return b"\n".join(lines)

    return change


@pytest.mark.parametrize(
    ("name", "change", "text"),
    [
        ("clicks_train", lambda text: b"", " is empty"),
        ("events", lambda text: text[: text.index(b"\n") + 1], " has no rows"),
        ("documents_topics", lambda text: text.split(b"\n")[0], " has no rows"),
        ("clicks_train", lambda text: text.replace(b"clicked", b"x"), "id,x', expected 'display_i"),
        ("promoted_content", lambda text: text.replace(b",", b";"), "starts with 'ad_id;document_"),
        ("events", lambda text: bytes(range(256)) * 9, " starts with"),
        ("clicks_train", line(5, "7,3"), "is damaged: line 5 has 2 fields, expected 3"),
        ("clicks_train", line(5, ""), "is damaged: line 5 has 1 fields, expected 3"),
        ("clicks_train", line(5, "7,x,0"), "is damaged, at lines from 2: could not parse `x`"),
        ("clicks_train", line(5, "7,-3,0"), "is damaged: line 5 has no valid ad_id"),
        ("clicks_train", line(5, "7,99999999999,0"), "at lines from 2: could not parse `99999999"),
        ("clicks_train", line(5, "7,3,2"), "is damaged: line 5 has no valid clicked"),
        ("clicks_train", line(5, "\\N,3,0"), "is damaged: line 5 has no valid display_id"),
        ("clicks_train", line(5, "7,999,0"), "has ad_id 999, which promoted_content.csv lacks"),
        ("clicks_train", line(5, "1601,3,0"), "display_id 1601, which events.csv lacks"),
        ("events", lambda text: text[: text.rindex(b",")], "has 5 fields, expected 6"),
        ("events", line(3, "2,u,1,,1,US"), "is damaged: line 3 has no valid timestamp"),
        ("events", line(3, "1600,u,1,5,1,US"), "is damaged: display_id 1600 occurs twice"),
        ("promoted_content", line(3, "3,1,1,1\n3,1,1,1"), "is damaged: ad_id 3 occurs twice"),
        ("documents_meta", line(3, "5,1,1,noon"), "is damaged: publish_time 'noon'"),
        ("documents_meta", line(3, "5,1,1,\n5,1,1,"), "is damaged: document_id 5 occurs twice"),
        ("documents_entities", line(3, "5,abc,nan"), "line 3 has no valid confidence_level"),
        ("documents_entities", line(3, "5,abc,-1"), "line 3 has no valid confidence_level"),
        ("documents_entities", line(3, "5,,0.5"), "line 3 has no valid entity_id"),
        ("documents_entities", line(3, "5,\xff\xfe,0.5"), "is damaged, at lines from 2: "),
        ("documents_categories", line(3, "5,abc,0.5"), "could not parse `abc`"),
    ],
)
def test_a_damaged_file_is_one_line(name, change, text, world, tmp_path):
    source = world.write(tmp_path / "source")
    path = source / f"{name}.csv"
    path.write_bytes(change(path.read_bytes()))
    found = refused(source, tmp_path / "out")
    assert text in found
    assert f"{name}.csv" in found


def test_a_time_that_no_calendar_has_counts_as_missing(world, tmp_path):
    made = []
    for name, time in (("one", "2015-02-30 00:00:00"), ("two", "\\N")):
        source = world.write(tmp_path / name)
        path = source / "documents_meta.csv"
        third = path.read_text().splitlines()[2].rpartition(",")[0]
        path.write_bytes(line(3, f"{third},{time}")(path.read_bytes()))
        made.append(rows_of(prepared(source, tmp_path / f"{name}-out"), "valid"))
    assert made[0].equals(made[1])


@pytest.mark.parametrize(("day", "part"), [(0, "valid"), (14, "train")])
def test_a_set_with_an_empty_part_is_refused(day, part, tmp_path):
    world = World(displays=3)
    world.tables["events"]["timestamp"] = day * DAY_MS
    clicks = world.tables["clicks_train"]  # of which the first display is drawn to train
    world.tables["clicks_train"] = clicks[clicks["display_id"] == clicks["display_id"][0]]
    found = refused(world.write(tmp_path / "source"), tmp_path / "out")
    assert found == f"clicks_train.csv has no display of the {part} part"


def alter(path):
    """Alter what is compressed of an archive, and nothing else."""
    whole, middle = path.read_bytes(), path.stat().st_size // 2
    other = bytes(each ^ 0x55 for each in whole[middle : middle + 40])
    path.write_bytes(whole[:middle] + other + whole[middle + 40 :])


def replace(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("clicks_test.csv", "display_id,ad_id\n")


@pytest.mark.parametrize(
    ("name", "change", "text"),
    [("documents_entities", alter, "is damaged"), ("events", replace, "lacks events.csv")],
)
def test_a_damaged_zip_is_one_line(name, change, text, world, tmp_path):
    source = world.write(tmp_path / "source", zips=True)
    change(source / f"{name}.csv.zip")
    assert refused(source, tmp_path / "out").startswith(f"{name}.csv.zip {text}")


# Memory

BEFORE = """
import polars, scipy.sparse
from helpers.display import progress
from helpers.models.widedeep import raw
from helpers.models.widedeep.raw import files, rows
progress.LINE_SECONDS, files.BLOCK, rows.SPAN = 0, 1 << 20, 10_000
"""
CODE = "raw.prepare_raw(None, Path(sys.argv[1]), Path(sys.argv[2]))"


@pytest.mark.slow
@pytest.mark.thorough
def test_memory_does_not_grow_with_the_clicks(tmp_path):
    """Of a million rows, the features alone are some 150 MB; a span of them is a twentieth."""
    peaks = []
    for displays in (50_000, 200_000):
        world, made = World(displays=displays), tmp_path / f"{displays}-out"
        made.mkdir()
        progress, peak = grown(BEFORE, CODE, world.write(tmp_path / str(displays)), made)
        start = f"clicks_train: {len(world.tables['clicks_train']):,} rows (the public file has "
        assert any(each.startswith(f"{start}87,141,731), ") for each in progress)
        peaks.append(peak)
    assert peaks[1] < peaks[0] + 60  # megabytes
