"""The networks, checkpoints, lookups and fits of DLRM and DCNv2 against formulas in NumPy."""

import json
import os
import pickle
import re
import shutil
import subprocess
import sys
from inspect import getfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from helpers import models
from helpers.errors import CheckpointError
from helpers.inference import framework_session
from helpers.measure.checks import difference
from helpers.models._criteo import checkpoint, ensemble, lookup, spec
from helpers.models._criteo.data import Samples, SplitBinary, write_part
from helpers.models._criteo.network import network
from helpers.models._criteo.synthetic import fit
from helpers.models._criteo.tables import TABLES
from helpers.store import OUTPUTS_VARIABLE
from tests.models import builders
from tests.models.builders import Command, grown, refusal
from tests.pipeline.test_try_it import fitted_by_run

pytestmark = pytest.mark.slow
BOTH = ("dlrm", "dcnv2")
ROWS = tuple(3 + place % 5 for place in range(26))  # of small tables; several have the same number
SHORT = "/.ATTRIBUTES/VARIABLE_VALUE"


def config_of(model, variant="own", dataset="generated-small", **fields):
    return builders.config_of(model=model, variant=variant, dataset=dataset, **fields)


def built(model, path, variant="own"):
    return models.get(model).build(config_of(model, variant), path)


def refused(model, path, variant="own"):
    text = refusal(CheckpointError, built, model, path, variant)
    assert str(path) in text
    return text.replace(f"{path}/", "").replace(str(path), "it")


def write_checkpoint(model, path, rows=ROWS):
    """Random weights, and tables of numbers that are as small as fitted ones."""
    checkpoint.save(model, network(model, seed=1), rows, path)
    rng = np.random.default_rng(2)
    for place, count in enumerate(rows):
        table = rng.standard_normal((count, 128), dtype=np.float32)
        np.save(path / f"sparse/feature_{place}.npy", table / 10)
    return path


@pytest.fixture(scope="module", params=BOTH)
def made(request, tmp_path_factory):
    """A model, and a checkpoint of it that is only read."""
    return request.param, write_checkpoint(request.param, tmp_path_factory.mktemp("c") / "made")


@pytest.fixture(scope="module")
def untouched(tmp_path_factory):
    return write_checkpoint("dlrm", tmp_path_factory.mktemp("c") / "own")


@pytest.fixture
def own(untouched, tmp_path):
    """A checkpoint of DLRM that a test may harm."""
    return Path(shutil.copytree(untouched, tmp_path / "own"))


def batch_of(size, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "args_0": rng.standard_normal((size, 13), dtype=np.float32),
        "args_1": rng.standard_normal((size, 3328), dtype=np.float32),
    }


def run(network, batch):
    return np.asarray(network(batch))


def samples_of(size, rows=ROWS, seed=0):
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, rows, (size, 26)).astype(np.int32)
    numbers = rng.standard_normal((size, 13)).astype(np.float32)
    return Samples(ids, numbers, rng.random(size) < 0.3)


def test_the_lookups_file_imports_nothing_of_the_package():
    path = getfile(models.ensemble("dlrm").load)
    assert path == lookup.__file__
    code = f"import sys; sys.path.insert(0, {str(Path(path).parent)!r}); import lookup"
    code += "; print({'helpers', 'numpy', 'tensorflow'} & set(sys.modules))"
    done = subprocess.check_output([sys.executable, "-I", "-c", code], text=True)
    assert done == "{'numpy'}\n"


# The networks


def published(model):
    """The attributes of NVIDIA's DenseModel and CrossNetwork, and the shapes of their weights."""
    first = {"dlrm": 480, "dcnv2": 3456}[model]
    stacks = {"bottom_mlp_layers": (16, 512, 256, 128), "top_mlp": (first, 1024, 1024, 512, 256, 1)}
    found = {}
    for name, widths in stacks.items():
        for place, shape in enumerate(pairwise(widths)):
            found[f"{name}/{place}/kernel"] = list(shape)
            found[f"{name}/{place}/bias"] = [shape[1]]
    for place in range(3 if model == "dcnv2" else 0):
        name = f"interact_op/cross_layers/{place}"
        found[f"{name}/_dense_u/kernel"] = [3456, 512]
        found[f"{name}/_dense_v/kernel"] = [512, 3456]
        found[f"{name}/_dense_v/bias"] = [3456]
    return found


