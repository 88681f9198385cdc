"""The networks, checkpoints, lookups and fits of DLRM and DCNv2 against formulas in NumPy."""

import json
import os
import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from inspect import getfile
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score  # type: ignore[import-untyped, unused-ignore]

from helpers import formats, models
from helpers.errors import CheckpointError, DataError
from helpers.formats import Build
from helpers.inference import framework_session
from helpers.measure.checks import difference
from helpers.models import Part, Tensor
from helpers.models._criteo import checkpoint, ensemble, lookup, spec
from helpers.models._criteo.data import Samples, SplitBinary, write_part
from helpers.models._criteo.network import network
from helpers.models._criteo.synthetic import fit
from helpers.models._criteo.tables import TABLES
from helpers.models.dlrm import MODEL as dlrm
from helpers.store import OUTPUTS_VARIABLE
from tests.pipeline.test_try_it import fitted_by_run

pytestmark = pytest.mark.slow
BOTH = ("dlrm", "dcnv2")
ROWS = tuple(3 + place % 5 for place in range(26))  # of small tables; several have the same number
SHORT = "/.ATTRIBUTES/VARIABLE_VALUE"

Floats = NDArray[np.float64]


class Fields(SimpleNamespace):
    """What a model reads of an experiment."""

    def model_copy(self, update: dict[str, Any]) -> "Fields":
        return Fields(**vars(self) | update)


def config_of(model: str, variant: str = "own", dataset: str = "generated-small") -> Any:
    return Fields(
        model=model, variant=variant, dataset=dataset, lookup="", fused=True, table_precision="fp32"
    )


def package(model: str) -> Any:
    return models.get(model)


def write_checkpoint(model: str, path: Path, rows: tuple[int, ...] = ROWS) -> Path:
    """Random weights, and tables of numbers that are as small as fitted ones."""
    checkpoint.save(model, network(model, seed=1), rows, path)
    rng = np.random.default_rng(2)
    for place, count in enumerate(rows):
        table = rng.standard_normal((count, 128), dtype=np.float32)
        np.save(path / f"sparse/feature_{place}.npy", table / 10)
    return path


