"""What int8 is calibrated with: training samples, drawn by a seed; and what a model decides."""

from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from helpers import models
from helpers.errors import DataError
from helpers.models import Arrays

VARIANT = {"bert": "small", "tft": "electricity", "dlrm": "T15-10k"}
MODELS = ("resnet50", "bert", "tft", "widedeep", "dlrm")  # dcnv2 reads what dlrm does


def config_of(model: str) -> Any:
    return SimpleNamespace(
        model=model,
        dataset="generated-small",
        variant=VARIANT.get(model, ""),
        max_seq_length=None,
        crop_size=None,
        export_precision="fp32",
        lookup="",
        fused=True,
        table_precision="fp32",
    )


@pytest.fixture(scope="module", params=MODELS)
def generated(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    folder = tmp_path_factory.mktemp(request.param)
    config = config_of(request.param)
    models.get(request.param).prepare_dataset(config, folder)
    return config, folder


def rows(samples: Arrays) -> list[bytes]:
    """Give each sample as bytes."""
    arrays = list(samples.values())
    return [b"".join(each[i].tobytes() for each in arrays) for i in range(len(arrays[0]))]


@pytest.mark.slow
@pytest.mark.parametrize("name", models.names())
def test_a_model_has_the_functions_that_are_called_by_name(name: str) -> None:
    model = models.get(name)
    found = {
        "write": model.module("synthetic.generate").write,
        "fit": model.module("synthetic.fit").fit,
        "example": model.module("display").example,
    }
    assert {key: [*signature(each).parameters] for key, each in found.items()} == {
        "write": ["config", "folder"],
        "fit": ["config", "dataset", "path"],
        "example": ["dataset", "most"],
    }
    assert (model.raw is None) == (name == "bert")


@pytest.mark.slow
def test_training_samples_are_as_the_evaluated_ones_and_none_of_them(
    generated: tuple[Any, Path],
) -> None:
    config, folder = generated
    model = models.get(config.model)
    evaluated = next(model.open_dataset(config, folder).batches(10_000))

    drawn = model.training_samples(config, folder, 16, seed=0)

    assert {name: (each.dtype, each.shape[1:]) for name, each in drawn.items()} == {
        name: (each.dtype, each.shape[1:]) for name, each in evaluated.items()
    }
    assert len(set(rows(drawn))) == 16
    assert not set(rows(drawn)) & set(rows(evaluated))


def test_the_seed_alone_decides_which_are_drawn(generated: tuple[Any, Path]) -> None:
    config, folder = generated
    draw = models.get(config.model).training_samples

    first = rows(draw(config, folder, 8, seed=3))

    assert rows(draw(config, folder, 8, seed=3)) == first
    assert rows(draw(config, folder, 8, seed=4)) != first


def test_more_than_there_are_is_an_error(generated: tuple[Any, Path]) -> None:
    config, folder = generated

    with pytest.raises(DataError, match=r"^1,000,000 training samples are needed, but the set "):
        models.get(config.model).training_samples(config, folder, 1_000_000, seed=0)


MISSING = {
    "resnet50": ("train", "train is not a folder. "),
    "bert": ("train-v1.1.json", "has no train-v1.1.json, nor have its subfolders"),
    "tft": ("train.csv", "has no train.csv. "),
    "widedeep": ("train", "has no train/*.parquet. "),
    "dlrm": ("train", "numerical.bin is not a file of "),
}


def test_a_set_without_training_samples_is_an_error(
    generated: tuple[Any, Path], tmp_path: Path
) -> None:
    config, folder = generated
    name, message = MISSING[config.model]
    for each in folder.iterdir():
        if each.name != name:
            (tmp_path / each.name).symlink_to(each)

    with pytest.raises(DataError) as caught:
        models.get(config.model).training_samples(config, tmp_path, 1, seed=0)

    assert message in str(caught.value)


def test_a_decision_changes_with_the_output_that_it_is_made_from(
    generated: tuple[Any, Path],
) -> None:
    """Of outputs that are random, their own negatives decide otherwise almost everywhere."""
    config, folder = generated
    model = models.get(config.model)
    dataset, random = model.open_dataset(config, folder), np.random.default_rng(0)
    outputs = {
        tensor.name: random.standard_normal((len(dataset), *tensor.shape)).astype(np.float32)
        for tensor in model.outputs(config)
    }
    right = dataset.decisions(outputs)

    assert len(right) > 30
    changed = dataset.decisions({k: 50 * -v for k, v in outputs.items()})
    assert changed.shape == right.shape
    assert np.mean(changed == right) < 0.7
