"""Users as there are: without a home or a name, with another alphabet, and two on one machine."""

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from select import select

import pytest

from tests.conftest import copy_project
from tests.pipeline.own import sources

pytestmark = [pytest.mark.slow, pytest.mark.thorough]
USER, OTHER = 4242, 4243  # without a name
READER = "+dac_read_search"  # this Python and the tests' folders may be root's alone
LATIN = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}  # its letters are ASCII's
LIMITED = (*("run", "params/dummy.yaml", "--experiment", "onnx-fp32"), "--stage", "export")


def as_user(number):
    """What starts a command as another user, who may read everything."""
    if os.getuid() or not shutil.which("setpriv"):
        pytest.skip("only root can be another user")
    groups = (f"--regid={number}", "--clear-groups", f"--inh-caps={READER}")
    return ("setpriv", f"--reuid={number}", *groups, f"--ambient-caps={READER}")


@pytest.fixture
def entered():
    """A folder that other users may enter, unlike pytest's."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def tmpdir(entered, monkeypatch):
    folder = entered / "tmp"
    folder.mkdir()
    folder.chmod(0o1777)
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.mark.parametrize("home", [None, "/proc/1"])
def test_without_a_home_everything_works_and_nothing_stays(home, entered, tmpdir, monkeypatch):
    user = replace(copy_project(entered / "project"), prefix=as_user(USER))
    sources.scores(user.root / "mine.onnx")
    for path in (user.root, *user.root.rglob("*")):
        os.chown(path, USER, USER)
    monkeypatch.delenv("HOME")
    if home:
        monkeypatch.setenv("HOME", home)

    commands = (LIMITED, ("new", "mine", "--from", "mine.onnx"), ("publish",), ("status",))
    for answer in (user.run(*command) for command in commands):
        assert answer.code == 0, answer.output
        assert "home" not in answer.output.lower()
    left = {path.name for path in tmpdir.iterdir()}
    assert left <= {".ses", "triton-notebooks.lock"}, left  # of ONNX Runtime, and of this package


def test_another_alphabet_changes_nothing(fresh, monkeypatch):
    for name, value in LATIN.items():
        monkeypatch.setenv(name, value)

    answer = fresh.run(*LIMITED, "--outputs", "größe")

    assert answer.code == 0, answer.output
    assert "pages: gr??e/index.html" in answer.output
    result = fresh.root / "größe/dummy/dummy/onnx-fp32/export.json"
    assert "--outputs 'größe'" in result.read_text(encoding="utf-8")


MEASURE = """
from helpers.measure.background import exclusive_lock
with exclusive_lock():
    print("measures", flush=True)
    input()
"""


def measuring(user):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    command = [*as_user(user), sys.executable, "-c", MEASURE]
    return subprocess.Popen(command, umask=0o077, bufsize=0, **pipes)


@pytest.mark.usefixtures("tmpdir")
def test_measurements_of_two_users_exclude_each_other():
    with measuring(USER) as first:
        assert first.stdout.readline() == b"measures\n"
        with measuring(OTHER) as second:
            assert select([second.stdout], [], [], 1.5)[0] == []
            first.communicate(b"\n")
            assert second.communicate(b"\n")[0] == b"measures\n"
