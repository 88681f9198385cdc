"""Triton from PyPI runs its Python backend with the interpreter of this environment."""

import sys
import sysconfig
from pathlib import Path

import psutil
import pytest

from helpers.errors import ServerError
from helpers.machine.checks import run_checks
from helpers.triton import binaries, embedded

VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
LIBRARY = Path(str(sysconfig.get_config_var("LIBDIR")), f"lib{VERSION}.so.1.0")


@pytest.mark.slow
@pytest.mark.skipif(not LIBRARY.exists(), reason="this Python came without its library")
def test_a_stub_is_this_interpreter_and_not_another_of_its_version(doubles, tmp_path):
    """The system may have an older one, or none: pyenv and conda keep theirs to themselves."""
    with embedded.serve(doubles, log=tmp_path / "log") as server:
        server.ready()
        found = psutil.Process(server.processes[0]).children(recursive=True)
        (stub,) = [each for each in found if "triton_python_backend_stub" in each.exe()]
        loaded = [Path(each.path).resolve() for each in stub.memory_maps()]

    assert LIBRARY.resolve() in loaded


@pytest.mark.parametrize("on_the_system", [True, False])
def test_a_python_without_its_library_takes_the_system_s_or_says_what_to_install(
    on_the_system, tmp_path, monkeypatch
):
    monkeypatch.setattr(sysconfig, "get_config_var", lambda _: str(tmp_path))
    monkeypatch.setattr(binaries, "SYSTEM_LIBRARIES", [str(tmp_path / "system")])
    library = tmp_path / f"system/lib{VERSION}.so.1.0"
    if on_the_system:
        library.parent.mkdir()
        library.touch()
    (check,) = [each for each in run_checks([]) if each.name == "Python's library"]

    line = f"Triton's Python backend needs lib{VERSION}.so.1.0. Install the package lib{VERSION}."
    if on_the_system:
        assert binaries.python_library() == library
    else:
        with pytest.raises(ServerError, match=f"^{line}$"):
            binaries.python_library()
    assert check.line == f"Python's library: {'found' if on_the_system else line}"
