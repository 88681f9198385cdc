"""The embedded Triton with a small model: loading, batching, counting, refusing, and its end."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partialmethod
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import create_connection, socket
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import psutil
import pytest

from helpers.errors import MeasurementError, ServerError
from helpers.measure import analyzer
from helpers.triton import embedded
from helpers.triton.server import Server, reserved_ports
from tests.conftest import free_ports, processes, wait_for
from tests.dummy import Points, weights
from tests.triton.conftest import SESSION, write_doubles
from tests.triton.test_client import answer_to_client

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(doubles, tmp_path_factory):
    log = tmp_path_factory.mktemp("server") / "log"
    with embedded.serve(doubles, log=log) as started:
        yield started


def ids(count, number=1):
    return np.full((count, 2), number, np.int64)


def ask_at_once(server, numbers):
    """Send a request with each number at the same time; return each one's answer or error."""
    barrier = threading.Barrier(len(numbers))

    def ask(number):
        barrier.wait()
        try:
            return server.infer("doubles", {"ids": ids(1, number)})["doubled"].tolist()
        except ServerError as error:
            return str(error)

    with ThreadPoolExecutor(len(numbers)) as threads:
        return list(threads.map(ask, numbers))


def counts_of(server, samples):
    """Triton's statistics with this number of samples: it counts them after it has answered."""

    def found():
        counts = server.statistics("doubles")
        return counts if counts["inference_count"] >= samples else {}

    counts = wait_for(found)
    assert counts["inference_count"] == samples
    return counts


def batches_of(sizes):
    """Requests of these sizes, with ids that count on from the first sample to the last."""
    numbers = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    return [{"ids": np.stack([each, each], axis=1)} for each in numbers]


@pytest.mark.parametrize("clients", [1, 4])
def test_answers_to_many_clients_come_back_in_the_order_of_the_samples(clients, server):
    before = server.statistics("doubles")
    sizes = [1 + number % 3 for number in range(40)]
    answers = server.infer_all("doubles", iter(batches_of(sizes)), clients)
    assert answers["doubled"][:, 0].tolist() == [2 * sample for sample in range(sum(sizes))]
    after = counts_of(server, before["inference_count"] + sum(sizes))
    executions = after["execution_count"] - before["execution_count"]
    assert executions == 40 if clients == 1 else executions < 40


def test_a_request_that_is_refused_names_its_samples_and_ends_the_others(server):
    def batches():
        for number in range(1000):
            asked.append(number)
            yield {"ids": ids(2, -1 if number == 3 else number)}

    asked = []
    with pytest.raises(ServerError, match=r"with samples 6 to 7: .* no such id"):
        server.infer_all("doubles", batches(), 4)
    assert len(asked) < 50


def test_a_sample_without_an_answer_is_one_line_with_its_number(server):
    """Triton passes on an output that has fewer rows than the request."""
    batches = [{"ids": ids(2, number)} for number in (1, 2, 10**6)]
    with pytest.raises(ServerError) as raised:
        server.infer_all("doubles", batches)
    assert str(raised.value) == (
        "sample 5 has no response: Triton sent 1 values of doubled for samples 4 to 5"
    )


def test_a_server_that_is_ready_answers_for_its_metrics_too(doubles, tmp_path, monkeypatch):
    """Triton listens for them a moment after its models are ready, which nobody may fall into."""
    at_once = partialmethod(Server.wait_until_ready, pause_seconds=0.0001)
    monkeypatch.setattr(Server, "wait_until_ready", at_once)
    with embedded.serve(doubles, log=tmp_path / "log") as server:
        assert "nv_inference_count" in server.metrics()


def test_metrics_and_statistics_count_the_same_inferences(server):
    before = server.statistics("doubles")["inference_count"]
    server.infer("doubles", {"ids": ids(4)})
    counts = counts_of(server, before + 4)
    counted = server.counters("nv_inference_count")
    assert counted == {"nv_inference_count": counts["inference_count"]}


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({"id": ids(1)}, "unexpected inference input 'id'"),
        ({"ids": ids(1)[:, :1]}, "unexpected shape for input 'ids'"),
        ({"ids": ids(1).astype(np.float64)}, "data-type"),
        ({"ids": ids(9)}, "batch-size must be <= 8"),
    ],
)
def test_a_wrong_request_is_one_line_and_the_server_goes_on(server, inputs, words):
    with pytest.raises(ServerError) as raised:
        server.infer("doubles", inputs)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)
    assert server.is_ready("doubles")