def saved(path):
    """Read the weights of a checkpoint with TensorFlow's own reader."""
    import tensorflow as tf

    reader = tf.train.load_checkpoint(str(path / "dense/dense"))
    names = [name for name in reader.get_variable_to_shape_map() if name.endswith(SHORT)]
    return {name.removesuffix(SHORT): reader.get_tensor(name).astype(np.float64) for name in names}


def test_a_saved_weight_has_its_place_in_nvidias_model(made):
    model, path = made
    weights = saved(path)
    weights.pop("save_counter", None)
    assert {name: list(array.shape) for name, array in weights.items()} == published(model)


def mlp(weights, name, x, count):
    """ReLU after every layer but the last of the top."""
    for place in range(count):
        x = x @ weights[f"{name}/{place}/kernel"] + weights[f"{name}/{place}/bias"]
        x = x if place == 4 else np.maximum(x, 0)
    return x


def reference(model, weights, batch):
    """Section 2.1 of arXiv 1906.00091 and equation 2 of arXiv 2008.13535, sample by sample."""
    found = []
    for numbers, embeddings in zip(batch["args_0"], batch["args_1"], strict=True):
        first = np.concatenate([numbers.astype(np.float64), np.zeros(3)])
        bottom = mlp(weights, "bottom_mlp_layers", first, 3)
        vectors = [bottom, *embeddings.astype(np.float64).reshape(26, 128)]
        if model == "dlrm":
            products = [vectors[i] @ vectors[j] for i in range(27) for j in range(i)]
            x = np.array([*bottom, *products, 0])
        else:
            x0 = x = np.concatenate(vectors)
            for place in range(3):
                name = f"interact_op/cross_layers/{place}"
                u, v = weights[f"{name}/_dense_u/kernel"], weights[f"{name}/_dense_v/kernel"]
                x = x0 * (x @ u @ v + weights[f"{name}/_dense_v/bias"]) + x
        found.append(mlp(weights, "top_mlp", x, 5))
    return np.array(found)


def test_the_network_equals_the_papers_formulas(made):
    model, path = made
    batch = batch_of(9)
    expected = reference(model, saved(path), batch)
    found = run(built(model, path), batch)
    assert (found.dtype, found.shape) == (np.float32, (9, 1))
    assert difference("", found, expected, (1e-5, 1e-5)).ok
    assert expected.std() > 0.01


@pytest.mark.parametrize("model", BOTH)
def test_initial_weights_are_drawn_as_nvidia_draws_them(model):
    made = network(model)
    layers = [layer for layer in made.layers if layer.weights]
    kernels = [np.asarray(layer.kernel) for layer in layers]
    for layer, kernel in zip(layers, kernels, strict=True):
        cross = layer.name.startswith("interact_op")
        wanted = 0.05 * 0.8796 if cross else np.sqrt(2 / sum(kernel.shape))
        assert kernel.std() == pytest.approx(wanted, rel=0.15), layer.name
        if layer.use_bias:
            bias = np.asarray(layer.bias)
            spread = np.sqrt((bias**2).mean()) * np.sqrt(len(bias))
            assert spread == 0 if cross else len(bias) == 1 or spread == pytest.approx(1, rel=0.2)
    again, other = network(model), network(model, seed=1)
    for mine, same, different in zip(made.weights, again.weights, other.weights, strict=True):
        np.testing.assert_array_equal(mine, same)
        assert "bias" in mine.name or (np.asarray(mine) != np.asarray(different)).mean() > 0.99
    for place, one in enumerate(kernels):
        alike = [each for each in kernels[:place] if each.shape == one.shape]
        assert all((one != each).mean() > 0.99 for each in alike)


# The lookup


