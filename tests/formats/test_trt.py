"""TensorRT and TF-TRT without a GPU: what is asked for, what is refused, and what an engine is made
for. No engine is built or run here.
"""

import json
import os
import subprocess
import sys
import warnings
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from helpers import formats
from helpers.config import artifact_folder
from helpers.config.loading import resolve
from helpers.formats import Build, _tensorrt
from helpers.inference import datasets
from helpers.machine import gpu
from helpers.measure import checks
from helpers.pipeline.planning import Job, parameters
from helpers.store.artifacts import Artifact, create_artifact
from helpers.store.paths import OUTPUTS_VARIABLE
from helpers.triton import conversion_plan, convert
from tests.conftest import ONNX

INPUTS = {"IDS": np.zeros((2, 1), np.int64), "IMAGE": np.zeros((2, 3, 8, 8), np.float32)}
IMAGES = np.zeros((3, 3, 224, 224), np.float32)
WITHOUT_GPU = pytest.mark.skipif(gpu.has_driver(), reason="there is an NVIDIA driver")
NO_DRIVER = "needs an NVIDIA driver, but none is loaded"


def config(stage="convert", model="resnet50", device="gpu", **fields):
    server = {"kind": fields.pop("kind", "docker"), "release": fields.pop("release", "24.10")}
    chosen = ONNX | {"format": "trt", "precision": "fp16", "max_batch_size": 8} | fields
    sections = {model: {"experiments": {"mine": chosen}}}
    return resolve(model, stage, "Mine", device, server, models=sections)


def plan(chosen):
    return {row["field"]: row["value"] for row in conversion_plan(chosen)}


def test_a_profile_reaches_from_one_sample_to_the_largest_batch():
    assert _tensorrt.profile(INPUTS, 128) == {
        "IDS": {"min": [1, 1], "opt": [128, 1], "max": [128, 1]},
        "IMAGE": {"min": [1, 3, 8, 8], "opt": [128, 3, 8, 8], "max": [128, 3, 8, 8]},
    }


@WITHOUT_GPU
@pytest.mark.parametrize(
    ("name", "why_not_loaded"), [("trt", NO_DRIVER), ("tf-trt", "Use server.kind docker")]
)
def test_without_a_driver_nothing_is_built_or_loaded(name, why_not_loaded, tmp_path):
    fmt, before = formats.get(name), set(sys.modules)

    with pytest.raises(RuntimeError, match=NO_DRIVER):
        fmt.make(tmp_path / "none", tmp_path / fmt.FILE, Build("fp16", INPUTS, ("A",)))
    assert list(tmp_path.iterdir()) == []
    (tmp_path / _tensorrt.FACTS).write_text('{"tensorrt": "10.3.0", "cuda_graphs": false}')
    with pytest.raises(RuntimeError, match=why_not_loaded):
        fmt.load(tmp_path / fmt.FILE, 1, "gpu")
    with pytest.raises(RuntimeError, match="runs only on a GPU"):
        fmt.load(tmp_path / fmt.FILE, 1, "cpu")
    assert not {"tensorrt", "tensorflow"} & (set(sys.modules) - before)


@WITHOUT_GPU
def test_alone_it_ends_with_one_line(tmp_path):
    (tmp_path / "request.json").write_text("{}")
    command = [sys.executable, "-I", "-S", _tensorrt.__file__, str(tmp_path / "request.json")]

    done = subprocess.run(command, capture_output=True, text=True)

    assert (done.returncode, done.stderr) == (1, f"TensorRT {NO_DRIVER}\n")


def test_a_driver_is_looked_for_where_doctor_looks():
    """The file is run alone in images, and cannot import the other's list."""
    assert _tensorrt.DRIVER_FILES == gpu.DRIVER_FILES


TIMINGS = ".tensorrt-timings-10.5.0"


class Image:
    """Takes the place of a container: notes what it was given, and leaves the files of a build."""

    def __call__(self, config, image, folder, command):
        self.asked = json.loads((folder / "request.json").read_text())
        self.given = (image, command, sorted(os.listdir(folder)))
        assert (folder / "build.py").read_bytes() == Path(_tensorrt.__file__).read_bytes()
        for name in (self.asked["target"], "engine.json", TIMINGS)[: self.count]:
            (folder / name).write_text(f"made {name}")


