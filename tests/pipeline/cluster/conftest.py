"""Clusters for the tests: real schedulers and workers, in network namespaces where they may be."""

import os
import re
import shutil
import signal
import subprocess
import sys
import uuid
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from helpers.pipeline.cluster.access import WORKER_TIMEOUT_VARIABLE
from tests.conftest import Answer, Project, copy_project, interruptible, wait_for

pytest.importorskip("distributed")

TARGETS = ("first", "second", "third")
SECONDS = 300
HELD = """
        import os
        import time

        print("holding on" if config.target == "first" else "going on")
        while config.target == "first" and os.path.exists("{hold}"):
            time.sleep(0.1)
        import onnx
"""


def add_targets(project):
    """Write three parameter files, each of its own made-up machine, whose dummy runs quickly."""
    text = (project.root / "params/dummy.yaml").read_text()
    for more, few in (
        ("batch_sizes: [1, 4]", "batch_sizes: [4]"),
        ("concurrency: [1, 4]", "concurrency: [4]"),
        ("rates: [0.5]", "rates: []"),
        ("measurement_seconds: 0.5", "measurement_seconds: 0.3"),
    ):
        assert more in text
        text = text.replace(more, few)
    for name in TARGETS:
        own = text.replace("CPU (dummy)", f"CPU ({name})")
        (project.root / f"params/{name}.yaml").write_text(own)


@dataclass
class Running:
    """A process of a cluster, and what it has said."""

    process: "subprocess.Popen[bytes]"
    log: Path

    @property
    def said(self):
        return self.log.read_text()

    def wait_to_say(self, words):
        def told():
            assert self.process.poll() is None or words in self.said, self.said
            return self.said if words in self.said else ""

        return wait_for(told)

    def answer(self):
        return Answer(self.process.wait(SECONDS), self.said)

    def end(self, number=signal.SIGINT):
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(30)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@dataclass
class Cluster:
    home: Project
    folder: Path
    variables: dict[str, str] = field(default_factory=dict)
    started: list[Running] = field(default_factory=list)
    workers: dict[str, Running] = field(default_factory=dict)  # by what they offer, the last ones
    address: str = ""
    key: tuple[str, ...] = ()

    def start(self, *arguments, project=None, inside="", module="helpers"):
        """Start `triton-notebooks ARGUMENTS`, inside a network namespace if one is named."""
        own = project or self.home
        log = self.folder / f"{len(self.started)}-{arguments[0]}.log"
        prefix = ["ip", "netns", "exec", inside] if inside else []
        with log.open("wb") as file:
            process = subprocess.Popen(
                [*prefix, sys.executable, "-W", "ignore", "-m", module, *arguments],
                cwd=own.root,
                env={**os.environ, **self.variables, "PYTHONPATH": own.path},
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=interruptible,
            )
        self.started.append(Running(process, log))
        return self.started[-1]

    def schedule(self, *arguments):
        """Start a scheduler, on this machine only unless `arguments` say otherwise."""
        running = self.start("scheduler", *(arguments or ("--port", "0")))
        said = running.wait_to_say("On each machine, run: ")
        line = re.findall(r"triton-notebooks worker (\S+)(?: --key (\S+))?$", said, re.M)[0]
        self.address, self.key = line[0], ("--key", line[1]) if line[1] else ()
        return running

    def work(self, *targets, **options):
        running = self.start_worker(*targets, **options)
        running.wait_to_say("joined")
        return running

    def work_each(self, *targets, inside=("", "", "")):
        """Start a worker for each target, all at once."""
        started = [
            self.start_worker(name, inside=each)
            for name, each in zip(targets, inside, strict=False)
        ]
        for running in started:
            running.wait_to_say("joined")

    def start_worker(self, *targets, **options):
        """Start a worker, with an outputs folder of its own."""
        offered = (f"--target={name}" for name in targets)
        own = ("--outputs", str(self.outputs(*targets)))
        running = self.start("worker", self.address, *self.key, *offered, *own, **options)
        self.workers["-".join(targets)] = running
        return running

    def submit(self, *arguments):
        return self.start("run", *arguments, "--scheduler", self.address, *self.key)

    def run(self, *arguments):
        return self.submit(*arguments).answer()

    def outputs(self, *targets):
        return self.folder / f"outputs-{'-'.join(targets)}"


@contextmanager
def cluster_in(folder):
    """Yield a cluster in which nothing runs, and end all of it after the block."""
    home = copy_project(folder / "home")
    add_targets(home)
    found = Cluster(home, folder)
    try:
        yield found
    finally:
        for running in reversed(found.started):
            running.end()


@pytest.fixture(autouse=True)
def own_outputs():
    """Set no outputs folder of the test's own: a cluster's processes outlast it."""


@pytest.fixture
def cluster(tmp_path):
    with cluster_in(tmp_path) as found:
        yield found


def make_holdable(cluster):
    """Have its first target's export go on as long as there is a file, and give that."""
    hold = cluster.folder / "hold"
    module = cluster.home.root / "helpers/models/dummy/__init__.py"
    text = module.read_text()
    changed = text.replace("\n        import onnx\n", HELD.format(hold=hold))
    assert changed != text
    module.write_text(changed)
    cluster.variables[WORKER_TIMEOUT_VARIABLE] = "6"
    hold.touch()
    return hold


@dataclass
class Network:
    """Namespaces, each with one end of a cable in a bridge: the address of the bridge."""

    address: str
    names: list[str]

    def set(self, name, state):
        """Pull the cable of a namespace out, "down", or put it in again, "up"."""
        subprocess.run(["ip", "link", "set", f"{name}h", state], check=True)


@pytest.fixture
def network():
    """Three machines as far as the network goes; the test is skipped where none can be made."""
    mark = uuid.uuid4().hex[:5]
    names = [f"tn{mark}{place}" for place in range(3)]
    bridge, subnet = f"tb{mark}", f"10.{200 + int(mark[0], 16)}.{int(mark[1:3], 16)}"

    def ip(line):
        done = subprocess.run(["ip", *line.split()], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"netns: ip {line}: {done.stderr.strip()}")

    if not shutil.which("ip"):
        pytest.skip("netns: there is no ip")
    try:
        ip(f"link add {bridge} type bridge")
        ip(f"addr add {subnet}.1/24 dev {bridge}")
        ip(f"link set {bridge} up")
        for place, name in enumerate(names):
            ip(f"netns add {name}")
            ip(f"link add {name}h type veth peer name eth0 netns {name}")
            ip(f"link set {name}h master {bridge} up")
            ip(f"-n {name} addr add {subnet}.{place + 2}/24 dev eth0")
            ip(f"-n {name} link set eth0 up")
            ip(f"-n {name} link set lo up")
        yield Network(f"{subnet}.1", names)
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)
        subprocess.run(["ip", "link", "delete", bridge], capture_output=True)