def folder_of(path, rows, width=8):
    table = np.random.default_rng(3).standard_normal((sum(rows), width)).astype(np.float32)
    np.save(path / "tables.npy", table)
    (path / "tables.json").write_text(json.dumps({"cardinalities": rows}))
    return table


def hole(path, rows, width):
    """A table of zeros that take no room on the disk."""
    with path.open("wb") as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": (rows, width)}
        np.lib.format.write_array_header_1_0(file, header)
        file.truncate(file.tell() + 4 * rows * width)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.int8])
def test_a_lookup_is_plain_indexing(dtype, tmp_path):
    rows = [3, 1, 7, 40]
    parts = np.split(folder_of(tmp_path, rows), np.cumsum(rows)[:-1])
    session, rng = lookup.load(tmp_path, 1, "cpu"), np.random.default_rng(4)
    for size in (1, 300):
        ids = rng.integers(0, rows, (size, 4)).astype(dtype)
        found = session.run({"input_1": ids})["output_1"]
        expected = [np.concatenate([p[n] for p, n in zip(parts, row, strict=True)]) for row in ids]
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, expected)
    assert session.run({"input_1": np.empty((0, 4), dtype)})["output_1"].shape == (0, 32)


def test_rows_beyond_what_the_ids_type_counts_are_found(tmp_path):
    """In a file that is a hole of 16 GB but for its last row."""
    rows = [2_000_000_000, 2_000_000_000]
    hole(tmp_path / "tables.npy", sum(rows), 1)
    np.load(tmp_path / "tables.npy", mmap_mode="r+")[-1] = 7
    (tmp_path / "tables.json").write_text(json.dumps({"cardinalities": rows}))
    ids = np.array([[0, rows[1] - 1]], dtype=np.int32)
    found = lookup.load(tmp_path, 1, "cpu").run({"input_1": ids})
    assert found["output_1"].tolist() == [[0, 7]]


@pytest.mark.parametrize(
    ("ids", "text"),
    [
        ([[2, 0, 6, 39], [0, 1, 0, 0]], "the id 1 for feature 1, whose table has the rows 0 to 0"),
        ([[0, 0, 7, 0]], "the id 7 for feature 2, whose table has the rows 0 to 6"),
        ([[0, 0, 0, -1]], "the id -1 for feature 3, whose table has the rows 0 to 39"),
        ([[3, 0, 0, 40]], "the id 3 for feature 0, whose table has the rows 0 to 2"),
        ([[0, 0, 0]], "input_1 is int64 [1, 3] and should be whole numbers [batch, 4]"),
        ([[0]], "input_1 is int64 [1, 1] and should be whole numbers [batch, 4]"),
        ([0, 0, 0, 0], "input_1 is int64 [4] and should be whole numbers [batch, 4]"),
        ([[0.0, 0, 0, 0]], "input_1 is float64 [1, 4] and should be whole numbers [batch, 4]"),
    ],
)
def test_ids_that_have_no_row_are_errors(ids, text, tmp_path):
    folder_of(tmp_path, [3, 1, 7, 40])
    with pytest.raises(ValueError, match=f"{re.escape(text)}$"):
        lookup.load(tmp_path, 1, "cpu").run({"input_1": np.array(ids)})


def test_a_lookups_folder_that_does_not_agree_is_an_error(made, tmp_path):
    def error(folder):
        return refusal(ValueError, lookup.load, folder, 1, "cpu")

    folder_of(tmp_path, [3, 1, 7, 40])
    (tmp_path / "tables.json").write_text(json.dumps({"cardinalities": [3, 1, 7, 39]}))
    assert re.search(r"tables.npy is float32 \[51, 8\], but .* 50 rows of fl", error(tmp_path))
    np.save(tmp_path / "tables.npy", np.zeros((50, 8)))
    assert "tables.npy is float64 [50, 8], but " in error(tmp_path)
    folder_of(tmp_path, [3, 1, 7, 40])
    os.truncate(tmp_path / "tables.npy", 1000)
    assert "greater than file size" in error(tmp_path)
    tables_in("int8", made, tmp_path / "s")
    np.save(tmp_path / "s/scales.npy", np.ones(5, np.float32))
    assert f"scales.npy is float32 [5], but there are {sum(ROWS)}" in error(tmp_path / "s")


