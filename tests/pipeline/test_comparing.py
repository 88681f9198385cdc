"""Close rows of two outputs folders are decided on real servers, both at once."""

import re
import shutil

import onnx
import pytest
from onnx import numpy_helper

from helpers.results import read

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

SLEEP = "        answered = self.answer(requests)\n"
STAGES = ("perf_offline", "perf_online")


def change(path, **fields):
    result = read(path)
    path.write_text(result.model_copy(update=fields).model_dump_json())
    return result


def halves(project):
    """Two outputs folders of one experiment, whose performance stages have one noisy row each."""
    for stage in STAGES:
        path = project.target / f"dummy/onnx-fp32/{stage}.json"
        measurement = project.result("onnx-fp32", stage).measurement
        row = measurement.rows[1].model_copy(update={"quality": "noisy"})
        change(path, measurement=measurement.model_copy(update={"rows": (row,)}))
    shutil.rmtree(project.target / "dummy/openvino-fp32")
    before = project.root / "before"
    shutil.copytree(project.root / "outputs", before, copy_function=shutil.copy2)
    return before, project.root / "outputs"


def compare(project):
    return project.run("diff", "before", "outputs", "--fail-if-slower", "50%", "--measure")


def test_a_planted_delay_and_changed_predictions_are_found_by_measuring(project):
    _, after = halves(project)
    (model,) = after.glob("dummy/artifacts/dummy-deploy-*/dummy/1/model.onnx")
    code = model.with_name("model.py")
    result = project.result("onnx-fp32", "deploy")
    assert result.artifact.folder == model.parts[-4]
    assert code.read_text().count(SLEEP) == 1
    slowly = f"        __import__('time').sleep(0.1)\n{SLEEP}"
    code.write_text(code.read_text().replace(SLEEP, slowly))
    graph = onnx.load(model)
    for tensor in graph.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(-numpy_helper.to_array(tensor), tensor.name))
    onnx.save(graph, model)

    answer = compare(project)

    lines = answer.output.splitlines()
    slow = [line for line in lines if ": slower, 0." in line]
    assert answer.code == 1, answer.output
    rows = [re.search(r"(offline|online) .*(?=: slower)", line)[0] for line in slow]
    assert rows == ["offline batch size 4", "online 4 clients"]
    assert all(line.endswith(", 8 interleaved rounds") for line in slow)
    changed = [line for line in lines if "predictions: changed" in line]
    assert [line.partition(", ")[2] for line in changed] == [" -> 0.00% are those of A"] * 2


def test_a_deployment_that_is_not_here_leaves_its_rows_with_the_reason(project):
    before, _ = halves(project)
    for folder in before.glob("dummy/artifacts/dummy-deploy-*"):
        shutil.rmtree(folder)

    answer = compare(project)

    assert answer.code == 1  # no row tells whether B is slower
    where = "before/dummy/dummy/onnx-fp32/deploy.json"
    assert answer.output.splitlines()[0] == (
        "dummy dummy onnx-fp32 offline batch size 4; online 4 clients: not compared, "
        f"not measured: {where} has no artifact on this machine."
    )
