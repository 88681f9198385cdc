"""The Python backend's adapter where tensors are on a device: what it takes, joins and gives back.

No GPU is needed: PyTorch's tensors of the processor stand for those on one.
"""

import importlib.util
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from helpers import formats
from helpers.formats import Build
from helpers.store.paths import ROOT
from helpers.triton import embedded
from helpers.triton.client import Server
from tests.conftest import Project


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


def on_device(values: torch.Tensor) -> Any:
    """Triton's tensor, of which it says that it is not in this host's memory."""
    return SimpleNamespace(is_cpu=lambda: False, to_dlpack=values.__dlpack__)


def test_what_is_on_the_device_is_taken_without_a_copy(adapter: Any) -> None:
    values = torch.arange(6.0).reshape(3, 2)

    taken = adapter.taken(on_device(values))

    assert taken.data_ptr() == values.data_ptr()
    assert torch.equal(taken, values)


def test_requests_from_both_places_are_joined_in_order(adapter: Any) -> None:
    first, second = np.ones((2, 3), np.float32), torch.full((1, 3), 2.0)

    joined = adapter.joined([first, second])

    assert isinstance(joined, torch.Tensor)
    assert joined[:, 0].tolist() == [1, 1, 2]
    assert adapter.joined([second]) is second
    np.testing.assert_array_equal(adapter.joined([first, first]), np.ones((4, 3), np.float32))


class Sum(torch.nn.Module):
    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return first + second


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


RUNTIME = """
import torch
class Session:
    def run(self, inputs):
        raise RuntimeError("the device's way should be taken")
    def run_on_device(self, inputs):
        (values,) = inputs.values()
        return {"logits": 2 * torch.as_tensor(values)[:, :4]}
def load(path, threads, device):
    return Session()
"""


@pytest.fixture(scope="module")
def server(finished: Project, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The small model, with a session that gives tensors; served as if on a GPU."""
    folder = tmp_path_factory.mktemp("device")
    source = min((finished.target / "artefacts").glob("dummy-deploy-*"))
    shutil.copytree(source / "dummy", folder / "dummy", copy_function=shutil.copyfile)
    (folder / "dummy/1/runtime.py").write_text(RUNTIME)
    path = folder / "dummy/config.pbtxt"
    config = text_format.Parse(path.read_text(), pb.ModelConfig())
    config.parameters["device"].string_value = "gpu"
    path.write_text(text_format.MessageToString(config))
    with embedded.serve(folder, models=["dummy"], log=folder / "log") as started:
        yield started


@pytest.mark.slow
def test_tensors_go_back_to_triton_each_to_its_own_request(server: Server) -> None:
    sent = [np.full((1 + i % 2, 16), i, np.float32) for i in range(40)]
    answers: dict[int, np.ndarray] = {}

    def ask(i: int) -> None:
        answers[i] = server.infer("dummy", {"features": sent[i]})["logits"]

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    for i, values in enumerate(sent):
        np.testing.assert_array_equal(answers[i], 2 * values[:, :4])
