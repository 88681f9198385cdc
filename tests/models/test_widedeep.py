"""Wide & Deep against its formula in NumPy, torchmetrics' reciprocal rank, and slow readings."""

import math
import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from helpers.errors import CheckpointError, DataError
from helpers.measure.checks import difference
from helpers.models.widedeep import MODEL as widedeep
from helpers.models.widedeep import data, display
from helpers.models.widedeep.checkpoint import load, save, variables
from helpers.models.widedeep.features import MULTI_HOT, NAMES, NUMERIC, ONE_HOT
from helpers.models.widedeep.metric import first_click_ranks, mean_average_precision
from tests.models import builders
from tests.models.builders import config_of, grown, refusal, said
from tests.pipeline.test_try_it import fitted_by_run

TABLES = {**ONE_HOT, **MULTI_HOT}
OUTPUT = "wide_deep_model"
VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
WIDE, DEEP = "model/linear_model/layer_with_weights", "model/dnn_model/layer_with_weights"


def batch_of(size, seed=0):
    """Draw rows; ids beyond a table and below zero are among them, and lists with gaps."""
    rng, batch = np.random.default_rng(seed), {}
    for name in NAMES:
        if name in NUMERIC:
            batch[name] = rng.standard_normal((size, 1), dtype=np.float32)
            continue
        rows, shape = TABLES[name][0], (size, 3 if name in MULTI_HOT else 1)
        ids = rng.integers(0, rows, shape)
        for chance, wrong in ((0.2, -1), (0.05, rows), (0.05, 2**31 - 1), (0.05, -(2**31))):
            ids = np.where(rng.random(shape) < chance, wrong, ids)
        batch[name] = ids.astype(np.int32)
    return batch


def run(network, batch):
    return np.asarray(network(batch, training=False))


@pytest.mark.slow
def test_making_and_reading_data_loads_no_framework(tmp_path):
    code = (
        "from types import SimpleNamespace as N\n"
        "from helpers.models.widedeep import MODEL as widedeep\n"
        "c, d = N(dataset='generated-small'), Path(sys.argv[1])\n"
        "widedeep.prepare_dataset(c, d)\nnext(widedeep.open_dataset(c, d).batches(9))\n"
        "print({'torch', 'tensorflow', 'keras'} & set(sys.modules))"
    )
    assert grown("", code, tmp_path)[0] == ["set()"]


# The network


@pytest.mark.slow
def test_every_format_equals_the_network_at_other_batch_sizes(tmp_path, monkeypatch):
    from helpers.models.widedeep import network as module

    few = {name: (min(rows, 50), width) for name, (rows, width) in TABLES.items()}
    # Whole tables take half a minute, and OpenVINO takes the longer the fuller the memory is.
    monkeypatch.setattr(module, "TABLES", few)
    network = module.wide_and_deep(seed=1)
    network.get_layer("wide").numeric.assign(np.linspace(-1, 1, 13, dtype=np.float32)[:, None])
    batches = [batch_of(size, seed=size) for size in (2, 3, 64)]
    for batch in batches:
        for name, (rows, _) in TABLES.items():
            ids = batch[name]
            batch[name] = np.where((ids > 0) & (ids < rows), ids % 51, ids)

    saved = "tf-savedmodel"
    made = {saved: "", "onnx": saved, "openvino": saved, "openvino bf16": saved}
    builders.assert_formats_equal(widedeep, network, run, made, (OUTPUT,), tmp_path, *batches)


@pytest.fixture(scope="module")
def network():
    """Random weights everywhere; those of the large tables repeat themselves."""
    from helpers.models.widedeep.network import wide_and_deep

    made, rng = wide_and_deep(), np.random.default_rng(3)
    for variable in made.trainable_variables:
        shape = tuple(variable.shape)
        scale = (2 / shape[0]) ** 0.5 if variable.path.startswith("dense") else 0.2
        drawn = rng.standard_normal(min(np.prod(shape), 999_983), dtype=np.float32)
        variable.assign(np.resize(drawn * np.float32(scale), shape))
    return made


