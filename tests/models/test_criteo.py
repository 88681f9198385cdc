"""Criteo's folders against plain NumPy files, pair counts, closed forms and scikit-learn."""

import re
import tracemalloc
from itertools import chain
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from scipy.special import expit
from scipy.stats import chisquare
from sklearn.metrics import log_loss, roc_auc_score

from helpers.errors import DataError, ParameterError
from helpers.models._criteo import data, display, spec
from helpers.models._criteo.data import INPUTS, OUTPUT, Samples, SplitBinary
from helpers.models._criteo.synthetic import generate
from helpers.models._criteo.tables import TABLES
from tests.models.builders import content, refusal, said

ROWS = (126, 127, 128, 32_766, 32_767, 40_000, *range(3, 23))  # of tables, around the types' ends
TYPES = ("int8", "int16", "int16", "int16", "int32", "int32", *["int8"] * 20)
COUNTS = {"train": 50, "test": 23}


def drawn(count, rows=ROWS, seed=0):
    """Draw samples, the largest id of each table among them, and some missing numbers."""
    rng = np.random.default_rng(seed)
    ids = np.stack([rng.integers(0, table, count) for table in rows], axis=1)
    ids[0] = np.array(rows) - 1
    numbers = rng.gamma(2, 1, (count, 13)).astype(np.float16)
    clicks = rng.random(count) < 0.4
    clicks[:2] = True, False
    return Samples(ids.astype(np.int32), numbers.astype(np.float32), clicks)


def folder_of(root, rows=ROWS):
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
def folder(tmp_path):
    return folder_of(tmp_path)


def write(dataset, folder, variant="T15-10k"):
    generate.write(SimpleNamespace(dataset=dataset, variant=variant), folder)


def samples(folder, part="test"):
    return SplitBinary(folder, part=part).read(slice(None))


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """The generated small set, which tests only read."""
    root = tmp_path_factory.mktemp("small")
    write("generated-small", root)
    return SplitBinary(root, TABLES["T15-10k"])


def test_the_tables_have_the_published_number_of_rows():
    sums = {variant: sum(rows) for variant, rows in TABLES.items() if len(rows) == 26}
    del sums["T15-10k"]
    assert sums == {"T15": 32_709_138, "T3": 177_944_291, "T0": 882_774_575}
    assert TABLES["T15-10k"] == tuple(min(rows, 10_000) for rows in TABLES["T15"])


# The description


def test_the_description_is_laid_out_as_nvidias(folder):
    found = yaml.safe_load((folder / "feature_spec.yaml").read_text())
    categorical = [f"cat_{place}.bin" for place in range(26)]
    numerical = [f"num_{place}" for place in range(13)]
    assert list(found) == ["channel_spec", "feature_spec", "metadata", "source_spec"]
    channels = {"categorical": categorical, "numerical": numerical, "label": ["label"]}
    assert found["channel_spec"] == channels
    features = {
        f"cat_{place}.bin": {"cardinality": rows, "dtype": dtype}
        for place, (rows, dtype) in enumerate(zip(ROWS, TYPES, strict=True))
    }
    features |= {name: {"dtype": "float16"} for name in numerical} | {"label": {"dtype": "bool"}}
    assert found["feature_spec"] == features
    for part in ("train", "test"):
        names = {"numerical.bin": numerical, "label.bin": ["label"]}
        names |= {name: [name] for name in categorical}
        sources = {source.pop("files")[0]: source for source in found["source_spec"][part]}
        assert sources == {
            f"{part}/{file}": {"type": "split_binary", "features": each}
            for file, each in names.items()
        }


def test_another_order_and_other_names_are_followed(folder):
    """The order of the channel is that of the tables; the order of the sources is no matter."""

    def change(content):
        content["channel_spec"]["categorical"].reverse()
        content["source_spec"]["test"].reverse()
        (folder / "test" / "cat_0.bin").rename(folder / "first.bin")
        content["source_spec"]["test"][25]["files"] = ["first.bin"]
        content["feature_spec"]["cat_9.bin"] |= {"hotness": 1, "alpha": 1.45}
        content["feature_spec"]["label"]["dtype"] = "int8"
        content["metadata"] = None

    expected = samples(folder).categorical[:, ::-1]
    edit(folder, change)
    assert SplitBinary(folder).spec.cardinalities == ROWS[::-1]
    np.testing.assert_array_equal(samples(folder).categorical, expected)


