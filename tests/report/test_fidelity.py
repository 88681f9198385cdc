"""The parameter files make every published row, and for every published table the page compares the
settings of our experiment with NVIDIA's and says what the parameter files and the code really do.
"""

import json
import shutil
import sys
from collections import Counter

import numpy as np
import pytest

from helpers.config import loading
from helpers.config.loading import configure, read_file
from helpers.errors import ServerError
from helpers.formats._tensorrt import profile
from helpers.models._criteo import hierarchical
from helpers.report.nvidia import sources as facts
from helpers.report.nvidia.fidelity import experiment_settings, fidelities
from helpers.report.nvidia.pages import everywhere
from helpers.report.nvidia.rows import everything, published, tables
from helpers.store.paths import ROOT
from helpers.triton import docker

T4, A30, A40 = "NVIDIA T4", "NVIDIA A30", "NVIDIA A40"
V100, A100 = "NVIDIA DGX-1 (1x V100 32GB)", "NVIDIA DGX A100 (1x A100 80GB)"


@pytest.fixture(scope="module")
def found():
    return fidelities()


@pytest.fixture(scope="module")
def targets():
    return {gpu: read_file(loading.file_for(gpu)) for gpu in (A30, A40, T4, V100, A100)}


def table(found, slug):
    (one,) = (each for each in found if each.row.slug.startswith(slug))
    return one


def values(each, name):
    (line,) = (line for line in each.lines if line.name == name)
    return line.comparison, line.theirs, line.ours


def config(gpu, model, name, stage):
    return configure(read_file(loading.file_for(gpu)), model, name, stage)


# Experiments and published rows cover each other exactly


