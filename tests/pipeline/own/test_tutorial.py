"""The tutorial of helpers/README.md: pasted line by line, its commands print what it says."""

import os
import re
import shlex
import subprocess
import sys

import pytest

from helpers.results import read
from helpers.store import ROOT
from tests.conftest import free_ports
from tests.pipeline.own.builders import STAGES, quicken, served

TEXT = (ROOT / "helpers/README.md").read_text(encoding="utf-8")


def blocks(kind):
    return re.findall(rf"^```{kind}\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)


def paste(code, project):
    words = [sys.executable, "-W", "error", "-c", code]
    env = os.environ | {"PYTHONPATH": project.path}
    done = subprocess.run(words, cwd=project.root, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.usefixtures("nothing_left")
def test_a_reader_of_the_tutorial_gets_a_report_and_a_served_model(fresh):
    project = fresh
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
    assert answer.executed() == [*stages, "digits compare", "digits report"]
    (page,) = re.findall(r"outputs/digits/\S+\.html", TEXT)
    assert (project.root / page).exists()
    deployed = read(project.root / "outputs/digits/digits/onnx-fp32/deploy.json")
    (accuracy,) = (each.served for each in deployed.scores if each.metric == "accuracy")
    assert f"accuracy of the ONNX file, {accuracy:.1%}" in TEXT

    (port,) = free_ports(1)
    command = [word.replace("8000", str(port)) for word in serve]
    with served(project, command, "digits", port):
        printed = paste(request.replace("8000", str(port)), project)
    assert f"# {printed}" in request
