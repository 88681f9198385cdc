"""What perf_analyzer leaves is read as the columns of a row."""

from pathlib import Path

import numpy as np

from helpers.perf.analyzer import LoadPoint, _read
from helpers.results import LATENCY_COMPONENTS, TableRow

HEADER = (  # of perf_analyzer's CSV
    "Concurrency,Inferences/Second,Client Send,Network+Server Send/Recv,Server Queue,"
    "Server Compute Input,Server Compute Infer,Server Compute Output,Client Recv,p50 latency"
)


def test_requests_and_components_of_latency_are_read_in_the_units_of_a_row(tmp_path: Path) -> None:
    (tmp_path / "out.csv").write_text(f"{HEADER}\n1,10,1,2,3,4,5,6,7,28\n")
    times = (
        '{"timestamp":100,"response_timestamps":[200]},{"timestamp":10,"response_timestamps":[90]}'
    )
    (tmp_path / "out.json").write_text(f'{{"requests":[{times}]}}')

    load = _read(tmp_path, LoadPoint("m", tmp_path, [], batch_size=8, concurrency=2))

    assert load
    assert (load.batch_size, load.concurrency) == (8, 2)
    np.testing.assert_array_equal(load.requests, [[10, 90], [100, 200]])
    assert load.components == {
        "client_send_ms": 0.001,
        "network_server_send_recv_ms": 0.002,
        "server_queue_ms": 0.003,
        "server_compute_input_ms": 0.004,
        "server_compute_infer_ms": 0.005,
        "server_compute_output_ms": 0.006,
        "client_recv_ms": 0.007,
    }


def test_the_components_are_columns_of_a_row_in_their_order() -> None:
    columns = [name for name in TableRow.model_fields if name in LATENCY_COMPONENTS]

    assert columns == list(LATENCY_COMPONENTS)