def edit(folder, change):
    path = folder / "feature_spec.yaml"
    description = yaml.safe_load(path.read_text())
    change(description)
    path.write_text(yaml.safe_dump(description))


def features(name, **values):
    return lambda content: content["feature_spec"][name].update(values)


def channel(name, change):
    return lambda content: change(content["channel_spec"][name])


def source(part, place, **values):
    return lambda content: content["source_spec"][part][place].update(values)


LIST, SIZE = "list should have at", "and has an impossible cardinality,"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda c: c.pop("channel_spec"), "channel_spec: field required"),
        (lambda c: c["source_spec"].pop("test"), "source_spec.test: field required"),
        (lambda c: c["feature_spec"].pop("cat_7.bin"), "cat_7.bin should be once in feature_spec "),
        (lambda c: c["feature_spec"].update(x={"dtype": "int8"}), ": x should be once in "),
        (features("label", dtype=8), "feature_spec.label.dtype: input should be a valid string"),
        (features("label", dtype="int16"), "label is int16 and should be bool or int8"),
        (features("num_4", dtype="int32"), "num_4 is int32 and should be float16"),
        (features("cat_2.bin", dtype="float16"), "cat_2.bin is float16 and should be int8 or int"),
        (features("cat_2.bin", cardinality=0), f"cat_2.bin is int16 {SIZE} 0"),
        (features("cat_2.bin", cardinality=None), f"cat_2.bin is int16 {SIZE} N"),
        (features("cat_2.bin", cardinality="9"), "cat_2.bin.cardinality: input should be a valid"),
        (features("cat_0.bin", cardinality=129), f"cat_0.bin is int8 {SIZE} 129"),
        (features("cat_2.bin", hotness=3), "feature_spec.cat_2.bin.hotness: input should be 1"),
        (channel("categorical", list.pop), f"channel_spec.categorical: {LIST} least 26 items"),
        (channel("numerical", lambda n: n.append("y")), f"channel_spec.numerical: {LIST} most 13"),
        (channel("label", list.clear), f"channel_spec.label: {LIST} least 1 item"),
        (channel("numerical", lambda n: n.__setitem__(0, "num_1")), "num_1 should be once in "),
        (source("train", 3, type="csv"), "train.3.type: input should be 'split_binary'"),
        (source("train", 3, files=[]), f"source_spec.train.3.files: {LIST} least 1"),
        (source("test", 3, features=["cat_1.bin", "cat_2.bin"]), "one file of cat_1.bin, but ha"),
        (source("test", 3, features=["cat_2.bin"]), "should have one file of cat_1.bin, but has 0"),
        (source("test", 0, features=["num_1"]), "have one file of num_0, num_1, num_2, num_3"),
        (lambda c: c["source_spec"]["test"].pop(), "should have one file of cat_25.bin, but has 0"),
    ],
)
def test_a_wrong_description_is_one_line_that_names_the_feature(change, text, folder):
    edit(folder, change)
    found = refusal(DataError, SplitBinary, folder)
    assert found.startswith(f"{folder / 'feature_spec.yaml'}: ")
    assert text in found


def test_a_file_that_is_none_and_a_missing_one_are_one_line(tmp_path):
    found = refusal(DataError, SplitBinary, tmp_path)
    assert found.startswith(f"{tmp_path} has no feature_spec.yaml. Use a split-binary folder, ")
    for written, text in (
        (b"", "the whole: input should be"),
        (b"- 1\n", "the whole: input should be"),
        (b"a: [1\n", "is not YAML: while parsing a flow sequence"),
        (b"\x93NUMPY\xff", "is not YAML: "),
    ):
        (tmp_path / "feature_spec.yaml").write_bytes(written)
        assert text in refusal(DataError, SplitBinary, tmp_path)


# The samples