@pytest.fixture
def image(monkeypatch):
    """An image that builds, for a model with made-up requests."""
    monkeypatch.setattr("helpers.triton.docker.run_in_image", image := Image())
    monkeypatch.setattr(datasets, "open_dataset", lambda _: None)
    monkeypatch.setattr(datasets, "requests", lambda *_: iter([{"INPUT__0": IMAGES}]))
    return image


def exported(chosen):
    """Convert a made-up export."""
    with create_artifact(artifact_folder(chosen, "export")) as (folder, _):
        file = folder / formats.get(chosen.export_format).FILE
        if chosen.export_format == "tf-savedmodel":
            file.mkdir()
            file /= "saved_model.pb"
        file.write_text("graph")
    return chosen


@pytest.mark.parametrize(
    "fields",
    [
        {"capture_cuda_graph": True},
        {"max_batch_size": 16},
        {"format": "tf-trt", "export_format": "tf-savedmodel"},
    ],
)
def test_an_engine_is_asked_of_the_releases_image_as_a_notebook_shows_it(fields, image):
    chosen = exported(config(release="23.02", **fields))
    built_in, source, files = (
        ("tensorrt:23.02-py3", "model.onnx", ["model.plan", "engine.json"])
        if chosen.format == "trt"
        else ("tensorflow:23.02-tf2-py3", "source", ["model.savedmodel"])
    )
    size, graphs, image.count = chosen.max_batch_size, "capture_cuda_graph" in fields, len(files)

    made = convert(chosen)

    name = f"nvcr.io/nvidia/{built_in}"
    command = ["python3", "build.py", "request.json"]
    assert image.given == (name, command, sorted(["build.py", "request.json", source]))
    asked = {"source": source, "target": files[0], "precision": "fp16", "cuda_graphs": graphs}
    assert image.asked == asked | {"profile": _tensorrt.profile({"INPUT__0": IMAGES}, size)}
    assert set(made.files) == set(files)
    facts = {"format": chosen.format, "precision": "fp16", "release": "23.02"}
    assert made.facts.items() >= facts.items()
    rows = plan(chosen)
    assert (rows["built in"], rows["workspace"]) == (name, "8 GiB")
    largest = f"{size} x 3 x 224 x 224"
    shapes = f"min 1 x 3 x 224 x 224; opt {largest}; max {largest}"
    assert rows["optimization profile, INPUT__0"] == shapes
    assert rows.get("CUDA graphs") == (("no", "yes")[graphs] if source == "model.onnx" else None)


def test_a_later_build_is_given_the_timings_of_the_earlier(image):
    image.count = 3
    convert(exported(config()))
    assert TIMINGS not in image.given[2]

    convert(exported(config(max_batch_size=16)))

    assert TIMINGS in image.given[2]


class Timings:
    """TensorRT's configuration, which knows whether it can read a timing cache."""

    def create_timing_cache(self, content):
        return None if content == b"damaged" else f"cache of {content!r}"

    def set_timing_cache(self, cache, ignore_mismatch):
        if cache is None:
            raise TypeError("set_timing_cache(): incompatible function arguments")
        return "another" not in cache


@pytest.mark.parametrize(
    ("content", "used"), [(b"good", b"good"), (b"damaged", b""), (b"another version's", b"")]
)
def test_a_timing_cache_that_is_of_no_use_is_begun_anew(tmp_path, content, used):
    (tmp_path / "timings").write_bytes(content)

    assert _tensorrt._timing_cache(Timings(), tmp_path / "timings") == f"cache of {used!r}"


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_the_builder_flags_that_are_shown_are_those_that_are_set(precision):
    done = []
    trt = SimpleNamespace(BuilderFlag=SimpleNamespace(FP16="FP16", INT8="INT8", TF32="TF32"))
    builder = SimpleNamespace(
        set_flag=done.append, clear_flag=lambda flag: done.append(f"{flag} cleared")
    )
    _tensorrt._set_precision(trt, builder, precision)

    assert plan(config(precision=precision))["builder flags"] == ", ".join(done)


