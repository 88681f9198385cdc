"""DLRM and DCNv2 over a store on the real server, asked by a client that knows NVIDIA's request
layout alone.
"""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as http
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from helpers import models
from helpers.errors import ServerError
from helpers.inference import ensemble, framework_session, require
from helpers.measure import compare, evaluate
from helpers.models._criteo import hierarchical
from helpers.models._criteo.data import Samples
from helpers.store import OUTPUTS_VARIABLE, Artifact
from helpers.triton import deploy, serve, write_repository
from tests.conftest import wait_for
from tests.hps.builders import ROCKS, Deployed, criteo_samples
from tests.models.test_recommenders import ROWS, write_checkpoint

pytestmark = pytest.mark.slow
SAMPLES = 600
OFFSETS = np.cumsum([0, *ROWS[:-1]])


@pytest.fixture(scope="module", autouse=True)  # before each test has outputs of its own
def make(tmp_path_factory):
    """Deploy a model with random weights."""

    def deployed(model, **fields):
        folder = tmp_path_factory.mktemp(model)
        weights = write_checkpoint(model, folder / "checkpoint")
        made = Deployed(model, folder, weights, ROWS, criteo_samples(ROWS, SAMPLES), **fields)
        session = framework_session(made.config("export"), made.prepared.checkpoint)
        made.expected = session.run(made.samples.inputs)["DENSE_OUTPUT"]
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(OUTPUTS_VARIABLE, str(tmp_path_factory.mktemp("outputs")))
        yield deployed


@pytest.fixture(scope="module")
def dlrm(make):
    return make("dlrm")


@pytest.fixture(scope="module")
def dcnv2(make):
    return make("dcnv2")


@pytest.fixture(scope="module")
def mapped(make):
    """One model that looks up in tables of int8."""
    fields = {"lookup": "mapped", "table_precision": "int8", "composition": "fused"}
    return make("dlrm", **fields, preferred_batch_sizes=[64], max_queue_delay_us=20_000)


def ask(url, model, **arrays):
    """Send arrays as they are; give the reply, whatever its shape."""
    client, inputs = http.InferenceServerClient(url), []
    for name, array in arrays.items():
        inputs.append(http.InferInput(name, array.shape, np_to_triton_dtype(array.dtype)))
        inputs[-1].set_data_from_numpy(array)
    return client.infer(model, inputs).as_numpy("DENSE_OUTPUT")


def logits(server, model, request):
    return ask(server.url, model, **request).reshape(-1, 1)


def part(deployed, start, stop):
    return Samples(*(array[start:stop] for array in deployed.samples))


def counts(*of_tables):
    return np.array([of_tables], np.int32)


def nvidia_request(some, fused=True):
    """What the client of NVIDIA's example sends of a batch."""
    many, ids = len(some.categorical), some.categorical.astype(np.int64)
    keys = (ids + OFFSETS if fused else ids).transpose().flatten()
    return {
        "EMB_KEY": keys[np.newaxis],
        "EMB_N_KEY": counts(26 * many) if fused else counts(*[many] * 26),
        "numerical_features": some.numerical.flatten()[np.newaxis],
    }


def unfused(deployed, target):
    """The same deployment with a table for each feature, as `fused: false` makes it."""
    config = deployed.config("deploy", fused=False)
    shutil.copytree(deployed.repository.folder, target)
    folder = target / f"{deployed.model}_sparse/1/hps"
    shutil.rmtree(folder)
    hierarchical.write(config, Path(deployed.fields["checkpoint"]), folder)
    hierarchical.configure(config, folder)
    return Artifact(target, {}, deployed.repository.facts)


@pytest.mark.parametrize(("model", "fused"), [("dlrm", True), ("dlrm", False), ("dcnv2", True)])
def test_a_client_of_nvidia_s_example_gets_the_framework_s_logits(model, fused, request, tmp_path):
    deployed = request.getfixturevalue(model)
    repository = deployed.repository if fused else unfused(deployed, tmp_path / "repository")
    with serve(deployed.config_of_deploy, repository, log=tmp_path / "log") as server:
        for start, many in ((0, 1), (1, 3), (4, 64), (68, 512)):
            some = part(deployed, start, start + many)
            found = logits(server, deployed.model, nvidia_request(some, fused))
            right = deployed.expected[start : start + many]
            apart = np.abs(found - right).max() / deployed.expected.std()
            assert apart <= models.get(deployed.model).TOLERANCES["fp32"][0]
        counted = server.counters("hps_")
        assert counted["hps_keys"] == 26 * 580
        assert counted["hps_defaults"] == 0


def test_one_model_in_place_of_three_gives_the_same_or_defaults_until_it_is_warm(dlrm, tmp_path):
    hps = {"hit_rate_threshold": 0.0, "gpucacheper": 1.0}
    config = dlrm.config("deploy", composition="fused", hps=hps)
    repository = deploy(config)
    assert [path.name for path in repository.folder.glob("*/")] == ["dlrm"]
    request, right = nvidia_request(part(dlrm, 0, 64)), dlrm.expected[:64]
    bound = models.get("dlrm").TOLERANCES["fp32"][0] * dlrm.expected.std()

    def is_right(server):
        return np.abs(logits(server, "dlrm", request) - right).max() <= bound

    with serve(config, repository, log=tmp_path / "log") as server:
        assert is_right(server)
        assert server.counters("hps_")["hps_keys"] == 26 * 64
        with pytest.raises(InferenceServerException, match="NUMKEYS adds up to 3, but KEYS has"):
            ask(server.url, "dlrm", **request | {"EMB_N_KEY": counts(3)})
    with serve(config, repository, "online", log=tmp_path / "log") as server:
        assert not is_right(server)  # defaults first: its threshold is heeded
        wait_for(lambda: is_right(server))
        assert server.counters("hps_")["hps_defaults"] >= 26 * 64


