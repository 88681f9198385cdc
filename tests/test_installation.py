"""What the locks, the extras and the images install."""

import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from helpers.store.paths import ROOT

FOLDER = ROOT / "docker"
LOCKS = ("requirements.lock", "torch.lock", "triton.lock", "gpu.lock")
PYTHONS = ("3.11.2", "3.11.13", "3.12.0", "3.13.0")
CUDA = re.compile(r"cuda-|nvidia-|tensorrt-cu13|triton$")  # what only a machine with a GPU needs


def locked(*names, python="3.12.0"):
    """The exact versions that lock files give a Python, by distribution."""
    text = "\n".join((FOLDER / name).read_text(encoding="utf-8") for name in names)
    wanted = [Requirement(line) for line in text.splitlines() if line and line[0] not in "#-"]
    place = {"python_full_version": python, "python_version": python.rpartition(".")[0]}
    found = {
        canonicalize_name(each.name): str(each.specifier).removeprefix("==")
        for each in wanted
        if each.marker is None or each.marker.evaluate(place)
    }
    assert all(Version(version) for version in found.values())
    return found


@pytest.mark.parametrize("python", PYTHONS)
def test_the_locks_are_within_what_the_package_asks_for(python):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    names = ("cpu", "test", "loadgen", "tune", "hps", "kafka", "cluster")
    lines = [*project["dependencies"], *(line for name in names for line in extras[name])]
    lock = locked("requirements.lock", "torch.lock", python=python)
    place = {"python_version": python.rpartition(".")[0]}

    for line in map(Requirement, lines):
        if line.marker is None or line.marker.evaluate(place):
            assert line.specifier.contains(lock[canonicalize_name(line.name)]), line
    assert python in SpecifierSet(project["requires-python"])


def test_no_lock_brings_what_another_one_brings():
    names = [name for lock in LOCKS for name in locked(lock)]
    # perf_analyzer's carrier; a build for each device
    assert {name for name in names if names.count(name) > 1} == {"tritonclient", "torch"}
    assert locked("gpu.lock")["torch"] == locked("torch.lock")["torch"]


def test_only_pytorch_is_looked_for_on_its_index():
    assert list(locked("torch.lock")) == ["torch"]
    index = "--index-url https://download.pytorch.org/whl/cpu"
    assert index in (FOLDER / "torch.lock").read_text().splitlines()
    others = "".join((FOLDER / name).read_text() for name in LOCKS if name != "torch.lock")
    assert "pytorch.org" not in others


def test_the_lock_for_a_gpu_replaces_onnx_runtime_and_adds_cuda():
    gpu = locked("gpu.lock")
    tensorrt = [version for name, version in gpu.items() if name.startswith("tensorrt-cu13")]

    assert gpu.pop("onnxruntime-gpu") == locked("requirements.lock")["onnxruntime"]
    assert [name for name in gpu if not CUDA.match(name)] == ["torch"]
    assert (len(tensorrt), len(set(tensorrt))) == (3, 1)
    assert gpu["cuda-toolkit"].startswith("13.")
    assert "--extra-index-url https://pypi.nvidia.com" in (FOLDER / "gpu.lock").read_text()


def test_the_images_install_exact_wheels_and_keep_no_cache():
    text = re.sub(r"\s*\\\n\s*", " ", (ROOT / "docker/Dockerfile").read_text())
    installs = re.findall(r"pip install (.*?)(?: &&|\n)", text)

    exact = "--no-cache-dir --only-binary=:all: --no-deps --requirement docker/"
    assert installs == [
        *(f"{exact}torch.lock", f"{exact}requirements.lock"),
        f"{exact}triton.lock --target=/usr/local/triton",
        "--no-cache-dir --no-deps --no-build-isolation --editable .",
    ]
    assert "apt-get" not in text
