"""A GPU or a driver that does not fit its target is named, with how to fix it."""

import csv
import sys

import pytest

from helpers import formats
from helpers.machine import checks, gpu
from helpers.machine.preflight import gpu_obstacle, why_unavailable
from helpers.store.paths import ROOT
from tests.machine import builders
from tests.machine.nvml import CAP, QUERIES, THERMAL

TARGET = "NVIDIA DGX A100 (1x A100 80GB)"


def config(name="ts-trace", **changes):
    exported = {"export_format": "onnx" if name == "trt" else name, "export_precision": "fp16"}
    fields = exported | {"format": name, "precision": "fp16", "gpu": TARGET, "device": "gpu"}
    return builders.config(**fields | changes)


def checked():
    return {check.name: check for check in checks.gpu_checks([config()])}


def test_a_gpu_that_matches_its_target_is_ok(card):
    assert {name: (each.word, each.found) for name, each in checked().items()} == {
        "NVIDIA driver": ("ok", "535.183.01, CUDA 12.2"),
        "GPU": ("ok", "NVIDIA A100-SXM4-80GB"),
        "GPU memory": ("ok", "83.0 of 85.0 GB free, 4 needed"),
        "GPU processes": ("ok", "0 other, using 0 MB"),
        "GPU clocks": ("ok", "not throttled"),
        "GPU power limit": ("ok", "400 W"),
        "MIG": ("ok", "off"),
        "ECC": ("ok", "on"),
    }


FAULTS = {  # state, check, word, words of the fix
    "another GPU": ({"name": "Tesla T4"}, "GPU", "WARN", f"for {TARGET}"),
    "an old driver": ({"driver": "470.223.02"}, "NVIDIA driver", "FIX", "525.60.13 or newer"),
    "a full memory": ({"used": 82 * 10**9}, "GPU memory", "FIX", "nvidia-smi"),
    "other processes": ({"processes": [(1, 1), (2, 1)]}, "GPU processes", "WARN", "noisy"),
    "heat": ({"reasons": THERMAL | CAP}, "GPU clocks", "WARN", "cooling"),
    "a low power limit": ({"power_limit": 300_000}, "GPU power limit", "WARN", "limit=400.0"),
    "MIG": ({"mig": 1}, "MIG", "WARN", "as root: nvidia-smi --multi-instance-gpu=0"),
    "no ECC": ({"ecc": 0}, "ECC", "WARN", "as root and restart: nvidia-smi --ecc-config=1"),
}


@pytest.mark.parametrize(("state", "name", "word", "fix"), FAULTS.values(), ids=FAULTS.keys())
def test_each_fault_is_named_alone_and_with_its_fix(card, state, name, word, fix):
    vars(card).update(state)

    found = checked()

    assert {other: each.word for other, each in found.items() if each.word != "ok"} == {name: word}
    assert fix in found[name].fix
    assert found[name].line == f"{name}: {found[name].found}. {found[name].fix}"


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_without_an_answer_needs_no_fix(card, query):
    card.refuses = {query: "NotSupported"}

    wrong = {name for name, each in checked().items() if each.word != "ok"}
    assert wrong == ({"GPU"} if query == "nvmlDeviceGetName" else set())


def test_a_driver_that_is_missing_or_does_not_answer_is_named(card, monkeypatch):
    card.refuses = {"nvmlInit": "LibRmVersionMismatch"}
    (check,) = checked().values()
    assert (check.name, check.word) == ("NVIDIA driver", "FIX")
    assert "different versions. Restart the machine" in check.line

    monkeypatch.setitem(sys.modules, "pynvml", None)
    (check,) = checked().values()
    assert check.word == "WARN"
    assert check.line.endswith("nvidia-ml-py is not installed. Run: pip install nvidia-ml-py")

    monkeypatch.setattr(gpu, "has_driver", lambda: False)
    (check,) = checked().values()
    assert (check.word, check.found) == ("FIX", "not found")


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Install distributions of given versions, without their files, before this machine's."""
    monkeypatch.syspath_prepend(tmp_path)

    def install(**versions):
        for name, version in versions.items():
            folder = tmp_path / f"{name}-{version}.dist-info"
            folder.mkdir()
            text = f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n"
            (folder / "METADATA").write_text(text)

    return install


def packages(name, **server):
    """The check of what an experiment needs to run on a GPU in this process."""
    chosen = config(name, server={"kind": "embedded"} | server)
    return next((each for each in checks.run_checks([chosen]) if each.name == "GPU packages"), None)


ON_CPU = "ts-trace on a gpu needs torch with CUDA, but 2.13.0+cpu is installed"
BOTH = "onnx on a gpu needs onnxruntime-gpu without onnxruntime, which has the same files"
PACKAGES = {
    "the build of PyTorch for processors": ("ts-trace", {"torch": "2.13.0+cpu"}, ON_CPU),
    "the build with CUDA": ("ts-trace", {"torch": "2.13.0"}, ""),
    "both builds of ONNX Runtime": ("onnx", {"onnxruntime": "1", "onnxruntime_gpu": "1"}, BOTH),
}


