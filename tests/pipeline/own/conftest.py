"""Where `triton-notebooks new` writes for a test."""

import sys

import pytest

from helpers.pipeline.own import creation


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The project that `new` writes to; the shell is in its parent, with modules of its own."""
    monkeypatch.setattr(creation, "ROOT", tmp_path / "project")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("modules", "nets", "with_defaults"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path / "project"
