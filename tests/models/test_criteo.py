"""Criteo's folders against plain NumPy files, pair counts, closed forms and scikit-learn."""

import re
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from numpy.typing import NDArray
from scipy.special import expit  # type: ignore[import-untyped, unused-ignore]
from scipy.stats import chisquare, kstest  # type: ignore[import-untyped, unused-ignore]
from sklearn.metrics import (  # type: ignore[import-untyped, unused-ignore]
    log_loss,
    roc_auc_score,
)

from helpers.errors import DataError, ParameterError
from helpers.models._criteo import data, display, spec
from helpers.models._criteo.data import INPUTS, OUTPUT, Samples, SplitBinary
from helpers.models._criteo.synthetic import generate
from helpers.models._criteo.tables import TABLES
from tests.models.examples import said

ROWS = (126, 127, 128, 32_766, 32_767, 40_000, *range(3, 23))  # of tables, around the types' ends
TYPES = ("int8", "int16", "int16", "int16", "int32", "int32", *["int8"] * 20)
COUNTS = {"train": 50, "test": 23}

Change = Callable[[Any], Any]


def drawn(count: int, rows: tuple[int, ...] = ROWS, seed: int = 0) -> Samples:
    """Draw samples, the largest id of each table among them, and some missing numbers."""
    rng = np.random.default_rng(seed)
    ids = np.stack([rng.integers(0, table, count) for table in rows], axis=1)
    ids[0] = np.array(rows) - 1
    numbers = rng.gamma(2, 1, (count, 13)).astype(np.float16)
    clicks = rng.random(count) < 0.4
    clicks[:2] = True, False
    return Samples(ids.astype(np.int32), numbers.astype(np.float32), clicks)


def folder_of(root: Path, rows: tuple[int, ...] = ROWS) -> Path:
    """Write a folder with NumPy alone, as NVIDIA's `split_dataset.py` does."""
    spec.write(root, rows, {})
    for part, count in COUNTS.items():
        samples = drawn(count, rows, seed=count)
        (root / part).mkdir()
        for place, dtype in enumerate(TYPES):
            samples.categorical[:, place].astype(dtype).tofile(root / part / f"cat_{place}.bin")
        samples.numerical.astype(np.float16).tofile(root / part / "numerical.bin")
        samples.clicks.astype(np.bool_).tofile(root / part / "label.bin")
    return root


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return folder_of(tmp_path)


def write(dataset: str, folder: Path, variant: str = "T15-10k") -> None:
    config: Any = SimpleNamespace(dataset=dataset, variant=variant)
    generate.write(config, folder)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> SplitBinary:
    """The generated small set, which tests only read."""
    root = tmp_path_factory.mktemp("small")
    write("generated-small", root)
    return SplitBinary(root, TABLES["T15-10k"])


def refusal(act: Callable[[], Any]) -> str:
    with pytest.raises(DataError) as caught:
        act()
    assert "\n" not in str(caught.value)
    return str(caught.value)


# The tables


@pytest.mark.parametrize(
    ("variant", "rows"), [("T15", 32_709_138), ("T3", 177_944_291), ("T0", 882_774_575)]
)
def test_the_tables_have_the_published_number_of_rows(variant: str, rows: int) -> None:
    assert len(TABLES[variant]) == 26
    assert sum(TABLES[variant]) == rows


def test_the_laptops_tables_are_those_of_t15_none_above_10000() -> None:
    assert next(iter(TABLES)) == "T15-10k"
    pairs = zip(TABLES["T15-10k"], TABLES["T15"], strict=True)
    assert all(mine == (rows if rows < 10_000 else 10_000) for mine, rows in pairs)


# The description


