"""A row says what the GPU did meanwhile, and what disturbed it.

No GPU is needed: NVML is a stand-in, and Triton's metrics come from a small HTTP server.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread, active_count
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from helpers.config.loading import resolve
from helpers.config.schema import StageConfig as Config
from helpers.measure import analyzer, background, gpu_monitor, offline, online, sweep
from helpers.measure.gpu_monitor import GpuObservation, changes, observed, read_metrics
from helpers.measure.rows import Window, measure_row
from helpers.results import GpuState, Measurement, Row
from helpers.triton.server import Server
from tests.machine.conftest import card as card  # the fixture
from tests.machine.nvml import BITS, CAP, IDLE, RECORD, UUID, Card

COLUMNS = {
    *("gpu_utilisation", "gpu_utilisation_max", "gpu_memory_mb", "gpu_memory_max_mb"),
    *("gpu_power_w", "gpu_power_max_w"),
}

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

    assert read_metrics(text, UUID) == {
        "gpu_utilisation": 0.25,
        "gpu_memory_mb": 3500.0,
        "gpu_power_w": 250.5,
    }
    assert read_metrics(text)["gpu_utilisation"] == 0.99
    assert read_metrics(text, "GPU-that-is-not-there") == {}


@pytest.mark.parametrize("value", ["nan", "Nan", "+Inf"])
def test_a_metric_without_a_value_is_none(value: str) -> None:
    assert "gpu_utilisation" not in read_metrics(METRICS.format(uuid=UUID, utilisation=value), UUID)


def test_a_server_without_a_gpu_has_no_load() -> None:
    assert read_metrics('nv_cpu_utilization 0.5\nnv_inference_count{model="a"} 1\n') == {}


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
    threads, point = active_count(), GpuObservation()

    with observed("gpu", served(endpoint)) as observer:
        with observer.watching(point):
            while endpoint.asked < 3:
                time.sleep(0.01)
        assert active_count() == threads
        taken = len(point.samples)
        time.sleep(0.2)

    assert len(point.samples) == taken
    row = point.figures([under_way()])
    first = [0.2, 0.4, *[0.9] * (taken - 2)]
    assert row["gpu_utilisation"] == pytest.approx(np.mean(first))
    assert row["gpu_utilisation_max"] == 0.9
    assert (row["gpu_memory_mb"], row["gpu_memory_max_mb"]) == (3500.0, 3500.0)
    assert (row["gpu_power_w"], row["gpu_power_max_w"]) == (250.5, 250.5)
    assert point.disturbance() == ""
    assert set(row) == COLUMNS <= set(Row.model_fields)
    assert observer.record is not None
    assert observer.record.load_from == ("Triton's metrics",)


def test_only_what_was_seen_while_requests_were_under_way_counts() -> None:
    second = 10**9
    seen = {0: 0.0, 2: 0.1, 3: 0.5, 4: 0.7, 9: 0.0, 21: 0.0}  # share by second
    point = GpuObservation(
        [
            (at * second, {"gpu_utilisation": share, "gpu_memory_mb": 1000.0 + at})
            for at, share in seen.items()
        ]
    )
    runs = [np.array([[1, 2], [2, 4]]) * second, np.array([[20, 21]]) * second]

    row = point.figures(runs)

    # a second after the start the driver still tells of the pause before it
    assert row["gpu_utilisation"] == pytest.approx(0.6)
    assert row["gpu_utilisation_max"] == 0.7
    assert (row["gpu_memory_mb"], row["gpu_memory_max_mb"]) == (1007.5, 1021.0)
    assert "gpu_power_w" not in row


def test_a_run_that_is_too_short_for_the_driver_s_average_has_none() -> None:
    load = {"gpu_utilisation": 0.0, "gpu_power_w": 213.0, "gpu_memory_mb": 7117.0}
    point = GpuObservation([(10**9, load)])

    row = point.figures([np.array([[5, 12]]) * 10**8])

    assert row == {"gpu_memory_mb": 7117.0, "gpu_memory_max_mb": 7117.0}


@pytest.mark.parametrize("answer", ["", "nv_cpu_utilization 0.5\n", "not a metric\n", "cut off"])
def test_what_the_server_does_not_say_nvml_does(
    card: Card, endpoint: Endpoint, answer: str
) -> None:
    endpoint.answers, point = [answer], GpuObservation()
    with observed("gpu", served(endpoint)) as observer:
        observer.look(point)

    row = point.figures([under_way()])

    assert (row["gpu_utilisation"], row["gpu_memory_mb"], row["gpu_power_w"]) == (0.37, 2000, 87.5)
    assert observer.record is not None
    assert observer.record.load_from == ("NVML",)


def test_a_server_that_is_gone_and_a_driver_that_refuses_leave_the_columns_empty(
    card: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    point = GpuObservation()
    with observed("gpu", Server("127.0.0.1:9", "127.0.0.1:9", Path("log"))) as observer:
        observer.look(point)

    assert (point.figures([under_way()]), point.disturbance()) == ({}, "")
    reason = {"reason": "nvidia-ml-py is not installed"}
    assert observer.record == GpuState(start=reason, end=reason, changes=(), load_from=())


def test_on_a_cpu_nothing_is_looked_at(endpoint: Endpoint, card: Card) -> None:
    threads, point = active_count(), GpuObservation()
    with observed("cpu", served(endpoint)) as observer, observer.watching(point):
        assert active_count() == threads

    assert (point.figures([under_way()]), point.disturbance()) == ({}, "")
    assert observer.record is None
    assert (endpoint.asked, card.asked_for) == (0, [])


# What disturbed a row


def row_of(point: GpuObservation) -> Row:
    ends = np.arange(1, 101) * 10**7
    requests = np.stack([ends - 10**7, ends], axis=1)
    return measure_row(
        [Window(requests, 1, 1)],
        50,
        0.05,
        2,
        cut=True,
        figures=point.figures([requests]),
        disturbance=point.disturbance(),
    )


@pytest.mark.parametrize("reasons", [0, IDLE, CAP, IDLE | CAP | 0x2 | 0x10 | 0x100])
def test_a_card_at_its_power_cap_is_not_noisy(card: Card, endpoint: Endpoint, reasons: int) -> None:
    card.reasons, card.processes, point = reasons, [(os.getpid(), 1)], GpuObservation()
    with observed("gpu", served(endpoint)) as observer:
        observer.look(point)

    assert row_of(point).quality == "stable"


@pytest.mark.parametrize("bit", [0x8, 0x20, 0x40, 0x80])
def test_a_row_on_a_card_that_was_held_back_is_noisy(
    card: Card, endpoint: Endpoint, bit: int
) -> None:
    point = GpuObservation()
    with observed("gpu", served(endpoint)) as observer:
        observer.look(point)
        card.reasons = bit | CAP
        observer.look(point)
        card.reasons = IDLE
        observer.look(point)

    row, words = row_of(point), list(BITS.values())[bit.bit_length() - 1]
    assert row.quality == "noisy"
    assert row.reason == f"The GPU was slowed by {words}. Check its cooling and power supply."
    assert observer.record is not None
    assert observer.record.changes == (
        f"clocks were limited by {', '.join(sorted(['power cap', words]))}",
    )


def test_a_row_on_a_shared_card_is_noisy(card: Card, endpoint: Endpoint) -> None:
    card.processes, point = [(os.getpid(), 10**9)], GpuObservation()
    with observed("gpu", served(endpoint)) as observer:
        observer.look(point)
        assert row_of(point).quality == "stable"
        card.processes.append((1, 5 * 10**9))
        observer.look(point)

    row = row_of(point)
    assert row.quality == "noisy"
    assert row.reason == "1 other process used the GPU with 5,000 MB. Stop it and run again."
    assert observer.record is not None
    assert observer.record.start["other_processes"] == 0
    assert observer.record.end["other_processes"] == 1
    assert observer.record.changes == ("other processes on the GPU: 0 before, 1 after",)


def test_changes_are_those_that_matter() -> None:
    after = RECORD | {"power_w": 300.0, "temperature_c": 77, "memory_used_mb": 9, "sm_clock_mhz": 9}
    assert changes(RECORD, after, {"idle"}) == []
    assert changes(RECORD, RECORD | {"ecc": "off", "power_limit_w": 300.0}, {"power cap"}) == [
        "power_limit_w changed from 400.0 to 300.0",
        "ecc changed from on to off",
        "clocks were limited by power cap",
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


def on_cpu(stage: str, **changes: Any) -> Config:
    return config(stage, device="cpu", precision="fp32", export_precision="fp32", **changes)


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One client whose requests take 5 ms, for 0.3 s."""

    def run(point: analyzer.LoadPoint, server: Server) -> Window:
        start = time.time_ns()
        time.sleep(0.3)
        ends = start + np.arange(1, 61) * 5 * 10**6
        requests = np.stack([ends - 5 * 10**6, ends], axis=1)
        return Window(requests, point.batch_size, point.concurrency)

    monkeypatch.setattr(gpu_monitor, "INTERVAL_SECONDS", 0.05)
    monkeypatch.setattr(analyzer, "run", run)
    monkeypatch.setattr(sweep, "distinct_samples", lambda _: {"INPUT__0": np.zeros((4, 2))})
    monkeypatch.setattr(offline, "load_in_process", lambda _: None)
    monkeypatch.setattr(background, "machine_speed", lambda: 50.0)
    monkeypatch.setattr(background, "wait_until_quiet", lambda *_: 0.0)
    monkeypatch.setattr(background, "_host_seconds", lambda: 0.0)


