"""What the GPU says of itself is kept in words and units, and a row that it disturbed says so.

No GPU was there when this was written and none is needed: NVML is a stand-in module with the names,
units and errors of nvidia-ml-py 13, and Triton's metrics come from a small HTTP server. One test
holds every name against the real module where it is installed; what a real driver answers is not
tested here.
"""

import csv
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread, active_count
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from helpers import results
from helpers.__main__ import main
from helpers.config.loading import resolve
from helpers.config.schema import StageConfig as Config
from helpers.machine import checks, gpu, gpu_checks, provenance
from helpers.perf import analyzer, gpu_monitor, measure
from helpers.perf.gpu_monitor import Point, changes, from_metrics, observed
from helpers.perf.statistics import Window, measure_row
from helpers.report import text
from helpers.results import LATENCY_COMPONENTS, saving
from helpers.store.paths import OUTPUTS_VARIABLE, ROOT
from helpers.triton.client import Server

UUID = "GPU-11111111-2222-3333-4444-555555555555"
SERIAL = "1320000000001"
ERRORS = (
    *("Uninitialized", "InvalidArgument", "NotSupported", "NoPermission", "NotFound", "Unknown"),
    *(
        "DriverNotLoaded",
        "LibraryNotFound",
        "FunctionNotFound",
        "GpuIsLost",
        "LibRmVersionMismatch",
    ),
)
BITS = {  # NvmlClocksEventReasons, in the order of their bits from 0x1 on
    "GpuIdle": "idle",
    "ApplicationsClocksSetting": "clocks set by a user",
    "SwPowerCap": "power cap",
    "HwSlowdown": "hardware slowdown",
    "SyncBoost": "sync boost",
    "SwThermalSlowdown": "thermal slowdown by software",
    "HwThermalSlowdown": "thermal slowdown by hardware",
    "HwPowerBrakeSlowdown": "power brake",
    "DisplayClockSetting": "display clocks",
}
IDLE, CAP, THERMAL = 0x1, 0x4, 0x20
COLUMNS = {
    *("gpu_utilisation", "gpu_utilisation_max", "gpu_memory_mb", "gpu_memory_max_mb"),
    *("gpu_power_w", "gpu_power_max_w"),
}


@dataclass
class Card:
    """A stand-in for `pynvml` with one GPU: what it answers, and what it refuses with which
    error.
    """

    processes: list[tuple[int, int | None]] = field(default_factory=list)  # pid, bytes
    reasons: int = 0
    name: Any = "NVIDIA A100-SXM4-80GB"
    driver: str = "535.183.01"
    power_limit: int = 400_000  # mW
    mig: int = 0
    ecc: int = 1
    used: int = 2_000_000_000  # bytes
    refuses: dict[str, str] = field(default_factory=dict)  # function -> error
    asked_for: list[Any] = field(default_factory=list)
    open: int = 0

    def module(self) -> ModuleType:
        """Build the module."""
        made = ModuleType("pynvml")
        base = type("NVMLError", (Exception,), {})
        for name in ERRORS:
            setattr(made, f"NVMLError_{name}", type(f"NVMLError_{name}", (base,), {}))
        made.__dict__.update(NVMLError=base, NVML_CLOCK_SM=1, NVML_CLOCK_MEM=2)
        made.__dict__["NVML_TEMPERATURE_GPU"] = 0
        for place, name in enumerate(BITS):
            setattr(made, f"nvmlClocksEventReason{name}", 1 << place)
        for name, function in self.functions().items():
            setattr(made, name, self.guarded(made, name, function))
        return made

    def guarded(self, made: ModuleType, name: str, function: Callable[..., Any]) -> Any:
        def call(*arguments: Any) -> Any:
            if error := self.refuses.get(name):
                raise getattr(made, f"NVMLError_{error}")(error)
            return function(*arguments)

        return call

    def functions(self) -> dict[str, Callable[..., Any]]:
        def opened() -> None:
            self.open += 1

        def closed() -> None:
            self.open -= 1

        def chosen(which: Any) -> str:
            self.asked_for.append(which)
            return "handle"

        def processes(_: str) -> list[SimpleNamespace]:
            return [SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in self.processes]

        return {
            "nvmlInit": opened,
            "nvmlShutdown": closed,
            "nvmlDeviceGetHandleByIndex": chosen,
            "nvmlDeviceGetHandleByUUID": chosen,
            "nvmlDeviceGetUUID": lambda _: UUID,
            "nvmlDeviceGetSerial": lambda _: SERIAL,
            "nvmlDeviceGetName": lambda _: self.name,
            "nvmlSystemGetDriverVersion": lambda: self.driver,
            "nvmlSystemGetCudaDriverVersion_v2": lambda: 12020,
            "nvmlDeviceGetCudaComputeCapability": lambda _: (8, 0),
            "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(total=85 * 10**9, used=self.used),
            "nvmlDeviceGetClockInfo": lambda _, clock: {1: 1155, 2: 1593}[clock],
            "nvmlDeviceGetMaxClockInfo": lambda _, clock: {1: 1410, 2: 1593}[clock],
            "nvmlDeviceGetEnforcedPowerLimit": lambda _: self.power_limit,
            "nvmlDeviceGetPowerManagementDefaultLimit": lambda _: 400_000,
            "nvmlDeviceGetPowerUsage": lambda _: 87_500,
            "nvmlDeviceGetTemperature": lambda _, sensor: {0: 41}[sensor],
            "nvmlDeviceGetMigMode": lambda _: [self.mig, self.mig],
            "nvmlDeviceGetEccMode": lambda _: [self.ecc, self.ecc],
            "nvmlDeviceGetPersistenceMode": lambda _: 1,
            "nvmlDeviceGetCurrentClocksEventReasons": lambda _: self.reasons,
            "nvmlDeviceGetComputeRunningProcesses": processes,
            "nvmlDeviceGetUtilizationRates": lambda _: SimpleNamespace(gpu=37, memory=20),
        }


