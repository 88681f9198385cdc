"""The experiments of each NVIDIA target make exactly the tables that NVIDIA published for it."""

from collections.abc import Iterator

import pytest
from pandas import DataFrame, read_csv

from helpers import models
from helpers.params import read_file, resolve
from helpers.schema import Config
from helpers.workspace import ROOT

# How the published tables spell a format and its accelerator
SPELLED = {
    ("onnx", "none"): ("ONNX Runtime", "", "ONNX"),
    ("onnx", "trt"): ("ONNX Runtime", "NVIDIA TensorRT", "ONNX"),
    ("trt", "none"): ("NVIDIA TensorRT", "", "NVIDIA TensorRT"),
    ("ts-trace", "none"): ("PyTorch", "", "TorchScript Trace"),
    ("tf-savedmodel", "amp"): ("TensorFlow", "Automatic FP16", "TensorFlow SavedModel"),
}
PARAMETER_SERVER = "NVIDIA Merlin HPS + NVIDIA TensorRT"
ENSEMBLE = (PARAMETER_SERVER, "", f"NVIDIA Triton Ensemble ({PARAMETER_SERVER})")
# NVIDIA's ResNet50 script serves two instances online; its document says one, and so do the rows
INSTANCES_ONLINE = {"resnet50": (2, 1)}
# NVIDIA's TorchScript of TFT is fp32, whatever its rows say
PRECISION = {("tft", "ts-trace"): ("fp32", "FP16")}
TABLE = [
    "gpu",
    "scenario",
    "dataset",
    "backend",
    "backend_accelerator",
    "model_format",
    "precision",
]


def published(model: str) -> DataFrame:
    rows = read_csv(ROOT / f"params/published/{model}.csv", keep_default_na=False)
    accelerators = rows["backend_accelerator"].replace("TensorRT", "NVIDIA TensorRT")
    return rows.assign(backend_accelerator=accelerators)


TABLES = {
    (model, *name): rows
    for model in models.names()
    for name, rows in published(model).groupby(TABLE, sort=False)
}
TARGETS = {
    content["gpu"]: content
    for content in map(read_file, sorted((ROOT / "params").glob("NVIDIA-*.yaml")))
}


def experiments(model: str, gpu: str, scenario: str) -> Iterator[Config]:
    content = TARGETS[gpu]
    section = content["models"].get(model, {"experiments": {}})
    for name in section["experiments"]:
        yield resolve(model, f"perf_{scenario}", experiment=name, **content)


def table_of(config: Config, scenario: str) -> tuple[str, ...]:
    spelled = SPELLED[config.format, config.accelerator]
    if models.ensemble(config.model):
        spelled = ENSEMBLE
    dataset = config.variant if config.model == "tft" else ""
    return (config.model, config.gpu, scenario, dataset, *spelled, precision_of(config))


def precision_of(config: Config) -> str:
    """The precision as the published tables spell it."""
    known = PRECISION.get((config.model, config.format))
    return known[1] if known else config.precision.upper()


def test_every_published_gpu_has_a_target_that_spells_it_so() -> None:
    assert {name[1] for name in TABLES} <= set(TARGETS)


@pytest.mark.parametrize("name", TABLES, ids="-".join)
def test_a_published_table_is_made_by_one_experiment_or_one_for_each_batch_size(
    name: tuple[str, ...],
) -> None:
    model, gpu, scenario = name[:3]
    rows = TABLES[name]
    found = [c for c in experiments(model, gpu, scenario) if table_of(c, scenario) == name]

    if scenario == "offline":
        sizes = sorted(size for config in found for size in config.batch_sizes)
        assert sizes == sorted(rows["batch_size"])
        assert set(rows["concurrency"]) == {1}
    else:
        (config,) = found
        assert config.concurrency == list(rows["concurrency"])
        assert {config.online_batch_size} == set(rows["batch_size"])
    assert len(found) == 1 or (model == "bert" and all(len(c.batch_sizes) == 1 for c in found))
    for config in found:
        agree(config, scenario, rows)


def agree(config: Config, scenario: str, rows: DataFrame) -> None:
    """What the rows say beside batches and clients: instances, precision, largest batch."""
    instances = getattr(config.instances, scenario)
    said = (
        {instances}
        if scenario == "offline"
        else {INSTANCES_ONLINE.get(config.model, (0, instances))[1]}
    )
    assert set(rows["instances"]) == said
    assert config.precision == PRECISION.get((config.model, config.format), [config.precision])[0]
    if config.model != "bert":  # its rows say 16 for each of NVIDIA's three models
        assert set(rows["max_batch_size"]) == {config.max_batch_size}


@pytest.mark.parametrize("gpu", sorted({name[1] for name in TABLES}))
def test_every_experiment_of_a_published_gpu_has_its_table(gpu: str) -> None:
    for model in TARGETS[gpu]["models"]:
        online = any(name[:3] == (model, gpu, "online") for name in TABLES)
        for scenario in ("offline", "online") if online else ("offline",):
            for config in experiments(model, gpu, scenario):
                assert table_of(config, scenario) in TABLES


def test_the_servers_release_is_the_one_of_each_models_document() -> None:
    releases = {"resnet50": "21.02", "bert": "21.10", "tft": "22.11", "widedeep": "22.02"}
    releases |= {"dlrm": "23.02", "dcnv2": "23.02"}
    for gpu, content in TARGETS.items():
        for model in content["models"]:
            for config in experiments(model, gpu, "offline"):
                assert config.server.release == releases[model]
