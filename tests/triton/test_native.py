"""`config.pbtxt` for Triton's own backends equals what was written by hand from their documents."""

from itertools import product

import numpy as np
import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from helpers.config import releases
from helpers.config.loading import configure, read_file, resolve
from helpers.errors import ParameterError, ServerError
from helpers.inference import ensemble
from helpers.inference.datasets import request
from helpers.machine import packages, preflight
from helpers.store.artifacts import create_artifact, find_artifact
from helpers.store.paths import ROOT
from helpers.triton import native
from helpers.triton.repository import SCENARIOS, model_config, write_repository
from tests.conftest import ONNX

REFERENCES = ROOT / "tests/triton/native"
FILES = sorted((ROOT / "params").glob("*.yaml"))
OWN = {  # what NVIDIA published nothing of
    "tf-trt-fp16": {"device": "gpu", "format": "tf-trt", "precision": "fp16"},
    "onnx-openvino-fp32": {"format": "onnx", "precision": "fp32", "accelerator": "openvino"},
}
LOOKUP = "dlrm-trt-fp16-lookup"
SERVED = sorted({path.stem for path in REFERENCES.glob("*.pbtxt")} - {LOOKUP})


def config(stage="deploy", model="dlrm", **fields):
    """An experiment of a container on a processor."""
    place = {"gpu": "Mine", "device": fields.pop("device", "cpu")}
    server = {"kind": "docker", "release": "24.10", "backend": ""}
    server = {name: fields.pop(name, value) for name, value in server.items()}
    batches = {"max_batch_size": 8, "preferred_batch_sizes": [4, 8], "max_queue_delay_us": 100}
    chosen = {**ONNX, "export_format": "tf-savedmodel", **batches, **fields}
    sections = {model: {"experiments": {"mine": chosen}}}
    return resolve(model, stage, models=sections, server=server, **place)


def published(model, experiment):
    return configure(read_file(ROOT / "params/NVIDIA-T4.yaml"), model, experiment, "deploy")


def messages(config, scenario):
    config = config.model_copy(update={"threads": 2})
    components = ensemble.components(config, config.format)
    return [model_config(config, scenario, each, each is components[-1]) for each in components]


def reference(name):
    return text_format.Parse((REFERENCES / f"{name}.pbtxt").read_text(), pb.ModelConfig())


@pytest.mark.parametrize("name", SERVED)
def test_an_experiment_is_served_as_its_reference_says(name):
    """The others' names are a model and an experiment of NVIDIA-T4."""
    model, _, experiment = name.partition("-")
    chosen = config(**OWN[name]) if name in OWN else published(model, experiment)

    assert messages(chosen, "online")[-1] == reference(name)


def test_a_lookup_stays_with_the_python_backend():
    lookup, _ = messages(published("dlrm", "trt-fp16"), "online")

    assert lookup == reference(LOOKUP)


def test_every_platform_has_a_reference():
    platforms = {reference(name).platform for name in SERVED}

    assert platforms == {backend.platform for backend in native.BACKENDS.values()}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_experiment_of_the_package_is_configured_for_its_device_and_scenarios(path):
    content, kinds = read_file(path), pb.ModelInstanceGroup
    chosen = [
        configure(content, model, name, "deploy")
        for model in content.file.models
        for name in content.experiments(model)
    ]
    for each, scenario in product(chosen, SCENARIOS):
        *lookups, graph = messages(each, scenario)
        flat = each.lookup == "hps"  # a batch lies within the tensors, and nothing is joined
        kind = kinds.KIND_GPU if each.device == "gpu" else kinds.KIND_CPU
        for message in (*lookups, graph):
            count = 1 if flat and message in lookups else getattr(each.instances, scenario)
            (group,) = message.instance_group
            assert (group.count, group.kind) == (count, kind)
            largest = 0 if flat and message not in lookups else each.max_batch_size
            assert message.max_batch_size == largest
            warmed = [] if flat else sorted({1, *each.preferred_batch_sizes})
            assert [warmup.batch_size for warmup in message.model_warmup] == warmed
        assert {lookup.backend for lookup in lookups} <= {"python"}
        assert (graph.backend == "python") == (each.server.kind == "embedded")
        batcher = pb.ModelDynamicBatching(
            preferred_batch_size=each.preferred_batch_sizes,
            max_queue_delay_microseconds=each.max_queue_delay_us,
        )
        batches = scenario == "online" and not flat
        assert graph.HasField("dynamic_batching") is batches
        assert graph.dynamic_batching == (batcher if batches else pb.ModelDynamicBatching())