def test_the_description_is_laid_out_as_nvidias(folder: Path) -> None:
    found = yaml.safe_load((folder / "feature_spec.yaml").read_text())
    assert list(found) == ["channel_spec", "feature_spec", "metadata", "source_spec"]
    categorical = [f"cat_{place}.bin" for place in range(26)]
    numerical = [f"num_{place}" for place in range(13)]
    assert found["channel_spec"] == {
        "categorical": categorical,
        "numerical": numerical,
        "label": ["label"],
    }
    assert found["feature_spec"]["cat_3.bin"] == {"cardinality": 32_766, "dtype": "int16"}
    assert found["feature_spec"]["num_12"] == {"dtype": "float16"}
    assert found["feature_spec"]["label"] == {"dtype": "bool"}
    assert len(found["feature_spec"]) == 26 + 13 + 1
    for part in ("train", "test"):
        sources = {source["files"][0]: source for source in found["source_spec"][part]}
        assert sources.pop(f"{part}/numerical.bin")["features"] == numerical
        assert sources.pop(f"{part}/label.bin")["features"] == ["label"]
        assert {file: source["features"] for file, source in sources.items()} == {
            f"{part}/{name}": [name] for name in categorical
        }
        assert {source["type"] for source in found["source_spec"][part]} == {"split_binary"}


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    spec.write(tmp_path, ROWS, {"origin": "here"})
    written = spec.read(tmp_path)
    assert written.cardinalities == ROWS
    assert written.dtypes == TYPES
    assert written.metadata == {"origin": "here"}
    assert written.parts["test"][-1] == tmp_path / "test" / "cat_25.bin"


def test_another_order_and_other_names_are_followed(folder: Path) -> None:
    """The order of the channel is that of the tables; the order of the sources is no matter."""

    def change(content: Any) -> None:
        content["channel_spec"]["categorical"].reverse()
        content["source_spec"]["test"].reverse()
        (folder / "test" / "cat_0.bin").rename(folder / "first.bin")
        content["source_spec"]["test"][25]["files"] = ["first.bin"]
        content["feature_spec"]["cat_9.bin"] |= {"hotness": 1, "alpha": 1.45}
        content["feature_spec"]["label"]["dtype"] = "int8"
        content["metadata"] = None

    before = SplitBinary(folder)
    edit(folder, change)
    after = SplitBinary(folder)
    assert after.spec.cardinalities == before.spec.cardinalities[::-1]
    expected = before.read(slice(None)).categorical[:, ::-1]
    np.testing.assert_array_equal(after.read(slice(None)).categorical, expected)


def edit(folder: Path, change: Change) -> None:
    path = folder / "feature_spec.yaml"
    content = yaml.safe_load(path.read_text())
    change(content)
    path.write_text(yaml.safe_dump(content))


def features(name: str, **values: Any) -> Change:
    return lambda content: content["feature_spec"][name].update(values)


def channel(name: str, change: Change) -> Change:
    return lambda content: change(content["channel_spec"][name])


