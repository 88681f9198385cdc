"""`config.pbtxt` for Triton's own backends equals what was written by hand from their documents."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from helpers import models
from helpers.config import releases
from helpers.config.loading import configure, read_file, resolve
from helpers.config.schema import StageConfig as Config
from helpers.errors import ParameterError, ServerError
from helpers.inference import ensemble
from helpers.inference.datasets import request
from helpers.machine import checks, gpu_checks
from helpers.machine.checks import obstacle
from helpers.store.artefacts import Artefact, find, making
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
    "openvino-bf16": {"format": "openvino", "precision": "bf16"},
    "onnx-openvino-fp32": {"format": "onnx", "precision": "fp32", "accelerator": "openvino"},
}


def config(stage: str = "deploy", model: str = "dlrm", **fields: Any) -> Config:
    """An experiment of a container on a processor."""
    place = {"gpu": "Mine", "device": fields.pop("device", "cpu")}
    server = {"kind": fields.pop("kind", "docker"), "release": fields.pop("release", "24.10")}
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
    pieces = ensemble.pieces(config, config.format)
    return [model_config(config, scenario, each, 2, each is pieces[-1]) for each in pieces]


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


def configurations(model: str) -> dict[str, str]:
    """All the configurations of a model: parts of Triton's message as text -> whose they are."""
    found: dict[str, list[str]] = {}
    for path in FILES:
        content = read_file(path)
        for name in content.experiments(model):
            chosen = configure(content, model, name, "deploy")
            for scenario in SCENARIOS:
                for message in messages(chosen, scenario):
                    for text in parted(message):
                        found.setdefault(text, [])
                        found[text].append(f"# {path.stem} {name} {scenario} {message.name}")
    return {text: "\n".join(whose) for text, whose in found.items()}


def parted(message: Any) -> tuple[str, str]:
    """Part a message into its tensors and all the rest, each field on a line. What a warm-up sends
    must be the inputs, and is left out.
    """
    inputs = {each.name: (each.data_type, [*each.dims]) for each in message.input}
    tensors = pb.ModelConfig(input=message.input, output=message.output)
    rest = pb.ModelConfig.FromString(message.SerializeToString())
    for field in ("input", "output"):
        rest.ClearField(field)
    for warmup in rest.model_warmup:
        sent = {name: (each.data_type, [*each.dims]) for name, each in warmup.inputs.items()}
        assert sent == inputs
        warmup.ClearField("inputs")
    return lines(tensors), lines(rest)


def lines(message: Any) -> str:
    """Spell a message with each of its own fields on one line."""
    text = text_format.MessageToString(message, use_short_repeated_primitives=True).strip()
    return re.sub(r"\n(?= |\})\s*", " ", text)


@pytest.mark.parametrize("model", models.names())
def test_every_configuration_equals_its_reviewed_reference(model: str) -> None:
    """After a change that is meant, `python tests/triton/test_native.py` writes
    the files again: read what
    differs.
    """
    reference = (REFERENCES / "every" / f"{model}.txt").read_text().strip().split("\n\n")
    reviewed = {}
    for part in reference:
        whose = [line for line in part.splitlines() if line.startswith("#")]
        kind = "input" in part.splitlines()[len(whose)]
        reviewed["\n".join(whose), kind] = text_format.Parse(part, pb.ModelConfig())

    found = {
        (whose, text.startswith("input")): text_format.Parse(text, pb.ModelConfig())
        for text, whose in configurations(model).items()
    }

    assert found == reviewed


def write_references() -> None:
    for model in models.names():
        parts = [f"{whose}\n{text}" for text, whose in configurations(model).items()]
        path = REFERENCES / "every" / f"{model}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n\n".join(parts) + "\n")


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
def artefact(tmp_path: Path) -> Artefact:
    with making(tmp_path / "made") as (made, _):
        (made / "model.onnx").write_text("weights")
        (made / "sparse").mkdir()
        (made / "sparse/tables.npy").write_text("tables")
    found = find(tmp_path / "made")
    assert found
    return found


