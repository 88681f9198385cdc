"""The docker and remote server kinds against a real Docker engine (see `engine`).

The image holds this machine's Python and the Triton of the wheel, so that models are served by the
package's adapter. What NVIDIA's images do beside that, and GPUs, are not tested here.
"""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.config.loading import resolve
from helpers.config.schema import DeployConfig
from helpers.errors import ServerError
from helpers.machine import gpu
from helpers.measure import analyzer
from helpers.measure.analyzer import LoadPoint
from helpers.store.paths import OUTPUTS_VARIABLE
from helpers.triton import containers, docker, remote
from helpers.triton.server import Server
from tests.conftest import ONNX, Project, abandoned, free_ports, interruptible, wait_for
from tests.triton import engine as engines
from tests.triton.conftest import SESSION, write_doubles
from tests.triton.engine import Engine

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.thorough]
IDS = {"ids": np.arange(6, dtype=np.int64).reshape(3, 2)}


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with engines.engine() as found:
        yield found


@pytest.fixture(scope="module")
def image(engine: Engine) -> str:
    return engines.make_image(engine, "numpy", "onnxruntime", "flatbuffers", "protobuf")


@pytest.fixture(autouse=True)
def nothing_stays(
    engine: Engine, image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Lead the docker command to the engine; after a test no container or shared memory is left."""
    monkeypatch.setenv("DOCKER_HOST", engine.host)
    monkeypatch.setenv(OUTPUTS_VARIABLE, str(tmp_path / "outputs"))
    (tmp_path / "outputs").mkdir()
    before = abandoned()
    yield
    wait_for(lambda: not engine.containers(), 20)
    wait_for(lambda: abandoned() <= before, 20)


def config(image: str, stage: str = "deploy", device: str = "cpu", **fields: Any) -> DeployConfig:
    found = resolve(
        "resnet50",
        stage,
        gpu="Test",
        device=device,
        server={"kind": "docker", "image": image, "backend": "adapter"},
        models={"resnet50": {"experiments": {"mine": ONNX | fields}}},
    )
    assert isinstance(found, DeployConfig)
    return found


def doubled(server: Server) -> bool:
    return bool((server.infer("doubles", IDS)["doubled"] == 2 * IDS["ids"]).all())


def load(server: Server) -> int:
    """Load the server for a moment; return how many requests there were."""
    regions = analyzer.shared_memory_patterns(["ids"], ["doubled"])
    with analyzer.input_data(IDS) as data:
        point = LoadPoint("doubles", data, regions, batch_size=2, interval_ms=400)
        return len(analyzer.run(point, server).requests)


def test_a_server_answers_at_its_containers_own_address(
    engine: Engine, image: str, doubles: Path, tmp_path: Path
) -> None:
    with docker.serve(doubles, config=config(image), log=tmp_path / "log") as server:
        (name,) = engine.containers()
        address = engine.docker("inspect", "--format={{.NetworkSettings.IPAddress}}", name)
        assert (server.url, server.metrics_url) == (f"{address}:8000", f"{address}:8002")
        assert doubled(server)
        counted = 'nv_inference_count{model="doubles",version="1"} 3'
        assert wait_for(lambda: counted in server.metrics(), 10)  # it answers, then counts
        (process,) = server.processes
        assert f"NSpid:\t{process}\t1" in Path(f"/proc/{process}/status").read_text()
        ports = engine.docker("port", name).splitlines()
        assert [line.partition(" -> ")[2].rpartition(":")[0] for line in ports] == ["127.0.0.1"] * 2
    assert not server.is_live()
    assert server.end() == "it ended (exit code 0)"
    assert "failed" not in (tmp_path / "log").read_text()


@pytest.mark.parametrize("network", ["none", "host"])
def test_a_container_without_an_address_is_not_taken_for_this_host(
    image: str, tmp_path: Path, network: str
) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        containers.run(
            config(image), ["sleep", "9"], [], tmp_path / "log", [f"--network={network}"]
        ) as container,
    ):
        wait_for(container.process, 20)
        assert container.address(listening.getsockname()[1]) == ""


def test_a_port_that_is_asked_for_is_published(image: str, doubles: Path, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with docker.serve(doubles, config=config(image), log=tmp_path / "log", port=port) as server:
        assert server.url == f"127.0.0.1:{port}"
        assert doubled(server)


def test_it_is_measured_without_shared_memory(image: str, doubles: Path, tmp_path: Path) -> None:
    """With it, and online, the target below is measured that goes through all stages."""
    chosen, log = config(image, "perf_offline", shared_memory="none"), tmp_path / "log"
    with docker.serve(doubles, config=chosen, log=log, scenario="offline") as server:
        assert load(server) > 3


def test_what_a_container_writes_belongs_to_the_user(
    image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "build"
    folder.mkdir()
    folder.chmod(0o777)
    (folder / "script").write_text("import sys\nopen(sys.argv[1], 'w').write('made')\n")
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    monkeypatch.setattr(os, "getgid", lambda: 54321)
    docker.run_in_image(config(image), image, folder, ["python3", "script", "made"])
    status = (folder / "made").stat()
    assert (status.st_uid, status.st_gid) == (12345, 54321)


def refused(chosen: DeployConfig, repository: Path, log: Path) -> str:
    with (
        pytest.raises(ServerError) as raised,
        docker.serve(repository, config=chosen, log=log),
    ):
        raise AssertionError("it serves")
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_an_image_that_is_missing(image: str, doubles: Path, tmp_path: Path) -> None:
    assert refused(config("not-here:1"), doubles, tmp_path / "log") == (
        "The image not-here:1 is not on this machine. Run: docker pull not-here:1"
    )


def test_a_model_that_does_not_load(image: str, tmp_path: Path) -> None:
    broken = SESSION.replace("return Session()", "raise OSError('no such weights')")
    repository = write_doubles(tmp_path / "broken", broken)
    said = refused(config(image), repository, tmp_path / "log")
    assert said.startswith("Triton ended while it started: it failed (exit code 1): E")
    assert "OSError: no such weights" in said


@pytest.mark.skipif(gpu.has_driver(), reason="this machine may give a container its GPU")
@pytest.mark.parametrize("turn", range(3))
def test_the_engines_own_words_are_not_lost(
    image: str, doubles: Path, tmp_path: Path, turn: int
) -> None:
    """The container is "removing" before the client prints why it could not start."""
    said = refused(config(image, device="gpu"), doubles, tmp_path / "log")
    assert "docker: Error response from daemon:" in said, said
    assert "gpu" in said or "rlimit" in said, said


def measure_to_the_end(server: Server) -> None:
    for _ in range(20):
        load(server)


@pytest.mark.parametrize("verb", ["kill", "stop", "rm"])
def test_a_container_that_ends_while_it_is_measured(
    engine: Engine, image: str, doubles: Path, tmp_path: Path, verb: str
) -> None:
    command = {"kill": ["kill"], "stop": ["stop", "--time=1"], "rm": ["rm", "--force"]}[verb]
    with docker.serve(doubles, config=config(image), log=tmp_path / "log") as server:
        (name,) = engine.containers()
        script = f"sleep 0.5; exec docker {' '.join(command)} {name}"
        with (
            subprocess.Popen(["sh", "-c", script], stdout=subprocess.DEVNULL),
            pytest.raises(ServerError, match="Triton ended during the measurement: "),
        ):
            measure_to_the_end(server)


def test_a_paused_container_is_not_alive(
    engine: Engine, image: str, doubles: Path, tmp_path: Path
) -> None:
    with docker.serve(doubles, config=config(image), log=tmp_path / "log") as server:
        (name,) = engine.containers()
        engine.docker("pause", name)
        assert server.end() == "its container is paused"
        engine.docker("unpause", name)
        assert doubled(server)


HOLD = """
import sys, time
from pathlib import Path
from tests.triton.test_engine import config
from helpers.triton import docker
folder = Path(sys.argv[1])
with docker.serve(Path(sys.argv[2]), config=config(sys.argv[3]), log=folder / "log"):
    (folder / "holding").touch()
    time.sleep(99)
"""


@pytest.fixture
def holder(image: str, doubles: Path, tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Another process that serves."""
    command = [sys.executable, "-c", HOLD, str(tmp_path), str(doubles), image]
    with (tmp_path / "stderr").open("w") as stderr:
        started = subprocess.Popen(command, stderr=stderr, preexec_fn=interruptible)
    wait_for(lambda: (tmp_path / "holding").exists() or started.poll() is not None, 30)
    assert started.poll() is None, (tmp_path / "stderr").read_text()
    yield started
    started.kill()
    started.wait()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_owner_that_is_ended_takes_its_container_along(
    engine: Engine, holder: "subprocess.Popen[bytes]", number: signal.Signals
) -> None:
    assert len(engine.containers()) == 1
    holder.send_signal(number)
    holder.wait(20)
    wait_for(lambda: not engine.containers(), 20)


def test_an_engine_that_is_killed_is_one_line_and_the_next_run_cleans_up(
    engine: Engine, image: str, doubles: Path, tmp_path: Path
) -> None:
    if engine.daemon is None:
        pytest.skip("this engine is not ours to kill")
    with docker.serve(doubles, config=config(image), log=tmp_path / "log") as server:
        engine.daemon.kill()
        engine.daemon.wait()
        wait_for(server.end, 20)
        with pytest.raises(ServerError) as raised:
            load(server)
    assert "\n" not in str(raised.value)
    assert str(raised.value).startswith("Triton ended during the measurement: it failed (exit code")
    engine.start()
    with docker.serve(doubles, config=config(image), log=tmp_path / "log") as server:
        assert doubled(server)


def test_a_remote_server_in_a_container_is_no_stranger(
    image: str, engine: Engine, doubles: Path, tmp_path: Path
) -> None:
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


def test_a_docker_target_goes_through_all_stages(
    image: str, fresh: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OUTPUTS_VARIABLE, str(fresh.root / "outputs"))
    server = f"{{kind: docker, image: {image}, backend: adapter}}"
    text = fresh.params.read_text().replace("device: cpu", f"device: cpu\nserver: {server}")
    text = text.replace("[1, 4]", "[4]").replace("rates: [0.5]", "rates: []")
    fresh.params.write_text(text)
    answer = fresh.run("run", "params/dummy.yaml", "--experiment", "onnx-fp32")
    assert answer.code == 0, answer.output
    stages = ["export", "convert", "deploy", "perf_offline", "perf_online"]
    assert answer.executed() == [f"dummy onnx-fp32 {stage}" for stage in stages] + ["dummy report"]
    rows = fresh.rows("onnx-fp32", "perf_offline")
    assert all(row.relative_throughput for row in rows)
