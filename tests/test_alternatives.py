"""The comparison with other servers: who is refused, the order of turns, and the table."""

import base64
import json
import os
import subprocess
import sys
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import compare
import numpy as np
import pytest
from compare import Candidate, Refused, Tensors

from tests.conftest import ROOT

TENSORS = Tensors("twice", "x", "y")
SAMPLES = list(np.random.default_rng(0).standard_normal((8, 1, 3)).astype(np.float32))
RIGHT = 2 * np.concatenate(SAMPLES)
TOLERANCES = 1e-4, 1e-5


@contextmanager
def doubling(error=0.0, status=200):
    """A server of the protocol's JSON that doubles, and adds an error to each third value."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # headers and content in one packet

        def do_POST(self):
            assert self.path == "/v2/models/twice/infer"
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            (given,) = asked["inputs"]
            values = 2 * np.array(given["data"])
            values[2] += error
            output = {"name": "y", "shape": given["shape"], "datatype": given["datatype"]}
            content = json.dumps({"outputs": [output | {"data": values.tolist()}]}).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield Candidate("doubling", server.server_port, compare.numbers(TENSORS))
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def check(candidate):
    found = compare.answers(candidate, TENSORS, SAMPLES, clients=3)
    compare.require_right(candidate.name, found, RIGHT, TOLERANCES)


def test_a_server_is_compared_if_its_answers_are_right_within_the_bound():
    with doubling(error=1e-6) as server:
        check(server)
    said = r"^doubling answers otherwise: by 0.00.* The tolerances are 0.0001 and 1e-05$"
    with doubling(error=0.01) as server, pytest.raises(Refused, match=said):
        check(server)
    with pytest.raises(Refused, match=r"it answers \(7, 3\), not finite \(8, 3\)"):
        compare.require_right("it", RIGHT[1:], RIGHT, TOLERANCES)
    with doubling(status=500) as server, pytest.raises(Refused, match='HTTP 500: {"outputs"'):
        check(server)


def test_clients_are_counted_over_the_time_that_they_asked():
    with doubling() as server:
        assert compare.throughput(server, TENSORS, SAMPLES, clients=2, seconds=0.2) > 0


def test_without_a_server_each_batch_has_a_sample_of_each_client():
    asked = []

    compare.in_process(asked.append, SAMPLES, clients=3, seconds=0.1)

    assert {each.shape for each in asked} == {(3, 3)}
    np.testing.assert_array_equal(asked[7], np.concatenate([SAMPLES[6], SAMPLES[7], SAMPLES[0]]))


def test_servers_take_turns_in_changing_order_and_a_first_round_does_not_count():
    asked = []

    def measure(name, clients):
        asked.append(f"{name}{clients}")
        return float(len(asked))

    found = compare.in_turn("ABC", [1, 4], 2, measure)

    assert asked[:9] == ["C1", "B1", "A1", "A1", "B1", "C1", "C1", "B1", "A1"]
    assert asked[9:] == [each.replace("1", "4") for each in asked[:9]]
    assert found[1] == {"A": [4, 9], "B": [5, 8], "C": [6, 7]}


def test_the_table_has_medians_and_the_ratios_of_rounds_with_their_interval():
    ours, theirs = [10.0, 12.0, 11.0, 10.0, 30.0], [5.0, 5.0, 5.0, 5.0, 15.0]

    found = compare.table({4: {"this package": ours, "other": theirs}})

    *_, first, second = found.splitlines()
    assert first == "| 4 | this package | 11.0 |  |"
    assert second == "| 4 | other | 5.0 | 2.11 (1.91 to 2.34) |"


@pytest.mark.parametrize("encode", [compare.binary, compare.numbers, compare.base64])
def test_a_request_holds_the_sample_in_each_encoding(encode):
    body, headers = encode(TENSORS)(SAMPLES[0])

    size = int(headers.get("Inference-Header-Content-Length", len(body)))
    (given,) = json.loads(body[:size])["inputs"]
    if given["datatype"] == "BYTES":
        found = np.frombuffer(base64.b64decode(given["data"][0]), np.float32)
    elif size < len(body):
        found = np.frombuffer(body[size:], np.float32)
    else:
        found = np.array(given["data"], np.float32)
    np.testing.assert_array_equal(found, SAMPLES[0].ravel())


@pytest.mark.slow
@pytest.mark.skipif(
    not all((compare.environment(name) / "done").exists() for name in compare.WANTED),
    reason="MLServer's environment is not made (python .ci/alternatives/compare.py)",
)
@pytest.mark.usefixtures("nothing_left")
def test_all_servers_answer_alike_and_are_measured(project, tmp_path):
    script = str(ROOT / ".ci/alternatives/compare.py")
    few = ("--rounds", "3", "--seconds", "0.2", "--clients", "1", "--samples", "8")
    chosen = ("--params", "params/dummy.yaml", "--model", "dummy", *few)
    env = {**os.environ, "PYTHONPATH": project.path}
    done = subprocess.run(
        [sys.executable, script, *chosen],
        **{"cwd": project.root, "env": env, "capture_output": True, "text": True, "timeout": 600},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    servers = [line.split(" | ")[1] for line in done.stdout.splitlines() if line.startswith("| 1")]
    assert servers == [
        *("this package", "PyTriton", "MLServer, base64", "MLServer, numbers"),
        "ONNX Runtime, no server",
    ]