def source(part: str, place: int, **values: Any) -> Change:
    return lambda content: content["source_spec"][part][place].update(values)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda c: c.pop("channel_spec"), "channel_spec: field required"),
        (lambda c: c["source_spec"].pop("test"), "source_spec.test: field required"),
        (
            lambda c: c["feature_spec"].pop("cat_7.bin"),
            "cat_7.bin should be once in feature_spec and in chan",
        ),
        (features("label", dtype=8), "feature_spec.label.dtype: input should be a valid string"),
        (features("label", dtype="int16"), "label is int16 and should be bool or int8"),
        (features("num_4", dtype="int32"), "num_4 is int32 and should be float16"),
        (
            features("cat_2.bin", dtype="float16"),
            "cat_2.bin is float16 and should be int8 or int16",
        ),
        (
            features("cat_2.bin", cardinality=0),
            "cat_2.bin is int16 and has an impossible cardinality, 0",
        ),
        (
            features("cat_2.bin", cardinality=None),
            "cat_2.bin is int16 and has an impossible cardinality, N",
        ),
        (features("cat_2.bin", cardinality="9"), "cat_2.bin.cardinality: input should be a valid"),
        (
            features("cat_0.bin", cardinality=129),
            "cat_0.bin is int8 and has an impossible cardinality, 12",
        ),
        (features("cat_2.bin", hotness=3), "feature_spec.cat_2.bin.hotness: input should be 1"),
        (lambda c: c["feature_spec"].update(x={"dtype": "int8"}), ": x should be once in "),
        (
            channel("categorical", lambda names: names.pop()),
            "channel_spec.categorical: list should",
        ),
        (channel("numerical", lambda names: names.append("y")), "channel_spec.numerical: list sho"),
        (channel("label", list.clear), "channel_spec.label: list should have at least 1 item"),
        (channel("numerical", lambda n: n.__setitem__(0, "num_1")), "num_1 should be once in "),
        (source("train", 3, type="csv"), "train.3.type: input should be 'split_binary'"),
        (source("train", 3, files=[]), "source_spec.train.3.files: list should have at least 1"),
        (
            source("test", 3, features=["cat_1.bin", "cat_2.bin"]),
            "test should have one file of cat_1.bin, but has 0",
        ),
        (source("test", 3, features=["cat_2.bin"]), "should have one file of cat_1.bin, but has 0"),
        (
            source("test", 0, features=["num_1"]),
            "should have one file of num_0, num_1, num_2, num_3",
        ),
        (lambda c: c["source_spec"]["test"].pop(), "should have one file of cat_25.bin, but has 0"),
    ],
)
def test_a_wrong_description_is_one_line_that_names_the_feature(
    change: Change, text: str, folder: Path
) -> None:
    edit(folder, change)
    found = refusal(lambda: SplitBinary(folder))
    assert found.startswith(f"{folder / 'feature_spec.yaml'}: ")
    assert text in found


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "the whole: input should be"),
        (b"- 1\n", "the whole: input should be"),
        (b"a: [1\n", "is not YAML: while parsing a flow sequence"),
        (b"\x93NUMPY\xff", "is not YAML: "),
    ],
)
def test_a_file_that_is_none_is_one_line(content: bytes, text: str, folder: Path) -> None:
    (folder / "feature_spec.yaml").write_bytes(content)
    assert text in refusal(lambda: SplitBinary(folder))


def test_a_folder_without_a_description_says_what_was_expected(tmp_path: Path) -> None:
    for root in (tmp_path, tmp_path / "absent"):
        assert refusal(lambda root=root: SplitBinary(root, part="train")) == (  # type: ignore[misc]
            f"{root} has no feature_spec.yaml. Use a split-binary folder, with "
            "feature_spec.yaml, train and test."
        )


# The samples


def test_every_sample_comes_once_in_order_and_the_last_batch_may_be_short(folder: Path) -> None:
    dataset, expected = SplitBinary(folder, ROWS), drawn(23, seed=23)
    batches = list(dataset.batches(8))
    assert [len(batch["numerical_features"]) for batch in batches] == [8, 8, 7]
    for name, array, dtype in (
        ("categorical_features", expected.categorical, np.int32),
        ("numerical_features", expected.numerical, np.float32),
    ):
        found = np.concatenate([batch[name] for batch in batches])
        np.testing.assert_array_equal(found, array)
        assert found.dtype == dtype
    assert {len(batch) for batch in batches} == {2}
    assert len(dataset) == 23
    assert dataset.facts == {
        "samples": 23,
        "clicks": int(expected.clicks.sum()),
        "rows of all tables": sum(ROWS),
        "origin": "folder",
    }


def test_the_training_part_is_read_in_any_order(folder: Path) -> None:
    part, expected = SplitBinary(folder, part="train"), drawn(50, seed=50)
    order = np.random.default_rng(1).permutation(50)
    for found, array in zip(part.read(order), expected, strict=True):
        np.testing.assert_array_equal(found, array[order])
    for found, array in zip(next(part.batches(64)).values(), expected[:2], strict=True):
        np.testing.assert_array_equal(found, array)
    np.testing.assert_array_equal(part.clicks(), expected.clicks)


