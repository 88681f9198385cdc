"""Artifacts are verified before they are used, and made for what the experiment asks for."""

import os

import numpy as np
import pytest

from helpers import models
from helpers.config import artifact_folder, resolve
from helpers.errors import ArtifactError
from helpers.inference import artifacts, datasets, ensemble, require
from helpers.models import Part, Tensor
from helpers.store import artifacts as store
from helpers.store import create_artifact
from tests.conftest import ONNX, wait_for

IDS, SCORES = {"IDS": Tensor("IDS", "int32", (1,))}, {"SCORES": Tensor("score", "float32", (1,))}


def config(stage, server, device="cpu", **fields):
    sections = {"resnet50": {"experiments": {"mine": ONNX | fields}}}
    return resolve("resnet50", stage, "Mine", device, server, models=sections)


def make(found, stage, **files):
    """Write an artifact by hand."""
    with create_artifact(artifact_folder(found, stage)) as (folder, facts):
        for name, content in files.items():
            path = folder / name.replace("_", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        facts["opset"] = 13


@pytest.fixture
def deployed():
    """An experiment with a converted model of two files."""
    found = config("deploy", {})
    make(found, "convert", model="weights", sparse_tables="tables")
    return found


@pytest.fixture
def hashed(deployed, monkeypatch):
    """The names of the files that are hashed, in order."""
    names, digest = [], store.file_digest
    monkeypatch.setattr(store, "file_digest", lambda path: names.append(path.name) or digest(path))
    return names


def test_an_artifact_is_hashed_once_in_a_process_and_again_when_it_is_made_again(deployed, hashed):
    assert require(deployed, "convert") == require(deployed, "convert")
    assert hashed == ["model", "tables"]

    make(deployed, "convert", model="another")
    hashed.clear()
    require(deployed, "convert")
    assert hashed == ["model"]


def test_what_is_served_as_exported_needs_no_conversion_before():
    found = config("deploy", {})
    make(found, "export", model="weights")

    taken = require(found, "convert")

    assert (taken.folder / "model").read_text() == "weights"
    assert (taken.facts["note"], taken.facts["opset"]) == ("taken as exported", 13)
    with pytest.raises(ArtifactError, match="no convert result"):
        require(config("deploy", {}, format="openvino"), "convert")


@pytest.mark.parametrize("is_removed", [True, False])
def test_a_change_after_the_first_verification_is_noticed(is_removed, deployed):
    path = require(deployed, "convert").folder / "sparse/tables"
    before = path.stat()
    if is_removed:
        path.unlink()
    else:
        # the kernel's clock for files has steps of some milliseconds
        wait_for(lambda: path.write_text("tablet") and path.stat().st_ctime_ns > before.st_ctime_ns)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    with pytest.raises(ArtifactError, match="tables changed on disk"):
        require(deployed, "convert")


@pytest.fixture
def builds(monkeypatch):
    """What formats are told to build: they write a file for it."""
    found = []

    def make(source, path, build):
        assert (source if source.is_file() else source / "saved_model.pb").read_text() == "graph"
        path.write_text("made")
        found.append(build)

    monkeypatch.setattr("helpers.formats.onnx.make", make)
    monkeypatch.setattr(datasets, "open_dataset", lambda _: None)
    return found


@pytest.mark.parametrize(("release", "opset"), [("24.10", None), ("24.04", 13)])
def test_a_format_is_told_what_the_server_and_the_model_need(release, opset, builds, monkeypatch):
    inputs = {"IDS": np.zeros((2, 1), np.int32)}
    monkeypatch.setattr(datasets, "requests", lambda *_: iter([inputs]))
    monkeypatch.setattr(ensemble, "parts", lambda config: (Part(config.model, IDS, SCORES),))
    server = {"kind": "docker", "release": release}
    chosen = config("convert", server, "gpu", export_format="tf-savedmodel")
    with create_artifact(artifact_folder(chosen, "export")) as (folder, _):
        (folder / "model.savedmodel").mkdir()
        (folder / "model.savedmodel/saved_model.pb").write_text("graph")

    artifacts.convert(chosen, lambda *_: None)

    (build,) = builds
    assert (build.precision, build.inputs, build.outputs) == ("fp32", inputs, ("score",))
    assert build.opset == opset


@pytest.mark.parametrize(("is_batched", "sizes"), [(True, [8, 8, 4]), (False, [1] * 20)])
def test_int8_is_calibrated_with_as_many_samples_at_once_as_a_graph_takes(
    is_batched, sizes, builds, monkeypatch
):
    model = models.get("resnet50")
    chosen = config("convert", {}, precision="int8", calibration_samples=20)
    (tensor,) = model.inputs(chosen)

    def samples(config, folder, count, seed):
        return {tensor.name: np.zeros((count, *tensor.shape), tensor.dtype)}

    monkeypatch.setattr(model, "IS_BATCHED", is_batched)
    monkeypatch.setattr(model, "training_samples", samples)
    monkeypatch.setattr(datasets, "requests", lambda *_: iter([samples(chosen, "", 1, 0)]))
    with create_artifact(artifact_folder(chosen, "export")) as (folder, _):
        (folder / "model.onnx").write_text("graph")

    artifacts.convert(chosen, lambda *_: None)

    (build,) = builds
    assert [len(batch[tensor.name]) for batch in build.calibration] == sizes


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
    device, server, fields, native, in_process
):
    chosen = config("perf_offline", server, device, **fields)

    assert ensemble.needs_native_backend(chosen, chosen.format) is native
    assert ensemble.runs_in_process(chosen) is in_process
