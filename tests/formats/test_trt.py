"""TensorRT and TF-TRT without a GPU: what is asked for, what is refused, and what an engine is made
for. No engine is built or run here.
"""

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tritonclient.grpc.model_config_pb2 import ModelConfig

from helpers import formats
from helpers.config import artifact_folder
from helpers.config.loading import resolve
from helpers.config.schema import StageConfig as Config
from helpers.formats import Build, _tensorrt
from helpers.inference import datasets
from helpers.machine import gpu
from helpers.measure import checks
from helpers.store.artifacts import Artifact, create_artifact
from helpers.store.paths import OUTPUTS_VARIABLE
from helpers.triton import conversion_plan, convert, native

INPUTS = {
    "IDS": np.zeros((2, 1), np.int64),
    "IMAGE": np.zeros((2, 3, 8, 8), np.float32),
}
BOTH = ("trt", "tf-trt")
WITHOUT_GPU = pytest.mark.skipif(gpu.has_driver(), reason="there is an NVIDIA driver")


def config(stage: str = "convert", **fields: Any) -> Config:
    server = {"kind": fields.pop("kind", "docker"), "release": fields.pop("release", "24.10")}
    chosen = {
        "export_format": "onnx",
        "export_precision": "fp32",
        "format": "trt",
        "precision": "fp16",
        "max_batch_size": 8,
    } | fields
    sections = {"resnet50": {"experiments": {"mine": chosen}}}
    return resolve("resnet50", stage, "Mine", "gpu", server, models=sections)


def test_a_profile_reaches_from_one_sample_to_the_largest_batch() -> None:
    assert _tensorrt.profile(INPUTS, 128) == {
        "IDS": {"min": [1, 1], "opt": [128, 1], "max": [128, 1]},
        "IMAGE": {"min": [1, 3, 8, 8], "opt": [128, 3, 8, 8], "max": [128, 3, 8, 8]},
    }


@WITHOUT_GPU
@pytest.mark.parametrize("name", BOTH)
def test_without_a_driver_nothing_is_built_and_one_line_says_so(name: str, tmp_path: Path) -> None:
    fmt = formats.get(name)

    with pytest.raises(RuntimeError, match="needs an NVIDIA driver, but none is loaded"):
        fmt.make(tmp_path / "none", tmp_path / fmt.FILE, Build("fp16", INPUTS, ("A",)))

    assert list(tmp_path.iterdir()) == []


WHY_NOT_LOADED = {
    "trt": "needs an NVIDIA driver, but none is loaded",
    "tf-trt": "only in Triton's TensorFlow backend. Use server.kind docker",
}


@WITHOUT_GPU
@pytest.mark.parametrize("name", BOTH)
def test_without_a_driver_nothing_is_loaded_and_no_library_either(
    name: str, tmp_path: Path
) -> None:
    (tmp_path / _tensorrt.FACTS).write_text('{"tensorrt": "10.3.0", "cuda_graphs": false}')
    before = set(sys.modules)

    with pytest.raises(RuntimeError, match=WHY_NOT_LOADED[name]):
        formats.get(name).load(tmp_path / formats.get(name).FILE, 1, "gpu")

    assert not {"tensorrt", "tensorflow"} & (set(sys.modules) - before)


@pytest.mark.parametrize("name", BOTH)
def test_a_processor_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="runs only on a GPU"):
        formats.get(name).load(tmp_path / "model", 1, "cpu")


@WITHOUT_GPU
def test_alone_it_ends_with_one_line(tmp_path: Path) -> None:
    (tmp_path / "request.json").write_text("{}")

    done = subprocess.run(
        [sys.executable, "-I", "-S", _tensorrt.__file__, str(tmp_path / "request.json")],
        capture_output=True,
        text=True,
    )

    assert done.returncode == 1
    assert done.stderr == "TensorRT needs an NVIDIA driver, but none is loaded\n"


class Image:
    """Takes the place of a container: notes what it was given, and leaves the files of a build."""

    def __init__(self, *leaves: str) -> None:
        self.leaves = leaves
        self.command: list[str] = []
        self.asked: dict[str, Any] = {}
        self.files: dict[str, bytes] = {}
        self.folders: dict[str, list[str]] = {}

    def __call__(self, folder: Path, command: list[str]) -> None:
        self.command = command
        self.asked = json.loads((folder / "request.json").read_text())
        self.files = {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}
        self.folders = {p.name: sorted(os.listdir(p)) for p in folder.iterdir() if p.is_dir()}
        for name in self.leaves:
            (folder / name).write_text(f"made {name}")