@pytest.mark.parametrize("scenario", ["offline", "online"])
def test_rows_of_a_measurement_have_their_load_and_the_stage_its_record(
    card: Card,
    endpoint: Endpoint,
    load: None,
    scenario: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(gpu_monitor, "AVERAGED_NS", 0)
    card.processes = [(os.getpid(), 10**9)]
    how: dict[str, Any] = {"concurrency": [1], "rates": []}
    measure: Callable[..., Measurement] = online.measure_online
    if scenario == "offline":
        how, measure = {"batch_sizes": [1], "pairs": 3}, offline.measure_offline

    found = measure(config(f"perf_{scenario}", **how), served(endpoint))

    (row,) = found.rows
    assert (row.quality, row.gpu_utilisation, row.gpu_power_max_w) == ("stable", 0.25, 250.5)
    assert row.gpu_memory_mb == 3500.0
    assert found.gpu == GpuState(
        start=RECORD, end=RECORD, changes=(), load_from=("Triton's metrics",)
    )
    assert card.open == 0


@pytest.mark.slow
def test_the_machine_s_speed_is_not_measured_while_the_server_starts(
    endpoint: Endpoint,
    load: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    order: list[str] = []
    monkeypatch.setattr(background, "machine_speed", lambda: order.append("machine_speed") or 50.0)
    server = replace(served(endpoint), ready=lambda: order.append("ready"))
    chosen = on_cpu("perf_offline", batch_sizes=[1])
    monkeypatch.setattr(sweep, "seconds", lambda _: 0.005)
    monkeypatch.setattr(Server, "infer", lambda *_: {})

    offline.measure_offline(chosen, server)

    assert order[0] == "ready"
    assert "machine_speed" in order


def test_on_a_cpu_a_row_has_empty_columns(
    endpoint: Endpoint, load: None, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = on_cpu("perf_online", concurrency=[1], rates=[])

    found = online.measure_online(chosen, served(endpoint))

    (row,) = found.rows
    assert {getattr(row, name) for name in COLUMNS} == {None}
    assert row.throughput == pytest.approx(200)
    assert (found.gpu, endpoint.asked) == (None, 0)
