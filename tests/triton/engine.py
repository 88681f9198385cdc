"""A real Docker engine for tests, and a small image with this Python and the wheel's Triton. Where
none answers and the tests run as root, a throw-away one is started in a folder of its own.
"""

import io
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
import uuid
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import files
from importlib.util import cache_from_source
from pathlib import Path

import pytest

from helpers.triton.binaries import libraries, wheel
from helpers.triton.embedded import UTILITIES, utilities
from tests.conftest import wait_for

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
LIBRARY = f"/usr/lib/python{PYTHON}"  # packages lie beside it: the stub looks there
SYSTEM = "/usr/lib/x86_64-linux-gnu"
UNWANTED = {"__pycache__", "test", "tests", "site-packages", "idlelib", "ensurepip", "lib2to3"}


@dataclass
class Engine:
    """A Docker engine and its address; if it is ours, its folder, network and process."""

    host: str
    folder: Path | None = None
    bridge: str = ""
    daemon: "subprocess.Popen[bytes] | None" = None
    images: list[str] = field(default_factory=list)

    def docker(self, *arguments):
        env = {**os.environ, "DOCKER_HOST": self.host}
        options = {"capture_output": True, "text": True, "timeout": 900}  # a build beside tests
        done = subprocess.run(["docker", *arguments], env=env, **options)
        assert done.returncode == 0, done.stdout[-1000:] + done.stderr
        return done.stdout.strip()

    def answers(self):
        with suppress(AssertionError, OSError, subprocess.TimeoutExpired):
            return bool(self.docker("version", "--format={{.Server.Version}}"))
        return False

    def containers(self):
        return self.docker("ps", "--all", "--format={{.Names}}").split()

    def start(self):
        """Start our own engine, or start it again after its end."""
        # a containerd that died with its engine counts as running for as long as nobody reaps it
        (self.folder / "exec/containerd/containerd.pid").unlink(missing_ok=True)
        command = ["dockerd", f"--host={self.host}", f"--pidfile={self.folder}/pid"]
        command += [f"--data-root={self.folder}/data", f"--exec-root={self.folder}/exec"]
        # containers need no way out, and this machine's rules are not ours to change
        command += [f"--bridge={self.bridge}", "--iptables=false", "--ip6tables=false"]
        with (self.folder / "log").open("ab") as log:
            files = {"stdout": log, "stderr": log, "stdin": subprocess.DEVNULL}
            self.daemon = subprocess.Popen(command, start_new_session=True, **files)
        wait_for(lambda: self.answers() or self.daemon.poll() is not None)
        assert self.daemon.poll() is None, (self.folder / "log").read_text()[-500:]

    def stop(self):
        """End our engine. One that was killed is started first: it ends what it left running."""
        if self.daemon and self.daemon.poll() is not None:
            self.start()
        if self.daemon:
            self.daemon.terminate()
            self.daemon.wait(30)


