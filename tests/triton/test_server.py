"""The embedded Triton with a small model: loading, batching, counting, refusing, and its end."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from helpers.errors import ServerError
from helpers.triton import embedded
from helpers.triton.client import Server
from tests.conftest import HERE, Project, processes, wait_for

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def repository(finished: Project) -> Path:
    found = sorted((finished.target / "artefacts").glob("dummy-deploy-*"))
    return next(path for path in found if (path / "dummy/1/model.onnx").exists())


@pytest.fixture(scope="module")
def server(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("server") / "log"
    with embedded.serve(repository, models=["dummy"], log=log) as started:
        yield started


def features(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, 16)).astype(np.float32)


def test_it_answers_what_the_layer_computes(server: Server, finished: Project) -> None:
    sys.path.insert(0, str(HERE))
    import dummy

    x = features(3)
    answer = server.infer("dummy", {"features": x})
    np.testing.assert_allclose(answer["logits"], x @ dummy.weights().T, rtol=1e-5, atol=1e-5)


def test_every_answer_belongs_to_its_own_request_when_requests_are_batched(server: Server) -> None:
    before = server.statistics("dummy")
    alone = {
        seed: server.infer("dummy", {"features": features(1, seed)})["logits"] for seed in range(40)
    }
    together: dict[int, np.ndarray] = {}

    def ask(seed: int) -> None:
        together[seed] = server.infer("dummy", {"features": features(1, seed)})["logits"]

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed, answer in alone.items():
        np.testing.assert_allclose(together[seed], answer, rtol=1e-5, atol=1e-6)
    after = server.statistics("dummy")
    assert int(after["inference_count"]) - int(before["inference_count"]) == 80
    assert int(after["execution_count"]) - int(before["execution_count"]) < 80


def test_metrics_and_statistics_count_the_same_inferences(server: Server) -> None:
    server.infer("dummy", {"features": features(4)})
    families = text_string_to_metric_families(server.metrics())
    (counted,) = (
        sample.value
        for family in families
        for sample in family.samples
        if sample.name == "nv_inference_count_total" or sample.name == "nv_inference_count"
    )
    assert counted == float(server.statistics("dummy")["inference_count"])


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({"feature": features(1)}, "unexpected inference input 'feature'"),
        ({"features": features(1)[:, :5]}, "unexpected shape for input 'features'"),
        ({"features": features(1).astype(np.float64)}, "data-type"),
        ({"features": features(9)}, "batch-size must be <= 4"),
    ],
)
def test_a_wrong_request_is_one_line_and_the_server_goes_on(
    server: Server, inputs: dict[str, np.ndarray], words: str
) -> None:
    with pytest.raises(ServerError) as raised:
        server.infer("dummy", inputs)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)
    assert server.is_ready("dummy")


def test_a_model_is_unloaded_and_loaded_again(server: Server) -> None:
    server.unload("dummy")
    wait_for(lambda: not server.is_ready("dummy"))
    server.load("dummy")
    assert server.is_ready("dummy")
    with pytest.raises(ServerError):
        server.load("nothing")


def test_it_listens_on_loopback_only(server: Server) -> None:
    ports = {int(url.rpartition(":")[2]) for url in (server.url, server.metrics_url)}
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    listening = {int(f[1][9:], 16): f[1][:8] for f in lines if f[3] == "0A"}
    assert {port: listening[port] for port in ports} == dict.fromkeys(ports, "0100007F")
    six = [line.split() for line in Path("/proc/net/tcp6").read_text().splitlines()[1:]]
    assert not {int(f[1][33:], 16) for f in six if f[3] == "0A"} & ports


def test_a_model_that_does_not_load_is_one_line_with_the_servers_own_words(
    repository: Path, tmp_path: Path
) -> None:
    import shutil

    shutil.copytree(repository, tmp_path / "broken")
    (tmp_path / "broken/dummy/1/model.onnx").write_bytes(b"no model")
    with (
        pytest.raises(ServerError) as raised,
        embedded.serve(tmp_path / "broken", models=["dummy"], log=tmp_path / "log"),
    ):
        pass
    assert "Triton ended while it started" in str(raised.value)
    assert "\n" not in str(raised.value)
    assert not processes(str(tmp_path))


def test_the_end_of_the_block_leaves_nothing(repository: Path, tmp_path: Path) -> None:
    before = set(os.listdir("/dev/shm"))
    with embedded.serve(repository, models=["dummy"], log=tmp_path / "log") as started:
        assert set(os.listdir("/dev/shm")) - before
        pids = processes(f"--http-port={started.url.rpartition(':')[2]}")
        assert len(pids) == 2  # the server and its guard
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert set(os.listdir("/dev/shm")) <= before


def test_a_repository_carried_away_is_served_without_this_package(
    repository: Path, tmp_path: Path
) -> None:
    import shutil

    shutil.copytree(repository, tmp_path / "away")
    assert not [p for p in (tmp_path / "away").rglob("*") if p.is_symlink()]
    texts = [p.read_text() for p in (tmp_path / "away").rglob("*.py")]
    assert not any("import helpers" in text or "from helpers" in text for text in texts)
    with embedded.serve(tmp_path / "away", models=["dummy"], log=tmp_path / "log") as started:
        from helpers.triton.serving import CLIENT

        dtypes = '{"FP32": "float32"}'
        client = CLIENT.format(model="dummy", dtypes=dtypes).replace("127.0.0.1:8000", started.url)
        ended = subprocess.run(
            [sys.executable, "-I", "-c", client], capture_output=True, text=True, timeout=60
        )
    assert (ended.stdout, ended.stderr) == ("(1, 4)\n", "")