def test_it_listens_on_loopback_only(server):
    ports = {int(url.rpartition(":")[2]) for url in (server.url, server.metrics_url)}
    open_ports = [each.laddr for each in psutil.net_connections() if each.status == "LISTEN"]
    found = [address for address in open_ports if address.port in ports]
    assert sorted(found) == [("127.0.0.1", port) for port in sorted(ports)]


def test_a_model_that_does_not_load_is_one_line_with_the_servers_own_words(tmp_path):
    broken = SESSION.replace("return Session()", "raise OSError('no such weights')")
    repository = write_doubles(tmp_path / "broken", broken)
    words = r"^Triton ended while it started: it failed \(exit code 1\): E.*OSError: no such wei"
    with (
        pytest.raises(ServerError, match=words) as raised,
        embedded.serve(repository, log=tmp_path / "log"),
    ):
        pass
    assert "\n" not in str(raised.value)
    assert not processes(str(tmp_path))


def test_a_window_in_which_no_request_ends_is_made_longer(tmp_path):
    """A machine that is busy for a moment makes a request take longer than those before it."""
    slow = SESSION.replace("(ids,) =", "__import__('time').sleep(0.7); (ids,) =")
    repository = write_doubles(tmp_path / "slow", slow)
    with (
        embedded.serve(repository, log=tmp_path / "log", scenario="offline") as server,
        analyzer.input_data({"ids": ids(2)}) as data,
    ):
        point = analyzer.LoadPoint("doubles", data, [], interval_ms=200)
        requests = analyzer.run(point, server).requests
    assert len(requests) > 1
    assert ((requests[:, 1] - requests[:, 0]) / 1e9 > 0.7).all()


def regions_of(process):
    """The shared memory of the servers that a process started."""
    return {name for name in os.listdir("/dev/shm") if f".{process}." in name}


def test_a_slow_server_has_not_ended_and_how_one_ended_is_waited_for(monkeypatch):
    """One that ends refuses connections at once; its guard ends when all of its processes have."""
    answers, ends = iter([False, False, True]), iter(["", "", "it was killed"])
    monkeypatch.setattr("helpers.triton.server._answers", lambda _: next(answers, False))
    server = Server("", "", Path())
    assert [server.is_live(), server.is_live(10)] == [False, True]
    server = Server("", "", Path(), end=lambda: next(ends, "it was killed"))
    assert not server.is_live(10)
    assert server.end() == "it was killed"


def test_the_block_begins_while_the_server_starts_and_its_end_leaves_nothing(doubles, tmp_path):
    before = regions_of(os.getpid())
    with embedded.serve(doubles, log=tmp_path / "log") as started:
        assert not started.is_live()
        assert started.url == started.address  # waits
        assert started.is_live()
        assert regions_of(os.getpid()) > before
        pids = processes(f"--http-port={started.url.rpartition(':')[2]}")
        assert len(pids) == 2  # the server and its supervisor
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert regions_of(os.getpid()) == before


def test_a_repository_carried_away_is_served_without_this_package(finished, tmp_path):
    made = sorted((finished.target / "artifacts").glob("dummy-deploy-*"))
    repository = next(path for path in made if (path / "dummy/1/model.onnx").exists())
    shutil.copytree(repository, tmp_path / "away")
    with embedded.serve(tmp_path / "away", log=tmp_path / "log") as started:
        printed = answer_to_client(tmp_path / "away", started.url, tmp_path / "elsewhere")
    (data,) = (finished.root / "outputs/data").glob("dummy-dataset-*")
    name, values = printed.strip().split(" ", 1)
    assert name == "logits"
    found = np.array(values.strip("[]").split(), np.float32)
    np.testing.assert_allclose(found, Points(data).x[0] @ weights().T, rtol=1e-4, atol=1e-6)


def test_a_bad_request_fails_alone_and_the_server_goes_on(server):
    refused = "Triton rejected the request: IndexError: no such id"
    before = server.statistics("doubles")
    for _ in range(5):
        found = ask_at_once(server, [1, 2, -3, 4, 5, -6])
        assert found == [[[2, 2]], [[4, 4]], refused, [[8, 8]], [[10, 10]], refused]
    after = server.statistics("doubles")
    names = ("inference_count", "execution_count")
    samples, executions = (after[name] - before[name] for name in names)
    assert executions < samples  # there were batches
    assert server.is_alive()


