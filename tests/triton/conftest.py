"""A repository that serves in a second: the adapter around a session of a few lines."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.machine import preflight
from helpers.store import ROOT

SESSION = """
class Session:
    def run(self, inputs):
        (ids,) = inputs.values()
        if (ids < 0).any():
            raise IndexError("no such id")
        return {"doubled": 2 * ids}

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


def write_doubles(folder: Path, session: str = SESSION, device: str = "cpu") -> Path:
    """Write the repository of a model that doubles ids of [n, 2], and refuses a negative one."""
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
def asked_again() -> Iterator[None]:
    """What a test learned of a server does not hold in the next one."""
    preflight.server_obstacle.cache_clear()
    yield
    preflight.server_obstacle.cache_clear()


@pytest.fixture(scope="session")
def doubles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_doubles(tmp_path_factory.mktemp("repository"))