def test_an_engine_is_asked_of_the_image_with_all_that_it_needs(tmp_path: Path) -> None:
    (tmp_path / "exported.onnx").write_text("graph")
    (tmp_path / "artifacts/mine").mkdir(parents=True)
    image = Image("model.plan", "engine.json", ".tensorrt-timings-10.5.0")

    formats.get("trt").make(
        tmp_path / "exported.onnx",
        tmp_path / "artifacts/mine/model.plan",
        Build("fp16", INPUTS, ("A",), None, 64, capture_cuda_graph=True, in_image=image),
    )

    assert image.command == ["python3", "build.py", "request.json"]
    assert image.files["model.onnx"] == b"graph"
    assert image.files["build.py"] == Path(_tensorrt.__file__).read_bytes()
    assert image.asked == {
        "source": "model.onnx",
        "target": "model.plan",
        "precision": "fp16",
        "profile": _tensorrt.profile(INPUTS, 64),
        "cuda_graphs": True,
    }
    made = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()}
    assert made == {
        "exported.onnx",
        "artifacts/.tensorrt-timings-10.5.0",
        "artifacts/mine/model.plan",
        "artifacts/mine/engine.json",
    }


def test_a_later_build_is_given_the_timings_of_the_earlier(tmp_path: Path) -> None:
    (tmp_path / "exported.onnx").write_text("graph")
    (tmp_path / "mine").mkdir()
    (tmp_path / ".tensorrt-timings-10.5.0").write_text("timings")
    image = Image("model.plan", "engine.json")

    formats.get("trt").make(
        tmp_path / "exported.onnx",
        tmp_path / "mine/model.plan",
        Build("fp32", INPUTS, ("A",), in_image=image),
    )

    assert image.files[".tensorrt-timings-10.5.0"] == b"timings"


def test_a_driver_is_looked_for_where_doctor_looks() -> None:
    """The file is run alone in images, and cannot import the other's list."""
    assert _tensorrt.DRIVER_FILES == gpu.DRIVER_FILES


class Timings:
    """TensorRT's configuration, which knows whether it can read a timing cache."""

    def create_timing_cache(self, content: bytes) -> str | None:
        return None if content == b"damaged" else f"cache of {content!r}"

    def set_timing_cache(self, cache: str | None, ignore_mismatch: bool) -> bool:
        if cache is None:
            raise TypeError("set_timing_cache(): incompatible function arguments")
        return "another" not in cache


@pytest.mark.parametrize(
    ("content", "used"), [(b"good", b"good"), (b"damaged", b""), (b"another version's", b"")]
)
def test_a_timing_cache_that_is_of_no_use_is_begun_anew(
    tmp_path: Path, content: bytes, used: bytes
) -> None:
    (tmp_path / "timings").write_bytes(content)

    assert _tensorrt._timing_cache(Timings(), tmp_path / "timings") == f"cache of {used!r}"


def test_tf_trt_is_asked_of_the_image_likewise(tmp_path: Path) -> None:
    (tmp_path / "exported/variables").mkdir(parents=True)
    (tmp_path / "exported/saved_model.pb").write_text("graph")
    (tmp_path / "mine").mkdir()
    image = Image("model.savedmodel")

    formats.get("tf-trt").make(
        tmp_path / "exported",
        tmp_path / "mine/model.savedmodel",
        Build("fp16", INPUTS, ("A",), max_batch_size=4, in_image=image),
    )

    assert image.files["build.py"] == Path(_tensorrt.__file__).read_bytes()
    assert image.folders == {"source": ["saved_model.pb", "variables"]}
    assert image.asked == {
        "source": "source",
        "target": "model.savedmodel",
        "precision": "fp16",
        "profile": _tensorrt.profile(INPUTS, 4),
        "cuda_graphs": False,
    }
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["model.savedmodel"]