def test_without_a_batcher_the_rest_is_the_same():
    chosen = config(device="gpu", format="trt", precision="fp16", capture_cuda_graph=True)
    offline, online = (messages(chosen, scenario)[-1] for scenario in SCENARIOS)

    assert [spec.batch_size for spec in offline.optimization.cuda.graph_spec] == [1, 4, 8]
    assert not offline.HasField("dynamic_batching")
    online.ClearField("dynamic_batching")
    assert offline == online


def test_scripts_are_served_as_traces_are():
    given = [config(model="tft", format=f, export_format=f) for f in ("ts-script", "ts-trace")]

    script, trace = (messages(each, "online") for each in given)

    assert script == trace


READ, KEPT = {"precision_mode", "max_workspace_size_bytes"}, "trt_engine_cache_enable"


@pytest.mark.parametrize(
    ("release", "parameters"),
    [("21.05", set()), ("21.06", READ), ("21.08", READ), ("21.09", {*READ, KEPT})],
)
def test_an_accelerator_is_told_what_its_release_reads(release, parameters):
    chosen = config(device="gpu", accelerator="trt", release=release)

    used = messages(chosen, "online")[-1].optimization.execution_accelerators

    (accelerator,) = used.gpu_execution_accelerator
    assert set(accelerator.parameters) - {"trt_engine_cache_path"} == parameters


@pytest.fixture
def artifact(tmp_path):
    with create_artifact(tmp_path / "made") as (made, _):
        (made / "model.onnx").write_text("weights")
        (made / "sparse").mkdir()
        (made / "sparse/tables.npy").write_text("tables")
    return find_artifact(tmp_path / "made")


def needed(repository):
    lines = (repository / "requirements.txt").read_text().splitlines()
    return [line.partition("==")[0] for line in lines]


def test_on_a_gpu_the_adapter_keeps_tensors_there(artifact, tmp_path):
    chosen = config(kind="embedded", device="gpu", format="onnx", precision="fp32")

    lookup, graph = messages(chosen, "online")
    write_repository(tmp_path / "served", chosen, artifact)

    assert graph.parameters["FORCE_CPU_ONLY_INPUT_TENSORS"].string_value == "no"
    assert "FORCE_CPU_ONLY_INPUT_TENSORS" not in lookup.parameters
    assert needed(tmp_path / "served") == ["numpy", "onnxruntime", "torch"]


def test_a_native_repository_holds_the_artifact_and_no_code(artifact, tmp_path):
    write_repository(tmp_path / "served", config(), artifact)

    files = {str(p.relative_to(tmp_path / "served")) for p in tmp_path.rglob("served/**/*.*")}
    configs = ("config.pbtxt", "configs/offline.pbtxt")
    assert files == {
        "requirements.txt",
        *(f"dlrm{part}/{name}" for part in ("", "_sparse", "_dense") for name in configs),
        "dlrm_sparse/1/model.py",
        "dlrm_sparse/1/runtime.py",
        "dlrm_sparse/1/sparse/tables.npy",
        "dlrm_dense/1/model.onnx",
    }
    assert needed(tmp_path / "served") == ["numpy"]


INT64 = {"model": "tft", "export_format": "onnx", "format": "trt", "precision": "fp16"}


@pytest.mark.parametrize(
    ("release", "stage", "kind", "dtype"),
    [
        ("22.11", "perf_online", "docker", "int32"),
        ("22.11", "convert", "docker", "int64"),
        ("24.04", "deploy", "docker", "int32"),
        ("24.05", "deploy", "docker", "int64"),
        ("22.11", "deploy", "embedded", "int64"),
    ],
)
def test_a_request_has_the_types_that_the_engine_takes(release, stage, kind, dtype):
    chosen = config(stage, release=release, kind=kind, device="gpu", **INT64)
    types = {"s_cat__0": "int64", "k_cont__3": "float32", "target__6": "float32"}
    batch = {name: np.zeros((2, 192, 1), each) for name, each in types.items()}

    found = {name: str(array.dtype) for name, array in request(chosen, batch).items()}

    assert found == types | {"s_cat__0": dtype}


@pytest.fixture
def machine(monkeypatch):
    """A machine with a Docker engine and a GPU whose driver is new enough."""
    monkeypatch.setattr(preflight, "gpu_obstacle", lambda config: "")
    monkeypatch.setattr(preflight, "server_obstacle", lambda server: "")
    monkeypatch.setattr(packages, "faults", lambda _: {})  # to import them all takes seconds


