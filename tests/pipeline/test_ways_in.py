"""The three ways in, on a small model: nbclient for JupyterLab, papermill, the batch command."""

import json
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from helpers.results import Result
from helpers.store import OUTPUTS_VARIABLE
from tests.conftest import Project

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy's own outputs folder is used, as it is without the batch command."""
    monkeypatch.delenv(OUTPUTS_VARIABLE)


def environment(project: Project) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(project.root), "PYTHONWARNINGS": "ignore"}


def without_time(result: Result) -> tuple[object, ...]:
    """What of a result does not depend on when and how it was made."""
    assert result.fingerprint
    read = result.fingerprint.model_copy(update={"modules": {}})
    return read, result.checks, result.state


def test_run_from_the_top_in_its_own_folder_with_nothing_set(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nbclient import NotebookClient

    path = project.root / "notebooks/dummy/convert.ipynb"
    by_batch = project.result("onnx-fp32", "convert")
    (project.target / "dummy/onnx-fp32/convert.json").unlink()
    notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    for cell in notebook.cells:  # the copy's only target is not called CPU
        cell.source = cell.source.replace('gpu: str = "CPU"', 'gpu: str = "CPU (dummy)"')
    monkeypatch.setenv("PYTHONPATH", str(project.root))
    NotebookClient(
        notebook, kernel_name="python3", resources={"metadata": {"path": str(path.parent)}}
    ).execute()
    by_hand = project.result("onnx-fp32", "convert")
    assert without_time(by_hand) == without_time(by_batch)
    assert by_hand.source
    assert by_hand.source.command == "run in JupyterLab"


def test_papermill_with_a_parameter_file_gives_no_warning_and_the_same_result(
    project: Project, tmp_path: Path
) -> None:
    by_batch = project.result("openvino-fp32", "convert")
    (project.target / "dummy/openvino-fp32/convert.json").unlink()
    ended = subprocess.run(
        [
            *(str(Path(sys.executable).parent / "papermill"), "notebooks/dummy/convert.ipynb"),
            *(
                str(tmp_path / "out.ipynb"),
                "-f",
                "params/dummy.yaml",
                "-p",
                "experiment",
                "openvino-fp32",
            ),
        ],
        cwd=project.root,
        env=environment(project),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    assert "unknown parameter" not in ended.stderr.lower()
    by_papermill = project.result("openvino-fp32", "convert")
    assert without_time(by_papermill) == without_time(by_batch)


def test_papermill_shows_the_seven_parameters_with_their_meaning(project: Project) -> None:
    command = [
        str(Path(sys.executable).parent / "papermill"),
        "--help-notebook",
        "notebooks/dummy/convert.ipynb",
    ]
    text = subprocess.run(
        command, cwd=project.root, capture_output=True, text=True, timeout=60
    ).stdout
    names = ["gpu", "device", "server", "defaults", "models", "experiment", "overrides"]
    assert [
        line.strip().partition(":")[0]
        for line in text.splitlines()
        if line.startswith("  ") and ": " in line and not line.startswith("     ")
    ] == names


def test_overrides_change_single_fields_while_exploring(project: Project) -> None:
    code = (
        "from helpers.config import resolve;"
        "c = resolve('dummy', 'perf_offline', gpu='CPU (dummy)', overrides={'batch_sizes': [3]});"
        "print(c.batch_sizes, c.target)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code],
        cwd=project.root / "notebooks/dummy",
        env=environment(project),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.stdout == "[3] dummy\n"


def test_the_batch_command_injects_only_the_slice_that_a_stage_reads(finished: Project) -> None:
    executed = json.loads((finished.target / "dummy/onnx-fp32/convert.ipynb").read_text())
    (injected,) = [
        c for c in executed["cells"] if "injected-parameters" in c["metadata"].get("tags", [])
    ]
    source = "".join(injected["source"])
    assert "batch_sizes" not in source
    assert "openvino" not in source
    assert len(source) < 800


def test_exploring_leaves_the_experiment_as_it_is_and_goes_on_by_name(
    project: Project, tmp_path: Path
) -> None:
    before = project.result("onnx-fp32", "deploy")
    name = "onnx-fp32~max_queue_delay_us=7"
    notebook = "notebooks/dummy/{}.ipynb"
    file = ("-f", "params/dummy.yaml")
    overrides = ("-y", "overrides: {max_queue_delay_us: 7}")

    for stage, given in (("deploy", overrides), ("perf_online", ("-p", "experiment", name))):
        command = (str(Path(sys.executable).parent / "papermill"), notebook.format(stage))
        ended = subprocess.run(
            [*command, str(tmp_path / "out.ipynb"), *file, *given],
            cwd=project.root,
            env=environment(project),
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert ended.returncode == 0, ended.stderr

    explored = project.result(name, "deploy")
    assert explored.artifact
    assert before.artifact
    assert explored.artifact.folder != before.artifact.folder
    assert project.result(name, "perf_online").state == "done"
    assert project.result("onnx-fp32", "deploy") == before
    answer = project.run("publish")
    assert answer.code == 0, answer.output
    assert name in (project.target / "index.html").read_text()
    assert name not in (project.target / "results.csv").read_text()
