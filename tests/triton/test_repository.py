"""A model repository says what was asked for, in Triton's own message, and can be taken away."""

import ast
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from helpers import formats
from helpers.config.loading import resolve
from helpers.config.schema import StageConfig as Config
from helpers.inference import ensemble
from helpers.inference.ensemble import Component
from helpers.models import Part, Tensor
from helpers.store.artifacts import create_artifact, find_artifact
from helpers.store.paths import ROOT
from helpers.triton.repository import SCENARIOS, model_config, write_repository
from tests.conftest import run_time_code

INPUTS = (Tensor("IMAGE", "float32", (3, 8, 8)), Tensor("IDS", "int64", (26,)))
OUTPUTS = (Tensor("SCORES", "float16", (10,)),)


def config(**fields: Any) -> Config:
    chosen = {
        "export_format": "onnx",
        "export_precision": "fp32",
        "format": "onnx",
        "precision": "fp32",
        "max_batch_size": 8,
        "preferred_batch_sizes": [4, 8],
        "max_queue_delay_us": 1000,
        "instances": {"offline": 1, "online": 2},
    } | fields
    if chosen["format"] not in ("onnx", "openvino"):
        chosen["export_format"] = chosen["format"]
    model = "widedeep" if chosen["export_format"] == "tf-savedmodel" else "resnet50"
    return resolve(model, "deploy", models={model: {"experiments": {"mine": chosen}}})


@pytest.fixture(autouse=True)
def these_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the model and the machine, its one part has the tensors of this file, and there are
    four cores.
    """
    monkeypatch.setattr(ensemble, "physical_cores", lambda: 4)
    inputs, outputs = ({each.name: each for each in tensors} for tensors in (INPUTS, OUTPUTS))
    monkeypatch.setattr(ensemble, "parts", lambda config: (Part(config.model, inputs, outputs),))


def message_of(config: Config, scenario: str) -> Any:
    return model_config(config, scenario, component(config), batched=True)


def component(config: Config) -> Component:
    return ensemble.components(config, config.format)[-1]


def repository(folder: Path, config: Config) -> Path:
    """A repository whose artifact is one small file."""
    with create_artifact(folder / "made") as (made, _):
        (made / formats.get(config.format).FILE).write_text("weights")
    artifact = find_artifact(folder / "made")
    assert artifact
    written = folder / "repository"
    written.mkdir()
    write_repository(written, config, artifact)
    return written


def parsed(path: Path) -> Any:
    return text_format.Parse(path.read_text(), pb.ModelConfig())


def warmup(batch_size: int) -> Any:
    inputs = {
        "IMAGE": pb.ModelWarmup.Input(data_type=pb.TYPE_FP32, dims=[3, 8, 8], zero_data=True),
        "IDS": pb.ModelWarmup.Input(data_type=pb.TYPE_INT64, dims=[26], zero_data=True),
    }
    return pb.ModelWarmup(name=f"batch_{batch_size}", batch_size=batch_size, inputs=inputs)


def expected(instances: int, threads: str) -> Any:
    """The message of an experiment without a batcher, as Triton's documentation describes it."""
    texts = {"file": "model.onnx", "threads": threads, "device": "cpu"}
    return pb.ModelConfig(
        name="resnet50",
        backend="python",
        max_batch_size=8,
        input=[
            pb.ModelInput(name="IMAGE", data_type=pb.TYPE_FP32, dims=[3, 8, 8]),
            pb.ModelInput(name="IDS", data_type=pb.TYPE_INT64, dims=[26]),
        ],
        output=[pb.ModelOutput(name="SCORES", data_type=pb.TYPE_FP16, dims=[10])],
        instance_group=[
            pb.ModelInstanceGroup(count=instances, kind=pb.ModelInstanceGroup.KIND_CPU)
        ],
        model_warmup=[warmup(1), warmup(4), warmup(8)],
        parameters={name: pb.ModelParameter(string_value=text) for name, text in texts.items()},
    )


def test_both_scenarios_parse_back_as_tritons_message(tmp_path: Path) -> None:
    model = repository(tmp_path, config()) / "resnet50"

    online = expected(2, "2")
    online.dynamic_batching.CopyFrom(
        pb.ModelDynamicBatching(preferred_batch_size=[4, 8], max_queue_delay_microseconds=1000)
    )
    assert parsed(model / "configs/offline.pbtxt") == expected(1, "4")
    assert parsed(model / "config.pbtxt") == online


def test_without_preferred_sizes_and_delay_there_is_still_a_batcher_online() -> None:
    plain = config(preferred_batch_sizes=[], max_queue_delay_us=0)

    found = {scenario: message_of(plain, scenario) for scenario in SCENARIOS}

    assert {name: message.HasField("dynamic_batching") for name, message in found.items()} == {
        "offline": False,
        "online": True,
    }
    assert [each.name for each in found["online"].model_warmup] == ["batch_1"]


def test_on_a_gpu_target_the_instances_are_on_the_gpu() -> None:
    on_gpu = config().model_copy(update={"device": "gpu"})

    message = message_of(on_gpu, "offline")

    assert message.instance_group[0].kind == pb.ModelInstanceGroup.KIND_GPU
    assert message.parameters["device"].string_value == "gpu"


def test_it_holds_these_files_and_no_others(tmp_path: Path) -> None:
    written = repository(tmp_path, config())

    files = {str(p.relative_to(written)) for p in written.rglob("*") if not p.is_dir()}
    assert files == {
        "requirements.txt",
        "resnet50/config.pbtxt",
        "resnet50/configs/offline.pbtxt",
        "resnet50/1/model.py",
        "resnet50/1/runtime.py",
        "resnet50/1/model.onnx",
    }
    assert (written / "resnet50/1/model.onnx").read_text() == "weights"
    assert (written / "requirements.txt").read_text() == (
        f"numpy=={version('numpy')}\nonnxruntime=={version('onnxruntime')}\n"
    )


def imports(node: ast.AST) -> list[str]:
    """The packages that a statement imports; `.` stands for a relative import."""
    if isinstance(node, ast.Import):
        return [alias.name.partition(".")[0] for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [(node.module or ".").partition(".")[0] if not node.level else "."]
    return []


@pytest.mark.parametrize("name", formats.names())
def test_it_can_be_taken_away(name: str, tmp_path: Path) -> None:
    written = repository(tmp_path, config(format=name, export_format=name))

    paths = list(written.rglob("*"))
    texts = {path: path.read_text() for path in paths if path.is_file()}
    codes = [run_time_code(path) for path in paths if path.suffix == ".py"]
    at_once = {each for code in codes for node in code.body for each in imports(node)}
    ever = {each for code in codes for node in ast.walk(code) for each in imports(node)}
    assert not [path for path in paths if path.is_symlink()]
    assert not [t for t in texts.values() for place in (ROOT, tmp_path) if str(place) in t]
    standard = {"numpy", "triton_python_backend_utils", *sys.stdlib_module_names}
    assert {"json", "numpy", "pathlib"} <= at_once <= standard
    assert {each.replace("-", "_") for each in formats.get(name).RUNTIME} < ever
    assert "helpers" not in ever


@pytest.mark.parametrize("name", [name for name in formats.names() if name != "onnx"])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_another_format_differs_in_the_file_and_nothing_else(name: str, scenario: str) -> None:
    messages = [message_of(config(format=each), scenario) for each in ("onnx", name)]
    for message in messages:
        message.name = "either"

    names = [message.parameters["file"].string_value for message in messages]
    for message in messages:
        del message.parameters["file"]
    assert names == ["model.onnx", formats.get(name).FILE]
    assert messages[0] == messages[1]
