"""A model repository says what was asked for, in Triton's own message, and can be taken away."""

import ast
import sys
from importlib.metadata import version

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from helpers import formats
from helpers.config.loading import resolve
from helpers.inference import ensemble
from helpers.models import Part, Tensor
from helpers.store.artifacts import create_artifact, find_artifact
from helpers.store.paths import ROOT
from helpers.triton.repository import SCENARIOS, model_config, write_repository
from tests.conftest import ONNX, run_time_code

INPUTS = (Tensor("IMAGE", "float32", (3, 8, 8)), Tensor("IDS", "int64", (26,)))
OUTPUTS = (Tensor("SCORES", "float16", (10,)),)


def config(**fields):
    batches = {"max_batch_size": 8, "preferred_batch_sizes": [4, 8], "max_queue_delay_us": 1000}
    chosen = {**ONNX, **batches, "instances": {"offline": 1, "online": 2}, **fields}
    if chosen["format"] not in ("onnx", "openvino"):
        chosen["export_format"] = chosen["format"]
    model = "widedeep" if chosen["export_format"] == "tf-savedmodel" else "resnet50"
    return resolve(model, "deploy", models={model: {"experiments": {"mine": chosen}}})


@pytest.fixture(autouse=True)
def these_tensors(monkeypatch):
    """Whatever the model and the machine, its one part has the tensors of this file, and there are
    four cores.
    """
    monkeypatch.setattr(ensemble, "physical_cores", lambda: 4)
    inputs, outputs = ({each.name: each for each in tensors} for tensors in (INPUTS, OUTPUTS))
    monkeypatch.setattr(ensemble, "parts", lambda config: (Part(config.model, inputs, outputs),))


def message_of(config, scenario):
    component = ensemble.components(config, config.format)[-1]
    return model_config(config, scenario, component, batched=True)


def repository(folder, config):
    """A repository whose artifact is one small file."""
    with create_artifact(folder / "made") as (made, _):
        (made / formats.get(config.format).FILE).write_text("weights")
    written = folder / "repository"
    written.mkdir()
    write_repository(written, config, find_artifact(folder / "made"))
    return written


def parsed(path):
    return text_format.Parse(path.read_text(), pb.ModelConfig())


EXPECTED = """
name: "resnet50" backend: "python" max_batch_size: 8
input { name: "IMAGE" data_type: TYPE_FP32 dims: [3, 8, 8] }
input { name: "IDS" data_type: TYPE_INT64 dims: 26 }
output { name: "SCORES" data_type: TYPE_FP16 dims: 10 }
parameters { key: "file" value { string_value: "model.onnx" } }
parameters { key: "device" value { string_value: "cpu" } }
"""
WARMUP = """
model_warmup {{
  name: "batch_{0}" batch_size: {0}
  inputs {{ key: "IMAGE" value {{ data_type: TYPE_FP32 dims: [3, 8, 8] zero_data: true }} }}
  inputs {{ key: "IDS" value {{ data_type: TYPE_INT64 dims: 26 zero_data: true }} }}
}}
"""
BATCHER = "dynamic_batching { preferred_batch_size: [4, 8] max_queue_delay_microseconds: 1000 }"


def expected(instances, batcher=""):
    """The message of an experiment on four cores, as Triton's documentation describes it."""
    threads = f'parameters {{ key: "threads" value {{ string_value: "{4 // instances}" }} }}'
    group = f"instance_group {{ count: {instances} kind: KIND_CPU }}"
    texts = (EXPECTED, threads, group, batcher, *map(WARMUP.format, (1, 4, 8)))
    return text_format.Parse("\n".join(texts), pb.ModelConfig())


def test_both_scenarios_parse_back_as_tritons_message(tmp_path):
    model = repository(tmp_path, config()) / "resnet50"

    assert parsed(model / "configs/offline.pbtxt") == expected(1)
    assert parsed(model / "config.pbtxt") == expected(2, BATCHER)


def test_without_preferred_sizes_and_delay_there_is_still_a_batcher_online():
    plain = config(preferred_batch_sizes=[], max_queue_delay_us=0)

    offline, online = (message_of(plain, scenario) for scenario in SCENARIOS)

    assert [each.HasField("dynamic_batching") for each in (offline, online)] == [False, True]
    assert [each.name for each in online.model_warmup] == ["batch_1"]


def test_on_a_gpu_target_the_instances_are_on_the_gpu():
    message = message_of(config().model_copy(update={"device": "gpu"}), "offline")

    assert message.instance_group[0].kind == pb.ModelInstanceGroup.KIND_GPU
    assert message.parameters["device"].string_value == "gpu"


def test_it_holds_these_files_and_no_others(tmp_path):
    written = repository(tmp_path, config())

    files = {str(p.relative_to(written)) for p in written.rglob("*") if not p.is_dir()}
    own = ("config.pbtxt", "configs/offline.pbtxt", "1/model.py", "1/runtime.py", "1/model.onnx")
    assert files == {"requirements.txt", *(f"resnet50/{name}" for name in own)}
    assert (written / "resnet50/1/model.onnx").read_text() == "weights"
    assert (written / "requirements.txt").read_text() == (
        f"numpy=={version('numpy')}\nonnxruntime=={version('onnxruntime')}\n"
    )


def imports(nodes):
    """Find the packages that statements import; `.` stands for a relative import."""
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add("." if node.level else node.module.partition(".")[0])
    return found


@pytest.mark.parametrize("name", formats.names())
def test_it_can_be_taken_away(name, tmp_path):
    written = repository(tmp_path, config(format=name, export_format=name))

    paths = list(written.rglob("*"))
    texts = {path: path.read_text() for path in paths if path.is_file()}
    codes = [run_time_code(path) for path in paths if path.suffix == ".py"]
    at_once = set().union(*(imports(code.body) for code in codes))
    ever = set().union(*(imports(ast.walk(code)) for code in codes))
    assert not [path for path in paths if path.is_symlink()]
    assert not [t for t in texts.values() for place in (ROOT, tmp_path) if str(place) in t]
    standard = {"numpy", "triton_python_backend_utils", *sys.stdlib_module_names}
    assert {"json", "numpy", "pathlib"} <= at_once <= standard
    assert {each.replace("-", "_") for each in formats.get(name).RUNTIME} < ever
    assert not {"helpers", "."} & ever


@pytest.mark.parametrize("name", [name for name in formats.names() if name != "onnx"])
def test_another_format_differs_in_the_file_and_nothing_else(name):
    onnx, other = (message_of(config(format=each), "online") for each in ("onnx", name))

    other.name = onnx.name
    assert other.parameters["file"].string_value == formats.get(name).FILE
    other.parameters["file"].string_value = "model.onnx"
    assert other == onnx
