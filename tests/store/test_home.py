"""Packages have a home to write to where the user has none."""

import os
import tempfile
from pathlib import Path

import pytest

from helpers.store.home import FOLDERS, writable_home


@pytest.fixture(autouse=True)
def tmpdir(tmp_path, monkeypatch) -> Path:
    """A temporary folder of its own, and no folder for any package."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    for name in FOLDERS:
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "tmp"


@pytest.mark.parametrize(
    ("home", "left"),
    [("/proc/1", "/proc/1"), ("/nowhere", None)],
    ids=["read-only", "not there"],
)
def test_packages_write_to_a_folder_that_goes_with_the_block(
    home, left, tmpdir, monkeypatch
) -> None:
    monkeypatch.setenv("HOME", home)
    monkeypatch.setenv("KERAS_HOME", "/chosen")

    with writable_home():
        (folder,) = tmpdir.iterdir()
        found = {name: os.environ[name] for name in ("HOME", *FOLDERS)}

    own = dict.fromkeys(FOLDERS, str(folder)) | {"KERAS_HOME": "/chosen"}
    assert found == own | {"HOME": left or str(folder)}
    assert list(tmpdir.iterdir()) == []
    assert os.environ["HOME"] == home
    assert "IPYTHONDIR" not in os.environ


def test_a_home_that_can_be_written_to_is_used(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    before = dict(os.environ)

    with writable_home():
        assert dict(os.environ) == before
