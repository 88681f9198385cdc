"""The remote server kind: models brought to a Triton that runs already, and taken away again."""

import os
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from socket import AF_INET, AF_INET6
from threading import Thread

import numpy as np
import pytest

from helpers.errors import ServerError
from helpers.machine import preflight
from helpers.measure import offline, sweep
from helpers.results import Measurement, Row
from helpers.triton import embedded, owner, remote
from helpers.triton.server import Server
from tests.conftest import free_ports, wait_for
from tests.triton.conftest import config as experiment
from tests.triton.conftest import refused as refused_by

config = partial(experiment, kind="remote")
refused = partial(refused_by, remote.serve)
ROW = Row(batch_size=1, concurrency=1, quality="stable")
NOBODY = "No Triton responds at {}. Start it, or change server.url."


@contextmanager
def listening(host):
    """Start a server that lives and says of every model but `resnet50` that it is not ready; yield
    its address and what it was asked.
    """
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def answer(self, status, content=b""):
            asked.append(self.path)
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def do_GET(self):
            ready = self.path in ("/v2/health/live", "/v2/models/resnet50/ready")
            self.answer(200 if ready else 400)

        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            status = 400 if self.path.endswith("/load") else 200
            self.answer(status, b'{"error": "it cannot be loaded"}')

        def log_message(self, *_):
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
def stand_in():
    with listening("127.0.0.1") as started:
        yield started


@pytest.fixture
def served(tmp_path):
    """The folder of a server's own repository."""
    (tmp_path / "served").mkdir()
    return tmp_path / "served"


@pytest.mark.parametrize(
    "url", ["", "triton", "127.0.0.1:http", "https://a/b:8000", ":8000", "::1", "[::1]"]
)
def test_an_address_is_host_and_port(url):
    assert preflight.why_unavailable(config("convert", url=url)) == (
        f"server.url '{url}' is invalid. Set it to host:port of Triton's HTTP endpoint, such as "
        "127.0.0.1:8000."
    )


@pytest.mark.parametrize("form", ["http://[{}]:{}/", "[{}]:{}", "{}:{}"])
def test_an_ipv6_address_may_have_brackets(form, repository, tmp_path):
    with listening("::1") as (url, asked):
        host, _, port = url.rpartition(":")
        chosen = config(url=form.format(host, port))
        with remote.serve(repository, config=chosen, log=tmp_path / "log") as server:
            assert server.url == f"[::1]:{port}"  # the only form that perf_analyzer takes
            assert server.metrics_url == f"[::1]:{int(port) + 2}"
            assert (server.is_local, server.processes) == (True, (os.getpid(),))
            assert server.is_alive()
        assert "/v2/models/resnet50/ready" in asked


def test_metrics_are_those_of_the_server_that_was_named(stand_in):
    """Another Triton of the host may have the port 8002."""
    url, _ = stand_in
    assert remote.connect(url, Path(), "metrics.example:9").metrics_url == "metrics.example:9"
    words = "^server.metrics_url 'example' is invalid. Set it to host:port of Triton's metrics, "
    with pytest.raises(ServerError, match=words):
        remote.connect(url, Path(), "example")


def test_nobody_answers(repository):
    url = f"127.0.0.1:{free_ports(1)[0]}"
    assert refused(repository, config(url=url)) == NOBODY.format(url)


def test_without_its_folder_the_model_must_be_there(stand_in, repository, tmp_path):
    url, asked = stand_in
    with remote.serve(repository, config=config(url=url), log=tmp_path / "log"):
        pass
    assert {path.rpartition("/")[2] for path in asked} == {"live", "ready"}  # nothing is changed
    assert (tmp_path / "log").read_text() == f"the log of {url} is on its own machine\n"
    assert preflight.why_unavailable(config("convert", url=url)) == ""
    other = config(url=url).model_copy(update={"model": "other"})
    assert refused(repository, other) == (
        f"The model other is not ready on {url}. Load it there, or set "
        "server.repository to the server's folder on this machine."
    )
    chosen = config(url=url, repository=str(tmp_path / "nowhere"))
    words = f"server.repository: the folder {tmp_path}/nowhere does not exist"
    assert refused(repository, chosen) == words