RECORD = {
    "name": "NVIDIA A100-SXM4-80GB",
    "driver": "535.183.01",
    "cuda": "12.2",
    "compute_capability": "8.0",
    "memory_total_mb": 85000,
    "memory_used_mb": 2000,
    "sm_clock_mhz": 1155,
    "sm_clock_max_mhz": 1410,
    "memory_clock_mhz": 1593,
    "memory_clock_max_mhz": 1593,
    "power_limit_w": 400.0,
    "power_limit_default_w": 400.0,
    "power_w": 87.5,
    "temperature_c": 41,
    "mig": "off",
    "ecc": "on",
    "persistence": "on",
    "clocks_held_by": [],
    "other_processes": 0,
    "other_memory_mb": 0,
}


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Card:
    """A GPU with its driver, as far as the package can see."""
    made = Card()
    monkeypatch.setitem(sys.modules, "pynvml", made.module())
    monkeypatch.setattr(gpu_checks, "has_driver", lambda: True)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv(OUTPUTS_VARIABLE, str(tmp_path / "outputs"))
    gpu_checks._driver.cache_clear()
    return made


def record(own: Any = ()) -> dict[str, Any]:
    with gpu.opened(own) as opened:
        return opened.record()


def test_a_record_is_everything_in_words_and_units(card: Card) -> None:
    assert record() == RECORD
    assert card.asked_for == [0]
    assert card.open == 0


def test_a_record_names_neither_the_device_nor_the_machine(card: Card) -> None:
    card.processes = [(1, 10**9)]

    said = json.dumps(record())

    assert UUID not in said
    assert SERIAL not in said
    assert not {"uuid", "serial", "pid", "host"} & set(re.findall(r"[a-z]+", said))


def test_text_in_bytes_is_text(card: Card) -> None:
    card.name = b"Tesla T4"

    assert record()["name"] == "Tesla T4"


QUERIES = {
    "nvmlDeviceGetName": ["name"],
    "nvmlSystemGetDriverVersion": ["driver"],
    "nvmlSystemGetCudaDriverVersion_v2": ["cuda"],
    "nvmlDeviceGetCudaComputeCapability": ["compute_capability"],
    "nvmlDeviceGetMemoryInfo": ["memory_total_mb", "memory_used_mb"],
    "nvmlDeviceGetClockInfo": ["sm_clock_mhz", "memory_clock_mhz"],
    "nvmlDeviceGetMaxClockInfo": ["sm_clock_max_mhz", "memory_clock_max_mhz"],
    "nvmlDeviceGetEnforcedPowerLimit": ["power_limit_w"],
    "nvmlDeviceGetPowerManagementDefaultLimit": ["power_limit_default_w"],
    "nvmlDeviceGetPowerUsage": ["power_w"],
    "nvmlDeviceGetTemperature": ["temperature_c"],
    "nvmlDeviceGetMigMode": ["mig"],
    "nvmlDeviceGetEccMode": ["ecc"],
    "nvmlDeviceGetPersistenceMode": ["persistence"],
    "nvmlDeviceGetCurrentClocksEventReasons": ["clocks_held_by"],
    "nvmlDeviceGetComputeRunningProcesses": ["other_processes", "other_memory_mb"],
}
ANSWERS = {
    "NotSupported": "not supported",
    "FunctionNotFound": "not supported",
    "NoPermission": "not known: NoPermission",
    "GpuIsLost": "not known: GpuIsLost",
    "Unknown": "not known: Unknown",
}


@pytest.mark.parametrize("error", ANSWERS)
@pytest.mark.parametrize("query", QUERIES)
def test_what_is_not_answered_is_said_and_the_rest_is_kept(
    card: Card, query: str, error: str
) -> None:
    card.refuses = {query: error}

    assert record() == RECORD | dict.fromkeys(QUERIES[query], ANSWERS[error])


