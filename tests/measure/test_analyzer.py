"""What perf_analyzer leaves is read as the columns of a row."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from helpers.errors import MeasurementError, WorkspaceError
from helpers.measure import analyzer
from helpers.measure.analyzer import LoadPoint, _read, _served, run
from helpers.measure.rows import Window, measure_row
from helpers.results import LATENCY_COMPONENTS, TableRow
from helpers.triton.server import Server


@pytest.mark.parametrize(
    ("says", "advice"),
    [
        (
            "failed to open shared memory region",
            ". If the server runs as another user, set shared_memory to none.",
        ),
        ("failed to open a socket", ""),
    ],
)
def test_who_has_no_access_to_shared_memory_is_told_what_to_set(
    says: str, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = tmp_path / "perf_analyzer"
    command.write_text(f"#!/bin/sh\necho {says}\nexit 3\n")
    command.chmod(0o755)
    monkeypatch.setattr(analyzer, "arguments", lambda *_: [str(command)])
    server: Any = SimpleNamespace(url="127.0.0.1:9", is_live=lambda *_: True)

    with pytest.raises(MeasurementError) as raised:
        analyzer.run(LoadPoint("m", tmp_path, []), server)

    assert str(raised.value) == f"perf_analyzer failed (exit code 3): {says}{advice}"


HEADER = (  # of perf_analyzer's CSV
    "Concurrency,Inferences/Second,Client Send,Network+Server Send/Recv,Server Queue,"
    "Server Compute Input,Server Compute Infer,Server Compute Output,Client Recv,p50 latency"
)


def test_requests_and_what_the_client_spends_are_read_in_the_units_of_a_row(
    tmp_path: Path,
) -> None:
    (tmp_path / "out.csv").write_text(f"{HEADER}\n1,10,1,2,3,4,5,6,7,28\n")
    said = "    Avg client overhead: 9.00%\n... Avg client overhead: 12.50% (overhead 3 usec)\n"
    (tmp_path / "log").write_text(f"{said}  Server: \n{section(2, 2, 3, 5)}")
    times = (
        '{"timestamp":100,"response_timestamps":[200]},{"timestamp":10,"response_timestamps":[90]}'
    )
    (tmp_path / "out.json").write_text(f'{{"requests":[{times}]}}')

    load = _read(tmp_path, LoadPoint("m", tmp_path, [], batch_size=8, concurrency=2))

    assert load
    assert (load.batch_size, load.concurrency) == (8, 2)
    np.testing.assert_array_equal(load.requests, [[10, 90], [100, 200]])
    client = {name: load.components[name] for name in ("client_send_ms", "client_recv_ms")}
    assert client == {"client_send_ms": 0.001, "client_recv_ms": 0.007}
    assert load.overhead == 0.125


def test_a_record_that_a_full_disk_cuts_off_is_one_line(monkeypatch, tmp_path: Path) -> None:
    free = iter([10**9, 0, 0])  # when it begins, and when it has ended
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=next(free)))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("helpers.measure.analyzer._perform", lambda *_: 0)
    monkeypatch.setattr(Server, "is_live", lambda *_: True)

    with pytest.raises(WorkspaceError, match=f"^{tmp_path} is full. Free some space, or set "):
        run(LoadPoint("m", tmp_path, []), Server("", "", tmp_path / "log"))


ENDS = np.arange(1, 22) * 20 * 10**6  # 21 requests of 20 ms
LOAD = Window(
    np.stack([ENDS - 20 * 10**6, ENDS], axis=1),
    4,
    1,
    components={"client_send_ms": 1.0, "client_recv_ms": 2.0},
)
SPENT = (
    "Avg request latency: {total} usec (overhead 1 usec + queue {queue} usec + "
    "compute input {i} usec + compute infer {infer} usec + compute output {o} usec)\n"
)


def section(requests: int, executions: int, queue: int, infer: int, i: int = 0, o: int = 0) -> str:
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


def test_the_queue_of_an_ensemble_is_that_of_its_parts() -> None:
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


def test_what_is_left_for_the_network_may_be_negative() -> None:
    found = _served(LOAD, f"  Server: \n{section(21, 21, 0, 20_000)}", [""])

    assert found.components["network_server_send_recv_ms"] == -3
    assert (found.counted, found.average_batch_size) == (21, 4)


def test_a_part_without_statistics_leaves_the_components_empty() -> None:
    found = _served(
        LOAD, ENSEMBLE.replace("lookup, version", "other, version"), ["lookup", "graph"]
    )

    assert found.components == {}
    row = measure_row([found], 20, 0.05, 2, cut=True)
    assert row.server_queue_ms is row.network_server_send_recv_ms is None
    reason = "no latency components: a model of the ensemble has no statistics"
    assert row.reason.endswith(reason)


def test_the_components_are_columns_of_a_row_in_their_order() -> None:
    columns = [name for name in TableRow.model_fields if name in LATENCY_COMPONENTS]

    assert columns == list(LATENCY_COMPONENTS)