def test_a_model_that_cannot_be_loaded_is_taken_away_again(stand_in, repository, served):
    url, asked = stand_in
    chosen = config(url=url, repository=str(served))
    assert refused(repository, chosen) == ("Triton rejected the request: it cannot be loaded")
    assert list(served.iterdir()) == []
    assert "/v2/repository/models/resnet50/unload" in asked


def test_a_folder_that_is_somebody_elses_is_left_alone(stand_in, repository, served):
    url, asked = stand_in
    taken = served / "resnet50"
    taken.mkdir()
    chosen = config(url=url, repository=str(served))
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


@pytest.mark.parametrize(
    ("host", "local"), [("localhost", True), ("127.0.0.1", True), ("127.0.0.2", False)]
)
def test_memory_is_shared_with_this_host_only(host, local):
    """The third is this host too, but nothing in the address says so."""
    with listening(host) as (url, _):
        assert remote.connect(url, Path()).is_local is local


@pytest.mark.parametrize(
    ("local", "asked", "sent"),
    [(True, "system", "system"), (False, "system", "none"), (False, "none", "none")],
)
def test_a_row_says_that_its_inputs_went_over_http(local, asked, sent, monkeypatch):
    points = []

    def run(*given):
        points.extend(given[-1]([]))
        return Measurement(rows=(ROW,), distinct_rows=1, background_before=0.0)

    monkeypatch.setattr(sweep, "run", run)
    monkeypatch.setattr(sweep, "distinct_samples", lambda _: {"INPUT__0": np.zeros((1, 3), "f4")})
    monkeypatch.setattr(offline, "load_in_process", lambda config: None)
    chosen = config("perf_offline", fields={"shared_memory": asked})
    server = Server("127.0.0.1:1", "127.0.0.1:1", Path("log"), is_local=local)
    measured = offline.measure_offline(chosen, server)
    assert {point.fields["shared_memory"] for point in points} == {sent}
    assert [row.reason for row in measured.rows] == ["" if sent == asked else offline.NOT_SHARED]


def test_a_host_that_drops_packets_is_asked_once_and_not_for_long(monkeypatch):
    limits = []

    def drop(address, seconds):
        limits.append(seconds)
        raise TimeoutError

    monkeypatch.setattr(remote, "create_connection", drop)
    url = "127.0.0.1:9"
    found = {
        preflight.why_unavailable(config("convert", fields={"threads": n}, url=url))
        for n in range(1, 6)
    }
    assert found == {NOBODY.format(url)}
    assert limits == [remote.CONNECT_SECONDS]


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_left")
def test_models_are_brought_loaded_asked_unloaded_and_removed(
    doubles, served, tmp_path, monkeypatch
):
    before = {path: path.read_bytes() for path in doubles.rglob("*") if path.is_file()}
    flags = ["--model-control-mode=explicit", *embedded.COMMON_FLAGS[1:]]
    monkeypatch.setattr(embedded, "COMMON_FLAGS", flags)  # a server that somebody else started
    with embedded.serve(served, log=tmp_path / "log") as running:
        chosen = config(url=running.url, repository=str(served))
        chosen = chosen.model_copy(update={"model": "doubles"})
        for scenario in ("online", "offline"):
            serving = remote.serve(doubles, config=chosen, log=tmp_path / "log", scenario=scenario)
            with serving as server:
                ids = np.ones((3, 2), dtype=np.int64)
                assert server.infer("doubles", {"ids": ids})["doubled"].tolist() == [[2, 2]] * 3
                text = (served / "doubles/config.pbtxt").read_text()
                assert ("dynamic_batching" in text) == (scenario == "online")
            wait_for(lambda: not running.is_ready("doubles"))
            assert list(served.iterdir()) == []
    assert {path: path.read_bytes() for path in before} == before