def post(url, content):
    """Send what a web page of any origin may send; return the status."""
    headers = {"Content-Type": "text/plain", "Origin": "http://somewhere.example"}
    try:
        with urlopen(Request(f"http://{url}", content, headers)) as answer:
            return int(answer.status)
    except HTTPError as error:
        return error.code


def test_nobody_who_reaches_the_port_loads_or_unloads_a_model(server, tmp_path):
    mark = tmp_path / "executed"
    code = b64encode(f"open({str(mark)!r}, 'w')\nclass TritonPythonModel: pass\n".encode())
    evil = {"parameters": {"config": '{"backend": "python"}', "file:1/model.py": code.decode()}}
    for what, content in (("evil/load", evil), ("doubles/load", {}), ("doubles/unload", {})):
        url = f"{server.url}/v2/repository/models/{what}"
        assert post(url, json.dumps(content).encode()) >= 400
    assert server.infer("doubles", {"ids": ids(1)})
    assert not mark.exists()


def measure(server):
    """Load the server with perf_analyzer over shared memory; return how many requests it saw."""
    samples = {"ids": np.array([[number, 2] for number in range(3)])}
    regions = analyzer.shared_memory_patterns(["ids"], ["doubled"])
    with analyzer.input_data(samples) as data:
        load = {"interval_ms": 300, "shared_memory": "system"}
        point = analyzer.LoadPoint("doubles", data, regions, **load)
        return len(analyzer.run(point, server).requests)


def test_no_connection_can_take_the_port_that_a_server_is_about_to_open():
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())

    drawn = free_ports(500)

    assert len({*drawn}) == 500  # by chance alone five pairs would be the same
    assert not [port for port in drawn if first <= port <= last]


def test_a_reserved_port_is_drawn_by_nobody_else_and_the_server_can_listen():
    with reserved_ports(0) as (port,), socket() as other:
        with pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        with ThreadingHTTPServer(("127.0.0.1", port), BaseHTTPRequestHandler):
            create_connection(("127.0.0.1", port)).close()


ASK = """
import sys
from pathlib import Path
import numpy as np
from helpers.triton.server import Server
server = Server(*sys.argv[1:], Path())
assert server.is_live()
assert "nv_inference_count" in server.metrics()
assert server.counters("nv_inference_count")
print(server.infer("doubles", {"ids": np.array([[1, 2]])})["doubled"])
"""


def test_a_proxy_in_the_environment_changes_nothing(doubles, tmp_path, monkeypatch):
    (port,) = free_ports(1)  # nobody listens there
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{port}")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(embedded, "READY_SECONDS", 10)
    with embedded.serve(doubles, scenario="offline", log=tmp_path / "log") as server:
        # as Python may read the proxy when it imports, another process asks, too
        command = [sys.executable, "-c", ASK, server.url, server.metrics_url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        assert (done.stdout, done.stderr) == ("[[2 4]]\n", "")
        assert server.infer("doubles", {"ids": ids(1)})
        assert measure(server) > 10


@pytest.mark.usefixtures("nothing_left")
def test_no_character_of_a_path_reaches_a_shell(tmp_path, monkeypatch):
    folder = tmp_path / 'it\'s a "quoted" $(touch executed)`touch executed`;& größer€'
    (folder / "tmp").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(folder / "tmp"))
    monkeypatch.setattr(embedded, "READY_SECONDS", 10)
    repository = write_doubles(folder / "repository")
    with embedded.serve(repository, scenario="offline", log=folder / "log") as server:
        assert server.infer("doubles", {"ids": ids(1)})
        assert measure(server) > 10
    assert not [path for path in tmp_path.rglob("*") if path.name == "executed"]
    assert list((folder / "tmp").iterdir()) == []


def family(number):
    """The supervisor with this number, its Triton, and the Python backend's process of a model."""
    supervisor = psutil.Process(number)
    (triton,) = supervisor.children()
    (stub,) = triton.children()
    return supervisor, triton, stub


@pytest.mark.usefixtures("nothing_left")
def test_a_guard_that_is_killed_leaves_neither_a_stub_nor_its_memory(doubles, tmp_path):
    with embedded.serve(doubles, log=tmp_path / "log") as server:
        server.ready()
        supervisor, _, stub = family(server.processes[0])
        stub.suspend()  # it cannot clear up by itself
        supervisor.kill()
        wait_for(lambda: not server.is_alive())
        assert server.end() == (
            "it was killed by signal 9 (SIGKILL), by another process or because memory ran out"
        )
    assert stub.pid not in processes("/doubles/1/model.py")