def test_the_samples_are_those_that_numpy_wrote(folder):
    dataset, expected = SplitBinary(folder, ROWS), drawn(23, seed=23)
    (batch,) = dataset.batches(99)
    assert list(batch) == list(INPUTS)
    for found, array, dtype in zip(
        batch.values(), expected[:2], (np.int32, np.float32), strict=True
    ):
        np.testing.assert_array_equal(found, array)
        assert found.dtype == dtype
    counts = {"samples": 23, "clicks": int(expected.clicks.sum()), "rows of all tables": sum(ROWS)}
    assert dataset.facts == {**counts, "origin": "folder"}


def test_the_training_part_is_read_in_any_order(folder):
    part, expected = SplitBinary(folder, part="train"), drawn(50, seed=50)
    order = np.random.default_rng(1).permutation(50)
    for found, array in zip(part.read(order), expected, strict=True):
        np.testing.assert_array_equal(found, array[order])
    np.testing.assert_array_equal(part.clicks(), expected.clicks)


def test_a_part_is_written_as_numpy_wrote_it(folder, tmp_path):
    whole = drawn(23, seed=23)
    batches = [Samples(*(array[rows] for array in whole)) for rows in (slice(9), slice(9, None))]
    data.write_part(tmp_path / "again", ROWS, batches)
    found = content(tmp_path / "again")
    assert len(found) == 28
    assert found == content(folder / "test")


@pytest.mark.parametrize(
    ("name", "change", "text"),
    [
        ("cat_4.bin", None, "is not a file of int32 samples: [Errno 2] No such file"),
        ("cat_4.bin", lambda c: c[:-4], "has 22 samples, but label.bin has 23"),
        ("cat_4.bin", lambda c: c[:-3], "is not a file of int32 samples: Size of available data"),
        ("cat_0.bin", lambda c: c + c, "has 46 samples, but label.bin has 23"),
        ("numerical.bin", lambda c: c[:-26], "has 22 samples, but label.bin has 23"),
        ("numerical.bin", lambda c: c[:-2], "is not a file of ('<f2', (13,)) samples: Size of "),
        ("label.bin", lambda c: b"", "is not a file of uint8 samples: "),
        ("cat_6.bin", lambda c: c[:9] + b"\x03" + c[10:], "has the id 3, but its table has 3"),
        ("cat_6.bin", lambda c: c[:9] + b"\xff" + c[10:], "has the id -1, but its table has 3"),
        ("numerical.bin", lambda c: c[:-2] + b"\x00\x7c", "has a number that is not finite"),
        ("numerical.bin", lambda c: b"\x01\x7e" + c[2:], "has a number that is not finite"),
        ("label.bin", lambda c: c[:-1] + b"\x02", "has a label other than 0 and 1"),
    ],
)
def test_a_damaged_file_is_one_line_that_names_it(name, change, text, folder):
    path = folder / "test" / name
    if change is None:
        path.unlink()
    else:
        path.write_bytes(change(path.read_bytes()))
    found = refusal(DataError, lambda: list(SplitBinary(folder).batches(8)))
    assert found.startswith(f"{path} {text}")
    assert len(samples(folder, "train").clicks) == 50  # the other part is not read


def test_a_network_with_other_tables_is_refused(folder):
    found = refusal(DataError, SplitBinary, folder, (*ROWS[:25], 23))
    assert "feature 25 has 22 ids, but the network's table has 23 rows. Use variant 'own'" in found


def test_a_large_set_is_read_within_bounded_memory(tmp_path):
    """The files of 200,000 samples have 10 MB; a batch, as it is computed with, 0.2 MB."""
    spec.write(tmp_path, (5,) * 26, {})
    ids = np.zeros((200_000, 26), dtype=np.int8)
    numbers, clicks = np.ones((200_000, 13), np.float32), np.arange(200_000) % 2 == 0
    for part in ("train", "test"):
        data.write_part(tmp_path / part, (5,) * 26, [Samples(ids, numbers, clicks)])
    dataset = SplitBinary(tmp_path)
    tracemalloc.start()
    batches = chain(dataset.batches(1024), dataset.batches(1024, 150_000))
    count = sum(len(batch["categorical_features"]) for batch in batches)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 350_000
    assert peak < 1e6


