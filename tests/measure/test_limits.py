"""What a machine does at most, and how near to it a row is."""

import itertools

import numpy as np
import pytest

from helpers.inference import GraphCost
from helpers.measure import peaks
from helpers.measure.peaks import limited
from helpers.results import Peaks, Row

# 1,000 operations on 100 weights; 40 bytes come and go with each sample
WORK = GraphCost(flop=1000, weights=100, embedding_reads=0, io_bytes=40)
SPEEDS = {"fp32": 100, "bf16": 1600}
MACHINE = Peaks(threads=2, gflops=SPEEDS, memory_gb_s=10, library="x", seconds=1)


def row(throughput, batch_size, quality="stable", **columns):
    given = {"throughput": throughput, "batch_size": batch_size, "quality": quality}
    return Row(concurrency=1, **given, **columns)


@pytest.mark.parametrize(
    ("precision", "batch_size", "limit", "most"),
    [
        ("fp32", 10, "compute", 100e9 / 1000),  # 80 bytes: the memory would allow 125e6
        ("fp32", 1, "memory", 10e9 / 440),
        ("bf16", 10, "memory", 10e9 / 60),  # half of the weights' bytes, 16 times the operations
    ],
)
def test_the_nearer_limit_is_the_one_that_takes_longer(precision, batch_size, limit, most):
    found = limited(row(most / 2, batch_size), WORK, MACHINE, precision)

    assert (found.roofline_bound, found.roofline_share) == (limit, pytest.approx(0.5))
    assert found.gflops == pytest.approx(most / 2 * 1000 / 1e9)
    assert found.intensity == 1000 / WORK.bytes(precision, batch_size)


def test_weights_are_read_once_for_all_that_is_executed_together():
    joined = limited(row(1e6, batch_size=1, average_batch_size=10), WORK, MACHINE, "fp32")

    assert (joined.roofline_bound, joined.intensity) == ("compute", 1000 / 80)


def test_without_a_throughput_or_a_peak_of_its_precision_a_row_has_no_limit():
    for given, precision in ((row(None, 1, "failed"), "fp32"), (row(10, 1), "fp16")):
        assert limited(given, WORK, MACHINE, precision) == given


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
def test_this_machine_has_a_peak_in_a_precision_and_of_its_memory(precision):
    found = peaks.measure("cpu", 1, precision)

    assert set(found.gflops) == {precision}
    assert 1 < found.gflops[precision] < 1e6
    assert 0.5 < found.memory_gb_s < 1000
    assert found.library.startswith("OpenVINO 20")
    assert (found.threads, found.seconds > 0) == (1, True)


def test_a_peak_is_what_was_computed_and_copied_in_the_shortest_time(monkeypatch):
    """The clock is the test's: products take 10 ms, one of them 4, and copies 20 ms."""
    clock, products = 0.0, itertools.chain([0.01, 0.01, 0.004], itertools.repeat(0.01))

    def take(seconds):
        nonlocal clock
        clock += seconds

    monkeypatch.setattr(peaks.time, "perf_counter", lambda: clock)
    monkeypatch.setattr(peaks, "_product", lambda *_: (10**9, lambda: take(next(products))))
    monkeypatch.setattr(peaks.np, "copyto", lambda *_: take(0.02))

    found = peaks.measure("cpu", 1, "int8")

    assert found.gflops == {"int8": 500.0}  # a multiplication and an addition
    assert found.memory_gb_s == round(2 * 64 * 2**20 / 0.02 / 1e9, 1)  # read and written
    assert found.seconds == round(clock, 2)


def test_the_product_that_is_timed_is_that_of_the_matrices():
    count, call = peaks._product("fp32", 1)

    result = next(iter(call().values()))
    random = np.random.default_rng(0)
    factor = random.integers(-127, 128, (512, 512)).astype(np.float32) / 100
    batch = random.standard_normal((peaks.ROWS, 512), np.float32)
    for _ in range(peaks.LAYERS):
        batch = batch @ factor.T
    assert float(result) == pytest.approx(batch.max(), rel=1e-3)
    assert count == 4 * peaks.ROWS * 512 * 512


def test_a_peak_is_the_higher_of_before_and_after_in_each_precision():
    before = MACHINE.model_copy(update={"gflops": {"int8": 3200.0, "fp32": 100.0}})
    later = {"gflops": {"fp32": 90.0, "bf16": 1700.0}, "memory_gb_s": 12.0}

    found = peaks.highest_peaks(before, MACHINE.model_copy(update=later))

    assert [*found.gflops.items()] == [("fp32", 100), ("bf16", 1700), ("int8", 3200)]
    assert (found.memory_gb_s, found.seconds) == (12, 2)
    assert peaks.highest_peaks(None, None) is None
