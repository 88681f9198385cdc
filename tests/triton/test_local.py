"""A Triton that is installed here: the wheel's files, laid out as in NVIDIA's image."""

import os
import sys
from contextlib import contextmanager

import numpy as np
import pytest

from helpers.errors import ServerError
from helpers.machine import checks, preflight
from helpers.triton import binaries, embedded, local
from tests.triton.conftest import config, refused

IDS = {"ids": np.arange(6, dtype=np.int64).reshape(3, 2)}


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """The folder of a Triton with the Python backend alone."""
    folder = tmp_path / "tritonserver"
    (folder / "backends").mkdir(parents=True)
    (folder / "bin").mkdir()
    (folder / "bin/tritonserver").symlink_to(binaries.require("Triton"))
    embedded.link_backend(folder / "backends")
    (folder / "TRITON_VERSION").write_text("2.51.0\n")
    # as an image has them for its own Python
    monkeypatch.setenv("LD_PRELOAD", str(binaries.python_library()))
    monkeypatch.setenv("PATH", f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}")
    return folder


def of(folder, **more):
    return config(kind="local", path=str(folder), **more)


@pytest.mark.slow
def test_its_answers_are_those_of_the_embedded_server(installed, doubles, tmp_path):
    chosen = of(installed, backend="adapter", fields={"protocol": "grpc"})
    with (
        embedded.serve(doubles, log=tmp_path / "embedded") as one,
        local.serve(doubles, config=chosen, log=tmp_path / "log", scenario="offline") as other,
    ):
        right, found = one.infer("doubles", IDS)["doubled"], other.infer("doubles", IDS)["doubled"]
        assert (found.dtype, found.tolist()) == (right.dtype, right.tolist())
        assert other.protocol == "grpc"
        assert len(other.processes) == 1
    assert not other.is_live()


def test_its_version_and_backends_are_told_and_a_missing_one_is_a_line(installed):
    assert local.describe(of(installed).server) == "2.51.0; backends: python"
    adapted = of(installed, backend="adapter", stage="convert")
    assert preflight.why_unavailable(adapted) == ""
    native = of(installed, stage="convert")
    said = f"{installed} has no backend onnxruntime. It has: python."
    assert preflight.why_unavailable(native) == said
    (check,) = [each for each in checks.run_checks([native]) if each.name == "Triton"][1:]
    assert (check.ok, check.found) == (True, "2.51.0; backends: python")


def test_it_gets_the_variables_that_a_container_gets(installed, repository, tmp_path, monkeypatch):
    found = []

    @contextmanager
    def start(command, env, *rest):
        found.append((env["NVIDIA_TF32_OVERRIDE"], command))
        yield None

    monkeypatch.setattr(embedded, "start", start)
    with local.serve(repository, config=of(installed, device="gpu"), log=tmp_path / "log"):
        ((tf32, command),) = found
        assert (tf32, command[-1]) == ("0", "--disable-auto-complete-config")


def test_a_folder_without_triton_is_refused(tmp_path, repository):
    said = f"There is no bin/tritonserver in {tmp_path}. Set server.path to Triton's."
    assert refused(local.serve, repository, of(tmp_path)) == said
    assert preflight.why_unavailable(of(tmp_path, stage="convert")) == said
    with pytest.raises(ServerError, match="no bin/tritonserver"):
        local.describe(of(tmp_path).server)


@pytest.mark.slow
def test_a_backend_that_crashes_on_loading_is_an_error_with_its_last_line(
    installed, doubles, tmp_path
):
    library = installed / "backends/python/libtriton_python.so"
    library.unlink()
    library.write_bytes(b"no library")
    chosen = of(installed, backend="adapter")
    with (
        pytest.raises(ServerError, match="Triton ended while it started: .*libtriton_python"),
        local.serve(doubles, config=chosen, log=tmp_path / "log") as server,
    ):
        server.ready()
