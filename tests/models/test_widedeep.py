"""Wide & Deep against its formula in NumPy, torchmetrics' reciprocal rank, and slow readings."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray

from helpers import formats, models
from helpers.errors import CheckpointError, DataError
from helpers.formats import Build
from helpers.measure.checks import difference
from helpers.models import Tensor
from helpers.models.widedeep import MODEL as widedeep
from helpers.models.widedeep import data
from helpers.models.widedeep.data import Displays
from helpers.models.widedeep.features import MULTI_HOT, NAMES, NUMERIC, ONE_HOT
from helpers.models.widedeep.metric import first_click_ranks, mean_average_precision
from tests.models.examples import said
from tests.pipeline.test_try_it import fitted_by_run

TABLES = {**ONE_HOT, **MULTI_HOT}
OUTPUT = "wide_deep_model"
VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
WIDE, DEEP = "model/linear_model/layer_with_weights", "model/dnn_model/layer_with_weights"

Floats = NDArray[np.float64]
Batch = dict[str, NDArray[Any]]
Weights = dict[str, NDArray[np.float32]]


def config_of(dataset: str = "generated-small", precision: str = "fp32") -> Any:
    return SimpleNamespace(dataset=dataset, variant="", export_precision=precision)


def batch_of(size: int, seed: int = 0) -> Batch:
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


def run(network: Any, batch: Batch) -> NDArray[np.float32]:
    return np.asarray(network(batch, training=False))


def everything(network: Any, dataset: models.Dataset, limit: int | None = None) -> Any:
    return np.concatenate([run(network, batch) for batch in dataset.batches(1024, limit)])


# The contract


def test_the_package_is_found_and_says_what_it_is() -> None:
    assert models.get("widedeep").TITLE == "Wide & Deep"
    assert widedeep.FRAMEWORK == "tensorflow"
    assert widedeep.VARIANTS == ()
    assert widedeep.METRICS == {"map12": "higher"}
    assert widedeep.GENERATED == ("generated", "generated-small")


def test_importing_it_loads_no_framework() -> None:
    modules = ", ".join(f"helpers.models.widedeep{m}" for m in ("", ".data", ".synthetic.generate"))
    heavy = {"torch", "tensorflow", "keras", "pandas", "polars", "matplotlib"}
    code = f"import sys, {modules}; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@pytest.mark.slow
def test_making_and_reading_data_loads_no_framework(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom types import SimpleNamespace as N\n"
        "from helpers.models.widedeep import MODEL as widedeep\n"
        f"c, d = N(dataset='generated-small'), Path({str(tmp_path)!r})\n"
        "widedeep.prepare_dataset(c, d)\nnext(widedeep.open_dataset(c, d).batches(9))\n"
        "print({'torch', 'tensorflow', 'keras'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_the_tensors_are_nvidias_whatever_the_precision(precision: str) -> None:
    config = config_of(precision=precision)
    found = widedeep.inputs(config)
    assert [tensor.name for tensor in found] == list(NAMES)
    assert len(found) == 29
    assert set(found[:13]) == {Tensor(name, "float32", (1,)) for name in NUMERIC}
    assert found[13] == Tensor("ad_id", "int32", (1,))
    assert found[26:] == tuple(
        Tensor(f"{name}_id_list", "int32", (3,)) for name in ("topic", "entity", "category")
    )
    assert widedeep.outputs(config) == (Tensor("wide_deep_model", "float32", (1,)),)


# The network


@pytest.mark.slow
def test_every_format_equals_the_network_at_other_batch_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from helpers.models.widedeep import network as module

    few = {name: (min(rows, 50), width) for name, (rows, width) in TABLES.items()}
    # Whole tables take half a minute, and OpenVINO takes the longer the fuller the memory is.
    monkeypatch.setattr(module, "TABLES", few)
    network = module.wide_and_deep(seed=1)
    network.get_layer("wide").numeric.assign(np.linspace(-1, 1, 13, dtype=np.float32)[:, None])
    saved = tmp_path / formats.get("tf-savedmodel").FILE
    for name, precision in (
        ("tf-savedmodel", "fp32"),
        ("onnx", "fp32"),
        ("openvino", "fp32"),
        ("openvino", "bf16"),
    ):
        fmt = formats.get(name)
        path = saved if name == "tf-savedmodel" else tmp_path / f"{precision}-{fmt.FILE}"
        source = network if name == "tf-savedmodel" else saved
        fmt.make(source, path, Build(precision, batch_of(2), (OUTPUT,)))
        session = fmt.load(path, 2, "cpu")
        for size in (1, 5, 64):
            batch = batch_of(size, seed=size)
            for each in few:
                ids = batch[each]
                batch[each] = np.where((ids > 0) & (ids < TABLES[each][0]), ids % 51, ids)
            found, expected = session.run(batch)[OUTPUT], run(network, batch)
            assert found.shape == (size, 1)
            largest = np.abs(found - expected).max() / run(network, batch_of(64)).std()
            assert largest <= widedeep.TOLERANCES[precision][0], (name, precision, size)


@pytest.fixture(scope="module")
def network() -> Any:
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
def weights(network: Any) -> Weights:
    from helpers.models.widedeep.checkpoint import variables

    return {name: np.asarray(each) for name, each in variables(network).items()}


@pytest.mark.slow
def test_it_has_the_published_number_of_parameters_in_each_part(network: Any) -> None:
    sizes = {layer.name: layer.count_params() for layer in network.layers if layer.weights}
    dense = sum(size for name, size in sizes.items() if name.startswith("dense"))
    assert (sizes["columns"], sizes["wide"], dense) == (85_616_076, 682_768, 5_478_401)
    assert network.count_params() == 91_777_245
    assert len(sizes) == 2 + 6


def embedding_reads(table: NDArray[np.float32], ids: NDArray[np.int32]) -> Floats:
    """Add up the rows of one sample's ids that there are."""
    total = np.zeros(table.shape[1])
    for number in ids:
        if 0 <= number < len(table):
            total += table[number]
    return total


