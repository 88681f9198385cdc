"""A row says what the GPU, of which NVML and Triton's metrics are stand-ins, did meanwhile."""

import os
import sys
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import numpy as np
import pytest

from helpers.config import resolve
from helpers.measure import analyzer, background, gpu_monitor, offline, online, sweep
from helpers.measure.gpu_monitor import GpuObservation, changes, observed, read_metrics
from helpers.measure.rows import Window, measure_row
from helpers.results import GpuState, Row
from helpers.triton import Server
from tests.machine.conftest import card as card  # the fixture
from tests.machine.nvml import BITS, CAP, IDLE, RECORD, UUID

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
LOAD = {"gpu_memory_mb": 3500.0, "gpu_power_w": 250.5}


def metrics(utilisation):
    return METRICS.format(uuid=UUID, utilisation=utilisation)


def test_metrics_are_read_for_the_gpu_that_is_measured():
    assert read_metrics(metrics(0.25), UUID) == LOAD | {"gpu_utilisation": 0.25}
    assert read_metrics(metrics(0.25))["gpu_utilisation"] == 0.99
    assert read_metrics(metrics(0.25), "GPU-that-is-not-there") == {}
    assert read_metrics('nv_cpu_utilization 0.5\nnv_inference_count{model="a"} 1\n') == {}


@pytest.mark.parametrize("value", ["nan", "Nan", "+Inf"])
def test_a_metric_without_a_value_is_none(value):
    assert read_metrics(metrics(value), UUID) == LOAD


@pytest.fixture
def endpoint():
    """A stand-in for Triton's metrics: its answers in turn, of which the last one stays, and how
    often it was asked.
    """
    state = SimpleNamespace(answers=[metrics(0.25)], asked=0)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            text = state.answers[min(state.asked, len(state.answers) - 1)]
            state.asked += 1
            self.send_response(200 if text else 503)
            if text == "cut off":
                self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    state.url = f"127.0.0.1:{server.server_port}"
    yield state
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def server(endpoint, monkeypatch):
    """A server whose answers are nothing."""
    monkeypatch.setattr(Server, "infer", lambda *_: {})
    return Server("127.0.0.1:9", endpoint.url, Path("log"), processes=(os.getpid(),))


def under_way():
    """Requests that are under way around now, one after the other, for 1000 seconds."""
    ends = time.time_ns() + np.arange(-50, 51) * 10**10
    return np.stack([ends - 10**10, ends], axis=1)


def looked(server, *changes):
    """Look once, and again after each change."""
    point = GpuObservation()
    with observed("gpu", server) as observer:
        observer.look(point)
        for change in changes:
            change()
            observer.look(point)
    return point, observer.record


def test_a_point_is_sampled_while_it_runs_and_no_longer(card, endpoint, server, monkeypatch):
    monkeypatch.setattr(gpu_monitor, "INTERVAL_SECONDS", 0.01)
    endpoint.answers = [metrics(share) for share in (0.2, 0.4, 0.9)]
    point = GpuObservation()

    with observed("gpu", server) as observer, observer.watching(point):
        while endpoint.asked < 3:
            time.sleep(0.01)

    taken = len(point.samples)
    time.sleep(0.05)
    assert len(point.samples) == taken
    row = point.figures([under_way()])
    mean = np.mean([0.2, 0.4, *[0.9] * (taken - 2)])
    share = {"gpu_utilisation": mean, "gpu_utilisation_max": 0.9}
    most = {"gpu_memory_max_mb": 3500.0, "gpu_power_max_w": 250.5}
    assert row == pytest.approx(share | LOAD | most)
    assert set(row) <= set(Row.model_fields)
    assert point.disturbance() == ""
    assert observer.record.load_from == ("Triton's metrics",)


def test_only_what_was_seen_while_requests_were_under_way_counts():
    second = 10**9
    seen = {0: 0.0, 2: 0.1, 3: 0.5, 4: 0.7, 9: 0.0, 21: 0.0}  # share by second
    samples = [
        (at * second, {"gpu_utilisation": share, "gpu_memory_mb": 1000.0 + at})
        for at, share in seen.items()
    ]
    runs = [np.array([[1, 2], [2, 4]]) * second, np.array([[20, 21]]) * second]

    found = GpuObservation(samples).figures(runs)

    # a second after the start the driver still tells of the pause before it
    right = {"gpu_utilisation": 0.6, "gpu_utilisation_max": 0.7}
    assert found == pytest.approx(right | {"gpu_memory_mb": 1007.5, "gpu_memory_max_mb": 1021.0})


@pytest.mark.parametrize("answer", ["", "nv_cpu_utilization 0.5\n", "not a metric\n", "cut off"])
def test_what_the_server_does_not_say_nvml_does(card, endpoint, server, answer):
    endpoint.answers = [answer]
    point, record = looked(server)

    row = point.figures([under_way()])
    assert (row["gpu_utilisation"], row["gpu_memory_mb"], row["gpu_power_w"]) == (0.37, 2000, 87.5)
    assert record.load_from == ("NVML",)


