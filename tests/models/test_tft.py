"""TFT against the paper's equations in NumPy, scikit-learn's scalers and loss, and slow windows."""

import csv
import enum
import os
import pickle
import re
import sys
from argparse import Namespace
from collections import namedtuple
from copy import deepcopy
from types import ModuleType

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from sklearn.metrics import mean_pinball_loss
from sklearn.preprocessing import LabelEncoder, MinMaxScaler, StandardScaler

from helpers.errors import CheckpointError, DataError
from helpers.formats import Build, onnx
from helpers.measure.checks import difference
from helpers.models.tft import MODEL as tft
from helpers.models.tft import display, pickles
from helpers.models.tft.data import q_risk
from helpers.models.tft.network import TemporalFusionTransformer
from helpers.models.tft.prepare import prepare
from helpers.models.tft.synthetic.fit import quantile_loss
from helpers.models.tft.variants import VARIANTS
from tests.models import builders
from tests.models.builders import Command, published, refusal, said, tensors

NAMES = ("s_cat__0", "k_cont__3", "target__6", "target__0")
KINDS = tuple(VARIANTS)


def config_of(kind, dataset="generated-small", precision="fp32"):
    return builders.config_of(dataset=dataset, variant=kind, export_precision=precision)


def fresh(kind):
    """Random weights, in the norms and biases too."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = TemporalFusionTransformer(VARIANTS[kind].cardinality, VARIANTS[kind].dropout)
        for parameter in made.parameters():
            parameter.data.add_(0.1 * torch.randn_like(parameter))
    made.eval()
    return made


@pytest.fixture(scope="module")
def network():
    return fresh("electricity")


@pytest.fixture(scope="module", params=KINDS)
def generated(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    tft.prepare_dataset(config_of(request.param), folder)
    return request.param, folder


@pytest.fixture(scope="module")
def larger(tmp_path_factory):
    """The larger set of electricity, and a checkpoint that was fitted to it by its recipe."""
    config, folder = config_of("electricity", "generated"), tmp_path_factory.mktemp("larger")
    tft.prepare_dataset(config, folder)
    path = tmp_path_factory.mktemp("fitted") / "checkpoint.pt"
    tft.prepare_checkpoint(config, folder, path)
    return opened("electricity", folder), path


def batch_of(size, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "s_cat__0": np.repeat(rng.integers(0, 369, (size, 1, 1)), 192, axis=1),
        "k_cont__3": rng.standard_normal((size, 192, 3), dtype=np.float32),
        "target__6": rng.standard_normal((size, 192, 1), dtype=np.float32),
    }


def run(network, batch):
    with torch.inference_mode():
        found = network(*(torch.from_numpy(batch[name]) for name in NAMES[:3]))
        return np.asarray(found.float().numpy())


def everything(network, dataset, limit=None):
    return np.concatenate([run(network, batch) for batch in dataset.batches(64, limit)])


# The network


@pytest.mark.parametrize("kind", KINDS)
def test_every_tensor_has_the_name_and_shape_of_nvidias_checkpoint(kind):
    assert tensors(fresh(kind).state_dict()) == published(f"tft_{kind}")


def linear(state, name, x):
    return x @ state[f"{name}.weight"].T + state.get(f"{name}.bias", np.zeros(1))


def sigmoid(x):
    return np.asarray(1 / (1 + np.exp(-x)))


def softmax(x):
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def norm(state, name, x):
    apart = x - x.mean(axis=-1, keepdims=True)
    deviation = np.sqrt((apart**2).mean(axis=-1, keepdims=True) + 1e-3)
    return np.asarray(apart / deviation * state[f"{name}.weight"] + state[f"{name}.bias"])


def glu(state, name, x):
    """Equation 5: the gate is the second half."""
    both = linear(state, f"{name}.lin", x)
    half = both.shape[-1] // 2
    return both[..., :half] * sigmoid(both[..., half:])


def grn(state, name, a, c=None):
    """Equations 2 to 4, with a projected skip where the width changes."""
    inner = linear(state, f"{name}.lin_a", a)
    if c is not None:
        inner = inner + (c @ state[f"{name}.lin_c.weight"].T)[:, None]
    eta2 = np.where(inner > 0, inner, np.expm1(np.minimum(inner, 0)))
    eta1 = linear(state, f"{name}.lin_i", eta2)
    skip = linear(state, f"{name}.out_proj", a) if f"{name}.out_proj.weight" in state else a
    out = skip + glu(state, f"{name}.glu", eta1)
    return norm(state, f"{name}.layer_norm.ln", out) if out.shape[-1] > 1 else out


def vsn(state, name, variables, c):
    """Equations 6 to 8, over a list of variables."""
    weights = softmax(grn(state, f"{name}.joint_grn", np.concatenate(variables, axis=-1), c))
    own = [grn(state, f"{name}.var_grns.{n}", each) for n, each in enumerate(variables)]
    return sum(weights[..., n, None] * each for n, each in enumerate(own)), weights


def lstm(state, name, x, h, c):
    steps = []
    for step in range(x.shape[1]):
        gates = x[:, step] @ state[f"{name}.weight_ih_l0"].T + state[f"{name}.bias_ih_l0"]
        gates = gates + h @ state[f"{name}.weight_hh_l0"].T + state[f"{name}.bias_hh_l0"]
        i, f, g, o = np.split(gates, 4, axis=-1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        steps.append(h)
    return np.stack(steps, axis=1), h, c


def attend(state, name, x):
    """Equations 13 to 16 over all 192 hours, head by head."""
    qkv = x @ state[f"{name}.qkv_linears.weight"].T
    value, heads, matrices = qkv[..., 256:], [], []
    for head in range(4):
        query, key = (qkv[..., part + 32 * head : part + 32 * head + 32] for part in (0, 128))
        scores = query @ key.transpose(0, 2, 1) / np.sqrt(32)
        scores[:, np.triu_indices(192, 1)[0], np.triu_indices(192, 1)[1]] = -np.inf
        matrices.append(softmax(scores))
        heads.append(matrices[-1] @ value)
    mixed = np.mean(heads, axis=0) @ state[f"{name}.out_proj.weight"].T
    return mixed, np.mean(matrices, axis=0)


def reference(state, batch):
    """Figure 2 of the paper, in float64."""
    k, y = batch["k_cont__3"].astype(np.float64), batch["target__6"].astype(np.float64)
    part, embedding = "TFTpart2", "embedding.t_cont_k_embedding"
    known = [
        k[..., n, None] * state[f"{embedding}_vectors"][n] + state[f"{embedding}_bias"][n]
        for n in range(3)
    ]
    target = y[:, :168] * state["embedding.t_tgt_embedding_vectors"]
    target = target + state["embedding.t_tgt_embedding_bias"]
    static = state["embedding.s_cat_embed.0.weight"][batch["s_cat__0"][:, 0, 0]]
    own = grn(state, "static_encoder.vsn.var_grns.0", static)  # the weight of one variable is 1
    cs, ce, ch, cc = (grn(state, f"static_encoder.context_grns.{n}", own) for n in range(4))
    before = [*(each[:, :168] for each in known), target]
    past, past_weights = vsn(state, f"{part}.history_vsn", before, cs)
    after = [each[:, 168:] for each in known]
    ahead, ahead_weights = vsn(state, f"{part}.future_vsn", after, cs)
    encoded, h, c = lstm(state, f"{part}.history_encoder", past, ch, cc)
    decoded, _, _ = lstm(state, f"{part}.future_encoder", ahead, h, c)
    gated = glu(state, f"{part}.input_gate", np.concatenate([encoded, decoded], axis=1))
    skip = np.concatenate([past, ahead], axis=1)
    temporal = norm(state, f"{part}.input_gate_ln", gated + skip)  # equation 17
    enriched = grn(state, f"{part}.enrichment_grn", temporal, ce)  # 18
    mixed, matrix = attend(state, f"{part}.attention", enriched)  # 19
    x = norm(state, f"{part}.attention_ln", glu(state, f"{part}.attention_gate", mixed) + enriched)
    x = glu(state, f"{part}.decoder_gate", grn(state, f"{part}.positionwise_grn", x))  # 20, 21
    x = norm(state, f"{part}.decoder_ln", x + temporal)  # 22
    return {
        "forecast": linear(state, f"{part}.quantile_proj", x)[:, 168:],  # 23
        "history_weights": past_weights,
        "future_weights": ahead_weights,
        "attention": matrix[:, 168:],
    }


def doubles(module):
    return {name: tensor.double().numpy() for name, tensor in module.state_dict().items()}


def test_the_whole_network_equals_the_papers_equations(network):
    batch = batch_of(3)
    expected = reference(doubles(network), batch)
    with torch.inference_mode():
        found = network.explain(*map(torch.from_numpy, batch.values()))
    for name, value in expected.items():
        np.testing.assert_allclose(getattr(found, name), value, rtol=0, atol=2e-5, err_msg=name)
    np.testing.assert_array_equal(found.forecast, run(network, batch))
    assert expected["forecast"].std() > 0.1


def test_the_series_is_read_at_the_first_hour_and_the_target_before_the_last_day(network):
    batch = batch_of(2)
    other = {name: array.copy() for name, array in batch.items()}
    other["s_cat__0"][:, 1:] = 5
    other["target__6"][:, 168:] = 1e6
    np.testing.assert_array_equal(run(network, other), run(network, batch))


# The checkpoint


def save_as_nvidia(state, path):
    """Write a checkpoint as the original does, whose modules are gone when it is read."""

    class ByValue(enum.IntEnum):
        def __reduce_ex__(self, protocol):  # as the original's Python 3.8 pickles it
            return self.__class__, (self.value,)

    module, fields = "data_utils", ("name", "feature_type", "feature_embed_type")
    DataTypes = ByValue("DataTypes", {"CONTINUOUS": 0, "CATEGORICAL": 1}, module=module)
    InputTypes = ByValue("InputTypes", {"TARGET": 0, "KNOWN": 2}, module=module)
    FeatureSpec = namedtuple("FeatureSpec", fields, module=module)
    Configured = type("Configured", (), {"__module__": "configuration"})
    config = Configured()
    config.features = [FeatureSpec("power_usage", InputTypes.TARGET, DataTypes.CONTINUOUS)]
    config.counts = {InputTypes.KNOWN: np.int64(3), "scaler": StandardScaler()}
    config.encoder = LabelEncoder().fit(["a", "b"])
    content = {"args": Namespace(epochs=30, lr=1e-3), "config": config, "model": state}
    with pytest.MonkeyPatch.context() as patch:
        for name in ("data_utils", "configuration"):
            patch.setitem(sys.modules, name, ModuleType(name))
        for kind in (DataTypes, InputTypes, FeatureSpec, Configured):
            setattr(sys.modules[kind.__module__], kind.__name__, kind)
        torch.save(content, path)
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_nvidias_checkpoint_loads_without_its_modules(kind, tmp_path):
    rng = torch.Generator().manual_seed(3)
    shapes = {name: shape for name, (_, shape) in published(f"tft_{kind}").items()}
    state = {name: torch.randn(shape, generator=rng) for name, shape in shapes.items()}
    path = save_as_nvidia(state, tmp_path / "checkpoint.pt")
    assert not {"configuration", "data_utils"} & set(sys.modules)
    own = tft.build(config_of(kind, precision="fp16"), path)
    assert not own.training
    assert all(torch.equal(tensor, own.state_dict()[name]) for name, tensor in state.items())
    assert {parameter.dtype for parameter in own.parameters()} == {torch.float32}


def test_a_checkpoint_of_another_network_or_with_code_is_refused(network, tmp_path):
    path, name = tmp_path / "c.pt", "embedding.s_cat_embed.0.weight"
    for change, text in (
        ({name: torch.zeros(5, 128)}, f"{name} is [5, 128] and should be [369, 128]"),
        ({"args": Command("false")}, "it tries to run posix.system. Save only its state dict."),
    ):
        torch.save({**network.state_dict(), **change}, path)
        found = refusal(CheckpointError, tft.build, config_of("electricity"), path)
        assert found.startswith(f"{path} ")
        assert found.endswith(text)


# The data set


def table_of(kind, hours, seed=0):
    """Draw a standardised table: hourly series of these lengths, all from day 0."""
    rng, variant = np.random.default_rng(seed), VARIANTS[kind]
    time, weekday, since = variant.known
    parts = []
    for name, count in hours.items():
        clock = np.arange(count)
        columns = {"id": [name] * count, time: clock % 24, weekday: clock // 24 % 7, since: clock}
        target = rng.uniform(1, 9) + rng.standard_normal(count)
        columns |= {variant.split_column: clock // 24, variant.target: target}
        parts.append(pl.DataFrame(columns))
    return pl.concat(parts).sample(fraction=1, shuffle=True, seed=0)


DAYS = ((0, 10), (2, 10), (4, 99))
HOURS = {"10": 96 + 192, "9": 96 + 200, "100": 96 + 195, "x": 300}


def folder_of(kind, root, hours=HOURS):
    root.mkdir(exist_ok=True)
    prepare(table_of(kind, hours), VARIANTS[kind], DAYS, root)
    return root


def opened(kind, folder):
    return tft.open_dataset(config_of(kind), folder)


def slow_windows(folder):
    """Cut the windows out of test.csv row by row: by id, then by time."""
    series = {}
    with (folder / "test.csv").open() as file:
        for row in csv.DictReader(file):
            series.setdefault(int(row["id"]), []).append(row)
    found = []
    for _, rows in sorted(series.items()):
        rows.sort(key=lambda row: float(row["hours_from_start"]))
        found += [rows[start : start + 192] for start in range(len(rows) - 191)]
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_the_windows_are_those_of_a_slow_reading(kind, tmp_path):
    folder, variant = folder_of(kind, tmp_path), VARIANTS[kind]
    shuffled = pd.read_csv(folder / "test.csv", index_col=0).sample(frac=1, random_state=1)
    shuffled.to_csv(folder / "test.csv")
    dataset, expected = opened(kind, folder), slow_windows(folder)
    (found,) = dataset.batches(99)
    for name, columns, dtype in (
        ("s_cat__0", ("categorical_id",), np.int64),
        ("k_cont__3", variant.known, np.float32),
        ("target__6", (variant.target,), np.float32),
    ):
        slow = [[[float(row[c]) for c in columns] for row in window] for window in expected]
        np.testing.assert_array_equal(found[name], np.array(slow, dtype=dtype))
        assert found[name].dtype == dtype
    facts = {"series": 4, "windows": 27, "hours": 192 + 200 + 195 + 204, "series dropped": 0}
    assert dataset.facts == {**facts, "origin": "folder"}


@pytest.mark.parametrize("kind", KINDS)
def test_scaling_and_encoding_are_those_of_scikit_learn(kind, tmp_path):
    folder, variant = folder_of(kind, tmp_path), VARIANTS[kind]
    table = pd.DataFrame(table_of(kind, HOURS).to_dict(as_series=False))
    table["id"] = LabelEncoder().fit_transform(table["id"].astype(str))
    groups = [[n] for n in range(4)] if variant.scaled_per_id else [range(4)]
    for columns in (list(variant.known), [variant.target]):
        table[columns] = table[columns].astype(float)
        for group in groups:
            group = table["id"].isin(group)
            train = table[group & (table[variant.split_column] < 10)]
            scaler = StandardScaler().fit(train[columns].to_numpy())
            table.loc[group, columns] = scaler.transform(table.loc[group, columns].to_numpy())
    table = table.sort_values(["id", "hours_from_start"])
    for name, split in (
        ("train", table[variant.split_column].between(0, 9)),
        ("valid", table[variant.split_column].between(2, 9)),
        ("test", table[variant.split_column] >= 4),
    ):
        # in the original's order: id, time, target, known, static
        columns = ["id", "hours_from_start", variant.target, *variant.known, "id"]
        expected = table[split][columns].to_numpy(np.float32)
        read = pd.read_csv(folder / f"{name}.csv", index_col=0)
        columns[-1] = "categorical_id"
        np.testing.assert_allclose(read[columns], expected, rtol=0, atol=1e-6)
        arrays = pickle.loads((folder / f"{name}.bin").read_bytes())
        assert {array.dtype.name for array in arrays} == {"int32"}
        assert [len(array) for array in arrays] == read.groupby("id").size().tolist()
        binary = np.concatenate([array.view(np.float32) for array in arrays])
        np.testing.assert_allclose(binary, expected, rtol=0, atol=1e-6)
    scalers = pickle.loads((folder / "tgt_scalers.bin").read_bytes())
    assert list(scalers) == ([0, 1, 2, 3] if variant.scaled_per_id else [""])
    assert all(isinstance(scaler, StandardScaler) for scaler in scalers.values())
    assert (folder / "real_scalers.bin").is_file()
    for file, name in (("id_encoders.bin", "id"), ("cat_encodings.bin", "categorical_id")):
        encoder = pickle.loads((folder / file).read_bytes())[name]
        assert encoder.classes_.tolist() == ["10", "100", "9", "x"]  # as text, not as numbers


def losses(y, p):
    """The losses of scikit-learn for the three quantiles, which p has as its last axis."""
    quantiles = {"p10": 0.1, "p50": 0.5, "p90": 0.9}
    return {
        name: mean_pinball_loss(y.ravel(), p[..., place].ravel(), alpha=q)
        for place, (name, q) in enumerate(quantiles.items())
    }


@pytest.mark.parametrize("kind", KINDS)
def test_the_score_is_twice_scikit_learns_loss_over_the_mean_in_units(kind, tmp_path):
    dataset = opened(kind, folder_of(kind, tmp_path))
    scalers = pickle.loads((tmp_path / "tgt_scalers.bin").read_bytes())
    (batch,) = dataset.batches(99)
    outputs = np.random.default_rng(6).standard_normal((27, 24, 3)).astype(np.float32)

    def raw(values):
        each = [scalers.get(code, scalers.get("")) for code in dataset.series]
        return np.stack(
            [s.inverse_transform(v.astype(float)) for s, v in zip(each, values, strict=True)]
        )

    y = raw(batch["target__6"][:, 168:])
    expected = {name: 2 * x / np.abs(y).mean() for name, x in losses(y, raw(outputs)).items()}
    assert dataset.score({"target__0": outputs}) == pytest.approx(expected, rel=1e-6)
    perfect = np.repeat(batch["target__6"][:, 168:], 3, axis=2)
    assert dataset.score({"target__0": perfect}) == {"p10": 0, "p50": 0, "p90": 0}


def test_the_fitted_loss_is_the_sum_of_scikit_learns():
    rng = np.random.default_rng(7)
    y, p = rng.standard_normal((5, 24, 1)), rng.standard_normal((5, 24, 3))
    found = quantile_loss(torch.from_numpy(p), torch.from_numpy(y))
    assert found.item() == pytest.approx(sum(losses(y, p).values()), rel=1e-6)


def error(folder, kind="electricity"):
    found = refusal(DataError, opened, kind, folder)
    return found.replace(f"{folder}/", "").replace(str(folder), "it")


def test_folders_of_another_layout_are_errors_that_say_what_is_expected(tmp_path):
    layout = "Use NVIDIA's processed folder, with test.csv and tgt_scalers.bin."
    assert error(tmp_path / "absent").endswith(f"has no test.csv. {layout}")
    folder_of("traffic", tmp_path)
    assert error(tmp_path) == (
        "test.csv lacks the column power_usage, hour. Its columns are those of variant traffic."
    )
    (tmp_path / "tgt_scalers.bin").unlink()
    assert error(tmp_path, "traffic") == "tgt_scalers.bin is missing"
    (tmp_path / "test.csv").write_bytes(b"")
    assert error(tmp_path, "traffic").startswith("test.csv cannot be read: ")


@pytest.mark.parametrize(
    ("column", "value", "text"),
    [
        ("power_usage", np.nan, "has a value in column power_usage that is not a finite number"),
        ("hour", "noon", "has a value in column hour that is not a finite number"),
        ("categorical_id", 369, "has categorical_id 369, but the network has 0 to 368"),
        ("categorical_id", -1, "has categorical_id -1, but the network has 0 to 368"),
        ("id", 0.5, "has a value in column id that is not a whole number"),
    ],
)
def test_a_bad_value_is_an_error_that_names_its_column(column, value, text, tmp_path):
    folder_of("electricity", tmp_path)
    table = pd.read_csv(tmp_path / "test.csv", index_col=0).astype({column: object})
    table.loc[7, column] = value
    table.to_csv(tmp_path / "test.csv")
    assert error(tmp_path) == f"test.csv {text}"


def test_a_short_series_is_dropped_and_counted_and_short_ones_alone_are_an_error(tmp_path):
    folder_of("electricity", tmp_path)
    table = pd.read_csv(tmp_path / "test.csv", index_col=0)
    table.iloc[1:].to_csv(tmp_path / "test.csv")  # the first series has 192 hours
    assert opened("electricity", tmp_path).facts["series dropped"] == 1
    table.groupby("id").head(191).to_csv(tmp_path / "test.csv")
    assert error(tmp_path) == "test.csv has no series of 192 hours"


def test_a_missing_or_unfit_scaler_is_an_error(tmp_path):
    folder_of("electricity", tmp_path)
    path = tmp_path / "tgt_scalers.bin"
    scalers = pickle.loads(path.read_bytes())
    flat, wide = StandardScaler().fit([[1.0], [2.0]]), StandardScaler().fit(np.ones((2, 2)))
    flat.scale_ = np.zeros(1)
    for content, text in (
        ({0: scalers[0]}, "has no scaler of one target for id 1"),
        ({**scalers, 2: wide}, "has no scaler of one target for id 2"),
        ({**scalers, 3: flat}, "has an invalid scaler for id 3: 0.0 around 1.5"),
        ([1], "is a list, not a dict of scalers"),
    ):
        path.write_bytes(pickle.dumps(content))
        assert error(tmp_path) == f"tgt_scalers.bin {text}"


@pytest.mark.parametrize("protocol", range(2, 6))
def test_scalers_are_read_from_every_protocol_without_scikit_learn(protocol, tmp_path):
    scaler = StandardScaler().fit(np.arange(6.0)[:, None])
    encoder = LabelEncoder().fit(["b", "a"])
    path = tmp_path / "s.bin"
    path.write_bytes(pickle.dumps({np.int64(3): scaler, "e": encoder}, protocol=protocol))
    found = pickles.read(path)
    assert type(found[3]) is type(found["e"]) is pickles.Estimator
    learned = {**vars(found[3]), **vars(found["e"])}
    assert learned["mean_"].tolist() == [2.5]
    np.testing.assert_allclose(learned["scale_"], np.arange(6.0).std())
    assert learned["classes_"].tolist() == ["a", "b"]


def test_a_pickle_that_names_anything_else_is_refused_and_leaves_no_trace(tmp_path):
    path = tmp_path / "s.bin"
    for content, name in (
        (Command(f"touch {tmp_path / 'trace'}"), "posix.system"),
        (MinMaxScaler(), "sklearn.preprocessing._data.MinMaxScaler"),
        (np.load, "numpy.load"),
        (eval, "builtins.eval"),
    ):
        path.write_bytes(pickle.dumps(content, protocol=4))
        assert refusal(DataError, pickles.read, path) == f"{path} was rejected: it names {name}"
    for damaged in (b"", b"\x80\x04", os.urandom(100)):
        path.write_bytes(damaged)
        assert refusal(DataError, pickles.read, path).startswith(f"{path} was rejected: ")
    assert sorted(tmp_path.iterdir()) == [path]


def test_splits_without_a_whole_series_and_too_many_series_are_errors(tmp_path):
    table, variant = table_of("electricity", {"a": 400}), VARIANTS["electricity"]
    found = refusal(DataError, prepare, table, variant, ((0, 9), (3, 8), (0, 99)), tmp_path)
    assert found == "no series has 192 hours in the days 3 to 7 of valid"
    many = table_of("electricity", {str(n): 192 for n in range(370)})
    found = refusal(DataError, prepare, many, variant, ((0, 9),) * 3, tmp_path)
    assert found == "it has 370 series, but the network has 369"


def test_a_series_that_train_lacks_is_left_out(tmp_path):
    table = table_of("electricity", {"a": 400, "b": 400})
    table = table.filter((pl.col("id") == "a") | (pl.col("days_from_start") >= 4))
    prepare(table, VARIANTS["electricity"], DAYS, tmp_path)
    assert opened("electricity", tmp_path).facts["series"] == 1


# The generated series


def test_the_small_set_has_every_series_in_nvidias_files(generated):
    kind, folder = generated
    count = VARIANTS[kind].cardinality
    facts = {"series": count, "windows": count, "hours": count * 192, "series dropped": 0}
    assert opened(kind, folder).facts == {**facts, "origin": "generated"}
    assert sorted(path.name for path in folder.iterdir()) == [
        *("cat_encodings.bin", "generated.json", "id_encoders.bin", "real_scalers.bin"),
        *("test.bin", "test.csv", "tgt_scalers.bin", "train.bin", "train.csv"),
        *("valid.bin", "valid.csv"),
    ]


def naive(dataset):
    """The P50 q-risk of repeating last week."""
    y = dataset.targets(np.arange(len(dataset)))
    return q_risk(y[:, 168:], y[:, :24], 0.5)


def test_series_are_positive_and_last_week_is_a_poor_forecast(generated):
    dataset = opened(*generated)
    values = dataset.targets(np.arange(len(dataset)))
    assert values.min() > 0
    assert 0.2 < naive(dataset) < 0.5
    weekly = values[:, :24].mean(axis=0) / values.mean()  # the same hours of the day are alike
    assert np.ptp(weekly) > 0.2


# Pictures


@pytest.mark.slow
def test_pictures_say_in_words_what_they_show(network, tmp_path):
    dataset = opened("electricity", folder_of("electricity", tmp_path))
    torch.save(network.state_dict(), tmp_path / "c.pt")

    def perfect(batch):
        return {"target__0": np.repeat(batch["target__6"][:, 168:], 3, axis=2)}

    forecasts = display.show_forecasts(dataset, perfect)
    everything = perfect(dataset.take(np.arange(len(dataset))))
    assert display.show_forecasts(dataset, everything).alt == forecasts.alt
    weights = display.show_weights(config_of("electricity"), dataset, tmp_path / "c.pt")
    for image in (display.show_series(dataset), forecasts, weights):
        assert image.data[:4] == b"\x89PNG"
    assert forecasts.alt == (
        "Forecasts of power (kW) for 4 windows of 24 hours: 100% of the actual values lie between "
        "P10 and P90, and P50 is off by 0% of the mean."
    )
    assert re.search(r"weighs \w+ most \(\d+%\)", weights.alt)


def test_a_client_reads_a_forecast_in_the_units_of_the_data(tmp_path):
    dataset = opened("electricity", folder_of("electricity", tmp_path))
    example = tft.example(config_of("electricity"), dataset, 1)
    perfect = np.repeat(example.batch["target__6"][:, 168:], 3, axis=2)

    quantity, *hours = said(example, {"target__0": perfect})

    actual = dataset.targets(np.array([0]))[0, 168:]
    assert quantity == f"series {dataset.series[0]}, power (kW)"
    assert hours == [
        f"hour {place + 1}: {v} ({v} to {v}), actual {v}"
        for place in range(0, 24, 4)
        for v in [f"{actual[place]:.4g}"]
    ]


# The fitted checkpoint and the tolerances


def cast(network, kind, batch):
    """Compute in another type of number."""
    given = [torch.from_numpy(batch[name]) for name in NAMES[:3]]
    given = [each.to(kind) if each.is_floating_point() else each for each in given]
    return deepcopy(network).to(kind)(*given).detach().to(torch.float64).numpy()


def within(found, expected, precision):
    return difference("target__0", found, expected, tft.TOLERANCES[precision]).ok


@pytest.mark.slow
@pytest.mark.thorough
def test_the_fitted_network_beats_last_week_by_a_fifth(larger):
    dataset, path = larger
    assert dataset.facts["windows"] == 369 * 4
    built = tft.build(config_of("electricity"), path)
    scores = dataset.score({"target__0": everything(built, dataset)})
    assert scores["p50"] < 0.8 * naive(dataset)
    assert scores["p10"] < scores["p50"]
    assert scores["p90"] < scores["p50"]


@pytest.mark.slow
@pytest.mark.thorough
def test_the_bounds_tell_a_rounding_from_a_wrong_output(larger):
    dataset, path = larger
    built = tft.build(config_of("electricity"), path)
    (batch,) = dataset.batches(64, limit=64)
    expected = run(built, batch)
    series, target = batch["s_cat__0"], batch["target__6"]
    swapped = {"s_cat__0": np.clip(target, 0, 300).astype(np.int64), "target__6": series * 1.0}
    wrong = {
        "quantiles reversed": [expected[..., ::-1]],
        "hours shifted": [np.roll(expected, 1, axis=1)],
        "series and target": [cast(built, torch.float32, batch | swapped)],
    }
    # as near as two windows are, int8 tells none of them apart
    builders.assert_bounds_tell(tft.TOLERANCES, [expected], wrong, near_in_int8=" and ")
    for precision, kind in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        assert within(cast(built, kind, batch), expected, precision), precision


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, of trace and script
def test_every_format_equals_the_network_at_other_batch_sizes(network, tmp_path):
    made = {"ts-trace": "", "ts-script": "", "onnx": "", "openvino": "onnx"}
    batches = [batch_of(2), *(batch_of(size, seed=size) for size in (1, 3))]

    builders.assert_formats_equal(tft, network, run, made, NAMES[3:], tmp_path, *batches)


@pytest.mark.slow
def test_an_exact_export_of_other_valid_weights_is_within_the_bounds(generated, tmp_path):
    """Weights under NVIDIA's names by a formula: their outputs vary little around their mean."""
    kind, folder = generated
    state = {}
    for name, (_, shape) in published(f"tft_{kind}").items():
        places = torch.arange(int(np.prod(shape)))
        state[name] = (places * 7919 % 101 - 50).reshape(shape).float() * 0.0012
    state["TFTpart2.attention._mask"] = torch.full((192, 192), -torch.inf).triu(1)[None]
    torch.save({"model": state}, tmp_path / "c.pt")
    (batch,) = opened(kind, folder).batches(64, 64)
    network = tft.build(config_of(kind), tmp_path / "c.pt")
    expected = run(network, batch)
    onnx.make(network, tmp_path / onnx.FILE, Build("fp32", batch_of(2), NAMES[3:]))
    exported = onnx.load(tmp_path / onnx.FILE, 2, "cpu").run(batch)["target__0"]
    exact = cast(network, torch.float64, batch)
    assert within(exported, expected, "fp32")
    assert within(exact, expected, "fp32")
    assert not within(exact, expected.astype(np.float16).astype(np.float32), "fp32")
