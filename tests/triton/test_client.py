"""The client that a repository takes along runs without this package, and gets right answers."""

import shutil
import subprocess
import sys

import pytest

from helpers.triton.client import ADDRESSES, CLIENT, SAMPLE


def answer_to_client(repository, url, elsewhere):
    """What the client prints that was taken from a repository to the folder `elsewhere`, where a
    server answers at `url`.
    """
    elsewhere.mkdir()
    shutil.copy(repository / SAMPLE, elsewhere)
    text = (repository / CLIENT).read_text()
    assert "helpers" not in text
    assert str(repository.parent) not in text
    (address,) = (each for each in ADDRESSES.values() if each in text)
    assert text.count(address) == 1
    (elsewhere / CLIENT).write_text(text.replace(address, url))
    command = [sys.executable, "-I", CLIENT]
    done = subprocess.run(command, cwd=elsewhere, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.slow
@pytest.mark.thorough
def test_its_page_shows_it_and_what_it_printed(finished):
    page = (finished.target / "dummy/onnx-fp32/deploy.html").read_text()

    assert "in the folder of <code>sample.npz</code>" in page
    assert "logits [" in page
