"""The Python backend's adapter: PyTorch's tensors of the processor stand for those on a GPU."""

import ast
import importlib.util
import sys
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType, SimpleNamespace

import numpy as np
import onnx
import onnx.parser
import pytest
import torch

from helpers import formats
from helpers.formats import Build
from helpers.store.paths import ROOT
from helpers.triton import embedded
from tests.triton.conftest import write_doubles


@pytest.fixture
def adapter(monkeypatch):
    """The module as Triton's stub loads it, with a stand-in for the backend's utilities."""
    utils = ModuleType("triton_python_backend_utils")
    monkeypatch.setitem(sys.modules, utils.__name__, utils)
    spec = importlib.util.spec_from_file_location("adapter", ROOT / "helpers/triton/adapter.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", ["triton/adapter.py", "models/_criteo/lookup.py"])
def test_what_older_images_run_is_python_3_8(path):
    """Releases up to 23.x have Python 3.8, and there the adapter serves lookups."""
    text = (ROOT / "helpers" / path).read_text()
    nodes = list(ast.walk(ast.parse(text, feature_version=(3, 8))))
    assert not [node.lineno for node in nodes if getattr(node, "arg", "") == "strict"]  # zip: 3.10
    is_annotated = any(getattr(node, "annotation", None) for node in nodes)
    assert not is_annotated or "from __future__ import annotations" in text  # list[int]: 3.9


def test_what_is_on_the_device_is_taken_without_a_copy(adapter):
    values = torch.arange(6.0).reshape(3, 2)

    taken = adapter.to_array(SimpleNamespace(is_cpu=lambda: False, to_dlpack=values.__dlpack__))

    assert taken.data_ptr() == values.data_ptr()
    assert torch.equal(taken, values)


def test_requests_from_both_places_are_joined_in_order(adapter):
    first, second = np.ones((2, 3), np.float32), torch.full((1, 3), 2.0)

    joined = adapter.concatenate([first, second])

    assert isinstance(joined, torch.Tensor)
    assert joined[:, 0].tolist() == [1, 1, 2]
    np.testing.assert_array_equal(adapter.concatenate([first, first]), np.ones((4, 3), np.float32))


def loaded(name, network, folder, build):
    fmt = formats.get(name)
    fmt.make(network, folder / fmt.FILE, build)
    return fmt.load(folder / fmt.FILE, 1, "cpu")


class Sum(torch.nn.Module):
    def forward(self, first, second):
        return first + second


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ts-trace", "onnx"])
def test_a_session_on_the_device_takes_both_and_gives_tensors(name, tmp_path):
    example = {name: np.ones((2, 3), np.float32) for name in ("first", "second")}
    session = loaded(name, Sum(), tmp_path, Build("fp32", example, ("sum",)))
    first = np.arange(12, dtype=np.float32).reshape(4, 3)
    given = {"first": first, "second": torch.full((4, 3), 0.5)}

    answer = session.run_on_device(given)

    assert isinstance(answer["sum"], torch.Tensor)
    np.testing.assert_array_equal(answer["sum"].numpy(), first + 0.5)


class Rows(torch.nn.Module):
    def forward(self, numbers):
        return numbers.reshape(-1, 4).sum(dim=1, keepdim=True)


def test_a_flat_input_does_not_decide_how_many_rows_come_back(tmp_path):
    build = Build("fp32", {"numbers": np.ones(12, np.float32)}, ("sums",), opset=13)
    session = loaded("onnx", Rows(), tmp_path, build)

    answer = session.run_on_device({"numbers": torch.arange(20.0)})

    np.testing.assert_array_equal(answer["sums"], [[6], [22], [38], [54], [70]])


GRAPH = """
<ir_version: 8, opset_import: ["" : 13]>
sums (float[batch, 3] x) => (int64[batch] label, bool[batch] is_positive, int64[1, positive] places)
<int64[1] axes = {1}, float zero = {0.0}>
{
    sum = ReduceSum <keepdims = 0> (x, axes)
    label = Cast <to = 7> (sum)
    is_positive = Greater (sum, zero)
    places = NonZero (is_positive)
}
"""


def test_outputs_of_any_type_and_size_stay_on_the_device(tmp_path):
    """Also one whose size the graph decides: here the places of the positive sums."""
    onnx.save(onnx.parser.parse_model(GRAPH), tmp_path / "model.onnx")
    session = formats.get("onnx").load(tmp_path / "model.onnx", 1, "cpu")
    x = np.full((4, 3), [[1], [-2], [0], [3]], np.float32)

    types = {"label": torch.int64, "is_positive": torch.bool, "places": torch.int64}
    for given in (x, -x):
        found = session.run_on_device({"x": given})
        assert {name: each.dtype for name, each in found.items()} == types
        for name, array in session.run({"x": given}).items():
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
def test_tensors_go_back_to_triton_each_to_its_own_request(tmp_path):
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
def test_what_was_loaded_is_not_looked_through_for_garbage_and_what_comes_later_is(tmp_path):
    repository = write_doubles(tmp_path / "repository", COLLECTED)
    with embedded.serve(repository, log=tmp_path / "log") as server:
        answer = server.infer("doubles", {"ids": np.zeros((1, 2), np.int64)})

    assert answer["doubled"].tolist() == [[True, False]]