@pytest.fixture(scope="module", params=BOTH)
def made(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A model, and a checkpoint of it that is only read."""
    return request.param, write_checkpoint(request.param, tmp_path_factory.mktemp("c") / "made")


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint("dlrm", tmp_path_factory.mktemp("c") / "own")


@pytest.fixture
def own(untouched: Path, tmp_path: Path) -> Path:
    """A checkpoint of DLRM that a test may harm."""
    return Path(shutil.copytree(untouched, tmp_path / "own"))


def batch_of(size: int, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "args_0": rng.standard_normal((size, 13), dtype=np.float32),
        "args_1": rng.standard_normal((size, 3328), dtype=np.float32),
    }


def run(network: Any, batch: dict[str, Any]) -> NDArray[np.float32]:
    return np.asarray(network(batch))


def logits_of(fitted: fit.Recommender, samples: Samples) -> NDArray[np.float32]:
    embeddings = fitted.tables.rows_of(samples.categorical)
    return run(fitted.dense, {"args_0": samples.numerical, "args_1": embeddings})


def samples_of(size: int, rows: tuple[int, ...] = ROWS, seed: int = 0) -> Samples:
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, rows, (size, 26)).astype(np.int32)
    numbers = rng.standard_normal((size, 13)).astype(np.float32)
    return Samples(ids, numbers, rng.random(size) < 0.3)


# The contract


@pytest.mark.parametrize(("model", "title"), [("dlrm", "DLRM"), ("dcnv2", "DCNv2")])
def test_both_packages_are_found_and_say_what_they_are(model: str, title: str) -> None:
    found = models.get(model)
    assert title == found.TITLE
    assert found.FRAMEWORK == "tensorflow"
    assert found.VARIANTS == ("T15-10k", "T15", "T3", "T0", "own", "own-T3", "own-T0")
    assert found.METRICS == {"auc": "higher"}
    assert found.GENERATED == ("generated", "generated-small")
    assert found.inputs(config_of(model)) == (
        Tensor("categorical_features", "int32", (26,)),
        Tensor("numerical_features", "float32", (13,)),
    )
    assert found.outputs(config_of(model)) == (Tensor("DENSE_OUTPUT", "float32", (1,)),)


@pytest.mark.parametrize("model", BOTH)
def test_the_parts_meet_in_the_embeddings(model: str) -> None:
    found, config = models.ensemble(model), config_of(model)
    assert found is not None
    lookup_part, graph = found.parts(config)
    assert lookup_part == Part(
        f"{model}_sparse",
        {"categorical_features": Tensor("input_1", "int32", (26,))},
        {"LOOKUP_VECTORS": Tensor("output_1", "float32", (3328,))},
    )
    assert graph == Part(
        f"{model}_dense",
        {
            "numerical_features": Tensor("args_0", "float32", (13,)),
            "LOOKUP_VECTORS": Tensor("args_1", "float32", (3328,)),
        },
        {"DENSE_OUTPUT": Tensor("output_1", "float32", (1,))},
    )
    assert (found.FOLDER, found.RUNTIME) == ("sparse", ("numpy",))


def test_the_lookups_file_imports_nothing_of_the_package() -> None:
    path = getfile(models.ensemble("dlrm").load)  # type: ignore[union-attr]
    assert path == lookup.__file__
    code = (
        f"import sys; sys.path.insert(0, {str(Path(path).parent)!r}); import lookup; "
        "print({'helpers', 'numpy', 'tensorflow'} & set(sys.modules))"
    )
    command = [sys.executable, "-I", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "{'numpy'}\n"


def test_importing_both_loads_no_framework() -> None:
    names = "dlrm, helpers.models.dcnv2, helpers.models._criteo.ensemble"
    code = (
        f"import sys, helpers.models.{names}; "
        "print({'torch', 'tensorflow', 'keras', 'pandas', 'polars'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


# The networks


@pytest.mark.parametrize(("model", "count"), [("dlrm", 2_371_457), ("dcnv2", 16_046_081)])
def test_it_has_the_derived_number_of_parameters(model: str, count: int) -> None:
    assert network(model).count_params() == count


def published(model: str) -> dict[str, list[int]]:
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


def saved(path: Path) -> dict[str, Floats]:
    """Read the weights of a checkpoint with TensorFlow's own reader."""
    import tensorflow as tf

    reader = tf.train.load_checkpoint(str(path / "dense/dense"))
    names = [name for name in reader.get_variable_to_shape_map() if name.endswith(SHORT)]
    return {name.removesuffix(SHORT): reader.get_tensor(name).astype(np.float64) for name in names}


def test_a_saved_weight_has_its_place_in_nvidias_model(made: tuple[str, Path]) -> None:
    model, path = made
    weights = saved(path)
    weights.pop("save_counter", None)
    assert {name: list(array.shape) for name, array in weights.items()} == published(model)


def test_objects_with_lists_of_layers_as_nvidias_read_what_is_saved(made: tuple[str, Path]) -> None:
    import tensorflow as tf

    path = made[1]
    stack = [tf.train.Checkpoint(bias=tf.Variable(tf.zeros(width))) for width in (512, 256, 128)]
    found = tf.train.Checkpoint(bottom_mlp_layers=stack).read(str(path / "dense/dense"))
    found.assert_existing_objects_matched()
    for place, layer in enumerate(stack):
        np.testing.assert_array_equal(layer.bias, saved(path)[f"bottom_mlp_layers/{place}/bias"])


def mlp(weights: dict[str, Floats], name: str, x: Floats, count: int) -> Floats:
    """ReLU after every layer but the last of the top."""
    for place in range(count):
        x = x @ weights[f"{name}/{place}/kernel"] + weights[f"{name}/{place}/bias"]
        x = x if place == 4 else np.maximum(x, 0)
    return x


def reference(model: str, weights: dict[str, Floats], batch: dict[str, Any]) -> Floats:
    """Section 2.1 of arXiv 1906.00091 and equation 2 of arXiv 2008.13535, sample by sample."""
    found = []
    for numbers, embeddings in zip(batch["args_0"], batch["args_1"], strict=True):
        first = np.concatenate([numbers.astype(np.float64), np.zeros(3)])
        bottom = mlp(weights, "bottom_mlp_layers", first, 3)
        vectors = [
            bottom,
            *(embeddings.astype(np.float64)[128 * n : 128 * n + 128] for n in range(26)),
        ]
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


def test_the_network_equals_the_papers_formulas(made: tuple[str, Path]) -> None:
    model, path = made
    built, weights, batch = package(model).build(config_of(model), path), saved(path), batch_of(9)
    expected = reference(model, weights, batch)
    found = run(built, batch)
    assert found.dtype == np.float32
    assert found.shape == (9, 1)
    assert difference("", found, expected, (1e-5, 1e-5)).ok
    assert expected.min() < 0 < expected.max() or expected.std() > 0.01


def test_the_dot_products_lie_row_by_row_below_the_diagonal() -> None:
    """Every vector is a number times one unit vector, so that a product is that of two numbers."""
    import keras

    made = network("dlrm")
    numbers = np.array([2.0, *range(3, 29)], dtype=np.float32)  # of the bottom, then 26 embeddings
    unit = np.eye(128, dtype=np.float32)[5]
    for place in range(3):
        made.get_layer(f"bottom_mlp_layers.{place}").kernel.assign(
            np.zeros(made.get_layer(f"bottom_mlp_layers.{place}").kernel.shape)
        )
    made.get_layer("bottom_mlp_layers.2").bias.assign(numbers[0] * unit)
    inner = keras.Model(made.inputs, made.get_layer("top_mlp.0").input)
    batch = {
        "args_0": np.ones((1, 13), np.float32),
        "args_1": np.outer(numbers[1:], unit).reshape(1, -1),
    }
    (found,) = np.asarray(inner(batch))
    np.testing.assert_array_equal(found[:128], 2 * unit)
    assert found[128:134].tolist() == [3 * 2, 4 * 2, 4 * 3, 5 * 2, 5 * 3, 5 * 4]
    assert found[454:].tolist() == [28.0 * k for k in range(3, 28)] + [0]
    assert found[453] == 28 * 2
    assert found.shape == (480,)


@pytest.mark.parametrize("model", BOTH)
def test_initial_weights_are_drawn_as_nvidia_draws_them(model: str) -> None:
    made = network(model)
    names = {layer.name: layer for layer in made.layers if layer.weights}
    kernels = [np.asarray(layer.kernel) for layer in names.values()]
    for (name, layer), kernel in zip(names.items(), kernels, strict=True):
        cross = name.startswith("interact_op")
        wanted = 0.05 * 0.8796 if cross else np.sqrt(2 / sum(kernel.shape))
        assert kernel.std() == pytest.approx(wanted, rel=0.15), name
        if layer.use_bias:
            bias = np.asarray(layer.bias)
            spread = np.sqrt((bias**2).mean()) * np.sqrt(len(bias))
            assert spread == 0 if cross else len(bias) == 1 or spread == pytest.approx(1, rel=0.2)
    again, other = network(model), network(model, seed=1)
    for mine, same, different in zip(made.weights, again.weights, other.weights, strict=True):
        np.testing.assert_array_equal(mine, same)
        assert "bias" in mine.name or (np.asarray(mine) != np.asarray(different)).mean() > 0.99
    shapes = [kernel.shape for kernel in kernels]
    alike = [k for k in kernels if shapes.count(k.shape) > 1]
    assert all(
        (a != b).mean() > 0.99 for n, a in enumerate(alike) for b in alike[:n] if a.shape == b.shape
    )


# The lookup


def folder_of(path: Path, rows: list[int], width: int = 8) -> NDArray[np.float32]:
    table = np.random.default_rng(3).standard_normal((sum(rows), width)).astype(np.float32)
    np.save(path / "tables.npy", table)
    (path / "tables.json").write_text(json.dumps({"cardinalities": rows}))
    return table


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.int8])
def test_a_lookup_is_plain_indexing(dtype: Any, tmp_path: Path) -> None:
    rows = [3, 1, 7, 40]
    table = folder_of(tmp_path, rows)
    parts = np.split(table, np.cumsum(rows)[:-1])
    session, rng = lookup.load(tmp_path, 1, "cpu"), np.random.default_rng(4)
    for size in (1, 5, 300):
        ids = rng.integers(0, rows, (size, 4)).astype(dtype)
        found = session.run({"input_1": ids})
        expected = [np.concatenate([p[n] for p, n in zip(parts, row, strict=True)]) for row in ids]
        assert list(found) == ["output_1"]
        assert found["output_1"].dtype == np.float32
        np.testing.assert_array_equal(found["output_1"], expected)
    assert session.run({"input_1": np.empty((0, 4), dtype)})["output_1"].shape == (0, 32)


