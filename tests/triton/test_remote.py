"""The remote server kind: models brought to a Triton that runs already, and taken away again."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from socket import AF_INET, AF_INET6, socket
from threading import Thread
from typing import Any

import numpy as np
import pytest

from helpers.config.loading import resolve
from helpers.config.schema import StageConfig as Config
from helpers.errors import ServerError, WorkspaceError
from helpers.machine import preflight
from helpers.measure import background, offline, sweep
from helpers.measure.rows import Window
from helpers.triton import embedded, owner, remote
from helpers.triton.server import Server
from tests.conftest import free_ports, wait_for


def config(stage: str = "deploy", fields: dict[str, Any] | None = None, **server: str) -> Config:
    full = {
        "export_format": "onnx",
        "export_precision": "fp32",
        "format": "onnx",
        "precision": "fp32",
        "max_batch_size": 4,
    }
    return resolve(
        "resnet50",
        stage,
        gpu="Test",
        server={"kind": "remote"} | server,
        models={"resnet50": {"experiments": {"mine": full | (fields or {})}}},
    )


@contextmanager
def listening(host: str) -> Iterator[tuple[str, list[str]]]:
    """Start a server that lives and says of every model but `resnet50` that it is not ready; yield
    its address and what it was asked.
    """
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            ready = self.path in ("/v2/health/live", "/v2/models/resnet50/ready")
            self.send_response(200 if ready else 400)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            asked.append(self.path)
            body = json.dumps({"error": "it cannot be loaded"}).encode()
            self.send_response(400 if self.path.endswith("/load") else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    class Listener(HTTPServer):
        address_family = AF_INET6 if ":" in host else AF_INET

    server = Listener((host, 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"{host}:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def stand_in() -> Iterator[tuple[str, list[str]]]:
    with listening("127.0.0.1") as started:
        yield started


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    (folder / "resnet50/configs").mkdir(parents=True)
    (folder / "resnet50/config.pbtxt").write_text("online")
    (folder / "resnet50/configs/offline.pbtxt").write_text("offline")
    (folder / "requirements.txt").write_text("")
    (tmp_path / "served").mkdir()
    return folder


def refused(repository: Path, chosen: Config) -> str:
    """Try to serve; give the error, which must be one line."""
    log = repository.parent / "log"
    with (
        pytest.raises((ServerError, WorkspaceError)) as raised,
        remote.serve(repository, config=chosen, log=log),
    ):
        raise AssertionError("it serves")
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize(
    "url",
    ["", "triton", "127.0.0.1:http", "https://a/b:8000", ":8000", "::1", "[::1]"],
)
def test_an_address_is_host_and_port(url: str) -> None:
    words = (
        f"server.url '{url}' is invalid. Set it to host:port of Triton's HTTP endpoint, such as "
        "127.0.0.1:8000."
    )
    assert preflight.why_unavailable(config("convert", url=url)) == words


def test_an_address_may_be_a_link() -> None:
    assert remote.address("http://triton.example:8000/") == ("triton.example", 8000)
    assert remote.address("127.0.0.1:9000") == ("127.0.0.1", 9000)


@pytest.mark.parametrize("form", ["http://[{}]:{}", "http://[{}]:{}/", "[{}]:{}", "{}:{}"])
def test_an_ipv6_address_may_have_brackets(form: str, repository: Path, tmp_path: Path) -> None:
    with listening("::1") as (url, asked):
        host, _, port = url.rpartition(":")
        chosen = config(url=form.format(host, port))
        with remote.serve(repository, config=chosen, log=tmp_path / "log") as server:
            assert server.url == f"[::1]:{port}"  # the only form that perf_analyzer takes
            assert server.metrics_url == f"[::1]:{int(port) + 2}"
            assert (server.is_local, server.processes) == (True, (os.getpid(),))
            assert server.is_alive()
        assert "/v2/models/resnet50/ready" in asked


def test_metrics_are_those_of_the_server_that_was_named(
    stand_in: tuple[str, list[str]], repository: Path
) -> None:
    """Another Triton of the host may have the port 8002."""
    url, _ = stand_in
    host, _, port = url.rpartition(":")
    assert remote.connect(url, Path()).metrics_url == f"{host}:{int(port) + 2}"
    assert remote.connect(url, Path(), "metrics.example:9").metrics_url == "metrics.example:9"
    assert refused(repository, config(url=url, metrics_url="example")) == (
        "server.metrics_url 'example' is invalid. Set it to host:port of Triton's metrics, such as "
        "127.0.0.1:8002."
    )


def test_nobody_answers(repository: Path) -> None:
    (port,) = free_ports(1)
    assert refused(repository, config(url=f"127.0.0.1:{port}")) == (
        f"No Triton responds at 127.0.0.1:{port}. Start it, or change server.url."
    )


def test_without_its_folder_the_model_must_be_there(
    stand_in: tuple[str, list[str]], repository: Path, tmp_path: Path
) -> None:
    url, asked = stand_in
    with remote.serve(repository, config=config(url=url), log=tmp_path / "log") as server:
        assert server.is_local
        assert server.is_alive()
        assert server.processes == (os.getpid(),)
    assert {path.rpartition("/")[2] for path in asked} == {"live", "ready"}  # nothing is changed
    assert (tmp_path / "log").read_text() == f"the log of {url} is on its own machine\n"
    assert preflight.why_unavailable(config("convert", url=url)) == ""
    other = config(url=url).model_copy(update={"model": "other"})
    assert refused(repository, other) == (
        f"The model other is not ready on {url}. Load it there, or set "
        "server.repository to the server's folder on this machine."
    )


def test_a_model_that_cannot_be_loaded_is_taken_away_again(
    stand_in: tuple[str, list[str]], repository: Path, tmp_path: Path
) -> None:
    url, asked = stand_in
    chosen = config(url=url, repository=str(tmp_path / "served"))
    assert refused(repository, chosen) == ("Triton rejected the request: it cannot be loaded")
    assert list((tmp_path / "served").iterdir()) == []
    assert asked[-1] == "/v2/repository/models/resnet50/unload"


def test_a_folder_that_is_somebody_elses_is_left_alone(
    stand_in: tuple[str, list[str]], repository: Path, tmp_path: Path
) -> None:
    url, asked = stand_in
    taken = tmp_path / "served/resnet50"
    taken.mkdir()
    chosen = config(url=url, repository=str(tmp_path / "served"))
    words = f"{taken} already exists. Remove it, or change server.repository."
    assert refused(repository, chosen) == words
    (taken / remote.MARK).write_text(owner.token())  # another experiment of a living run
    assert refused(repository, chosen) == words
    assert taken.exists()
    assert not [path for path in asked if path.startswith("/v2/repository")]
    process = owner.token().rpartition(".")[0]
    (taken / remote.MARK).write_text(f"{process}.1")  # of a run that has ended
    assert refused(repository, chosen).endswith("it cannot be loaded")
    assert not taken.exists()


def test_a_folder_that_is_not_there(
    stand_in: tuple[str, list[str]], repository: Path, tmp_path: Path
) -> None:
    chosen = config(url=stand_in[0], repository=str(tmp_path / "nowhere"))
    assert refused(repository, chosen) == (
        f"server.repository: the folder {tmp_path}/nowhere does not exist"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("host", "local"), [("localhost", True), ("127.0.0.1", True), ("127.0.0.2", False)]
)
def test_memory_is_shared_with_this_host_only(host: str, local: bool) -> None:
    """The third is this host too, but nothing in the address says so."""
    with listening(host) as (url, _):
        assert remote.connect(url, Path()).is_local is local


@pytest.mark.parametrize(
    ("local", "asked", "sent", "reason"),
    [
        (True, "system", "system", ""),
        (False, "system", "none", offline.NOT_SHARED),
        (False, "none", "none", ""),
    ],
)
def test_a_row_says_that_its_inputs_went_over_http(
    local: bool, asked: str, sent: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The point that is measured is looked at; measuring itself is tested elsewhere."""
    points = []

    def measured_runs(*arguments: Any) -> None:
        *_, point, runs = arguments
        points.append(point)
        ends = np.arange(1, 101) * 10**7
        runs.others = [(0.0, 1.0)]
        runs.served = 3 * [Window(np.stack([ends - 10**7, ends], axis=1), 1, 1)]

    samples = {"INPUT__0": np.zeros((1, 3), dtype=np.float32)}
    monkeypatch.setattr(sweep, "distinct_samples", lambda config: samples)
    monkeypatch.setattr(offline, "load_in_process", lambda config: None)
    monkeypatch.setattr(offline, "run_rounds", measured_runs)
    monkeypatch.setattr(background, "machine_speed", lambda: 50.0)
    monkeypatch.setattr(background, "wait_until_quiet", lambda *_: 0.0)
    chosen = config("perf_offline", {"shared_memory": asked})
    server = Server("127.0.0.1:1", "127.0.0.1:1", Path("log"), is_local=local)
    measured = offline.measure_offline(chosen, server)
    assert [each.shared_memory for each in points] == [sent]
    assert [row.reason for row in measured.rows] == [reason]


