"""The images of docker/Dockerfile, built by a real Docker engine without a network.

Base images under the Dockerfile's names are made of this machine's files. They hold the packages of
JupyterLab and of the command line, and the lock is cut down to these: pip finds them installed, but
for setuptools, which it installs from a wheel.
"""

import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import distribution, files, version
from pathlib import Path
from urllib.request import urlopen
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from helpers.store.paths import ROOT
from tests.conftest import free_ports, wait_for
from tests.triton import engine as engines

pytestmark = [pytest.mark.slow, pytest.mark.thorough]
LIBRARY = f"/usr/local/lib/python{engines.PYTHON}"
TOOLS = ("sh", "chmod", "find", "mkdir", "touch", "useradd")
PACKAGES = ("jupyterlab", "typer", "pydantic", "PyYAML", "filelock", "lazy_loader", "psutil")
SCRIPT = """#!/usr/local/bin/python3
import sys
from {entry.module} import {entry.attr}
sys.exit({entry.attr}())
"""
USER = "12345:12345"  # a number that no image knows
CONTENTS = "api/contents/notebooks/bert"


def closure(*names):
    """The distributions of these names and all that they require."""
    found = set()  # with the extra that is asked for
    ahead = [Requirement(name) for name in names]
    while ahead:
        asked = ahead.pop()
        for extra in ("", *asked.extras):
            if (key := (canonicalize_name(asked.name), extra)) not in found:
                found.add(key)
                for line in map(Requirement, distribution(asked.name).requires or ()):
                    if not line.marker or line.marker.evaluate({"extra": extra}):
                        ahead.append(line)
    return {name for name, _ in found}


def import_base(engine, name, packages, folder):
    """Make an image like Python's own: Python and `packages` in /usr/local, and the tools that the
    Dockerfile uses.
    """
    wheel = write_wheel("setuptools", folder)
    packages = packages - {"setuptools"}
    found = engines.python_files(LIBRARY, f"{LIBRARY}/site-packages", packages)
    found[f"/wheels/{wheel.name}"] = wheel
    for command in ("python", "python3"):
        found[f"/usr/local/bin/{command}"] = Path(sys.executable)
    found |= {f"/usr/bin/{each}": Path(shutil.which(each) or "") for each in TOOLS}
    found["/bin/sh"] = found.pop("/usr/bin/sh")
    for package in packages:
        for each in files(package) or ():
            if "share" in each.parts and each.parts[0] == ".." and each.locate().is_file():
                place = each.parts[each.parts.index("share") :]
                found[f"/usr/local/{'/'.join(place)}"] = Path(str(each.locate()))
        for entry in distribution(package).entry_points.select(group="console_scripts"):
            script = folder / entry.name
            script.write_text(SCRIPT.format(entry=entry))
            script.chmod(0o755)
            found[f"/usr/local/bin/{entry.name}"] = script
    tar = folder / "base.tar"
    engines.write_tar(tar, found)
    path = "ENV PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    pip = "ENV PIP_NO_INDEX=1 PIP_FIND_LINKS=/wheels"
    engine.docker("import", f"--change={path}", f"--change={pip}", str(tar), name)
    tar.unlink()


def write_wheel(name, folder):
    """Pack an installed distribution as the wheel that it came from."""
    path = folder / f"{name}-{version(name)}-py3-none-any.whl"
    with ZipFile(path, "w") as wheel:
        for each in files(name) or ():
            if ".." not in each.parts and each.suffix != ".pyc":
                wheel.write(each.locate(), str(each))
    return path


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    """An engine of our own with the images `cpu` and `lab`."""
    # that of this machine may have the real base images under these names
    with engines.engine(own=True) as found:
        folder = tmp_path_factory.mktemp("image")
        client, python = re.findall(
            r"^FROM (\S+:\S+) AS", (ROOT / "docker/Dockerfile").read_text(), re.MULTILINE
        )
        packages = closure(*PACKAGES, "numpy", "pip", "setuptools")
        import_base(found, python, packages, folder)
        docker = folder / "client.tar"
        engines.write_tar(docker, {"/usr/local/bin/docker": Path(shutil.which("docker") or "")})
        found.docker("import", str(docker), client)
        context = folder / "project"
        shutil.copytree(
            ROOT, context, ignore=shutil.ignore_patterns(".*", "outputs", "data", "__pycache__")
        )
        shutil.copy(ROOT / ".dockerignore", context)
        for lock in (context / "docker").glob("*.lock"):
            lines = lock.read_text(encoding="utf-8").splitlines()
            kept = [each for each in lines if canonicalize_name(each.split("==")[0]) in packages]
            lock.write_text("\n".join(kept), encoding="utf-8")
        for target in ("cpu", "lab"):
            words = ("build", "--network=none", f"--file={context}/docker/Dockerfile")
            found.docker(*words, f"--target={target}", f"--tag={target}", str(context))
        yield found


