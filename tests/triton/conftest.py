"""A repository that serves in a second: the adapter around a session of a few lines."""

import pickle
import shutil
import subprocess
import sys
from contextlib import contextmanager

import pytest

from helpers.config import resolve
from helpers.errors import DeploymentError
from helpers.machine import preflight
from helpers.store import ROOT
from tests.conftest import ONNX, interruptible, wait_for

SESSION = """
class Session:
    def run(self, inputs):
        (ids,) = inputs.values()
        if (ids < 0).any():
            raise IndexError("no such id")
        return {"doubled": 2 * ids[: len(ids) - (ids == 10**6).any()]}

def load(path, threads, device):
    return Session()
"""
CONFIG = """
name: "doubles" backend: "python" max_batch_size: 8
input { name: "ids" data_type: TYPE_INT64 dims: 2 }
output { name: "doubled" data_type: TYPE_INT64 dims: 2 }
instance_group { count: 1 kind: KIND_CPU }
parameters { key: "file" value { string_value: "none" } }
parameters { key: "threads" value { string_value: "1" } }
parameters { key: "device" value { string_value: "cpu" } }
"""
BATCHER = "dynamic_batching { max_queue_delay_microseconds: 100000 }"


def config(stage="deploy", device="cpu", fields=None, **server):
    """An experiment of ResNet50 in a container, unless `server` has another kind."""
    models = {"resnet50": {"experiments": {"mine": ONNX | (fields or {})}}}
    return resolve("resnet50", stage, "Test", device, {"kind": "docker"} | server, models=models)


def refused(serve, repository, chosen, **more):
    """Try to serve; give the error, which must be one line."""
    serving = serve(repository, config=chosen, log=repository.parent / "log", **more)
    with pytest.raises(DeploymentError) as raised, serving:
        raise AssertionError("it serves")
    assert "\n" not in str(raised.value)
    return str(raised.value)


HOLD = """
import pickle, time
from pathlib import Path
from helpers.triton import docker
folder, config = Path({folder!r}), pickle.loads({config})
with docker.serve(Path({repository!r}), config=config, log=folder / "log"):
    (folder / "holding").touch()
    time.sleep(99)
"""


@contextmanager
def holding(folder, repository, **server):
    """Have another process serve in a container."""
    chosen = pickle.dumps(config(**server))
    code = HOLD.format(folder=str(folder), repository=str(repository), config=chosen)
    with (folder / "stderr").open("w") as stderr:
        command = [sys.executable, "-c", code]
        started = subprocess.Popen(command, stderr=stderr, preexec_fn=interruptible)
    try:
        wait_for(lambda: (folder / "holding").exists() or started.poll() is not None)
        assert started.poll() is None, (folder / "stderr").read_text()
        yield started
    finally:
        started.kill()
        started.wait()


@pytest.fixture
def repository(tmp_path):
    """A repository of two models, of which one has a configuration for the offline scenario."""
    for name in ("resnet50", "lookup"):
        (tmp_path / "repository" / name / "1").mkdir(parents=True)
        (tmp_path / "repository" / name / "config.pbtxt").write_text("online")
    (tmp_path / "repository/resnet50/configs").mkdir()
    (tmp_path / "repository/resnet50/configs/offline.pbtxt").write_text("offline")
    return tmp_path / "repository"


def write_doubles(folder, session=SESSION, device="cpu"):
    """Write the repository of a model that doubles ids of [n, 2]. It refuses a negative id, and
    leaves a sample out if one is a million.
    """
    config = CONFIG.replace('"cpu"', f'"{device}"')
    version = folder / "doubles/1"
    version.mkdir(parents=True)
    (version.parent / "configs").mkdir()
    (version.parent / "config.pbtxt").write_text(config + BATCHER)
    (version.parent / "configs/offline.pbtxt").write_text(config)
    shutil.copyfile(ROOT / "helpers/triton/adapter.py", version / "model.py")
    (version / "runtime.py").write_text(session)
    return folder


@pytest.fixture(autouse=True)
def asked_again():
    preflight.server_obstacle.cache_clear()
    yield
    preflight.server_obstacle.cache_clear()


@pytest.fixture(scope="session")
def doubles(tmp_path_factory):
    return write_doubles(tmp_path_factory.mktemp("repository"))
