"""Artifacts are verified before they are used, and made for what the experiment asks for."""

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers import models
from helpers.config import ExportConfig, artifact_folder, resolve
from helpers.errors import ArtifactError
from helpers.formats import Build
from helpers.inference import artifacts, datasets, ensemble, require
from helpers.models import Part, Tensor
from helpers.store import OUTPUTS_VARIABLE, create_artifact
from helpers.store import artifacts as store
from tests.conftest import ONNX

IDS, SCORES = {"IDS": Tensor("IDS", "int32", (1,))}, {"SCORES": Tensor("score", "float32", (1,))}


def config(stage: str, server: dict[str, Any], device: str = "cpu", **fields: Any) -> Any:
    sections = {"resnet50": {"experiments": {"mine": ONNX | fields}}}
    return resolve("resnet50", stage, "Mine", device, server, models=sections)


@pytest.fixture
def deployed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ExportConfig:
    """An experiment with a converted model of two files."""
    monkeypatch.setenv(OUTPUTS_VARIABLE, str(tmp_path))
    found: ExportConfig = config("deploy", {})
    with create_artifact(artifact_folder(found, "convert")) as (folder, _):
        (folder / "model.onnx").write_bytes(b"weights")
        (folder / "sparse").mkdir()
        (folder / "sparse/tables.npy").write_bytes(b"tables")
    return found