def logits(weights: Weights, batch: Batch, key: Callable[[str], Any] | None = None) -> Floats:
    """Equation 3 of the paper without the sigmoid, a sample at a time; columns sorted by `key`."""
    found = []
    for place in range(len(batch["ad_id"])):
        row = {name: values[place] for name, values in batch.items()}
        columns = {name: row[name].astype(np.float64) for name in NUMERIC}
        wide = weights[f"{WIDE}-0/bias"].astype(np.float64)
        for weight, name in zip(
            weights[f"{WIDE}-0/numeric.Sembedding_weights"], sorted(NUMERIC), strict=True
        ):
            wide = wide + weight * row[name]
        for name in TABLES:
            wide = wide + embedding_reads(weights[f"{WIDE}-0/{name}.Sembedding_weights"], row[name])
            columns[f"{name}_embedding"] = embedding_reads(
                weights[f"{DEEP}-0/{name}.Sembedding_weights"], row[name]
            )
        x = np.concatenate([columns[name] for name in sorted(columns, key=key)])
        assert x.shape == (1248,)
        for layer in range(1, 7):
            x = x @ weights[f"{DEEP}-{layer}/kernel"] + weights[f"{DEEP}-{layer}/bias"]
            x = np.maximum(x, 0) if layer < 6 else x
        found.append(wide + x)
    return np.array(found)


def sigmoid(x: Floats) -> Floats:
    return np.asarray(1 / (1 + np.exp(-x)))


@pytest.mark.slow
def test_the_whole_network_equals_the_formula(network: Any, weights: Weights) -> None:
    batch = batch_of(40)
    expected = logits(weights, batch)
    found = run(network, batch)
    assert found.shape == (40, 1)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, sigmoid(expected), rtol=0, atol=1e-5)
    assert sigmoid(expected).std() > 0.1


@pytest.mark.slow
def test_columns_in_another_order_would_be_noticed(network: Any, weights: Weights) -> None:
    batch = batch_of(20)
    columns, found = [*NUMERIC, *(f"{name}_embedding" for name in TABLES)], run(network, batch)
    orders: tuple[Callable[[str], Any], ...] = (
        columns.index,
        lambda column: column.removesuffix("_embedding"),
        lambda column: (column.endswith("_embedding"), column),
    )
    np.testing.assert_allclose(found, sigmoid(logits(weights, batch, key=str)), atol=1e-5)
    for order in orders:
        wrong = sigmoid(logits(weights, batch, key=order))
        assert not difference(OUTPUT, found, wrong, widedeep.TOLERANCES["bf16"]).ok


@pytest.mark.slow
def test_ids_without_a_row_add_nothing(network: Any) -> None:
    outcomes = []
    for wrong in (-1, None, 2**31 - 1):
        batch = batch_of(6)
        for name, (rows, _) in TABLES.items():
            batch[name] = np.full_like(batch[name], rows if wrong is None else wrong)
        outcomes.append(run(network, batch))
    np.testing.assert_array_equal(outcomes[1], outcomes[0])
    np.testing.assert_array_equal(outcomes[2], outcomes[0])
    batch["platform"] = np.zeros_like(batch["platform"])
    assert np.abs(run(network, batch) - outcomes[0]).max() > 1e-3


@pytest.mark.slow
def test_a_list_is_a_sum_in_any_order(network: Any) -> None:
    batch = batch_of(8)
    turned = {name: a[:, ::-1] if name in MULTI_HOT else a for name, a in batch.items()}
    np.testing.assert_allclose(run(network, turned), run(network, batch), atol=1e-6)