TENSORRT = (
    "tensorrt (precision_mode=FP32, max_workspace_size_bytes=1073741824, "
    "trt_engine_cache_enable=1, trt_engine_cache_path=/tmp/tensorrt-resnet50-mine)"
)
SAVED = {"export_format": "tf-savedmodel", "format": "tf-savedmodel", "precision": "fp32"}
PROFILES = {
    "optimization profile, args_0": "min 13; opt 104; max 104",
    "optimization profile, args_1": "min 3328; opt 26624; max 26624",
}
INT8 = ONNX | {"precision": "int8", "calibration_samples": 96, "device": "cpu"}
PLANS = [
    ({"model": "dlrm", "export_format": "tf-savedmodel", "lookup": "hps"}, PROFILES),
    (ONNX | {"accelerator": "trt"}, {"accelerator": TENSORRT}),
    (ONNX | {"accelerator": "openvino", "device": "cpu"}, {"accelerator": "openvino"}),
    (SAVED | {"accelerator": "amp"}, {"accelerator": "auto_mixed_precision"}),
    (INT8, {"calibration": "96 training samples, seed 0"}),
]


@pytest.mark.parametrize(("fields", "rows"), PLANS)
def test_a_plan_shows_what_decides_a_conversion(fields, rows):
    found = plan(config(**fields))

    assert found.items() >= rows.items()
    assert ("tolerances" in found) == ("calibration" in rows)


def test_where_nothing_is_converted_the_plan_says_so():
    _, last = conversion_plan(config(format="onnx", precision="fp32"))

    assert last["why"] == "Same format and precision as the export, so the file is used as it is."


@pytest.mark.parametrize(
    ("change", "again"),
    [
        ({"max_batch_size": 16}, {"trt", "tf-trt"}),
        ({"capture_cuda_graph": True}, {"trt"}),
        ({"release": "24.11"}, {"trt", "tf-trt"}),
        ({"preferred_batch_sizes": [4]}, set()),
        ({"instances": 2}, set()),
    ],
)
@pytest.mark.parametrize("name", ["trt", "tf-trt", "onnx"])
def test_only_what_a_file_is_made_for_makes_it_again(change, again, name):
    fields = {"format": name, "precision": "fp32" if name == "onnx" else "fp16"}
    fields["export_format"] = "tf-savedmodel" if name == "tf-trt" else "onnx"
    before, after = (config("deploy", **fields, **each) for each in ({}, change))

    stages = ("export", "convert", "deploy")
    changed = {stage for stage in stages if before.key(stage) != after.key(stage)}

    assert changed == {"deploy", *(["convert"] if name in again else [])}


def test_a_notebook_is_given_the_fields_that_its_conversion_reads():
    for fields, is_given in (({}, True), (ONNX, False)):
        assert ("max_batch_size" in parameters(Job(config(**fields)))["defaults"]) == is_given


def test_an_engine_is_held_against_the_framework_by_the_server_that_loads_it(tmp_path, monkeypatch):
    monkeypatch.setenv(OUTPUTS_VARIABLE, str(tmp_path))
    (tmp_path / "made").mkdir()
    (tmp_path / "made/model.plan").write_text("engine")
    facts = {"format": "trt", "precision": "fp16", "release": "24.10"}
    artifact = Artifact(tmp_path / "made", {"model.plan": {}}, facts)
    right = np.arange(12.0, dtype=np.float32).reshape(3, 4)
    monkeypatch.setattr(checks, "_reference", lambda _: ({"OUTPUT__0": right}, {}))
    dataset = SimpleNamespace(batches=lambda size, limit: iter([{"INPUT__0": IMAGES}]))
    monkeypatch.setattr(checks, "open_dataset", lambda _: dataset)
    served = []

    def infer_all(model, batches):
        assert [batch["INPUT__0"].shape for batch in batches] == [IMAGES.shape]
        return {"OUTPUT__0": right + 2**-7}

    @contextmanager
    def serve(config, repository, scenario):
        served.append((config.stage, scenario, repository.facts))
        assert (repository.folder / "resnet50/1/model.plan").read_text() == "engine"
        yield SimpleNamespace(infer_all=infer_all)

    monkeypatch.setattr("helpers.triton.serve", serve)

    check = checks.compare(config(), artifact)

    assert served == [("deploy", "offline", facts)]
    found = (check.name, check.precision, check.samples, check.failure)
    assert found == ("converted", "fp16", 3, "")
    assert check.differences[0].max_difference == pytest.approx(2**-7 / np.std(right))
    assert os.listdir(tmp_path) == ["made"]


