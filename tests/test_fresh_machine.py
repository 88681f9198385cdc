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

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(5400)]

MACHINES, INDEX = os.environ.get("FRESH_MACHINES", ""), os.environ.get("FRESH_INDEX", "")
INSTALL = PASTED[0].replace(" &&\ntriton-notebooks run", "")
HAS_WHEEL = {"bookworm": True, "trixie": False}  # a CPU build of PyTorch for this Debian's Python
NEEDS_TORCH = "--stage=export --stage=convert --stage=deploy --stage=report"
SCRIPT = f"""
cd && git clone --quiet /bundle project && cd project
sed -i s#{PYTORCH}#{INDEX}/pytorch# docker/torch.lock
export PIP_INDEX_URL={INDEX}/pypi
{{ {INSTALL}; }} 2>&1; echo "installing ended with $?"
triton-notebooks doctor params/smoke.yaml; echo "doctor ended with $?"
triton-notebooks run params/smoke.yaml --model dlrm; echo "run ended with $?"
triton-notebooks run params/smoke.yaml --model resnet50 {NEEDS_TORCH}; echo "run ended with $?"
ls outputs/index.html outputs/smoke/*/report.html
"""
AS_ROOT = """
useradd --create-home --home-dir /srv/stranger --shell /bin/bash stranger
su - stranger -c 'bash /script'
rm /usr/lib/x86_64-linux-gnu/libpython3.* && echo without library
su - stranger -c '. project/.venv/bin/activate; cd project; triton-notebooks doctor' 2>&1
"""


@pytest.fixture(scope="module")
def engine():
    if not Path(MACHINES, "trixie/usr").is_dir():
        pytest.skip("FRESH_MACHINES names no folder of machines, which CI makes")
    with engines.engine(own=True) as found:
        yield found


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in HAS_WHEEL]
)
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
    command = ["docker", f"--host={engine.host}", "run", "--rm", "--network=host", "--cpus=1.5"]
    done = subprocess.run(
        [*command, *mounts, name, "sh", "-c", AS_ROOT],
        **{"capture_output": True, "text": True, "encoding": "utf-8"},
    )
    said = done.stdout + done.stderr

    has_wheel = HAS_WHEEL[name]
    lines = said.splitlines()
    assert f"installing ended with {0 if has_wheel else 1}" in lines, said
    assert f"doctor ended with {0 if has_wheel else 1}" in lines, said
    assert not [line for line in lines if "broken installation" in line], said
    assert lines.count("run ended with 0") == 2, said
    if not has_wheel:
        assert "ERROR: No matching distribution found for torch==2.13.0" in lines
        assert [line for line in lines if "torch" in line and "skipped" in line], said
    assert not [line for line in lines if "Traceback" in line], said

    reports = {line.split("/")[2] for line in lines if line.endswith("/report.html")}
    assert reports >= ({"resnet50", "dlrm"} if has_wheel else {"dlrm"})
    assert "outputs/index.html" in lines
    assert "Install the package libpython3." in said.partition("without library")[2]
