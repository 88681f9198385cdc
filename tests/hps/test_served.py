"""DLRM and DCNv2 over a store on the real server, asked by a client that knows NVIDIA's request
layout alone.
"""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import tritonclient.http as http
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from helpers import models
from helpers.config import resolve
from helpers.errors import ServerError
from helpers.hps import files
from helpers.inference import convert, ensemble, export, framework_session, prepare, require
from helpers.measure import compare, compute_reference, evaluate
from helpers.models._criteo import hierarchical, spec
from helpers.models._criteo.data import Samples, write_part
from helpers.store import OUTPUTS_VARIABLE, Artifact
from helpers.triton import deploy, serve, write_repository
from tests.hps.conftest import Redis
from tests.models.test_recommenders import ROWS, write_checkpoint

pytestmark = pytest.mark.slow
SAMPLES = 600
OFFSETS = np.cumsum([0, *ROWS[:-1]])


def samples() -> Samples:
    draws = np.random.default_rng(5)
    ids = np.stack([draws.integers(0, rows, SAMPLES) for rows in ROWS], axis=1)
    numbers = draws.standard_normal((SAMPLES, 13)).astype(np.float16).astype(np.float32)
    return Samples(ids.astype(np.int32), numbers, draws.random(SAMPLES) < 0.3)


class Deployed:
    """A model with random weights, deployed in a folder of outputs of its own."""

    def __init__(self, model: str, folder: Path, **fields: Any) -> None:
        self.model, self.samples = model, samples()
        dataset = folder / "dataset"
        dataset.mkdir()
        for part in spec.PARTS:
            write_part(dataset / part, ROWS, [self.samples])
        spec.write(dataset, ROWS, {})
        self.fields: dict[str, Any] = {
            "dataset": str(dataset),
            "checkpoint": str(write_checkpoint(model, folder / "checkpoint")),
            "variant": "own",
            "export_format": "tf-savedmodel",
            "export_precision": "fp32",
            "format": "onnx",
            "precision": "fp32",
            "lookup": "hps",
            "max_batch_size": 512,
            **fields,
        }
        exporting = self.config("export")
        prepared = prepare(exporting)
        compute_reference(exporting, prepared)
        export(exporting, prepared)
        convert(self.config("convert"), lambda *_: None)
        self.config_of_deploy = self.config("deploy")
        self.repository = deploy(self.config_of_deploy)
        session = framework_session(exporting, prepared.checkpoint)
        self.expected = session.run(self.samples.inputs)["DENSE_OUTPUT"]

    def config(self, stage: str, **fields: Any) -> Any:
        models_section = {self.model: {"experiments": {"hps": self.fields | fields}}}
        return resolve(self.model, stage, "test", "cpu", {}, {}, models_section, "hps", {})


@pytest.fixture(scope="module", params=["dlrm", "dcnv2"])
def deployed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Deployed]:
    folder = tmp_path_factory.mktemp(request.param)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(OUTPUTS_VARIABLE, str(folder / "outputs"))
        yield Deployed(request.param, folder)


@pytest.fixture
def dlrm(deployed: Deployed) -> Deployed:
    if deployed.model != "dlrm":
        pytest.skip("one model is enough")
    return deployed


def ask(url: str, model: str, **arrays: np.ndarray) -> np.ndarray:
    """Send arrays as they are; give the reply, whatever its shape."""
    client, inputs = http.InferenceServerClient(url), []
    for name, array in arrays.items():
        inputs.append(http.InferInput(name, array.shape, np_to_triton_dtype(array.dtype)))
        inputs[-1].set_data_from_numpy(array)
    found: np.ndarray = client.infer(model, inputs).as_numpy("DENSE_OUTPUT")
    return found


def nvidia_request(some: Samples, fused: bool) -> dict[str, np.ndarray]:
    """What the client of NVIDIA's example sends of a batch."""
    many, ids = len(some.categorical), some.categorical.astype(np.int64)
    keys = (ids + OFFSETS if fused else ids).transpose().flatten()
    counts = [26 * many] if fused else [many] * 26
    return {
        "EMB_KEY": keys[np.newaxis],
        "EMB_N_KEY": np.array([counts], dtype=np.int32),
        "numerical_features": some.numerical.flatten()[np.newaxis],
    }