class Half(torch.nn.Module):
    """A layer, a norm, a sum and a mean: what the networks are made of."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = torch.nn.Linear(3, 4), torch.nn.LayerNorm(4)
        self.last = torch.nn.Linear(4, 4)

    def forward(self, x, n):
        hidden = self.norm(self.first(x)) * n.to(x.dtype)
        weight = (hidden * hidden).sum(1, keepdim=True)
        return weight, self.last(torch.softmax(hidden * weight, 1)) + hidden.mean(1, keepdim=True)


HALVES = {"X__0": np.ones((2, 3), np.float16), "N__3": np.ones((2, 1), np.int32)}
RESULTS = ("A__0", "B__1")


@pytest.mark.parametrize("opset", [None, 13])
@pytest.mark.slow
def test_an_fp16_onnx_file_is_fp16_inside_and_at_its_ends(opset, tmp_path):
    import onnx as library

    network = Half().eval()
    onnx, path = formats.get("onnx"), tmp_path / "model.onnx"
    onnx.make(network, path, Build("fp16", HALVES, RESULTS, opset))

    model = library.load(path)
    half, ints = library.TensorProto.FLOAT16, library.TensorProto.INT32
    weights = [w.data_type for w in model.graph.initializer if len(w.dims) > 1]
    assert weights == [half, half]
    assert library.TensorProto.FLOAT not in {w.data_type for w in model.graph.initializer if w.dims}
    ends = {e.name: e.type.tensor_type.elem_type for e in (*model.graph.input, *model.graph.output)}
    assert ends == {"X__0": half, "N__3": ints, "A__0": half, "B__1": half}
    (batch,) = {e.type.tensor_type.shape.dim[0].dim_param for e in model.graph.input}
    assert batch
    if opset:
        assert [each.version for each in model.opset_import] == [opset]
        assert model.ir_version <= 8
    found = onnx.load(path, 1, "cpu").run(HALVES)
    right = network(torch.ones(2, 3), torch.ones(2, 1))
    for name, expected in zip(RESULTS, right, strict=True):
        assert found[name].dtype == np.float16
        np.testing.assert_allclose(found[name], expected.detach().numpy(), atol=0.02)


@pytest.mark.parametrize("name", ["ts-trace", "ts-script"])
def test_an_fp16_torchscript_is_fp16_and_its_arguments_are_named_as_the_inputs(name, tmp_path):
    fmt, path = formats.get(name), tmp_path / "model.pt"
    fmt.make(Half().eval(), path, Build("fp16", HALVES, RESULTS))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated in PyTorch
        module = torch.jit.load(path)
    constants = {
        node.t("value").dtype
        for node in module.graph.findAllNodes("prim::Constant")
        if node.hasAttribute("value") and node.kindOf("value") == "t"
    }
    assert [argument.name for argument in module.forward.schema.arguments[1:]] == list(HALVES)
    assert torch.float16 in constants
    assert torch.float32 not in constants
    found = fmt.load(path, 1, "cpu").run(HALVES)
    assert {key: value.dtype for key, value in found.items()} == dict.fromkeys(RESULTS, np.float16)


@pytest.mark.parametrize(("release", "opset"), [("24.04", 13), ("24.05", None), ("21.02", 13)])
def test_an_old_server_is_given_an_old_opset_and_a_file_of_its_own(release, opset):
    chosen, today = config("export", release=release), config("export")

    assert chosen.opset == opset
    assert (chosen.key("export") == today.key("export")) == (opset is None)
    assert config("export", kind="embedded", release=release).opset is None
