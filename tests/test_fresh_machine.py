"""Machines as strangers have them: images of Debian with nothing but what the README names.

CI makes their root folders by debootstrap in the folder FRESH_MACHINES, and starts loopback indexes
at FRESH_INDEX. In a container a user who is not root pastes the README's line into a clone and
uses what it has installed. The container has Docker's 64 MB of /dev/shm and 1.5 cores.
"""

import os
import subprocess
from pathlib import Path

import pytest

from helpers.store.paths import ROOT
from tests.test_install_line import PASTED, PYTORCH
from tests.triton import engine as engines

pytestmark = pytest.mark.thorough

MACHINES, INDEX = os.environ.get("FRESH_MACHINES", ""), os.environ.get("FRESH_INDEX", "")
INSTALL = PASTED[0].replace(" &&\ntriton-notebooks run", "")
HAS_WHEEL = {"bookworm": True, "trixie": False}  # a CPU build of PyTorch for this Debian's Python
SCRIPT = f"""
cd && git clone --quiet /bundle project && cd project
sed -i s#{PYTORCH}#{INDEX}/pytorch# docker/torch.lock
export PIP_INDEX_URL={INDEX}/pypi
{{ {INSTALL}; }} 2>&1; echo "installing ended with $?"
triton-notebooks doctor params/smoke.yaml; echo "doctor ended with $?"
triton-notebooks run params/smoke.yaml --model resnet50 --model dlrm; echo "run ended with $?"
"""
WITHOUT_LIBRARY = """
rm /usr/lib/x86_64-linux-gnu/libpython3.*
su - stranger -c '. project/.venv/bin/activate; cd project; triton-notebooks doctor'
"""


@pytest.fixture(scope="module")
def engine():
    if not Path(MACHINES, "trixie/usr").is_dir():
        pytest.skip("FRESH_MACHINES names no folder of machines, which CI makes")
    with engines.engine(own=True) as found:
        yield found


def run_as_root(engine, name, script, *options, image=""):
    """Run a script in a container of the machine `name`; return what it printed."""
    words = ["run", f"--name={name}", "--network=host", *options, image or name, "sh", "-c", script]
    done = subprocess.run(
        ["docker", f"--host={engine.host}", *words],
        **{"capture_output": True, "text": True, "encoding": "utf-8", "timeout": 1200},
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize("name", HAS_WHEEL)
def test_a_stranger_installs_and_runs_it(name, engine, tmp_path):
    tar = ["tar", "-C", str(Path(MACHINES, name)), "-c", "."]
    with subprocess.Popen(tar, stdout=subprocess.PIPE) as packed:
        command = ["docker", f"--host={engine.host}", "import", "-", name]
        subprocess.run(command, check=True, stdin=packed.stdout, capture_output=True)
    bundle, script = tmp_path / "bundle", tmp_path / "script"
    git = ["git", "-C", os.environ.get("FRESH_SOURCE", str(ROOT)), "bundle", "create"]
    subprocess.run([*git, "--quiet", str(bundle), "HEAD"], check=True)
    script.write_text(SCRIPT, encoding="utf-8")
    mounts = [f"--volume={bundle}:/bundle:ro", f"--volume={script}:/script:ro"]
    user = "useradd --create-home --home-dir /srv/stranger --shell /bin/bash stranger"
    user += " && exec su - stranger -c 'bash /script'"
    said = run_as_root(engine, f"{name}-run", user, *mounts, "--cpus=1.5", image=name)

    has_wheel = HAS_WHEEL[name]
    lines = said.splitlines()
    assert f"installing ended with {0 if has_wheel else 1}" in lines, said
    assert f"doctor ended with {0 if has_wheel else 1}" in lines, said
    assert not [line for line in lines if "broken installation" in line], said
    assert "run ended with 0" in lines, said
    if not has_wheel:
        assert "ERROR: No matching distribution found for torch==2.13.0" in lines
        assert [line for line in lines if "torch" in line and "skipped" in line], said
    assert not [line for line in lines if "Traceback" in line], said

    pages = tmp_path / "pages"
    place = f"{name}-run:/srv/stranger/project/outputs"
    engine.docker("cp", place, str(pages))
    reports = {path.parent.name for path in pages.glob("smoke/*/report.html")}
    assert reports >= ({"resnet50", "dlrm"} if has_wheel else {"dlrm"})
    assert (pages / "index.html").is_file()

    engine.docker("commit", f"{name}-run", f"{name}-installed")
    said = run_as_root(engine, f"{name}-doctor", WITHOUT_LIBRARY, image=f"{name}-installed")
    assert "Install the package libpython3." in said
    assert "Traceback" not in said