def test_a_server_that_is_gone_and_a_driver_that_refuses_leave_the_columns_empty(card, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    point, record = looked(Server("127.0.0.1:9", "127.0.0.1:9", Path("log")))

    assert (point.figures([under_way()]), point.disturbance()) == ({}, "")
    reason = {"reason": "nvidia-ml-py is not installed"}
    assert record == GpuState(start=reason, end=reason, changes=(), load_from=())


def row_of(point):
    ends = np.arange(1, 101) * 10**7
    run = Window(np.stack([ends - 10**7, ends], axis=1), 1, 1)
    return measure_row([run], 50, 0.05, 2, cut=True, disturbance=point.disturbance())


@pytest.mark.parametrize("reasons", [0, IDLE, CAP, IDLE | CAP | 0x2 | 0x10 | 0x100])
def test_a_card_at_its_power_cap_is_not_noisy(card, server, reasons):
    card.reasons, card.processes = reasons, [(os.getpid(), 1)]

    assert row_of(looked(server)[0]).quality == "stable"


@pytest.mark.parametrize("bit", [0x8, 0x20, 0x40, 0x80])
def test_a_row_on_a_card_that_was_held_back_is_noisy(card, server, bit):
    held = [lambda to=to: setattr(card, "reasons", to) for to in (bit | CAP, IDLE)]
    point, record = looked(server, *held)

    row, words = row_of(point), list(BITS.values())[bit.bit_length() - 1]
    reason = f"The GPU was slowed by {words}. Check its cooling and power supply."
    assert (row.quality, row.reason) == ("noisy", reason)
    limits = ", ".join(sorted(["power cap", words]))
    assert record.changes == (f"clocks were limited by {limits}",)


def test_a_row_on_a_shared_card_is_noisy(card, server):
    card.processes = [(os.getpid(), 10**9)]
    assert row_of(looked(server)[0]).quality == "stable"
    point, record = looked(server, lambda: card.processes.append((1, 5 * 10**9)))

    reason = "1 other process used the GPU with 5,000 MB. Stop it and run again."
    row = row_of(point)
    assert (row.quality, row.reason) == ("noisy", reason)
    assert (record.start["other_processes"], record.end["other_processes"]) == (0, 1)
    assert record.changes == ("other processes on the GPU: 0 before, 1 after",)


def test_changes_are_those_that_matter():
    after = RECORD | {"power_w": 300.0, "temperature_c": 77, "memory_used_mb": 9, "sm_clock_mhz": 9}
    assert changes(RECORD, after, {"idle"}) == []
    found = changes(RECORD, RECORD | {"ecc": "off", "power_limit_w": 300.0}, {"power cap"})
    power = "power_limit_w changed from 400.0 to 300.0"
    assert found == [power, "ecc changed from on to off", "clocks were limited by power cap"]
    assert changes({"reason": "none"}, {"reason": "none"}, ()) == []
    first, *_ = changes(RECORD, {"reason": "lost"}, ())
    assert first == "name changed from NVIDIA A100-SXM4-80GB to None"


def config(stage, device="gpu", precision="fp16", **changes):
    fields = {"export_format": "ts-trace", "format": "ts-trace", "max_batch_size": 8, **changes}
    fields |= {"export_precision": precision, "precision": precision}
    models = {"resnet50": {"experiments": {"mine": fields}}}
    return resolve("resnet50", stage, "NVIDIA A100-SXM4-80GB", device, models=models)


@pytest.fixture
def load(monkeypatch):
    """One client whose requests take 5 ms, for 0.3 s."""

    def run(point, server):
        start = time.time_ns()
        time.sleep(0.1)
        ends = start + np.arange(1, 61) * 5 * 10**6
        requests = np.stack([ends - 5 * 10**6, ends], axis=1)
        return Window(requests, point.batch_size, point.concurrency)

    monkeypatch.setattr(gpu_monitor, "INTERVAL_SECONDS", 0.02)
    monkeypatch.setattr(analyzer, "run", run)
    monkeypatch.setattr(sweep, "distinct_samples", lambda _: {"INPUT__0": np.zeros((4, 2))})
    monkeypatch.setattr(offline, "load_in_process", lambda _: None)
    monkeypatch.setattr(background, "machine_speed", lambda: 50.0)
    monkeypatch.setattr(background, "wait_until_quiet", lambda *_: 0.0)
    monkeypatch.setattr(background, "_host_seconds", lambda: 0.0)


@pytest.mark.parametrize("scenario", ["offline", "online"])
def test_rows_of_a_measurement_have_their_load_and_the_stage_its_record(
    card, server, load, scenario, monkeypatch, capsys
):
    monkeypatch.setattr(gpu_monitor, "AVERAGED_NS", 0)
    card.processes = [(os.getpid(), 10**9)]
    how, measure = {"concurrency": [1], "rates": []}, online.measure_online
    if scenario == "offline":
        how, measure = {"batch_sizes": [1], "pairs": 3}, offline.measure_offline

    found = measure(config(f"perf_{scenario}", **how), server)

    (row,) = found.rows
    figures = (row.gpu_utilisation, row.gpu_power_max_w, row.gpu_memory_mb)
    assert (row.quality, figures) == ("stable", (0.25, 250.5, 3500.0))
    load_from = ("Triton's metrics",)
    assert found.gpu == GpuState(start=RECORD, end=RECORD, changes=(), load_from=load_from)
    assert card.open == 0


def test_the_machine_s_speed_is_not_measured_while_the_server_starts(
    server, load, monkeypatch, capsys
):
    order = []
    monkeypatch.setattr(background, "machine_speed", lambda: order.append("speed") or 50.0)
    monkeypatch.setattr(sweep, "seconds", lambda _: 0.005)
    chosen = config("perf_offline", "cpu", "fp32", batch_sizes=[1])

    offline.measure_offline(chosen, replace(server, ready=lambda: order.append("ready")))

    assert list(dict.fromkeys(order)) == ["ready", "speed"]


def test_on_a_cpu_nothing_is_looked_at_and_a_row_has_empty_columns(
    endpoint, server, load, card, capsys
):
    chosen = config("perf_online", "cpu", "fp32", concurrency=[1], rates=[])

    found = online.measure_online(chosen, server)

    (row,) = found.rows
    assert not any(value for name, value in row.model_dump().items() if name.startswith("gpu_"))
    assert row.throughput == pytest.approx(200)
    assert (found.gpu, endpoint.asked, card.asked_for) == (None, 0, [])