COUNTS = {  # tables and rows, counted in the five documents
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


def test_every_published_row_is_made_by_one_experiment_and_nothing_else_is(found, targets):
    counts, made = Counter(), Counter()
    for each, rows in zip(found, tables(everything()), strict=True):
        row = each.row
        assert (each.fault, row) == ("", rows[0])
        counts[row.model, row.scenario] += np.array([1, len(rows)])
        points = []
        for name in each.experiments:
            config = configure(targets[row.gpu], row.model, name, f"perf_{row.scenario}")
            made[row.gpu, row.model, name, row.scenario] += 1
            if row.scenario == "offline":
                points += [(size, 1) for size in config.batch_sizes]
            else:
                points += [(config.online_batch_size, count) for count in config.concurrency]
        assert sorted(points) == sorted((row.batch_size, row.concurrency) for row in rows)
        assert len(each.experiments) == 1 or row.model == "bert"

    assert {key: tuple(both) for key, both in counts.items()} == COUNTS
    every = [
        (gpu, model, name, scenario)
        for gpu, content in targets.items()
        for model in content.file.models
        for name in content.experiments(model)
        for scenario in ("offline", "online")
        if (model, scenario) in COUNTS
    ]
    assert made == Counter(every)


# What the documents say beside the rows: precision of the export, queue delay in us, requests, by
# the largest batch the preferred ones, and the variants. ResNet50's script counts no requests, and
# Wide & Deep's 100 of them offline: one figure of ours stands for both.
SETTINGS = {
    "resnet50": ("fp16", 1, 500, {128: [64, 128]}, {""}),
    "bert": ("fp16", 1, 50, {1: [1], 8: [4, 8], 16: [8, 16]}, {"large"}),
    "tft": ("fp32", 1, 500, {1024: [512, 1024]}, {"electricity", "traffic"}),
    "widedeep": ("fp32", 0, 500, {131072: [131072]}, {""}),
    "dlrm": ("fp32", 0, 50, {65536: []}, {"T3"}),
    "dcnv2": ("fp32", 0, 50, {65536: []}, {"T3"}),
}


@pytest.mark.parametrize("model", SETTINGS)
def test_what_no_row_says_is_what_the_models_document_says(model, targets):
    precision, delay_us, requests, preferred, variants = SETTINGS[model]
    configs = [
        configure(content, model, name, "perf_offline")
        for content in targets.values()
        if model in content.file.models
        for name in content.experiments(model)
    ]

    length = 384 if model == "bert" else None
    said = [(e.export_precision, e.max_queue_delay_us, e.request_count) for e in configs]
    assert {*said} == {(precision, delay_us, requests)}
    assert {each.max_batch_size: each.preferred_batch_sizes for each in configs} == preferred
    assert {(e.variant, e.max_seq_length) for e in configs} == {(v, length) for v in variants}
    for each in configs:
        assert each.accelerator_precision == ("fp16" if each.accelerator == "trt" else None)


# Theirs


def test_what_a_table_itself_says_is_as_nvidia_or_has_a_note(found):
    same = {"Triton release", "format", "precision", "accelerator", "instances", "largest batch"}
    same |= {"CUDA graphs", "batch size", "clients", "tensors", "backend", "exported as"}

    assert len({each.row.slug for each in found}) == len(found) == 84
    for each in found:
        assert same <= {line.name for line in each.of("same")}
        if values(each, "instances")[1] != [each.row.instances]:
            assert (each.row.model, each.row.scenario) == ("resnet50", "online")
    anywhere = ["network", "server flags", "samples sent", "load generator", "windows"]
    anywhere += ["stability", "warm-up"]
    assert (everywhere(found), everywhere([])) == (anywhere, [])
    differing = {line.name for each in found for line in each.of("differs")}
    assert differing - {*anywhere} == {
        *("ONNX opset", "engine's smallest batch", "engine tuned for batch", "TF32", "weights"),
        *("dynamic batching", "embedding lookup", "/dev/shm", "environment", "protocol"),
        "runs per measurement",
    }


HPS = "offline-triton-ensemble-merlin-hps-tensorrt"
TORCH = "tft-nvidia-t4-offline-traffic-torchscript"
THEIRS = {
    "bert-nvidia-a30-offline-tensorrt-fp16": {
        "protocol": ("differs", ["gRPC"], ["HTTP"]),
        "largest batch": ("same", [1, 8, 16]),
        "dynamic batching": ("same", ["none"], ["none"]),
        "engine's smallest batch": ("differs", [1, 8, 16], [1]),
        "tensors": ("same", ["in shared memory"], ["in shared memory"]),
        "network": ("differs", ["the host's"]),
    },
    "resnet50-nvidia-t4-online": {
        "network": ("differs", ["Docker's bridge, through published ports"]),
        "instances": ("same", [2], [2]),
        "dynamic batching": ("same", ["prefers 64, 128, waits 1 us at most"]),
        "load generator": ("differs", ["perf_client 2.7.0"]),
    },
    "tft-nvidia-t4-offline-traffic-tensorrt": {
        "CUDA graphs": ("same", ["captured"], ["captured"]),
        "engine tuned for batch": ("unknown", [], [1024]),
    },
    TORCH: {"precision": ("same", ["FP32"], ["FP32"])},
    # our engines forbid it
    f"dlrm-nvidia-a30-{HPS}-fp32": {"TF32": ("differs", ["used, as the runtime does by default"])},
}


@pytest.mark.parametrize("slug", THEIRS)
def test_nvidias_values_are_those_of_its_documents(found, slug):
    for name, expected in THEIRS[slug].items():
        assert values(table(found, slug), name)[: len(expected)] == expected
    lines = {line.name: line for line in table(found, slug).lines}
    if slug.startswith("bert"):
        flags = [str(flag).partition("=")[2] for flag in lines["server flags"].theirs]
        assert flags == ["explicit", "false", "false", "false"]
    note = "NVIDIA's tables say FP16, its TorchScript was exported in fp32"
    assert (lines["precision"].note == note) == (slug == TORCH) == ("ONNX opset" not in lines)


# Ours is what is passed


DOCKER = """#!{python}
import json, sys
from pathlib import Path
if sys.argv[1] == "run":
    Path({calls!r}).write_text(json.dumps(sys.argv[1:]))
    sys.exit("no")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gpu", "model", "name", "stage"),
    [
        (A30, "bert", "ts-trace-fp16", "perf_offline"),
        (A40, "resnet50", "onnx-trt-fp16", "perf_offline"),
        (A100, "dlrm", "trt-fp32", "perf_offline"),
        (T4, "tft", "electricity-ts-trace-fp32", "perf_online"),
    ],
)
def test_what_it_says_of_the_container_is_what_docker_is_told(
    gpu, model, name, stage, tmp_path, monkeypatch
):
    command, calls, repository = (tmp_path / name for name in ("docker", "calls", "repository"))
    command.write_text(DOCKER.format(python=sys.executable, calls=str(calls)))
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    repository.mkdir()
    chosen = config(gpu, model, name, stage)
    serving = docker.serve(repository, config=chosen, log=tmp_path / "log")

    with pytest.raises(ServerError), serving:
        pass

    told, said = json.loads(calls.read_text()), experiment_settings(chosen)
    assert said["/dev/shm"] == ["the host's" if "--ipc=host" in told else "the container's own"]
    assert (said["network"] == ["the host's"]) == ("--network=host" in told)
    flags = told[told.index("tritonserver") + 1 :]
    own = [f for f in flags if not f.startswith(("--model-repository", "--backend-config=python"))]
    assert said["server flags"] == own
    names = ("NVIDIA_TF32_OVERRIDE", "ORT_TENSORRT_FP16_ENABLE")
    given = [word.removeprefix("--env=") for word in told if word.startswith("--env=")]
    assert said["environment"] == [each for each in given if each.startswith(names)]


def test_a_lookup_is_said_with_its_cache_or_its_precision():
    store = config(A30, "dlrm", "trt-fp16", "perf_offline")

    def said(**changes):
        (text,) = experiment_settings(store.model_copy(update=changes))["embedding lookup"]
        return text

    assert "GPU cache of 10% of the rows" in said()
    example = store.model_copy(update={"hps": {}})
    (model,) = hierarchical.json_of(example, hierarchical.Layout([], True)).models
    assert f"{100 * model.gpucacheper:g}% of the rows" in said(hps={})
    assert said(lookup="mapped") == "python backend, all rows in memory"
    small = said(lookup="mapped", table_precision="int8")
    assert small == "python backend, all rows in memory, in int8"


def test_an_engine_is_tuned_as_it_says():
    chosen = config(A30, "bert", "trt-fp16-b8", "perf_offline")
    built, said = profile({"x": np.zeros((1, 2))}, 8)["x"], experiment_settings(chosen)

    assert said["engine's smallest batch"] == [built["min"][0]]
    assert said["engine tuned for batch"] == [built["opt"][0]]


def test_a_changed_parameter_file_differs_and_a_missing_or_wrong_one_spoils_its_own_tables_only(
    tmp_path, monkeypatch
):
    for path in (ROOT / "params").glob("*.yaml"):
        shutil.copy2(path, tmp_path)
    monkeypatch.setattr(loading, "FILES", tmp_path)
    (tmp_path / "NVIDIA-A40.yaml").unlink()
    for name, old, new in (
        ("T4", "instances: 2", "instances: many"),
        ("A30", "instances: 2\n", "instances: 3\n"),
        ("A30", "capture_cuda_graph: true ", "capture_cuda_graph: false "),
        ("A30", "shared_memory: system", "shared_memory: cuda"),
        ("A30", "preferred_batch_sizes: [512, 1024]", "preferred_batch_sizes: [512]"),
        ("A30", "request_count: 500\n", "request_count: 9\n"),
    ):
        path = tmp_path / f"NVIDIA-{name}.yaml"
        path.write_text(path.read_text().replace(old, new, 1))

    found = fidelities()

    offline = table(found, "tft-nvidia-a30-offline-electricity-tensorrt")
    online = table(found, "tft-nvidia-a30-online-electricity-tensorrt")
    assert values(offline, "instances") == ("differs", [2], [3])
    assert values(offline, "CUDA graphs") == ("differs", ["captured"], ["not captured"])
    assert values(offline, "tensors")[2] == ["in CUDA's shared memory"]
    assert values(online, "dynamic batching")[2] == ["prefers 512, waits 1 us at most"]
    assert values(online, "windows")[2] == ["by time, at least 9 requests in all"]
    faults = {each.row.gpu: each.fault for each in found if each.fault}
    assert {*faults} == {A40, T4}
    assert faults[A40] == "no parameter file for NVIDIA A40 repeats it in a container"
    assert "NVIDIA-T4.yaml: models.tft.experiments" in faults[T4]
    assert all(each.lines for each in found if each.row.gpu in (A30, A100, V100))


def test_every_entry_of_the_facts_applies_to_a_row_and_every_setting_is_known():
    known = {*experiment_settings(config(A30, "dlrm", "trt-fp16", "perf_offline"))}

    for model, entries in facts.sources().items():
        for place, entry in enumerate(entries):
            where = entry.get("where", {})
            lists = {name: v if isinstance(v, list) else [v] for name, v in where.items()}
            assert any(
                all(getattr(row, name) in allowed for name, allowed in lists.items())
                for row in published(model)
            ), f"{model}, entry {place}"
            assert {*entry.get("settings", ()), *entry.get("notes", ())} <= known