def test_the_batch_command_runs_as_any_user_and_its_files_are_theirs(engine, tmp_path):
    outputs = tmp_path / "outputs"
    outputs.mkdir()
    os.chown(outputs, 12345, 12345)
    run = ("run", "--rm", "--network=none", f"--user={USER}")
    mount = f"--volume={outputs}:/lab/project/outputs"

    assert engine.docker(*run, mount, "cpu", "clear").startswith("unused artifacts: 0")
    assert [(each.name, each.stat().st_uid) for each in outputs.iterdir()] == [(".lock", 12345)]
    same = ["params/smoke.yaml"] * 2
    assert engine.docker(*run, "cpu", "params", "diff", *same) == "no difference"
    assert engine.docker("run", "--rm", "--network=none", "cpu").startswith("Usage: ")


def test_an_image_has_the_named_files_and_no_right_to_change_them(engine):
    shell = ("run", "--rm", "--network=none", "--entrypoint=find", "cpu", "/lab")
    found = engine.docker(*shell, "-maxdepth", "2", "-path", "*/project/*").split()
    named = ["LICENSE", "README.md", "docker", "helpers", "notebooks", "outputs", "params"]
    named += ["pyproject.toml"]

    assert sorted(found) == [f"/lab/project/{name}" for name in named]
    writable = engine.docker(*shell, "-writable", "-type", "d").split()
    assert writable == ["/lab", "/lab/project/outputs"]
    assert engine.docker(*shell, "-name", "__pycache__", "-path", "*/helpers/*").split()


def test_a_module_is_compiled_without_a_time(engine):
    """Flags of 3: checked against a hash of its source. Source: PEP 552."""
    code = (
        "import json, helpers.errors as ours, setuptools as theirs\n"
        "print([open(each.__cached__, 'rb').read()[4] for each in (json, ours, theirs)])"
    )
    run = ("run", "--rm", "--network=none", "--entrypoint=python", "cpu", "-c", code)

    assert engine.docker(*run) == "[3, 3, 3]"


def test_jupyterlab_answers_those_who_have_its_token(engine, tmp_path):
    (port,) = free_ports(1)
    socket = engine.host.removeprefix("unix://")
    options = ("--network=host", "--cap-drop=ALL", "--security-opt=no-new-privileges:true")
    lab = engine.docker(
        *("run", "--detach", *options, f"--user={USER}", f"--group-add={os.stat(socket).st_gid}"),
        f"--volume={socket}:/var/run/docker.sock",
        *("lab", "jupyter", "lab", "--ip=127.0.0.1", "--no-browser", f"--port={port}"),
    )
    try:
        wait_for(lambda: "token=" in logs(engine, lab))
        token = re.findall(r"token=(\w+)", logs(engine, lab))[0]
        url = f"http://127.0.0.1:{port}"
        for place, words in (("lab", b"<title>JupyterLab</title>"), (CONTENTS, b'"export.ipynb"')):
            assert words in urlopen(f"{url}/{place}?token={token}").read()
        with pytest.raises(OSError, match="403"):
            urlopen(f"{url}/api/contents/notebooks")
        version = engine.docker("version", "--format={{.Server.Version}}")
        inside = ("exec", lab, "docker", "version", "--format={{.Server.Version}}")
        assert engine.docker(*inside) == version
    finally:
        engine.docker("rm", "--force", lab)


def logs(engine, container):
    command, env = ["docker", "logs", container], {**os.environ, "DOCKER_HOST": engine.host}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    return done.stdout + done.stderr