def test_a_limit_is_spread_evenly_over_the_set(folder: Path) -> None:
    dataset = SplitBinary(folder)
    (whole,), few = dataset.batches(99), list(dataset.batches(4, limit=6))
    assert [len(batch["categorical_features"]) for batch in few] == [4, 2]
    for name in INPUTS:
        found = np.concatenate([batch[name] for batch in few])
        np.testing.assert_array_equal(found, whole[name][[0, 3, 7, 11, 15, 19]])
    (all_of_them,) = dataset.batches(99, limit=500)
    np.testing.assert_array_equal(
        all_of_them["categorical_features"], whole["categorical_features"]
    )


def test_a_part_is_written_as_numpy_wrote_it(folder: Path, tmp_path: Path) -> None:
    samples = drawn(23, seed=23)
    batches = [Samples(*(array[rows] for array in samples)) for rows in (slice(9), slice(9, None))]
    data.write_part(tmp_path / "again", ROWS, batches)
    names = sorted(path.name for path in (folder / "test").iterdir())
    assert sorted(path.name for path in (tmp_path / "again").iterdir()) == names
    assert len(names) == 28
    for name in names:
        expected = (folder / "test" / name).read_bytes()
        assert (tmp_path / "again" / name).read_bytes() == expected


def cut(count: int) -> Callable[[bytes], bytes]:
    return lambda content: content[:-count]


@pytest.mark.parametrize(
    ("name", "change", "text"),
    [
        ("cat_4.bin", None, "is not a file of int32 samples: [Errno 2] No such file"),
        ("cat_4.bin", cut(4), "has 22 samples, but label.bin has 23"),
        ("cat_4.bin", cut(3), "is not a file of int32 samples: Size of available data is not a m"),
        ("cat_0.bin", lambda c: c + c, "has 46 samples, but label.bin has 23"),
        ("numerical.bin", cut(26), "has 22 samples, but label.bin has 23"),
        ("numerical.bin", cut(2), "is not a file of ('<f2', (13,)) samples: Size of available"),
        ("label.bin", lambda c: b"", "label.bin is not a file of uint8 samples: "),
        ("cat_6.bin", lambda c: c[:9] + b"\x03" + c[10:], "has the id 3, but its table has 3"),
        ("cat_6.bin", lambda c: c[:9] + b"\xff" + c[10:], "has the id -1, but its table has 3"),
        ("numerical.bin", lambda c: c[:-2] + b"\x00\x7c", "has a number that is not finite"),
        ("numerical.bin", lambda c: b"\x01\x7e" + c[2:], "has a number that is not finite"),
        ("label.bin", lambda c: c[:-1] + b"\x02", "has a label other than 0 and 1"),
    ],
)
def test_a_damaged_file_is_one_line_that_names_it(
    name: str, change: Callable[[bytes], bytes] | None, text: str, folder: Path
) -> None:
    path = folder / "test" / name
    if change is None:
        path.unlink()
    else:
        path.write_bytes(change(path.read_bytes()))
    found = refusal(lambda: list(SplitBinary(folder).batches(8)))
    assert found.startswith(f"{path if name != 'label.bin' or 'label' in text else ''}")
    assert text in found
    assert (
        len(list(SplitBinary(folder, part="train").batches(8))) == 7
    )  # the other part is not read


def test_a_network_with_other_tables_is_refused(folder: Path) -> None:
    tables = (*ROWS[:25], 23)
    assert refusal(lambda: SplitBinary(folder, tables)) == (
        f"{folder / 'feature_spec.yaml'}: feature 25 has 22 ids, but the network's table has "
        "23 rows. Use variant 'own', which takes the folder's."
    )


