"""What perf_analyzer leaves is read as the columns of a row."""

from pathlib import Path

import numpy as np

from helpers.perf.analyzer import LoadPoint, _read, _served
from helpers.perf.statistics import Window, measure_row
from helpers.results import LATENCY_COMPONENTS, TableRow
from helpers.triton import Statistics

HEADER = (  # of perf_analyzer's CSV
    "Concurrency,Inferences/Second,Client Send,Network+Server Send/Recv,Server Queue,"
    "Server Compute Input,Server Compute Infer,Server Compute Output,Client Recv,p50 latency"
)


def test_requests_and_what_the_client_spends_are_read_in_the_units_of_a_row(
    tmp_path: Path,
) -> None:
    (tmp_path / "out.csv").write_text(f"{HEADER}\n1,10,1,2,3,4,5,6,7,28\n")
    said = "    Avg client overhead: 9.00%\n... Avg client overhead: 12.50% (overhead 3 usec)\n"
    (tmp_path / "log").write_text(said)
    times = (
        '{"timestamp":100,"response_timestamps":[200]},{"timestamp":10,"response_timestamps":[90]}'
    )
    (tmp_path / "out.json").write_text(f'{{"requests":[{times}]}}')

    load = _read(tmp_path, LoadPoint("m", tmp_path, [], batch_size=8, concurrency=2))

    assert load
    assert (load.batch_size, load.concurrency) == (8, 2)
    np.testing.assert_array_equal(load.requests, [[10, 90], [100, 200]])
    assert load.components == {"client_send_ms": 0.001, "client_recv_ms": 0.007}
    assert load.overhead == 0.125


def counted(requests: int, executions: int = 0, **spent_ms: int) -> Statistics:
    """Triton's statistics of a model that had so many requests of four samples."""
    parts = ("queue", "compute_input", "compute_infer", "compute_output")
    spent = {name: spent_ms.get(name, 0) * 10**6 for name in parts}
    return {
        "inference_count": 4 * requests,
        "execution_count": executions,
        "inference_stats": {"success": {"count": requests, "ns": 0}}
        | {name: {"count": requests, "ns": ns} for name, ns in spent.items()},
    }


ENDS = np.arange(1, 22) * 20 * 10**6  # 21 requests of 20 ms
LOAD = Window(
    np.stack([ENDS - 20 * 10**6, ENDS], axis=1),
    4,
    1,
    components={"client_send_ms": 1.0, "client_recv_ms": 2.0},
)


def test_the_queue_of_an_ensemble_is_that_of_its_parts() -> None:
    before = {"all": counted(9), "lookup": counted(9, 9, queue=50), "graph": counted(9, 9)}
    after = {
        "all": counted(30),
        "lookup": counted(30, 30, queue=50 + 63, compute_infer=21),
        "graph": counted(30, 9 + 7, queue=42, compute_input=21, compute_infer=105),
    }

    found = _served(LOAD, before, after)

    assert found.components == {
        "client_send_ms": 1.0,
        "network_server_send_recv_ms": 20 - 5 - 1 - 6 - 3,
        "server_queue_ms": 3.0 + 2.0,
        "server_compute_input_ms": 1.0,
        "server_compute_infer_ms": 1.0 + 5.0,
        "server_compute_output_ms": 0.0,
        "client_recv_ms": 2.0,
    }
    assert (found.counted, found.executed_batch) == (21, 84 / 7)


def test_what_is_left_for_the_network_may_be_negative() -> None:
    found = _served(LOAD, {"one": counted(0)}, {"one": counted(21, 21, compute_infer=21 * 20)})

    assert found.components["network_server_send_recv_ms"] == -3
    assert (found.counted, found.executed_batch) == (21, 4)


def test_a_part_without_statistics_leaves_the_components_empty() -> None:
    before = {"all": counted(0), "lookup": counted(0), "graph": counted(0)}
    after = {"all": counted(21), "lookup": counted(0), "graph": counted(21, 21, compute_infer=99)}

    found = _served(LOAD, before, after)

    assert found.components == {}
    row = measure_row([found], 20, 0.05, 2, cut=True)
    assert row.server_queue_ms is row.network_server_send_recv_ms is None
    assert row.reason.endswith("a part of the ensemble has no statistics, so no components")


def test_the_components_are_columns_of_a_row_in_their_order() -> None:
    columns = [name for name in TableRow.model_fields if name in LATENCY_COMPONENTS]

    assert columns == list(LATENCY_COMPONENTS)