def unfused(deployed: Deployed, target: Path) -> Artifact:
    """The same deployment with a table for each feature, as `fused: false` makes it."""
    config = deployed.config("deploy", fused=False)
    shutil.copytree(deployed.repository.folder, target)
    folder = target / f"{deployed.model}_sparse/1/hps"
    shutil.rmtree(folder)
    hierarchical.write(config, Path(deployed.fields["checkpoint"]), folder)
    hierarchical.configure(config, folder)
    return Artifact(target, {}, deployed.repository.facts)


@pytest.mark.parametrize("fused", [True, False])
def test_a_client_of_nvidia_s_example_gets_the_framework_s_logits(
    deployed: Deployed, fused: bool, tmp_path: Path
) -> None:
    repository = deployed.repository if fused else unfused(deployed, tmp_path / "repository")
    with serve(deployed.config_of_deploy, repository, log=tmp_path / "log") as server:
        for start, many in ((0, 1), (1, 3), (4, 64), (68, 512)):
            some = Samples(*(array[start : start + many] for array in deployed.samples))
            found = ask(server.url, deployed.model, **nvidia_request(some, fused)).reshape(-1, 1)
            right = deployed.expected[start : start + many]
            apart = np.abs(found - right).max() / deployed.expected.std()
            assert apart <= models.get(deployed.model).TOLERANCES["fp32"][0]
        counted = server.counters("hps_")
        assert counted["hps_keys"] == 26 * 580
        assert counted["hps_defaults"] == 0


def test_one_model_in_place_of_three_gives_the_same(deployed: Deployed, tmp_path: Path) -> None:
    config = deployed.config("deploy", composition="fused", hps={"hit_rate_threshold": 0.0})
    repository = deploy(config)
    assert [path.name for path in repository.folder.glob("*/")] == [deployed.model]
    some = Samples(*(array[:64] for array in deployed.samples))
    request, right = nvidia_request(some, fused=True), deployed.expected[:64]
    bound = models.get(deployed.model).TOLERANCES["fp32"][0] * deployed.expected.std()
    with serve(config, repository, log=tmp_path / "log") as server:
        found = ask(server.url, deployed.model, **request).reshape(-1, 1)
        assert np.abs(found - right).max() <= bound
        assert server.counters("hps_")["hps_keys"] == 26 * 64
        with pytest.raises(InferenceServerException, match="NUMKEYS adds up to 3, but KEYS has"):
            ask(server.url, deployed.model, **request | {"EMB_N_KEY": np.array([[3]], np.int32)})
    with serve(config, repository, "online", log=tmp_path / "log") as server:
        cold = ask(server.url, deployed.model, **request).reshape(-1, 1)
        assert np.abs(cold - right).max() > bound  # defaults: its threshold is heeded


@pytest.fixture(scope="module")
def mapped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    """One model that looks up in tables of int8."""
    folder = tmp_path_factory.mktemp("mapped")
    fields = {"lookup": "mapped", "table_precision": "int8", "composition": "fused"}
    batcher = {"preferred_batch_sizes": [64], "max_queue_delay_us": 20_000}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(OUTPUTS_VARIABLE, str(folder / "outputs"))
        yield Deployed("dlrm", folder, **fields, **batcher)


def test_a_mapped_lookup_and_its_graph_as_one_model_join_requests(
    mapped: Deployed, tmp_path: Path
) -> None:
    batches = [
        {k: v[i : i + 4] for k, v in mapped.samples.inputs.items()} for i in range(0, 600, 4)
    ]
    with serve(mapped.config_of_deploy, mapped.repository, log=tmp_path / "log") as server:
        found = server.infer_all("dlrm", batches, clients=8)["DENSE_OUTPUT"]
        statistics = server.statistics("dlrm")
        checks, _ = evaluate(mapped.config_of_deploy, server)
    converted = require(mapped.config("convert"), "convert")
    session = ensemble.load(mapped.config("convert"), "onnx", lambda _: converted.folder, 1, "cpu")
    right = session.run(mapped.samples.inputs)["DENSE_OUTPUT"]
    assert np.abs(found - right).max() <= 1e-4 * right.std()
    apart = np.abs(found - mapped.expected).max() / mapped.expected.std()
    assert 1e-4 < apart < models.get("dlrm").TOLERANCES["int8"][0]  # the tables have 8 bits
    assert [(each.precision, each.failure) for each in checks] == [("int8", "")] * 3
    assert int(statistics["execution_count"]) < int(
        statistics["inference_stats"]["success"]["count"]
    )