def test_a_large_set_is_read_within_bounded_memory(tmp_path: Path) -> None:
    """The files of 400,000 samples have 20 MB; a batch, as it is computed with, 0.2 MB."""
    spec.write(tmp_path, (5,) * 26, {})
    ids, rng = np.zeros(400_000, dtype=np.int8), np.random.default_rng(0)
    for part in ("train", "test"):
        samples = Samples(
            np.broadcast_to(ids[:, None], (len(ids), 26)),
            np.ones((len(ids), 13), dtype=np.float32),
            rng.random(len(ids)) < 0.5,
        )
        data.write_part(tmp_path / part, (5,) * 26, [samples])
    dataset = SplitBinary(tmp_path)
    tracemalloc.start()
    count = sum(len(batch["categorical_features"]) for batch in dataset.batches(1024))
    count += sum(len(batch["categorical_features"]) for batch in dataset.batches(1024, 300_000))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 700_000
    assert peak < 1e6


# The metric


def pairs_in_order(clicks: NDArray[np.bool_], logits: NDArray[Any]) -> float:
    """Count, for every click and every sample that is none, which of them is the likelier."""
    apart = logits[clicks][:, None] - logits[~clicks][None]
    return float(((apart > 0) + 0.5 * (apart == 0)).mean())


@pytest.mark.parametrize("decimals", [0, 1, 6])
@pytest.mark.parametrize("seed", range(4))
def test_the_area_is_the_share_of_pairs_in_order_ties_by_half(seed: int, decimals: int) -> None:
    rng = np.random.default_rng(seed)
    clicks = rng.random(300) < 0.2
    logits = np.round(rng.standard_normal(300) + clicks, decimals)
    expected = pairs_in_order(clicks, logits)
    assert data.auc(clicks, logits) == pytest.approx(expected, abs=1e-12)
    assert expected > 0.6


@pytest.mark.slow
def test_the_area_is_that_of_torchmetrics() -> None:
    import torch
    from torchmetrics.classification import BinaryAUROC

    rng = np.random.default_rng(9)
    clicks = rng.random(2000) < 0.3
    logits = np.round(rng.standard_normal(2000) + clicks, 2)
    # a probability is of float32 there, and must not make ties of its own
    ranks = np.unique(logits, return_inverse=True)[1] / 1000
    expected = BinaryAUROC()(torch.from_numpy(ranks), torch.from_numpy(clicks.astype(int)))
    assert data.auc(clicks, logits) == pytest.approx(float(expected), abs=1e-6)


def test_the_cross_entropy_is_scikit_learns_and_holds_for_large_logits() -> None:
    rng = np.random.default_rng(3)
    clicks, logits = rng.random(500) < 0.3, 3 * rng.standard_normal(500)
    expected = log_loss(clicks, 1 / (1 + np.exp(-logits)))
    assert data.cross_entropy(clicks, logits) == pytest.approx(expected)
    large = np.array([1e4, -1e4, 0])
    expected = (0 + 1e4 + np.log(2)) / 3
    assert data.cross_entropy(np.array([True, True, False]), large) == pytest.approx(expected)


@pytest.mark.parametrize("shape", [(23,), (23, 1)])
def test_the_score_is_that_of_all_samples(shape: tuple[int, ...], folder: Path) -> None:
    logits = np.random.default_rng(4).standard_normal(23).astype(np.float32)
    found = SplitBinary(folder).score({OUTPUT: logits.reshape(shape)})
    clicks = drawn(23, seed=23).clicks
    assert found == {
        "auc": pytest.approx(pairs_in_order(clicks, logits)),
        "bce": pytest.approx(log_loss(clicks, 1 / (1 + np.exp(-logits.astype(float))))),
    }


