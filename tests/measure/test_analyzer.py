"""What perf_analyzer leaves is read as the columns of a row."""

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest

from helpers.errors import MeasurementError, WorkspaceError
from helpers.measure import analyzer
from helpers.measure.analyzer import ATTEMPTS, LOST_RECORDS, LoadPoint, _read, _served
from helpers.measure.rows import Window, measure_row
from helpers.triton import Server


@pytest.fixture
def server(monkeypatch, tmp_path):
    monkeypatch.setattr(Server, "is_live", lambda *_: True)
    return Server("127.0.0.1:1", "", tmp_path / "log")


@pytest.fixture
def load(monkeypatch, server, tmp_path):
    """Ask for a window: what `read` makes of the last of so many runs, and their number."""
    runs = []
    monkeypatch.setattr(analyzer, "_perform", lambda *_: runs.append("run") or 0)

    def load(read=lambda: "window"):
        monkeypatch.setattr(analyzer, "_read", lambda *_: read())
        return analyzer.run(LoadPoint("m", tmp_path, []), server), len(runs)

    return load


ADVICE = {
    "failed to open shared memory region": (
        ". If the server runs as another user, set shared_memory to none."
    ),
    "failed to open a socket": "",
}


@pytest.mark.parametrize("says", ADVICE)
def test_who_has_no_access_to_shared_memory_is_told_what_to_set(
    says, server, tmp_path, monkeypatch
):
    monkeypatch.setattr(analyzer, "arguments", lambda *_: ["sh", "-c", f"echo {says}; exit 3"])

    with pytest.raises(MeasurementError) as raised:
        analyzer.run(LoadPoint("m", tmp_path, []), server)

    assert str(raised.value) == f"perf_analyzer failed (exit code 3): {says}{ADVICE[says]}"


def test_runs_with_shared_memory_wait_for_each_other_whatever_their_folder_of_temporary_files(
    server, tmp_path, monkeypatch
):
    """perf_analyzer gives its regions the same names in every run on a host."""
    double = f"mkdir {tmp_path}/region && sleep 1 && rmdir {tmp_path}/region"
    monkeypatch.setattr(analyzer, "arguments", lambda *_: ["sh", "-c", double])
    monkeypatch.setattr(analyzer, "_read", lambda *_: "window")
    point = LoadPoint("m", tmp_path, [], shared_memory="system")

    with ThreadPoolExecutor() as pool:
        runs = [pool.submit(analyzer.run, point, server) for _ in range(2)]

    assert [run.result() for run in runs] == ["window", "window"]


HEADER = (  # of perf_analyzer's CSV
    "Concurrency,Inferences/Second,Client Send,Network+Server Send/Recv,Server Queue,"
    "Server Compute Input,Server Compute Infer,Server Compute Output,Client Recv,p50 latency"
)


def test_requests_and_what_the_client_spends_are_read_in_the_units_of_a_row(tmp_path):
    (tmp_path / "out.csv").write_text(f"{HEADER}\n1,10,1,2,3,4,5,6,7,28\n")
    said = "    Avg client overhead: 9.00%\n... Avg client overhead: 12.50% (overhead 3 usec)\n"
    (tmp_path / "log").write_text(f"{said}  Server: \n{section(2, 2, 3, 5)}")
    record = '{{"timestamp":{},"response_timestamps":[{}]}}'.format
    (tmp_path / "out.json").write_text(f'{{"requests":[{record(100, 200)},{record(10, 90)}]}}')

    found = _read(tmp_path, LoadPoint("m", tmp_path, [], batch_size=8, concurrency=2))

    assert (found.batch_size, found.concurrency, found.overhead) == (8, 2, 0.125)
    np.testing.assert_array_equal(found.requests, [[10, 90], [100, 200]])
    spent = [found.components[f"client_{way}_ms"] for way in ("send", "recv")]
    assert spent == [0.001, 0.007]


def test_a_record_that_a_full_disk_cuts_off_is_one_line(monkeypatch, load, tmp_path):
    free = iter([10**9, 0, 0])  # when it begins, and when it has ended
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=next(free)))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    with pytest.raises(WorkspaceError, match=f"^{tmp_path} is full. Free some space, or set "):
        load(lambda: None)