# The ensemble


def served(model, path, folder):
    """Chain what is served: the lookup that was written, and the network that is exported."""
    found = models.ensemble(model)
    found.write(config_of(model), path, folder)
    session, dense = found.load(folder, 1, "cpu"), built(model, path)

    def chain(samples):
        embeddings = session.run({"input_1": samples.categorical})["output_1"]
        return run(dense, {"args_0": samples.numerical, "args_1": embeddings})

    return chain


def tables_in(precision, made, folder):
    """Write a checkpoint's tables in a precision; give the lookup of them."""
    model, path = made
    found = models.ensemble(model)
    found.write(config_of(model, table_precision=precision), path, folder)
    return found.load(folder, 1, "cpu")


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_a_looked_up_number_is_off_by_half_a_step_of_its_precision(
    dtype, made, tmp_path, monkeypatch
):
    monkeypatch.setattr(ensemble, "CHUNK", 2)  # rows that are written at a time: many pieces
    monkeypatch.setattr(lookup, "PIECE", 3)  # and samples that are looked up at a time
    tables = [np.load(made[1] / f"sparse/feature_{place}.npy") for place in range(26)]
    ids = np.stack([np.arange(max(ROWS)) % count for count in ROWS], axis=1).astype(np.int32)
    exact = np.stack([table[ids[:, place]] for place, table in enumerate(tables)], axis=1)

    session = tables_in(dtype.replace("loat", "p"), made, tmp_path / "s")
    found = session.run({"input_1": ids})["output_1"]

    largest = np.abs(exact).max(axis=2, keepdims=True)
    half = {"float32": 0 * exact, "float16": np.abs(exact) * 2.0**-11 + 2.0**-25}
    half = half.get(dtype, largest / 127 / 2)
    apart = np.abs(found.reshape(exact.shape) - exact)
    assert found.dtype == np.float32
    assert (apart <= half * 1.001).all()
    assert apart.max() >= half.max() / 2
    assert np.load(tmp_path / "s/tables.npy").dtype == dtype
    layout = {"cardinalities": list(ROWS), "dtype": dtype}
    assert json.loads((tmp_path / "s/tables.json").read_text()) == layout


@pytest.mark.parametrize("value", [0, 2e-43])  # a number so small has no scale of full precision
def test_a_row_of_zeros_or_nearly_is_zeros_in_int8(value, own, tmp_path):
    table = np.load(own / "sparse/feature_3.npy")
    table[0] = value
    np.save(own / "sparse/feature_3.npy", table)

    session = tables_in("int8", ("dlrm", own), tmp_path / "s")

    found = session.run({"input_1": np.zeros((1, 26), np.int32)})["output_1"].reshape(26, 128)
    assert not found[3].any()
    assert found[2].any()


def bytes_written():
    """Count what this process has written to files so far."""
    return int(Path("/proc/self/io").read_text().split("wchar: ")[1].split()[0])


def test_the_framework_session_reads_the_checkpoints_own_tables(made, tmp_path, monkeypatch):
    """Those of T3 have 91 GB, and a copy of them would be for one stage only."""
    monkeypatch.setenv(OUTPUTS_VARIABLE, str(tmp_path / "outputs"))
    model, rows = made[0], (2000,) * 26
    path, samples = write_checkpoint(model, tmp_path / "c", rows), samples_of(50, rows)
    batch = {"categorical_features": samples.categorical, "numerical_features": samples.numerical}
    before = bytes_written()
    session = framework_session(config_of(model), path)
    found = session.run(batch)
    assert bytes_written() - before < 1e6  # the tables have 27 MB
    assert sorted(each.name for each in tmp_path.iterdir()) == ["c"]
    expected = served(model, path, tmp_path / "s")(samples)
    np.testing.assert_array_equal(found["DENSE_OUTPUT"], expected)
    samples.categorical[3, 7] = 2000
    text = "the id 2000 for feature 7, whose table has the rows 0 to 1999"
    assert text in refusal(ValueError, session.run, batch)