@pytest.mark.parametrize(
    ("name", "precision", "export", "image", "files"),
    [
        ("trt", "fp16", "onnx", "tensorrt:23.02-py3", {"model.plan", "engine.json"}),
        ("tf-trt", "fp16", "tf-savedmodel", "tensorflow:23.02-tf2-py3", {"model.savedmodel"}),
    ],
)
def test_convert_builds_in_a_container_and_notes_the_release(
    name: str,
    precision: str,
    export: str,
    image: str,
    files: set[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []

    def run_in_image(config: Config, image: str, folder: Path, command: list[str]) -> None:
        asked.append((image, command))
        for file in files:
            (folder / file).write_text("built")

    monkeypatch.setenv(OUTPUTS_VARIABLE, str(tmp_path / "outputs"))
    monkeypatch.setattr("helpers.triton.docker.run_in_image", run_in_image)
    monkeypatch.setattr(datasets, "open_dataset", lambda _: None)
    monkeypatch.setattr(datasets, "requests", lambda *_: iter([{"INPUT__0": INPUTS["IMAGE"]}]))
    chosen = config(release="23.02", format=name, precision=precision, export_format=export)
    with create_artifact(artifact_folder(chosen, "export")) as (folder, _):
        exported = folder / formats.get(export).FILE
        if export == "onnx":
            exported.write_text("graph")
        else:
            exported.mkdir()
            (exported / "saved_model.pb").write_text("graph")

    made = convert(chosen)

    assert asked == [(f"nvcr.io/nvidia/{image}", ["python3", "build.py", "request.json"])]
    assert set(made.files) == files
    assert {name: made.facts[name] for name in ("format", "precision", "release")} == {
        "format": name,
        "precision": precision,
        "release": "23.02",
    }


def shown(shapes: dict[str, list[int]]) -> str:
    return "; ".join(f"{end} {' x '.join(map(str, each))}" for end, each in shapes.items())


@pytest.mark.parametrize("capture", [True, False])
def test_what_a_notebook_shows_of_an_engine_is_what_the_builder_is_given(
    capture: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image, images = Image("model.plan"), np.zeros((2, 3, 224, 224), np.float32)
    monkeypatch.setenv(OUTPUTS_VARIABLE, str(tmp_path / "outputs"))
    monkeypatch.setattr(
        "helpers.triton.docker.run_in_image",
        lambda config, name, folder, command: image(folder, command),
    )
    monkeypatch.setattr(datasets, "open_dataset", lambda _: None)
    monkeypatch.setattr(datasets, "requests", lambda *_: iter([{"INPUT__0": images}]))
    chosen = config(max_batch_size=16, capture_cuda_graph=capture, release="23.02")
    with create_artifact(artifact_folder(chosen, "export")) as (folder, _):
        (folder / "model.onnx").write_text("graph")
    convert(chosen)

    rows = {row["field"]: row["value"] for row in conversion_plan(chosen)}

    (name,) = image.asked["profile"]
    assert rows == {
        "from": "ONNX, fp32",
        "to": "NVIDIA TensorRT, fp16",
        "built in": "nvcr.io/nvidia/tensorrt:23.02-py3",
        "builder flags": "FP16",
        f"optimization profile, {name}": shown(image.asked["profile"][name]),
        "workspace": f"{_tensorrt.WORKSPACE_BYTES / 2**30:.0f} GiB",
        "CUDA graphs": "yes" if image.asked["cuda_graphs"] else "no",
    }
    assert image.asked["cuda_graphs"] is capture


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_the_builder_flags_that_are_shown_are_those_that_are_set(precision: str) -> None:
    done = []
    trt = SimpleNamespace(BuilderFlag=SimpleNamespace(FP16="FP16", INT8="INT8", TF32="TF32"))
    builder = SimpleNamespace(
        set_flag=done.append, clear_flag=lambda flag: done.append(f"{flag} cleared")
    )
    _tensorrt._set_precision(trt, builder, precision)

    rows = conversion_plan(config(precision=precision))

    assert {row["field"]: row["value"] for row in rows}["builder flags"] == ", ".join(done)


def test_flat_tensors_have_a_profile_of_the_elements_of_so_many_samples() -> None:
    sections = {"dlrm": {"experiments": {"mine": FLAT}}}
    chosen = resolve("dlrm", "convert", "Mine", "gpu", {"kind": "docker"}, models=sections)

    rows = {row["field"]: row["value"] for row in conversion_plan(chosen)}

    assert rows["optimization profile, args_0"] == "min 13; opt 104; max 104"
    assert rows["optimization profile, args_1"] == "min 3328; opt 26624; max 26624"


FLAT = {
    "export_format": "tf-savedmodel",
    "export_precision": "fp32",
    "format": "trt",
    "precision": "fp16",
    "max_batch_size": 8,
    "lookup": "hps",
}


@pytest.mark.parametrize(
    ("fields", "device", "value"),
    [
        (
            {"format": "onnx", "precision": "fp32", "accelerator": "trt"},
            "gpu",
            "tensorrt (precision_mode=FP32, max_workspace_size_bytes=1073741824, ",
        ),
        ({"format": "onnx", "precision": "fp32", "accelerator": "openvino"}, "cpu", "openvino"),
        (
            {
                "export_format": "tf-savedmodel",
                "format": "tf-savedmodel",
                "precision": "fp32",
                "accelerator": "amp",
            },
            "gpu",
            "auto_mixed_precision",
        ),
    ],
)
def test_an_accelerator_is_shown_as_the_server_is_told(
    fields: dict[str, Any], device: str, value: str
) -> None:
    sections = {"resnet50": {"experiments": {"mine": {**GRAPH, **fields}}}}
    server = {"kind": "docker", "release": "24.10"}
    chosen, deployed = (
        resolve("resnet50", stage, "Mine", device, server, models=sections)
        for stage in ("convert", "deploy")
    )
    message = ModelConfig()
    native.complete(message, deployed, "model", 1)

    (row,) = [row for row in conversion_plan(chosen) if row["field"] == "accelerator"]

    accelerators = message.optimization.execution_accelerators
    (told,) = getattr(accelerators, f"{device}_execution_accelerator")
    given = ", ".join(
        f"{key}={told.parameters[key]}" for key in PARAMETERS if key in told.parameters
    )
    assert row["value"] == (f"{told.name} ({given})" if given else told.name)
    assert row["value"].startswith(value)


GRAPH = {"export_format": "onnx", "export_precision": "fp32", "max_batch_size": 8}
PARAMETERS = (  # of ONNX Runtime's TensorRT, in the order in which they are shown
    "precision_mode",
    "max_workspace_size_bytes",
    "trt_engine_cache_enable",
    "trt_engine_cache_path",
)


def test_where_nothing_is_converted_the_plan_says_so() -> None:
    rows = conversion_plan(config(format="onnx", precision="fp32"))

    assert [row["field"] for row in rows] == ["from", "to"]
    assert (
        rows[1]["why"] == "Same format and precision as the export, so the file is used as it is."
    )


def test_an_int8_conversion_says_what_decides_its_scales() -> None:
    fields = {**GRAPH, "format": "onnx", "precision": "int8", "calibration_samples": 96}
    sections = {"resnet50": {"experiments": {"mine": fields}}}

    rows = {
        row["field"]: row["value"]
        for row in conversion_plan(resolve("resnet50", "convert", models=sections))
    }

    assert rows["calibration"] == "96 training samples, seed 0"
    assert {"calibration", "tolerances"} < rows.keys()


CHANGES: list[tuple[dict[str, Any], dict[str, set[str]]]] = [
    ({"max_batch_size": 16}, {"trt": {"convert"}, "tf-trt": {"convert"}, "onnx": set()}),
    ({"capture_cuda_graph": True}, {"trt": {"convert"}, "tf-trt": set(), "onnx": set()}),
    ({"release": "24.11"}, {"trt": {"convert"}, "tf-trt": {"convert"}, "onnx": set()}),
    ({"preferred_batch_sizes": [4]}, {"trt": set(), "tf-trt": set(), "onnx": set()}),
]


@pytest.mark.parametrize(
    ("change", "again"), CHANGES, ids=[next(iter(each)) for each, _ in CHANGES]
)
@pytest.mark.parametrize("name", ["trt", "tf-trt", "onnx"])
def test_only_what_a_file_is_made_for_makes_it_again(
    change: dict[str, Any], again: dict[str, set[str]], name: str
) -> None:
    fields: dict[str, Any] = {"format": name, "export_format": "tf-savedmodel"}
    fields |= {"precision": "fp32"} if name == "onnx" else {}
    if name != "tf-trt":
        fields["export_format"] = "onnx"
    before, after = (config("deploy", **fields, **each) for each in ({}, change))

    stages = ("export", "convert", "deploy")
    changed = {stage for stage in stages if before.key(stage) != after.key(stage)}

    assert changed == again[name] | {"deploy"}


def test_a_conversion_reads_what_its_format_is_made_for_and_no_more() -> None:
    engine, graph = config(), config(format="onnx", precision="fp32")

    assert (engine.max_batch_size, engine.capture_cuda_graph) == (8, False)
    assert not hasattr(graph, "max_batch_size")
    assert not hasattr(graph, "capture_cuda_graph")
    assert not hasattr(engine, "instances")


def test_a_notebook_is_given_the_fields_that_its_conversion_reads() -> None:
    from helpers.pipeline.planning import Job, parameters

    assert parameters(Job(config()))["defaults"]["max_batch_size"] == 8
    graph = config(format="onnx", precision="fp32")
    assert "max_batch_size" not in parameters(Job(graph))["defaults"]


def test_an_engine_is_held_against_the_framework_by_the_server_that_loads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OUTPUTS_VARIABLE, str(tmp_path))
    (tmp_path / "made").mkdir()
    (tmp_path / "made/model.plan").write_text("engine")
    facts = {"format": "trt", "precision": "fp16", "release": "24.10"}
    artifact = Artifact(tmp_path / "made", {"model.plan": {}}, facts)
    right = {"OUTPUT__0": np.arange(12.0, dtype=np.float32).reshape(3, 4)}
    images = np.zeros((3, 3, 224, 224), np.float32)
    monkeypatch.setattr(checks, "_reference", lambda _: (right, {}))
    dataset = SimpleNamespace(batches=lambda size, limit: iter([{"INPUT__0": images}]))
    monkeypatch.setattr(checks, "open_dataset", lambda _: dataset)
    served = []

    class Serving:
        def __init__(self, config: Config, repository: Artifact, scenario: str) -> None:
            served.append((config.stage, scenario, repository.facts))
            assert (repository.folder / "resnet50/1/model.plan").read_text() == "engine"

        def __enter__(self) -> Any:
            def infer_all(model: str, batches: Any) -> Any:
                assert [batch["INPUT__0"].shape for batch in batches] == [images.shape]
                return {"OUTPUT__0": right["OUTPUT__0"] + 2**-7}

            return SimpleNamespace(infer_all=infer_all)

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr("helpers.triton.serve", Serving)

    check = checks.compare(config(), artifact)

    assert served == [("deploy", "offline", facts)]
    assert (check.name, check.precision, check.samples, check.failure) == (
        "converted",
        "fp16",
        3,
        "",
    )
    assert check.differences[0].max_difference == pytest.approx(2**-7 / np.std(right["OUTPUT__0"]))
    assert os.listdir(tmp_path) == ["made"]


class Half(torch.nn.Module):
    """A layer, a norm, a sum and a mean: what the networks are made of."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = torch.nn.Linear(3, 4), torch.nn.LayerNorm(4)
        self.last = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.norm(self.first(x)) * n.to(x.dtype)
        weight = (hidden * hidden).sum(1, keepdim=True)
        return weight, self.last(torch.softmax(hidden * weight, 1)) + hidden.mean(1, keepdim=True)


HALVES = {"X__0": np.ones((2, 3), np.float16), "N__3": np.ones((2, 1), np.int32)}
RESULTS = ("A__0", "B__1")


@pytest.mark.parametrize("opset", [None, 13])
@pytest.mark.slow
def test_an_fp16_onnx_file_is_fp16_inside_and_at_its_ends(
    opset: int | None, tmp_path: Path
) -> None:
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
    batches = {e.type.tensor_type.shape.dim[0].dim_param for e in model.graph.input}
    assert len(batches) == 1
    assert batches != {""}
    if opset:
        assert [each.version for each in model.opset_import] == [opset]
        assert model.ir_version <= 8
    found = onnx.load(path, 1, "cpu").run(HALVES)
    right = network(torch.ones(2, 3), torch.ones(2, 1))
    for name, expected in zip(RESULTS, right, strict=True):
        assert found[name].dtype == np.float16
        np.testing.assert_allclose(found[name], expected.detach().numpy(), atol=0.02)


@pytest.mark.parametrize("name", ["ts-trace", "ts-script"])
def test_an_fp16_torchscript_is_fp16_and_its_arguments_are_named_as_the_inputs(
    name: str, tmp_path: Path
) -> None:
    path = tmp_path / "model.pt"
    fmt = formats.get(name)
    fmt.make(Half().eval(), path, Build("fp16", HALVES, RESULTS))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated in PyTorch
        module = torch.jit.load(path)
    constants = [
        node.t("value").dtype
        for node in module.graph.findAllNodes("prim::Constant")
        if node.hasAttribute("value") and node.kindOf("value") == "t"
    ]
    assert [argument.name for argument in module.forward.schema.arguments[1:]] == list(HALVES)
    assert {torch.float16} <= set(constants)
    assert torch.float32 not in constants
    found = fmt.load(path, 1, "cpu").run(HALVES)
    assert {key: str(value.dtype) for key, value in found.items()} == dict.fromkeys(
        RESULTS, "float16"
    )


@pytest.mark.parametrize(("release", "opset"), [("24.04", 13), ("24.05", None), ("21.02", 13)])
def test_an_old_server_is_given_an_old_opset_and_a_file_of_its_own(
    release: str, opset: int | None
) -> None:
    chosen = config("export", release=release)
    today = config("export", release="24.10")

    assert chosen.opset == opset
    assert (chosen.key("export") == today.key("export")) == (opset is None)
    assert config("export", kind="embedded", release=release).opset is None