def test_on_a_gpu_the_adapter_keeps_tensors_there(artefact: Artefact, tmp_path: Path) -> None:
    chosen = config(kind="embedded", device="gpu", format="onnx", precision="fp32")

    lookup, graph = messages(chosen, "online")
    write_repository(tmp_path / "served", chosen, artefact, dict.fromkeys(SCENARIOS, 2))

    assert graph.parameters["FORCE_CPU_ONLY_INPUT_TENSORS"].string_value == "no"
    assert "FORCE_CPU_ONLY_INPUT_TENSORS" not in lookup.parameters
    needed = (tmp_path / "served/requirements.txt").read_text()
    assert [line.partition("==")[0] for line in needed.splitlines()] == [
        "numpy",
        "onnxruntime",
        "torch",
    ]


def test_a_native_repository_holds_the_artefact_and_no_code(
    artefact: Artefact, tmp_path: Path
) -> None:
    write_repository(tmp_path / "served", config(), artefact, dict.fromkeys(SCENARIOS, 2))

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
    monkeypatch.setattr(gpu_checks, "obstacle", lambda config: "")
    monkeypatch.setattr(checks, "_no_server", lambda config: "")


OBSTACLES = {
    "none": ({"format": "trt", "precision": "fp16"}, ""),
    "TensorFlow after its last release": (
        {"format": "tf-savedmodel", "accelerator": "amp", "release": "25.03"},
        "tf-savedmodel needs Triton's TensorFlow backend, and 25.03 has none: "
        "set release to 25.02 or older",
    ),
    "TensorFlow in its last release": ({"format": "tf-savedmodel", "release": "25.02"}, ""),
    "TF-TRT likewise": (
        {"format": "tf-trt", "precision": "fp16", "release": "25.03"},
        "tf-trt needs Triton's TensorFlow backend, and 25.03 has none: "
        "set release to 25.02 or older",
    ),
    "another format's accelerator": (
        {"accelerator": "amp"},
        "onnx has no accelerator amp on a gpu: it has trt on a gpu, openvino on a cpu",
    ),
    "another device's accelerator": (
        {"accelerator": "openvino"},
        "onnx has no accelerator openvino on a gpu: it has trt on a gpu, openvino on a cpu",
    ),
    "an accelerator of an engine": (
        {"format": "trt", "accelerator": "trt"},
        "trt has no accelerator trt on a gpu: it has none",
    ),
    "a precision": (
        {"format": "tf-trt", "precision": "fp32"},
        "tf-trt has no fp32 on a gpu: it has fp16",
    ),
    "a server without backends": (
        {"kind": "embedded", "accelerator": "trt"},
        "accelerator trt needs a native backend: the embedded server has none",
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
    assert obstacle(config("convert", device="gpu", **fields)) == reason


def test_a_repository_is_not_written_for_a_backend_that_is_gone() -> None:
    gone = config(format="tf-savedmodel", release="25.03")

    with pytest.raises(ServerError, match="25.03 has none: set release to 25.02 or older"):
        messages(gone, "online")


DRIVERS = [
    ("24.10", "560.35.03", True),
    ("24.10", "555.42.02", False),
    ("24.10", "535.104.05", True),  # of a branch that the release runs on
    ("24.10", "535.54.03", False),  # of the same, and older than it takes
    ("24.10", "450.51.06", False),
    ("23.02", "450.51.06", True),
    ("21.02", "418.39", False),
    ("21.02", "418.40.04", True),
    ("20.11", "418.40.04", True),  # older than what is known
]


@pytest.mark.parametrize(("release", "driver", "runs"), DRIVERS)
def test_a_driver_is_held_against_the_release_notes(release: str, driver: str, runs: bool) -> None:
    assert bool(releases.driver_obstacle(release, driver)) is not runs


@pytest.mark.parametrize("release", ["", "latest", "24.1", "2024.10", "24.13", "24.10-py3"])
def test_what_is_no_release_is_said(release: str) -> None:
    with pytest.raises(ParameterError) as raised:
        releases.number(release)

    assert str(raised.value) == (
        f"unknown release '{release}': Triton's are named YY.MM, such as 24.10"
    )


if __name__ == "__main__":
    write_references()
