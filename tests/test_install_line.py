"""The README's lines that install, as a stranger pastes them.

Loopback indexes stand in for PyPI and PyTorch's own: folders of small wheels, which `http.server`
lists as an index does.
"""

import os
import re
import shutil
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from zipfile import ZipFile

import pytest

from helpers.store.paths import ROOT
from tests.test_image import write_wheel

pytestmark = pytest.mark.thorough

README = (ROOT / "README.md").read_text(encoding="utf-8")
PASTED = re.findall(r"```bash\n(.*?triton-notebooks run)\n```", README, re.DOTALL)
PYTORCH = "https://download.pytorch.org/whl/cpu"
NOBODY = "http://127.0.0.1:9/cpu"
CPU, CUDA = "2.13.0+cpu", "2.13.0"
CUDA_FAILS = "raise ImportError('libcudnn.so.9: cannot open shared object file')"
TAG = f"cp{sys.version_info.major}{sys.version_info.minor}"


def wheel(folder, name, version, source="", tag="py3-none-any"):
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    with ZipFile(folder / f"{name}-{version}-{tag}.whl", "w") as file:
        file.writestr(f"{name}/__init__.py", f"__version__ = {version!r}\n{source}\n")
        file.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
        file.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n")
        file.writestr(f"{info}/RECORD", "")


@pytest.fixture(scope="module")
def indexes(tmp_path_factory):
    """The address of an index like PyPI and one like PyTorch's, and a folder of wheels."""
    root = tmp_path_factory.mktemp("indexes")
    wheel(root / "pypi/torch", "torch", CUDA, CUDA_FAILS, f"{TAG}-{TAG}-manylinux_2_28_x86_64")
    wheel(root / "pypi/small", "small", "1.0")
    wheel(root / "pypi/carrier", "carrier", "1.0")
    (root / "pypi/setuptools").mkdir()
    write_wheel("setuptools", root / "pypi/setuptools")
    cpu = root / "pytorch/torch"
    wheel(cpu, "torch", CPU, tag=f"{TAG}-{TAG}-manylinux_2_28_x86_64")
    shutil.copytree(cpu, root / "links")
    handler = partial(SimpleHTTPRequestHandler, directory=str(root))
    handler.log_message = lambda *words: None
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", root / "links"
        server.shutdown()


@pytest.fixture
def clone(tmp_path):
    """A clone whose locks name stand-ins: a small package, a carrier of binaries, and PyTorch."""
    (tmp_path / "docker").mkdir()
    (tmp_path / "docker/requirements.lock").write_text("small==1.0\n")
    (tmp_path / "docker/triton.lock").write_text("carrier==1.0\n")
    shutil.copy(ROOT / "docker/torch.lock", tmp_path / "docker")
    (tmp_path / "helpers").mkdir()
    (tmp_path / "helpers/__init__.py").write_text("")
    (tmp_path / "helpers/__main__.py").write_text(
        "def main():\n    import small, torch\n    print('torch', torch.__version__)\n"
    )
    (tmp_path / "pyproject.toml").write_text(
        "[build-system]\nrequires = ['setuptools']\nbuild-backend = 'setuptools.build_meta'\n"
        "[project]\nname = 'triton-notebooks'\nversion = '0'\n"
        "[project.scripts]\ntriton-notebooks = 'helpers.__main__:main'\n"
        "[tool.setuptools]\npackages = ['helpers']\n"
    )
    return tmp_path


def paste(text, clone, pypi, pytorch, **environment):
    """Paste lines into a shell; return its exit code and what it printed."""
    lock = clone / "docker/torch.lock"
    lock.write_text(lock.read_text().replace(PYTORCH, pytorch))
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    own = {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": pypi, "UV_INDEX_URL": pypi}
    text = text.replace("python3 ", f"{sys.executable} ").replace("3.12 ", f"{sys.executable} ")
    text = text.replace(PYTORCH, pytorch)
    done = subprocess.run(
        ["bash", "-c", text],
        **{"cwd": clone, "env": kept | own | environment, "timeout": 300},
        **{"capture_output": True, "text": True, "encoding": "utf-8"},
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("way", "index", "more"),
    [
        ("pip", "{url}/pytorch", {}),
        ("uv", "{url}/pytorch", {}),
        # which does not bring the build with CUDA
        ("pip", "{url}/pytorch", {"PIP_EXTRA_INDEX_URL": "{url}/pypi"}),
        ("pip", NOBODY, {"PIP_FIND_LINKS": "{links}"}),  # a wheel of a folder is taken
    ],
)
def test_an_ordinary_machine_gets_the_cpu_build(way, index, more, indexes, clone):
    places = dict(zip(("url", "links"), indexes, strict=True))
    more = {name: value.format(**places) for name, value in more.items()}
    pypi, text = f"{places['url']}/pypi", PASTED[way == "uv"]
    code, said, errors = paste(text, clone, pypi, index.format(**places), **more)

    assert (code, said.splitlines()[-1:]) == (0, [f"torch {CPU}"]), errors
    assert (clone / ".venv/triton/carrier").is_dir()


def test_a_machine_without_a_cpu_build_is_told_which_package_is_missing(indexes, clone):
    url, _ = indexes
    code, said, errors = paste(PASTED[0], clone, f"{url}/pypi", NOBODY)

    assert (code, said) == (1, "")
    assert errors.splitlines()[-1] == "ERROR: No matching distribution found for torch==2.13.0"