@pytest.fixture(scope="module")
def weights(network):
    return {name: np.asarray(each) for name, each in variables(network).items()}


def embedding_reads(table, ids):
    """Add up the rows of one sample's ids that there are."""
    total = np.zeros(table.shape[1])
    for number in ids:
        if 0 <= number < len(table):
            total += table[number]
    return total


def predicted(weights, batch):
    """Equation 3 of the paper, a sample at a time; columns are sorted by name."""
    found = []
    for place in range(len(batch["ad_id"])):
        row = {name: values[place] for name, values in batch.items()}
        columns = {name: row[name].astype(np.float64) for name in NUMERIC}
        wide = weights[f"{WIDE}-0/bias"].astype(np.float64)
        numeric = weights[f"{WIDE}-0/numeric.Sembedding_weights"]
        for weight, name in zip(numeric, sorted(NUMERIC), strict=True):
            wide = wide + weight * row[name]
        for name in TABLES:
            tables = (weights[f"{half}-0/{name}.Sembedding_weights"] for half in (WIDE, DEEP))
            shallow, deep = (embedding_reads(table, row[name]) for table in tables)
            wide, columns[f"{name}_embedding"] = wide + shallow, deep
        x = np.concatenate([columns[name] for name in sorted(columns)])
        for layer in range(1, 7):
            x = x @ weights[f"{DEEP}-{layer}/kernel"] + weights[f"{DEEP}-{layer}/bias"]
            x = np.maximum(x, 0) if layer < 6 else x
        found.append(1 / (1 + np.exp(-wide - x)))
    return np.array(found)


@pytest.mark.slow
def test_the_whole_network_equals_the_formula_and_has_dropout_in_training(network, weights):
    batch = batch_of(40)
    expected, found = predicted(weights, batch), run(network, batch)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    assert expected.std() > 0.1
    assert np.abs(np.asarray(network(batch, training=True)) - found).max() > 1e-3


# The checkpoint


def tree(tensors):
    """Nest tensors by the names that they have in a checkpoint."""
    import tensorflow as tf

    root = {}
    for name, value in tensors.items():
        *parents, last = [part.replace(".S", "/") for part in name.split("/")]
        place = root
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = tf.Variable(value)
    return root


