"""Requests over gRPC: the same answers as over HTTP, the same errors in a line, and its load."""

from dataclasses import replace

import numpy as np
import psutil
import pytest

from helpers.config import Server as Section
from helpers.config import resolve
from helpers.errors import ServerError
from helpers.measure import analyzer
from helpers.triton import embedded, remote
from tests.conftest import wait_for
from tests.triton.conftest import config, write_doubles

pytestmark = pytest.mark.slow
IDS = {"ids": np.arange(12, dtype=np.int64).reshape(6, 2)}


@pytest.fixture(scope="module")
def server(doubles, tmp_path_factory):
    log = tmp_path_factory.mktemp("grpc") / "log"
    with embedded.serve(doubles, log=log, is_grpc=True) as started:
        yield started


def listeners(server):
    """The addresses on which a server's processes listen."""
    (supervisor,) = server.processes
    families = psutil.Process(supervisor).children(recursive=True)
    found = [conn for child in families for conn in child.net_connections("tcp")]
    return {conn.laddr for conn in found if conn.status == psutil.CONN_LISTEN}


def test_answers_are_those_over_http_and_no_other_machine_reaches_the_port(server):
    over_http = replace(server, grpc_address="")
    assert (server.protocol, over_http.protocol) == ("grpc", "http")
    assert server.inference_url != over_http.inference_url == server.url

    for ask in (
        lambda one: one.infer("doubles", IDS),
        lambda one: one.infer_all("doubles", [IDS, {"ids": IDS["ids"][:1]}], clients=2),
        lambda one: one.with_client("doubles", lambda send: send(IDS)),
    ):
        (found,), (right,) = ask(server).values(), ask(over_http).values()
        assert (found.dtype, found.tolist()) == (right.dtype, right.tolist())

    found = listeners(server)
    assert {address.ip.removeprefix("::ffff:") for address in found} == {"127.0.0.1"}
    assert {int(url.rpartition(":")[2]) for url in (server.url, server.grpc_address)} <= {
        address.port for address in found
    }


def test_without_the_protocol_nobody_listens_for_it(doubles, tmp_path):
    with embedded.serve(doubles, log=tmp_path / "log") as server:
        assert server.infer("doubles", IDS)
        assert len(listeners(server)) == 2  # HTTP and metrics


def test_a_rejected_request_is_one_line_with_its_reason(server):
    with pytest.raises(ServerError, match="^Triton rejected the request: .*no such id") as raised:
        server.infer("doubles", {"ids": -IDS["ids"] - 1})
    assert "\n" not in str(raised.value)


def test_a_server_that_has_ended_is_told(doubles, tmp_path):
    with embedded.serve(doubles, log=tmp_path / "log", is_grpc=True) as server:
        assert server.infer("doubles", IDS)
        triton, *_ = psutil.Process(server.processes[0]).children()
        triton.kill()
        wait_for(server.end)
        with pytest.raises(ServerError, match="^no response from Triton at .* has ended: it was "):
            replace(server, ready=lambda: None).infer("doubles", IDS)


@pytest.mark.parametrize("memory", ["none", "system"])
def test_perf_analyzer_loads_it_over_grpc(server, memory):
    regions = analyzer.shared_memory_patterns(["ids"], ["doubled"])
    about = {"interval_ms": 300, "shared_memory": memory, "protocol": server.protocol}
    before = server.counters("nv_inference_request_success")

    with analyzer.input_data(IDS) as data:
        window = analyzer.run(analyzer.LoadPoint("doubles", data, regions, 2, **about), server)

    counted = server.counters("nv_inference_request_success")
    more = sum(counted.values()) - sum(before.values())
    assert 5 < len(window.requests) <= more


def test_a_remote_servers_port_is_the_next_one_unless_it_is_named(server, tmp_path):
    host, _, port = server.url.partition(":")
    unnamed = Section(kind="remote", url=server.url)
    assert remote.grpc_address(unnamed) == f"{host}:{int(port) + 1}"
    with pytest.raises(
        ServerError, match="^server.grpc_url 'here' is invalid. Set it to host:port"
    ):
        remote.grpc_address(unnamed.model_copy(update={"grpc_url": "here"}))

    about = {"kind": "remote", "url": server.url, "grpc_url": server.grpc_address}
    chosen = config(fields={"protocol": "grpc"}, **about).model_copy(update={"model": "doubles"})
    with remote.serve(tmp_path, config=chosen, log=tmp_path / "log") as far:
        assert far.infer("doubles", IDS)["doubled"].tolist() == (2 * IDS["ids"]).tolist()


def test_the_field_decides_the_stages_from_deploy_on():
    one, other = (
        resolve("resnet50", "deploy", overrides={"protocol": protocol})
        for protocol in ("http", "grpc")
    )
    assert [one.key(stage) == other.key(stage) for stage in ("export", "convert", "deploy")] == [
        *(True, True, False)
    ]


def test_a_request_above_grpcs_own_limit_passes(tmp_path):
    """gRPC's own default is 4 MiB for a message."""
    repository = write_doubles(tmp_path / "repository")
    path = repository / "doubles/config.pbtxt"
    path.write_text(path.read_text().replace("max_batch_size: 8", "max_batch_size: 2000000"))
    with embedded.serve(repository, log=tmp_path / "log", is_grpc=True) as server:
        large = np.ones((1_000_000, 2), np.int64)  # 16 MB
        assert server.infer("doubles", {"ids": large})["doubled"].sum() == 4_000_000
