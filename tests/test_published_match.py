"""One experiment of each NVIDIA target makes exactly the tables that NVIDIA published for it."""

from typing import Any

import pytest
from pandas import DataFrame, read_csv

from helpers.params import read_file, resolve
from helpers.workspace import ROOT

PUBLISHED = read_csv(ROOT / "params/published/resnet50.csv")
FILES = [
    path
    for path in sorted((ROOT / "params").glob("NVIDIA-*.yaml"))
    if read_file(path)["gpu"] in set(PUBLISHED["gpu"])
]


def of(content: dict[str, Any], scenario: str) -> DataFrame:
    rows = PUBLISHED[(PUBLISHED["gpu"] == content["gpu"]) & (PUBLISHED["scenario"] == scenario)]
    assert len(rows)
    return rows


def only(rows: DataFrame, column: str) -> Any:
    """The one value that all the rows have in `column`."""
    (value,) = rows[column].unique()
    return value


def test_every_published_gpu_has_a_target_that_spells_it_so() -> None:
    assert {read_file(path)["gpu"] for path in FILES} == set(PUBLISHED["gpu"])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_one_experiment_makes_the_published_offline_table(path: Any) -> None:
    content = read_file(path)
    rows = of(content, "offline")

    (experiment,) = content["models"]["resnet50"]["experiments"]
    config = resolve("resnet50", "perf_offline", experiment=experiment, **content)

    assert config.batch_sizes == list(rows["batch_size"])
    assert config.instances.offline == only(rows, "instances")
    assert config.max_batch_size == only(rows, "max_batch_size")
    assert config.precision.upper() == only(rows, "precision")
    assert only(rows, "concurrency") == 1


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_one_experiment_makes_the_published_online_table(path: Any) -> None:
    content = read_file(path)
    rows = of(content, "online")

    (experiment,) = content["models"]["resnet50"]["experiments"]
    config = resolve("resnet50", "perf_online", experiment=experiment, **content)

    assert config.concurrency == list(rows["concurrency"])
    # NVIDIA's script serves two instances online; its document says one, and so do the rows
    assert (config.instances.online, only(rows, "instances")) == (2, 1)
    assert config.online_batch_size == only(rows, "batch_size")
    assert config.max_batch_size == only(rows, "max_batch_size")