OWNER = """
import sys, time
from pathlib import Path
from helpers.triton import embedded
with embedded.serve(Path(sys.argv[1]), log=Path(sys.argv[2])) as server:
    server.ready()
    print(*server.processes, flush=True)
    time.sleep(99)
"""


@pytest.mark.usefixtures("nothing_left")
def test_the_next_run_removes_what_a_run_left_whose_processes_were_all_killed(
    doubles, tmp_path, monkeypatch
):
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    command = [sys.executable, "-c", OWNER, str(doubles), str(tmp_path / "log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as started:
        supervisor, triton, stub = family(int(started.stdout.readline()))
        stub.suspend()
        supervisor.kill()
        wait_for(lambda: not triton.is_running())
        assert regions_of(started.pid)  # while their owner lives nobody removes them
        started.kill()
    with embedded.serve(doubles, log=tmp_path / "log") as server:
        server.ready()
        assert not stub.is_running() or stub.status() == psutil.STATUS_ZOMBIE
        assert regions_of(started.pid) == set()


@pytest.mark.parametrize("seconds", [0.0, 0.5])
def test_a_stub_that_is_killed_while_it_starts_is_noticed(seconds, tmp_path):
    """Triton itself notices it only if the stub was about to load the model."""
    slow = SESSION.replace("return Session()", "import time; time.sleep(99)")
    repository = write_doubles(tmp_path / "repository", slow)

    def stubs():
        return set(processes("python_backend_stub ", "/doubles/1/model.py", f".{os.getpid()}."))

    def kill():
        new = wait_for(lambda: stubs() - others)
        time.sleep(seconds)
        os.kill(min(new), signal.SIGKILL)

    others = stubs()
    killer = threading.Thread(target=kill)
    killer.start()
    with (
        pytest.raises(ServerError, match="Triton ended while it started: .") as raised,
        embedded.serve(repository, log=tmp_path / "log"),
    ):
        pass
    killer.join()
    assert "\n" not in str(raised.value)


def test_a_triton_that_aborts_is_told_with_its_signal_and_last_words(doubles, tmp_path):
    shape = {"name": "ids", "shape": [10**9, 3, 224, 224], "datatype": "INT64", "data": [1]}
    with embedded.serve(doubles, log=tmp_path / "log") as server:
        with suppress(OSError):
            post(f"{server.url}/v2/models/doubles/infer", json.dumps({"inputs": [shape]}).encode())
        wait_for(lambda: not server.is_alive())
        with pytest.raises(ServerError) as raised:
            server.infer("doubles", {"ids": ids(1)})
    said = str(raised.value)
    assert "which has ended: it was killed by signal 6 (SIGABRT): " in said
    assert ("bad_alloc" in said, "\n" in said) == (True, False)


def test_a_killed_perf_analyzer_leaves_no_shared_memory(doubles, tmp_path):
    """Its region of the output has no number in its name."""

    def regions():
        names = ("ids", "doubled")
        return [name for name in os.listdir("/dev/shm") if name.startswith(names)]

    def kill(url):
        wait_for(lambda: "doubled" in regions())
        for pid in processes("perf_analyzer", f"-u {url}"):
            os.kill(pid, signal.SIGKILL)  # its supervisor too

    with embedded.serve(doubles, scenario="offline", log=tmp_path / "log") as server:
        killer = threading.Thread(target=kill, args=(server.url,))
        killer.start()
        with pytest.raises(MeasurementError, match=r"perf_analyzer was killed by signal 9"):
            measure(server)
        killer.join()
        assert regions() == []


@pytest.mark.usefixtures("nothing_left")
def test_the_serve_command_says_why_its_server_ended(finished):
    command = ("serve", "params/dummy.yaml", "--model", "dummy", "--experiment", "onnx-fp32")
    with finished.start(*command) as started:
        port = re.search(r"http://[\d.]+:(\d+)", started.stdout.readline())[1]
        found = map(psutil.Process, processes(f"--http-port={port}"))
        (triton,) = [each.pid for each in found if "supervisor.py" not in str(each.cmdline())]
        os.kill(triton, signal.SIGABRT)
        (line,) = started.stdout.read().splitlines()
    assert started.returncode == 1
    assert "Triton ended: it was killed by signal 6 (SIGABRT): " in line