OBSTACLES = {
    "none": ({"format": "trt", "precision": "fp16"}, ""),
    "TensorFlow after its last release": (
        {"format": "tf-savedmodel", "accelerator": "amp", "release": "25.03"},
        "tf-savedmodel needs Triton's TensorFlow backend, which 25.03 does not have. "
        "Set release to 25.02 or older.",
    ),
    "TensorFlow in its last release": ({"format": "tf-savedmodel", "release": "25.02"}, ""),
    "another device's accelerator": (
        {"accelerator": "openvino"},
        "onnx has no accelerator openvino on a gpu. Available: trt on a gpu, openvino on a cpu.",
    ),
    "an accelerator of an engine": (
        {"format": "trt", "accelerator": "trt"},
        "trt has no accelerator trt on a gpu. Available: none.",
    ),
    "a precision": (
        {"format": "tf-trt", "precision": "fp32"},
        "tf-trt does not support fp32 on a gpu. Use one of fp16.",
    ),
    "a server without backends": (
        {"kind": "embedded", "accelerator": "trt"},
        "The embedded server does not support accelerator trt. Set server.kind to docker or "
        "remote.",
    ),
    "no TensorRT for the embedded server": (
        {"kind": "embedded", "format": "trt", "precision": "fp16"},
        "trt needs tensorrt, which is not installed",
    ),
    "no CUDA for the embedded server": (
        {"kind": "embedded", "format": "onnx"},
        "onnx on a gpu needs onnxruntime-gpu, which is not installed",
    ),
}


@pytest.mark.parametrize(("fields", "reason"), OBSTACLES.values(), ids=OBSTACLES.keys())
def test_what_a_gpu_machine_cannot_serve_is_one_line(machine, fields, reason):
    assert preflight.why_unavailable(config("convert", device="gpu", **fields)) == reason


def test_openvinos_backend_which_fixes_the_batch_is_refused_and_the_adapter_is_not():
    chosen = config("convert", device="cpu", format="openvino")

    assert native.why_unavailable(chosen) == (
        "No native backend serves openvino at every batch size. Set server.backend to adapter, or "
        "use the embedded server."
    )
    *_, graph = messages(config(device="cpu", format="openvino", backend="adapter"), "online")
    assert (graph.backend, graph.max_batch_size) == ("python", 8)


def test_a_repository_is_not_written_for_a_backend_that_is_gone():
    gone = config(format="tf-savedmodel", release="25.03")

    with pytest.raises(ServerError, match="25.03 does not have. Set release to 25.02 or older"):
        messages(gone, "online")


DOUBT = "NVIDIA's notes do not mention driver {}, which may be too old: Triton {} "
DRIVERS = {  # by release: those that it runs on, that are too old, and that no notes mention
    "20.11": ("418.40.04", "", ""),  # older than what is known
    "21.02": ("418.40.04", "418.39", ""),
    "23.02": ("450.51.06 525.60.13", "520.61.05", ""),  # CUDA 12.0 needs 525
    "23.04": ("525.85.12", "525.60.13", ""),
    "23.12": ("545.23.06", "535.54.03", ""),
    # one of a branch that the release runs on, and one of the same that is older than it takes
    "24.10": ("560.35.03 535.104.05", "555.42.02 535.54.03 450.51.06", "550.54.15"),
    "26.04": ("", "555.42.02 390.157", "550.163.01 560.35.03 570.86.15"),
}


@pytest.mark.parametrize("release", DRIVERS)
def test_a_driver_is_held_against_the_release_notes(release):
    runs, too_old, doubted = map(str.split, DRIVERS[release])

    for driver in runs:
        assert releases.driver_faults(release, driver) == ("", "")
    for driver in too_old:
        obstacle, doubt = releases.driver_faults(release, driver)
        assert obstacle.startswith(f"driver {driver} is too old: Triton {release} needs ")
        assert doubt == ""
    for driver in doubted:
        obstacle, doubt = releases.driver_faults(release, driver)
        assert obstacle == ""
        assert doubt.startswith(DOUBT.format(driver, release))


@pytest.mark.parametrize("release", ["", "latest", "24.1", "2024.10", "24.13", "24.10-py3"])
def test_what_is_no_release_is_said(release):
    with pytest.raises(ParameterError, match=rf"^Unknown release '{release}'. Triton's names are "):
        releases.number(release)
