"""The open loop on a real Triton of known service time: what a stall costs, and too high a rate."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from helpers.measure import analyzer
from helpers.measure.analyzer import LoadPoint
from helpers.measure.rows import measure_row
from helpers.triton import embedded
from tests.triton.conftest import write_doubles

pytestmark = pytest.mark.slow

SERVICE = 0.005  # seconds that a request takes
STALL, STALLED = 1.0, 150  # seconds that this request takes
AGAIN = 300  # requests later another one does: a run of perf_analyzer may have to be repeated
RATE, REQUESTS = 100.0, 400
SESSION = """
import time

class Session:
    asked = 0

    def run(self, inputs):
        Session.asked += 1
        time.sleep(STALL if Session.asked % AGAIN == STALLED else SERVICE)
        return {"doubled": 2 * inputs["ids"]}

def load(path, threads, device):
    return Session()
"""


@pytest.fixture
def server(tmp_path):
    """A server that answers one request after the other, and stalls once in a run."""
    numbers = f"AGAIN, STALLED, STALL, SERVICE = {AGAIN}, {STALLED}, {STALL}, {SERVICE}\n"
    repository = write_doubles(tmp_path / "models", numbers + SESSION)
    with embedded.serve(repository, scenario="offline", log=tmp_path / "log") as started:
        yield started


def measure(server, **fields):
    """Load the server at one point; give what was seen, and its row."""
    samples = {"ids": np.zeros((4, 2), np.int64)}
    with analyzer.input_data(samples) as data:
        found = analyzer.run(replace(LoadPoint("doubles", data, []), **fields), server)
    row = measure_row([found], 1, 0.5, 2, rate=fields.get("rate"), cut=True)
    return found, row


def open_loop(rate, requests=REQUESTS):
    return {"rate": rate, "requests": requests, "concurrency": 0}


def queued_p99_ms(point):
    """The p99 on a server that takes one request at a time, in the order of the schedule."""
    latencies, free, due = [], 0.0, 0.0
    for number, gap in enumerate(analyzer.gaps_us(LoadPoint("", Path(), [], **point)), 1):
        due += gap / 1e6
        free = max(free, due) + (STALL if number == STALLED else SERVICE)
        latencies.append(1000 * (free - due))
    return np.percentile(latencies, 99)


def test_a_stall_is_seen_by_all_who_wanted_to_ask_meanwhile(server):
    point = open_loop(RATE)

    found, row = measure(server, **point)

    truth = queued_p99_ms(point)
    assert len(found.requests) == REQUESTS
    assert 0.9 * truth < row.p99_latency_ms < 1.5 * truth  # more where tests run beside it
    assert truth > 900
    # from the schedule as from sending, but for what is sent late where tests run beside it
    assert row.p99_sent_ms == pytest.approx(row.p99_latency_ms, rel=0.2)
    assert (row.rate, row.concurrency, row.littles_law) == (RATE, 0, None)
    assert row.quality in ("imprecise", "client-bound")  # of a queue with one long stall


def test_a_closed_loop_hardly_sees_a_stall(server):
    """As its only client waits meanwhile: one request of hundreds is slow."""
    found, row = measure(server, interval_ms=900)

    assert max(found.latencies_ms) > 1000 * STALL
    assert row.p99_latency_ms < 1000 * STALL / 2
    assert (row.rate, row.p99_sent_ms) == (None, None)


def test_a_client_with_one_thread_that_waits_cannot_keep_the_schedule(server, monkeypatch):
    given, point = analyzer.arguments, open_loop(RATE)
    is_kept = "--async".__ne__
    monkeypatch.setattr(analyzer, "arguments", lambda *point: [*filter(is_kept, given(*point))])

    _, row = measure(server, **point)

    assert row.quality == "client-bound"
    assert "ms late, more than 10% of the time between two requests" in row.reason
    assert row.p99_sent_ms < 1000 * STALL / 2  # one saw the stall, the others were sent after it
    truth = queued_p99_ms(point)
    assert 0.9 * truth < row.p99_latency_ms < 1.5 * truth  # more where tests run beside it


def test_a_client_that_never_begins_is_started_again(server, monkeypatch):
    """perf_analyzer's thread may sleep for ever; once in dozens of runs it does."""

    def asleep(*point):
        started.append("once")
        return ["sleep", "1000"] if len(started) == 1 else given(*point)

    started = []
    given = analyzer.arguments
    monkeypatch.setattr(analyzer, "arguments", asleep)
    monkeypatch.setattr(analyzer, "START_SECONDS", 1.5)

    found, _ = measure(server, **open_loop(RATE, 140))

    assert len(started) == 2
    assert len(found.requests) == 140


def test_a_rate_above_capacity_is_overloaded(server):
    row = measure(server, **open_loop(1.5 / SERVICE, 140))[1]  # before the stall

    assert row.quality == "saturated"
    assert row.reason.endswith("ms per second and is a lower bound")
    assert row.throughput < 1 / SERVICE