def test_a_binding_without_a_function_cannot_answer_it(
    card: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(sys.modules["pynvml"], "nvmlDeviceGetCurrentClocksEventReasons")

    assert record() == RECORD | {"clocks_held_by": "not supported"}


REFUSED = {
    "LibraryNotFound": "the driver's library libnvidia-ml.so.1 is not there",
    "DriverNotLoaded": "the driver's kernel module is not loaded",
    "LibRmVersionMismatch": "the driver's library and its kernel module have different versions",
    "NoPermission": "this user may not ask the driver",
    "GpuIsLost": "the GPU has fallen off its bus",
    "Unknown": "the driver gives us no GPU: Unknown",
}


@pytest.mark.parametrize("where", ["nvmlInit", "nvmlDeviceGetHandleByIndex"])
@pytest.mark.parametrize(("error", "reason"), REFUSED.items())
def test_without_a_driver_that_answers_the_record_is_the_reason(
    card: Card, where: str, error: str, reason: str
) -> None:
    card.refuses = {where: error}

    with gpu.opened() as opened:
        assert opened.record() == {"reason": reason}
        assert opened.load() == {}
        assert opened.held_by() == set()
        assert opened.others() == {"other_processes": reason, "other_memory_mb": reason}


def test_without_the_library_the_record_is_the_reason(
    card: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)  # importing it fails

    assert record() == {"reason": "nvidia-ml-py is not installed"}


@pytest.mark.parametrize(
    ("chosen", "asked"),
    [("2", [2]), ("1,0", [1]), (UUID, [UUID]), (f"{UUID},3", [UUID]), (" 4 ", [4])],
)
def test_the_first_gpu_that_cuda_sees_is_asked(
    card: Card, monkeypatch: pytest.MonkeyPatch, chosen: str, asked: list[Any]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)

    assert record() == RECORD
    assert card.asked_for == asked


@pytest.mark.parametrize("chosen", ["", "-1", "none", "-1,0"])
def test_a_hidden_gpu_is_not_asked(
    card: Card, monkeypatch: pytest.MonkeyPatch, chosen: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)

    assert record() == {"reason": "CUDA_VISIBLE_DEVICES hides every GPU"}
    assert card.asked_for == []


def test_nvml_is_closed_however_the_block_ends(card: Card) -> None:
    with suppress(ZeroDivisionError), gpu.opened():
        assert card.open == 1
        _ = 1 / 0

    assert card.open == 0


@pytest.mark.parametrize("place", range(len(BITS)))
def test_each_reason_has_its_words(card: Card, place: int) -> None:
    card.reasons = 1 << place

    assert record()["clocks_held_by"] == [list(BITS.values())[place]]


def test_several_reasons_are_all_said_and_unknown_bits_are_not(card: Card) -> None:
    card.reasons = CAP | THERMAL | 1 << 40

    assert record()["clocks_held_by"] == ["power cap", "thermal slowdown by software"]


@pytest.fixture
def child() -> Iterator[int]:
    """A process of ours, as the server's are."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process.pid
    process.communicate()


def test_our_processes_and_their_children_are_not_others(card: Card, child: int) -> None:
    card.processes = [(os.getpid(), 10**9), (child, 10**9), (1, 3 * 10**9), (2**22 + 1, 10**9)]

    assert record([os.getpid()]) == RECORD | {"other_processes": 2, "other_memory_mb": 4000}
    assert record([child])["other_processes"] == 3
    assert record()["other_processes"] == 4


def test_a_process_that_we_start_later_is_ours_too(card: Card, child: int) -> None:
    card.processes = [(os.getpid(), 10**9)]
    with gpu.opened([os.getpid()]) as opened:
        assert opened.others()["other_processes"] == 0
        card.processes.append((child, 10**9))
        assert opened.others()["other_processes"] == 0


@pytest.mark.parametrize(("own", "listed"), [(None, []), ([2], []), ([2], [(1, 10**9)])])
def test_where_ours_cannot_be_told_from_others_nothing_is_claimed(
    card: Card, own: Any, listed: list[tuple[int, int]]
) -> None:
    card.processes = listed

    assert record(own)["other_processes"].startswith("not known: ")


def test_memory_that_the_driver_hides_is_not_counted(card: Card) -> None:
    card.processes = [(1, None), (2**22 + 1, 10**9)]

    found = record()

    assert (found["other_processes"], found["other_memory_mb"]) == (2, "not supported")


def test_every_name_is_one_of_the_real_module() -> None:
    try:
        importlib.metadata.version("nvidia-ml-py")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("nvidia-ml-py is not installed")
    import pynvml

    text = "".join(
        (ROOT / name).read_text()
        for name in ("helpers/machine/gpu.py", "helpers/perf/gpu_monitor.py")
    )
    names = set(re.findall(r"\b(?:nvml[A-Z]\w+|NVML_\w+)", text))
    assert len(names) > 30
    assert {name for name in names if not hasattr(pynvml, name)} == set()
    errors = set(re.findall(r"\bNVMLError_\w+", text))
    assert {f"NVMLError_{name}" for name in ("NotSupported", *REFUSED)} - errors == {
        "NVMLError_Unknown"
    }
    for name in errors:
        code = "NVML_ERROR" + re.sub(r"([A-Z])", r"_\1", name.partition("_")[2]).upper()
        raised = pynvml.NVMLError(getattr(pynvml, code))
        assert type(raised).__name__ == name
    for place, name in enumerate(BITS):
        assert getattr(pynvml, f"nvmlClocksEventReason{name}") == 1 << place


# Triton's metrics, and what is made of them

METRICS = """\
# HELP nv_gpu_utilization GPU utilization rate [0.0 - 1.0)
# TYPE nv_gpu_utilization gauge
nv_gpu_utilization{{gpu_uuid="{uuid}"}} {utilisation}
nv_gpu_utilization{{gpu_uuid="GPU-other"}} 0.99
nv_gpu_memory_total_bytes{{gpu_uuid="{uuid}"}} 85000000000.000000
nv_gpu_memory_used_bytes{{gpu_uuid="{uuid}"}} 3500000000.000000
nv_gpu_memory_used_bytes{{gpu_uuid="GPU-other"}} 1000000.000000
nv_gpu_power_usage{{gpu_uuid="{uuid}"}} 250.500000
nv_gpu_power_limit{{gpu_uuid="{uuid}"}} 400.000000
nv_inference_count{{model="resnet50",version="1"}} 12.000000
"""


def test_metrics_are_read_for_the_gpu_that_is_measured() -> None:
    text = METRICS.format(uuid=UUID, utilisation=0.25)

    assert from_metrics(text, UUID) == {
        "gpu_utilisation": 0.25,
        "gpu_memory_mb": 3500.0,
        "gpu_power_w": 250.5,
    }
    assert from_metrics(text)["gpu_utilisation"] == 0.99
    assert from_metrics(text, "GPU-that-is-not-there") == {}


@pytest.mark.parametrize("value", ["nan", "Nan", "+Inf"])
def test_a_metric_without_a_value_is_none(value: str) -> None:
    assert "gpu_utilisation" not in from_metrics(METRICS.format(uuid=UUID, utilisation=value), UUID)


def test_a_server_without_a_gpu_has_no_load() -> None:
    assert from_metrics('nv_cpu_utilization 0.5\nnv_inference_count{model="a"} 1\n') == {}


@dataclass
class Endpoint:
    """A stand-in for Triton's metrics: what it answers, and how often it was asked."""

    url: str = ""
    answers: list[str] = field(default_factory=list)  # in turn; the last one stays
    asked: int = 0


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    state = Endpoint()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            text = state.answers[min(state.asked, len(state.answers) - 1)]
            state.asked += 1
            self.send_response(200 if text else 503)
            if text == "cut off":
                self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    state.url = f"127.0.0.1:{server.server_port}"
    state.answers = [METRICS.format(uuid=UUID, utilisation=0.25)]
    yield state
    server.shutdown()
    thread.join()
    server.server_close()


class Served(Server):
    """A server whose answers are nothing."""

    def infer(self, model: str, inputs: Any) -> dict[str, Any]:
        return {}


def served(endpoint: Endpoint) -> Server:
    return Served("127.0.0.1:9", endpoint.url, Path("log"), processes=(os.getpid(),))


def under_way(seconds: float = 1000) -> NDArray[np.int64]:
    """Requests that are under way around now, one after the other."""
    ends = time.time_ns() + np.arange(-50, 51) * int(seconds / 100 * 1e9)
    return np.stack([ends - int(seconds / 100 * 1e9), ends], axis=1)


def test_a_point_is_sampled_while_it_runs_and_no_longer(
    card: Card, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_monitor, "INTERVAL_SECONDS", 0.05)
    endpoint.answers = [METRICS.format(uuid=UUID, utilisation=u) for u in (0.2, 0.4, 0.9)]
    threads, point = active_count(), Point()

    with observed("gpu", served(endpoint)) as observer:
        with observer.watching(point):
            while endpoint.asked < 3:
                time.sleep(0.01)
        assert active_count() == threads
        taken = len(point.samples)
        time.sleep(0.2)

    assert len(point.samples) == taken
    row = point.row([under_way()])
    first = [0.2, 0.4, *[0.9] * (taken - 2)]
    assert row["gpu_utilisation"] == pytest.approx(np.mean(first))
    assert row["gpu_utilisation_max"] == 0.9
    assert (row["gpu_memory_mb"], row["gpu_memory_max_mb"]) == (3500.0, 3500.0)
    assert (row["gpu_power_w"], row["gpu_power_max_w"]) == (250.5, 250.5)
    assert row["gpu_disturbed"] == ""
    assert set(row) - {"gpu_disturbed"} == COLUMNS <= set(results.COLUMNS)
    assert observer.record["load_from"] == ["Triton's metrics"]


def test_only_what_was_seen_while_requests_were_under_way_counts() -> None:
    second = 10**9
    loads = [{"gpu_utilisation": share} for share in (0.0, 0.5, 0.7, 0.0)]
    point = Point([(at * second, load) for at, load in zip((0, 2, 3, 9), loads, strict=True)])
    runs = [np.array([[1, 2], [2, 4]]) * second, np.array([[20, 21]]) * second]

    row = point.row(runs)

    assert row["gpu_utilisation"] == pytest.approx(0.6)
    assert row["gpu_utilisation_max"] == 0.7
    assert "gpu_power_w" not in row


@pytest.mark.parametrize("answer", ["", "nv_cpu_utilization 0.5\n", "not a metric\n", "cut off"])
def test_what_the_server_does_not_say_nvml_does(
    card: Card, endpoint: Endpoint, answer: str
) -> None:
    endpoint.answers, point = [answer], Point()
    with observed("gpu", served(endpoint)) as observer:
        observer.look(point)

    row = point.row([under_way()])

    assert (row["gpu_utilisation"], row["gpu_memory_mb"], row["gpu_power_w"]) == (0.37, 2000, 87.5)
    assert observer.record["load_from"] == ["NVML"]


def test_a_server_that_is_gone_and_a_driver_that_refuses_leave_the_columns_empty(
    card: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    point = Point()
    with observed("gpu", Server("127.0.0.1:9", "127.0.0.1:9", Path("log"))) as observer:
        observer.look(point)

    assert point.row([under_way()]) == {"gpu_disturbed": ""}
    assert observer.record == {
        "start": {"reason": "nvidia-ml-py is not installed"},
        "end": {"reason": "nvidia-ml-py is not installed"},
        "changes": [],
        "load_from": [],
    }


def test_on_a_cpu_nothing_is_looked_at(endpoint: Endpoint, card: Card) -> None:
    threads, point = active_count(), Point()
    with observed("cpu", served(endpoint)) as observer, observer.watching(point):
        assert active_count() == threads

    assert point.row([under_way()]) == {"gpu_disturbed": ""}
    assert observer.record == {}
    assert (endpoint.asked, card.asked_for) == (0, [])


# What disturbed a row


def row_of(point: Point) -> dict[str, Any]:
    ends = np.arange(1, 101) * 10**7
    requests = np.stack([ends - 10**7, ends], axis=1)
    return measure_row([Window(requests, 1, 1)], 50, point.row([requests]))


@pytest.mark.parametrize("reasons", [0, IDLE, CAP, IDLE | CAP | 0x2 | 0x10 | 0x100])
def test_a_card_at_its_power_cap_is_not_disturbed(
    card: Card, endpoint: Endpoint, reasons: int
) -> None:
    card.reasons, card.processes, point = reasons, [(os.getpid(), 1)], Point()
    with observed("gpu", served(endpoint)) as observer:
        observer.look(point)

    assert row_of(point)["verdict"] == "stable"


@pytest.mark.parametrize("bit", [0x8, 0x20, 0x40, 0x80])
def test_a_row_on_a_card_that_was_held_back_is_disturbed(
    card: Card, endpoint: Endpoint, bit: int
) -> None:
    point = Point()
    with observed("gpu", served(endpoint)) as observer:
        observer.look(point)
        card.reasons = bit | CAP
        observer.look(point)
        card.reasons = IDLE
        observer.look(point)

    row, words = row_of(point), list(BITS.values())[bit.bit_length() - 1]
    assert row["verdict"] == "disturbed"
    assert row["reason"] == f"the GPU was held back by {words}: mend its cooling or power supply"
    assert observer.record["changes"] == [
        f"clocks were held down by {', '.join(sorted(['power cap', words]))}"
    ]


def test_a_row_on_a_shared_card_is_disturbed(card: Card, endpoint: Endpoint) -> None:
    card.processes, point = [(os.getpid(), 10**9)], Point()
    with observed("gpu", served(endpoint)) as observer:
        observer.look(point)
        assert row_of(point)["verdict"] == "stable"
        card.processes.append((1, 5 * 10**9))
        observer.look(point)

    row = row_of(point)
    assert row["verdict"] == "disturbed"
    assert row["reason"] == ("1 other process was on the GPU with 5,000 MB: measure again without")
    assert observer.record["start"]["other_processes"] == 0
    assert observer.record["end"]["other_processes"] == 1
    assert observer.record["changes"] == ["other processes on the GPU: 0 before, 1 after"]


def test_changes_are_those_that_matter() -> None:
    after = RECORD | {"power_w": 300.0, "temperature_c": 77, "memory_used_mb": 9, "sm_clock_mhz": 9}
    assert changes(RECORD, after, {"idle"}) == []
    assert changes(RECORD, RECORD | {"ecc": "off", "power_limit_w": 300.0}, {"power cap"}) == [
        "power_limit_w changed from 400.0 to 300.0",
        "ecc changed from on to off",
        "clocks were held down by power cap",
    ]
    assert changes({"reason": "none"}, {"reason": "none"}, ()) == []
    assert changes(RECORD, {"reason": "lost"}, ())[0] == (
        "name changed from NVIDIA A100-SXM4-80GB to None"
    )


# A whole measurement, with stand-ins for the load and the model


def config(stage: str = "perf_online", **changes: Any) -> Config:
    place = {"gpu": "NVIDIA A100-SXM4-80GB", "device": "gpu"}
    place |= {name: changes.pop(name) for name in ("gpu", "device", "server") if name in changes}
    fields = {
        "export_format": "ts-trace",
        "export_precision": "fp16",
        "format": "ts-trace",
        "precision": "fp16",
    }
    experiments = {"experiments": {"mine": fields | {"max_batch_size": 8} | changes}}
    return resolve("resnet50", stage, models={"resnet50": experiments}, **place)


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One client whose requests take 5 ms, for 0.3 s."""

    def run(point: analyzer.Point, server: Server) -> analyzer.Load:
        start = time.time_ns()
        time.sleep(0.3)
        ends = start + np.arange(1, 61) * 5 * 10**6
        components = dict.fromkeys(LATENCY_COMPONENTS, 0.0)
        return analyzer.Load(np.stack([ends - 5 * 10**6, ends], axis=1), components)

    monkeypatch.setattr(gpu_monitor, "INTERVAL_SECONDS", 0.05)
    monkeypatch.setattr(analyzer, "run", run)
    monkeypatch.setattr(measure, "_samples", lambda _: {"INPUT__0": np.zeros((4, 2))})
    monkeypatch.setattr(measure, "bare_session", lambda _: None)
    monkeypatch.setattr(measure, "run_bare", lambda *_: 200.0)
    monkeypatch.setattr(measure.background, "wait_until_quiet", lambda: 0.0)
    monkeypatch.setattr(measure.background, "_host_seconds", lambda: 0.0)


@pytest.mark.parametrize("scenario", ["offline", "online"])
def test_rows_of_a_measurement_have_their_load_and_the_stage_its_record(
    card: Card, endpoint: Endpoint, load: None, scenario: str, capsys: pytest.CaptureFixture[str]
) -> None:
    card.processes = [(os.getpid(), 10**9)]
    how = {"batch_sizes": [1], "pairs": 2} if scenario == "offline" else {"concurrency": [1]}
    chosen = config(f"perf_{scenario}", **how)

    found = getattr(measure, f"measure_{scenario}")(chosen, served(endpoint))

    (row,) = found.rows
    assert (row["verdict"], row["gpu_utilisation"], row["gpu_power_max_w"]) == (
        "stable",
        0.25,
        250.5,
    )
    assert saving.complete(chosen, row)["gpu_memory_mb"] == 3500.0
    assert found.gpu == {
        "start": RECORD,
        "end": RECORD,
        "changes": [],
        "load_from": ["Triton's metrics"],
    }
    json.dumps(found.gpu)
    assert card.open == 0


def test_on_a_cpu_a_row_has_empty_columns(
    endpoint: Endpoint, load: None, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = config(device="cpu", precision="fp32", export_precision="fp32", concurrency=[1])

    found = measure.measure_online(chosen, served(endpoint))

    row = saving.complete(chosen, found.rows[0])
    assert {row[name] for name in COLUMNS} == {None}
    assert row["throughput"] == pytest.approx(200)
    assert (found.gpu, endpoint.asked) == ({}, 0)


# Where it is shown


def test_the_machine_of_a_gpu_target_names_its_gpu_in_mlperfs_words(card: Card) -> None:
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


def measured(finished: str, start: dict[str, Any], row: dict[str, Any], *what: str) -> Any:
    state = {"start": start, "end": start, "changes": list(what), "load_from": ["NVML"]}
    return {
        **{"finished": finished, "machine": {"system_name": "x"}, "versions": {}, "source": {}},
        **{"gpu_state": state, "rows": [row]},
    }


def test_the_report_says_what_the_gpu_was_like_before_during_and_after() -> None:
    row = {"gpu_utilisation": 0.5, "gpu_memory_mb": 3500.0, "gpu_power_w": None}
    cold, hot = RECORD | {"temperature_c": 30}, RECORD | {"temperature_c": 70}
    found = {
        "late": {"perf_online": measured("2026-02-02", hot, row, "ecc changed", "and more")},
        "early": {"perf_online": measured("2026-01-01", cold, row | {"gpu_utilisation": 0.75})},
    }

    said = text.provenance(found)

    assert said["GPU before the first measurement"]["temperature (°C)"] == 30
    assert said["GPU after the last"]["temperature (°C)"] == 70
    assert said["GPU after the last"]["sm clock (MHz)"] == 1155
    assert said["GPU under load, lowest to highest mean"] == {
        "gpu utilisation": "50% to 75%",
        "gpu memory (MB)": "3,500 to 3,500",
    }
    assert said["GPU meanwhile"] == {"late perf_online": "ecc changed; and more"}
    for stages in found.values():
        stages["perf_online"]["gpu_state"] = {}
    assert not [name for name in text.provenance(found) if "GPU" in name]


# What doctor says


def told(chosen: list[Config]) -> dict[str, tuple[str, str]]:
    return {
        check.name: (check.word, check.line.partition(": ")[2])
        for check in gpu_checks.checks(chosen)
    }


def test_a_gpu_that_suits_its_target_is_all_well(card: Card) -> None:
    assert told([config("convert", gpu="NVIDIA DGX A100 (1x A100 80GB)")]) == {
        "NVIDIA driver": ("ok", "535.183.01, CUDA 12.2"),
        "GPU": ("ok", "NVIDIA A100-SXM4-80GB"),
        "GPU memory": ("ok", "83.0 of 85.0 GB free, 4 needed"),
        "GPU processes": ("ok", "0, with 0 MB"),
        "GPU clocks": ("ok", "held by nothing"),
        "GPU power limit": ("ok", "400 W"),
        "MIG": ("ok", "off"),
        "ECC": ("ok", "on"),
    }


UNFIT: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "another GPU": (
        {"name": "Tesla T4"},
        "GPU",
        "WARN",
        "Tesla T4; the target is NVIDIA DGX A100 (1x A100 80GB): its figures will be of another "
        "GPU; triton-notebooks params new writes a file for this one",
    ),
    "an old driver": (
        {"driver": "470.223.02"},
        "NVIDIA driver",
        "MEND",
        "470.223.02, CUDA 12.2; driver 470.223.02 is too old: Triton 24.10, embedded, needs "
        "525.60.13 or newer",
    ),
    "a full memory": (
        {"used": 82_000_000_000},
        "GPU memory",
        "MEND",
        "3.0 of 85.0 GB free, 4 needed; end what holds it: nvidia-smi lists the processes",
    ),
    "other processes": (
        {"processes": [(1, 10**9), (2, 10**9)]},
        "GPU processes",
        "WARN",
        "2, with 2000 MB; end them: rows measured beside them are marked as disturbed",
    ),
    "heat": (
        {"reasons": THERMAL | CAP},
        "GPU clocks",
        "WARN",
        "held by power cap, thermal slowdown by software; mend its cooling or power supply: rows "
        "measured meanwhile are marked as disturbed",
    ),
    "a lowered power limit": (
        {"power_limit": 300_000},
        "GPU power limit",
        "WARN",
        "300 W; it is below the default of 400.0 W: nvidia-smi --power-limit=400.0 as root",
    ),
    "MIG": (
        {"mig": 1},
        "MIG",
        "WARN",
        "on; the figures are of a slice of the GPU: nvidia-smi --multi-instance-gpu=0 as root",
    ),
    "no ECC": (
        {"ecc": 0},
        "ECC",
        "WARN",
        "off; it is on by default and costs bandwidth: nvidia-smi --ecc-config=1 as root, and "
        "restart",
    ),
}


@pytest.mark.parametrize(("state", "name", "word", "line"), UNFIT.values(), ids=UNFIT.keys())
def test_what_does_not_suit_is_said_with_how_to_mend_it(
    card: Card, state: dict[str, Any], name: str, word: str, line: str
) -> None:
    vars(card).update(state)

    found = told([config("convert", gpu="NVIDIA DGX A100 (1x A100 80GB)")])

    assert found[name] == (word, line)
    assert {other for other, (word, _) in found.items() if word != "ok"} == {name}


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_without_an_answer_is_nothing_to_mend(card: Card, query: str) -> None:
    card.refuses = {query: "NotSupported"}

    found = told([config("convert", gpu="NVIDIA DGX A100 (1x A100 80GB)")])

    assert {name for name, (word, _) in found.items() if word != "ok"} <= (
        {"GPU"} if query == "nvmlDeviceGetName" else set()
    )


def test_no_driver_is_said_with_how_to_mend_it(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_checks, "has_driver", lambda: False)

    assert told([config("convert")]) == {
        "NVIDIA driver": ("MEND", "none; install NVIDIA's driver, or use params/cpu.yaml")
    }
    assert card.open == 0


def test_a_driver_that_does_not_answer_is_said_with_how_to_mend_it(
    card: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    card.refuses = {"nvmlInit": "LibRmVersionMismatch"}
    assert told([config("convert")])["NVIDIA driver"] == (
        "MEND",
        f"found, but {REFUSED['LibRmVersionMismatch']}; restart the machine, as after every update "
        "of the driver",
    )

    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert told([config("convert")])["NVIDIA driver"] == (
        "WARN",
        "found, but nvidia-ml-py is not installed; pip install nvidia-ml-py",
    )


def test_a_warning_is_printed_as_one_and_does_not_fail_the_command(
    card: Card, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(gpu_checks, "obstacle", lambda _: "")
    card.ecc, params = 0, tmp_path / "mine.yaml"
    params.write_text(
        "gpu: NVIDIA DGX A100 (1x A100 80GB)\ndevice: gpu\nmodels: {resnet50: {experiments: {a: "
        "{export_format: onnx, export_precision: fp32, format: onnx, precision: fp32, "
        "max_batch_size: 1}}}}\n"
    )

    main(["doctor", str(params)])

    lines = capsys.readouterr().out.splitlines()
    assert [line[:9] for line in lines if line.startswith("WARN")] == ["WARN ECC:"]
    assert "ok   MIG: off" in lines


NAMES = {
    "NVIDIA A30": "NVIDIA A30",
    "A30": "NVIDIA A30",
    "NVIDIA A40": "NVIDIA A40",
    "Tesla T4": "NVIDIA T4",
    "NVIDIA T4": "NVIDIA T4",
    "Tesla V100-SXM2-32GB": "NVIDIA DGX-1 (1x V100 32GB)",
    "Tesla V100-PCIE-32GB": "NVIDIA V100-PCIE-32GB",
    "NVIDIA A100-SXM4-80GB": "NVIDIA DGX A100 (1x A100 80GB)",
    "A100-SXM4-80GB": "NVIDIA DGX A100 (1x A100 80GB)",
    "NVIDIA A100-SXM4-40GB": "NVIDIA A100-SXM4-40GB",
    "NVIDIA H200": "NVIDIA H200",
}


@pytest.mark.parametrize(("name", "target"), NAMES.items())
def test_a_device_has_the_name_that_was_published(name: str, target: str) -> None:
    assert gpu_checks.target_name(name) == target


@pytest.mark.parametrize(
    ("name", "target", "suits"),
    [
        ("NVIDIA H200", "NVIDIA H200", True),
        ("NVIDIA H200", "NVIDIA H200 (mine)", True),
        ("NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB", True),
        ("NVIDIA L4", "NVIDIA L40", False),
        ("NVIDIA A100-SXM4-40GB", "NVIDIA DGX A100 (1x A100 80GB)", False),
    ],
)
def test_a_file_that_was_written_for_this_gpu_suits_it(name: str, target: str, suits: bool) -> None:
    assert gpu_checks.suits(name, target) is suits


def test_every_published_gpu_can_be_recognised() -> None:
    found = set()
    for path in (ROOT / "params/published").glob("*.csv"):
        with path.open() as file:
            found |= {row["gpu"] for row in csv.DictReader(file)}

    assert len(found) == 5
    assert found <= set(NAMES.values())


# What keeps an experiment from running


OBSTACLES = {
    "a new driver": ({}, {}, ""),
    "an old one for the embedded server": (
        {},
        {"driver": "470.57.02"},
        "driver 470.57.02 is too old: Triton 24.10, embedded, needs 525.60.13 or newer",
    ),
    "the lowest for the embedded server": ({}, {"driver": "525.60.13"}, ""),
    "the same for the image of 24.10": (
        {"server": {"kind": "docker", "release": "24.10"}},
        {"driver": "470.57.02"},
        "",
    ),
    "an older one for that": (
        {"server": {"kind": "docker", "release": "24.10"}},
        {"driver": "450.248.02"},
        "driver 450.248.02 is too old: Triton 24.10 needs 560 or newer, or on a data-centre GPU "
        "470.57, 525.85, 535.86, 545.23 or newer of the same branch",
    ),
    "the same for an older image": (
        {"server": {"kind": "docker", "release": "23.02"}},
        {"driver": "450.248.02"},
        "",
    ),
    "an ancient one": (
        {"server": {"kind": "docker", "release": "21.02"}},
        {"driver": "410.129"},
        "driver 410.129 is too old: Triton 21.02 needs 460.27 or newer, or on a data-centre GPU "
        "418.40, 440.33, 450.51 or newer of the same branch",
    ),
    "a server elsewhere": ({"server": {"kind": "remote"}}, {"driver": "410.129"}, ""),
    "no library": (
        {},
        {"refuses": {"nvmlInit": "LibraryNotFound"}},
        "NVIDIA A100-SXM4-80GB is needed and NVIDIA's driver does not answer: the driver's library "
        "libnvidia-ml.so.1 is not there",
    ),
    "no library here, but perhaps where Docker runs": (
        {"server": {"kind": "docker", "release": "24.10"}},
        {"refuses": {"nvmlInit": "LibraryNotFound"}},
        "",
    ),
    "a version that is not known": ({}, {"refuses": {"nvmlSystemGetDriverVersion": "Unknown"}}, ""),
}


@pytest.mark.parametrize(("changes", "state", "reason"), OBSTACLES.values(), ids=OBSTACLES.keys())
def test_a_driver_that_cannot_run_it_is_an_obstacle(
    card: Card, changes: dict[str, Any], state: dict[str, Any], reason: str
) -> None:
    vars(card).update(state)

    assert gpu_checks.obstacle(config("convert", **changes)) == reason
    if reason:
        assert checks.obstacle(config("convert", **changes)) == reason


def test_without_the_library_an_experiment_may_still_run(
    card: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)

    assert gpu_checks.obstacle(config("convert")) == ""


@pytest.mark.parametrize("there", ["/proc/driver/nvidia/version", "/dev/nvidiactl"])
def test_a_driver_is_seen_without_its_libraries(
    monkeypatch: pytest.MonkeyPatch, there: str
) -> None:
    monkeypatch.setattr(os.path, "exists", lambda path: path == there)
    assert checks.has_driver()

    monkeypatch.setattr(os.path, "exists", lambda path: False)
    assert not checks.has_driver()