WRONG = {
    "scales of twice the size": ("scales.npy", lambda scales: 2 * scales),
    "no scales": ("scales.npy", np.ones_like),
    "one scale for all rows": ("scales.npy", lambda s: np.full_like(s, s.max())),
    "each row in the place of the next": ("tables.npy", lambda rows: np.roll(rows, 1, axis=0)),
    "columns the other way round": ("tables.npy", lambda rows: rows[:, ::-1]),
    "no signs": ("tables.npy", np.abs),
}


def test_the_parity_checks_hold_for_tables_of_int8(mapped: Deployed) -> None:
    config = mapped.config("convert")

    check = compare(config, require(config, "convert"))

    assert (check.name, check.precision, check.failure) == ("converted", "int8", "")


@pytest.mark.parametrize("wrong", WRONG)
def test_the_parity_checks_fail_for_tables_of_int8_with(
    mapped: Deployed, wrong: str, tmp_path: Path
) -> None:
    config, (name, change) = mapped.config("convert"), WRONG[wrong]
    converted = require(config, "convert")
    shutil.copytree(converted.folder, tmp_path / "broken")
    path = tmp_path / "broken/sparse" / name
    np.save(path, change(np.load(path)))

    broken = compare(config, Artifact(tmp_path / "broken", converted.files, converted.facts))

    assert broken.failure.startswith("converted int8: output DENSE_OUTPUT differs"), broken


def test_no_native_backend_runs_two_parts_at_once(dlrm: Deployed, tmp_path: Path) -> None:
    server = {"kind": "docker", "release": "24.10"}
    section = {dlrm.model: {"experiments": {"hps": dlrm.fields | {"composition": "fused"}}}}
    config = resolve(dlrm.model, "deploy", "test", "cpu", server, {}, section, "hps", {})
    with pytest.raises(ServerError, match="needs the adapter. Set server.backend to adapter."):
        write_repository(tmp_path, config, dlrm.repository)


def test_the_parity_checks_hold_for_a_store_and_its_configuration_is_nvidia_s(
    dlrm: Deployed, tmp_path: Path
) -> None:
    config = dlrm.config_of_deploy
    with serve(config, dlrm.repository, "exact", log=tmp_path / "log") as server:
        checks, scores = evaluate(config, server)
    assert not [check.failure for check in checks if check.failure]
    assert not [score for score in scores if score.failure]
    text = (dlrm.repository.folder / f"{dlrm.model}_dense/config.pbtxt").read_text()
    assert "max_batch_size" not in text  # 0: its tensors are flat
    found = json.loads(
        (dlrm.repository.folder / f"{dlrm.model}_sparse/1/hps/sparse.json").read_text()
    )
    assert found["models"][0]["maxnum_catfeature_query_per_table_per_sample"] == [1]
    assert not [path for path in found["models"][0]["sparse_files"] if os.path.isabs(path)]


def test_a_bad_request_ends_in_one_line_and_the_next_one_is_answered(
    dlrm: Deployed, tmp_path: Path
) -> None:
    some = Samples(*(array[:4] for array in dlrm.samples))
    right = nvidia_request(some, fused=True)
    with serve(dlrm.config_of_deploy, dlrm.repository, log=tmp_path / "log") as server:
        for wrong, words in (
            (
                {"EMB_N_KEY": np.array([[103]], np.int32)},
                "NUMKEYS adds up to 103, but KEYS has 104",
            ),
            ({"EMB_N_KEY": np.array([[-1]], np.int32)}, "NUMKEYS"),
            (
                {"EMB_N_KEY": np.array([[52, 52]], np.int32)},
                "NUMKEYS has 2 counts for 1 tables",
            ),
            ({"numerical_features": right["numerical_features"][:, :-1]}, "13"),
            ({"EMB_KEY": right["EMB_KEY"][:, :26], "EMB_N_KEY": np.array([[26]], np.int32)}, ""),
        ):
            with pytest.raises(InferenceServerException) as caught:
                ask(server.url, dlrm.model, **right | wrong)
            assert words in str(caught.value)
        # keys that no table has get the default, 1.0, as NVIDIA's do
        outside = right["EMB_KEY"].copy()
        outside[0, :2] = -5, 10**12
        ask(server.url, dlrm.model, **right | {"EMB_KEY": outside})
        assert server.counters("hps_")["hps_defaults"] == 2
        found = ask(server.url, dlrm.model, **right).reshape(-1, 1)
        assert found == pytest.approx(dlrm.expected[:4], rel=1e-3, abs=1e-4)