def test_outputs_that_cannot_be_scored_are_refused_or_not_a_number(folder: Path) -> None:
    dataset = SplitBinary(folder)
    for shape in ((22,), (23, 2), (1, 23), ()):
        text = f"DENSE_OUTPUT is {list(shape)} and should be [23]"
        assert refusal(lambda s=shape: dataset.score({OUTPUT: np.zeros(s)})) == text  # type: ignore[misc]
    broken = np.zeros(23)
    broken[3] = np.nan
    assert all(np.isnan(value) for value in dataset.score({OUTPUT: broken}).values())
    (folder / "test" / "label.bin").write_bytes(bytes(23))
    text = refusal(lambda: SplitBinary(folder).score({OUTPUT: np.zeros(23)}))
    assert "needs samples with and without clicks" in text


# What is generated


@pytest.mark.parametrize("rows", [2, 5, 100, 10_000, 7_912_889])
def test_ids_follow_the_power_law(rows: int) -> None:
    """Of n + 1 on to n + 2 on, the distribution function (1 - x^-.45) / (1 - (rows + 1)^-.45)."""
    count = 200_000
    ids = generate.power_law(rows, np.random.default_rng(rows).random(count))
    assert 0 <= ids.min() <= ids.max() < rows
    edges = np.unique(np.round(np.geomspace(1, rows + 1, 40)))
    below = (1 - edges**-0.45) / (1 - (rows + 1) ** -0.45)
    expected = count * np.diff(below)
    found, _ = np.histogram(ids + 1, bins=np.append(edges[:-1], rows + 1))
    assert chisquare(found, expected).pvalue > 1e-3


def test_the_ends_of_the_unit_interval_are_the_ends_of_the_table() -> None:
    ends = np.array([0.0, np.nextafter(1, 0)])
    for rows in (1, 4, 10_000, 292_775_614):
        assert generate.power_law(rows, ends).tolist() == [0, rows - 1]


def test_effects_are_those_of_splitmix64() -> None:
    """Its first outputs from the seed 0, as published with the reference code of xoshiro."""
    outputs = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F, 0xF88BB8A8724C81EC]
    expected = [(2 * output / 2**64 - 1) * 3**0.5 for output in outputs]
    np.testing.assert_allclose(generate.effect(-1, np.arange(1, 5)), expected, atol=1e-12)


def test_effects_of_different_ids_and_features_are_independent() -> None:
    ids = np.arange(10_000)
    first, second = generate.effect(3, ids), generate.effect(4, ids)
    for found in (first, second):
        assert kstest(found, "uniform", (-(3**0.5), 2 * 3**0.5)).pvalue > 1e-3
    for other in (second, np.roll(first, 1), np.roll(second, 1)):
        assert abs(np.corrcoef(first, other)[0, 1]) < 0.05
    np.testing.assert_array_equal(generate.effect(3, ids[::-1].astype(np.int32)), first[::-1])


def test_a_set_is_the_same_each_time_and_its_parts_are_not(
    small: SplitBinary, tmp_path: Path
) -> None:
    write("generated-small", tmp_path)
    root = small._files[1].parents[1]
    for path in sorted(root.rglob("*.*")):
        assert (tmp_path / path.relative_to(root)).read_bytes() == path.read_bytes()
    train = SplitBinary(root, part="train").read(slice(None))
    test = small.read(slice(None))
    assert not (train.numerical[:100] == test.numerical[:100]).all(axis=1).any()
    assert small.facts["origin"] == "generated"
    assert (len(train.clicks), len(test.clicks)) == (8000, 2125)


def test_numbers_are_logarithms_of_counts_and_some_are_missing(small: SplitBinary) -> None:
    numbers = small.read(slice(None)).numerical
    there = numbers > 0
    assert numbers.min() == 0
    counts = np.round(np.exp(numbers[there].astype(np.float64)) - 3)
    near = counts < 100  # beyond, float16 does not tell two counts apart
    again = np.log(counts[near] + 3).astype(np.float16)
    np.testing.assert_array_equal(again, numbers[there][near])
    assert (counts.min(), near.mean() > 0.8) == (-1, True)
    np.testing.assert_allclose(1 - there.mean(axis=0), generate.MISSING, atol=0.04)