@pytest.fixture
def silent() -> Iterator[str]:
    """A port that lets nobody in and refuses nobody, like a host that drops packets: the queue of
    connections to accept is full.
    """
    with socket() as listening, ExitStack() as waiting:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        for _ in range(4):
            each = waiting.enter_context(socket())
            each.setblocking(False)
            each.connect_ex(listening.getsockname())
        yield f"127.0.0.1:{listening.getsockname()[1]}"


@pytest.mark.slow
def test_a_host_that_drops_packets_is_asked_once_and_not_for_long(silent: str) -> None:
    url = silent
    started = time.monotonic()
    found = {
        preflight.why_unavailable(config("convert", {"threads": n}, url=url)) for n in range(1, 6)
    }
    assert time.monotonic() - started < 2 * remote.CONNECT_SECONDS
    assert found == {f"No Triton responds at {url}. Start it, or change server.url."}


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_left")
def test_models_are_brought_loaded_asked_unloaded_and_removed(
    doubles: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {path: path.read_bytes() for path in doubles.rglob("*") if path.is_file()}
    served = tmp_path / "served"
    served.mkdir()
    flags = ["--model-control-mode=explicit", *embedded.COMMON_FLAGS[1:]]
    monkeypatch.setattr(embedded, "COMMON_FLAGS", flags)  # a server that somebody else started
    with embedded.serve(served, log=tmp_path / "log") as running:
        chosen = config(url=running.url, repository=str(served))
        chosen = chosen.model_copy(update={"model": "doubles"})
        for scenario in ("online", "offline"):
            with remote.serve(
                doubles, config=chosen, log=tmp_path / "remote", scenario=scenario
            ) as server:
                ids = np.ones((3, 2), dtype=np.int64)
                assert server.infer("doubles", {"ids": ids})["doubled"].tolist() == [[2, 2]] * 3
                text = (served / "doubles/config.pbtxt").read_text()
                assert ("dynamic_batching" in text) == (scenario == "online")
            wait_for(lambda: not running.is_ready("doubles"), 10)
            assert list(served.iterdir()) == []
    assert {path: path.read_bytes() for path in before} == before