@pytest.fixture
def hashed(deployed: ExportConfig, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are hashed, in order."""
    names: list[str] = []
    digest = store.file_digest

    def noted(path: Path) -> str:
        names.append(path.name)
        return digest(path)

    monkeypatch.setattr(store, "file_digest", noted)
    return names


def test_an_artifact_is_hashed_once_in_a_process(deployed: ExportConfig, hashed: list[str]) -> None:
    first, second = require(deployed, "convert"), require(deployed, "convert")

    assert first == second
    assert hashed == ["model.onnx", "tables.npy"]


def test_what_is_served_as_exported_needs_no_conversion_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OUTPUTS_VARIABLE, str(tmp_path))
    found: ExportConfig = config("deploy", {})
    converted: ExportConfig = config("deploy", {}, format="openvino")
    with create_artifact(artifact_folder(found, "export")) as (folder, facts):
        (folder / "model.onnx").write_bytes(b"weights")
        facts["opset"] = 13

    taken = require(found, "convert")

    assert (taken.folder / "model.onnx").read_bytes() == b"weights"
    assert (taken.facts["note"], taken.facts["opset"]) == ("taken as exported", 13)
    with pytest.raises(ArtifactError, match="no convert result"):
        require(converted, "convert")


def test_an_artifact_that_is_made_again_is_hashed_again(
    deployed: ExportConfig, hashed: list[str]
) -> None:
    require(deployed, "convert")
    with create_artifact(artifact_folder(deployed, "convert")) as (folder, _):
        (folder / "model.onnx").write_bytes(b"another")
    hashed.clear()

    require(deployed, "convert")

    assert hashed == ["model.onnx"]


def test_a_change_after_the_first_verification_is_noticed(deployed: ExportConfig) -> None:
    path = require(deployed, "convert").folder / "sparse/tables.npy"
    before = path.stat()
    time.sleep(0.02)  # the kernel's clock for files has steps of some milliseconds
    path.write_bytes(b"tablet")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    with pytest.raises(ArtifactError, match="tables.npy changed on disk"):
        require(deployed, "convert")


def test_a_file_that_is_removed_after_the_first_verification_is_noticed(
    deployed: ExportConfig,
) -> None:
    (require(deployed, "convert").folder / "model.onnx").unlink()

    with pytest.raises(ArtifactError, match="model.onnx changed on disk"):
        require(deployed, "convert")


@pytest.mark.parametrize(("is_batched", "sizes"), [(True, [8, 8, 4]), (False, [1] * 20)])
def test_calibration_samples_come_in_batches_that_the_model_takes(
    is_batched: bool, sizes: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resnet50 = models.get("resnet50")
    (tensor,) = resnet50.inputs(config("convert", {}))
    samples = {tensor.name: np.zeros((20, *tensor.shape), tensor.dtype)}
    monkeypatch.setattr(type(resnet50), "IS_BATCHED", is_batched)
    monkeypatch.setattr(type(resnet50), "training_samples", lambda *_: samples)

    quantised = config("convert", {}, precision="int8", calibration_samples=20)
    batches = artifacts._calibration(quantised, tmp_path)

    assert [len(batch[tensor.name]) for batch in batches] == sizes


@pytest.mark.parametrize(
    ("release", "name", "precision", "built"),
    [
        ("24.10", "onnx", "fp32", (None, 1, False)),
        ("24.04", "onnx", "fp32", (13, 1, False)),
        ("24.10", "trt", "fp16", (None, 4, True)),
    ],
)
def test_a_format_is_told_what_the_server_and_the_experiment_need(
    release: str,
    name: str,
    precision: str,
    built: tuple[Any, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    builds: list[Build] = []

    def make(source: Path, path: Path, build: Build) -> None:
        assert (source / "saved_model.pb").read_text() == "graph"
        path.write_text("made")
        builds.append(build)

    monkeypatch.setenv(OUTPUTS_VARIABLE, str(tmp_path))
    monkeypatch.setattr(f"helpers.formats.{name}.make", make)
    monkeypatch.setattr(datasets, "open_dataset", lambda _: None)
    inputs = {"IDS": np.zeros((2, 1), np.int32)}
    monkeypatch.setattr(datasets, "requests", lambda *_: iter([inputs]))
    monkeypatch.setattr(ensemble, "parts", lambda config: (Part(config.model, IDS, SCORES),))
    fields = {"export_format": "tf-savedmodel", "capture_cuda_graph": True}
    chosen = config(
        "convert",
        {"kind": "docker", "release": release},
        "gpu",
        format=name,
        precision=precision,
        **fields,
    )
    with create_artifact(artifact_folder(chosen, "export")) as (folder, _):
        (folder / "model.savedmodel").mkdir()
        (folder / "model.savedmodel/saved_model.pb").write_text("graph")

    artifacts.convert(chosen, lambda *_: None)

    (build,) = builds
    assert (build.precision, build.inputs, build.outputs) == (precision, inputs, ("score",))
    assert (build.opset, build.max_batch_size, build.capture_cuda_graph) == built


@pytest.mark.parametrize(("is_batched", "sizes"), [(True, [8, 8, 4]), (False, [1] * 20)])
def test_int8_is_calibrated_with_as_many_samples_at_once_as_a_graph_takes(
    is_batched: bool, sizes: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builds: list[Build] = []

    def make(source: Path, path: Path, build: Build) -> None:
        path.write_text("made")
        builds.append(build)

    def samples(config: ExportConfig, folder: Path, count: int, seed: int) -> Any:
        return {tensor.name: np.zeros((count, *tensor.shape), tensor.dtype) for tensor in inputs}

    monkeypatch.setenv(OUTPUTS_VARIABLE, str(tmp_path))
    monkeypatch.setattr("helpers.formats.onnx.make", make)
    monkeypatch.setattr(datasets, "open_dataset", lambda _: None)
    monkeypatch.setattr(datasets, "requests", lambda *_: iter([samples(chosen, tmp_path, 1, 0)]))
    model = models.get("resnet50")
    monkeypatch.setattr(model, "IS_BATCHED", is_batched)
    monkeypatch.setattr(model, "training_samples", samples)
    chosen = config("convert", {}, precision="int8", calibration_samples=20)
    inputs = model.inputs(chosen)
    with create_artifact(artifact_folder(chosen, "export")) as (folder, _):
        (folder / "model.onnx").write_bytes(b"weights")

    artifacts.convert(chosen, lambda *_: None)

    (build,) = builds
    assert [len(next(iter(batch.values()))) for batch in build.calibration] == sizes


DOCKER = {"kind": "docker"}
TRT = {"format": "trt", "precision": "fp16"}
TORCHSCRIPT = {"format": "ts-trace", "export_format": "ts-trace"}


@pytest.mark.parametrize(
    ("device", "server", "fields", "native", "in_process"),
    [
        ("cpu", {}, {}, False, True),
        ("cpu", DOCKER, {}, False, False),  # a version of its own, which spins
        ("cpu", DOCKER | {"backend": "adapter"}, {}, False, True),
        ("cpu", DOCKER, {"accelerator": "openvino"}, False, False),
        ("gpu", DOCKER, {"accelerator": "trt"}, True, False),
        ("gpu", DOCKER, TRT, True, False),
        ("gpu", {}, TRT, False, True),
        ("gpu", DOCKER, TORCHSCRIPT, True, False),  # the PyTorch of these tests is a CPU build
        ("gpu", {}, TORCHSCRIPT, False, True),
    ],
)
def test_the_in_process_baseline_is_measured_only_with_the_runtime_that_serves(
    device: str, server: dict[str, Any], fields: dict[str, Any], native: bool, in_process: bool
) -> None:
    chosen = config("perf_offline", server, device, **fields)

    assert ensemble.needs_native_backend(chosen, chosen.format) is native
    assert ensemble.runs_in_process(chosen) is in_process