def test_a_mapped_lookup_and_its_graph_as_one_model_join_requests(mapped, tmp_path):
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
    requests = statistics["inference_stats"]["success"]["count"]
    assert int(statistics["execution_count"]) < int(requests)


WRONG = {
    "scales of twice the size": ("scales.npy", lambda scales: 2 * scales),
    "no scales": ("scales.npy", np.ones_like),
    "one scale for all rows": ("scales.npy", lambda s: np.full_like(s, s.max())),
    "each row in the place of the next": ("tables.npy", lambda rows: np.roll(rows, 1, axis=0)),
    "columns the other way round": ("tables.npy", lambda rows: rows[:, ::-1]),
    "no signs": ("tables.npy", np.abs),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_the_parity_checks_fail_for_tables_of_int8_with(mapped, wrong, tmp_path):
    config, (name, change) = mapped.config("convert"), WRONG[wrong]
    converted = require(config, "convert")
    shutil.copytree(converted.folder, tmp_path / "broken")
    path = tmp_path / "broken/sparse" / name
    np.save(path, change(np.load(path)))

    assert compare(config, converted).failure == ""
    broken = compare(config, Artifact(tmp_path / "broken", converted.files, converted.facts))

    assert broken.failure.startswith("converted int8: output DENSE_OUTPUT differs"), broken


def test_no_native_backend_runs_two_parts_at_once(dlrm, tmp_path):
    server = {"kind": "docker", "release": "24.10"}
    config = dlrm.config("deploy", server, composition="fused")
    with pytest.raises(ServerError, match="needs the adapter. Set server.backend to adapter."):
        write_repository(tmp_path, config, dlrm.repository)


def test_the_parity_checks_hold_for_a_store_and_its_configuration_is_nvidia_s(dlrm, tmp_path):
    config = dlrm.config_of_deploy
    with serve(config, dlrm.repository, "exact", log=tmp_path / "log") as server:
        checks, scores = evaluate(config, server)
    assert not [each.failure for each in (*checks, *scores) if each.failure]
    folder = dlrm.repository.folder
    text = (folder / "dlrm_dense/config.pbtxt").read_text()
    assert "max_batch_size" not in text  # 0: its tensors are flat
    (found,) = json.loads((folder / "dlrm_sparse/1/hps/sparse.json").read_text())["models"]
    assert found["maxnum_catfeature_query_per_table_per_sample"] == [1]
    assert not [path for path in found["sparse_files"] if os.path.isabs(path)]


def test_a_bad_request_ends_in_one_line_and_the_next_one_is_answered(dlrm, tmp_path):
    right = nvidia_request(part(dlrm, 0, 4))
    with serve(dlrm.config_of_deploy, dlrm.repository, log=tmp_path / "log") as server:
        for words, wrong in {
            "NUMKEYS adds up to 103, but KEYS has 104": {"EMB_N_KEY": counts(103)},
            "13": {"numerical_features": right["numerical_features"][:, :-1]},
            ".": {"EMB_KEY": right["EMB_KEY"][:, :26], "EMB_N_KEY": counts(26)},
        }.items():
            with pytest.raises(InferenceServerException, match=words):
                ask(server.url, dlrm.model, **right | wrong)
        # keys that no table has get the default, 1.0, as NVIDIA's do
        outside = right["EMB_KEY"].copy()
        outside[0, :2] = -5, 10**12
        ask(server.url, dlrm.model, **right | {"EMB_KEY": outside})
        assert server.counters("hps_")["hps_defaults"] == 2
        found = logits(server, "dlrm", right)
        assert found == pytest.approx(dlrm.expected[:4], rel=1e-3, abs=1e-4)


def served_with(deployed, target, **fields):
    """The same deployment with other settings of the store."""
    config = deployed.config("deploy", hps=fields)
    shutil.copytree(deployed.repository.folder, target)
    hierarchical.configure(config, target / f"{deployed.model}_sparse/1/hps")
    return Artifact(target, {}, deployed.repository.facts)


def require_refused(deployed, repository, words):
    """The server does not become ready, and its error says why in one of its lines."""
    log = repository.folder.parent / "log"
    with (
        pytest.raises(ServerError, match=words),
        serve(deployed.config_of_deploy, repository, log=log),
    ):
        pass


def test_what_cannot_be_used_ends_the_start_in_one_line(dlrm, start_redis, tmp_path, monkeypatch):
    monkeypatch.setenv("HPS_FOLDER", str(tmp_path))
    locked = start_redis("locked", "--requirepass", "secret")
    volatile = {"type": "redis_cluster", "address": locked.address, "password": "wrong"}
    guessed = served_with(dlrm, tmp_path / "guessed", volatile_db=volatile)
    require_refused(dlrm, guessed, f"Redis at {locked.address}: it rejects user_name and password")
    repository = served_with(dlrm, tmp_path / "r", persistent_db=ROCKS)
    with serve(dlrm.config_of_deploy, repository, log=tmp_path / "log"):
        require_refused(dlrm, repository, "RocksDB at .*: another process is using it")
    (tmp_path / "rocks/dlrm_sparse.sparse_embedding0/CURRENT").write_text("another")
    require_refused(dlrm, repository, "RocksDB at .*: Corruption: CURRENT")
    path = guessed.folder / "dlrm_sparse/1/hps/sparse.json"
    text = path.read_text()
    path.unlink()  # it may be one file with the artifact's
    path.write_text(text[:-9])
    require_refused(dlrm, guessed, "sparse.json: Expecting")
