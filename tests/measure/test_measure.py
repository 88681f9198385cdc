"""Measuring: as many requests and pairs as asked for, at any speed, and no longer than allowed."""

import itertools
import json
import subprocess
import sys
import time
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from select import select
from types import SimpleNamespace

import numpy as np
import pytest

from helpers.config import resolve
from helpers.errors import MeasurementError
from helpers.measure import analyzer, background, offline, online, sweep
from helpers.measure.analyzer import LoadPoint
from helpers.measure.offline import InProcessModel
from helpers.measure.rows import Window
from helpers.measure.runs import Runs, SpeedMonitor
from helpers.results import Measurement
from helpers.triton import Server

CALL_SECONDS = 0.002
BATCH = {"INPUT__0": np.zeros((2, 3), np.float32)}
POINT = LoadPoint("resnet50", Path("inputs.json"), [])
JITTER = [1.0, 1.2, 0.9, 1.05, 1.0]


def requests(latency_s, count):
    """Requests (ns) of one client that waits for each answer."""
    ends = np.arange(1, count + 1) * latency_s * 1e9
    return np.stack([ends - latency_s * 1e9, ends], axis=1).astype(np.int64)


def jitter():
    """Return a speed that varies from call to call."""
    speeds = itertools.cycle(JITTER)
    return lambda: CALL_SECONDS * next(speeds)


def measured(order, seconds, identity="", **overrides):
    """Measure one point of a server and a runtime that are stand-ins. The load generator is one
    too, so that the server's speed is known: its run has whole requests within three windows.
    """

    class Noted(InProcessModel):
        def run(self, seconds):
            order.append("in_process" if seconds else "first call")
            return super().run(min(seconds, 0.01))

    def load(point):
        order.append("no-op" if point.model == "identity" else "served")
        latency = seconds()
        count = int(3 * point.interval_ms / 1000 * analyzer.WINDOW_STRETCH / latency)
        return Window(requests(latency, count), 1, 1)

    @contextmanager
    def watched():
        yield
        watches.append("watched")

    watches, config = [], resolve("resnet50", "perf_offline", overrides=overrides)
    server = SimpleNamespace(infer=lambda *_: None, processes=(), codec=None, identity=identity)
    runs, session = Runs(load, watched), SimpleNamespace(run=lambda _: time.sleep(CALL_SECONDS))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(background, "machine_speed", lambda: 50.0)
        offline.run_rounds(config, server, Noted(session, [BATCH]), BATCH, POINT, runs)
    assert len(watches) == order.count("in_process")
    return runs


@pytest.mark.parametrize("slower", [0.8, 1.0, 1.25, 3.0])
@pytest.mark.parametrize("pairs", [2, 3])
def test_a_server_slower_than_the_in_process_runtime_still_gets_its_requests(slower, pairs):
    wanted = 2000  # long enough for the shortest interval to have no say

    runs = measured([], lambda: CALL_SECONDS * slower, pairs=pairs, request_count=wanted)

    assert runs.missing(wanted) <= 0
    assert max(3, pairs) <= len(runs.served) <= max(3, pairs) + 1  # three bound a throughput
    assert len(runs.in_process) == len(runs.served)


def test_candidates_take_turns_at_coming_first_and_the_no_op_model_has_three_runs():
    order = []
    given = {"pairs": 4, "request_count": 4, "margin_of_error": 0.5}

    runs = measured(order, jitter(), identity="identity", **given)

    pair = ["in_process", "no-op", "served"]
    assert order == ["first call", *pair, *reversed(pair), *pair, "served", "in_process"]
    found = sweep.compared(resolve("resnet50", "perf_offline"), runs)
    floor = 1000 * CALL_SECONDS * np.mean([1.0, 1.05, 1.0])  # without the served runs' speeds
    assert found["noop_latency_ms"] == pytest.approx(floor, rel=1e-6)
    low, value, high = (found[f"residual_overhead_{end}ms"] for end in ("low_", "", "high_"))
    assert low < value < high
    assert value == found["serving_overhead_ms"] - found["noop_latency_ms"]


def test_what_others_take_is_judged_over_all_runs_of_a_point():
    """The clock of processes ticks every 10 ms: three ticks in a short run are no disturbance."""
    runs = Runs(None, nullcontext, others=[(0.03, 0.3), (0.0, 1.0), (0.0, 1.7)])

    assert runs.others_cores == pytest.approx(0.01)


def test_the_no_op_model_is_asked_with_one_request_whatever_the_batch(tmp_path):
    """Each different one costs perf_analyzer a region of shared memory at its start."""
    asked, rows = [], []

    def load(point):
        asked.append(point)
        rows.append(len(json.loads(point.data.read_text())["data"]))
        return Window(requests(0.001, 20), 1, 1)

    server = SimpleNamespace(codec=None, infer=lambda *_: None, identity="identity")
    point = LoadPoint("resnet50", tmp_path / "inputs.json", [], batch_size=64, parts=("a", "b"))
    many = {"INPUT__0": np.zeros((64, 3), np.float32)}

    offline._measure_noop(server, point, Runs(load, nullcontext), many)

    (noop,) = asked
    assert (noop.model, noop.batch_size, noop.parts) == ("identity", 64, ("",))
    assert rows == [1]
    assert offline.NOOP_INTERVAL_MS <= noop.interval_ms < analyzer.SHORTEST_INTERVAL_MS


