"""`config.pbtxt` for Triton's own backends equals what was written by hand from their documents."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from helpers.config import releases
from helpers.config.loading import configure, read_file, resolve
from helpers.config.schema import StageConfig as Config
from helpers.errors import ParameterError, ServerError
from helpers.inference import ensemble
from helpers.inference.datasets import request
from helpers.machine import preflight
from helpers.machine.preflight import why_unavailable
from helpers.store.artifacts import Artifact, create_artifact, find_artifact
from helpers.store.paths import ROOT
from helpers.triton import native
from helpers.triton.repository import SCENARIOS, model_config, write_repository

REFERENCES = ROOT / "tests/triton/native"
FILES = sorted((ROOT / "params").glob("*.yaml"))
PUBLISHED = {  # a reference's name -> a model and an experiment of NVIDIA-T4
    "resnet50-onnx-trt-fp16": ("resnet50", "onnx-trt-fp16"),
    "bert-onnx-fp16-b8": ("bert", "onnx-fp16-b8"),
    "bert-onnx-trt-fp16-b8": ("bert", "onnx-trt-fp16-b8"),
    "bert-trt-fp16-b16": ("bert", "trt-fp16-b16"),
    "bert-ts-trace-fp16": ("bert", "ts-trace-fp16"),
    "tft-electricity-trt-fp16": ("tft", "electricity-trt-fp16"),
    "tft-electricity-ts-trace-fp32": ("tft", "electricity-ts-trace-fp32"),
    "widedeep-savedmodel-amp": ("widedeep", "savedmodel-amp"),
    "dlrm-trt-fp16": ("dlrm", "trt-fp16"),
}
OWN: dict[str, dict[str, Any]] = {  # what NVIDIA published nothing of
    "tf-trt-fp16": {"device": "gpu", "format": "tf-trt", "precision": "fp16"},
    "onnx-openvino-fp32": {"format": "onnx", "precision": "fp32", "accelerator": "openvino"},
}


def config(stage: str = "deploy", model: str = "dlrm", **fields: Any) -> Config:
    """An experiment of a container on a processor."""
    place = {"gpu": "Mine", "device": fields.pop("device", "cpu")}
    server = {"kind": fields.pop("kind", "docker"), "release": fields.pop("release", "24.10")}
    server |= {"backend": fields.pop("backend", "")}
    chosen = {
        "export_format": "tf-savedmodel",
        "export_precision": "fp32",
        "format": "onnx",
        "precision": "fp32",
        "max_batch_size": 8,
        "preferred_batch_sizes": [4, 8],
        "max_queue_delay_us": 100,
    } | fields
    sections = {model: {"experiments": {"mine": chosen}}}
    return resolve(model, stage, models=sections, server=server, **place)


def published(path: Path, stage: str, model: str, experiment: str) -> Config:
    return configure(read_file(path), model, experiment, stage)


def messages(config: Config, scenario: str) -> list[Any]:
    config = config.model_copy(update={"threads": 2})
    components = ensemble.components(config, config.format)
    return [model_config(config, scenario, each, each is components[-1]) for each in components]


def reference(name: str) -> Any:
    return text_format.Parse((REFERENCES / f"{name}.pbtxt").read_text(), pb.ModelConfig())


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_experiment_is_served_as_its_reference_says(name: str) -> None:
    chosen = published(ROOT / "params/NVIDIA-T4.yaml", "deploy", *PUBLISHED[name])

    assert messages(chosen, "online")[-1] == reference(name)


@pytest.mark.parametrize("name", OWN)
def test_what_nvidia_did_not_publish_is_served_as_its_reference_says(name: str) -> None:
    assert messages(config(**OWN[name]), "online")[-1] == reference(name)


def test_a_lookup_stays_with_the_python_backend() -> None:
    chosen = published(ROOT / "params/NVIDIA-T4.yaml", "deploy", "dlrm", "trt-fp16")

    lookup, _ = messages(chosen, "online")

    assert lookup == reference("dlrm-trt-fp16-lookup")


def test_every_reference_has_its_test() -> None:
    names = {path.stem for path in REFERENCES.glob("*.pbtxt")}

    assert names == {*PUBLISHED, *OWN, "dlrm-trt-fp16-lookup"}
    served = {reference(name).platform for name in {*PUBLISHED, *OWN}}
    assert served == {backend.platform for backend in native.BACKENDS.values()}


# What NVIDIA's documents say of each format: backend, platform, and a parameter that it must have.
RULES = {
    "onnx": ("onnxruntime", "onnxruntime_onnx", "intra_op_thread_count"),
    "tf-savedmodel": ("tensorflow", "tensorflow_savedmodel", "TF_NUM_INTRA_THREADS"),
    "tf-trt": ("tensorflow", "tensorflow_savedmodel", "TF_NUM_INTRA_THREADS"),
    "trt": ("tensorrt", "tensorrt_plan", ""),
    "ts-script": ("pytorch", "pytorch_libtorch", "INTRA_OP_THREAD_COUNT"),
    "ts-trace": ("pytorch", "pytorch_libtorch", "INTRA_OP_THREAD_COUNT"),
}
ACCELERATORS = {"trt": "tensorrt", "openvino": "openvino", "amp": "auto_mixed_precision"}
FIRST_KEPT_INT64 = (24, 5)  # TensorRT 10
KINDS = {"cpu": pb.ModelInstanceGroup.KIND_CPU, "gpu": pb.ModelInstanceGroup.KIND_GPU}


def experiments() -> Iterator[Any]:
    """Every experiment of every parameter file of the package."""
    for path in FILES:
        content = read_file(path)
        for model in content.file.models:
            for name in content.experiments(model):
                yield pytest.param(path, model, name, id=f"{path.stem}-{model}-{name}")


@pytest.mark.parametrize(("path", "model", "name"), [*experiments()])
def test_every_experiment_is_configured_as_the_rules_say(path: Path, model: str, name: str) -> None:
    chosen = published(path, "deploy", model, name)
    is_native = chosen.server.kind != "embedded"
    for scenario in SCENARIOS:
        *lookups, graph = messages(chosen, scenario)
        count = getattr(chosen.instances, scenario)
        flat = chosen.lookup == "hps"  # a batch lies within the tensors, and nothing is joined
        for message in (*lookups, graph):
            assert message.max_batch_size == (
                0 if flat and message is graph else chosen.max_batch_size
            )
            assert [(g.count, g.kind) for g in message.instance_group] == [
                (1 if flat and message is not graph else count, KINDS[chosen.device])
            ]
            warmed = [each.batch_size for each in message.model_warmup]
            assert warmed == ([] if flat else sorted({1, *chosen.preferred_batch_sizes}))
            inputs = {each.name: (each.data_type, [*each.dims]) for each in message.input}
            for warmup in message.model_warmup:
                sent = {key: (each.data_type, [*each.dims]) for key, each in warmup.inputs.items()}
                assert sent == inputs
        assert all((each.backend, each.platform) == ("python", "") for each in lookups)
        assert graph.HasField("dynamic_batching") == (scenario == "online" and not flat)
        if scenario == "online" and not flat:
            batching = graph.dynamic_batching
            assert [*batching.preferred_batch_size] == chosen.preferred_batch_sizes
            assert batching.max_queue_delay_microseconds == chosen.max_queue_delay_us
        if not is_native:
            assert (graph.backend, graph.platform) == ("python", "")
            assert graph.parameters["device"].string_value == chosen.device
            continue
        backend, platform, parameter = RULES[chosen.format]
        assert (graph.backend, graph.platform) == (backend, platform)
        assert parameter in graph.parameters or not parameter
        used = graph.optimization.execution_accelerators
        names = [*used.gpu_execution_accelerator, *used.cpu_execution_accelerator]
        expected = [ACCELERATORS[chosen.accelerator]] if chosen.accelerator != "none" else []
        assert [each.name for each in names] == expected
        for each in names:
            if each.name == "tensorrt":
                precision = chosen.accelerator_precision or chosen.precision
                known = chosen.server.release >= "21.06"  # before, a variable says it
                assert each.parameters["precision_mode"] == (precision.upper() if known else "")
        assert graph.optimization.cuda.graphs == (
            chosen.format == "trt" and chosen.capture_cuda_graph
        )
        release = tuple(int(part) for part in chosen.server.release.split("."))
        integers = {each.data_type for each in graph.input} & {pb.TYPE_INT64}
        if chosen.format == "trt" and release < FIRST_KEPT_INT64:
            assert not integers


def test_without_a_batcher_the_rest_is_the_same() -> None:
    chosen = config(device="gpu", format="trt", precision="fp16", capture_cuda_graph=True)
    offline, online = (messages(chosen, scenario)[-1] for scenario in SCENARIOS)

    assert [spec.batch_size for spec in offline.optimization.cuda.graph_spec] == [1, 4, 8]
    assert not offline.HasField("dynamic_batching")
    online.ClearField("dynamic_batching")
    assert offline == online


SAME = ("backend", "platform", "default_model_filename", "parameters", "optimization")


@pytest.mark.parametrize("name", OWN)
def test_the_embedded_server_differs_in_backend_file_and_parameters_only(name: str) -> None:
    fields = {k: v for k, v in OWN[name].items() if k != "accelerator"}
    both = [messages(config(kind=kind, **fields), "online")[-1] for kind in ("docker", "embedded")]

    assert [message.backend == "python" for message in both] == [False, True]
    for message in both:
        for field in SAME:
            message.ClearField(field)
    assert both[0] == both[1]


def test_scripts_are_served_as_traces_are() -> None:
    names = ("ts-trace", "ts-script")
    found = [
        messages(config(model="tft", format=name, export_format=name), "online") for name in names
    ]

    assert found[0] == found[1]


def test_engines_are_cached_from_the_release_on_that_can() -> None:
    def cached(release: str) -> bool:
        chosen = config(device="gpu", accelerator="trt", release=release)
        (accelerator,) = messages(chosen, "online")[
            -1
        ].optimization.execution_accelerators.gpu_execution_accelerator
        return "trt_engine_cache_enable" in accelerator.parameters

    assert [cached(release) for release in ("21.08", "21.09", "25.02")] == [False, True, True]


@pytest.fixture
def artifact(tmp_path: Path) -> Artifact:
    with create_artifact(tmp_path / "made") as (made, _):
        (made / "model.onnx").write_text("weights")
        (made / "sparse").mkdir()
        (made / "sparse/tables.npy").write_text("tables")
    found = find_artifact(tmp_path / "made")
    assert found
    return found


def test_on_a_gpu_the_adapter_keeps_tensors_there(artifact: Artifact, tmp_path: Path) -> None:
    chosen = config(kind="embedded", device="gpu", format="onnx", precision="fp32")

    lookup, graph = messages(chosen, "online")
    write_repository(tmp_path / "served", chosen, artifact)

    assert graph.parameters["FORCE_CPU_ONLY_INPUT_TENSORS"].string_value == "no"
    assert "FORCE_CPU_ONLY_INPUT_TENSORS" not in lookup.parameters
    needed = (tmp_path / "served/requirements.txt").read_text()
    assert [line.partition("==")[0] for line in needed.splitlines()] == [
        "numpy",
        "onnxruntime",
        "torch",
    ]


def test_a_native_repository_holds_the_artifact_and_no_code(
    artifact: Artifact, tmp_path: Path
) -> None:
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
    needed = (tmp_path / "served/requirements.txt").read_text()
    assert [line.partition("==")[0] for line in needed.splitlines()] == ["numpy"]


INT64 = {"model": "tft", "export_format": "onnx", "format": "trt", "precision": "fp16"}


@pytest.mark.parametrize(
    ("release", "stage", "kind", "dtype"),
    [
        ("22.11", "deploy", "docker", "int32"),
        ("22.11", "perf_online", "docker", "int32"),
        ("22.11", "convert", "docker", "int64"),
        ("24.04", "deploy", "docker", "int32"),
        ("24.05", "deploy", "docker", "int64"),
        ("22.11", "deploy", "embedded", "int64"),
    ],
)
def test_a_request_has_the_types_that_the_engine_takes(
    release: str, stage: str, kind: str, dtype: str
) -> None:
    chosen = config(stage, release=release, kind=kind, device="gpu", **INT64)
    batch = {
        "s_cat__0": np.zeros((2, 192, 1), np.int64),
        "k_cont__3": np.zeros((2, 192, 3), np.float32),
        "target__6": np.zeros((2, 192, 1), np.float32),
    }

    found = {name: str(array.dtype) for name, array in request(chosen, batch).items()}

    assert found == {"s_cat__0": dtype, "k_cont__3": "float32", "target__6": "float32"}


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with a Docker engine and a GPU whose driver is new enough."""
    monkeypatch.setattr(preflight, "gpu_obstacle", lambda config: "")
    monkeypatch.setattr(preflight, "server_obstacle", lambda server: "")