@pytest.mark.slow
def test_a_sample_is_judged_alike_alone_and_among_others(network: Any) -> None:
    batch = batch_of(5)
    alone = [run(network, {n: a[[i]] for n, a in batch.items()}) for i in range(5)]
    np.testing.assert_allclose(run(network, batch), np.concatenate(alone), atol=1e-6)
    shuffled = {name: batch[name] for name in reversed(NAMES)}
    np.testing.assert_array_equal(run(network, shuffled), run(network, batch))


@pytest.mark.slow
def test_dropout_is_for_training_only(network: Any) -> None:
    batch = batch_of(4)
    np.testing.assert_array_equal(run(network, batch), run(network, batch))
    assert np.abs(np.asarray(network(batch, training=True)) - run(network, batch)).max() > 1e-3


# The checkpoint


def tree(tensors: Weights) -> dict[str, Any]:
    """Nest tensors by the names that they have in a checkpoint."""
    import tensorflow as tf

    root: dict[str, Any] = {}
    for name, value in tensors.items():
        *parents, last = [part.replace(".S", "/") for part in name.split("/")]
        place = root
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = tf.Variable(value)
    return root


def write(folder: Path, tensors: Weights, **others: Any) -> str:
    import tensorflow as tf

    saved = tf.train.Checkpoint(**tree(tensors), **others)
    return str(tf.train.CheckpointManager(saved, str(folder), max_to_keep=1).save())


