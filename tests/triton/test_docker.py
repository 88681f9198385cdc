"""The docker server kind against a stand-in for the docker command (`docker_stand_in.py`).

No Docker engine was there when these tests were written, and they need none: the stand-in records
the calls and plays the engine's part, its servers are real processes, and in the slow tests they
are the real Triton. What NVIDIA's images themselves do with these command lines is not tested.
"""

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from helpers.config.loading import resolve
from helpers.config.schema import StageConfig as Config
from helpers.errors import DeploymentError, ServerError
from helpers.machine import checks, preflight
from helpers.measure import background
from helpers.store.artifacts import Artifact
from helpers.store.paths import OUTPUTS_VARIABLE
from helpers.triton import containers, docker, owner, process, serving
from helpers.triton.server import Server
from tests.conftest import HERE, ONNX, Project, interruptible, processes, wait_for

IMAGE = "nvcr.io/nvidia/tritonserver:24.10-py3"
USER = f"{os.getuid()}:{os.getgid()}"


FP16 = {"precision": "fp16", "export_precision": "fp16"}


@dataclass(frozen=True)
class StandIn:
    """The folder of the stand-in: what its engine knows, and what it was asked."""

    folder: Path

    def say(self, name: str, content: str = "") -> None:
        (self.folder / name).write_text(content)

    def images(self) -> str:
        return (self.folder / "images").read_text()

    def calls(self, verb: str) -> list[list[str]]:
        path = self.folder / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [call for call in map(json.loads, lines) if call[0] == verb]

    def containers(self) -> list[dict[str, Any]]:
        return [json.loads(path.read_text()) for path in self.folder.glob("*.container")]