@pytest.mark.parametrize(("name", "found", "lacks"), PACKAGES.values(), ids=PACKAGES.keys())
def test_packages_without_cuda_are_named(card, installed, name, found, lacks):
    installed(**found)

    check = packages(name)

    assert (check.ok, check.found) == (not lacks, lacks or "installed")
    assert check.fix.startswith("Install docker/gpu.lock in an environment without onnxruntime")


def test_tensorrt_is_known_by_the_name_of_its_wheel(card, installed, tmp_path):
    (tmp_path / "tensorrt.py").touch()
    installed(torch="2.13.0")
    lacks = "trt on a gpu needs tensorrt-cu13, which is not installed"
    assert packages("trt").found == lacks

    installed(tensorrt_cu13="10.16.1.11")
    assert packages("trt").ok
    assert formats.distribution("tensorrt") == "tensorrt-cu13"
    assert packages("ts-trace", kind="remote") is None  # a container brings its own


NAMES = {
    "NVIDIA A30": "NVIDIA A30",
    "A30": "NVIDIA A30",
    "NVIDIA A40": "NVIDIA A40",
    "Tesla T4": "NVIDIA T4",
    "Tesla V100-SXM2-32GB": "NVIDIA DGX-1 (1x V100 32GB)",
    "Tesla V100-PCIE-32GB": "NVIDIA V100-PCIE-32GB",
    "NVIDIA A100-SXM4-80GB": TARGET,
    "A100-SXM4-80GB": TARGET,
    "NVIDIA A100-SXM4-40GB": "NVIDIA A100-SXM4-40GB",
    "NVIDIA H200": "NVIDIA H200",
}


def test_a_device_has_the_name_that_was_published():
    assert {name: checks.target_name(name) for name in NAMES} == NAMES
    published = [path.read_text() for path in (ROOT / "params/published").glob("*.csv")]
    gpus = {row["gpu"] for text in published for row in csv.DictReader(text.splitlines())}
    assert len(gpus) == 5
    assert gpus <= set(NAMES.values())


def test_a_file_that_was_written_for_this_gpu_matches_it():
    assert checks.matches_target("NVIDIA H200", "NVIDIA H200")
    assert checks.matches_target("NVIDIA H200", "NVIDIA H200 (mine)")
    assert checks.matches_target("NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB")
    assert not checks.matches_target("NVIDIA L4", "NVIDIA L40")
    assert not checks.matches_target("NVIDIA A100-SXM4-40GB", TARGET)


NO_LIBRARY = {"refuses": {"nvmlInit": "LibraryNotFound"}}
DOCKER = {"server": {"kind": "docker", "release": "24.10"}}
OBSTACLES = {
    "a new driver": ({}, {}, ""),
    "the oldest for the embedded server": ({}, {"driver": "525.60.13"}, ""),
    "one older": ({}, {"driver": "525.60.12"}, "525.60.12 is too old. The embedded Triton 24.10"),
    "old, and in the image's list": (DOCKER, {"driver": "470.57.02"}, ""),
    "older than that list": (DOCKER, {"driver": "450.248.02"}, "Triton 24.10 needs 560 or newer"),
    "a server elsewhere": ({"server": {"kind": "remote"}}, {"driver": "410.129"}, ""),
    "no library": ({}, NO_LIBRARY, f"it needs {TARGET}, but NVIDIA's driver does not respond: the"),
    "no library here, but perhaps where Docker runs": (DOCKER, NO_LIBRARY, ""),
    "an unknown version": ({}, {"refuses": {"nvmlSystemGetDriverVersion": "Unknown"}}, ""),
}


@pytest.mark.parametrize(("changes", "state", "reason"), OBSTACLES.values(), ids=OBSTACLES.keys())
def test_a_driver_that_cannot_run_an_experiment_is_its_obstacle(card, changes, state, reason):
    vars(card).update(state)

    found = gpu_obstacle(config(**changes))

    assert reason in found
    assert bool(found) == bool(reason)
    assert not reason or why_unavailable(config(**changes)) == found


def test_a_driver_that_the_release_notes_do_not_mention_is_a_warning(card):
    card.driver = "550.54.15"

    (check, *_) = checks.gpu_checks([config(**DOCKER)])

    assert gpu_obstacle(config(**DOCKER)) == ""
    assert (check.name, check.word) == ("NVIDIA driver", "WARN")
    assert "do not mention driver 550.54.15, which may be too old: Triton 24.10 needs" in check.line
    (embedded, *_) = checks.gpu_checks([config()])
    assert embedded.word == "ok"


def test_without_pynvml_an_experiment_may_still_run(card, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)

    assert gpu_obstacle(config()) == ""
