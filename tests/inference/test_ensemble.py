"""DLRM after all stages: a lookup and a dense graph on Triton's own ensemble scheduler."""

import numpy as np
import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from helpers.errors import ServerError
from helpers.models._criteo import display, lookup
from helpers.models._criteo.data import SplitBinary
from helpers.models._criteo.tables import TABLES
from helpers.results import read
from helpers.triton.embedded import serve
from tests.conftest import SAME_NAMES
from tests.pipeline.test_try_it import run_once
from tests.triton.test_client import answer_to_client

GROUP = pytest.mark.xdist_group(SAME_NAMES["dlrm"])
pytestmark = [pytest.mark.slow, pytest.mark.thorough, GROUP]
SIZES = TABLES["T15-10k"]


@pytest.fixture(scope="module")
def outputs(shared, tmp_path_factory):
    """What all stages of its first experiment leave."""
    folder = tmp_path_factory.mktemp("dlrm")
    run_once("dlrm", shared, folder)
    return folder / "outputs"


@pytest.fixture(scope="module")
def repository(outputs):
    (found,) = outputs.glob("try_it/artifacts/dlrm-deploy-*")
    return found


def result(outputs, stage):
    return read(outputs / f"try_it/dlrm/savedmodel-fp32/{stage}.json")


def test_every_stage_passes_and_keeps_the_auc(outputs):
    deployed = result(outputs, "deploy")

    assert deployed.state == "done"
    assert [score.metric for score in deployed.scores] == ["auc", "match_rate"]
    assert not any(score.failure for score in deployed.scores)
    assert abs(deployed.scores[0].served - deployed.scores[0].framework) < 1e-6
    (row,) = result(outputs, "perf_offline").measurement.rows
    assert row.batch_size == 2
    assert 0 < row.relative_throughput < 2
    # one model without computation takes less than two with
    assert 0 < row.noop_latency_ms < row.avg_latency_ms


def configuration(repository, name):
    return text_format.Parse((repository / name).read_text(), pb.ModelConfig())


@pytest.mark.parametrize("name", ["config.pbtxt", "configs/offline.pbtxt"])
def test_the_ensemble_sends_ids_through_the_lookup_and_all_through_the_graph(repository, name):
    found = configuration(repository, f"dlrm/{name}")

    steps = found.ensemble_scheduling.step
    assert (found.platform, found.max_batch_size) == ("ensemble", 2048)
    assert [tensor.name for tensor in found.input] == ["categorical_features", "numerical_features"]
    assert [tensor.name for tensor in found.output] == ["DENSE_OUTPUT"]
    maps = [(step.model_name, dict(step.input_map), dict(step.output_map)) for step in steps]
    given = {"args_0": "numerical_features", "args_1": "LOOKUP_VECTORS"}
    assert maps == [
        ("dlrm_sparse", {"input_1": "categorical_features"}, {"output_1": "LOOKUP_VECTORS"}),
        ("dlrm_dense", given, {"output_1": "DENSE_OUTPUT"}),
    ]


@pytest.mark.parametrize(("part", "own"), [("sparse", "sparse"), ("dense", "model.savedmodel")])
def test_each_part_has_its_own_files_and_the_graph_alone_joins_requests(repository, part, own):
    found = configuration(repository, f"dlrm_{part}/config.pbtxt")
    names = {path.name for path in (repository / f"dlrm_{part}/1").iterdir()}

    assert found.HasField("dynamic_batching") == (part == "dense")
    assert names - {"__pycache__"} == {"model.py", "runtime.py", own}


@pytest.fixture(scope="module")
def server(repository, tmp_path_factory):
    log = tmp_path_factory.mktemp("server") / "server.log"
    with serve(repository, log=log) as server:
        yield server


def request(size):
    rng = np.random.default_rng(size)
    return {
        "categorical_features": rng.integers(0, SIZES, (size, 26)).astype(np.int32),
        "numerical_features": rng.random((size, 13), dtype=np.float32),
    }


@pytest.mark.parametrize("size", [1, 7, 2048])
def test_what_is_served_is_one_half_after_the_other(server, repository, size):
    import tensorflow

    inputs = request(size)
    tables = lookup.load(repository / "dlrm_sparse/1/sparse", 1, "cpu")
    vectors = tables.run({"input_1": inputs["categorical_features"]})["output_1"]
    saved = tensorflow.saved_model.load(str(repository / "dlrm_dense/1/model.savedmodel"))
    graph = saved.signatures["serving_default"]
    given = {"args_0": inputs["numerical_features"], "args_1": vectors}
    (right,) = graph(**{name: tensorflow.constant(given[name]) for name in given}).values()

    (answer,) = server.infer("dlrm", inputs).values()

    assert answer.shape == (size, 1)
    np.testing.assert_allclose(answer, right, rtol=1e-4, atol=1e-5)


def test_the_client_that_is_taken_along_gets_the_frameworks_clicks(
    server, repository, outputs, tmp_path
):
    data = outputs / "data"
    (folder,), (reference,) = data.glob("dlrm-dataset-*"), data.glob("dlrm-reference-*")
    dataset = SplitBinary(folder)
    places = display._shown(dataset)
    with np.load(reference / "evaluation.npz") as arrays:
        logits = arrays["DENSE_OUTPUT"].reshape(-1)[places]

    printed = answer_to_client(repository, server.url, tmp_path / "elsewhere")

    clicked = ["clicked" if each else "not clicked" for each in dataset.clicks(places)]
    assert sorted(clicked) == ["clicked"] * 4 + ["not clicked"] * 4
    chances = 1 / (1 + np.exp(-logits))
    assert printed.splitlines() == [
        f"a click with {chance:.1%}; {said}" for chance, said in zip(chances, clicked, strict=True)
    ]


def test_an_id_outside_its_table_is_named_and_the_server_goes_on(server):
    inputs = request(4)
    inputs["categorical_features"][2, 5] = SIZES[5]

    with pytest.raises(ServerError, match=f"the id {SIZES[5]} for feature 5"):
        server.infer("dlrm", inputs)

    assert server.infer("dlrm", request(4))["DENSE_OUTPUT"].shape == (4, 1)
