"""What holds for all models: tensors, generated sets, batches, fits, samples to train with."""

import numpy as np
import pytest

from helpers import models
from helpers.errors import DataError
from helpers.models import Tensor
from helpers.models._arrays import concatenate
from helpers.models.widedeep.features import MULTI_HOT, NAMES, NUMERIC
from tests.models import builders
from tests.models.builders import content, refusal

VARIANT = {"bert": "small", "tft": "electricity", "dlrm": "T15-10k", "dcnv2": "T15-10k"}
MODELS = ("resnet50", "bert", "tft", "widedeep", "dlrm")  # dcnv2 reads what dlrm does


def config_of(model, **fields):
    return builders.config_of(**{"model": model, "variant": VARIANT.get(model, "")} | fields)


@pytest.fixture(scope="module", params=MODELS)
def generated(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    config = config_of(request.param)
    models.get(request.param).prepare_dataset(config, folder)
    return config, folder


@pytest.fixture
def model(generated):
    return models.get(generated[0].model)


@pytest.fixture
def dataset(model, generated):
    return model.open_dataset(*generated)


def rows(samples):
    """Return each sample as bytes."""
    arrays = list(samples.values())
    return [b"".join(each[i].tobytes() for each in arrays) for i in range(len(arrays[0]))]


FLOAT = "the type that follows the precision of the export"
CRITEO = (
    [("categorical_features", "int32", (26,)), ("numerical_features", "float32", (13,))],
    [("DENSE_OUTPUT", "float32", (1,))],
)
TENSORS = {
    "resnet50": ([("INPUT__0", FLOAT, (3, 224, 224))], [("OUTPUT__0", FLOAT, (1000,))]),
    "bert": (
        [(f"input__{place}", "int32", (384,)) for place in range(3)],
        [(f"output__{place}", FLOAT, (384,)) for place in range(2)],
    ),
    "tft": (
        [
            ("s_cat__0", "int64", (192, 1)),
            ("k_cont__3", FLOAT, (192, 3)),
            ("target__6", FLOAT, (192, 1)),
        ],
        [("target__0", FLOAT, (24, 3))],
    ),
    "widedeep": (
        [(n, "float32" if n in NUMERIC else "int32", (1 + 2 * (n in MULTI_HOT),)) for n in NAMES],
        [("wide_deep_model", "float32", (1,))],
    ),
    "dlrm": CRITEO,
    "dcnv2": CRITEO,
}


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("name", TENSORS)
def test_the_tensors_are_nvidias(name, precision):
    kind, config = "float16" if precision == "fp16" else "float32", config_of(name)
    config.export_precision = precision
    found = models.get(name)
    ends = found.inputs(config), found.outputs(config)
    for tensors, wanted in zip(ends, TENSORS[name], strict=True):
        typed = ((n, kind if dtype is FLOAT else dtype, shape) for n, dtype, shape in wanted)
        assert list(tensors) == [Tensor(*each) for each in typed]


def test_a_size_of_the_samples_is_that_of_the_tensors():
    images = models.get("resnet50").inputs(config_of("resnet50", crop_size=64))
    assert [each.shape for each in images] == [(3, 64, 64)]
    bert, config = models.get("bert"), config_of("bert", max_seq_length=128)
    assert {each.shape for each in bert.inputs(config) + bert.outputs(config)} == {(128,)}


# Generated sets


def test_a_generated_set_is_the_same_every_time(dataset, model, generated, tmp_path):
    model.prepare_dataset(generated[0], tmp_path)
    assert content(tmp_path) == content(generated[1])
    assert dataset.facts["origin"] == "generated"


@pytest.mark.parametrize("name", models.names())
def test_an_unknown_generated_set_is_an_error(name, tmp_path):
    model, config = models.get(name), config_of(name, dataset="generated-huge")
    found = refusal(DataError, model.prepare_dataset, config, tmp_path)
    assert found.startswith("Unknown data set 'generated-huge'. Use one of ")
    found = refusal(DataError, model.prepare_checkpoint, config, tmp_path, tmp_path / "c")
    assert found.startswith("No checkpoint can be fitted to 'generated-huge'. Use one of ")
    assert list(tmp_path.iterdir()) == []


def test_samples_come_once_in_order_and_a_limit_is_spread_evenly(dataset):
    count = len(dataset)
    whole = dataset.take(np.arange(count))
    size = count // 2  # a divisor, or one sample remains
    for batches, places in (
        (list(dataset.batches(size)), np.arange(count)),
        (list(dataset.batches(3, 7)), np.arange(7) * count // 7),
        (list(dataset.batches(count + 1, 10_000)), np.arange(count)),
    ):
        assert {len(next(iter(batch.values()))) for batch in batches[:-1]} <= {size, 3}
        for name, found in concatenate(batches).items():
            np.testing.assert_array_equal(found, whole[name][places])
    assert len(batches) == 1


def test_the_score_has_the_metrics_and_needs_an_output_for_each_sample(dataset, model, generated):
    tensors = model.outputs(generated[0])
    outputs = {each.name: np.ones((len(dataset), *each.shape), np.float32) for each in tensors}
    assert set(model.METRICS) <= set(dataset.score(outputs))
    assert set(model.METRICS.values()) == {"lower" if "p50" in model.METRICS else "higher"}
    found = refusal(DataError, dataset.score, {name: each[1:] for name, each in outputs.items()})
    assert found.startswith(f"{tensors[0].name} is [{len(dataset) - 1}, ")
    assert f"] and should be [{len(dataset)}" in found


# Fits

QUICK = {  # by what fits: the name of its recipes, and one of a step or a few
    "resnet50": ("RECIPES", lambda fit: fit.Recipe(steps=((1, 32),), solved=(1, 32))),
    "bert": ("RECIPES", lambda fit: (1, 2e-3)),
    "tft": ("RECIPES", lambda fit: (1, 4, 1e-3)),
    "widedeep": ("RECIPES", lambda fit: (1, 8)),
    "dlrm": ("RECIPES", lambda fit: {"dlrm": fit.Recipe(1, 64, 1e-3, 0.1)}),
}


@pytest.mark.slow
def test_a_fit_says_how_far_it_is_and_leaves_no_other_trace(
    model, generated, tmp_path, monkeypatch, capsys
):
    import torch

    fit, (name, quick) = model.module("synthetic.fit"), QUICK[generated[0].model]
    monkeypatch.setitem(getattr(fit, name), "generated-small", quick(fit))
    np.random.seed(5)
    state, threads = torch.get_rng_state(), torch.get_num_threads()

    model.prepare_checkpoint(*generated, tmp_path / "checkpoint")

    assert list(tmp_path.iterdir()) == [tmp_path / "checkpoint"]
    assert "step 1/1: loss " in capsys.readouterr().out
    assert np.random.rand() == np.random.RandomState(5).rand()
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads
    model.build(generated[0], tmp_path / "checkpoint")


# Training samples and decisions


@pytest.mark.slow
def test_training_samples_are_as_the_evaluated_ones_and_none_of_them(dataset, model, generated):
    evaluated = next(dataset.batches(10_000))

    drawn = model.training_samples(*generated, 16, seed=0)

    assert {name: (each.dtype, each.shape[1:]) for name, each in drawn.items()} == {
        name: (each.dtype, each.shape[1:]) for name, each in evaluated.items()
    }
    assert len(set(rows(drawn))) == 16
    assert not set(rows(drawn)) & set(rows(evaluated))


def test_the_seed_alone_decides_which_are_drawn(model, generated):
    first, again, other = (rows(model.training_samples(*generated, 8, seed)) for seed in (3, 3, 4))
    assert first == again != other


def test_more_than_there_are_is_an_error(model, generated):
    found = refusal(DataError, model.training_samples, *generated, 1_000_000, 0)
    assert found.startswith("1,000,000 training samples are needed, but the set ")


MISSING = {
    "resnet50": ("train", "train is not a folder. "),
    "bert": ("train-v1.1.json", "has no train-v1.1.json, nor have its subfolders"),
    "tft": ("train.csv", "has no train.csv. "),
    "widedeep": ("train", "has no train/*.parquet. "),
    "dlrm": ("train", "numerical.bin is not a file of "),
}


def test_a_set_without_training_samples_is_an_error(model, generated, tmp_path):
    config, folder = generated
    name, message = MISSING[config.model]
    for each in folder.iterdir():
        if each.name != name:
            (tmp_path / each.name).symlink_to(each)
    assert message in refusal(DataError, model.training_samples, config, tmp_path, 1, 0)


def test_a_decision_changes_with_the_output_that_it_is_made_from(dataset, model, generated):
    """Of outputs that are random, their own negatives decide otherwise almost everywhere."""
    random = np.random.default_rng(0)
    outputs = {
        tensor.name: random.standard_normal((len(dataset), *tensor.shape)).astype(np.float32)
        for tensor in model.outputs(generated[0])
    }
    right = dataset.decisions(outputs)

    assert len(right) > 30
    changed = dataset.decisions({k: 50 * -v for k, v in outputs.items()})
    assert changed.shape == right.shape
    assert np.mean(changed == right) < 0.7
