"""The docker server kind against a stand-in for the docker command, whose servers are real
processes (`docker_stand_in.py`). `test_engine.py` has a real engine. NVIDIA's are not tested.
"""

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil
import pytest

from helpers.config.schema import artifact_folder
from helpers.errors import ServerError
from helpers.machine import checks, packages, preflight
from helpers.measure import background
from helpers.store.artifacts import Artifact, create_artifact
from helpers.store.paths import OUTPUTS_VARIABLE
from helpers.triton import containers, docker, owner, process, serving
from helpers.triton.server import Server
from tests.conftest import HERE, processes, wait_for
from tests.triton.conftest import config, holding
from tests.triton.conftest import refused as refused_by

IMAGE = "nvcr.io/nvidia/tritonserver:24.10-py3"
OLD = "nvcr.io/nvidia/tritonserver:21.02-py3"
USER = f"{os.getuid()}:{os.getgid()}"
TOO_OLD = "The NVIDIA driver is too old for release 24.10. Update it. "
TOO_LARGE = "The model is too large for the GPU's memory. Lower instances or max_batch_size. "
CLIENT = shutil.which("docker")  # a real one, before the stand-in takes its place


@dataclass(frozen=True)
class StandIn:
    """The folder of the stand-in: what its engine knows, and what it was asked."""

    folder: Path

    def say(self, name, content=""):
        (self.folder / name).write_text(content)

    def calls(self, verb=""):
        path = self.folder / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [call for call in map(json.loads, lines) if verb in ("", call[0])]

    def containers(self):
        found = []
        for path in self.folder.glob("*.container"):
            with suppress(FileNotFoundError):  # it has just ended
                found.append(json.loads(path.read_text()))
        return found