@contextmanager
def engine(own=False):
    """Yield an engine, with `own` a new one; remove all of it afterwards."""
    if not shutil.which("docker"):
        pytest.skip("docker: there is no docker command")
    found = Engine(os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock"))
    if not own and found.answers():
        yield found
        for name in found.images:
            found.docker("rmi", "--force", name)
        return
    if os.getuid() or not shutil.which("dockerd"):
        pytest.skip("docker: there is no engine to use, and only root can start one (dockerd)")
    if not shutil.which("ip"):
        pytest.skip("docker: an engine of our own needs the command ip for its network (iproute2)")
    folder, bridge = Path(tempfile.mkdtemp(prefix="engine-")), f"tn{os.getpid()}"
    found = Engine(f"unix://{folder}/socket", folder, bridge)
    try:
        # a network of its own: what an engine that was killed leaves in one takes its addresses
        network("link", "add", bridge, "type", "bridge")
        network("addr", "add", f"10.{os.getpid() % 200}.{time.time_ns() % 250}.1/24", "dev", bridge)
        network("link", "set", bridge, "up")
        found.start()
        yield found
    finally:
        found.stop()
        network("link", "del", bridge)
        unmount(folder)
        shutil.rmtree(folder)


def unmount(folder):
    """Unmount the network of the host that a container had, and the data of a killed engine."""
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for mount in reversed(mounts):
        if mount.startswith(f"{folder}/"):
            subprocess.run(["umount", mount], check=True)


def network(*words):
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def make_image(engine, *packages):
    """Import an image with the wheel's Triton and this Python with `packages`; return its name."""
    name = f"triton-notebooks-test:{uuid.uuid4().hex[:8]}"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "image.tar"
        write_image(path, packages)
        env = ["PATH=/opt/tritonserver/bin:/usr/bin:/bin"]
        env += [f"LD_LIBRARY_PATH=/opt/tritonserver/lib:{SYSTEM}"]
        engine.docker("import", *(f"--change=ENV {each}" for each in env), str(path), name)
    engine.images.append(name)
    return name


def write_image(path, packages):
    """Write the files of an image as one tar, no name twice."""
    stub = wheel() / "python_backend_stubs" / PYTHON / "triton_python_backend_stub"
    source = path.with_name(UTILITIES)
    source.write_text(utilities(), encoding="utf-8")  # the image has this environment's numpy
    backend = [wheel() / "backends/python/libtriton_python.so", source, stub]
    found = {
        "/usr/bin/python3": Path(sys.executable),
        # the Python backend starts its stub by bash, and waits without an end if there is none
        **{f"/bin/{name}": Path("/bin") / name for name in ("bash", "sh", "sleep")},
        **{f"/opt/tritonserver/bin/{each.name}": each for each in (wheel() / "bin").iterdir()},
        **{f"/opt/tritonserver/lib/{each.name}": each for each in libraries().iterdir()},
        **{f"/opt/tritonserver/backends/python/{each.name}": each for each in backend},
    }
    modules = python_files(LIBRARY, LIBRARY, packages)
    write_tar(path, found | modules | compiled(modules))


def compiled(modules):
    """Place what Python has compiled of an image's modules, so that no container does it again."""
    found = {}
    for place, path in modules.items():
        if path.suffix == ".py" and (cache := Path(cache_from_source(str(path)))).exists():
            found[cache_from_source(place)] = cache
    return found


def python_files(standard, site, packages):
    """Place the standard library and installed packages in an image's folders."""
    found = {}
    source = Path(sysconfig.get_path("stdlib"))
    for each in source.rglob("*"):
        inside = each.relative_to(source)
        if each.is_file() and not UNWANTED & set(inside.parts) and each.suffix != ".a":
            found[f"{standard}/{inside}"] = each
    for package in packages:
        for name in files(package) or ():
            located = Path(str(name.locate()))
            if located.is_file() and ".." not in name.parts:
                found[f"{site}/{name}"] = located
    return found


def write_tar(path, found):
    """Write files at their places in an image, with the libraries that they need."""
    found, own = dict(found), {each.name for each in found.values()}
    for name, library in needed(each for each in found.values() if is_binary(each)).items():
        if name.startswith("ld-linux"):
            found[f"/lib64/{name}"] = library
        elif name not in own:
            found[f"{SYSTEM}/{name}"] = library
    with tarfile.open(path, "w") as tar:
        for name, mode in (("tmp", 0o1777), ("proc", 0o755), ("dev", 0o755), ("models", 0o755)):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, mode
            tar.addfile(folder)
        for name, line in (("passwd", b"root:x:0:0::/:/bin/sh\n"), ("group", b"root:x:0:\n")):
            entry = tarfile.TarInfo(f"etc/{name}")
            entry.size = len(line)
            tar.addfile(entry, io.BytesIO(line))
        for name, each in found.items():
            tar.add(each.resolve(), name.lstrip("/"), recursive=False, filter=readable)


def readable(entry):
    """Let every user read and run a file: Triton as root takes its stub's rights from others."""
    entry.mode = 0o755 if entry.mode & 0o100 else 0o644
    return entry


def is_binary(path):
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def needed(binaries):
    """Find the shared libraries that `binaries` load, by their names."""
    env = {**os.environ, "LD_LIBRARY_PATH": str(libraries())}
    command = ["ldd", *map(str, binaries)]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    found = re.findall(r"(/\S+) \(0x", done.stdout)
    return {Path(each).name: Path(each) for each in found}