def test_rows_beyond_what_the_ids_type_counts_are_found(tmp_path: Path) -> None:
    """In a file that is a hole of 16 GB but for its last row."""
    rows = [2_000_000_000, 2_000_000_000]
    with (tmp_path / "tables.npy").open("wb") as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": (sum(rows), 1)}
        np.lib.format.write_array_header_1_0(file, header)
        file.seek(4 * (sum(rows) - 1), os.SEEK_CUR)
        file.write(np.float32(7).tobytes())
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
def test_ids_that_have_no_row_are_errors(ids: Any, text: str, tmp_path: Path) -> None:
    folder_of(tmp_path, [3, 1, 7, 40])
    with pytest.raises(ValueError, match=f"{re.escape(text)}$"):
        lookup.load(tmp_path, 1, "cpu").run({"input_1": np.array(ids)})


def test_a_lookups_folder_that_does_not_agree_is_an_error(tmp_path: Path) -> None:
    folder_of(tmp_path, [3, 1, 7, 40])
    (tmp_path / "tables.json").write_text(json.dumps({"cardinalities": [3, 1, 7, 39]}))
    with pytest.raises(ValueError, match=r"tables.npy is float32 \[51, 8\], but .* 50 rows of fl"):
        lookup.load(tmp_path, 1, "cpu")
    np.save(tmp_path / "tables.npy", np.zeros((50, 8)))
    with pytest.raises(ValueError, match=r"tables.npy is float64 \[50, 8\], but "):
        lookup.load(tmp_path, 1, "cpu")
    folder_of(tmp_path, [3, 1, 7, 40])
    os.truncate(tmp_path / "tables.npy", 1000)
    with pytest.raises(ValueError, match="greater than file size"):
        lookup.load(tmp_path, 1, "cpu")


# The ensemble


def served(model: str, path: Path, folder: Path) -> Callable[[Samples], NDArray[np.float32]]:
    """Chain what is served: the lookup that was written, and the network that is exported."""
    found = models.ensemble(model)
    assert found is not None
    found.write(config_of(model), path, folder)
    session, dense = found.load(folder, 1, "cpu"), package(model).build(config_of(model), path)

    def chain(samples: Samples) -> NDArray[np.float32]:
        embeddings = session.run({"input_1": samples.categorical})["output_1"]
        return run(dense, {"args_0": samples.numerical, "args_1": embeddings})

    return chain


def test_the_tables_lie_in_one_file_as_in_the_checkpoint(
    made: tuple[str, Path], tmp_path: Path
) -> None:
    model, path = made
    found = models.ensemble(model)
    assert found is not None
    found.write(config_of(model), path, tmp_path / found.FOLDER)
    tables = [np.load(path / f"sparse/feature_{place}.npy") for place in range(26)]
    np.testing.assert_array_equal(np.load(tmp_path / "sparse/tables.npy"), np.concatenate(tables))
    assert sorted(file.name for file in (tmp_path / "sparse").iterdir()) == [
        "tables.json",
        "tables.npy",
    ]
    layout = json.loads((tmp_path / "sparse/tables.json").read_text())
    assert layout == {"cardinalities": list(ROWS), "dtype": "float32"}


def tables_in(precision: str, made: tuple[str, Path], folder: Path) -> Any:
    """Write a checkpoint's tables in a precision; give the lookup of them."""
    model, path = made
    config, found = config_of(model), models.ensemble(model)
    config.table_precision = precision
    assert found is not None
    found.write(config, path, folder)
    return found.load(folder, 1, "cpu")