def test_a_point_goes_on_until_it_is_known_or_its_time_is_over():
    given = {"pairs": 2, "request_count": 5}
    known = measured([], jitter(), margin_of_error=0.05, **given)
    spent = measured([], jitter(), margin_of_error=0.01, measurement_seconds=0.2, **given)

    assert (known.is_known(0.05), spent.is_known(0.01)) == (True, False)
    assert len(known.served) > 3
    assert 2 <= len(spent.served) < 40


def test_an_in_process_run_lasts_as_long_as_a_served_one(monkeypatch):
    """The clock is the test's: a call takes two milliseconds."""
    calls = []
    clock = SimpleNamespace(perf_counter=lambda: CALL_SECONDS * len(calls))
    monkeypatch.setattr(offline, "time", clock)

    rate = InProcessModel(SimpleNamespace(run=calls.append), [BATCH]).run(0.2)

    assert len(calls) == pytest.approx(1 + 0.2 / CALL_SECONDS, abs=1)  # the first is not counted
    assert rate == pytest.approx(1 / CALL_SECONDS)


@pytest.mark.parametrize("shared_memory", ["cuda", "system"])
def test_in_cuda_shared_memory_an_in_process_call_takes_tensors_there_and_waits_for_its_outputs(
    shared_memory, monkeypatch
):
    """As the served one does: without, a GPU would serve faster than it computes."""
    import torch

    order = []

    def called(way):
        return lambda inputs: order.append(f"{way} {type(inputs['INPUT__0']).__name__}")

    session = SimpleNamespace(run=called("run"), run_on_device=called("on device"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: order.append("waited"))
    monkeypatch.setattr(offline, "OnDevice", partial(offline.OnDevice, device="cpu"))
    monkeypatch.setattr(offline, "load_in_process", lambda _: session)
    monkeypatch.setattr(sweep, "distinct_samples", lambda _: {"INPUT__0": np.zeros((2, 3))})
    monkeypatch.setattr(offline, "run_rounds", lambda *given: given[2].run(0))
    load, runs = LoadPoint("m", Path(), [], batch_size=2), Runs(None, nullcontext)

    def measured(*given):
        (point,) = given[-1]([])
        point.measure(load, runs)
        return Measurement(rows=(), distinct_rows=2, background_before=0.0)

    monkeypatch.setattr(sweep, "run", measured)
    overrides = {"batch_sizes": [2], "shared_memory": shared_memory}
    config = resolve("resnet50", "perf_offline", overrides=overrides)

    offline.measure_offline(config, Server("127.0.0.1:9", "127.0.0.1:9", Path("log")))

    ways = ["on device Tensor", "waited"] if shared_memory == "cuda" else ["run ndarray"]
    assert order == ways * 4  # the first is not counted


@pytest.mark.parametrize(
    ("concurrency", "asked"), [([1], [4]), ([1, 3], [4, 8, 8]), ([16], [4, 8, 8])]
)
def test_each_batch_that_the_batcher_can_form_is_run_once_before_the_first_point(
    concurrency, asked, monkeypatch
):
    sizes = []
    server = SimpleNamespace(infer=lambda _, batch: sizes.append(len(batch["INPUT__0"])))
    monkeypatch.setattr(sweep, "distinct_samples", lambda _: {"INPUT__0": np.zeros((5, 3))})
    monkeypatch.setattr(sweep, "run", lambda *_: None)
    overrides = {"concurrency": concurrency, "online_batch_size": 4, "max_batch_size": 8}
    overrides |= {"preferred_batch_sizes": [8]}
    config = resolve("resnet50", "perf_online", overrides=overrides)

    online.measure_online(config, server)

    assert sizes[: len({*asked})] == sorted({*asked})


CHANGED = (
    "The machine's speed changed (reference kernel: 50, then {} GFLOP/s). "
    "Run again on an idle machine."
)


@pytest.mark.parametrize(("speeds", "then"), [((50, 52), 0), ((50, 56), 56), ((40, 40.5), 40)])
def test_a_machine_whose_speed_changed_disturbs_a_measurement(speeds, then):
    found = SpeedMonitor(0.1, [50.0, 50.0, 50.0, 50.0, *speeds]).changed(*speeds)
    assert found == (CHANGED.format(then) if then else "")


def test_each_round_has_the_speed_before_and_after_it(monkeypatch):
    found = iter([49.0, 50.0, 40.0, 49.0])
    monkeypatch.setattr(background, "machine_speed", lambda: next(found))
    runs = Runs(None, nullcontext)

    runs.repeat([lambda: runs.in_process.append(1.0)], lambda: len(runs.in_process) == 3)

    assert runs.rounds == [(49, 50), (50, 40), (40, 49)]
    assert runs.speed_changed == CHANGED.format(40)


@pytest.mark.parametrize(("count", "seconds", "over"), [(9, 9, True), (4, 9, False), (4, 25, True)])
def test_a_point_whose_requests_are_missing_has_three_times_as_long(count, seconds, over):
    served = [Window(requests(1, count), 1, 1)]
    runs = Runs(None, nullcontext, served=served, seconds=seconds)

    assert runs.is_over(8, wanted=5) == over  # its first request does not count


@pytest.mark.parametrize("used", [[0.0], [2.0, 0.0], [2.0, 1.0, 0.1]])
def test_a_busy_machine_is_waited_for_until_it_is_quiet(monkeypatch, used):
    pauses, found = [], iter(used)
    monkeypatch.setenv(background.RETRY_VARIABLE, "9")
    monkeypatch.setattr(background.time, "sleep", pauses.append)
    monkeypatch.setattr(background, "cores", lambda: 2)
    monkeypatch.setattr(background, "monitor_background", lambda: lambda: next(found))

    assert background.wait_until_quiet() == used[-1]

    assert pauses == [0.3] * len(used)


def test_the_machine_s_speed_is_that_of_the_moment_in_which_nothing_else_ran(monkeypatch):
    """The clock is the test's: a product takes two milliseconds, in the second part one."""
    clock, took = 0.0, itertools.chain([0.002] * 5, [0.001] * 10, itertools.repeat(0.002))

    def product(*_, **__):
        nonlocal clock
        clock += next(took)

    monkeypatch.setattr(background.time, "perf_counter", lambda: clock)
    monkeypatch.setattr(background.np, "matmul", product)

    assert background.machine_speed() == pytest.approx(2 * 512**3 / 0.001 / 1e9)


def test_what_others_compute_is_monitored():
    """The shell ends at once, so that the process is nobody's child."""
    ends = "import time; ends = time.monotonic() + 1\nwhile time.monotonic() < ends: pass"
    others_cores = background.monitor_background()

    subprocess.run(["sh", "-c", '"$@" &', "sh", sys.executable, "-S", "-c", ends], check=True)
    time.sleep(1)

    assert others_cores() > 0.3


class Wait:
    """An event that is set after four seconds of a clock that only its waiting moves."""

    clock = 0.0

    def wait(self, seconds):
        Wait.clock += seconds
        return Wait.clock >= 4

    def set(self):
        pass


def test_what_others_compute_is_known_between_two_times(monkeypatch):
    """Others are idle for two seconds, and then use one core."""
    clock = SimpleNamespace(time_ns=lambda: int(1e9 * Wait.clock))
    monkeypatch.setattr(background, "Event", Wait)
    monkeypatch.setattr(background, "time", clock)
    monkeypatch.setattr(background, "_host_seconds", lambda: 7 + max(0.0, Wait.clock - 2))
    monkeypatch.setattr(background, "_own_seconds", lambda servers: 3.0)

    with background.watch_others() as cores_between:
        pass

    found = [cores_between(*(int(1e9 * t) for t in ends)) for ends in ((0, 2), (1, 3), (2, 4))]
    assert found == pytest.approx([0, 0.5, 1], abs=0.03)


HOLD = """
from helpers.measure.background import exclusive_lock
with exclusive_lock():
    print("held", flush=True)
    input()
"""


def test_one_measurement_runs_at_a_time():
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "bufsize": 0}
    with subprocess.Popen([sys.executable, "-c", HOLD], **pipes) as one:
        assert one.stdout.readline() == b"held\n"
        with subprocess.Popen([sys.executable, "-c", HOLD], **pipes) as other:
            assert select([other.stdout], [], [], 1.5)[0] == []
            one.communicate(b"\n", timeout=600)
            assert other.communicate(b"\n", timeout=600)[0] == b"held\n"


def test_what_is_whole_of_a_point_that_failed_is_kept():
    window = Window(requests(0.001, 2), 1, 1)
    runs = Runs(None, nullcontext, served=[window], in_process=[9.0, 9.0])

    found = sweep.compared(resolve("resnet50", "perf_offline"), runs)

    assert found["relative_quality"] == "too few pairs"
    assert isinstance(found["serving_overhead_ms"], float)


def test_without_a_whole_run_the_error_is_raised():
    def fail(*_):
        raise MeasurementError("perf_analyzer was killed")

    config, failing = resolve("resnet50", "perf_offline"), sweep.Point({}, fail, 1)
    server = SimpleNamespace(processes=(), codec=None)
    with pytest.raises(MeasurementError, match="was killed"):
        sweep._measure(config, server, SimpleNamespace(), POINT, failing, SpeedMonitor())