ENDS = np.arange(1, 22) * 20 * 10**6  # 21 requests of 20 ms
CLIENT = {"client_send_ms": 1.0, "client_recv_ms": 2.0}
LOAD = Window(np.stack([ENDS - 20 * 10**6, ENDS], axis=1), 4, 1, components=CLIENT)
SPENT = (
    "Avg request latency: {total} usec (overhead 1 usec + queue {queue} usec + "
    "compute input {i} usec + compute infer {infer} usec + compute output {o} usec)\n"
)


def section(requests, executions, queue, infer, i=0, o=0):
    """What perf_analyzer writes of a model, in microseconds."""
    return (
        f"      Inference count: {4 * requests}\n      Execution count: {executions}\n"
        f"      Successful request count: {requests}\n      "
        + SPENT.format(total=queue + infer + i + o, queue=queue, infer=infer, i=i, o=o)
    )


ENSEMBLE = (
    "  Client: \n    Request count: 21\n  Server: \n    Inference count: 84\n"
    "    Execution count: 21\n    Successful request count: 21\n"
    "    Avg request latency: 9 usec (overhead 0 usec + queue 5 usec + compute 8 usec)\n\n"
    "  Composing models: \n  graph, version: 1\n"
    f"{section(21, 7, 2000, 5000, i=1000)}\n  lookup, version: 1\n{section(21, 21, 3000, 1000)}\n"
)


def test_the_queue_of_an_ensemble_is_that_of_its_parts():
    found = _served(LOAD, ENSEMBLE, ["lookup", "graph"])

    assert found.components == {
        "client_send_ms": 1.0,
        "network_server_send_recv_ms": 20 - 5 - 1 - 6 - 3,
        "server_queue_ms": 5.0,
        "server_compute_input_ms": 1.0,
        "server_compute_infer_ms": 6.0,
        "server_compute_output_ms": 0.0,
        "client_recv_ms": 2.0,
    }
    assert (found.counted, found.average_batch_size) == (21, 84 / 7)


def test_what_is_left_for_the_network_may_be_negative():
    found = _served(LOAD, f"  Server: \n{section(21, 21, 0, 20_000)}", [""])

    assert found.components["network_server_send_recv_ms"] == -3
    assert (found.counted, found.average_batch_size) == (21, 4)


def test_a_part_without_statistics_leaves_the_components_empty():
    unlike = ENSEMBLE.replace("lookup, version", "other, version")
    found = _served(LOAD, unlike, ["lookup", "graph"])

    assert found.components == {}
    row = measure_row([found], 20, 0.05, 2, cut=True)
    assert row.server_queue_ms is row.network_server_send_recv_ms is None
    said = "no latency components: a model of the ensemble has no statistics"
    assert row.reason.endswith(said)


@pytest.mark.parametrize("lost", [0, 7, LOST_RECORDS - 1])
def test_a_run_without_a_record_is_repeated_more_often_than_one_that_fails(lost, load):
    """perf_analyzer's writer stops at values of shared memory that are not numbers."""
    records = iter([None] * lost + ["window"])
    assert load(lambda: next(records)) == ("window", lost + 1)

    words = rf"^perf_analyzer left no record of its requests \({LOST_RECORDS} attempts\)$"
    with pytest.raises(MeasurementError, match=words):
        load(lambda: None)


def test_a_run_that_finds_no_statistics_is_repeated_for_twice_as_long(load, monkeypatch):
    """perf_analyzer does this now and then where there are too few cores."""
    intervals = []

    def perform(point, _, folder):
        intervals.append(point.interval_ms)
        (folder / "log").write_text("Pass [3] Error: failed to find the requested model version")
        return 99 if len(intervals) < 3 else 0

    monkeypatch.setattr(analyzer, "_perform", perform)
    load()
    assert intervals == [intervals[0] * 2**attempt for attempt in range(3)]


HOUR = 3600.0


@pytest.mark.parametrize(("seconds", "count"), [(-HOUR, 2), (HOUR, 2), (-0.2, 2), (0.01, 1)])
def test_a_run_in_which_the_clock_was_set_does_not_count(seconds, count, step, load):
    """The last is an adjustment."""
    step(0.0, seconds, then=seconds)
    assert load() == ("window", count)


def test_a_clock_that_is_set_again_and_again_is_an_error(step, load):
    step(*(-HOUR * turn for turn in range(2 * ATTEMPTS)))
    words = rf"^the system clock was set during the measurement \({ATTEMPTS} attempts\)$"
    with pytest.raises(MeasurementError, match=words):
        load()
