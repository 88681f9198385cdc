"""Parameter files and published rows cover each other exactly, for the five GPUs that NVIDIA has
tables of: every row is made by one named experiment, and no experiment is without its rows.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from helpers import models
from helpers.config.loading import Parameters, configure, parse, read_file
from helpers.config.schema import StageConfig as Config
from helpers.report.nvidia.rows import PublishedRow, everything
from helpers.store.paths import ROOT

GPUS = {
    "NVIDIA A30": "NVIDIA-A30",
    "NVIDIA A40": "NVIDIA-A40",
    "NVIDIA T4": "NVIDIA-T4",
    "NVIDIA DGX-1 (1x V100 32GB)": "NVIDIA-DGX-1-V100-32GB",
    "NVIDIA DGX A100 (1x A100 80GB)": "NVIDIA-DGX-A100-80GB",
}
# Tables and rows, counted in the five documents
COUNTS = {
    ("resnet50", "offline"): (4, 32),
    ("resnet50", "online"): (4, 64),
    ("bert", "offline"): (16, 46),
    ("tft", "offline"): (16, 176),
    ("tft", "online"): (16, 512),
    ("widedeep", "offline"): (8, 72),
    ("widedeep", "online"): (8, 256),
    ("dlrm", "offline"): (6, 30),
    ("dcnv2", "offline"): (6, 30),
}
# How the published tables spell a format and its accelerator
SPELLED = {
    ("onnx", "none"): ("ONNX Runtime", "", "ONNX"),
    ("onnx", "trt"): ("ONNX Runtime", "TensorRT", "ONNX"),
    ("trt", "none"): ("NVIDIA TensorRT", "", "NVIDIA TensorRT"),
    ("ts-trace", "none"): ("PyTorch", "", "TorchScript Trace"),
    ("tf-savedmodel", "amp"): ("TensorFlow", "Automatic FP16", "TensorFlow SavedModel"),
}
PARAMETER_SERVER = "NVIDIA Merlin HPS + NVIDIA TensorRT"
ENSEMBLE = (PARAMETER_SERVER, "", f"NVIDIA Triton Ensemble ({PARAMETER_SERVER})")
# NVIDIA's ResNet50 script serves two instances online; its document says one, and so do the rows
INSTANCES = {("resnet50", "online"): (2, 1)}
# NVIDIA's TorchScript of TFT is fp32, whatever its rows say
PRECISION = {("tft", "ts-trace"): ("fp32", "FP16")}
# NVIDIA's deployment command captured TFT's CUDA graphs, whatever its rows say
CAPTURED = {("tft", "trt"): (True, False)}
# What the documents say beside the rows, by model and largest batch. ResNet50's script counts no
# requests, and Wide & Deep's 100 of them offline: one figure of ours stands for both.
PREFERRED = {
    ("resnet50", 128): [64, 128],
    ("bert", 1): [1],
    ("bert", 8): [4, 8],
    ("bert", 16): [8, 16],
    ("tft", 1024): [512, 1024],
    ("widedeep", 131072): [131072],
    ("dlrm", 65536): [],
    ("dcnv2", 65536): [],
}
SETTINGS = {  # release, precision of the export, queue delay in us, requests, shared memory
    "resnet50": ("21.02", "fp16", 1, 500, "none"),
    "bert": ("21.10", "fp16", 1, 50, "system"),
    "tft": ("22.11", "fp32", 1, 500, "system"),
    "widedeep": ("22.02", "fp32", 0, 500, "system"),
    "dlrm": ("23.02", "fp32", 0, 50, "system"),
    "dcnv2": ("23.02", "fp32", 0, 50, "system"),
}
VARIANTS = {"bert": {"large"}, "tft": {"electricity", "traffic"}, "dlrm": {"T3"}, "dcnv2": {"T3"}}
EXPORTED = {"onnx": "onnx", "trt": "onnx", "ts-trace": "ts-trace"}  # else a SavedModel
Table = tuple[str, ...]  # model, GPU, scenario, data set, backend, accelerator, format, precision
Targets = dict[str, Parameters]


def tables() -> dict[Table, list[PublishedRow]]:
    found: dict[Table, list[PublishedRow]] = {}
    for row in everything():
        accelerator = row.backend_accelerator.replace("NVIDIA ", "")
        served = (row.backend, accelerator, row.model_format, row.precision)
        found.setdefault((row.model, row.gpu, row.scenario, row.dataset, *served), []).append(row)
    return found


TABLES = tables()
TARGETS: Targets = {gpu: read_file(ROOT / f"params/{stem}.yaml") for gpu, stem in GPUS.items()}


def measured(targets: Targets) -> Iterator[tuple[Table, Config]]:
    """Every experiment with the table it is to make, and again with its online one where NVIDIA has
    tables of the model online.
    """
    for content in targets.values():
        for model in content.file.models:
            for name in content.experiments(model):
                for scenario in ("offline", "online"):
                    if (model, scenario) in COUNTS:
                        stage = f"perf_{scenario}"
                        config = configure(content, model, name, stage)
                        yield table_of(config, scenario), config


def table_of(config: Config, scenario: str) -> Table:
    """Spell an experiment as the published tables do."""
    unknown = (config.format, config.accelerator, config.format)
    spelled = SPELLED.get((config.format, config.accelerator), unknown)
    if config.lookup == "hps" and config.format == "trt":
        spelled = ENSEMBLE
    dataset = config.variant if config.model == "tft" else ""
    _, precision = PRECISION.get((config.model, config.format), ("", config.precision.upper()))
    return (config.model, config.gpu, scenario, dataset, *spelled, precision)


def points_of(config: Config, scenario: str) -> list[tuple[int, int]]:
    """List the (batch size, clients) that an experiment measures."""
    if scenario == "offline":
        return [(size, 1) for size in config.batch_sizes]
    return [(config.online_batch_size, clients) for clients in config.concurrency]


def gaps(targets: Targets) -> list[str]:
    """List everything in which experiments and published rows do not cover each other exactly."""
    wanted = Counter(
        (table, row.batch_size, row.concurrency) for table, rows in TABLES.items() for row in rows
    )
    made: Counter[tuple[Table, int, int]] = Counter()
    makers: dict[Table, list[Config]] = defaultdict(list)
    for table, config in measured(targets):
        makers[table].append(config)
        made.update((table, *point) for point in points_of(config, table[2]))
    found = [f"published, not made: {point}" for point in (wanted - made).elements()]
    found += [f"made, not published: {point}" for point in (made - wanted).elements()]
    for table, configs in makers.items():
        one_each = table[0] == "bert" and all(len(c.batch_sizes) == 1 for c in configs)
        if len(configs) > 1 and not one_each:
            found.append(f"made by {[config.experiment for config in configs]}: {table}")
    return found


def test_the_published_rows_are_all_there() -> None:
    counted = {
        key: (len(sizes), sum(sizes))
        for key in COUNTS
        if (sizes := [len(rows) for table, rows in TABLES.items() if (table[0], table[2]) == key])
    }

    assert counted == COUNTS
    assert (len(TABLES), sum(map(len, TABLES.values()))) == (84, 1218)
    assert {table[1] for table in TABLES} == set(GPUS)


def test_each_file_spells_its_gpu_as_the_rows_do_and_runs_in_nvidias_containers() -> None:
    files = {gpu: target.file for gpu, target in TARGETS.items()}
    found = {gpu: (file.gpu, file.device, file.server.kind) for gpu, file in files.items()}

    assert found == {gpu: (gpu, "gpu", "docker") for gpu in GPUS}


def test_experiments_and_published_rows_cover_each_other_exactly() -> None:
    assert gaps(TARGETS) == []


WRONG: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a model less": (lambda m: m.pop("dlrm"), "published, not made"),
    "an experiment less": (
        lambda m: m["bert"]["experiments"].pop("trt-fp16-b8"),
        "published, not made",
    ),
    "a client more": (
        lambda m: m["widedeep"]["defaults"]["concurrency"].append(264),
        "made, not published",
    ),
    "an experiment under a second name": (
        lambda m: m["dcnv2"].update(
            experiments={**m["dcnv2"]["experiments"], "again": {"precision": "fp16"}}
        ),
        "made, not published",
    ),
    "a lookup in memory": (
        lambda m: m["dcnv2"]["defaults"].update(lookup="mapped"),
        "published, not made",
    ),
    "a table in two parts": (
        lambda m: m["dlrm"].update(
            experiments={
                "trt-fp32": {"precision": "fp32"},
                "trt-fp16": {"precision": "fp16", "batch_sizes": [256, 1024]},
                "rest": {"precision": "fp16", "batch_sizes": [4096, 16384, 65536]},
            }
        ),
        "made by ['trt-fp16', 'rest']",
    ),
}


@pytest.mark.parametrize(("change", "said"), WRONG.values(), ids=WRONG.keys())
def test_the_proof_notices(change: Callable[[Any], Any], said: str) -> None:
    content = TARGETS["NVIDIA A30"].file.model_dump()
    change(content["models"])

    found = gaps(TARGETS | {"NVIDIA A30": parse(content, GPUS["NVIDIA A30"], "changed")})

    assert any(line.startswith(said) for line in found)
    assert all("NVIDIA A30" in line for line in found)


@pytest.mark.parametrize(
    ("table", "config"),
    [
        pytest.param(*each, id=f"{'-'.join(each[0][:3])}-{each[1].experiment}")
        for each in measured(TARGETS)
    ],
)
def test_an_experiment_is_set_up_as_its_table_says(table: Table, config: Config) -> None:
    rows, (model, _, scenario) = TABLES[table], table[:3]
    taken, printed = INSTANCES.get((model, scenario), (config.instances.offline,) * 2)

    assert getattr(config.instances, scenario) == taken
    assert {row.instances for row in rows} == {printed}
    assert config.precision == PRECISION.get((model, config.format), [table[-1].lower()])[0]
    captured, told = CAPTURED.get((model, config.format), (config.capture_cuda_graph,) * 2)
    assert config.capture_cuda_graph is captured
    assert {row.cuda_graph for row in rows} <= {None, told}
    # BERT's rows say 16 for each of NVIDIA's three models
    assert {row.max_batch_size for row in rows} == {
        16 if model == "bert" else config.max_batch_size
    }
    assert config.preferred_batch_sizes == PREFERRED[model, config.max_batch_size]
    assert config.accelerator_precision == ("fp16" if config.accelerator == "trt" else None)


@pytest.mark.parametrize("model", SETTINGS)
def test_what_no_row_says_is_what_the_models_document_says(model: str) -> None:
    configs = [
        config for table, config in measured(TARGETS) if (table[0], table[2]) == (model, "offline")
    ]

    assert configs
    assert {
        (
            *(config.server.release, config.export_precision, config.max_queue_delay_us),
            *(config.request_count, config.shared_memory),
        )
        for config in configs
    } == {SETTINGS[model]}
    assert {config.variant for config in configs} == VARIANTS.get(model, {""})
    assert {config.max_seq_length for config in configs} == {384 if model == "bert" else None}
    torch = models.get(model).FRAMEWORK == "torch"
    for config in configs:
        assert config.export_format == (EXPORTED[config.format] if torch else "tf-savedmodel")