def test_clicks_are_as_likely_as_planted_and_no_score_beats_that() -> None:
    samples = generate.draw(np.random.default_rng(5), 100_000, TABLES["T15-10k"])
    planted = generate.logits(samples.categorical, samples.numerical)
    probability = 1 / (1 + np.exp(-planted))
    for group in np.array_split(np.argsort(planted), 20):
        error = (probability[group] * (1 - probability[group])).sum() ** 0.5 / len(group)
        assert abs(samples.clicks[group].mean() - probability[group].mean()) < 4 * error
    assert 0.82 < roc_auc_score(samples.clicks, planted) < 0.87
    assert 0.15 < samples.clicks.mean() < 0.4


def test_both_the_numbers_and_the_ids_and_their_pairs_tell_of_clicks() -> None:
    samples = generate.draw(np.random.default_rng(6), 50_000, TABLES["T15-10k"])
    planted = generate.logits(samples.categorical, samples.numerical)
    other = generate.draw(np.random.default_rng(7), 50_000, TABLES["T15-10k"])
    whole = roc_auc_score(samples.clicks, planted)
    for place in (0, 1):
        mixed = list(samples[:2])
        mixed[place] = other[place]
        assert roc_auc_score(samples.clicks, generate.logits(*mixed)) < whole - 0.03
    pairs = np.array(generate.PAIRS)
    first, second = (samples.categorical[:, pairs[:, side]] for side in (0, 1))
    product = sum(
        generate.effect(a, first[:, n]) * generate.effect(b, second[:, n])
        for n, (a, b) in enumerate(generate.PAIRS)
    )
    assert roc_auc_score(samples.clicks, product) > 0.55


@pytest.mark.slow
def test_a_linear_model_of_the_frequent_ids_learns_from_one_part_about_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sklearn.linear_model import (  # type: ignore[import-untyped, unused-ignore]
        LogisticRegression,
    )
    from sklearn.pipeline import make_pipeline  # type: ignore[import-untyped, unused-ignore]
    from sklearn.preprocessing import (  # type: ignore[import-untyped, unused-ignore]
        OneHotEncoder,
        StandardScaler,
    )

    monkeypatch.setitem(generate.SIZES, "generated", {"train": 40_000, "test": 5_001})
    write("generated", tmp_path)
    parts = [SplitBinary(tmp_path, part=part).read(slice(None)) for part in ("train", "test")]
    encoder = OneHotEncoder(min_frequency=20, handle_unknown="infrequent_if_exist")
    ids = [encoder.fit_transform(parts[0].categorical), encoder.transform(parts[1].categorical)]
    scaler = StandardScaler().fit(parts[0].numerical)
    from scipy.sparse import hstack  # type: ignore[import-untyped, unused-ignore]

    both = [
        hstack([matrix, scaler.transform(part.numerical)], format="csr")
        for matrix, part in zip(ids, parts, strict=True)
    ]
    model = make_pipeline(LogisticRegression(C=0.3, max_iter=200))
    model.fit(both[0], parts[0].clicks)
    logits = model.decision_function(both[1])
    assert SplitBinary(tmp_path).score({OUTPUT: logits})["auc"] > 0.75


def test_another_name_and_tables_of_no_list_are_refused(tmp_path: Path) -> None:
    assert refusal(lambda: write("other", tmp_path)).startswith(
        "Unknown data set 'other'. Use one of generated, generated-small, "
    )
    with pytest.raises(ParameterError, match="Unknown tables 'own'. Known tables: T15-10k, T15"):
        write("generated", tmp_path, "own")


# What is shown


def shown(picture: Any) -> str:
    """Check that it is a picture, and give the words beside it."""
    assert picture.data.startswith(b"\x89PNG")
    text = picture.alt
    assert isinstance(text, str)
    return text


