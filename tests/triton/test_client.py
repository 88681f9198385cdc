"""The client that a repository takes along runs without this package, and gets right answers."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from helpers.triton.client import ADDRESS, CLIENT, SAMPLE
from helpers.triton.embedded import serve
from tests.conftest import Project
from tests.dummy import Points, weights


def answer_to_client(repository: Path, url: str, elsewhere: Path) -> str:
    """What the client prints that was taken from a repository to the folder `elsewhere`, where a
    server answers at `url`.
    """
    elsewhere.mkdir()
    shutil.copy(repository / SAMPLE, elsewhere)
    text = (repository / CLIENT).read_text()
    assert "helpers" not in text
    assert str(repository.parent) not in text
    assert text.count(ADDRESS) == 1
    (elsewhere / CLIENT).write_text(text.replace(ADDRESS, url))
    command = [sys.executable, "-W", "ignore", CLIENT]
    done = subprocess.run(command, cwd=elsewhere, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.slow
def test_it_gets_the_frameworks_answer_from_a_plain_model(
    finished: Project, tmp_path: Path
) -> None:
    deployed = finished.result("onnx-fp32", "deploy").artefact
    assert deployed
    repository = finished.target / "artefacts" / deployed.folder
    (data,) = (finished.root / "outputs/data").glob("dummy-dataset-*")
    right = Points(data).x[0] @ weights().T

    with serve(repository, log=tmp_path / "server.log") as server:
        printed = answer_to_client(repository, server.url, tmp_path / "elsewhere")

    name, values = printed.strip().split(" ", 1)
    assert name == "logits"
    found = [float(value) for value in re.findall(r"-?\d+\.\d*(?:e-?\d+)?", values)]
    np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_its_page_shows_it_and_what_it_printed(finished: Project) -> None:
    page = (finished.target / "dummy/onnx-fp32/deploy.html").read_text()

    assert "to be run beside <code>sample.npz</code>" in page
    assert "What it printed" in page
    assert "logits [" in page