@pytest.fixture
def engine(tmp_path, monkeypatch):
    """Put the stand-in on the PATH; at the end no container of it may be left."""
    for folder in ("bin", "engine", "outputs"):
        (tmp_path / folder).mkdir()
    command, text = tmp_path / "bin/docker", (HERE / "triton/docker_stand_in.py").read_text()
    command.write_text(f"#!{sys.executable} -S\n{text}")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{command.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("DOCKER_STAND_IN", str(tmp_path / "engine"))
    monkeypatch.setenv(OUTPUTS_VARIABLE, str(tmp_path / "outputs"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(packages, "faults", lambda _: {})  # to import them all takes seconds
    wait = Server.wait_until_ready
    monkeypatch.setattr(
        Server, "wait_until_ready", lambda server, seconds, **_: wait(server, seconds)
    )
    stand_in = StandIn(tmp_path / "engine")
    stand_in.say("images", f"{IMAGE}\n{OLD}\nmine:1\n")
    yield stand_in
    assert stand_in.containers() == []


def parts(call):
    """Split a recorded `docker run` into its options and what follows: the image and a command."""
    first = next(place for place, word in enumerate(call) if place and not word.startswith("--"))
    return call[1:first], call[first:]


def mounts(call):
    return [word.removeprefix("--mount=") for word in call if word.startswith("--mount=")]


def served(engine, repository, chosen, scenario="online"):
    """Serve for a moment; give the recorded `docker run`."""
    log = repository.parent / "log"
    with docker.serve(repository, config=chosen, log=log, scenario=scenario):
        pass
    return engine.calls("run")[-1]


refused = partial(refused_by, docker.serve)


@pytest.mark.slow
def test_a_container_serves_for_as_long_as_the_block_lasts(engine, repository, tmp_path):
    with docker.serve(repository, config=config(), log=tmp_path / "log") as server:
        (container,) = engine.containers()
        assert (server.is_live(), server.is_alive()) == (True, True)
        assert server.processes == (container["pid"],)
        port = int(server.url.rpartition(":")[2])
        assert refused(repository, config(), port=port) == (
            f"Port {port} of 127.0.0.1 is taken (Address already in use). "
            "Use another port, or none."
        )
    (call,) = engine.calls("run")
    metrics = server.metrics_url.rpartition(":")[2]
    settings = " ".join(f"--env={name}={value}" for name, value in process.SETTINGS.items())
    assert " ".join(call) == (
        f"run --rm --init --pull=never --name={container['name']} "
        f"--label=triton-notebooks.owner={owner.token()} --user={USER} --env=HOME=/tmp {settings} "
        f"--publish=127.0.0.1:{port}:8000 --publish=127.0.0.1:{metrics}:8002 --shm-size=1g "
        f"--mount=type=bind,source={repository},target=/models,readonly {IMAGE} tritonserver "
        "--model-repository=/models --model-control-mode=none --exit-timeout-secs=5 "
        "--allow-grpc=false --disable-auto-complete-config"
    )
    assert (server.is_live(), server.is_alive()) == (False, False)
    assert (tmp_path / "log").read_text() == "Started HTTPService\n"
    with (
        suppress(KeyboardInterrupt),
        docker.serve(repository, config=config(), log=tmp_path / "log", port=port) as server,
    ):
        assert server.url == f"127.0.0.1:{port}"
        raise KeyboardInterrupt
    assert (server.is_live(), engine.containers()) == (False, [])


def test_over_grpc_its_port_is_published_on_this_machine_alone(engine, repository):
    call = served(engine, repository, config(fields={"protocol": "grpc"}))
    ports = [option for option in parts(call)[0] if option.startswith("--publish=")]
    assert [port.partition(":")[0] for port in ports] == ["--publish=127.0.0.1"] * 3
    assert [port.rpartition(":")[2] for port in ports] == ["8000", "8002", "8001"]
    assert "--allow-grpc=false" not in call


GPU = {
    *("--gpus=all", "--env=CUDA_VISIBLE_DEVICES", "--shm-size=1g"),
    *("--ulimit=memlock=-1", "--ulimit=stack=67108864"),
}
EXACT, HALF = "--env=NVIDIA_TF32_OVERRIDE=0", "--env=ORT_TENSORRT_FP16_ENABLE=1"
FP16 = {"precision": "fp16", "export_precision": "fp16"}
TRT = {"accelerator": "trt", "release": "21.02"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "device", "fields", "expected"),
    [
        ("perf_online", "cpu", {}, {"--shm-size=1g"}),  # an engine may not be free to raise a limit
        ("deploy", "gpu", {}, {*GPU, EXACT}),
        ("deploy", "gpu", FP16, GPU),
        ("deploy", "gpu", FP16 | TRT, {*GPU, HALF}),
        ("deploy", "gpu", FP16 | {"accelerator": "trt"}, GPU),
        ("deploy", "gpu", {**TRT, "accelerator_precision": "fp16"}, {*GPU, EXACT, HALF}),
        # the host's shared memory is given where tensors travel through it
        ("perf_offline", "cpu", {"shared_memory": "system"}, {"--ipc=host"}),
        ("perf_offline", "cpu", {"shared_memory": "cuda"}, {"--ipc=host"}),
        ("perf_offline", "cpu", {"shared_memory": "none"}, {"--shm-size=1g"}),
    ],
)
def test_a_container_gets_what_its_experiment_computes_with(
    engine, repository, stage, device, fields, expected
):
    chosen = config(stage, device, fields)
    given, (image, *command) = parts(served(engine, repository, chosen))
    common = "--(rm|init|pull|name|label|user|env=HOME|publish|mount)"
    settings = {f"--env={name}={value}" for name, value in process.SETTINGS.items()}
    assert {word for word in given if not re.match(common, word)} - settings == expected
    prefixes = [word for word in command if "shm-region-prefix-name" in word]
    assert len(prefixes) == ("--ipc=host" in expected)
    assert image == (OLD if "release" in fields else IMAGE)


@pytest.mark.slow
def test_engines_of_tensorrt_outlive_the_container_by_gpu_release_and_file(
    engine, repository, tmp_path
):
    chosen = config(device="gpu", fields=FP16 | {"accelerator": "trt"})
    with create_artifact(artifact_folder(chosen, "convert")) as (folder, _):
        (folder / "model.onnx").write_text("a graph")
    first, second = (mounts(served(engine, repository, chosen))[1:] for _ in range(2))
    (kept,) = (tmp_path / "outputs/Test/engines").glob("24.10-*")
    assert first == [f"type=bind,source={kept},target=/tmp/tensorrt-resnet50-mine"]  # to write
    assert second == first


@pytest.mark.slow
def test_the_databases_of_a_store_are_mounted_from_the_outputs_folder(engine, repository, tmp_path):
    copied = shutil.copytree(repository, tmp_path / "outputs/.served-1")
    call = served(engine, copied, config().model_copy(update={"lookup": "hps"}))

    folder = tmp_path / "outputs/Test/databases/.served-1"
    assert mounts(call)[1:] == [f"type=bind,source={folder},target=/databases"]
    assert "--env=HPS_FOLDER=/databases" in call


def test_offline_a_models_own_configuration_takes_the_place_of_the_online_one(engine, repository):
    call = served(engine, repository, config("perf_offline"), "offline")
    offline = repository / "resnet50/configs/offline.pbtxt"
    assert mounts(call) == [
        f"type=bind,source={repository},target=/models,readonly",
        f"type=bind,source={offline},target=/models/resnet50/config.pbtxt,readonly",
    ]


STRICT, EXPLICIT = "--strict-model-config=true", "--disable-auto-complete-config"
LARGE, SHARED = "--http-max-input-size=2147483647", "--allow-client-shm=true"


FLAGS = {  # the last release that is told this, the next -> what is told from then on
    ((22, 6), (22, 7)): ([STRICT], [EXPLICIT]),
    ((25, 5), (25, 6)): ([EXPLICIT], [EXPLICIT, LARGE]),
    ((26, 3), (26, 4)): ([EXPLICIT, LARGE], [EXPLICIT, LARGE, SHARED]),
}


def test_each_release_is_told_what_it_understands():
    for releases, flags in FLAGS.items():
        assert tuple(docker.command_line(release)[5:] for release in releases) == flags


@pytest.mark.skipif(CLIENT is None, reason="docker: this machine has no docker client")
def test_the_real_client_understands_what_is_asked(engine, repository, tmp_path):
    """It reads its command line before it looks for an engine, and is led to one that is not."""
    served(engine, repository, config("perf_offline", "gpu"), "offline")
    docker.run_in_image(config("convert"), IMAGE, tmp_path, ["true"])
    containers.docker("rm", "--force", "one", "two")
    calls = {call[0]: call for call in engine.calls()}
    assert set(calls) == {"version", "image", "ps", "run", "inspect", "rm"}
    env = {"PATH": os.defpath, "HOME": str(tmp_path), "DOCKER_HOST": f"unix://{tmp_path}/none"}
    for call in (*calls.values(), *engine.calls("run")):
        done = subprocess.run([str(CLIENT), *call], env=env, capture_output=True, text=True)
        assert re.search("annot connect to the Docker daemon|failed to connect", done.stderr), call
        assert done.returncode == (125 if call[0] == "run" else 1)


def test_nobody_is_told_to_open_a_server_to_others():
    lines = serving.docker_command(config(fields={"release": "22.02"}))
    assert "tritonserver:22.02-py3" in lines
    asked = " -p 127.0.0.1:8000:8000 "
    assert asked in lines
    assert not re.search(r"\s(-p|-P|--p\w*|--net\w*|--privileged)\b", lines.replace(asked, " "))
    assert "--model-control-mode=none" in lines


@pytest.mark.parametrize("name", ["a, b", 'a "b"', "a,target=b,readonly"])
def test_a_path_may_hold_a_comma_or_a_quote(name):
    option = containers.Mount(Path("/", name), "/models").option()
    (mount,) = csv.reader([option.removeprefix("--mount=")])
    assert mount == ["type=bind", f"source=/{name}", "target=/models", "readonly"]


def test_from_inside_the_lab_container_paths_are_the_hosts(engine, tmp_path, monkeypatch):
    monkeypatch.setenv(containers.HOST_OUTPUTS_VARIABLE, "/outside")
    option = containers.Mount(tmp_path / "outputs/served", "/models").option()
    assert option == "--mount=type=bind,source=/outside/served,target=/models,readonly"
    assert refused(tmp_path, config()) == (
        f"The Docker engine's host cannot see {tmp_path} of this container. Move it into "
        f"{tmp_path}/outputs, which TRITON_NOTEBOOKS_HOST_OUTPUTS maps to the host."
    )


@pytest.fixture
def holder(engine, repository, tmp_path):
    with holding(tmp_path, repository) as started:
        yield started


@pytest.mark.slow
def test_an_owner_that_is_killed_takes_its_container_along(engine, holder):
    (container,) = engine.containers()
    holder.kill()
    wait_for(lambda: not engine.containers())
    assert not Path(f"/proc/{container['pid']}").exists()


@pytest.mark.slow
def test_what_a_dead_owner_left_is_removed_and_what_a_living_one_holds_is_not(
    engine, holder, repository
):
    (left,) = engine.containers()
    served_meanwhile = engine.calls("rm")
    containers.remove_leftovers()
    assert engine.calls("rm") == served_meanwhile  # its owner lives
    clients = processes(str(engine.folder), f"--name={left['name']}")
    assert len(clients) == 2  # the client and its supervisor
    for pid in (*clients, holder.pid):
        os.kill(pid, signal.SIGKILL)  # all at once: nobody is left to stop the container
    holder.wait()
    assert engine.containers() == [left]
    served(engine, repository, config())
    assert ["rm", "--force", left["name"]] in engine.calls("rm")
    assert engine.containers() == []


@pytest.mark.parametrize("token", ["", "1.2", f"1.{os.getpid()}.5", "x.y.z", "owner"], ids=range(5))
def test_of_an_owner_that_cannot_be_seen_nothing_is_known(token):
    assert not owner.is_stale(token)


def test_an_owner_has_ended_if_its_host_has_no_process_of_its_number_and_start():
    """The process namespace that every host starts with has the same number everywhere."""
    boot, namespace, number, started = owner.token().split(".")
    assert not owner.is_stale(owner.token())
    assert owner.is_stale(f"{boot}.{namespace}.{number}.{int(started) - 1}")
    assert owner.is_stale(f"{boot}.{namespace}.99999999.{started}")
    assert not owner.is_stale(f"{boot[::-1]}.{namespace}.99999999.{started}")


def test_no_docker_command(repository, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    words = (
        "The docker command does not start (no such file or directory). Install Docker Engine, or "
        "set server.kind to embedded."
    )
    assert refused(repository, config()) == words
    assert preflight.why_unavailable(config("convert")) == words


NO_ENGINE = (
    "No Docker engine responds (Cannot connect to the Docker daemon at "
    "unix:///var/run/docker.sock. Is the docker daemon running?). Start it by systemctl start "
    "docker, or set server.kind to embedded."
)
NO_PERMISSION = (
    "This user may not use the Docker engine. Add the user to the group docker, and log in again."
)
NO_IMAGE = "The image {0} is not on this machine. Run: docker pull {0}"
NO_RELEASE = "Unknown release 'latest'. Triton's names are YY.MM, such as 24.10."


@pytest.mark.parametrize(
    ("fault", "server", "words"),
    [
        ("no engine", {}, NO_ENGINE),
        ("no permission", {}, NO_PERMISSION),
        ("", {"release": "25.01"}, NO_IMAGE.format(IMAGE.replace("24.10", "25.01"))),
        ("", {"image": "other:2"}, NO_IMAGE.format("other:2")),
        ("", {"release": "latest", "image": "mine:1"}, NO_RELEASE),
    ],
)
def test_an_engine_or_image_that_is_not_there(engine, repository, fault, server, words):
    engine.say("fault", fault)
    assert refused(repository, config(**server)) == words
    assert preflight.server_obstacle(config(**server).server) == words
    assert engine.calls("run") == []


def test_an_engine_that_hangs(engine, repository, tmp_path, monkeypatch):
    (tmp_path / "bin/docker").write_text("#!/bin/sh\nexec sleep 9\n")
    monkeypatch.setattr(containers, "ANSWER_SECONDS", 0.2)
    assert refused(repository, config()) == (
        "The Docker engine did not respond within 0.2 s. Restart it."
    )


@pytest.mark.slow
def test_a_container_that_dies_while_it_starts_is_shown_with_its_last_lines(engine, repository):
    said = "docker: Error response from daemon: Bind for 127.0.0.1:1: port is already allocated."
    engine.say("fault", said)
    assert refused(repository, config()) == (
        "A port was taken meanwhile. Run again. Triton ended while it started: it failed (exit "
        f"code 125): {said}"
    )


CAUSES = {  # what a log says -> the cause, of a GPU's below
    "error: creating server: Internal - failed to load all models": "",
    "invalid mount config for type bind: bind source path does not exist: /models": (
        "The Docker engine's host cannot see the outputs folder of this container. Set "
        "TRITON_NOTEBOOKS_HOST_OUTPUTS to its path on the host. "
    ),
    "failed to open text file for read /models/dummy/config.pbtxt: Permission denied": (
        "The container's user may not read the model's files. Deploy it again with umask 022. "
    ),
}
CAUSES_ON_A_GPU = {
    "could not select device driver with capabilities: [[gpu]].": (
        "The Docker engine cannot use a GPU. Install NVIDIA's container toolkit. "
    ),
    "requirement error: unsatisfied condition: cuda>=12.6, please update your driver": TOO_OLD,
    "W1 CUDA driver version is insufficient for CUDA runtime version\nerror": TOO_OLD,
    "E1 model_lifecycle.cc:642] failed to load 'resnet50': CUDA out of memory.": TOO_LARGE,
}


def test_the_cause_of_an_end_is_known_from_the_log(tmp_path):
    def told(said, device):
        (tmp_path / "log").write_text(said)
        error = ServerError("It ended.")
        return str(docker.explained(error, tmp_path / "log", config(device=device)))

    for said, cause in (CAUSES | CAUSES_ON_A_GPU).items():
        assert told(said, "gpu") == f"{cause}It ended."
        assert told(said, "cpu") == f"{CAUSES.get(said, '')}It ended."


def test_a_client_that_ends_after_its_container_says_the_exit_code(engine):
    """Between the two, "exited" and then "removing" would be found, and no code in either."""
    client = subprocess.Popen(["sh", "-c", "sleep 0.5; exit 1"])
    engine.say("mine.container", json.dumps({"name": "mine", "labels": {}, "pid": 99999999}))
    assert containers.Container("mine", client).end() == "it failed (exit code 1)"
    (engine.folder / "mine.container").unlink()


def test_a_paused_or_lost_container_is_not_alive(engine, monkeypatch):
    monkeypatch.setattr(containers, "CLIENT_SECONDS", 0.1)
    running = subprocess.Popen(["sleep", "9"])
    container = containers.Container("mine", running)
    state = {"name": "mine", "labels": {}, "pid": 99999999}
    assert container.end() == ""  # the engine has not made it yet
    engine.say("mine.container", json.dumps(state))
    assert container.end() == "its container is exited"
    engine.say("mine.container", json.dumps(state | {"status": "removing"}))
    assert container.end() == ""  # its client is about to print why
    (engine.folder / "mine.container").unlink()
    running.kill()
    running.wait()
    assert container.end().startswith("it was killed by signal 9 (SIGKILL)")


def test_what_a_server_works_is_no_load_from_others():
    """A container's processes are no descendants of ours."""
    spin = "import time\nwhile time.process_time() < 0.3: pass\ntime.sleep(30)"
    script = f"{sys.executable} -S -c '{spin}' >/dev/null 2>&1 & echo $!"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    number = int(done.stdout)
    try:
        wait_for(lambda: sum(psutil.Process(number).cpu_times()[:2]) >= 0.25)
        ours, with_it, with_none = map(background._own_seconds, ([], [number], [99999999]))
        assert with_it - ours == pytest.approx(0.3, abs=0.1)
        assert with_none == pytest.approx(ours, abs=0.1)
    finally:
        os.kill(number, signal.SIGKILL)


def test_a_command_runs_in_the_image_and_may_write(engine, tmp_path):
    (tmp_path / "build").mkdir()
    (tmp_path / "build/script").write_text("cp $1 $1.plan\n")
    (tmp_path / "build/model").write_text("plan\n")
    chosen = config("convert", device="gpu")
    docker.run_in_image(chosen, "mine:1", tmp_path / "build", ["sh", "script", "model"])
    assert (tmp_path / "build/model.plan").read_text() == "plan\n"
    given, (image, *_) = parts(engine.calls("run")[0])
    assert image == "mine:1"
    assert mounts(given) == [f"type=bind,source={tmp_path}/build,target=/build"]
    assert {"--gpus=all", f"--user={USER}"} <= set(given)
    assert not [word for word in given if word.startswith("--publish")]


@pytest.mark.parametrize(
    ("said", "cause"), [("no such file", ""), ("Error: out of memory", TOO_LARGE)]
)
def test_a_command_that_fails_in_the_image_is_one_line(engine, tmp_path, said, cause):
    (tmp_path / "script").write_text(f"echo {said}; exit 3")
    with pytest.raises(ServerError) as raised:
        docker.run_in_image(config("convert", device="gpu"), IMAGE, tmp_path, ["sh", "script"])
    assert str(raised.value) == f"{cause}sh failed (exit code 3) in {IMAGE}: {said}"


@pytest.mark.slow
def test_an_engine_of_another_release_is_an_error_before_anything_is_loaded(engine, repository):
    words = (
        "resnet50 mine was built for release {0}, but the server is 24.10. Convert "
        "it again, or set server.release to {0}."
    )

    def why_refused(**facts):
        served = serving.serve(config(), Artifact(repository, {}, facts))
        with pytest.raises(ServerError) as raised, served:
            pass
        return str(raised.value)

    for facts in ({"release": "24.10"}, {}):
        with serving.serve(config(), Artifact(repository, {}, facts)) as server:
            assert server.is_live()
    started = engine.calls("run")
    assert why_refused(release="22.11") == words.format("22.11")
    with create_artifact(artifact_folder(config(), "convert")) as (_, facts):
        facts["release"] = "21.02"  # which counts where the repository names none
    assert why_refused() == words.format("21.02")
    assert engine.calls("run") == started


def told(*chosen):
    return {check.name: (check.word, check.line) for check in checks.run_checks(chosen)}


def test_doctor_names_the_engine_and_every_image(engine):
    chosen = [config("convert", fields={"release": "22.02"}), config("convert")]
    found = told(*chosen)
    assert found["Docker"] == ("ok", "Docker: engine 28.2.2")
    assert found["image 24.10"] == ("ok", f"image 24.10: {IMAGE}")
    assert "GPU containers" not in found
    missing = NO_IMAGE.format(IMAGE.replace("24.10", "22.02"))
    assert found["image 22.02"] == ("FIX", f"image 22.02: {missing}")
    engine.say("fault", "no engine")
    found = told(*chosen)
    assert found["Docker"] == ("FIX", f"Docker: {NO_ENGINE}")
    assert "image 24.10" not in found


def test_doctor_asks_the_engine_for_nvidias_runtime(engine):
    chosen = config("convert", device="gpu")
    engine.say("runtimes", '{"nvidia":{"path":"nvidia-container-runtime"},"runc":{}}')
    assert told(chosen)["GPU containers"] == ("ok", "GPU containers: NVIDIA's runtime")
    engine.say("runtimes", '{"runc":{"path":"runc"}}')
    assert told(chosen)["GPU containers"] == (
        "WARN",
        "GPU containers: the engine does not list NVIDIA's runtime. Install the NVIDIA Container "
        "Toolkit, which gives containers a GPU.",
    )
