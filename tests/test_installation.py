"""What the locks, the extras and the images install."""

import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from helpers.store.paths import ROOT

LOCKS = {"cpu": "docker/requirements.lock", "gpu": "docker/requirements-gpu.lock"}
CUDA = re.compile(r"cuda-|nvidia-|tensorrt-cu13|triton$")  # what only a machine with a GPU needs


def locked(name: str) -> dict[str, str]:
    """The exact versions of a lock file, by distribution."""
    lines = (ROOT / LOCKS[name]).read_text().splitlines()
    pins = [line.split("==") for line in lines if not line.startswith(("#", "--"))]
    assert all(len(pin) == 2 for pin in pins)
    return {canonicalize_name(name): version for name, version in pins}


def test_both_locks_agree_on_all_but_the_builds_for_a_gpu() -> None:
    cpu, gpu = locked("cpu"), locked("gpu")

    assert cpu.pop("onnxruntime") == gpu.pop("onnxruntime-gpu")
    assert {name: gpu.get(name) for name in cpu} == cpu
    assert [name for name in gpu.keys() - cpu.keys() if not CUDA.match(name)] == []


def test_no_lock_has_both_builds_of_onnx_runtime() -> None:
    builds = {"onnxruntime", "onnxruntime-gpu"}

    assert {name: builds & locked(name).keys() for name in LOCKS} == {
        "cpu": {"onnxruntime"},
        "gpu": {"onnxruntime-gpu"},
    }


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_is_within_what_the_package_asks_for(name: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    also = [
        *extras["test"],
        *extras["loadgen"],
        *extras["tune"],
        *extras["hps"],
        *extras["kafka"],
        *extras["fleet"],
    ]
    lines = [*project["dependencies"], *also, *extras[name]]
    lock = locked(name)

    wrong = [
        line
        for line in map(Requirement, lines)
        if not line.specifier.contains(lock[canonicalize_name(line.name)])
    ]
    assert wrong == []


def test_tensorrt_and_torch_are_for_the_same_cuda() -> None:
    lock = locked("gpu")
    parts = [version for name, version in lock.items() if name.startswith("tensorrt-cu13")]

    assert len(parts) == 3
    assert len(set(parts)) == 1
    assert lock["cuda-toolkit"].startswith("13.")
    assert "--extra-index-url https://pypi.nvidia.com" in (ROOT / LOCKS["gpu"]).read_text()


def test_the_images_install_exact_wheels_and_keep_no_cache() -> None:
    text = (ROOT / "docker/Dockerfile").read_text().replace("\\\n", " ")
    installs = re.findall(r"pip install (.*?)(?: &&|\n)", text)

    assert [line.split() for line in installs] == [
        ["--no-cache-dir", "--only-binary=:all:", "--requirement", LOCKS["cpu"]],
        ["--no-cache-dir", "--no-deps", "--no-build-isolation", "--editable", "."],
    ]
    assert "apt-get" not in text
