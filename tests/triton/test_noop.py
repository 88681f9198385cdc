"""The no-op model: the tensors of the deployed one, no computation, in a folder of its own."""

import json
import shutil
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from helpers.config import resolve
from helpers.measure import analyzer, offline, sweep
from helpers.measure.analyzer import LoadPoint
from helpers.measure.runs import Runs
from helpers.models import Part, Tensor
from helpers.triton import embedded, noop
from helpers.triton.noop_runtime import Identity

IDS, DOUBLED = Tensor("ids", "int64", (2,)), Tensor("doubled", "int64", (2,))
DOUBLES = Part("doubles", {"ids": IDS}, {"doubled": DOUBLED})
SLEEP = 0.005  # seconds


def test_the_identity_model_has_the_tensors_of_the_deployed_one_and_no_batcher(doubles, tmp_path):
    name = noop.write(tmp_path, doubles, "doubles", DOUBLES, "cpu")

    text = (tmp_path / name / "config.pbtxt").read_text()
    found = text_format.Parse(text, pb.ModelConfig())
    deployed = (doubles / "doubles/configs/offline.pbtxt").read_text()
    expected = text_format.Parse(deployed, pb.ModelConfig())
    expected.name = name
    expected.parameters["file"].string_value = "identity.json"
    assert found == expected
    files = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert files == {"config.pbtxt", "identity.json", "model.py", "runtime.py"}


def test_it_answers_as_many_samples_as_it_was_asked_and_makes_no_array_twice():
    session = Identity("ids", 2, {"doubled": ("float16", [-1, 3])})

    first, second = (session.run({"ids": np.ones((5, 2))})["doubled"] for _ in range(2))

    assert (first.shape, first.dtype) == ((5, 3), np.float16)
    assert second is first


def test_samples_that_lie_flat_are_counted_by_an_input_that_tells_how_many(tmp_path):
    deployed = tmp_path / "deployed/dlrm/configs"
    deployed.mkdir(parents=True)
    (deployed / "offline.pbtxt").write_text("""
        max_batch_size: 64
        input { name: "EMB_KEY" data_type: TYPE_INT64 dims: -1 }
        input { name: "numerical_features" data_type: TYPE_FP32 dims: -1 }
        output { name: "DENSE_OUTPUT" data_type: TYPE_FP32 dims: -1 }""")
    numbers = Tensor("args_0", "float32", (-1,))
    graph = Part("dlrm_dense", {"numerical_features": numbers}, {}, flat={"args_0": 13})

    name = noop.write(tmp_path / "beside", tmp_path / "deployed", "dlrm", graph, "cpu")

    session = Identity(**json.loads((tmp_path / f"beside/{name}/1/identity.json").read_text()))
    request = {"EMB_KEY": np.zeros((1, 78)), "numerical_features": np.zeros((1, 39))}
    assert session.run(request)["DENSE_OUTPUT"].shape == (1, 3)


@pytest.mark.slow
def test_a_no_op_model_that_sleeps_has_that_much_more_latency(doubles, tmp_path):
    """So the column is the time of a request to that model, and nothing else."""
    beside = tmp_path / "beside"
    name = noop.write(beside, doubles, "doubles", DOUBLES, "cpu")
    shutil.copytree(beside / name, beside / "sleeps")
    sleep = f"__import__('time').sleep({SLEEP}); samples = prod"
    changes = ("config.pbtxt", name, "sleeps"), ("1/runtime.py", "samples = prod", sleep)
    for path, old, new in changes:
        text = (beside / "sleeps" / path).read_text()
        assert old in text
        (beside / "sleeps" / path).write_text(text.replace(old, new))
    overrides = {"pairs": 2, "request_count": 5, "measurement_seconds": 0.1}
    config = resolve("resnet50", "perf_offline", overrides=overrides)
    config = config.model_copy(update={"model": "doubles"})
    batch = {"ids": np.ones((1, 2), np.int64)}
    rows = []
    with (
        embedded.serve(doubles, log=tmp_path / "log", scenario="offline", beside=beside) as server,
        analyzer.input_data(batch) as data,
    ):
        for identity in (name, "sleeps"):
            runs = Runs(lambda point: analyzer.run(point, server), nullcontext)
            asked, load = replace(server, identity=identity), LoadPoint("doubles", data, [])
            offline.run_rounds(config, asked, None, batch, load, runs)
            rows.append(sweep.compared(config, runs))

    plain, sleeping = (float(str(row["noop_latency_ms"])) for row in rows)
    assert plain < 1000 * SLEEP < sleeping
    assert 0.5 < (sleeping - plain) / (1000 * SLEEP) < 4  # others may use the cores
    # no in-process baseline, so no residual overhead
    assert all(set(row) == {"noop_latency_ms"} for row in rows)