def served_with(deployed: Deployed, target: Path, **fields: Any) -> Artifact:
    """The same deployment with other settings of the store."""
    config = deployed.config("deploy", hps=fields)
    shutil.copytree(deployed.repository.folder, target)
    hierarchical.configure(config, target / f"{deployed.model}_sparse/1/hps")
    return Artifact(target, {}, deployed.repository.facts)


def test_asynchronous_insertion_answers_with_defaults_first_and_exactly_once_warm(
    dlrm: Deployed, tmp_path: Path
) -> None:
    repository = served_with(dlrm, tmp_path / "r", hit_rate_threshold=0.0, gpucacheper=1.0)
    some = nvidia_request(Samples(*(array[:64] for array in dlrm.samples)), fused=True)
    config = dlrm.config_of_deploy
    with serve(config, repository, "online", log=tmp_path / "log") as server:
        cold = ask(server.url, "dlrm", **some).reshape(-1, 1)
        ends = time.monotonic() + 10
        while True:
            warm = ask(server.url, "dlrm", **some).reshape(-1, 1)
            if np.allclose(warm, dlrm.expected[:64], rtol=1e-3, atol=1e-4):
                break
            assert time.monotonic() < ends
        assert not np.allclose(cold, warm, rtol=1e-3, atol=1e-4)
        counted = server.counters("hps_")
        assert counted["hps_defaults"] >= 26 * 64
    with serve(config, repository, "exact", log=tmp_path / "log") as server:
        found = ask(server.url, "dlrm", **some).reshape(-1, 1)
        assert np.allclose(found, dlrm.expected[:64], rtol=1e-3, atol=1e-4)


def test_redis_that_stops_and_comes_back_under_a_server(
    dlrm: Deployed, redis_server: Redis, tmp_path: Path
) -> None:
    volatile = {"type": "redis_cluster", "address": redis_server.address}
    persistent = {"type": "rocks_db", "path": "rocks"}
    config, some = dlrm.config_of_deploy, Samples(*(a[:64] for a in dlrm.samples))
    request = nvidia_request(some, fused=True)
    fields: dict[str, Any] = {"volatile_db": volatile, "gpucache": False}
    repository = served_with(dlrm, tmp_path / "r/a/1", **fields)
    with serve(config, repository, log=tmp_path / "log") as server:
        right = ask(server.url, "dlrm", **request)
        redis_server.stop()
        with pytest.raises(InferenceServerException, match="no connection to Redis at 127.0.0.1"):
            ask(server.url, "dlrm", **request)
        redis_server.start()
        time.sleep(1.1)
        # it has lost its rows: the documented default, until a server loads them anew
        assert ask(server.url, "dlrm", **request).shape == right.shape
    fields["persistent_db"] = persistent
    both = served_with(dlrm, tmp_path / "r/a/2", **fields)
    with serve(config, both, log=tmp_path / "log") as server:
        assert (ask(server.url, "dlrm", **request) == right).all()
        redis_server.stop()
        assert (ask(server.url, "dlrm", **request) == right).all()
    redis_server.stop()
    with (
        pytest.raises(ServerError, match="Redis at 127.0.0.1"),
        serve(config, repository, log=tmp_path / "log"),
    ):
        pass


def replaced(path: Path, change: Callable[[bytes], bytes]) -> None:
    content = path.read_bytes()
    path.unlink()  # it may be one file with the artifact's
    path.write_bytes(change(content))


FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {  # one of each file; see test_store.py
    "a key twice": (
        lambda f: replaced(f / "0/key", lambda b: b[:8] + b[:8] + b[16:]),
        "has the key 0 twice",
    ),
    "no JSON": (lambda f: replaced(f / "sparse.json", lambda b: b[:-9]), "sparse.json: Expecting"),
}


def require_refused(deployed: Deployed, repository: Artifact, words: str) -> None:
    """The server does not become ready, and its error says why in one of its lines."""
    log = repository.folder.parent / "log"
    with (
        pytest.raises(ServerError, match=words),
        serve(deployed.config_of_deploy, repository, log=log),
    ):
        pass


