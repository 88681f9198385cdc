"""The Python backend's adapter: tensors on a device, and batches that fail.

No GPU is needed: PyTorch's tensors of the processor stand for those on one.
"""

import ast
import importlib.util
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from helpers import formats
from helpers.formats import Build
from helpers.store.paths import ROOT
from helpers.triton import embedded
from tests.triton.conftest import write_doubles


@pytest.fixture
def adapter(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module as Triton's stub loads it, with a stand-in for the backend's utilities."""
    utils = ModuleType("triton_python_backend_utils")
    monkeypatch.setitem(sys.modules, utils.__name__, utils)
    spec = importlib.util.spec_from_file_location("adapter", ROOT / "helpers/triton/adapter.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", ["triton/adapter.py", "models/_criteo/lookup.py"])
def test_what_older_images_run_is_python_3_8(path: str) -> None:
    """Releases up to 23.x have Python 3.8, and there the adapter serves lookups."""
    text = (ROOT / "helpers" / path).read_text()
    nodes = list(ast.walk(ast.parse(text, feature_version=(3, 8))))
    keywords = [node for node in nodes if isinstance(node, ast.keyword)]
    assert not [each.lineno for each in keywords if each.arg == "strict"]  # of zip: 3.10
    annotations = [node for node in nodes if getattr(node, "annotation", None)]
    assert not annotations or "from __future__ import annotations" in text  # list[int]: 3.9


def on_device(values: torch.Tensor) -> Any:
    """Triton's tensor, of which it says that it is not in this host's memory."""
    return SimpleNamespace(is_cpu=lambda: False, to_dlpack=values.__dlpack__)


def test_what_is_on_the_device_is_taken_without_a_copy(adapter: Any) -> None:
    values = torch.arange(6.0).reshape(3, 2)

    taken = adapter.to_array(on_device(values))

    assert taken.data_ptr() == values.data_ptr()
    assert torch.equal(taken, values)


def test_requests_from_both_places_are_joined_in_order(adapter: Any) -> None:
    first, second = np.ones((2, 3), np.float32), torch.full((1, 3), 2.0)

    joined = adapter.concatenate([first, second])

    assert isinstance(joined, torch.Tensor)
    assert joined[:, 0].tolist() == [1, 1, 2]
    np.testing.assert_array_equal(adapter.concatenate([first, first]), np.ones((4, 3), np.float32))


class Sum(torch.nn.Module):
    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return first + second


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ts-trace", "onnx"])
def test_a_session_on_the_device_takes_both_and_gives_tensors(name: str, tmp_path: Path) -> None:
    example = {name: np.ones((2, 3), np.float32) for name in ("first", "second")}
    fmt = formats.get(name)
    fmt.make(Sum(), tmp_path / fmt.FILE, Build("fp32", example, ("sum",)))
    session: Any = fmt.load(tmp_path / fmt.FILE, 1, "cpu")
    first = np.arange(12, dtype=np.float32).reshape(4, 3)
    given = {"first": first, "second": torch.full((4, 3), 0.5)}

    answer = session.run_on_device(given)

    assert isinstance(answer["sum"], torch.Tensor)
    np.testing.assert_array_equal(answer["sum"].numpy(), first + 0.5)


class Rows(torch.nn.Module):
    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        return numbers.reshape(-1, 4).sum(dim=1, keepdim=True)


def test_a_flat_input_does_not_decide_how_many_rows_come_back(tmp_path: Path) -> None:
    fmt = formats.get("onnx")
    example = {"numbers": np.ones(12, np.float32)}
    fmt.make(Rows(), tmp_path / fmt.FILE, Build("fp32", example, ("sums",), opset=13))
    session: Any = fmt.load(tmp_path / fmt.FILE, 1, "cpu")

    answer = session.run_on_device({"numbers": torch.arange(20.0)})

    np.testing.assert_array_equal(answer["sums"], [[6], [22], [38], [54], [70]])


def test_outputs_of_any_type_and_size_stay_on_the_device(tmp_path: Path) -> None:
    """Also one whose size the graph decides: here the places of the positive sums."""
    from onnx import TensorProto, helper, save

    def tensor(name: str, kind: int, *sizes: str | int) -> Any:
        return helper.make_tensor_value_info(name, kind, sizes)

    nodes = [
        helper.make_node("ReduceSum", ["x", "axes"], ["sum"], keepdims=0),
        helper.make_node("Cast", ["sum"], ["label"], to=TensorProto.INT64),
        helper.make_node("Greater", ["sum", "zero"], ["is_positive"]),
        helper.make_node("NonZero", ["is_positive"], ["places"]),
    ]
    outputs = [
        tensor("label", TensorProto.INT64, "batch"),
        tensor("is_positive", TensorProto.BOOL, "batch"),
        tensor("places", TensorProto.INT64, 1, "positive"),
    ]
    constants = [
        helper.make_tensor("axes", TensorProto.INT64, [1], [1]),
        helper.make_tensor("zero", TensorProto.FLOAT, [], [0.0]),
    ]
    inputs = [tensor("x", TensorProto.FLOAT, "batch", 3)]
    graph = helper.make_graph(nodes, "g", inputs, outputs, constants)
    opset = helper.make_opsetid("", 13)
    save(helper.make_model(graph, opset_imports=[opset], ir_version=8), tmp_path / "model.onnx")
    session: Any = formats.get("onnx").load(tmp_path / "model.onnx", 1, "cpu")
    given = {"x": np.full((4, 3), [[1], [-2], [0], [3]], np.float32)}

    first, second = session.run_on_device(given), session.run_on_device({"x": -given["x"]})

    assert {name: str(each.dtype) for name, each in first.items()} == {
        "label": "torch.int64",
        "is_positive": "torch.bool",
        "places": "torch.int64",
    }
    for found, right in ((first, session.run(given)), (second, session.run({"x": -given["x"]}))):
        for name, array in right.items():
            np.testing.assert_array_equal(found[name].numpy(), array)


DEVICE_SESSION = """
import torch
class Session:
    def run(self, inputs):
        raise RuntimeError("on a device, run_on_device should be called")
    def run_on_device(self, inputs):
        (values,) = inputs.values()
        return {"doubled": 2 * torch.as_tensor(values)}
def load(path, threads, device):
    return Session()
"""


@pytest.mark.slow
def test_tensors_go_back_to_triton_each_to_its_own_request(tmp_path: Path) -> None:
    """The session returns tensors, and is served as if on a GPU."""
    repository = write_doubles(tmp_path / "repository", DEVICE_SESSION, device="gpu")
    sent = [np.full((1 + i % 2, 2), i, np.int64) for i in range(40)]
    with (
        embedded.serve(repository, log=tmp_path / "log") as server,
        ThreadPoolExecutor(40) as threads,
    ):
        answers = threads.map(lambda values: server.infer("doubles", {"ids": values}), sent)
        for values, answer in zip(sent, answers, strict=True):
            np.testing.assert_array_equal(answer["doubled"], 2 * values)


COLLECTED = """
import gc
import numpy as np

class Session:
    def run(self, inputs):
        found = [gc.isenabled(), self in gc.get_objects()]
        return {"doubled": np.array([found], np.int64)}

def load(path, threads, device):
    assert not gc.isenabled()
    return Session()
"""


@pytest.mark.slow
def test_what_was_loaded_is_not_looked_through_for_garbage_and_what_comes_later_is(
    tmp_path: Path,
) -> None:
    repository = write_doubles(tmp_path / "repository", COLLECTED)
    with embedded.serve(repository, log=tmp_path / "log") as server:
        answer = server.infer("doubles", {"ids": np.zeros((1, 2), np.int64)})

    assert answer["doubled"].tolist() == [[True, False]]
