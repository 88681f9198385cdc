"""The docker and remote server kinds against a real Docker engine, with an image of this machine's
Python and the wheel's Triton (see `engine`). NVIDIA's images and GPUs are not tested here.
"""

import json
import os
import re
import signal
import socket
import subprocess
from dataclasses import replace
from pathlib import Path
from urllib.request import urlopen

import numpy as np
import pytest

from helpers.errors import ServerError
from helpers.machine import gpu
from helpers.measure import analyzer
from helpers.measure.analyzer import LoadPoint
from helpers.store.paths import OUTPUTS_VARIABLE
from helpers.triton import containers, docker, remote
from helpers.triton.server import Server
from tests.conftest import abandoned, free_ports, wait_for
from tests.triton import engine as engines
from tests.triton.conftest import config as experiment
from tests.triton.conftest import holding

pytestmark = [pytest.mark.slow, pytest.mark.thorough]
IDS = {"ids": np.arange(6, dtype=np.int64).reshape(3, 2)}


@pytest.fixture(scope="module")
def engine():
    with engines.engine() as found:
        yield found


@pytest.fixture(scope="module")
def image(engine):
    return engines.make_image(engine, "numpy", "onnxruntime", "flatbuffers", "protobuf")


@pytest.fixture(autouse=True)
def nothing_stays(engine, image, tmp_path, monkeypatch):
    """Lead the docker command to the engine; after a test no container or shared memory is left."""
    monkeypatch.setenv("DOCKER_HOST", engine.host)
    monkeypatch.setenv(OUTPUTS_VARIABLE, str(tmp_path / "outputs"))
    (tmp_path / "outputs").mkdir()
    before = abandoned()
    yield
    wait_for(lambda: not engine.containers())
    wait_for(lambda: abandoned() <= before)


def config(image, stage="deploy", device="cpu", **fields):
    return experiment(stage, device, fields, image=image, backend="adapter")


def doubled(server):
    return bool((server.infer("doubles", IDS)["doubled"] == 2 * IDS["ids"]).all())


def load(server, times=1):
    """Load the server for a moment, or more; return how many requests there were."""
    regions = analyzer.shared_memory_patterns(["ids"], ["doubled"])
    with analyzer.input_data(IDS) as data:
        point = LoadPoint("doubles", data, regions, batch_size=2, interval_ms=400)
        return sum(len(analyzer.run(point, server).requests) for _ in range(times))


def test_a_server_answers_at_its_containers_own_address(engine, image, doubles, tmp_path):
    with docker.serve(doubles, config=config(image), log=tmp_path / "log") as server:
        (name,) = engine.containers()
        address = engine.docker("inspect", "--format={{.NetworkSettings.IPAddress}}", name)
        assert (server.url, server.metrics_url) == (f"{address}:8000", f"{address}:8002")
        assert doubled(server)
        counted = 'nv_inference_count{model="doubles",version="1"} 3'
        assert wait_for(lambda: counted in server.metrics())  # it answers, then counts
        (process,) = server.processes
        assert f"NSpid:\t{process}\t1" in Path(f"/proc/{process}/status").read_text()
        ports = engine.docker("port", name).splitlines()
        assert [line.partition(" -> ")[2].rpartition(":")[0] for line in ports] == ["127.0.0.1"] * 2
    assert not server.is_live()
    assert server.end() == "it ended (exit code 0)"
    assert "failed" not in (tmp_path / "log").read_text()


def test_a_container_answers_over_grpc_as_over_http(image, engine, doubles, tmp_path):
    chosen = config(image, protocol="grpc")
    with docker.serve(doubles, config=chosen, log=tmp_path / "log") as server:
        assert server.inference_url == server.grpc_address != server.url
        assert doubled(server)
        assert doubled(replace(server, grpc_address=""))
        ports = engine.docker("port", *engine.containers()).splitlines()
        assert [line.partition(" -> ")[2].rpartition(":")[0] for line in ports] == ["127.0.0.1"] * 3


@pytest.mark.parametrize("network", ["none", "host"])
def test_a_container_without_an_address_is_not_taken_for_this_host(image, tmp_path, network):
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        containers.run(
            config(image), ["sleep", "9"], [], tmp_path / "log", [f"--network={network}"]
        ) as container,
    ):
        wait_for(container.process)
        assert container.address(listening.getsockname()[1]) == ""


def test_it_is_measured_offline_without_shared_memory_or_a_batcher(image, doubles, tmp_path):
    """With it, and online, the target below is measured that goes through all stages."""
    chosen, log = config(image, "perf_offline", shared_memory="none"), tmp_path / "log"
    with docker.serve(doubles, config=chosen, log=log, scenario="offline") as server:
        assert load(server) > 3
        with urlopen(f"http://{server.url}/v2/models/doubles/config") as answer:
            assert "dynamic_batching" not in json.load(answer)