@pytest.mark.parametrize(("damage", "words"), FAULTS.values(), ids=FAULTS.keys())
def test_a_table_that_is_damaged_ends_the_start_in_one_line(
    dlrm: Deployed, damage: Callable[[Path], object], words: str, tmp_path: Path
) -> None:
    repository = served_with(dlrm, tmp_path / "r")
    damage(repository.folder / "dlrm_sparse/1/hps")
    require_refused(dlrm, repository, words)


def test_a_database_that_cannot_be_used_ends_the_start_in_one_line(
    dlrm: Deployed,
    start_redis: Callable[..., Redis],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HPS_FOLDER", str(tmp_path))
    locked = start_redis("locked", "--requirepass", "secret")
    volatile = {"type": "redis_cluster", "address": locked.address, "password": "wrong"}
    guessed = served_with(dlrm, tmp_path / "guessed", volatile_db=volatile)
    require_refused(dlrm, guessed, f"Redis at {locked.address}: it rejects user_name and password")
    persistent = {"type": "rocks_db", "path": "rocks"}
    repository = served_with(dlrm, tmp_path / "r", persistent_db=persistent)
    with serve(dlrm.config_of_deploy, repository, log=tmp_path / "log"):
        require_refused(dlrm, repository, "RocksDB at .*: another process is using it")
    (tmp_path / "rocks/dlrm_sparse.sparse_embedding0/CURRENT").write_text("another")
    require_refused(dlrm, repository, "RocksDB at .*: Corruption: CURRENT")


def test_a_disk_that_is_full_ends_the_start_and_the_next_one_loads_all(
    dlrm: Deployed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=120k", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("root: the server of this test sees a small disk that only root mounts")
    monkeypatch.setenv("HPS_FOLDER", str(disk))
    persistent = {"type": "rocks_db", "path": "rocks"}
    fields: dict[str, Any] = {"persistent_db": persistent, "volatile_db": {"type": "disabled"}}
    repository = served_with(dlrm, tmp_path / "r", **fields)
    try:
        require_refused(dlrm, repository, "RocksDB at .*: .*No space left on device")
        subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
        some = nvidia_request(Samples(*(array[:64] for array in dlrm.samples)), fused=True)
        with serve(dlrm.config_of_deploy, repository, log=tmp_path / "log") as server:
            found = ask(server.url, "dlrm", **some).reshape(-1, 1)
            assert found == pytest.approx(dlrm.expected[:64], rel=1e-3, abs=1e-4)
            assert server.counters("hps_")["hps_defaults"] == 0
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_an_update_reaches_the_server_while_it_answers_and_nothing_is_torn(
    dlrm: Deployed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One table's rows become those of another, at once; a logit is of the one or the other."""
    monkeypatch.setenv("HPS_FOLDER", str(tmp_path))
    updates = tmp_path / "updates"
    updates.mkdir()
    source = {"type": "folder", "path": "updates"}
    repository = served_with(dlrm, tmp_path / "r", update_source=source, gpucacheper=1.0)
    one = nvidia_request(Samples(*(array[:1] for array in dlrm.samples)), fused=True)
    key = one["EMB_KEY"][0, :1]
    new = np.full((1, 128), 0.5, np.float32)
    with serve(dlrm.config_of_deploy, repository, log=tmp_path / "log") as server:
        old = ask(server.url, "dlrm", **one).item()
        files.write(tmp_path / ".new/sparse_embedding0", [(key, new)])
        (tmp_path / ".new").rename(updates / "1")
        seen, ends = {old}, time.monotonic() + 10
        while len(seen) == 1:
            seen.add(ask(server.url, "dlrm", **one).item())
            assert time.monotonic() < ends
        for _ in range(20):
            seen.add(ask(server.url, "dlrm", **one).item())
    assert len(seen) == 2


def test_a_store_s_process_that_is_killed_is_said(dlrm: Deployed, tmp_path: Path) -> None:
    request = nvidia_request(Samples(*(a[:4] for a in dlrm.samples)), fused=True)
    with serve(dlrm.config_of_deploy, dlrm.repository, log=tmp_path / "log") as server:
        (supervisor,) = server.processes
        stubs = psutil.Process(supervisor).children()[0].children()
        (store,) = [each for each in stubs if "_sparse/1/model.py" in " ".join(each.cmdline())]
        os.kill(store.pid, signal.SIGKILL)
        with pytest.raises((InferenceServerException, OSError)):
            list(iter(lambda: ask(server.url, "dlrm", **request), None))
