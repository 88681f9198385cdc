"""DLRM through every stage: a lookup and a dense graph on Triton's own ensemble scheduler."""

import os
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
from tests.conftest import WATCHED, Project, copy_project, watch
from tests.triton.test_client import answer_to_client

pytestmark = [pytest.mark.slow, pytest.mark.alone]
SIZES = TABLES["T15-10k"]


@pytest.fixture(scope="module")
def finished_dlrm(tmp_path_factory: pytest.TempPathFactory) -> Project:
    project = copy_project(tmp_path_factory.mktemp("dlrm") / "project")
    with watch(project.root / WATCHED):
        answer = project.run("run", "params/smoke.yaml", "--model", "dlrm")
    assert answer.code == 0, answer.output
    return project


@pytest.fixture(scope="module")
def repository(finished_dlrm: Project) -> Path:
    (found,) = (finished_dlrm.root / "outputs/smoke/artefacts").glob("dlrm-deploy-*")
    return found


def result(project: Project, stage: str) -> Result:
    found = read(project.root / f"outputs/smoke/dlrm/onnx-fp32/{stage}.json")
    assert found
    return found


def tensor(kind: Any, name: str, dtype: int, size: int) -> Any:
    return kind(name=name, data_type=dtype, dims=[size])


def test_every_stage_is_green_and_keeps_the_auc(finished_dlrm: Project) -> None:
    deployed = result(finished_dlrm, "deploy")
    measurement = result(finished_dlrm, "perf_offline").measurement

    assert deployed.state == "done"
    kept, decided = deployed.scores
    assert (kept.metric, kept.fault, decided.metric, decided.fault) == ("auc", "", "agreement", "")
    assert abs(kept.served - kept.framework) < 1e-6
    assert measurement
    assert [row.batch_size for row in measurement.rows] == [1, 512]
    assert all(0 < (row.served_bare_ratio or 0) < 2 for row in measurement.rows)
    for row in measurement.rows:  # one model without computation takes less than two with
        assert 0 < (row.floor_ms or 0) < (row.avg_latency_ms or 0)


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
        "dlrm_dense/1/model.onnx",
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
    import onnxruntime

    inputs = request(size)
    tables = lookup.load(repository / "dlrm_sparse/1/sparse", 1, "cpu")
    vectors = tables.run({"input_1": inputs["categorical_features"]})["output_1"]
    graph = onnxruntime.InferenceSession(str(repository / "dlrm_dense/1/model.onnx"))
    (right,) = graph.run(None, {"args_0": inputs["numerical_features"], "args_1": vectors})

    (answer,) = server.infer("dlrm", inputs).values()

    assert answer.shape == (size, 1)
    np.testing.assert_allclose(answer, right, rtol=1e-4, atol=1e-5)


def test_the_client_that_is_taken_along_gets_the_frameworks_clicks(
    server: Server, repository: Path, finished_dlrm: Project, tmp_path: Path
) -> None:
    data = finished_dlrm.root / "outputs/data"
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


def test_no_process_of_it_imports_torch(finished_dlrm: Project) -> None:
    seen = [path.read_text().split() for path in (finished_dlrm.root / WATCHED).iterdir()]

    kernels = [modules for modules in seen if {"forked", "helpers"} <= set(modules)]
    assert len(kernels) >= 6
    assert any("ipykernel" in modules for modules in seen)
    assert any("tensorflow" in modules for modules in seen)  # the process that forks kernels
    assert not [modules for modules in seen if "torch" in modules]


def test_no_process_of_a_pytorch_model_imports_tensorflow(finished: Project) -> None:
    seen = [path.read_text().split() for path in (finished.root / WATCHED).iterdir()]

    assert sum({"forked", "helpers"} <= set(modules) for modules in seen) >= 6
    assert any("torch" in modules for modules in seen)
    assert not [modules for modules in seen if {"tensorflow", "keras"} & set(modules)]


def test_what_is_watched_is_seen(tmp_path: Path) -> None:
    with watch(tmp_path / WATCHED):
        assert os.system("python -c 'import wave'") == 0

    (seen,) = (tmp_path / WATCHED).iterdir()
    assert "wave" in seen.read_text().split()