@pytest.mark.parametrize("model", BOTH)
def test_the_chain_equals_the_network_that_was_fitted(model, tmp_path):
    part = SplitBinary(dataset_of(tmp_path / "d", 400), part="train")
    fitted = fit.train(model, part, fit.Recipe(3, 64, 1e-3, 0.1), tmp_path / "c")
    checkpoint.save(model, fitted.dense, ROWS, tmp_path / "c")
    samples = samples_of(50)
    embeddings = fitted.tables.rows_of(samples.categorical)
    expected = run(fitted.dense, {"args_0": samples.numerical, "args_1": embeddings})
    np.testing.assert_array_equal(served(model, tmp_path / "c", tmp_path / "s")(samples), expected)
    assert expected.std() > 0.01


def test_a_mistaken_order_is_noticed(made):
    """Two embeddings or two numbers in each other's place, and what is no answer at all."""
    model, path = made
    dense, batch = built(model, path), batch_of(64)
    batch["args_1"] /= 10  # as small as fitted ones
    expected = run(dense, batch)
    embeddings = batch["args_1"].reshape(64, 26, 128)
    turned = embeddings[:, [1, 0, *range(2, 26)]].reshape(64, 3328)
    by_table = embeddings.transpose(1, 0, 2).reshape(64, 3328)  # as a table-major store gives it
    rng = np.random.default_rng(5)
    for wrong in (
        run(dense, batch | {"args_0": batch["args_0"][:, [0, 2, 1, *range(3, 13)]]}),
        run(dense, batch | {"args_1": turned}),
        run(dense, batch | {"args_1": by_table}),
        rng.normal(expected.mean(), expected.std(), expected.shape).astype(np.float32),
        np.zeros_like(expected),
        -expected,
    ):
        for tolerances in models.get(model).TOLERANCES.values():
            assert not difference("DENSE_OUTPUT", wrong, expected, tolerances).ok


BEFORE = """
import numpy as np
from types import SimpleNamespace
from helpers.models._criteo import ensemble
config = SimpleNamespace(model="dlrm", variant="own", table_precision=sys.argv[3])
"""
CODE = """
ensemble.write(config, Path(sys.argv[1]), Path(sys.argv[2]))
last = np.array([ROWS], dtype=np.int32) - 1
found = ensemble.load(Path(sys.argv[2]), 1, "cpu").run({"input_1": last})["output_1"]
print(found.reshape(26, 128)[:, 0].tolist())
"""


@pytest.mark.parametrize(("precision", "size"), [("fp32", 4), ("int8", 1)])
def test_large_tables_pass_through_a_few_megabytes(precision, size, tmp_path):
    """Of memory, on their way from the checkpoint to the lookup and in the lookup."""
    rows = tuple(200_000 if place in (0, 7, 25) else 10_000 for place in range(26))
    path = sparse_checkpoint("dlrm", tmp_path / "c", rows)
    for place, count in enumerate(rows):
        np.load(path / f"sparse/feature_{place}.npy", mmap_mode="r+")[count - 1] = place + 1
    code = CODE.replace("ROWS", str(list(rows)))
    (values,), megabytes = grown(BEFORE, code, path, tmp_path / "s", precision)
    assert json.loads(values) == pytest.approx([place + 1 for place in range(26)], rel=1e-6)
    assert (tmp_path / "s/tables.npy").stat().st_size > 0.1e9 * size
    assert megabytes < 80


# The checkpoint


def sparse_checkpoint(model, path, rows):
    """A checkpoint whose tables are zeros that take no room on the disk."""
    checkpoint.save(model, network(model), rows, path)
    for place, count in enumerate(rows):
        hole(path / f"sparse/feature_{place}.npy", count, 128)
    return path


def test_tables_of_any_size_are_checked_by_their_headers(tmp_path):
    path = sparse_checkpoint("dlrm", tmp_path / "c", TABLES["T3"])
    found = checkpoint.tables("dlrm", "T3", path)
    assert [table.shape for table in found] == [(count, 128) for count in TABLES["T3"]]


