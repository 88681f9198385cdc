"""Where the stores of served models keep their databases."""

import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from helpers.config import resolve
from helpers.inference import ensemble
from tests.conftest import ONNX


@pytest.fixture
def deployed(monkeypatch):
    monkeypatch.delenv("HPS_FOLDER", raising=False)
    models = {"dlrm": {"experiments": {"mine": ONNX | {"lookup": "hps"}}}}
    return resolve("dlrm", "deploy", gpu="Test", models=models)


@pytest.mark.parametrize("first_to_end", [0, 1])
def test_two_servers_at_once_have_a_folder_each(deployed, tmp_path, first_to_end):
    kept = tmp_path / "outputs/Test/databases"
    servers = [ExitStack(), ExitStack()]
    for stack, name in zip(servers, ("first", "second"), strict=True):
        repository = tmp_path / "outputs/Test/artifacts" / name
        stack.enter_context(ensemble.databases(deployed, repository))
        assert os.environ["HPS_FOLDER"] == str(kept / name)

    servers.pop(first_to_end).close()
    assert os.environ["HPS_FOLDER"] == str(kept / ("second", "first")[first_to_end])
    servers.pop().close()
    assert "HPS_FOLDER" not in os.environ


def test_the_folder_that_the_user_has_set_holds_for_all(deployed, tmp_path, monkeypatch):
    monkeypatch.setenv("HPS_FOLDER", str(tmp_path))
    with (
        ensemble.databases(deployed, tmp_path / "artifacts/first"),
        ensemble.databases(deployed, tmp_path / "artifacts/second"),
    ):
        assert os.environ["HPS_FOLDER"] == str(tmp_path)
    assert os.environ["HPS_FOLDER"] == str(tmp_path)


@pytest.mark.parametrize("place", ["outputs", "outputs/Test/artifacts"])
def test_databases_of_a_temporary_repository_are_in_the_outputs_and_go_with_it(
    deployed, tmp_path, place
):
    with ensemble.databases(deployed, tmp_path / place / ".served-1"):
        folder = Path(os.environ["HPS_FOLDER"])
        assert folder == tmp_path / "outputs/Test/databases/.served-1"
        (folder / "rocks").mkdir(parents=True)
    assert not folder.exists()
    with ensemble.databases(deployed, tmp_path / place / "dlrm-deploy-0123456789ab"):
        folder = Path(os.environ["HPS_FOLDER"])
        folder.mkdir(parents=True)
    assert folder.exists()
