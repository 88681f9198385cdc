"""Outputs folders of the smoke target, and runs whose notebooks are not executed."""

import shutil
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from helpers.pipeline import kernels, running
from helpers.results import Result
from helpers.store import ROOT


@pytest.fixture
def outputs(tmp_path):
    """An outputs folder with the smoke target, of which nothing has run."""
    (tmp_path / "outputs/smoke").mkdir(parents=True)
    shutil.copyfile(ROOT / "params/smoke.yaml", tmp_path / "outputs/smoke/parameters.yaml")
    return tmp_path / "outputs"


@pytest.fixture
def ran(monkeypatch):
    """The notebooks that would be run, as model and stage; each is done, with what `measured` of
    this list is, if it is set.
    """

    class Ran(list):
        measured = None

    found = Ran()

    def execute(source, *_):
        found.append((source.parent.name, source.stem))
        fields = {"model": source.parent.name, "experiment": "", "stage": source.stem, "gpu": ""}
        return Result(**fields, state="done", measurement=found.measured and found.measured())

    monkeypatch.setattr(running, "execute", execute)
    monkeypatch.setattr(running, "missing_prerequisite", lambda _: "")
    nobody = SimpleNamespace(preload=lambda *_: None)
    monkeypatch.setattr(kernels, "kernel_server_context", lambda: nullcontext(nobody))
    return found
