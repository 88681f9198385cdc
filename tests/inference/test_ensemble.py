"""DLRM after all stages: a lookup and a dense graph on Triton's own ensemble scheduler."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from helpers.errors import ServerError
from helpers.models._criteo import display, lookup
from helpers.models._criteo.data import SplitBinary
from helpers.models._criteo.tables import TABLES
from helpers.results import Result, read
from helpers.triton.embedded import serve
from helpers.triton.server import Server
from tests.conftest import SAME_NAMES
from tests.pipeline.test_try_it import run_once
from tests.triton.test_client import answer_to_client

GROUP = pytest.mark.xdist_group(SAME_NAMES["dlrm"])
pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.thorough, GROUP]
SIZES = TABLES["T15-10k"]
SAVED = (
    *("saved_model.pb", "fingerprint.pb", "variables/variables.index"),
    "variables/variables.data-00000-of-00001",
)


@pytest.fixture(scope="module")
def outputs(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What all stages of its first experiment leave."""
    folder = tmp_path_factory.mktemp("dlrm")
    run_once("dlrm", shared, folder)
    return folder / "outputs"


@pytest.fixture(scope="module")
def repository(outputs: Path) -> Path:
    (found,) = outputs.glob("try_it/artifacts/dlrm-deploy-*")
    return found


def result(outputs: Path, stage: str) -> Result:
    found = read(outputs / f"try_it/dlrm/savedmodel-fp32/{stage}.json")
    assert found
    return found


def tensor(kind: Any, name: str, dtype: int, size: int) -> Any:
    return kind(name=name, data_type=dtype, dims=[size])


def test_every_stage_passes_and_keeps_the_auc(outputs: Path) -> None:
    deployed = result(outputs, "deploy")
    measurement = result(outputs, "perf_offline").measurement

    assert deployed.state == "done"
    kept, decided = deployed.scores
    assert (kept.metric, kept.failure, decided.metric, decided.failure) == (
        "auc",
        "",
        "match_rate",
        "",
    )
    assert abs(kept.served - kept.framework) < 1e-6
    assert measurement
    assert [row.batch_size for row in measurement.rows] == [2]
    assert all(0 < (row.relative_throughput or 0) < 2 for row in measurement.rows)
    for row in measurement.rows:  # one model without computation takes less than two with
        assert 0 < (row.noop_latency_ms or 0) < (row.avg_latency_ms or 0)


@pytest.mark.parametrize("name", ["config.pbtxt", "configs/offline.pbtxt"])
def test_the_ensemble_sends_ids_through_the_lookup_and_all_through_the_graph(
    repository: Path, name: str
) -> None:
    found = text_format.Parse((repository / "dlrm" / name).read_text(), pb.ModelConfig())

    step = pb.ModelEnsembling.Step
    assert found == pb.ModelConfig(
        name="dlrm",
        platform="ensemble",
        max_batch_size=2048,
        input=[
            tensor(pb.ModelInput, "categorical_features", pb.TYPE_INT32, 26),
            tensor(pb.ModelInput, "numerical_features", pb.TYPE_FP32, 13),
        ],
        output=[tensor(pb.ModelOutput, "DENSE_OUTPUT", pb.TYPE_FP32, 1)],
        ensemble_scheduling=pb.ModelEnsembling(
            step=[
                step(
                    model_name="dlrm_sparse",
                    model_version=-1,
                    input_map={"input_1": "categorical_features"},
                    output_map={"output_1": "LOOKUP_VECTORS"},
                ),
                step(
                    model_name="dlrm_dense",
                    model_version=-1,
                    input_map={"args_0": "numerical_features", "args_1": "LOOKUP_VECTORS"},
                    output_map={"output_1": "DENSE_OUTPUT"},
                ),
            ]
        ),
    )


def test_requests_are_joined_before_the_graph_and_only_there(repository: Path) -> None:
    configs = {
        name: text_format.Parse((repository / name / "config.pbtxt").read_text(), pb.ModelConfig())
        for name in ("dlrm_sparse", "dlrm_dense")
    }

    batched = {name: config.HasField("dynamic_batching") for name, config in configs.items()}
    assert batched == {"dlrm_sparse": False, "dlrm_dense": True}


def test_each_part_has_its_own_files_and_no_other(repository: Path) -> None:
    paths = [path for path in repository.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    files = {str(path.relative_to(repository)) for path in paths}

    assert files == {
        "manifest.json",
        "requirements.txt",
        "client.py",
        "sample.npz",
        "dlrm/config.pbtxt",
        "dlrm/configs/offline.pbtxt",
        *(
            f"dlrm_{part}/{name}"
            for part in ("sparse", "dense")
            for name in ("config.pbtxt", "configs/offline.pbtxt", "1/model.py", "1/runtime.py")
        ),
        "dlrm_sparse/1/sparse/tables.json",
        "dlrm_sparse/1/sparse/tables.npy",
        *(f"dlrm_dense/1/model.savedmodel/{name}" for name in SAVED),
    }


@pytest.fixture(scope="module")
def server(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("server") / "server.log"
    with serve(repository, log=log) as server:
        yield server


def request(size: int) -> dict[str, Any]:
    rng = np.random.default_rng(size)
    return {
        "categorical_features": rng.integers(0, SIZES, (size, 26)).astype(np.int32),
        "numerical_features": rng.random((size, 13), dtype=np.float32),
    }


@pytest.mark.parametrize("size", [1, 7, 2048])
def test_what_is_served_is_one_half_after_the_other(
    server: Server, repository: Path, size: int
) -> None:
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
    server: Server, repository: Path, outputs: Path, tmp_path: Path
) -> None:
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


def test_an_id_outside_its_table_is_named_and_the_server_goes_on(server: Server) -> None:
    inputs = request(4)
    inputs["categorical_features"][2, 5] = SIZES[5]

    with pytest.raises(ServerError, match=f"the id {SIZES[5]} for feature 5"):
        server.infer("dlrm", inputs)

    assert server.infer("dlrm", request(4))["DENSE_OUTPUT"].shape == (4, 1)