CLIENT = shutil.which("docker")  # a real one, before the stand-in takes its place


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """Put the stand-in on the PATH; at the end no container of it may be left."""
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "docker"
    command.write_text(
        f"#!{sys.executable} -S\n" + (HERE / "triton" / "docker_stand_in.py").read_text()
    )
    command.chmod(0o755)
    (tmp_path / "engine").mkdir()
    (tmp_path / "outputs").mkdir()
    monkeypatch.setenv("PATH", f"{command.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("DOCKER_STAND_IN", str(tmp_path / "engine"))
    monkeypatch.setenv(OUTPUTS_VARIABLE, str(tmp_path / "outputs"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    stand_in = StandIn(tmp_path / "engine")
    stand_in.say("images", f"{IMAGE}\nnvcr.io/nvidia/tritonserver:21.10-py3\nmine:1\n")
    yield stand_in
    assert stand_in.containers() == []


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository of two models, of which one has a configuration for the offline scenario."""
    for name in ("resnet50", "lookup"):
        (tmp_path / "repository" / name / "1").mkdir(parents=True)
        (tmp_path / "repository" / name / "config.pbtxt").write_text("")
    (tmp_path / "repository/resnet50/configs").mkdir()
    (tmp_path / "repository/resnet50/configs/offline.pbtxt").write_text("")
    return tmp_path / "repository"


def config(
    stage: str = "deploy", device: str = "cpu", fields: dict[str, Any] | None = None, **server: Any
) -> Config:
    experiments = {"experiments": {"mine": ONNX | (fields or {})}}
    return resolve(
        "resnet50",
        stage,
        gpu="Test",
        device=device,
        server={"kind": "docker"} | server,
        models={"resnet50": experiments},
    )


def options(call: list[str]) -> dict[str, list[str]]:
    """The options of a recorded `docker run`, each with its values."""
    found: dict[str, list[str]] = {}
    for word in call[1:]:
        if not word.startswith("--"):
            break
        name, _, value = word.partition("=")
        found.setdefault(name, []).append(value)
    return found


def command(call: list[str]) -> list[str]:
    """The image of a recorded `docker run`, and what runs in it."""
    return call[1 + next(i for i, word in enumerate(call[1:]) if not word.startswith("--")) :]


def served(
    engine: StandIn, repository: Path, chosen: Config, scenario: str = "online"
) -> list[str]:
    """Serve for a moment; give the recorded `docker run`."""
    log = repository.parent / "log"
    with docker.serve(repository, config=chosen, log=log, scenario=scenario):
        pass
    (call,) = engine.calls("run")
    return call


def refused(repository: Path, chosen: Config, **more: Any) -> str:
    """Try to serve; give the error, which must be one line."""
    with (
        pytest.raises(DeploymentError) as raised,
        docker.serve(repository, config=chosen, log=repository.parent / "log", **more),
    ):
        raise AssertionError("it serves")
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.mark.slow
def test_a_container_serves_for_as_long_as_the_block_lasts(
    engine: StandIn, repository: Path, tmp_path: Path
) -> None:
    with docker.serve(repository, config=config(), log=tmp_path / "log") as server:
        (container,) = engine.containers()
        assert server.is_live()
        assert server.is_alive()
        assert server.processes == (container["pid"],)
    (call,) = engine.calls("run")
    http, metrics = (url.rpartition(":")[2] for url in (server.url, server.metrics_url))
    assert call == [
        "run",
        "--rm",
        "--init",
        "--pull=never",
        f"--name={container['name']}",
        f"--label=triton-notebooks.owner={owner.token()}",
        f"--user={USER}",
        "--env=HOME=/tmp",
        *(f"--env={name}={value}" for name, value in process.SETTINGS.items()),
        f"--publish=127.0.0.1:{http}:8000",
        f"--publish=127.0.0.1:{metrics}:8002",
        "--shm-size=1g",
        f"--mount=type=bind,source={repository},target=/models,readonly",
        IMAGE,
        "tritonserver",
        "--model-repository=/models",
        "--model-control-mode=none",
        "--allow-grpc=false",
        "--exit-timeout-secs=5",
        "--disable-auto-complete-config",
    ]
    assert not server.is_live()
    assert not server.is_alive()
    assert (tmp_path / "log").read_text() == "Started HTTPService\n"


@pytest.mark.slow
def test_a_gpu_is_given_to_a_gpu_target_only(
    engine: StandIn, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    call = served(engine, repository, config(device="gpu"))
    assert options(call)["--gpus"] == ["all"]
    assert options(call)["--ulimit"] == ["memlock=-1", "stack=67108864"]
    assert {"HOME=/tmp", "CUDA_VISIBLE_DEVICES"} < set(options(call)["--env"])
    (engine.folder / "calls").unlink()
    call = served(engine, repository, config())
    assert not {"--gpus", "--ulimit"} & set(options(call))  # an engine may not be free to raise one
    assert "CUDA_VISIBLE_DEVICES" not in options(call)["--env"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "device", "variables"),
    [
        ({}, "gpu", {"NVIDIA_TF32_OVERRIDE": "0"}),
        ({}, "cpu", {}),
        (FP16, "gpu", {}),
        (
            FP16 | {"accelerator": "trt", "release": "21.02"},
            "gpu",
            {"ORT_TENSORRT_FP16_ENABLE": "1"},
        ),
        (FP16 | {"accelerator": "trt", "release": "21.10"}, "gpu", {}),
        (
            {"accelerator": "trt", "accelerator_precision": "fp16", "release": "21.02"},
            "gpu",
            {"NVIDIA_TF32_OVERRIDE": "0", "ORT_TENSORRT_FP16_ENABLE": "1"},
        ),
    ],
)
def test_the_precision_that_was_asked_for_is_the_one_that_computes(
    engine: StandIn,
    repository: Path,
    fields: dict[str, Any],
    device: str,
    variables: dict[str, str],
) -> None:
    engine.say("images", "nvcr.io/nvidia/tritonserver:21.02-py3\n" + engine.images())
    call = served(engine, repository, config(device=device, fields=fields))
    given = dict(each.partition("=")[::2] for each in options(call)["--env"])
    known = {"HOME", "CUDA_VISIBLE_DEVICES", *process.SETTINGS}
    assert {name: value for name, value in given.items() if name not in known} == variables


@pytest.mark.slow
def test_engines_of_tensorrt_outlive_the_container_by_gpu_release_and_file(
    engine: StandIn, repository: Path, tmp_path: Path
) -> None:
    from helpers.config.schema import artifact_folder
    from helpers.store.artifacts import create_artifact

    chosen = config(device="gpu", fields=FP16 | {"accelerator": "trt"})
    with create_artifact(artifact_folder(chosen, "convert")) as (folder, _):
        (folder / "model.onnx").write_text("a graph")
    found = []
    for _ in range(2):
        call = served(engine, repository, chosen)
        (engine.folder / "calls").unlink()
        found.append([mount for mount in options(call)["--mount"] if "/engines/" in mount])
    assert found[0] == found[1]
    ((mount,), _) = found
    kept = tmp_path / "outputs/Test/engines"
    assert mount.startswith(f"type=bind,source={kept}/24.10-")
    assert mount.endswith(",target=/tmp/tensorrt-resnet50-mine")  # where it may write
    assert len(list(kept.iterdir())) == 1


@pytest.mark.slow
@pytest.mark.parametrize("place", [".served-1", "Test/artifacts/dlrm-deploy-0123456789ab"])
def test_the_databases_of_a_store_are_mounted_from_the_outputs_folder(
    engine: StandIn, repository: Path, tmp_path: Path, place: str
) -> None:
    copied = shutil.copytree(repository, tmp_path / "outputs" / place)
    call = served(engine, copied, config().model_copy(update={"lookup": "hps"}))

    folder = tmp_path / "outputs/Test/databases" / copied.name
    assert options(call)["--mount"][1:] == [f"type=bind,source={folder},target=/databases"]
    assert "HPS_FOLDER=/databases" in options(call)["--env"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "shared_memory", "shares"),
    [
        ("perf_offline", "system", True),
        ("perf_offline", "cuda", True),
        ("perf_offline", "none", False),
        ("perf_online", None, False),
    ],
)
def test_the_hosts_shared_memory_is_given_only_where_tensors_travel_through_it(
    engine: StandIn, repository: Path, stage: str, shared_memory: str | None, shares: bool
) -> None:
    fields = {"shared_memory": shared_memory} if shared_memory else {}
    call = served(engine, repository, config(stage, fields=fields))
    assert ("--ipc" in options(call), "--shm-size" in options(call)) == (shares, not shares)
    prefix = [word for word in command(call) if "shm-region-prefix-name" in word]
    assert len(prefix) == shares


def test_offline_a_models_own_configuration_takes_the_place_of_the_online_one(
    engine: StandIn, repository: Path
) -> None:
    call = served(engine, repository, config("perf_offline"), "offline")
    offline = repository / "resnet50/configs/offline.pbtxt"
    assert options(call)["--mount"] == [
        f"type=bind,source={repository},target=/models,readonly",
        f"type=bind,source={offline},target=/models/resnet50/config.pbtxt,readonly",
    ]


@pytest.mark.parametrize(
    ("release", "flags"),
    [
        ((20, 11), ["--strict-model-config=true"]),
        ((22, 6), ["--strict-model-config=true"]),
        ((22, 7), ["--disable-auto-complete-config"]),
        ((25, 5), ["--disable-auto-complete-config"]),
        ((26, 3), ["--disable-auto-complete-config", "--http-max-input-size=2147483647"]),
        (
            (26, 4),
            [
                "--disable-auto-complete-config",
                "--http-max-input-size=2147483647",
                "--allow-client-shm=true",
            ],
        ),
    ],
)
def test_each_release_is_told_what_it_understands(
    release: tuple[int, int], flags: list[str]
) -> None:
    assert docker.command_line(release) == [
        "tritonserver",
        "--model-repository=/models",
        "--model-control-mode=none",
        "--allow-grpc=false",
        "--exit-timeout-secs=5",
        *flags,
    ]


@pytest.mark.skipif(CLIENT is None, reason="docker: this machine has no docker client")
def test_the_real_client_understands_what_is_asked(
    engine: StandIn, repository: Path, tmp_path: Path
) -> None:
    """It reads its command line before it looks for an engine, and is led to one that is not."""
    served(engine, repository, config("perf_offline", "gpu"), "offline")
    docker.run_in_image(config("convert"), IMAGE, tmp_path, ["true"])
    containers.docker("rm", "--force", "one", "two")
    lines = (engine.folder / "calls").read_text().splitlines()
    calls = {call[0]: call for call in map(json.loads, lines)}
    assert set(calls) == {"version", "image", "ps", "run", "inspect", "rm"}
    env = {"PATH": os.defpath, "HOME": str(tmp_path), "DOCKER_HOST": f"unix://{tmp_path}/none"}
    for call in (*calls.values(), *engine.calls("run")):
        done = subprocess.run([str(CLIENT), *call], env=env, capture_output=True, text=True)
        assert re.search("annot connect to the Docker daemon|failed to connect", done.stderr), call
        assert done.returncode == (125 if call[0] == "run" else 1)


@pytest.mark.slow
def test_the_image_is_the_releases_or_the_one_that_is_named(
    engine: StandIn, repository: Path
) -> None:
    call = served(engine, repository, config(fields={"release": "21.10"}))
    assert command(call)[:1] == ["nvcr.io/nvidia/tritonserver:21.10-py3"]
    (engine.folder / "calls").unlink()
    assert command(served(engine, repository, config(image="mine:1")))[:1] == ["mine:1"]


def test_nobody_is_told_to_open_a_server_to_others() -> None:
    lines = serving.docker_command(config(fields={"release": "22.02"}))
    assert "tritonserver:22.02-py3" in lines
    asked = " -p 127.0.0.1:8000:8000 "
    assert asked in lines
    assert not re.search(r"\s(-p|-P|--p\w*|--net\w*|--privileged)\b", lines.replace(asked, " "))
    assert "--model-control-mode=none" in lines


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a, b", 'a "b"', "a,target=b,readonly"])
def test_a_path_may_hold_a_comma_or_a_quote(engine: StandIn, tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    call = served(engine, tmp_path / name, config())
    (mount,) = csv.reader(options(call)["--mount"])
    assert mount == ["type=bind", f"source={tmp_path / name}", "target=/models", "readonly"]


def test_from_inside_the_lab_container_paths_are_the_hosts(
    engine: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "outputs"
    (outside / "served/resnet50").mkdir(parents=True)
    (inside / "served/resnet50").mkdir(parents=True)
    monkeypatch.setenv(containers.HOST_OUTPUTS_VARIABLE, str(outside))
    call = served(engine, inside / "served", config())
    (mount,) = options(call)["--mount"]
    assert mount == f"type=bind,source={outside}/served,target=/models,readonly"
    assert refused(tmp_path, config()) == (
        f"The Docker engine's host cannot see {tmp_path} of this container. Move it into {inside}, "
        "which TRITON_NOTEBOOKS_HOST_OUTPUTS maps to the host."
    )


@pytest.mark.slow
def test_an_exception_in_the_block_ends_the_container(
    engine: StandIn, repository: Path, tmp_path: Path
) -> None:
    for error in (RuntimeError, KeyboardInterrupt):
        with (
            pytest.raises(error),
            docker.serve(repository, config=config(), log=tmp_path / "log") as server,
        ):
            raise error
        assert not server.is_live()
        assert engine.containers() == []


HOLD = """
import sys, time
from pathlib import Path
from helpers.config import resolve
from helpers.triton import docker
config = resolve("resnet50", "deploy", gpu="Test", server={"kind": "docker"},
                 models={"resnet50": {"experiments": {"mine": %r}}})
folder = Path(sys.argv[1])
with docker.serve(folder / "repository", config=config, log=folder / "log"):
    (folder / "holding").touch()
    time.sleep(99)
"""


@pytest.fixture
def holder(
    engine: StandIn, repository: Path, tmp_path: Path
) -> Iterator["subprocess.Popen[bytes]"]:
    """Another process that serves."""
    with (tmp_path / "stderr").open("w") as stderr:
        started = subprocess.Popen(
            [sys.executable, "-c", HOLD % ONNX, str(tmp_path)],
            stderr=stderr,
            preexec_fn=interruptible,
        )
    wait_for(lambda: (tmp_path / "holding").exists() or started.poll() is not None, 30)
    assert started.poll() is None
    yield started
    started.kill()
    started.wait()


@pytest.mark.slow
def test_an_owner_that_is_killed_takes_its_container_along(
    engine: StandIn, holder: "subprocess.Popen[bytes]"
) -> None:
    (container,) = engine.containers()
    holder.kill()
    wait_for(lambda: not engine.containers(), 30)
    assert not Path(f"/proc/{container['pid']}").exists()


@pytest.mark.slow
def test_ctrl_c_takes_it_along_too(
    engine: StandIn, holder: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    holder.send_signal(signal.SIGINT)
    holder.wait(30)
    assert "KeyboardInterrupt" in (tmp_path / "stderr").read_text()
    assert engine.containers() == []
    assert engine.calls("rm")[-1][2].startswith("triton-notebooks-")


@pytest.mark.slow
def test_what_a_dead_owner_left_is_removed_and_what_a_living_one_holds_is_not(
    engine: StandIn, holder: "subprocess.Popen[bytes]", repository: Path, tmp_path: Path
) -> None:
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
    with docker.serve(repository, config=config(), log=tmp_path / "log"):
        assert [each["name"] for each in engine.containers()] != [left["name"]]
        assert len(engine.containers()) == 1
    assert ["rm", "--force", left["name"]] in engine.calls("rm")


@pytest.mark.parametrize("token", ["", "1.2", f"1.{os.getpid()}.5", "x.y.z", "owner"], ids=range(5))
def test_of_an_owner_that_cannot_be_seen_nothing_is_known(token: str) -> None:
    assert not owner.is_stale(token)


def test_a_process_of_the_same_number_is_not_the_same_owner() -> None:
    place, number, started = owner.token().rsplit(".", 2)
    assert not owner.is_stale(owner.token())
    assert owner.is_stale(f"{place}.{number}.{int(started) - 1}")
    assert owner.is_stale(f"{place}.99999999.{started}")


def test_an_owner_on_another_host_is_never_known_to_be_dead() -> None:
    """The process namespace that every host starts with has the same number everywhere."""
    boot, namespace, _, started = owner.token().split(".")
    assert owner.is_stale(f"{boot}.{namespace}.99999999.{started}")
    assert not owner.is_stale(f"{boot[::-1]}.{namespace}.99999999.{started}")


def test_no_docker_command(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    words = (
        "The docker command does not start (no such file or directory). Install Docker Engine, or "
        "set server.kind to embedded."
    )
    assert refused(repository, config()) == words
    assert preflight.why_unavailable(config("convert")) == words


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (
            "no engine",
            "No Docker engine responds (Cannot connect to the Docker daemon at "
            "unix:///var/run/docker.sock. Is the docker daemon running?). Start it by systemctl "
            "start docker, or set server.kind to embedded.",
        ),
        (
            "no permission",
            "This user may not use the Docker engine. Add the user to the group docker, and log "
            "in again.",
        ),
    ],
)
def test_no_engine(engine: StandIn, repository: Path, fault: str, words: str) -> None:
    engine.say("fault", fault)
    assert refused(repository, config()) == words
    assert preflight.server_obstacle(config().server) == words
    assert engine.calls("run") == []


def test_an_engine_that_hangs(
    engine: StandIn, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin/docker").write_text("#!/bin/sh\nexec sleep 9\n")
    monkeypatch.setattr(containers, "ANSWER_SECONDS", 0.2)
    assert refused(repository, config()) == (
        "The Docker engine did not respond within 0.2 s. Restart it."
    )


@pytest.mark.parametrize(
    ("server", "words"),
    [
        (
            {"release": "25.01"},
            "The image nvcr.io/nvidia/tritonserver:25.01-py3 is not on this machine. Run: docker "
            "pull nvcr.io/nvidia/tritonserver:25.01-py3",
        ),
        (
            {"image": "other:2"},
            "The image other:2 is not on this machine. Run: docker pull other:2",
        ),
        (
            {"release": "24.13"},
            "Unknown release '24.13'. Triton's names are YY.MM, such as 24.10.",
        ),
        (
            {"release": "latest", "image": "mine:1"},
            "Unknown release 'latest'. Triton's names are YY.MM, such as 24.10.",
        ),
    ],
)
def test_an_image_that_is_not_there(
    engine: StandIn, repository: Path, server: dict[str, str], words: str
) -> None:
    assert refused(repository, config(**server)) == words
    assert preflight.server_obstacle(config(**server).server) == words
    assert engine.calls("run") == []


@pytest.mark.slow
def test_a_port_that_is_taken(engine: StandIn, repository: Path, tmp_path: Path) -> None:
    with docker.serve(repository, config=config(), log=tmp_path / "log") as server:
        port = int(server.url.rpartition(":")[2])
        assert refused(repository, config(), port=port) == (
            f"Port {port} of 127.0.0.1 is taken (Address already in use). "
            "Use another port, or none."
        )
    with docker.serve(repository, config=config(), log=tmp_path / "log", port=port) as server:
        assert server.url == f"127.0.0.1:{port}"


STARTS = {
    "it dies": (
        "cpu",
        "error: creating server: Internal - failed to load all models",
        "Triton ended while it started: it failed (exit code 1): error: creating server: Internal "
        "- failed to load all models",
    ),
    "a port taken after it was found free": (
        "cpu",
        "docker: Error response from daemon: driver failed programming external connectivity: Bind "
        "for 127.0.0.1:1 failed: port is already allocated.",
        "A port was taken meanwhile. Run again. Triton ended while it started: it failed (exit "
        "code 125): docker: Error",
    ),
    "a folder that the engine's host does not have": (
        "cpu",
        "docker: Error response from daemon: invalid mount config for type bind: bind source path "
        "does not exist: /models",
        "The Docker engine's host cannot see the outputs folder of this container. Set "
        "TRITON_NOTEBOOKS_HOST_OUTPUTS to its path on the host. Triton ended while it started: ",
    ),
    "files of a user that it is not": (
        "cpu",
        "E1 model_repository_manager.cc:1460] \"Poll failed for model directory 'dummy': failed to "
        'open text file for read /models/dummy/config.pbtxt: Permission denied"',
        "The container's user may not read the model's files. Deploy it again with umask 022. "
        "Triton ended while it started: it failed (exit code ",
    ),
    "no container toolkit": (
        "gpu",
        "docker: Error response from daemon: could not select device driver with capabilities: "
        "[[gpu]].",
        "The Docker engine cannot use a GPU. Install NVIDIA's container toolkit. Triton ended ",
    ),
    "an old driver": (
        "gpu",
        "docker: nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.6, "
        "please update your driver",
        "The NVIDIA driver is too old for release 24.10. Update it. Triton ended while it started",
    ),
    "a model too large": (
        "gpu",
        "E1 model_lifecycle.cc:642] failed to load 'resnet50': CUDA out of memory.",
        "The model is too large for the GPU's memory. Lower instances or max_batch_size. Triton "
        "ended while it started: it failed (exit code 1): E1 model_lifecycle.cc:642] failed to",
    ),
    "a CPU's harmless word about drivers": (
        "cpu",
        "W1 CUDA driver version is insufficient for CUDA runtime version\nerror: no such model",
        "Triton ended while it started: it failed (exit code 1): error: no such model",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(("device", "said", "words"), STARTS.values(), ids=STARTS.keys())
def test_a_container_that_dies_while_it_starts_is_shown_with_its_last_lines(
    engine: StandIn, repository: Path, device: str, said: str, words: str
) -> None:
    engine.say("fault", said)
    error = refused(repository, config(device=device))
    assert error.startswith(words)
    assert error.endswith(said.splitlines()[-1])
    assert (repository.parent / "log").read_text() == f"{said}\n"


def test_a_container_that_dies_while_it_is_used(
    engine: StandIn, repository: Path, tmp_path: Path
) -> None:
    with docker.serve(repository, config=config(), log=tmp_path / "log") as server:
        (container,) = engine.containers()
        os.kill(container["pid"], signal.SIGKILL)
        wait_for(lambda: not server.is_alive(), 10)
        with pytest.raises(
            ServerError,
            match="no response from Triton at .*, which has ended: it was killed by signal 9",
        ):
            server.infer("resnet50", {"INPUT__0": np.zeros((1, 3), dtype=np.float32)})


def test_a_client_that_ends_after_its_container_says_the_exit_code(engine: StandIn) -> None:
    """Between the two, "exited" and then "removing" would be found, and no code in either."""
    client = subprocess.Popen(["sh", "-c", "sleep 0.5; exit 1"])
    engine.say("mine.container", json.dumps({"name": "mine", "labels": {}, "pid": 99999999}))
    assert containers.Container("mine", client).end() == "it failed (exit code 1)"
    (engine.folder / "mine.container").unlink()


def test_a_paused_or_lost_container_is_not_alive(
    engine: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_what_a_server_works_is_no_load_from_others() -> None:
    """A container's processes are no descendants of ours."""
    spin = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass\n"
    script = f"{sys.executable} -S -c '{spin}time.sleep(30)' >/dev/null 2>&1 & echo $!"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    number = int(done.stdout)
    try:
        wait_for(lambda: sum(psutil.Process(number).cpu_times()[:2]) >= 0.25, 30)
        seconds = background._own_seconds([number]) - background._own_seconds([])
        assert seconds == pytest.approx(0.3, abs=0.1)
        assert background._own_seconds([99999999]) == pytest.approx(
            background._own_seconds([]), abs=0.1
        )
    finally:
        os.kill(number, signal.SIGKILL)


def test_a_command_runs_in_the_image_and_may_write(engine: StandIn, tmp_path: Path) -> None:
    (tmp_path / "build").mkdir()
    (tmp_path / "build/script").write_text("cp $1 $1.plan\n")
    (tmp_path / "build/model").write_text("plan\n")
    docker.run_in_image(
        config("convert", device="gpu"), IMAGE, tmp_path / "build", ["sh", "script", "model"]
    )
    assert (tmp_path / "build/model.plan").read_text() == "plan\n"
    (call,) = engine.calls("run")
    assert command(call)[0] == IMAGE
    assert options(call)["--mount"] == [f"type=bind,source={tmp_path}/build,target=/build"]
    assert (options(call)["--gpus"], options(call)["--user"]) == (["all"], [USER])
    assert "--publish" not in options(call)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo no such file; exit 3", f"sh failed (exit code 3) in {IMAGE}: no such file"),
        ("exit 4", f"sh failed (exit code 4) in {IMAGE}: its log is empty"),
        (
            "echo Error: out of memory; exit 1",
            "The model is too large for the GPU's memory. Lower instances or max_batch_size. sh "
            f"failed (exit code 1) in {IMAGE}: Error: out of memory",
        ),
    ],
)
def test_a_command_that_fails_in_the_image_is_one_line(
    engine: StandIn, tmp_path: Path, script: str, words: str
) -> None:
    (tmp_path / "script").write_text(script)
    with pytest.raises(ServerError) as raised:
        docker.run_in_image(config("convert", device="gpu"), IMAGE, tmp_path, ["sh", "script"])
    assert str(raised.value) == words


@pytest.mark.slow
def test_an_engine_of_another_release_is_an_error_before_anything_is_loaded(
    engine: StandIn, repository: Path
) -> None:
    words = (
        "resnet50 mine was built for release 22.11, but the server is 24.10. Convert "
        "it again, or set server.release to 22.11."
    )
    artifact = Artifact(repository, {}, {"release": "22.11"})
    with pytest.raises(ServerError) as raised, serving.serve(config(), artifact):
        pass
    assert str(raised.value) == words
    assert engine.calls("run") == []
    with serving.serve(config(), Artifact(repository, {}, {"release": "24.10"})) as server:
        assert server.is_live()
    with serving.serve(config(), Artifact(repository, {}, {})) as server:
        assert server.is_live()


def test_the_release_of_the_conversion_counts_where_the_repository_names_none(
    engine: StandIn, repository: Path
) -> None:
    from helpers.config.schema import artifact_folder
    from helpers.store.artifacts import create_artifact

    with create_artifact(artifact_folder(config(), "convert")) as (_, facts):
        facts["release"] = "21.02"
    with (
        pytest.raises(ServerError, match="was built for release 21.02, but the server is 24.10"),
        serving.serve(config(), Artifact(repository, {}, {})),
    ):
        pass


def test_doctor_names_the_engine_and_every_image(engine: StandIn) -> None:
    chosen = [config("convert", fields={"release": "22.02"}), config("convert")]
    found = {check.name: (check.ok, check.line) for check in checks.run_checks(chosen)}
    missing = "nvcr.io/nvidia/tritonserver:22.02-py3"
    assert found["Docker"] == (True, "Docker: engine 28.2.2")
    assert found["image 24.10"] == (True, f"image 24.10: {IMAGE}")
    assert found["image 22.02"] == (
        False,
        f"image 22.02: The image {missing} is not on this machine. Run: docker pull {missing}",
    )
    engine.say("fault", "no engine")
    found = {check.name: (check.ok, check.line) for check in checks.run_checks(chosen)}
    ok, line = found["Docker"]
    assert not ok
    assert line.endswith(". Start it by systemctl start docker, or set server.kind to embedded.")
    assert "image 24.10" not in found


@pytest.mark.parametrize(
    ("runtimes", "word", "line"),
    [
        ('{"nvidia":{"path":"nvidia-container-runtime"},"runc":{}}', "ok", "NVIDIA's runtime"),
        (
            '{"runc":{"path":"runc"}}',
            "WARN",
            "the engine does not list NVIDIA's runtime. Install the NVIDIA Container Toolkit, "
            "which gives containers a GPU.",
        ),
    ],
)
def test_doctor_asks_the_engine_for_nvidias_runtime(
    engine: StandIn, runtimes: str, word: str, line: str
) -> None:
    engine.say("runtimes", runtimes)
    found = {each.name: each for each in checks.run_checks([config("convert", device="gpu")])}
    assert (found["GPU containers"].word, found["GPU containers"].line) == (
        word,
        f"GPU containers: {line}",
    )
    assert "GPU containers" not in {each.name for each in checks.run_checks([config("convert")])}


@pytest.mark.slow
def test_without_an_engine_every_docker_experiment_is_skipped_before_any_kernel(
    engine: StandIn, fresh: Project
) -> None:
    engine.say("fault", "no engine")
    text = fresh.params.read_text().replace("device: cpu", "device: cpu\nserver: {kind: docker}")
    fresh.params.write_text(text)
    answer = fresh.run("run", "params/dummy.yaml", "--stage", "export", "--stage", "deploy")
    assert answer.code == 0, answer.output
    assert answer.output.count("skipped: No Docker engine responds (Cannot connect") == 3
    assert answer.executed() == []


@pytest.fixture
def real(
    engine: StandIn, doubles: Path, tmp_path: Path
) -> Callable[[str, str], "docker.AbstractContextManager[Server]"]:
    """Serve the small model by the real Triton, which the stand-in starts for a container."""
    engine.say("real")
    return lambda stage, scenario: docker.serve(
        doubles, config=config(stage), log=tmp_path / "log", scenario=scenario
    )


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_left")
def test_a_real_triton_answers_as_each_scenario_is_configured(real: Any) -> None:
    from urllib.request import urlopen

    batching = {}
    for stage, scenario in (("perf_online", "online"), ("perf_offline", "offline")):
        with real(stage, scenario) as server:
            ids = np.ones((3, 2), dtype=np.int64)
            assert server.infer("doubles", {"ids": ids})["doubled"].tolist() == [[2, 2]] * 3
            assert "nv_inference_count" in server.metrics()
            with urlopen(f"http://{server.url}/v2/models/doubles/config") as answer:
                batching[scenario] = "dynamic_batching" in json.load(answer)
    assert batching == {"online": True, "offline": False}


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_left")
def test_a_real_triton_that_dies_while_it_is_measured(engine: StandIn, real: Any) -> None:
    from helpers.measure import analyzer

    samples = {"ids": np.ones((1, 2), dtype=np.int64)}
    with real("perf_offline", "offline") as server, analyzer.input_data(samples) as data:
        regions = analyzer.shared_memory_patterns(["ids"], ["doubled"])
        point = analyzer.LoadPoint("doubles", data, regions, shared_memory="system")
        assert len(analyzer.run(point, server).requests) > 10
        (container,) = engine.containers()
        os.kill(container["pid"], signal.SIGKILL)
        wait_for(lambda: not server.is_alive(), 10)
        with pytest.raises(ServerError, match="Triton ended during the measurement: ."):
            analyzer.run(point, server)
