"""Packages have a home to write to where the user has none, and an import may leave one out."""

import importlib
import json
import os
import sys
import tempfile

import pytest

from helpers.store import block_import
from helpers.store.home import FOLDERS, writable_home


@pytest.fixture(autouse=True)
def tmpdir(tmp_path, monkeypatch):
    """A temporary folder of its own, and no folder for any package."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    for name in FOLDERS:
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "tmp"


@pytest.mark.parametrize(
    ("home", "left"), [("/proc/1", "/proc/1"), ("/nowhere", None)], ids=["read-only", "not there"]
)
def test_packages_write_to_a_folder_that_goes_with_the_block(home, left, tmpdir, monkeypatch):
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


def test_a_home_that_can_be_written_to_is_used(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    before = dict(os.environ)

    with writable_home():
        assert dict(os.environ) == before


def test_a_package_is_missing_meanwhile_and_one_that_was_imported_stays(monkeypatch):
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)

    with block_import("colorsys"), pytest.raises(ModuleNotFoundError):
        importlib.import_module("colorsys")
    assert importlib.import_module("colorsys").rgb_to_hls(0, 0, 0) == (0, 0, 0)
    with block_import("json"):
        assert importlib.import_module("json") is json