def test_a_checkpoint_comes_back_as_it_was_saved(made):
    model, path = made
    fresh = network(model, seed=1)
    for mine, other in zip(built(model, path).weights, fresh.weights, strict=True):
        np.testing.assert_array_equal(mine, other)
    # with concat_embedding NVIDIA's code has all tables of a GPU in one object, not in 26 files
    config = json.loads((path / "sparse/config.json").read_text())
    names = ("concat_embedding", "use_mde_embeddings", "column_slice_threshold")
    assert not any(config[name] for name in names)
    for variant in ("own", "own-T3", "own-T0"):
        tables = checkpoint.tables(model, variant, path)
        assert [len(table) for table in tables] == list(ROWS)


def change(path, **fields):
    content = json.loads(path.read_text())
    content.update(fields)
    path.write_text(json.dumps({name: v for name, v in content.items() if v != "absent"}))


@pytest.mark.parametrize(
    ("file", "field", "value", "text"),
    [
        ("dense", "interaction", "cross", ' is "cross" and should be "dot_tensorflow"'),
        ("dense", "bottom_mlp_dims", [512, 128], " is [512, 128] and should be [512, 256, 128]"),
        ("dense", "top_mlp_dims", [1024, 1024, 512, 256, 2], "[4] is 2 and should be 1"),
        ("dense", "num_numerical_features", 14, " is 14 and should be 13"),
        ("dense", "embedding_dim", [128] * 25 + [64], "[25] is 64 and should be 128"),
        ("dense", "embedding_dim", "absent", " is null and should be [128, 128"),
        ("dense", "categorical_cardinalities", [5] * 25, ": list should have at least 26 items"),
        ("dense", "categorical_cardinalities", [0] * 26, ".0: input should be greater than 0"),
        ("dense", "categorical_cardinalities", "many", ": input should be a valid array"),
        ("sparse", "embedding_dim", [64] * 26, "[0] is 64 and should be 128"),
        ("sparse", "categorical_cardinalities", [*ROWS[:25], 9], "[25] is 9 and should be 3"),
    ],
)
def test_a_configuration_of_another_network_is_an_error(own, file, field, value, text):
    change(own / file / "config.json", **{field: value})
    found = refused("dlrm", own)
    assert found.startswith(f"{file}/config.json")
    assert f": {field}{text}" in found


def test_a_configuration_of_nvidias_kernel_of_dcnv2_or_of_other_tables(own, tmp_path):
    name = "dense/config.json"
    assert refused("dlrm", own, "T15") == (
        f"{name} is not dlrm's: categorical_cardinalities[0] is 3 and should be 7912889"
    )
    change(own / name, interaction="dot_custom_cuda", batch_size=64)  # computes the same
    built("dlrm", own)
    assert refused("dcnv2", own).startswith(f"{name} is not dcnv2's: interaction is ")
    for field, value in (("num_cross_layers", 2), ("cross_layer_projection_dim", 256)):
        path = sparse_checkpoint("dcnv2", tmp_path / field, ROWS)
        change(path / name, **{field: value})
        assert f": {field} is {value} and should be " in refused("dcnv2", path)


def array_of(change, **options):
    """Change the numbers of a table."""
    return lambda file: np.save(file, change(np.load(file)), **options)


def bytes_of(change):
    return lambda file: file.write_bytes(change(file.read_bytes()))


def copied(file):
    np.save(file, np.zeros((6, 128), np.float32))


TABLE, DATA = "sparse/feature_3.npy", "dense/dense.data-00000-of-00001"  # a table [6, 128]
LAYOUT, CUT = "sparse does not fit dlrm: feature_3.npy is", f"{TABLE} is not a whole .npy file of "
UNREAD = "dense/dense.index and its data cannot be read"