def test_the_tables_are_shown_with_how_skewed_their_lookups_are(small: SplitBinary) -> None:
    text = shown(display.show_tables(small))
    assert text.startswith("The 26 tables have 4 to 10,000 rows, ")
    assert f"{sum(TABLES['T15-10k']):,} together. In 2,125 samples " in text
    shares, lookups = display._frequent(small)
    ids = small.read(slice(None)).categorical
    assert lookups == len(ids)
    for place, rows in ((0, 10_000), (6, 7_105), (15, 104), (5, 4)):
        counts = sorted(np.bincount(ids[:, place]).tolist())[::-1]
        expected = sum(counts[: max(1, round(rows / 100))]) / len(ids)
        assert shares[place] == pytest.approx(expected)


def test_tables_that_are_all_small_are_shown_too(tmp_path: Path) -> None:
    rows = (1, *range(3, 28))
    spec.write(tmp_path, rows, {})
    for part in ("train", "test"):
        data.write_part(tmp_path / part, rows, [drawn(40, rows)])
    text = shown(display.show_tables(SplitBinary(tmp_path)))
    assert text == f"The 26 tables have 1 to 27 rows, {sum(rows)} together."


def test_predictions_are_shown_beside_what_was_observed(small: SplitBinary) -> None:
    sizes_seen = []

    def infer(batch: Any) -> Any:
        sizes_seen.append(len(batch["categorical_features"]))
        found = generate.logits(batch["categorical_features"], batch["numerical_features"])
        return {"DENSE_OUTPUT": found.astype(np.float32)[:, None]}

    text = shown(display.show_predictions(small, infer))
    assert sizes_seen == [256] * 8 + [77]
    assert text.startswith("Of 2,125 samples in 10 groups of rising prediction, the lowest has ")
    assert re.search(r"; the largest distance is \d+\.\d percentage points\.$", text)
    everything = infer(small.read(slice(None)).inputs)
    assert shown(display.show_predictions(small, everything)) == text


def test_single_clicks_are_shown_with_what_happened(small: SplitBinary) -> None:
    def infer(batch: Any) -> Any:
        return {"DENSE_OUTPUT": np.linspace(-2, 2, len(batch["categorical_features"]))[:, None]}

    rows = display.show_clicks(small, infer)

    places = [int(row["sample"]) for row in rows]
    truth = small.clicks(np.array(places))
    assert places == sorted(set(places))
    assert truth.sum() == 4
    assert [row["actual"] == "clicked" for row in rows] == truth.tolist()
    assert [row["probability of a click"] for row in rows] == pytest.approx(
        expit(np.linspace(-2, 2, 8))
    )
    example = display.example(small, 3)
    assert said(example, {"DENSE_OUTPUT": np.zeros((3, 1))}) == [
        f"a click with 50.0%; {'clicked' if each else 'not clicked'}" for each in truth[:3]
    ]


def test_tenths_are_those_of_a_slow_count() -> None:
    rng = np.random.default_rng(8)
    logits = np.append(rng.standard_normal(93), [1e4, -1e4])
    clicks = rng.random(95) < expit(logits)
    predicted, observed, deviations = display._tenths(logits, clicks)
    order = sorted(range(95), key=lambda place: logits[place])
    low, high = order[:10], order[-9:]
    for place, group in ((0, low), (9, high)):
        assert predicted[place] == pytest.approx(np.mean([expit(logits[i]) for i in group]))
        share = np.mean([clicks[i] for i in group])
        assert observed[place] == pytest.approx(share)
        assert deviations[place] == pytest.approx((share * (1 - share) / len(group)) ** 0.5)
    assert len(predicted) == 10


# The house


def test_reading_and_generating_load_no_framework() -> None:
    names = "data, synthetic.generate, raw, spec, tables, display"
    imports = "; ".join(f"import helpers.models._criteo.{name}" for name in names.split(", "))
    code = (
        f"import sys; {imports}; print({{'torch', 'tensorflow', "
        "'keras', 'pandas', 'polars', 'sklearn', 'matplotlib'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