def refusal(path: Path, network: Any) -> str:
    from helpers.models.widedeep.checkpoint import load

    with pytest.raises(CheckpointError) as caught:
        load(path, network)
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.mark.slow
def test_a_checkpoint_has_the_names_that_keras_2_gives_and_comes_back_whole(
    network: Any, weights: Weights, tmp_path: Path
) -> None:
    import tensorflow as tf

    from helpers.models.widedeep.checkpoint import save

    save(network, tmp_path / "checkpoint")
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]
    expected = {f"{DEEP}-0/{name}.Sembedding_weights": list(t) for name, t in TABLES.items()}
    expected |= {f"{WIDE}-0/{n}.Sembedding_weights": [t[0], 1] for n, t in TABLES.items()}
    expected |= {f"{WIDE}-0/numeric.Sembedding_weights": [13, 1], f"{WIDE}-0/bias": [1]}
    for layer, (size, units) in enumerate([(1248, 1024), *[(1024, 1024)] * 4, (1024, 1)], 1):
        expected |= {f"{DEEP}-{layer}/kernel": [size, units], f"{DEEP}-{layer}/bias": [units]}
    latest = tf.train.latest_checkpoint(str(tmp_path / "checkpoint"))
    shapes = dict(tf.train.list_variables(latest))
    counted = {"_CHECKPOINTABLE_OBJECT_GRAPH", f"save_counter{VALUE}"}
    assert {name: shapes[name] for name in shapes if name not in counted} == {
        f"{name}{VALUE}": shape for name, shape in expected.items()
    }
    batch = batch_of(5)
    for path in (tmp_path, tmp_path / "checkpoint", Path(latest), Path(f"{latest}.index")):
        built = widedeep.build(config_of(), path)
        np.testing.assert_array_equal(run(built, batch), run(network, batch))
    for name, variable in zip(weights, built.trainable_variables, strict=False):
        assert variable.dtype == "float32", name
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "moved")
    (tmp_path / "moved" / "checkpoint").unlink()
    built = widedeep.build(config_of(), tmp_path / "moved")
    np.testing.assert_array_equal(run(built, batch), run(network, batch))
    damaged = next((tmp_path / "moved").glob("*.data-*"))
    with damaged.open("r+b") as file:
        file.truncate(damaged.stat().st_size // 2)
    assert "cannot be read at model/" in refusal(tmp_path / "moved", built)


@pytest.mark.slow
def test_what_only_training_needs_is_ignored(
    network: Any, weights: Weights, tmp_path: Path
) -> None:
    import tensorflow as tf

    optimizer = tf.compat.v1.train.AdagradOptimizer(0.1)
    beside = {"deep_optimizer": optimizer, "current_step": tf.Variable(7, dtype=tf.int64)}
    nested = tree(weights)
    bias = nested["model"]["dnn_model"]["layer_with_weights-6"]["bias"]
    optimizer.apply_gradients([(tf.ones_like(bias), bias)])
    expected = bias.numpy()
    saved = tf.train.Checkpoint(**nested, **beside)
    tf.train.CheckpointManager(saved, str(tmp_path), max_to_keep=1).save()
    names = [name for name, _ in tf.train.list_variables(str(tmp_path))]
    assert any(".OPTIMIZER_SLOT" in name for name in names)
    assert f"current_step{VALUE}" in names
    built = widedeep.build(config_of(), tmp_path)
    np.testing.assert_array_equal(np.asarray(built.get_layer("dense_6").bias), expected)


@pytest.mark.slow
def test_a_missing_a_surplus_and_a_misshapen_variable_are_named(
    network: Any, weights: Weights, tmp_path: Path
) -> None:
    changed = dict(weights)
    del changed[f"{WIDE}-0/bias"]
    changed[f"{DEEP}-7/kernel"] = np.zeros((4, 2), dtype=np.float32)
    changed[f"{WIDE}-0/platform.Sembedding_weights"] = np.zeros((5, 1), dtype=np.float32)
    changed[f"{DEEP}-2/bias"] = np.zeros(1024, dtype=np.float16)
    prefix = write(tmp_path, changed)
    assert refusal(tmp_path, network) == (
        f"{prefix} does not fit Wide & Deep: missing {WIDE}-0/bias float32 [1]; "
        f"surplus {DEEP}-7/kernel float32 [4, 2]; "
        f"{DEEP}-2/bias is float16 [1024] and should be float32 [1024]; "
        f"{WIDE}-0/platform.Sembedding_weights is float32 [5, 1] and should be float32 [4, 1]"
    )


@pytest.mark.slow
def test_another_models_checkpoint_is_refused_with_a_count(network: Any, tmp_path: Path) -> None:
    prefix = write(tmp_path, {"net/kernel": np.zeros((2, 3), dtype=np.float32)})
    text = refusal(tmp_path, network)
    assert text.startswith(f"{prefix} does not fit Wide & Deep: missing {WIDE}-0/ad_id.Sembed")
    assert text.endswith("; and 42 more")


@pytest.mark.slow
def test_what_is_no_checkpoint_is_an_error(network: Any, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert refusal(tmp_path / "empty", network) == (
        f"{tmp_path / 'empty'} is not a TensorFlow checkpoint. Use its folder or its prefix."
    )
    for absent in (tmp_path / "absent", Path(__file__)):
        assert refusal(absent, network) == (
            f"{absent} is not a TensorFlow checkpoint. Use its folder or its prefix."
        )
    (tmp_path / "a.index").write_bytes(b"")
    assert refusal(tmp_path / "a", network).startswith(
        f"{tmp_path / 'a'}.index and its data cannot"
    )
    (tmp_path / "b.index").write_bytes(b"damaged" * 99)
    assert refusal(tmp_path / "b.index", network).startswith(
        f"{tmp_path / 'b'}.index and its data cannot"
    )
    assert refusal(tmp_path, network) == (
        f"{tmp_path} has 2 checkpoints. Use the prefix of one of them."
    )


# The data set


def table_of(rows: int, seed: int = 0) -> dict[str, list[Any]]:
    """Draw rows of displays in groups, as lists that polars would write."""
    rng = np.random.default_rng(seed)
    table: dict[str, list[Any]] = {}
    for name in NUMERIC:
        table[name] = rng.standard_normal(rows).tolist()
    for name, (size, _) in ONE_HOT.items():
        table[name] = rng.integers(0, size, rows).tolist()
    for name, (size, _) in MULTI_HOT.items():
        table[name] = [rng.integers(0, size, n).tolist() for n in rng.integers(0, 4, rows)]
    table["display_id"] = (100 * seed + np.arange(rows) // 4).tolist()
    table["clicked"] = (np.arange(rows) % 4 == 1).astype(int).tolist()
    return table


def written(path: Path, table: dict[str, Any], **casts: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    lists = dict.fromkeys(MULTI_HOT, pl.List(pl.Int64))
    pl.DataFrame(table, schema_overrides={**lists, **casts}, strict=False).write_parquet(path)
    return path


def folder_of(root: Path, sizes: tuple[int, ...] = (11, 6, 9)) -> Path:
    """Write files whose names are not in the order of their making."""
    for place, size in reversed(list(enumerate(sizes))):
        written(root / "valid" / f"part_{place}.parquet", table_of(size, place + 1))
    return root


def opened(folder: Path) -> Displays:
    dataset = widedeep.open_dataset(config_of(), folder)
    assert isinstance(dataset, Displays)
    return dataset


def slow_rows(sizes: tuple[int, ...] = (11, 6, 9)) -> list[dict[str, Any]]:
    rows = []
    for place, size in enumerate(sizes):
        table = table_of(size, place + 1)
        rows += [{name: values[i] for name, values in table.items()} for i in range(size)]
    return rows


@pytest.mark.parametrize("size", [1 << 18, 4])
def test_the_batches_are_those_of_a_slow_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(data, "SLICE", size)
    dataset, expected = opened(folder_of(tmp_path)), slow_rows()
    assert len(dataset) == 26
    for batch_size in (1, 3, 8, 26, 99):
        batches = list(dataset.batches(batch_size))
        sizes = [len(batch["platform"]) for batch in batches]
        assert sizes == [min(batch_size, 26 - first) for first in range(0, 26, batch_size)]
        for name in NAMES:
            found = np.concatenate([batch[name] for batch in batches])
            slow = [row[name] for row in expected]
            if name in MULTI_HOT:
                slow = [[*ids, *[-1] * (3 - len(ids))] for ids in slow]
            else:
                slow = [[value] for value in slow]
            dtype = np.float32 if name in NUMERIC else np.int32
            np.testing.assert_array_equal(found, np.array(slow, dtype=dtype))
            assert found.dtype == dtype
        assert set(batches[0]) == set(NAMES)
    assert dataset.facts == {
        "rows": 26,
        "displays": 8,
        "clicks": 7,
        "files": 3,
        "origin": "folder",
    }


def test_a_limit_is_spread_evenly_over_all_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "SLICE", 5)
    dataset = opened(folder_of(tmp_path))
    (whole,), few = dataset.batches(99), list(dataset.batches(4, limit=13))
    assert [len(batch["ad_id"]) for batch in few] == [4, 4, 4, 1]
    for name in NAMES:
        found = np.concatenate([batch[name] for batch in few])
        np.testing.assert_array_equal(found, whole[name][::2])
    assert len(next(dataset.batches(99, limit=500))["ad_id"]) == 26
    places = np.array([0, 10, 11, 25])
    for name, values in dataset.take(places).items():
        np.testing.assert_array_equal(values, whole[name][places])


def test_other_widths_of_numbers_and_padded_lists_are_read_alike(tmp_path: Path) -> None:
    table = table_of(9)
    lists = {n: [[*ids, *[-1] * (3 - len(ids))] for ids in table[n]] for n in MULTI_HOT}
    casts: dict[str, Any] = dict.fromkeys(NUMERIC, pl.Float32) | dict.fromkeys(ONE_HOT, pl.UInt32)
    casts |= dict.fromkeys(MULTI_HOT, pl.List(pl.Int32)) | {"clicked": pl.Boolean}
    written(tmp_path / "a/valid/x.parquet", table)
    written(tmp_path / "b/valid/x.parquet", table | lists, **casts)
    written(
        tmp_path / "c/valid/x.parquet",
        table | lists,
        **dict.fromkeys(MULTI_HOT, pl.Array(pl.Int64, 3)),
    )
    first, *others = (opened(tmp_path / name) for name in "abc")
    for other in others:
        for name, values in next(first.batches(99)).items():
            np.testing.assert_array_equal(next(other.batches(99))[name], values)
        np.testing.assert_array_equal(other.clicked, first.clicked)


def test_the_origin_is_told_by_a_marker(tmp_path: Path) -> None:
    folder_of(tmp_path)
    (tmp_path / "prepared.json").write_text("{}")
    assert opened(tmp_path).facts["origin"] == "prepared from the public files"
    (tmp_path / "generated.json").write_text("{}")
    assert opened(tmp_path).facts["origin"] == "generated"


def error(folder: Path) -> str:
    with pytest.raises(DataError) as caught:
        list(opened(folder).batches(8))
    assert "\n" not in str(caught.value)
    return str(caught.value).replace(f"{folder}/", "").replace(str(folder), "it")


def test_folders_of_another_layout_are_errors_that_say_what_is_expected(tmp_path: Path) -> None:
    layout = "Use NVIDIA's prepared folder, with valid/*.parquet."
    assert error(tmp_path / "absent").endswith(f"has no valid/*.parquet. {layout}")
    (tmp_path / "valid").mkdir()
    assert error(tmp_path) == f"it has no valid/*.parquet. {layout}"
    path = tmp_path / "valid/x.parquet"
    for content in (b"", b"PAR1" + bytes(99)):
        path.write_bytes(content)
        assert error(tmp_path).startswith("valid/x.parquet cannot be read: ")
    whole = written(path, table_of(4000)).read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert error(tmp_path).startswith("valid/x.parquet cannot be read: ")
    middle = len(whole) // 2
    path.write_bytes(whole[:middle] + bytes(5000) + whole[middle + 5000 :])
    assert error(tmp_path).startswith("valid/x.parquet ")


def test_sets_without_rows_or_clicks_are_errors(tmp_path: Path) -> None:
    table = table_of(8)
    kinds = pl.DataFrame(table).schema
    path = tmp_path / "valid/x.parquet"
    path.parent.mkdir()
    pl.DataFrame(schema=kinds).write_parquet(path)
    assert error(tmp_path) == "valid has no rows, so nothing can be scored"
    written(path, table | {"clicked": [0] * 8})
    assert error(tmp_path) == "valid has no click, so nothing can be scored"


@pytest.mark.parametrize(
    ("column", "values", "text"),
    [
        ("ad_id", None, "lacks the column ad_id"),
        ("display_id", None, "lacks the column display_id"),
        ("ad_id", [1.5] * 8, "has Float64 in column ad_id, where integers are expected"),
        ("ad_id_ctr", ["x"] * 8, "has String in column ad_id_ctr, where numbers are expected"),
        ("clicked", ["1"] * 8, "has String in column clicked, where numbers are expected"),
        (
            "topic_id_list",
            [3] * 8,
            "has Int64 in column topic_id_list, where lists of integers are expected",
        ),
        ("clicked", [0, 2] * 4, "has a value in column clicked that is not 0 or 1"),
        ("clicked", [0, None] * 4, "has a value in column clicked that is missing"),
        ("ad_id", [None, 3] * 4, "has a value in column ad_id that is missing"),
        ("ad_id", [3, 250_000] * 4, "has ad_id 250000, but its table has 0 to 249999"),
        ("ad_id", [3, 2**40] * 4, f"has ad_id {2**40}, but its table has 0 to 249999"),
        ("platform", [0, -1] * 4, "has platform -1, but its table has 0 to 3"),
        ("topic_id_list", [[1], [350]] * 4, "has topic_id_list 350, but its table has 0 to 349"),
        ("topic_id_list", [[1], [-2]] * 4, "has topic_id_list -2, but its table has 0 to 349"),
        ("topic_id_list", [[1], None] * 4, "has a value in column topic_id_list that is missing"),
        (
            "topic_id_list",
            [[1], [2, None]] * 4,
            "has a value in column topic_id_list that is missing",
        ),
        ("topic_id_list", [[1] * 4] * 8, "has 4 ids in a list of topic_id_list; 3 are allowed"),
        (
            "ad_id_ctr",
            [0.5, float("nan")] * 4,
            "has a value in column ad_id_ctr that is not a finite number",
        ),
        ("ad_id_ctr", [1e300] * 8, "has a value in column ad_id_ctr that is not a finite number"),
    ],
)
def test_a_bad_column_is_an_error_that_names_it(
    column: str, values: Any, text: str, tmp_path: Path
) -> None:
    table = {**table_of(8), column: values}
    if values is None:
        del table[column]
    path = tmp_path / "valid/x.parquet"
    path.parent.mkdir()
    pl.DataFrame(table, strict=False).write_parquet(path)
    assert error(tmp_path) == f"valid/x.parquet {text}"


# The metric


def slow_map(display: Any, clicked: Any, predicted: Any) -> float:
    """Rank each display's rows one by one."""
    found = []
    for each in sorted(set(display)):
        rows = [(-predicted[i], i) for i in range(len(display)) if display[i] == each]
        order = [i for _, i in sorted(rows)]
        if any(clicked[i] for i in order):
            hits = [rank for rank, i in enumerate(order[:12], 1) if clicked[i]]
            found.append(1 / hits[0] if hits else 0.0)
    return sum(found) / len(found)


def scored(display: Any, clicked: Any, predicted: Any) -> float:
    return mean_average_precision(first_click_ranks(display, clicked, predicted))


@pytest.mark.parametrize("seed", range(20))
def test_map_is_that_of_a_slow_ranking_with_ties(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = 300
    display = rng.integers(0, 25, rows) * 7  # some beyond 12 rows, and not sorted
    clicked = rng.random(rows) < rng.choice([0.03, 0.1, 0.5])
    clicked[0] = True
    predicted = rng.integers(0, 5, rows) / 4
    assert scored(display, clicked, predicted) == pytest.approx(
        slow_map(display, clicked, predicted), abs=1e-12
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_map_is_torchmetrics_reciprocal_rank_at_12(seed: int) -> None:
    import torch
    from torchmetrics.retrieval import RetrievalMRR

    rng = np.random.default_rng(seed)
    display, predicted = np.sort(rng.integers(0, 20, 400)), rng.permutation(400) / 400
    clicked = rng.random(400) < 0.05
    metric = RetrievalMRR(empty_target_action="skip", top_k=12)
    expected = metric(*map(torch.from_numpy, (predicted, clicked)), indexes=torch.tensor(display))
    assert scored(display, clicked, predicted) == pytest.approx(expected.item(), abs=1e-6)


def test_map_of_small_cases_by_hand() -> None:
    display = np.repeat([5, 3], [14, 2])
    clicked = np.zeros(16, dtype=bool)
    clicked[[13, 15]] = True
    assert scored(display, clicked, -np.arange(16.0)) == (0 + 1 / 2) / 2  # 14th and 2nd
    assert scored(display, clicked, np.arange(16.0)) == 1
    assert scored(display, clicked, np.zeros(16)) == (0 + 1 / 2) / 2
    predicted = np.arange(16.0)
    predicted[15] = np.nan
    assert scored(display, clicked, predicted) == (1 + 1 / 2) / 2


def test_a_set_is_scored_over_all_its_files_and_a_wrong_shape_is_an_error(tmp_path: Path) -> None:
    dataset, rows = opened(folder_of(tmp_path)), slow_rows()
    predicted = np.random.default_rng(0).random((26, 1)).astype(np.float32)
    expected = slow_map(
        [row["display_id"] for row in rows], [row["clicked"] for row in rows], predicted[:, 0]
    )
    assert dataset.score({OUTPUT: predicted}) == {"map12": pytest.approx(expected)}
    with pytest.raises(DataError, match=r"^wide_deep_model is \[25, 1\] and should be \[26, 1\]$"):
        dataset.score({OUTPUT: predicted[1:]})


# The generated displays


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small")
    widedeep.prepare_dataset(config_of(), folder)
    return folder


def test_the_small_set_is_in_nvidias_layout_and_the_same_every_time(
    small: Path, tmp_path: Path
) -> None:
    dataset = opened(small)
    assert dataset.facts["origin"] == "generated"
    assert dataset.facts["displays"] == dataset.facts["clicks"] == 250
    files = sorted(path.relative_to(small) for path in small.rglob("*.parquet"))
    assert [path.parts[0] for path in files].count("valid") == 8
    frames = {path: pl.read_parquet(small / path) for path in files}
    for frame in frames.values():
        kinds: dict[str, Any] = dict.fromkeys(NUMERIC, pl.Float32) | dict.fromkeys(
            ONE_HOT, pl.Int32
        )
        kinds |= dict.fromkeys(MULTI_HOT, pl.List(pl.Int32))
        assert dict(frame.schema) == {**kinds, "clicked": pl.Int32, "display_id": pl.Int64}
    widedeep.prepare_dataset(config_of(), tmp_path)
    for path, frame in frames.items():
        assert frame.equals(pl.read_parquet(tmp_path / path)), path


def test_a_display_has_3_to_12_different_ads_one_click_and_one_part(small: Path) -> None:
    parts = {
        part: pl.concat([pl.read_parquet(p) for p in sorted((small / part).glob("*.parquet"))])
        for part in ("train", "valid")
    }
    assert not set(parts["train"]["display_id"]) & set(parts["valid"]["display_id"])
    assert parts["valid"]["display_id"].is_sorted()
    ads = pl.col("ad_id")
    for frame in parts.values():
        shown = frame.group_by("display_id").agg(
            ads.len().alias("ads"),
            ads.n_unique().alias("different"),
            pl.col("clicked").sum(),
            *(pl.col(name).n_unique() for name in ("platform", "document_id", "geo_location")),
        )
        assert shown["ads"].is_between(3, 12).all()
        assert (shown["ads"] == shown["different"]).all()
        assert (
            (shown.select("clicked", "platform", "document_id", "geo_location") == 1)
            .to_numpy()
            .all()
        )
        lengths = {n: set(frame[n].list.len().unique()) for n in MULTI_HOT}
        assert all(each == {0, 1, 2, 3} for each in lengths.values())
        for name in MULTI_HOT:
            assert (frame[name].list.n_unique() == frame[name].list.len()).all()


def test_ids_cover_their_tables_by_a_power_law_and_belong_together(small: Path) -> None:
    frame = pl.read_parquet(small / "train/part_0.parquet")
    counts = frame["ad_id"].value_counts(sort=True)["count"]
    assert counts[0] > 10 > 2 > counts[-1]
    for name, (rows, _) in ONE_HOT.items():
        assert frame[name].max() > (1 if name == "platform" else 0.8 * rows), name  # type: ignore[operator]
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
    assert (frame["ad_id_ctr"] == 0).mean() > 0.1  # type: ignore[operator]


def test_an_unknown_generated_set_is_an_error(tmp_path: Path) -> None:
    config = config_of(dataset="generated-huge")
    with pytest.raises(DataError, match=r"^Unknown data set 'generated-huge'. Use one of "):
        widedeep.prepare_dataset(config, tmp_path)
    with pytest.raises(DataError, match=r"^No checkpoint can be fitted to 'generated-huge'. Use"):
        widedeep.prepare_checkpoint(config, tmp_path, tmp_path / "c")
    assert list(tmp_path.iterdir()) == []


# Tables and pictures


def test_displays_rankings_and_ranks_are_shown(small: Path) -> None:
    from helpers.display.tables import table
    from helpers.models.widedeep import display

    dataset = opened(small)
    clicks = dict(
        zip(dataset.take(np.arange(len(dataset)))["ad_id"][:, 0], dataset.clicked, strict=True)
    )

    def perfect(batch: Batch) -> Batch:
        (places,) = {len(values) for values in batch.values()}
        wanted = [[clicks[ad]] for ad in batch["ad_id"][:, 0]]
        assert len(wanted) == places <= 64
        return {OUTPUT: np.array(wanted, dtype=np.float32)}

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
    assert "<table>" in table(ads).html + table(ranking).html
    image = display.show_ranks(dataset, lambda batch: {OUTPUT: np.zeros((len(batch["ad_id"]), 1))})
    assert image.data[:4] == b"\x89PNG"
    predicted = np.zeros((len(dataset), 1))
    score = dataset.score({OUTPUT: predicted})["map12"]
    assert image.alt.startswith("In 250 displays the clicked ad is ranked first in ")
    sizes = np.unique(dataset.displays, return_counts=True)[1]
    chance = np.mean([np.mean(1 / np.arange(1, size + 1)) for size in sizes])
    assert image.alt.endswith(f"MAP@12 of these displays is {score:.3f}, by chance {chance:.3f}.")


def test_a_client_reads_which_ad_of_a_display_is_likeliest(small: Path) -> None:
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
def fitted(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Displays]:
    """The network that a run of all stages fitted, and the small set."""
    config, data, checkpoint = fitted_by_run("widedeep", shared, tmp_path_factory.mktemp("run"))
    return widedeep.build(config, checkpoint), opened(data)


@pytest.mark.slow
@pytest.mark.thorough
def test_the_fitted_network_ranks_far_better_than_chance(fitted: tuple[Any, Displays]) -> None:
    network, dataset = fitted
    found = everything(network, dataset)
    chance = dataset.score({OUTPUT: np.random.default_rng(0).random(found.shape)})["map12"]
    assert chance < 0.48
    assert dataset.score({OUTPUT: found})["map12"] > chance + 0.15
    assert found.std() > 0.05
    for name in ("wide", "columns"):
        for table in network.get_layer(name).tables.values():
            moved = np.abs(np.asarray(table)).max()
            assert moved > (1e-4 if name == "wide" else 0.051)


@pytest.mark.slow
def test_fitting_says_how_far_it_is_and_leaves_no_random_state_changed(
    small: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from helpers.models.widedeep.synthetic import fit

    monkeypatch.setitem(fit.RECIPES, "generated-small", (1, 8))
    np.random.seed(5)
    widedeep.prepare_checkpoint(config_of(), small, tmp_path / "c")
    assert list(tmp_path.iterdir()) == [tmp_path / "c"]
    assert np.random.rand() == np.random.RandomState(5).rand()
    assert capsys.readouterr().out.startswith("step 1/1: loss 0.")


def swapped(batch: Batch, first: str, second: str) -> Batch:
    """Give two inputs of one shape each other's values, where they fit into the tables."""
    rows = min(TABLES.get(name, (1 << 31, 0))[0] for name in (first, second))
    values = {
        name: batch[name] % rows if name in TABLES else batch[name] for name in (first, second)
    }
    return {**batch, first: values[second], second: values[first]}


@pytest.mark.slow
@pytest.mark.thorough
def test_the_bounds_tell_a_rounding_from_a_wrong_output(fitted: tuple[Any, Displays]) -> None:
    network, dataset = fitted
    (batch,) = dataset.batches(64, limit=64)
    expected = run(network, batch)
    rng = np.random.default_rng(8)
    wrong: dict[str, NDArray[Any]] = {
        "random": rng.normal(expected.mean(), expected.std(), expected.shape),
        "zero": np.zeros_like(expected),
        "mean": np.full_like(expected, expected.mean()),
        "reversed": expected[::-1],
        "shifted": np.roll(expected, 1, axis=0),
        "ids unknown": run(
            network, {n: np.full_like(a, -1) if n in TABLES else a for n, a in batch.items()}
        ),
    }
    for one, other in ((0, 1), (0, 63), (30, 31)):
        order = np.arange(64)
        order[[one, other]] = other, one
        wrong[f"{one} and {other} swapped"] = expected[order]
    for first, second in (
        ("ad_id_ctr", "campaign_id_ctr"),
        ("document_id_promo_count", "ad_id_count"),
        ("ad_id", "document_id"),
        ("campaign_id", "advertiser_id"),
        ("topic_id_list", "entity_id_list"),
    ):
        wrong[f"{first} and {second}"] = run(network, swapped(batch, first, second))
    for precision, tolerances in widedeep.TOLERANCES.items():
        passed = [
            name
            for name, found in wrong.items()
            if difference(OUTPUT, found.astype(np.float32), expected, tolerances).ok
        ]
        # int8 tells neither two similar rows nor two similar inputs apart
        assert [name for name in passed if precision != "int8" or " and " not in name] == []
    for first, second in (*pairwise(NUMERIC), *pairwise(ONE_HOT), *pairwise(MULTI_HOT)):
        found = run(network, swapped(batch, first, second))
        assert not difference(OUTPUT, found, expected, widedeep.TOLERANCES["fp32"]).ok, (
            first,
            second,
        )