@pytest.mark.slow
def test_a_checkpoint_has_the_names_that_keras_2_gives_and_comes_back_whole(network, tmp_path):
    import tensorflow as tf

    save(network, tmp_path / "checkpoint")
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]
    expected = {f"{DEEP}-0/{name}.Sembedding_weights": list(t) for name, t in TABLES.items()}
    expected |= {f"{WIDE}-0/{n}.Sembedding_weights": [t[0], 1] for n, t in TABLES.items()}
    expected |= {f"{WIDE}-0/numeric.Sembedding_weights": [13, 1], f"{WIDE}-0/bias": [1]}
    for layer, (size, units) in enumerate([(1248, 1024), *[(1024, 1024)] * 4, (1024, 1)], 1):
        expected |= {f"{DEEP}-{layer}/kernel": [size, units], f"{DEEP}-{layer}/bias": [units]}
    latest = tf.train.latest_checkpoint(str(tmp_path / "checkpoint"))
    shapes = dict(tf.train.list_variables(latest))
    for counted in ("_CHECKPOINTABLE_OBJECT_GRAPH", f"save_counter{VALUE}"):
        del shapes[counted]
    assert shapes == {f"{name}{VALUE}": shape for name, shape in expected.items()}
    batch = batch_of(5)
    moved = Path(shutil.copytree(tmp_path / "checkpoint", tmp_path / "moved"))
    (moved / "checkpoint").unlink()
    for path in (tmp_path / "checkpoint", moved, Path(latest), Path(f"{latest}.index")):
        built = widedeep.build(config_of(), path)
        np.testing.assert_array_equal(run(built, batch), run(network, batch))
    shutil.rmtree(moved)
    load(tmp_path, built)  # the folder above it
    damaged = next((tmp_path / "checkpoint").glob("*.data-*"))
    with damaged.open("r+b") as file:
        file.truncate(damaged.stat().st_size // 2)
    found = refusal(CheckpointError, load, tmp_path / "checkpoint", built)
    assert "cannot be read at model/" in found


@pytest.mark.slow
def test_what_only_training_needs_is_ignored(network, weights, tmp_path):
    import tensorflow as tf

    optimizer = tf.compat.v1.train.AdagradOptimizer(0.1)
    nested = tree(weights)
    bias = nested["model"]["dnn_model"]["layer_with_weights-6"]["bias"]
    optimizer.apply_gradients([(tf.ones_like(bias), bias)])
    step = tf.Variable(7, dtype=tf.int64)
    saved = tf.train.Checkpoint(**nested, deep_optimizer=optimizer, current_step=step)
    tf.train.CheckpointManager(saved, str(tmp_path), max_to_keep=1).save()
    names = [name for name, _ in tf.train.list_variables(str(tmp_path))]
    assert any(".OPTIMIZER_SLOT" in name for name in names)
    assert f"current_step{VALUE}" in names
    built = widedeep.build(config_of(), tmp_path)
    np.testing.assert_array_equal(np.asarray(built.get_layer("dense_6").bias), bias.numpy())


@pytest.mark.slow
def test_a_missing_a_surplus_and_a_misshapen_variable_are_named(network, weights, tmp_path):
    import tensorflow as tf

    changed = dict(weights)
    del changed[f"{WIDE}-0/bias"]
    changed[f"{DEEP}-7/kernel"] = np.zeros((4, 2), dtype=np.float32)
    changed[f"{WIDE}-0/platform.Sembedding_weights"] = np.zeros((5, 1), dtype=np.float32)
    changed[f"{DEEP}-2/bias"] = np.zeros(1024, dtype=np.float16)
    prefix = tf.train.Checkpoint(**tree(changed)).save(str(tmp_path / "c"))
    assert refusal(CheckpointError, load, Path(prefix), network) == (
        f"{prefix} does not fit Wide & Deep: missing {WIDE}-0/bias float32 [1]; "
        f"surplus {DEEP}-7/kernel float32 [4, 2]; "
        f"{DEEP}-2/bias is float16 [1024] and should be float32 [1024]; "
        f"{WIDE}-0/platform.Sembedding_weights is float32 [5, 1] and should be float32 [4, 1]"
    )


@pytest.mark.slow
def test_what_is_no_checkpoint_is_an_error(network, tmp_path):
    text = "is not a TensorFlow checkpoint. Use its folder or its prefix."
    for absent in (tmp_path, tmp_path / "absent", Path(__file__)):
        assert refusal(CheckpointError, load, absent, network) == f"{absent} {text}"
    for name, content in (("a", b""), ("b", b"damaged" * 99)):
        index = tmp_path / f"{name}.index"
        index.write_bytes(content)
        for path in (index, tmp_path / name):
            found = refusal(CheckpointError, load, path, network)
            assert found.startswith(f"{index} and its data cannot be read")
    text = "has 2 checkpoints. Use the prefix of one of them."
    assert refusal(CheckpointError, load, tmp_path, network) == f"{tmp_path} {text}"


# The data set


def table_of(rows, seed=0):
    """Draw rows of displays in groups, as lists that polars would write."""
    rng = np.random.default_rng(seed)
    table = {}
    for name in NUMERIC:
        table[name] = rng.standard_normal(rows).tolist()
    for name, (size, _) in ONE_HOT.items():
        table[name] = rng.integers(0, size, rows).tolist()
    for name, (size, _) in MULTI_HOT.items():
        table[name] = [rng.integers(0, size, n).tolist() for n in rng.integers(0, 4, rows)]
    table["display_id"] = (100 * seed + np.arange(rows) // 4).tolist()
    table["clicked"] = (np.arange(rows) % 4 == 1).astype(int).tolist()
    return table


def written(path, table, **casts):
    path.parent.mkdir(parents=True, exist_ok=True)
    lists = dict.fromkeys(MULTI_HOT, pl.List(pl.Int64))
    pl.DataFrame(table, schema_overrides={**lists, **casts}, strict=False).write_parquet(path)
    return path


def folder_of(root, sizes=(11, 6, 9)):
    """Write files whose names are not in the order of their making."""
    for place, size in reversed(list(enumerate(sizes))):
        written(root / "valid" / f"part_{place}.parquet", table_of(size, place + 1))
    return root


def opened(folder):
    return widedeep.open_dataset(config_of(), folder)


def slow_rows(sizes=(11, 6, 9)):
    rows = []
    for place, size in enumerate(sizes):
        table = table_of(size, place + 1)
        rows += [{name: values[i] for name, values in table.items()} for i in range(size)]
    return rows


@pytest.mark.parametrize("size", [1 << 18, 4])
def test_the_batches_are_those_of_a_slow_reading(tmp_path, monkeypatch, size):
    monkeypatch.setattr(data, "SLICE", size)
    dataset, expected = opened(folder_of(tmp_path)), slow_rows()
    (whole,), few = dataset.batches(99), list(dataset.batches(4, limit=13))
    assert list(whole) == list(NAMES)
    for name, found in whole.items():
        slow = [row[name] for row in expected]
        if name in MULTI_HOT:
            slow = [[*ids, *[-1] * (3 - len(ids))] for ids in slow]
        slow = np.array(slow, np.float32 if name in NUMERIC else np.int32).reshape(found.shape)
        np.testing.assert_array_equal(found, slow)
        assert found.dtype == slow.dtype
        np.testing.assert_array_equal(np.concatenate([batch[name] for batch in few]), slow[::2])
    assert dataset.facts == {"rows": 26, "displays": 8, "clicks": 7, "files": 3, "origin": "folder"}


def test_other_widths_of_numbers_and_padded_lists_are_read_alike(tmp_path):
    table = table_of(9)
    lists = {n: [[*ids, *[-1] * (3 - len(ids))] for ids in table[n]] for n in MULTI_HOT}
    casts = dict.fromkeys(NUMERIC, pl.Float32) | dict.fromkeys(ONE_HOT, pl.UInt32)
    casts |= dict.fromkeys(MULTI_HOT, pl.List(pl.Int32)) | {"clicked": pl.Boolean}
    arrays = dict.fromkeys(MULTI_HOT, pl.Array(pl.Int64, 3))
    written(tmp_path / "a/valid/x.parquet", table)
    written(tmp_path / "b/valid/x.parquet", table | lists, **casts)
    written(tmp_path / "c/valid/x.parquet", table | lists, **arrays)
    first, *others = (opened(tmp_path / name) for name in "abc")
    for other in others:
        for name, values in next(first.batches(99)).items():
            np.testing.assert_array_equal(next(other.batches(99))[name], values)
        np.testing.assert_array_equal(other.clicked, first.clicked)


def error(folder):
    found = refusal(DataError, lambda: list(opened(folder).batches(8)))
    return found.replace(f"{folder}/", "").replace(str(folder), "it")


LIST, RATE = "topic_id_list", "ad_id_ctr"


def test_folders_of_another_layout_are_errors_that_say_what_is_expected(tmp_path):
    layout = "it has no valid/*.parquet. Use NVIDIA's prepared folder, with valid/*.parquet."
    assert error(tmp_path / "absent") == layout
    (tmp_path / "valid").mkdir()
    assert error(tmp_path) == layout
    path = tmp_path / "valid/x.parquet"
    whole = written(path, table_of(4000)).read_bytes()
    half = whole[: len(whole) // 2]
    holed = half + bytes(5000) + whole[len(half) + 5000 :]
    for content in (b"", b"PAR1" + bytes(99), half, holed):
        path.write_bytes(content)
        assert error(tmp_path).startswith("valid/x.parquet ")


def test_sets_without_rows_or_clicks_are_errors(tmp_path):
    table = table_of(8)
    path = written(tmp_path / "valid/x.parquet", table | {"clicked": [0] * 8})
    assert error(tmp_path) == "valid has no click, so nothing can be scored"
    pl.DataFrame(schema=pl.DataFrame(table).schema).write_parquet(path)
    assert error(tmp_path) == "valid has no rows, so nothing can be scored"


@pytest.mark.parametrize(
    ("column", "values", "text"),
    [
        ("ad_id", None, "lacks the column ad_id"),
        ("display_id", None, "lacks the column display_id"),
        ("ad_id", [1.5] * 8, "has Float64 in column ad_id, where integers are expected"),
        ("ad_id_ctr", ["x"] * 8, "has String in column ad_id_ctr, where numbers are expected"),
        ("clicked", ["1"] * 8, "has String in column clicked, where numbers are expected"),
        (LIST, [3] * 8, f"has Int64 in column {LIST}, where lists of integers are expected"),
        ("clicked", [0, 2] * 4, "has a value in column clicked that is not 0 or 1"),
        ("clicked", [0, None] * 4, "has a value in column clicked that is missing"),
        ("ad_id", [None, 3] * 4, "has a value in column ad_id that is missing"),
        ("ad_id", [3, 250_000] * 4, "has ad_id 250000, but its table has 0 to 249999"),
        ("ad_id", [3, 2**40] * 4, f"has ad_id {2**40}, but its table has 0 to 249999"),
        ("platform", [0, -1] * 4, "has platform -1, but its table has 0 to 3"),
        (LIST, [[1], [350]] * 4, f"has {LIST} 350, but its table has 0 to 349"),
        (LIST, [[1], [-2]] * 4, f"has {LIST} -2, but its table has 0 to 349"),
        (LIST, [[1], None] * 4, f"has a value in column {LIST} that is missing"),
        (LIST, [[1], [2, None]] * 4, f"has a value in column {LIST} that is missing"),
        (LIST, [[1] * 4] * 8, f"has 4 ids in a list of {LIST}; 3 are allowed"),
        (RATE, [0.5, math.nan] * 4, f"has a value in column {RATE} that is not a finite number"),
        (RATE, [1e300] * 8, f"has a value in column {RATE} that is not a finite number"),
    ],
)
def test_a_bad_column_is_an_error_that_names_it(column, values, text, tmp_path):
    table = {**table_of(8), column: values}
    if values is None:
        del table[column]
    path = tmp_path / "valid/x.parquet"
    path.parent.mkdir()
    pl.DataFrame(table, strict=False).write_parquet(path)
    assert error(tmp_path) == f"valid/x.parquet {text}"


# The metric


def slow_map(display, clicked, predicted):
    """Rank each display's rows one by one."""
    found = []
    for each in sorted(set(display)):
        rows = [(-predicted[i], i) for i in range(len(display)) if display[i] == each]
        order = [i for _, i in sorted(rows)]
        if any(clicked[i] for i in order):
            hits = [rank for rank, i in enumerate(order[:12], 1) if clicked[i]]
            found.append(1 / hits[0] if hits else 0.0)
    return sum(found) / len(found)


def scored(display, clicked, predicted):
    return mean_average_precision(first_click_ranks(display, clicked, predicted))


@pytest.mark.parametrize("seed", range(6))
def test_map_is_that_of_a_slow_ranking_with_ties(seed):
    rng = np.random.default_rng(seed)
    display = rng.integers(0, 25, 300) * 7  # some beyond 12 rows, and not sorted
    clicked = rng.random(300) < (0.03, 0.1, 0.5)[seed % 3]
    clicked[0] = True
    predicted = rng.integers(0, 5, 300) / 4
    expected = slow_map(display, clicked, predicted)
    assert scored(display, clicked, predicted) == pytest.approx(expected, abs=1e-12)


def test_a_prediction_that_is_no_number_is_ranked_last():
    display, clicked = np.repeat([5, 3], [14, 2]), np.isin(np.arange(16), [13, 15])
    predicted = np.arange(16.0)
    assert scored(display, clicked, predicted) == 1
    predicted[15] = np.nan
    assert scored(display, clicked, predicted) == (1 + 1 / 2) / 2


def test_a_set_is_scored_over_all_its_files(tmp_path):
    dataset, rows = opened(folder_of(tmp_path)), slow_rows()
    predicted = np.random.default_rng(0).random((26, 1)).astype(np.float32)
    columns = ([row[name] for row in rows] for name in ("display_id", "clicked"))
    expected = pytest.approx(slow_map(*columns, predicted[:, 0]))
    assert dataset.score({OUTPUT: predicted}) == {"map12": expected}


# The generated displays


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    widedeep.prepare_dataset(config_of(), folder)
    return folder


def test_the_small_set_is_in_nvidias_layout(small):
    dataset = opened(small)
    assert dataset.facts["displays"] == dataset.facts["clicks"] == 250
    paths = sorted(small.rglob("*.parquet"))
    assert [path.parent.name for path in paths].count("valid") == 8
    kinds = dict.fromkeys(NUMERIC, pl.Float32) | dict.fromkeys(ONE_HOT, pl.Int32)
    kinds |= dict.fromkeys(MULTI_HOT, pl.List(pl.Int32))
    for path in paths:
        schema = dict(pl.read_parquet_schema(path))
        assert schema == {**kinds, "clicked": pl.Int32, "display_id": pl.Int64}


def test_a_display_has_3_to_12_different_ads_one_click_and_one_part(small):
    train, valid = (
        pl.concat([pl.read_parquet(path) for path in sorted((small / part).glob("*.parquet"))])
        for part in ("train", "valid")
    )
    assert not set(train["display_id"]) & set(valid["display_id"])
    assert valid["display_id"].is_sorted()
    ads, same = pl.col("ad_id"), ("platform", "document_id", "geo_location")
    for frame in (train, valid):
        shown = frame.group_by("display_id").agg(
            ads.len().alias("ads"),
            ads.n_unique().alias("different"),
            pl.col("clicked").sum(),
            *(pl.col(name).n_unique() for name in same),
        )
        assert shown["ads"].is_between(3, 12).all()
        assert (shown["ads"] == shown["different"]).all()
        assert (shown.select("clicked", *same).to_numpy() == 1).all()
        for name in MULTI_HOT:
            assert set(frame[name].list.len().unique()) == {0, 1, 2, 3}
            assert (frame[name].list.n_unique() == frame[name].list.len()).all()


def test_ids_cover_their_tables_by_a_power_law_and_belong_together(small):
    frame = pl.read_parquet(small / "train/part_0.parquet")
    counts = frame["ad_id"].value_counts(sort=True)["count"]
    assert counts[0] > 10 > 2 > counts[-1]
    for name, (rows, _) in ONE_HOT.items():
        assert frame[name].max() > (1 if name == "platform" else 0.8 * rows), name
    for name, of in (
        ("campaign_id", "ad_id"),
        ("advertiser_id", "campaign_id"),
        ("source_id", "document_id"),
        ("geo_location_country", "geo_location_state"),
        ("ad_id_ctr", "ad_id"),
        ("document_id_promo_count", "document_id_promo"),
        ("topic_id_list", "document_id_promo"),
    ):
        assert frame.group_by(of).agg(pl.col(name).n_unique())[name].max() == 1, name
    assert (frame["ad_id_ctr"] == 0).mean() > 0.1


# Tables and pictures


def test_displays_rankings_and_ranks_are_shown(small):
    dataset = opened(small)
    ads = dataset.take(np.arange(len(dataset)))["ad_id"][:, 0]
    clicks = dict(zip(ads, dataset.clicked, strict=True))

    def perfect(batch):
        assert len(batch["ad_id"]) <= 64
        return {OUTPUT: np.array([[clicks[ad]] for ad in batch["ad_id"][:, 0]], np.float32)}

    ads = display.show_displays(dataset, 2)
    assert len({row["display"] for row in ads}) == 2
    assert [row["clicked"] for row in ads].count("clicked") == 2
    assert not any("-1" in row["categories"] for row in ads)
    ranking = display.show_ranking(dataset, perfect, 2)
    for row in ranking:
        assert (row["clicked"] == "clicked") == (row["probability"] == 1)
    assert len(ranking) == len(ads)
    everything = {OUTPUT: dataset.clicked[:, None].astype(np.float32)}
    assert display.show_ranking(dataset, everything, 2) == ranking
    zeros = {OUTPUT: np.zeros((len(dataset), 1))}
    image = display.show_ranks(dataset, zeros)
    assert image.data[:4] == b"\x89PNG"
    score = dataset.score(zeros)["map12"]
    assert image.alt.startswith("In 250 displays the clicked ad is ranked first in ")
    sizes = np.unique(dataset.displays, return_counts=True)[1]
    chance = np.mean([np.mean(1 / np.arange(1, size + 1)) for size in sizes])
    assert image.alt.endswith(f"MAP@12 of these displays is {score:.3f}, by chance {chance:.3f}.")


def test_a_client_reads_which_ad_of_a_display_is_likeliest(small):
    dataset = opened(small)
    example = widedeep.example(config_of(), dataset, 12)
    clicked = example.beside["clicked"]

    first, *others = said(example, {OUTPUT: 0.5 * clicked[:, None].astype(np.float32)})

    ads = example.batch["ad_id"][:, 0]
    assert first == f"ad {ads[clicked][0]}: 50.0% clicked"
    assert sorted(others) == sorted(f"ad {each}: 0.0% " for each in ads[~clicked])
    assert len(np.unique(dataset.displays[: len(ads)])) == 1
    assert len(widedeep.example(config_of(), dataset, 2).beside["clicked"]) == 2


# The fitted checkpoint and the tolerances


@pytest.fixture(scope="module")
def fitted(shared, tmp_path_factory):
    """The network that a run of all stages fitted, and the small set."""
    config, data, checkpoint = fitted_by_run("widedeep", shared, tmp_path_factory.mktemp("run"))
    return widedeep.build(config, checkpoint), opened(data)


@pytest.mark.slow
@pytest.mark.thorough
def test_the_fitted_network_ranks_far_better_than_chance(fitted):
    network, dataset = fitted
    found = np.concatenate([run(network, batch) for batch in dataset.batches(1024)])
    chance = dataset.score({OUTPUT: np.random.default_rng(0).random(found.shape)})["map12"]
    assert chance < 0.48
    assert dataset.score({OUTPUT: found})["map12"] > chance + 0.15
    assert found.std() > 0.05
    for name in ("wide", "columns"):
        for table in network.get_layer(name).tables.values():
            moved = np.abs(np.asarray(table)).max()
            assert moved > (1e-4 if name == "wide" else 0.051)


def swapped(batch, first, second):
    """Give two inputs of one shape each other's values, where they fit into the tables."""
    rows = min(TABLES.get(name, (1 << 31, 0))[0] for name in (first, second))
    values = {
        name: batch[name] % rows if name in TABLES else batch[name] for name in (first, second)
    }
    return {**batch, first: values[second], second: values[first]}


@pytest.mark.slow
@pytest.mark.thorough
def test_the_bounds_tell_a_rounding_from_a_wrong_output(fitted):
    network, dataset = fitted
    (batch,) = dataset.batches(64, limit=64)
    expected = run(network, batch)
    unknown = {n: np.full_like(a, -1) if n in TABLES else a for n, a in batch.items()}
    wrong = {
        "mean": [np.full_like(expected, expected.mean())],
        "reversed": [expected[::-1]],
        "shifted": [np.roll(expected, 1, axis=0)],
        "ids unknown": [run(network, unknown)],
    }
    for first, second in (
        ("ad_id_ctr", "campaign_id_ctr"),
        ("document_id_promo_count", "ad_id_count"),
        ("ad_id", "document_id"),
        ("campaign_id", "advertiser_id"),
        ("topic_id_list", "entity_id_list"),
    ):
        wrong[f"{first} and {second}"] = [run(network, swapped(batch, first, second))]
    # int8 tells neither two similar rows nor two similar inputs apart
    builders.assert_bounds_tell(widedeep.TOLERANCES, [expected], wrong, near_in_int8=" and ")
    for pair in (*pairwise(NUMERIC), *pairwise(ONE_HOT), *pairwise(MULTI_HOT)):
        found = run(network, swapped(batch, *pair))
        assert not difference(OUTPUT, found, expected, widedeep.TOLERANCES["fp32"]).ok, pair