OBSTACLES = {
    "none": ({"format": "trt", "precision": "fp16"}, ""),
    "TensorFlow after its last release": (
        {"format": "tf-savedmodel", "accelerator": "amp", "release": "25.03"},
        "tf-savedmodel needs Triton's TensorFlow backend, which 25.03 does not have. "
        "Set release to 25.02 or older.",
    ),
    "TensorFlow in its last release": ({"format": "tf-savedmodel", "release": "25.02"}, ""),
    "TF-TRT likewise": (
        {"format": "tf-trt", "precision": "fp16", "release": "25.03"},
        "tf-trt needs Triton's TensorFlow backend, which 25.03 does not have. "
        "Set release to 25.02 or older.",
    ),
    "another format's accelerator": (
        {"accelerator": "amp"},
        "onnx has no accelerator amp on a gpu. Available: trt on a gpu, openvino on a cpu.",
    ),
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
        "The embedded server does not support accelerator trt. "
        "Set server.kind to docker or remote.",
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
def test_what_a_gpu_machine_cannot_serve_is_one_line(
    machine: None, fields: dict[str, Any], reason: str
) -> None:
    assert why_unavailable(config("convert", device="gpu", **fields)) == reason


def test_openvinos_backend_which_fixes_the_batch_is_refused_and_the_adapter_is_not() -> None:
    chosen = config("convert", device="cpu", format="openvino")

    assert native.why_unavailable(chosen) == (
        "No native backend serves openvino at every batch size. Set server.backend to adapter, or "
        "use the embedded server."
    )
    *_, graph = messages(config(device="cpu", format="openvino", backend="adapter"), "online")
    assert (graph.backend, graph.max_batch_size) == ("python", 8)


def test_a_repository_is_not_written_for_a_backend_that_is_gone() -> None:
    gone = config(format="tf-savedmodel", release="25.03")

    with pytest.raises(ServerError, match="25.03 does not have. Set release to 25.02 or older"):
        messages(gone, "online")


DRIVERS = [
    ("24.10", "560.35.03", True),
    ("24.10", "555.42.02", False),
    ("24.10", "535.104.05", True),  # of a branch that the release runs on
    ("24.10", "535.54.03", False),  # of the same, and older than it takes
    ("24.10", "450.51.06", False),
    ("23.02", "450.51.06", True),
    ("23.02", "520.61.05", False),  # CUDA 12.0 needs 525
    ("23.02", "525.60.13", True),
    ("23.04", "525.60.13", False),
    ("23.04", "525.85.12", True),
    ("23.12", "535.54.03", False),
    ("23.12", "545.23.06", True),
    ("21.02", "418.39", False),
    ("21.02", "418.40.04", True),
    ("20.11", "418.40.04", True),  # older than what is known
    ("26.04", "555.42.02", False),
    ("26.04", "390.157", False),  # no notes mention it, and it is older than any that they do
]
SILENT = [  # the notes mention neither that the driver runs nor that it does not
    ("24.10", "550.54.15"),
    ("26.04", "550.163.01"),
    ("26.04", "560.35.03"),
    ("26.04", "570.86.15"),
]


@pytest.mark.parametrize(("release", "driver", "runs"), DRIVERS)
def test_a_driver_is_held_against_the_release_notes(release: str, driver: str, runs: bool) -> None:
    assert bool(releases.driver_obstacle(release, driver)) is not runs
    assert releases.driver_warning(release, driver) == ""


@pytest.mark.parametrize(("release", "driver"), SILENT)
def test_a_driver_that_the_notes_do_not_mention_is_doubted_and_not_refused(
    release: str, driver: str
) -> None:
    assert releases.driver_obstacle(release, driver) == ""
    assert releases.driver_warning(release, driver).startswith(
        f"NVIDIA's notes do not mention driver {driver}, which may be too old: Triton {release} "
    )


@pytest.mark.parametrize("release", ["", "latest", "24.1", "2024.10", "24.13", "24.10-py3"])
def test_what_is_no_release_is_said(release: str) -> None:
    with pytest.raises(ParameterError) as raised:
        releases.number(release)

    assert str(raised.value) == (
        f"Unknown release '{release}'. Triton's names are YY.MM, such as 24.10."
    )