@pytest.mark.parametrize(("precision", "size"), [("fp16", 2), ("int8", 1)])
def test_a_looked_up_number_is_off_by_half_a_step_of_its_precision(
    precision: str,
    size: int,
    made: tuple[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ensemble, "CHUNK", 2)  # rows that are written at a time: many pieces
    monkeypatch.setattr(lookup, "PIECE", 3)  # and samples that are looked up at a time
    tables = [np.load(made[1] / f"sparse/feature_{place}.npy") for place in range(26)]
    ids = np.stack([np.arange(max(ROWS)) % count for count in ROWS], axis=1).astype(np.int32)
    exact = np.stack([table[ids[:, place]] for place, table in enumerate(tables)], axis=1)

    found = tables_in(precision, made, tmp_path / "s").run({"input_1": ids})["output_1"]

    steps = np.abs(exact).max(axis=2, keepdims=True) / 127
    half = steps / 2 if precision == "int8" else np.abs(exact) * 2.0**-11 + 2.0**-25
    apart = np.abs(found.reshape(exact.shape) - exact)
    assert found.dtype == np.float32
    assert (apart <= half * 1.001).all()
    assert apart.max() > half.max() / 2
    file = tmp_path / "s/tables.npy"
    assert file.stat().st_size == pytest.approx(sum(ROWS) * 128 * size, abs=200)
    dtype = json.loads((tmp_path / "s/tables.json").read_text())["dtype"]
    assert dtype == {"fp16": "float16", "int8": "int8"}[precision]


@pytest.mark.parametrize("value", [0, 2e-43])  # a number so small has no scale of full precision
def test_a_row_of_zeros_or_nearly_is_zeros_in_int8(
    value: float, made: tuple[str, Path], tmp_path: Path
) -> None:
    model, _ = made
    copied = write_checkpoint(model, tmp_path / "c")
    table = np.load(copied / "sparse/feature_3.npy")
    table[0] = value
    np.save(copied / "sparse/feature_3.npy", table)

    found = (
        tables_in("int8", (model, copied), tmp_path / "s")
        .run({"input_1": np.zeros((1, 26), np.int32)})["output_1"]
        .reshape(26, 128)
    )

    assert not found[3].any()
    assert found[2].any()


def test_scales_that_do_not_fit_the_rows_are_an_error(
    made: tuple[str, Path], tmp_path: Path
) -> None:
    tables_in("int8", made, tmp_path / "s")
    np.save(tmp_path / "s/scales.npy", np.ones(5, np.float32))

    with pytest.raises(
        ValueError, match=rf"scales.npy is float32 \[5\], but there are {sum(ROWS)}"
    ):
        lookup.load(tmp_path / "s", 1, "cpu")


def bytes_written() -> int:
    """Count what this process has written to files so far."""
    return int(Path("/proc/self/io").read_text().split("wchar: ")[1].split()[0])


def test_the_framework_session_reads_the_checkpoints_own_tables(
    made: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of T3 have 91 GB, and a copy of them would be for one stage only."""
    monkeypatch.setenv(OUTPUTS_VARIABLE, str(tmp_path / "outputs"))
    model, rows = made[0], (2000,) * 26
    path, samples = write_checkpoint(model, tmp_path / "c", rows), samples_of(50, rows)
    before = bytes_written()
    session = framework_session(config_of(model), path)
    found = session.run(
        {"categorical_features": samples.categorical, "numerical_features": samples.numerical}
    )
    assert bytes_written() - before < 1e6  # the tables have 27 MB
    assert sorted(each.name for each in tmp_path.iterdir()) == ["c"]
    expected = served(model, path, tmp_path / "s")(samples)
    np.testing.assert_array_equal(found["DENSE_OUTPUT"], expected)
    samples.categorical[3, 7] = 2000
    text = "the id 2000 for feature 7, whose table has the rows 0 to 1999"
    with pytest.raises(ValueError, match=text):
        session.run(
            {"categorical_features": samples.categorical, "numerical_features": samples.numerical}
        )


@pytest.mark.parametrize("model", BOTH)
def test_the_chain_equals_the_network_that_was_fitted(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = dataset_of(tmp_path / "d", 400)
    part, recipe = SplitBinary(dataset, part="train"), fit.Recipe(3, 64, 1e-3, 0.1)
    fitted = fit.train(model, part, recipe, tmp_path / "c")
    assert re.fullmatch(r"step 3/3: loss \d\.\d{3}, \d+ s\n", capsys.readouterr().out)
    checkpoint.save(model, fitted.dense, ROWS, tmp_path / "c")
    chain, samples = served(model, tmp_path / "c", tmp_path / "s"), samples_of(50)
    expected = logits_of(fitted, samples)
    np.testing.assert_array_equal(chain(samples), expected)
    assert expected.std() > 0.01


def bounds_of(model: str) -> list[tuple[float, float]]:
    return list(package(model).TOLERANCES.values())


def test_a_mistaken_order_is_noticed(made: tuple[str, Path], tmp_path: Path) -> None:
    """Two tables of the same size, two embeddings or two numbers in each other's place."""
    model, path = made
    samples = samples_of(64)
    expected = served(model, path, tmp_path / "s")(samples)
    harmed = write_checkpoint(model, tmp_path / "harmed")
    one, other = harmed / "sparse/feature_1.npy", harmed / "sparse/feature_6.npy"
    assert np.load(one).shape == np.load(other).shape
    one.rename(harmed / "x")
    other.rename(one)
    (harmed / "x").rename(other)
    swapped = samples.numerical[:, [0, 2, 1, *range(3, 13)]]
    dense = package(model).build(config_of(model), path)
    session = lookup.load(tmp_path / "s", 1, "cpu")
    embeddings = session.run({"input_1": samples.categorical})["output_1"].reshape(64, 26, 128)
    turned = embeddings[:, [1, 0, *range(2, 26)]].reshape(64, 3328)
    by_table = embeddings.transpose(1, 0, 2).reshape(64, 3328)  # as a table-major store gives it
    for found in (
        served(model, harmed, tmp_path / "t")(samples),
        run(dense, {"args_0": swapped, "args_1": embeddings.reshape(64, 3328)}),
        run(dense, {"args_0": samples.numerical, "args_1": turned}),
        run(dense, {"args_0": samples.numerical, "args_1": by_table}),
    ):
        for tolerances in bounds_of(model):
            assert not difference("DENSE_OUTPUT", found, expected, tolerances).ok


def test_the_bounds_reject_what_is_no_answer(made: tuple[str, Path]) -> None:
    model, path = made
    expected = run(package(model).build(config_of(model), path), batch_of(64))
    rng, swapped = np.random.default_rng(5), expected.copy()
    swapped[[0, 1]] = swapped[[1, 0]]
    noise = rng.normal(expected.mean(), expected.std(), expected.shape).astype(np.float32)
    for precision, tolerances in package(model).TOLERANCES.items():
        assert difference("DENSE_OUTPUT", expected, expected, tolerances).ok
        for wrong in (noise, np.zeros_like(expected), expected[:, 0], -expected):
            assert not difference("DENSE_OUTPUT", wrong, expected, tolerances).ok
        # int8 does not tell two similar samples apart
        assert (
            precision == "int8" or not difference("DENSE_OUTPUT", swapped, expected, tolerances).ok
        )


WRITE = """
import resource, sys
from pathlib import Path
from types import SimpleNamespace
from helpers.models._criteo import ensemble
config = SimpleNamespace(model="dlrm", variant="own", table_precision=sys.argv[3])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
ensemble.write(config, Path(sys.argv[1]), Path(sys.argv[2]))
session = ensemble.load(Path(sys.argv[2]), 1, "cpu")
import numpy as np
last = np.array([ROWS], dtype=np.int32) - 1
print(session.run({"input_1": last})["output_1"].reshape(26, 128)[:, 0].tolist())
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


@pytest.mark.parametrize(("precision", "size"), [("fp32", 4), ("int8", 1)])
def test_tables_of_a_gigabyte_pass_through_a_few_megabytes(
    precision: str, size: int, tmp_path: Path
) -> None:
    """Of memory, on their way from the checkpoint to the lookup and in the lookup."""
    rows = tuple(600_000 if place in (0, 7, 25) else 30_000 for place in range(26))
    path = sparse_checkpoint("dlrm", tmp_path / "c", rows)
    for place, count in enumerate(rows):
        table = np.load(path / f"sparse/feature_{place}.npy", mmap_mode="r+")
        table[count - 1] = place + 1
        table.flush()
    code = WRITE.replace("ROWS", str(list(rows)))
    command = [sys.executable, "-c", code, str(path), str(tmp_path / "s"), precision]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    values, megabytes = done.stdout.splitlines()
    assert json.loads(values) == pytest.approx([place + 1 for place in range(26)], rel=1e-6)
    assert (tmp_path / "s/tables.npy").stat().st_size > 0.3e9 * size
    assert float(megabytes) < 80


# The checkpoint


def sparse_checkpoint(model: str, path: Path, rows: tuple[int, ...]) -> Path:
    """A checkpoint whose tables are zeros that take no room on the disk."""
    checkpoint.save(model, network(model), rows, path)
    for place, count in enumerate(rows):
        with (path / f"sparse/feature_{place}.npy").open("wb") as file:
            header = {"descr": "<f4", "fortran_order": False, "shape": (count, 128)}
            np.lib.format.write_array_header_1_0(file, header)
            file.truncate(file.tell() + count * 512)
    return path


@pytest.mark.parametrize("variant", ["T15-10k", "T15", "T3"])
def test_tables_of_any_size_are_checked_by_their_headers(variant: str, tmp_path: Path) -> None:
    path = sparse_checkpoint("dlrm", tmp_path / "c", TABLES[variant])
    found = checkpoint.tables("dlrm", variant, path)
    assert [table.shape for table in found] == [(count, 128) for count in TABLES[variant]]


def refusal(model: str, path: Path, variant: str = "own") -> str:
    with pytest.raises(CheckpointError) as caught:
        package(model).build(config_of(model, variant), path)
    text = str(caught.value)
    assert "\n" not in text
    assert str(path) in text
    return text.replace(f"{path}/", "").replace(str(path), "it")


def test_nvidias_training_code_can_load_the_saved_tables(made: tuple[str, Path]) -> None:
    """Its SparseModel has these fields. With `concat_embedding` all tables of a single GPU are in
    one DualEmbeddingGroup, whose weights it cannot set from 26 files, as it does with the layer
    that it has otherwise.
    """
    assert json.loads((made[1] / "sparse/config.json").read_text()) == {
        "use_mde_embeddings": False,
        "embedding_dim": [128] * 26,
        "column_slice_threshold": None,
        "embedding_zeros_initializer": True,
        "embedding_trainable": True,
        "categorical_cardinalities": list(ROWS),
        "concat_embedding": False,
        "cpu_offloading_threshold_gb": 75,
    }


def test_a_checkpoint_comes_back_as_it_was_saved(made: tuple[str, Path]) -> None:
    model, path = made
    built, fresh = package(model).build(config_of(model), path), network(model, seed=1)
    for mine, other in zip(built.weights, fresh.weights, strict=True):
        np.testing.assert_array_equal(mine, other)
    for variant in ("own", "own-T3", "own-T0"):
        tables = checkpoint.tables(model, variant, path)
        assert [len(table) for table in tables] == list(ROWS)


def change(path: Path, **fields: Any) -> None:
    content = json.loads(path.read_text())
    content.update(fields)
    path.write_text(json.dumps({name: v for name, v in content.items() if v != "absent"}))


@pytest.mark.parametrize(
    ("file", "field", "value", "text"),
    [
        ("dense", "interaction", "sum", ' is "sum" and should be "dot_tensorflow"'),
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
def test_a_configuration_of_another_network_is_an_error(
    own: Path, file: str, field: str, value: Any, text: str
) -> None:
    change(own / file / "config.json", **{field: value})
    found = refusal("dlrm", own)
    assert found.startswith(f"{file}/config.json")
    assert f": {field}{text}" in found


@pytest.mark.parametrize(
    ("field", "value"), [("num_cross_layers", 2), ("cross_layer_projection_dim", 256)]
)
def test_cross_layers_of_another_kind_are_an_error(field: str, value: int, tmp_path: Path) -> None:
    path = sparse_checkpoint("dcnv2", tmp_path / "c", ROWS)
    change(path / "dense/config.json", **{field: value})
    assert f": {field} is {value} and should be " in refusal("dcnv2", path)


def test_the_other_models_checkpoint_is_an_error(made: tuple[str, Path]) -> None:
    model, path = made
    (other,) = set(BOTH) - {model}
    assert refusal(other, path).startswith(f"dense/config.json is not {other}'s: interaction is ")


def test_nvidias_own_kernel_is_taken_for_the_same_interaction(own: Path) -> None:
    batch = batch_of(3)
    expected = run(dlrm.build(config_of("dlrm"), own), batch)
    change(own / "dense/config.json", interaction="dot_custom_cuda", batch_size=64)
    np.testing.assert_array_equal(run(dlrm.build(config_of("dlrm"), own), batch), expected)


def test_the_tables_are_the_variants(made: tuple[str, Path]) -> None:
    model, path = made
    assert refusal(model, path, "T15") == (
        f"dense/config.json is not {model}'s: categorical_cardinalities[0] is 3 and should be "
        "7912889"
    )


def rewrite(path: Path, harm: Callable[[dict[str, Any]], None]) -> None:
    """Save other variables under the same prefix."""
    import tensorflow as tf

    prefix = str(path / "dense/dense")
    weights = {n: a.astype(np.float32) for n, a in saved(path).items()}
    harm(weights)
    names = [name + SHORT for name in weights]
    values = [tf.constant(array) for array in weights.values()]
    tf.raw_ops.SaveV2(
        prefix=prefix, tensor_names=names, shape_and_slices=[""] * len(names), tensors=values
    )


@pytest.mark.parametrize(
    ("harm", "text"),
    [
        (lambda w: w.pop("top_mlp/4/bias"), "missing top_mlp/4/bias float32 [1]"),
        (
            lambda w: w.update({"top_mlp/5/bias": np.zeros(2, np.float32)}),
            "surplus top_mlp/5/bias float32 [2]",
        ),
        (
            lambda w: w.update({"top_mlp/4/kernel": np.zeros((1, 256), np.float32)}),
            "top_mlp/4/kernel is float32 [1, 256] and should be float32 [256, 1]",
        ),
        (
            lambda w: w.update({"top_mlp/4/bias": np.zeros(1, np.float16)}),
            "top_mlp/4/bias is float16 [1] and should be float32 [1]",
        ),
    ],
)
def test_weights_that_do_not_fit_are_named(own: Path, harm: Any, text: str) -> None:
    rewrite(own, harm)
    assert refusal("dlrm", own) == f"dense/dense does not fit dlrm: {text}"


def test_many_faults_are_counted(tmp_path: Path) -> None:
    path = sparse_checkpoint("dcnv2", tmp_path / "c", ROWS)
    lost = [f"interact_op/cross_layers/{n}/_dense_{part}" for n in range(3) for part in "uv"]
    rewrite(path, lambda weights: [weights.pop(f"{name}/kernel") for name in lost])
    found = refusal("dcnv2", path)
    first = (
        f"dense/dense does not fit dcnv2: missing {lost[0]}/kernel float32 [3456, 512]; missing "
    )
    assert found.startswith(first)
    assert found.count("missing") == 5
    assert found.endswith("; and 1 more")


def test_files_that_are_missing_surplus_or_damaged_are_named(own: Path) -> None:
    path = own

    def harmed(name: str, harm: Callable[[Path], object]) -> str:
        content = (path / name).read_bytes() if (path / name).is_file() else None
        harm(path / name)
        try:
            return refusal("dlrm", path)
        finally:
            (path / name).unlink(missing_ok=True)
            if content is not None:
                (path / name).write_bytes(content)

    def bytes_of(content: bytes) -> Callable[[Path], object]:
        return lambda file: file.write_bytes(content)

    def array_of(array: Any, **options: Any) -> Callable[[Path], object]:
        return lambda file: np.save(file, array, **options)

    table = "sparse/feature_3.npy"
    good = np.load(path / table)
    assert good.shape == (6, 128)
    should, zipped = "by rows and should be <f4 [6, 128] by rows", path.with_name("z.npz")
    np.savez(zipped, good)
    for name, harm, text in (
        (table, Path.unlink, "sparse does not fit dlrm: missing feature_3.npy <f4 [6, 128] "),
        (
            "sparse/feature_26.npy",
            array_of(good),
            "sparse does not fit dlrm: surplus feature_26.npy <f4 [6, 128] ",
        ),
        (
            table,
            array_of(good[:5]),
            f"sparse does not fit dlrm: feature_3.npy is <f4 [5, 128] {should}",
        ),
        (
            table,
            array_of(good[:, :64]),
            f"sparse does not fit dlrm: feature_3.npy is <f4 [6, 64] {should}",
        ),
        (
            table,
            array_of(good.astype(np.float64)),
            f"sparse does not fit dlrm: feature_3.npy is <f8 [6, 128] {should}",
        ),
        (
            table,
            array_of(good.astype(np.float16)),
            f"sparse does not fit dlrm: feature_3.npy is <f2 [6, 128] {should}",
        ),
        (
            table,
            array_of(good.astype(">f4")),
            f"sparse does not fit dlrm: feature_3.npy is >f4 [6, 128] {should}",
        ),
        (
            table,
            array_of(np.asfortranarray(good)),
            "sparse does not fit dlrm: feature_3.npy is <f4 [6, 128] by columns and should ",
        ),
        (
            table,
            bytes_of((path / table).read_bytes() + b"abc"),
            "sparse does not fit dlrm: feature_3.npy is <f4 [6, 128] by rows, and 3 bytes after ",
        ),
        (table, bytes_of((path / table).read_bytes()[:-1]), f"{table} is not a whole .npy file of"),
        (table, bytes_of(b""), f"{table} is not a whole .npy file of numbers: "),
        (table, bytes_of(b"\x93NUMPY"), f"{table} is not a whole .npy file of numbers: "),
        (table, bytes_of(os.urandom(999)), f"{table} is not a whole .npy file of numbers: "),
        (table, bytes_of(zipped.read_bytes()), f"{table} is not a whole .npy file of num"),
        ("dense/dense.index", Path.unlink, "dense/dense.index and its data cannot be read: "),
        ("dense/dense.index", bytes_of(b""), "dense/dense.index and its data cannot be read: "),
        (
            "dense/dense.data-00000-of-00001",
            Path.unlink,
            "dense/dense.index and its data cannot be read at bottom_mlp_layers/0/kernel: ",
        ),
        (
            "dense/dense.data-00000-of-00001",
            bytes_of((path / "dense/dense.data-00000-of-00001").read_bytes()[:-50_000]),
            "dense/dense.index and its data cannot be read at ",
        ),
        (
            "dense/weights.h5",
            bytes_of(b"x"),
            "dense/weights.h5 is not part of a checkpoint of dlrm",
        ),
        ("dense/config.json", Path.unlink, "dense/config.json cannot be read (No such file"),
        ("sparse/config.json", bytes_of(b"{"), "sparse/config.json: the whole: invalid JSON: EOF "),
        (
            "dense/config.json",
            bytes_of(b"[1]"),
            "dense/config.json: the whole: input should be an object",
        ),
        (
            "dense/config.json",
            bytes_of(b"\xff\xfe"),
            "dense/config.json: the whole: invalid JSON: ",
        ),
    ):
        assert harmed(name, harm).startswith(text), (name, text)
    dlrm.build(config_of("dlrm"), path)


class Command:
    """An object whose unpickling runs a shell command."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (self.text,)


def test_a_pickled_table_is_refused_and_leaves_no_trace(own: Path, tmp_path: Path) -> None:
    command, file = Command(f"touch {tmp_path / 'trace'}"), own / "sparse/feature_3.npy"
    text = "sparse/feature_3.npy is not a whole .npy file of numbers"
    np.save(file, np.array([command], dtype=object), allow_pickle=True)
    assert refusal("dlrm", own).startswith(text)
    file.write_bytes(pickle.dumps(command))
    assert refusal("dlrm", own).startswith(text)
    assert not (tmp_path / "trace").exists()


def test_a_file_or_an_empty_folder_is_no_checkpoint(tmp_path: Path) -> None:
    text = "dense/config.json cannot be read (No"
    assert refusal("dlrm", tmp_path).startswith(text)
    (tmp_path / "file").write_bytes(b"x")
    assert refusal("dlrm", tmp_path / "file").startswith(text)


# The fit


def dataset_of(folder: Path, count: int) -> Path:
    """A split-binary folder with small tables, whose clicks depend on one id and one number."""
    for part, size, seed in (("train", count, 0), ("test", count, 1)):
        samples = samples_of(size, seed=seed)
        logits = 4 * (samples.categorical[:, 4] > 2) - 2 + 2 * samples.numerical[:, 0]
        clicks = np.random.default_rng(seed).random(size) < 1 / (1 + np.exp(-logits))
        folder.mkdir(exist_ok=True)
        write_part(folder / part, ROWS, [samples._replace(clicks=clicks)])
    spec.write(folder, ROWS, {})
    return folder


def test_rows_descend_by_row_wise_adagrad(tmp_path: Path) -> None:
    """Row by row in float64, where the rows that a batch names twice count together."""
    rows, rng = (3, 50), np.random.default_rng(6)
    tables = fit.Tables(rows, tmp_path / "t")
    expected = [np.load(tmp_path / f"t/feature_{n}.npy").astype(np.float64) for n in range(2)]
    sums = [np.zeros(count) for count in rows]
    for rate in (0.3, 0.2):
        ids = rng.integers(0, rows, (20, 2)).astype(np.int32)
        embedding_reads = np.concatenate([expected[n][ids[:, n]] for n in range(2)], axis=1)
        np.testing.assert_allclose(tables.rows_of(ids), embedding_reads, rtol=1e-5, atol=1e-6)
        gradient = rng.standard_normal((20, 256)).astype(np.float32)
        tables.descend(ids, gradient, rate)
        for n, count in enumerate(rows):
            for row in range(count):
                slope = (
                    gradient[ids[:, n] == row, 128 * n : 128 * n + 128].astype(float).sum(axis=0)
                )
                sums[n][row] += (slope**2).mean()
                if (ids[:, n] == row).any():
                    expected[n][row] -= rate * slope / np.sqrt(sums[n][row])
    for n in range(2):
        found = np.load(tmp_path / f"t/feature_{n}.npy")
        np.testing.assert_allclose(found, expected[n], rtol=1e-4, atol=1e-5)


def test_tables_are_drawn_evenly_and_alike_every_time(tmp_path: Path) -> None:
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


def test_a_step_leaves_rows_that_no_sample_names_as_they_were(tmp_path: Path) -> None:
    fitted = fit.Recommender("dlrm", ROWS, tmp_path / "c")
    before = [np.load(tmp_path / f"c/sparse/feature_{n}.npy") for n in range(26)]
    samples = samples_of(16)
    samples = samples._replace(categorical=np.minimum(samples.categorical, 1))
    fitted.take(samples, 1e-3, 0.1)
    for n in range(26):
        after = np.load(tmp_path / f"c/sparse/feature_{n}.npy")
        np.testing.assert_array_equal(after[2:], before[n][2:])
        assert (after[:2] != before[n][:2]).any()


def test_the_gradient_is_that_of_the_mean_cross_entropy(tmp_path: Path) -> None:
    """The loss is the mean of -log of what the logit says of the click; the tables go down it."""
    fitted = fit.Recommender("dlrm", ROWS, tmp_path / "c")
    samples = samples_of(200)
    logits = logits_of(fitted, samples)[:, 0].astype(np.float64)
    p = 1 / (1 + np.exp(-logits))
    expected = -np.log(np.where(samples.clicks, p, 1 - p)).mean()
    losses = [fitted.take(samples, 1e-3, 0.05) for _ in range(8)]
    assert losses[0] == pytest.approx(expected, rel=1e-4)
    assert losses[-1] < losses[0] - 0.01
    before = [weight.numpy() for weight in fitted.dense.weights]
    losses = [fitted.take(samples, 0.0, 0.05) for _ in range(8)]  # the tables alone
    assert losses[-1] < losses[0] - 0.001
    for weight, old in zip(fitted.dense.weights, before, strict=True):
        np.testing.assert_array_equal(weight, old)
    fitted.take(samples, 1e-3, 0.0)
    moved = [
        np.abs(np.asarray(w) - old).max()
        for w, old in zip(fitted.dense.weights, before, strict=True)
    ]
    assert 0 < min(moved) <= max(moved) < 2e-3


def test_no_recipe_is_an_error(tmp_path: Path) -> None:
    config = config_of("dlrm", dataset="generated-huge")
    with pytest.raises(DataError, match=r"^No checkpoint can be fitted to 'generated-huge'. Use"):
        dlrm.prepare_checkpoint(config, tmp_path, tmp_path / "c")


@pytest.mark.thorough
@pytest.mark.parametrize("model", BOTH)
def test_the_small_sets_clicks_are_learnt_and_survive_every_format(
    model: str, shared: Path, tmp_path: Path
) -> None:
    """By the network that a run of all stages fitted."""
    config, found = config_of(model, "T15-10k"), package(model)
    _, generated, fitted = fitted_by_run(model, shared, tmp_path / "run")
    dataset = found.open_dataset(config, generated)
    parts = models.ensemble(model)
    assert parts is not None
    parts.write(config, fitted, tmp_path / "sparse")
    session = parts.load(tmp_path / "sparse", 1, "cpu")
    built = found.build(config, fitted)
    (batch,) = dataset.batches(len(dataset))
    embeddings = session.run({"input_1": batch["categorical_features"]})["output_1"]
    inputs = {"args_0": batch["numerical_features"], "args_1": embeddings}
    expected = run(built, inputs)
    clicks = SplitBinary(generated, part="test").clicks()
    auc = roc_auc_score(clicks, expected[:, 0])
    assert dataset.score({"DENSE_OUTPUT": expected})["auc"] == pytest.approx(auc, abs=1e-3)
    assert auc > 0.7
    few = {name: array[:64] for name, array in inputs.items()}
    source: Any = built
    for name, precision in (
        *(("tf-savedmodel", "fp32"), ("onnx", "fp32"), ("openvino", "fp32")),
        ("openvino", "bf16"),
    ):
        fmt = formats.get(name)
        path = tmp_path / precision / fmt.FILE
        path.parent.mkdir(exist_ok=True)
        fmt.make(source, path, Build(precision, few, ("output_1",)))
        source = source if isinstance(source, Path) else path
        answer = fmt.load(path, 2, "cpu").run(few)["output_1"]
        held = difference(name, answer, expected[:64], found.TOLERANCES[precision])
        assert held.ok, held