def test_what_a_container_writes_belongs_to_the_user(image, tmp_path, monkeypatch):
    folder = tmp_path / "build"
    folder.mkdir()
    folder.chmod(0o777)
    (folder / "script").write_text("import sys\nopen(sys.argv[1], 'w').write('made')\n")
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    monkeypatch.setattr(os, "getgid", lambda: 54321)
    docker.run_in_image(config(image), image, folder, ["python3", "script", "made"])
    status = (folder / "made").stat()
    assert (status.st_uid, status.st_gid) == (12345, 54321)


@pytest.mark.skipif(gpu.has_driver(), reason="this machine may give a container its GPU")
@pytest.mark.parametrize("turn", range(3))
def test_the_engines_own_words_are_not_lost(image, doubles, tmp_path, turn):
    """The container is "removing" before the client prints why it could not start."""
    chosen, log = config(image, device="gpu"), tmp_path / "log"
    with (
        pytest.raises(ServerError, match="docker: Error response from daemon:") as raised,
        docker.serve(doubles, config=chosen, log=log),
    ):
        pass
    assert re.search("gpu|rlimit", str(raised.value))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("command", ["kill", "stop --time=1", "rm --force"])
def test_a_container_that_ends_while_it_is_measured(engine, image, doubles, tmp_path, command):
    with docker.serve(doubles, config=config(image), log=tmp_path / "log") as server:
        script = f"sleep 0.5; exec docker {command} {engine.containers()[0]}"
        with (
            subprocess.Popen(["sh", "-c", script], stdout=subprocess.DEVNULL),
            pytest.raises(ServerError, match="Triton ended during the measurement: "),
        ):
            load(server, times=20)


def test_a_paused_container_is_not_alive(engine, image, doubles, tmp_path):
    with docker.serve(doubles, config=config(image), log=tmp_path / "log") as server:
        (name,) = engine.containers()
        engine.docker("pause", name)
        assert server.end() == "its container is paused"
        engine.docker("unpause", name)
        assert doubled(server)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_owner_that_is_ended_takes_its_container_along(engine, image, doubles, tmp_path, number):
    with holding(tmp_path, doubles, image=image, backend="adapter") as holder:
        assert len(engine.containers()) == 1
        holder.send_signal(number)
        holder.wait(20)
    wait_for(lambda: not engine.containers())


def test_an_engine_that_is_killed_is_one_line_and_the_next_run_cleans_up(
    engine, image, doubles, tmp_path
):
    if engine.daemon is None:
        pytest.skip("this engine is not ours to kill")
    with docker.serve(doubles, config=config(image), log=tmp_path / "log") as server:
        engine.daemon.kill()
        engine.daemon.wait()
        wait_for(server.end)
        with pytest.raises(ServerError) as raised:
            load(server)
    words = r"Triton ended during the measurement: it failed \(exit code.*"
    assert re.fullmatch(words, str(raised.value))  # one line
    engine.start()
    with docker.serve(doubles, config=config(image), log=tmp_path / "log") as server:
        assert doubled(server)


def test_a_remote_server_in_a_container_is_no_stranger(image, engine, doubles, tmp_path):
    """A published port belongs to the engine's proxy; what computes is behind it."""
    (port,) = free_ports(1)
    command = docker.command_line((24, 10))
    options = [f"--publish=127.0.0.1:{port}:8000", "--shm-size=1g"]
    mount = containers.Mount(doubles, "/models")
    with containers.run(config(image), command, [mount], tmp_path / "log", options) as container:
        started = Server(f"127.0.0.1:{port}", "", tmp_path / "log", container.end)
        started.wait_until_ready(60)
        found = remote.connect(f"127.0.0.1:{port}", tmp_path / "remote.log")
        assert set(container.process()) < set(found.processes)


def test_a_docker_target_goes_through_all_stages(image, fresh, monkeypatch):
    monkeypatch.setenv(OUTPUTS_VARIABLE, str(fresh.root / "outputs"))
    server = f"{{kind: docker, image: {image}, backend: adapter}}"
    text = fresh.params.read_text().replace("device: cpu", f"device: cpu\nserver: {server}")
    text = text.replace("[1, 4]", "[4]").replace("rates: [0.5]", "rates: []")
    fresh.params.write_text(text)
    answer = fresh.run("run", "params/dummy.yaml", "--experiment", "onnx-fp32")
    assert answer.code == 0, answer.output
    assert len(answer.executed()) == 7
    rows = fresh.rows("onnx-fp32", "perf_offline")
    assert all(row.relative_throughput for row in rows)