# The metric


def pairs_in_order(clicks, logits):
    """Count, for every click and every sample that is none, which of them is the likelier."""
    apart = logits[clicks][:, None] - logits[~clicks][None]
    return float(((apart > 0) + 0.5 * (apart == 0)).mean())


@pytest.mark.parametrize("decimals", [0, 1, 6])
def test_the_score_is_the_pairs_in_order_ties_by_half_and_scikit_learns_loss(decimals, folder):
    clicks, rng = drawn(23, seed=23).clicks, np.random.default_rng(decimals)
    logits = np.round(rng.standard_normal(23) + clicks, decimals)
    expected = {
        "auc": pytest.approx(pairs_in_order(clicks, logits), abs=1e-12),
        "bce": pytest.approx(log_loss(clicks, expit(logits))),
    }
    for shape in ((23,), (23, 1)):
        assert SplitBinary(folder).score({OUTPUT: logits.reshape(shape)}) == expected


def test_the_loss_holds_for_large_logits():
    found = data.cross_entropy(np.array([True, True, False]), np.array([1e4, -1e4, 0]))
    assert found == pytest.approx((0 + 1e4 + np.log(2)) / 3)


def test_outputs_that_cannot_be_scored_are_refused_or_not_a_number(folder):
    dataset = SplitBinary(folder)
    for shape in ((22,), (23, 2), (1, 23), ()):
        found = refusal(DataError, dataset.score, {OUTPUT: np.zeros(shape)})
        assert found == f"DENSE_OUTPUT is {list(shape)} and should be [23]"
    broken = np.zeros(23)
    broken[3] = np.nan
    assert all(np.isnan(value) for value in dataset.score({OUTPUT: broken}).values())
    (folder / "test" / "label.bin").write_bytes(bytes(23))
    found = refusal(DataError, SplitBinary(folder).score, {OUTPUT: np.zeros(23)})
    assert "needs samples with and without clicks" in found


# What is generated


@pytest.mark.parametrize("rows", [2, 100, 7_912_889])
def test_ids_follow_the_power_law(rows):
    """Of n + 1 on to n + 2 on, the distribution function (1 - x^-.45) / (1 - (rows + 1)^-.45)."""
    count = 200_000
    ids = generate.power_law(rows, np.random.default_rng(rows).random(count))
    edges = np.unique(np.round(np.geomspace(1, rows + 1, 40)))
    below = (1 - edges**-0.45) / (1 - (rows + 1) ** -0.45)
    found, _ = np.histogram(ids + 1, bins=np.append(edges[:-1], rows + 1))
    assert chisquare(found, count * np.diff(below)).pvalue > 1e-3
    ends = np.array([0.0, np.nextafter(1, 0)])
    assert generate.power_law(rows, ends).tolist() == [0, rows - 1]


def test_effects_are_those_of_splitmix64():
    """Its first outputs from the seed 0, as published with the reference code of xoshiro."""
    outputs = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F, 0xF88BB8A8724C81EC]
    expected = [(2 * output / 2**64 - 1) * 3**0.5 for output in outputs]
    np.testing.assert_allclose(generate.effect(-1, np.arange(1, 5)), expected, atol=1e-12)
    one, other = (generate.effect(feature, np.arange(10_000)) for feature in (3, 4))
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.05


def test_the_parts_of_a_set_differ(small):
    train, test = small.spec.parts["train"][0].parents[1], small.read(slice(None))
    train = samples(train, "train")
    assert not (train.numerical[:100] == test.numerical[:100]).all(axis=1).any()
    assert (len(train.clicks), len(test.clicks)) == (8000, 2125)


def test_numbers_are_logarithms_of_counts_and_some_are_missing(small):
    numbers = small.read(slice(None)).numerical
    there = numbers > 0
    assert numbers.min() == 0
    counts = np.round(np.exp(numbers[there].astype(np.float64)) - 3)
    near = counts < 100  # beyond, float16 does not tell two counts apart
    again = np.log(counts[near] + 3).astype(np.float16)
    np.testing.assert_array_equal(again, numbers[there][near])
    assert (counts.min(), near.mean() > 0.8) == (-1, True)
    np.testing.assert_allclose(1 - there.mean(axis=0), generate.MISSING, atol=0.04)


