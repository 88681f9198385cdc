"""The three ways in, on a small model: nbclient for JupyterLab, papermill, the batch command."""

import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from helpers.store import OUTPUTS_VARIABLE

pytestmark = [pytest.mark.slow, pytest.mark.thorough]
PAPERMILL = str(Path(sys.executable).parent / "papermill")


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch):
    """The copy's own outputs folder is used, as it is without the batch command."""
    monkeypatch.delenv(OUTPUTS_VARIABLE)


def run(project, command, folder="."):
    ended = subprocess.run(
        command,
        cwd=project.root / folder,
        env={**os.environ, "PYTHONPATH": str(project.root), "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ended.returncode == 0, ended.stderr
    assert "unknown parameter" not in ended.stderr.lower()
    return ended.stdout


def papermill(project, stage, *given):
    file = ("-f", "params/dummy.yaml")
    return run(project, [PAPERMILL, f"notebooks/dummy/{stage}.ipynb", "out.ipynb", *file, *given])


def without_time(result):
    """What of a result does not depend on when and how it was made."""
    read = result.fingerprint.model_copy(update={"modules": {}})
    return read, result.checks, result.state


def test_run_from_the_top_in_its_own_folder_with_nothing_set(project, monkeypatch):
    from nbclient import NotebookClient

    path = project.root / "notebooks/dummy/convert.ipynb"
    by_batch = project.result("onnx-fp32", "convert")
    (project.target / "dummy/onnx-fp32/convert.json").unlink()
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:  # the copy's only target is not called CPU
        cell.source = cell.source.replace('gpu: str = "CPU"', 'gpu: str = "CPU (dummy)"')
    monkeypatch.setenv("PYTHONPATH", str(project.root))
    resources = {"metadata": {"path": str(path.parent)}}
    NotebookClient(notebook, kernel_name="python3", resources=resources).execute()
    by_hand = project.result("onnx-fp32", "convert")
    assert without_time(by_hand) == without_time(by_batch)
    assert by_hand.source.command == "run in JupyterLab"


def test_papermill_with_a_parameter_file_gives_no_warning_and_the_same_result(project):
    by_batch = project.result("openvino-fp32", "convert")
    (project.target / "dummy/openvino-fp32/convert.json").unlink()

    papermill(project, "convert", "-p", "experiment", "openvino-fp32")

    assert without_time(project.result("openvino-fp32", "convert")) == without_time(by_batch)


def test_exploring_leaves_the_experiment_as_it_is_and_goes_on_by_name(project):
    code = (
        "from helpers.config import resolve;"
        "c = resolve('dummy', 'perf_offline', gpu='CPU (dummy)', overrides={'batch_sizes': [3]});"
        "print(c.batch_sizes, c.target)"
    )
    assert run(project, [sys.executable, "-c", code], "notebooks/dummy") == "[3] dummy\n"

    before, name = project.result("onnx-fp32", "deploy"), "onnx-fp32~max_queue_delay_us=7"

    papermill(project, "deploy", "-y", "overrides: {max_queue_delay_us: 7}")
    papermill(project, "perf_online", "-p", "experiment", name)

    explored = project.result(name, "deploy")
    assert explored.artifact.folder != before.artifact.folder
    assert project.result(name, "perf_online").state == "done"
    assert project.result("onnx-fp32", "deploy") == before
    answer = project.run("publish")
    assert answer.code == 0, answer.output
    assert name in (project.target / "index.html").read_text()
    assert name not in (project.target / "results.csv").read_text()
