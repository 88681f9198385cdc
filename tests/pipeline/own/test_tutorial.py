"""The tutorial of helpers/README.md: pasted line by line, its commands print what it says."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.results import read
from helpers.store import ROOT
from tests.conftest import Project, copy_project, free_ports, wait_for
from tests.pipeline.own.test_stages import STAGES, is_ready, quicken

TEXT = (ROOT / "helpers/README.md").read_text(encoding="utf-8")


def blocks(kind: str) -> list[str]:
    """List the fenced blocks of a kind, in order."""
    return re.findall(rf"^```{kind}\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)


def paste(code: str, project: Project) -> str:
    """Run lines of Python in the project's folder; return what they printed."""
    words = [sys.executable, "-W", "error", "-c", code]
    env = os.environ | {"PYTHONPATH": project.path}
    done = subprocess.run(words, cwd=project.root, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.thorough
@pytest.mark.usefixtures("nothing_left")
def test_a_reader_of_the_tutorial_gets_a_report_and_a_served_model(tmp_path: Path) -> None:
    project = copy_project(tmp_path / "project")
    make, request = blocks("python")
    commands = [
        shlex.split(line, comments=True) for each in blocks("bash") for line in each.splitlines()
    ]
    new, run, serve = [words[1:] for words in commands if words[0] == "triton-notebooks"][:3]
    paste(make, project)

    assert project.run(*new).output == blocks("text")[0]

    quicken(project, "digits", "onnx-fp32")
    answer = project.run(*run)
    assert answer.code == 0, answer.output
    stages = [f"digits onnx-fp32 {stage}" for stage in STAGES]
    assert answer.executed() == [*stages, "digits report"]
    (page,) = re.findall(r"outputs/digits/\S+\.html", TEXT)
    assert (project.root / page).exists()
    deployed = read(project.root / "outputs/digits/digits/onnx-fp32/deploy.json")
    assert deployed
    (accuracy,) = (each.served for each in deployed.scores if each.metric == "accuracy")
    assert f"accuracy of the ONNX file, {accuracy:.1%}" in TEXT

    (port,) = free_ports(1)
    process = project.start(*(word.replace("8000", str(port)) for word in serve))
    try:
        wait_for(lambda: is_ready(f"127.0.0.1:{port}", "digits"))
        printed = paste(request.replace("8000", str(port)), project)
    finally:
        process.send_signal(2)
        process.communicate(timeout=60)
    assert f"# {printed}" in request