def test_clicks_are_as_likely_as_planted_and_no_score_beats_that():
    samples = generate.draw(np.random.default_rng(5), 100_000, TABLES["T15-10k"])
    planted = generate.logits(samples.categorical, samples.numerical)
    probability = 1 / (1 + np.exp(-planted))
    for group in np.array_split(np.argsort(planted), 20):
        error = (probability[group] * (1 - probability[group])).sum() ** 0.5 / len(group)
        assert abs(samples.clicks[group].mean() - probability[group].mean()) < 4 * error
    assert 0.82 < roc_auc_score(samples.clicks, planted) < 0.87
    assert 0.15 < samples.clicks.mean() < 0.4


def test_both_the_numbers_and_the_ids_and_their_pairs_tell_of_clicks():
    first, other = (
        generate.draw(np.random.default_rng(seed), 50_000, TABLES["T15-10k"]) for seed in (6, 7)
    )
    whole = roc_auc_score(first.clicks, generate.logits(*first[:2]))
    for mixed in ((other[0], first[1]), (first[0], other[1])):
        assert roc_auc_score(first.clicks, generate.logits(*mixed)) < whole - 0.03
    effects = [generate.effect(n, ids) for n, ids in enumerate(first.categorical.T)]
    product = sum(effects[a] * effects[b] for a, b in generate.PAIRS)
    assert roc_auc_score(first.clicks, product) > 0.55


def test_tables_of_no_list_are_refused(tmp_path):
    found = refusal(ParameterError, write, "generated", tmp_path, "own")
    assert found.startswith("Unknown tables 'own'. Known tables: T15-10k, T15")


# What is shown


def shown(picture):
    """Check that it is a picture, and give the words beside it."""
    assert picture.data.startswith(b"\x89PNG")
    return picture.alt


def test_the_tables_are_shown_with_how_skewed_their_lookups_are(small, tmp_path):
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
    rows = (1, *range(3, 28))  # all small
    spec.write(tmp_path, rows, {})
    for part in ("train", "test"):
        data.write_part(tmp_path / part, rows, [drawn(40, rows)])
    text = shown(display.show_tables(SplitBinary(tmp_path)))
    assert text == f"The 26 tables have 1 to 27 rows, {sum(rows)} together."


def test_predictions_are_shown_beside_what_was_observed(small):
    sizes_seen = []

    def infer(batch):
        sizes_seen.append(len(batch["categorical_features"]))
        found = generate.logits(batch["categorical_features"], batch["numerical_features"])
        return {"DENSE_OUTPUT": found.astype(np.float32)[:, None]}

    text = shown(display.show_predictions(small, infer))
    assert sizes_seen == [256] * 8 + [77]
    assert text.startswith("Of 2,125 samples in 10 groups of rising prediction, the lowest has ")
    assert re.search(r"; the largest distance is \d+\.\d percentage points\.$", text)
    everything = infer(small.read(slice(None)).inputs)
    assert shown(display.show_predictions(small, everything)) == text


def test_single_clicks_are_shown_with_what_happened(small):
    def infer(batch):
        return {"DENSE_OUTPUT": np.linspace(-2, 2, len(batch["categorical_features"]))[:, None]}

    rows = display.show_clicks(small, infer)

    places = [int(row["sample"]) for row in rows]
    truth = small.clicks(np.array(places))
    assert places == sorted(set(places))
    assert truth.sum() == 4
    assert [row["actual"] == "clicked" for row in rows] == truth.tolist()
    probabilities = [row["probability of a click"] for row in rows]
    assert probabilities == pytest.approx(expit(np.linspace(-2, 2, 8)))
    example = display.example(small, 3)
    assert said(example, {"DENSE_OUTPUT": np.zeros((3, 1))}) == [
        f"a click with 50.0%; {'clicked' if each else 'not clicked'}" for each in truth[:3]
    ]


def test_tenths_are_those_of_a_slow_count():
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
