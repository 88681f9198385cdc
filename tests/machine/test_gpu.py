"""What a GPU reports is kept in words and units, and a query never raises."""

import os
import re
import subprocess
import sys
from contextlib import suppress

import pytest

from helpers.machine import gpu, provenance
from helpers.store.paths import ROOT
from tests.machine.nvml import BITS, CAP, QUERIES, RECORD, THERMAL, UUID


def record(own=()):
    with gpu.opened(own) as opened:
        return opened.record()


def test_a_record_is_everything_in_words_and_units_but_what_identifies_a_device(card):
    assert record() == RECORD
    assert card.asked_for == [0]
    assert card.open == 0
    card.name = b"Tesla T4"
    assert record()["name"] == "Tesla T4"


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_without_an_answer_leaves_the_rest(card, query):
    card.refuses = {query: "NotSupported"}

    assert record() == RECORD | dict.fromkeys(QUERIES[query], "not supported")


def test_an_old_driver_and_an_error_read_differently(card, monkeypatch):
    answers = {"FunctionNotFound": "not supported", "NoPermission": "unknown: NoPermission"}
    for error, answer in answers.items():
        card.refuses = {"nvmlDeviceGetMigMode": error}
        assert record() == RECORD | {"mig": answer}
    card.refuses = {}  # an old pynvml
    monkeypatch.delattr(sys.modules["pynvml"], "nvmlDeviceGetCurrentClocksEventReasons")
    assert record() == RECORD | {"throttle_reasons": "not supported"}


REFUSED = {
    "LibraryNotFound": "the driver's library libnvidia-ml.so.1 is missing",
    "DriverNotLoaded": "the driver's kernel module is not loaded",
    "LibRmVersionMismatch": "the driver's library and its kernel module have different versions",
    "NoPermission": "this user may not query the driver",
    "GpuIsLost": "the GPU has fallen off the bus",
    "Unknown": "the driver reports no GPU: Unknown",
}


@pytest.mark.parametrize("where", ["nvmlInit", "nvmlDeviceGetHandleByIndex"])
def test_without_a_driver_that_answers_the_record_is_the_reason(card, where, monkeypatch):
    for error, reason in REFUSED.items():
        card.refuses = {where: error}
        with gpu.opened() as opened:
            assert opened.record() == {"reason": reason}
            assert opened.load() == {}
            assert opened.throttle_reasons() == set()
            assert opened.others() == {"other_processes": reason, "other_memory_mb": reason}
    monkeypatch.setitem(sys.modules, "pynvml", None)  # importing it fails
    assert record() == {"reason": "nvidia-ml-py is not installed"}


@pytest.mark.parametrize(
    ("chosen", "asked"),
    [("2", [2]), ("1,0", [1]), (UUID, [UUID]), (f"{UUID},3", [UUID]), (" 4 ", [4])],
)
def test_the_first_gpu_that_cuda_sees_is_queried(card, monkeypatch, chosen, asked):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)

    assert record() == RECORD
    assert card.asked_for == asked


def test_a_hidden_gpu_is_not_queried(card, monkeypatch):
    for chosen in ("", "-1", "none", "-1,0"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
        assert record() == {"reason": "CUDA_VISIBLE_DEVICES hides every GPU"}
    assert card.asked_for == []


def test_nvml_is_closed_however_the_block_ends(card):
    with suppress(ZeroDivisionError), gpu.opened():
        assert card.open == 1
        _ = 1 / 0

    assert card.open == 0


def test_every_throttle_reason_has_its_words_and_unknown_bits_have_none(card):
    for place, word in enumerate(BITS.values()):
        card.reasons = 1 << place
        assert record()["throttle_reasons"] == [word]
    card.reasons = CAP | THERMAL | 1 << 40
    assert record()["throttle_reasons"] == ["power cap", "thermal slowdown by software"]


@pytest.fixture
def child():
    """A process of ours, as the server's are."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process.pid
    process.communicate()


def test_our_processes_and_their_children_are_not_others(card, child):
    card.processes = [(os.getpid(), 10**9), (child, 10**9), (1, 3 * 10**9), (2**22 + 1, 10**9)]

    assert record([os.getpid()]) == RECORD | {"other_processes": 2, "other_memory_mb": 4000}
    assert record([child])["other_processes"] == 3
    assert record()["other_processes"] == 4
    card.processes = [(os.getpid(), 10**9)]
    with gpu.opened([os.getpid()]) as opened:
        assert opened.others()["other_processes"] == 0
        card.processes.append((child, 10**9))  # that we start later
        assert opened.others()["other_processes"] == 0


@pytest.mark.parametrize(("own", "listed"), [(None, []), ([2], []), ([2], [(1, 10**9)])])
def test_if_ours_are_not_listed_the_others_are_unknown(card, own, listed):
    card.processes = listed

    assert record(own)["other_processes"].startswith("unknown: ")


def test_memory_that_the_driver_hides_is_not_counted(card):
    card.processes = [(1, None), (2**22 + 1, 10**9)]

    assert record() == RECORD | {"other_processes": 2, "other_memory_mb": "not supported"}


def test_every_name_is_one_of_the_real_module():
    pynvml = pytest.importorskip("pynvml")
    sources = ("machine/gpu", "measure/gpu_monitor", "measure/energy", "measure/memory")
    text = "".join((ROOT / f"helpers/{name}.py").read_text() for name in sources)
    names = set(re.findall(r"\b(?:nvml[A-Z]\w+|NVML_\w+)", text))
    assert len(names) > 30
    assert {name for name in names if not hasattr(pynvml, name)} == set()
    errors = set(re.findall(r"\bNVMLError_\w+", text))
    assert {f"NVMLError_{name}" for name in REFUSED} - errors == {"NVMLError_Unknown"}
    for name in errors:
        code = "NVML_ERROR" + re.sub(r"([A-Z])", r"_\1", name.partition("_")[2]).upper()
        raised = pynvml.NVMLError(getattr(pynvml, code))
        assert type(raised).__name__ == name
    for place, name in enumerate(BITS):
        assert getattr(pynvml, f"nvmlClocksEventReason{name}") == 1 << place


@pytest.mark.parametrize("there", ["/proc/driver/nvidia/version", "/dev/nvidiactl"])
def test_a_driver_is_seen_without_its_libraries(monkeypatch, there):
    monkeypatch.setattr(os.path, "exists", lambda path: path == there)
    assert gpu.has_driver()

    monkeypatch.setattr(os.path, "exists", lambda path: False)
    assert not gpu.has_driver()


def test_a_result_names_the_gpu_in_mlperfs_fields(card):
    found = provenance.machine("NVIDIA DGX A100 (1x A100 80GB)", "gpu")

    assert found["accelerators_per_node"] == 1
    assert found["accelerator_model_name"] == "NVIDIA A100-SXM4-80GB"
    assert found["accelerator_memory_capacity"] == "85000 MB"
    assert found["other_software_stack"] == "driver 535.183.01, CUDA 12.2"
    card.refuses = {"nvmlInit": "LibraryNotFound"}
    without = provenance.machine("NVIDIA T4", "gpu")
    assert without["accelerator_model_name"] == ""
    assert without["accelerator_notes"] == REFUSED["LibraryNotFound"]
    assert "accelerator_notes" not in provenance.machine("CPU")