@pytest.mark.parametrize(
    ("name", "harm", "text"),
    [
        (TABLE, Path.unlink, "sparse does not fit dlrm: missing feature_3.npy <f4 [6, 128] "),
        ("sparse/feature_26.npy", copied, "sparse does not fit dlrm: surplus feature_26.npy <f4 "),
        (TABLE, array_of(lambda a: a[:5]), f"{LAYOUT} <f4 [5, 128] by rows and should be <f4 [6, "),
        (TABLE, array_of(lambda a: a[:, :64]), f"{LAYOUT} <f4 [6, 64] by rows and should be "),
        (TABLE, array_of(lambda a: a.astype("f8")), f"{LAYOUT} <f8 [6, 128] by rows and should "),
        (TABLE, array_of(lambda a: a.astype(">f4")), f"{LAYOUT} >f4 [6, 128] by rows and should "),
        (TABLE, array_of(np.asfortranarray), f"{LAYOUT} <f4 [6, 128] by columns and should "),
        (TABLE, bytes_of(lambda c: c + b"abc"), f"{LAYOUT} <f4 [6, 128] by rows, and 3 bytes aft"),
        (TABLE, bytes_of(lambda c: c[:-1]), CUT),
        (TABLE, bytes_of(lambda c: b""), CUT),
        (TABLE, bytes_of(lambda c: os.urandom(999)), CUT),
        ("dense/dense.index", Path.unlink, f"{UNREAD}: "),
        ("dense/dense.index", bytes_of(lambda c: b""), f"{UNREAD}: "),
        (DATA, Path.unlink, f"{UNREAD} at bottom_mlp_layers/0/kernel: "),
        (DATA, bytes_of(lambda c: c[:-50_000]), f"{UNREAD} at "),
        ("dense/weights.h5", Path.touch, "dense/weights.h5 is not part of a checkpoint of dlrm"),
        ("dense/config.json", Path.unlink, "dense/config.json cannot be read (No such file"),
        ("sparse/config.json", bytes_of(lambda c: b"{"), "sparse/config.json: the whole: invalid "),
        ("dense/config.json", bytes_of(lambda c: b"[1]"), "dense/config.json: the whole: input sh"),
    ],
)
def test_files_that_are_missing_surplus_or_damaged_are_named(name, harm, text, own):
    harm(own / name)
    assert refused("dlrm", own).startswith(text)


def test_a_pickled_table_is_refused_and_leaves_no_trace(own, tmp_path):
    command, file = Command(f"touch {tmp_path / 'trace'}"), own / TABLE
    np.save(file, np.array([command], dtype=object), allow_pickle=True)
    assert refused("dlrm", own).startswith(CUT)
    file.write_bytes(pickle.dumps(command))
    assert refused("dlrm", own).startswith(CUT)
    assert not (tmp_path / "trace").exists()


# The fit


def dataset_of(folder, count):
    """A split-binary folder with small tables, whose clicks depend on one id and one number."""
    for part, size, seed in (("train", count, 0), ("test", count, 1)):
        samples = samples_of(size, seed=seed)
        logits = 4 * (samples.categorical[:, 4] > 2) - 2 + 2 * samples.numerical[:, 0]
        clicks = np.random.default_rng(seed).random(size) < 1 / (1 + np.exp(-logits))
        folder.mkdir(exist_ok=True)
        write_part(folder / part, ROWS, [samples._replace(clicks=clicks)])
    spec.write(folder, ROWS, {})
    return folder


def test_rows_descend_by_row_wise_adagrad(tmp_path):
    """Row by row in float64, where the rows that a batch names twice count together."""
    rows, rng = (3, 50), np.random.default_rng(6)
    tables = fit.Tables(rows, tmp_path / "t")
    expected = [np.load(tmp_path / f"t/feature_{n}.npy").astype(np.float64) for n in range(2)]
    sums = [np.zeros(count) for count in rows]
    for rate in (0.3, 0.2):
        ids = rng.integers(0, rows, (20, 2)).astype(np.int32)
        reads = np.concatenate([expected[n][ids[:, n]] for n in range(2)], axis=1)
        np.testing.assert_allclose(tables.rows_of(ids), reads, rtol=1e-5, atol=1e-6)
        gradient = rng.standard_normal((20, 256)).astype(np.float32)
        tables.descend(ids, gradient, rate)
        for n in range(2):
            for row in set(ids[:, n]):
                part = gradient[ids[:, n] == row, 128 * n : 128 * n + 128].astype(float)
                slope = part.sum(axis=0)
                sums[n][row] += (slope**2).mean()
                expected[n][row] -= rate * slope / np.sqrt(sums[n][row])
    for n in range(2):
        found = np.load(tmp_path / f"t/feature_{n}.npy")
        np.testing.assert_allclose(found, expected[n], rtol=1e-4, atol=1e-5)


def test_tables_are_drawn_evenly_and_alike_every_time(tmp_path):
    for name in ("a", "b"):
        fit.Tables((4, 200_000), tmp_path / name)
    table = np.load(tmp_path / "a/feature_1.npy")
    limit = np.float32(200_000**-0.5)
    assert -limit <= table.min() < -0.999 * limit
    assert 0.999 * limit < table.max() <= limit
    assert table.std() == pytest.approx(limit / 3**0.5, rel=0.01)
    assert abs(table.mean()) < 0.01 * limit
    for place in range(2):
        one, other = (tmp_path / name / f"feature_{place}.npy" for name in ("a", "b"))
        assert one.read_bytes() == other.read_bytes()


def test_the_gradient_is_that_of_the_mean_cross_entropy(tmp_path):
    """The loss is the mean of -log of what the logit says of the click; the tables go down it."""
    fitted = fit.Recommender("dlrm", ROWS, tmp_path / "c")
    samples = samples_of(200)
    embeddings = fitted.tables.rows_of(samples.categorical)
    logits = run(fitted.dense, {"args_0": samples.numerical, "args_1": embeddings})[:, 0]
    p = 1 / (1 + np.exp(-logits.astype(np.float64)))
    expected = -np.log(np.where(samples.clicks, p, 1 - p)).mean()
    losses = [fitted.take(samples, 1e-3, 0.05) for _ in range(8)]
    assert losses[0] == pytest.approx(expected, rel=1e-4)
    assert losses[-1] < losses[0] - 0.01
    before = [weight.numpy() for weight in fitted.dense.weights]

    def moved():
        weights = zip(fitted.dense.weights, before, strict=True)
        return [np.abs(np.asarray(weight) - old).max() for weight, old in weights]

    losses = [fitted.take(samples, 0.0, 0.05) for _ in range(8)]  # the tables alone
    assert losses[-1] < losses[0] - 0.001
    assert max(moved()) == 0
    fitted.take(samples, 1e-3, 0.0)
    assert 0 < min(moved()) <= max(moved()) < 2e-3


@pytest.mark.thorough
@pytest.mark.parametrize("model", BOTH)
def test_the_small_sets_clicks_are_learnt_and_survive_every_format(model, shared, tmp_path):
    """By the network that a run of all stages fitted."""
    config, found = config_of(model, "T15-10k"), models.get(model)
    _, generated, fitted = fitted_by_run(model, shared, tmp_path / "run")
    dataset = found.open_dataset(config, generated)
    parts = models.ensemble(model)
    parts.write(config, fitted, tmp_path / "sparse")
    session = parts.load(tmp_path / "sparse", 1, "cpu")
    dense = found.build(config, fitted)
    (batch,) = dataset.batches(len(dataset))
    embeddings = session.run({"input_1": batch["categorical_features"]})["output_1"]
    inputs = {"args_0": batch["numerical_features"], "args_1": embeddings}
    expected = run(dense, inputs)
    clicks = SplitBinary(generated, part="test").clicks()
    auc = roc_auc_score(clicks, expected[:, 0])
    assert dataset.score({"DENSE_OUTPUT": expected})["auc"] == pytest.approx(auc, abs=1e-3)
    assert auc > 0.7
    few = {name: array[:64] for name, array in inputs.items()}

    saved = "tf-savedmodel"
    made = {saved: "", "onnx": saved, "openvino": saved, "openvino bf16": saved}
    builders.assert_formats_equal(found, dense, run, made, ("output_1",), tmp_path, few, few)
