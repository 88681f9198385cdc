"""Shared by the tests: a copy of the project with a small model, and what must not be left."""

import ast
import gc
import locale
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from threading import Thread

import psutil
import pytest
from filelock import FileLock

from helpers.machine import packages
from helpers.measure.background import RETRY_VARIABLE
from helpers.results import read
from helpers.store import GRAMMARS, OUTPUTS_VARIABLE, block_import
from helpers.triton import owner, supervisor
from helpers.triton.process import OPENMP
from helpers.triton.server import reserved_ports

with block_import(GRAMMARS):
    import jsonschema  # noqa: F401  (seconds of every worker's start, where another imports it first)

ROOT = Path(__file__).resolve().parents[1]
HERE = Path(__file__).resolve().parent

os.environ.update(OPENMP)
os.environ[RETRY_VARIABLE] = "0.01"  # no figure is believed here
os.environ.pop(OUTPUTS_VARIABLE, None)
REQUIRED = os.environ.get("REQUIRE", "").split(",")
MAY_BE_SKIPPED = (  # even where REQUIRE=all
    "is not installed",  # a framework; models that others made
    "could not import",  # the same
    "environment is not made",  # of a comparison with another tool
    "LARGE_TABLE_GB",
    "FRESH_MACHINES",
    "not made (python docker/old_runtimes.py",
    "is missing. Run pyenv install",  # of a Python for these
    "this engine is not ours",
    "NVIDIA driver",
    "this Python came without its library",
    "this kernel sets no peak back",
)
# Files are read and commands are decoded as UTF-8, whatever the locale of who runs the tests
os.environ["LC_ALL"] = locale.setlocale(locale.LC_ALL, "C.UTF-8")


class Framework:
    """Skips what imports a framework that is not installed, a whole file of tests included."""

    @staticmethod
    def find_spec(name, *_):
        if name in ("torch", "tensorflow"):
            pytest.skip(f"{name} is not installed", allow_module_level=True)


ABSENT = [name for name in ("torch", "tensorflow") if find_spec(name) is None]
sys.meta_path.append(Framework)  # asked last, for what nobody else has found
if ABSENT:
    faults = packages.faults

    def faults_or_skip(names):
        """Find what is wrong with these modules; skip the test if a framework is absent."""
        for name in ABSENT:
            if name in names:
                pytest.skip(f"{name} is not installed")
        return faults(names)

    packages.faults = faults_or_skip


def pytest_configure(config):
    """Give tests side by side one thread each, as OpenMP's threads wait for each other where there
    are fewer cores; and every process a temporary folder, as one measurement at a time has the lock
    that lies there, and the user may measure meanwhile.
    """
    config.option.loadscopereorder = False  # xdist's order is by the number of tests
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())  # what failed tests leave
    os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(prefix=f"{worker or 'tests'}-")
    config.add_cleanup(partial(shutil.rmtree, tempfile.tempdir, ignore_errors=True))
    if worker:
        threads = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
        os.environ.update(dict.fromkeys(threads, "1"))


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Leave alone what is in the project's `outputs`, which another run may hold. Of thousands of
    tests that are collected nothing is garbage: do not look for it, then or later.
    """
    gc.disable()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(OUTPUTS_VARIABLE, os.path.join(tempfile.tempdir, "outputs"))
            return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    """Let a test fail that was skipped for what REQUIRE lists: a reason begins with its name. With
    REQUIRE=all any skip fails whose reason is not one of `MAY_BE_SKIPPED`.
    """
    report = yield
    if isinstance(report.longrepr, tuple):  # it was skipped
        reason = report.longrepr[2].removeprefix("Skipped: ")
        is_known = any(known in reason for known in MAY_BE_SKIPPED)
        if reason.partition(":")[0] in REQUIRED or ("all" in REQUIRED and not is_known):
            report.outcome, report.longrepr = "failed", f"REQUIRE: {reason}"
    return report


def pytest_runtest_setup():
    """Have PyTorch compute in as many threads as at first, whatever a test before left."""
    if (torch := sys.modules.get("torch")) and (threads := os.environ.get("OMP_NUM_THREADS")):
        torch.set_num_threads(int(threads))


def interruptible():
    """Let signals end what is started. A shell's background ignores SIGINT, and nohup SIGHUP."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


ONNX = {  # the fields of an experiment that says no more than it must
    "export_format": "onnx",
    "export_precision": "fp32",
    "format": "onnx",
    "precision": "fp32",
    "max_batch_size": 4,
}

RUNS = {"finished", "project", "nothing_left"}  # fixtures of tests that run a whole experiment


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items):
    """Mark what runs whole experiments. Tests with their own limit of time come first, then files
    with long tests, so that no worker is left with one of them at the end. With `--dist loadgroup`,
    a file stays on one worker unless its tests say otherwise.
    """
    for item in items:
        if RUNS & {*getattr(item, "fixturenames", ())}:
            item.add_marker("slow")
            item.add_marker("thorough")
        if not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))
    files = {
        mark: {item.path for item in items if item.get_closest_marker(mark)}
        for mark in ("thorough", "slow")
    }
    waiting = {item.path for item in items if "finished" in getattr(item, "fixturenames", ())}
    items.sort(
        key=lambda item: (
            item.get_closest_marker("timeout") is None,
            *(item.path not in files["thorough"], item.path in waiting),
            item.path not in files["slow"],
        )
    )


# perf_analyzer names the memory that it shares by tensors, for the whole machine: models with the
# same names are not measured side by side.
SAME_NAMES = {"dlrm": "criteo", "dcnv2": "criteo"}


def mounting():
    """Find what starts a shell that may mount: only root may without a namespace of users."""
    for options in (["--mount"], ["--mount", "--user", "--map-root-user"]):
        words = ("unshare", *options, "sh", "-c")
        with suppress(FileNotFoundError):
            if not subprocess.run([*words, f"{MEMORY} true"], capture_output=True).returncode:
                yield words


# What starts a command with shared memory of its own, so that the same names do not meet; empty
# where this is not allowed. No program may lie there, as on well-kept machines
MEMORY = "mount -t tmpfs -o noexec none /dev/shm &&"
MOUNTING = next(mounting(), ())
OWN_MEMORY = (*MOUNTING, f'{MEMORY} exec "$@"', "sh") if MOUNTING else ()


def apart(model, *others):
    """A model, and `others`, as parameters, on the worker that has what must not run beside it."""
    marks = pytest.mark.xdist_group(SAME_NAMES.get(model, model))
    return pytest.param(model, *others, marks=marks, id=model)


PRIVATE = 0o077  # a umask
WATCHED = "imported"  # a folder of a project, with one file for each process
NOTE = """
import os, sys
seen = {{"sys"}}
def note(event, arguments):
    name = arguments[0].partition(".")[0] if event == "import" else "sys"
    if name not in seen:
        seen.add(name)
        with open(os.path.join({folder!r}, str(os.getpid())), "a") as file:
            file.write(name + "\\n")
def begin():
    seen.clear()
    note("import", ["forked"])
sys.addaudithook(note)
os.register_at_fork(after_in_child=begin)
"""


@contextmanager
def watch(folder):
    """Have every Python that starts meanwhile note in `folder` what it imports, when it does: a
    kernel that takes long to end is killed. One that is forked begins with "forked".
    """
    folder.mkdir()
    site = folder.with_name(f"{folder.name}-site")
    site.mkdir()
    (site / "sitecustomize.py").write_text(NOTE.format(folder=str(folder)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(site))
        yield


@dataclass(frozen=True)
class Project:
    """A copy of the project in a temporary folder, and its batch command."""

    root: Path
    prefix: tuple[str, ...] = ()  # of the command

    @property
    def params(self):
        return self.root / "params" / "dummy.yaml"

    @property
    def target(self):
        return self.root / "outputs" / "dummy"

    @property
    def path(self):
        """Where Python finds the copy before what is installed."""
        return os.pathsep.join(filter(None, [str(self.root), os.environ.get("PYTHONPATH")]))

    def start(self, *arguments, **options):
        """Start `python -m helpers ARGUMENTS` in the copy, in a process group of its own."""
        return subprocess.Popen(
            [*self.prefix, sys.executable, "-W", "ignore", "-m", "helpers", *arguments],
            cwd=self.root,
            env={**os.environ, "PYTHONPATH": self.path},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=interruptible,
            **options,
        )

    def run(self, *arguments):
        """Run the command to its end."""
        process = self.start(*arguments)
        output, _ = process.communicate(timeout=3000)
        return Answer(process.returncode, output)

    def result(self, experiment, stage):
        """Read a stage's result."""
        found = read(self.target / "dummy" / experiment / f"{stage}.json")
        assert found
        return found

    def rows(self, experiment, stage):
        """Read the rows of a performance stage."""
        measurement = self.result(experiment, stage).measurement
        assert measurement
        return measurement.rows


@dataclass(frozen=True)
class Answer:
    """How a command ended."""

    code: int
    output: str

    def executed(self):
        """The stages that were executed and ended well, in order."""
        return [self._name(line) for line in self.output.splitlines() if ": done in" in line]

    @staticmethod
    def _name(line):
        return line.partition("] ")[2].partition(":")[0]


def copy_project(target):
    """Copy the project and add the model `dummy`: one package, its notebooks, one section."""
    target.mkdir(parents=True)
    half = shutil.ignore_patterns("*.pyc.*")  # of what Python has compiled, what it is writing
    for name in ("helpers", "params", "notebooks"):
        shutil.copytree(ROOT / name, target / name, ignore=half)
    shutil.copytree(HERE / "dummy", target / "helpers/models/dummy")
    shutil.copyfile(HERE / "dummy.yaml", target / "params/dummy.yaml")
    (target / "notebooks/dummy").mkdir()
    for source in (ROOT / "notebooks/resnet50").glob("*.ipynb"):
        text = source.read_text().replace("resnet50", "dummy")
        (target / "notebooks/dummy" / source.name).write_text(text)
    return Project(target)


@pytest.fixture(autouse=True)
def own_outputs(tmp_path):
    """Leave alone what is in the project's `outputs`, and whoever holds it, unless a fixture of
    more than this test has chosen a folder.
    """
    with pytest.MonkeyPatch.context() as patch:
        if OUTPUTS_VARIABLE not in os.environ:
            patch.setenv(OUTPUTS_VARIABLE, str(tmp_path / "outputs"))
        yield


@pytest.fixture(scope="session")
def shared(tmp_path_factory):
    """A folder for what one worker makes for all."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@pytest.fixture(scope="session")
def finished(shared):
    """A copy whose dummy model has run through every stage once, for all workers; tests only read
    it. It lies where nothing may forget to quote, belongs to a user who keeps files private, and
    has its temporary files on another file system.
    """
    folder = shared / "a b #%41ä"
    with FileLock(shared / "finished.lock", timeout=600):
        if not folder.exists():
            project = replace(copy_project(shared / "running" / folder.name), prefix=OWN_MEMORY)
            before = os.umask(PRIVATE)
            with watch(project.root / WATCHED), pytest.MonkeyPatch.context() as patch:
                patch.setenv("TMPDIR", "/dev/shm")
                answer = project.run("run", "params/dummy.yaml")
            os.umask(before)
            assert answer.code == 0, answer.output
            project.root.rename(folder)
    return Project(folder)


@pytest.fixture
def project(request, finished, tmp_path):
    """A copy of the finished project that a test may change. It leaves shared memory that one can
    see if the test holds that there is `nothing_left`.
    """
    shutil.copytree(finished.root, tmp_path / "project", copy_function=shutil.copy2)
    is_seen = "nothing_left" in request.fixturenames
    return Project(tmp_path / "project", () if is_seen else OWN_MEMORY)


@pytest.fixture
def fresh(tmp_path):
    """A copy of the project in which nothing has run."""
    return copy_project(tmp_path / "project")


def run_time_code(path):
    """Parse a module without what only a type checker reads."""

    class RunTime(ast.NodeTransformer):
        def visit_If(self, node):
            return node.orelse if ast.unparse(node.test) == "TYPE_CHECKING" else node

    return RunTime().visit(ast.parse(path.read_text()))


def processes(*words):
    """List the live processes whose command line or environment holds all of the words."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
            said = (line + b" " + (entry / "environ").read_bytes()).decode(errors="replace")
            state = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
            if line and state != "Z" and all(word in said for word in words):
                found.append(int(entry.name))
    return found


def kernels(folder):
    """List a project's running notebooks, forks of the process that forks kernels; one may end
    meanwhile.
    """
    found = processes(str(folder), "fork_server.py")
    parents = {}
    for pid in found:
        with suppress(psutil.NoSuchProcess):
            parents[pid] = psutil.Process(pid).ppid()
    return [pid for pid, parent in parents.items() if parent in found]


def free_ports(count):
    """Return so many ports of 127.0.0.1 that nobody listens on."""
    with reserved_ports(*[0] * count) as ports:
        return ports


def wait_for(condition, seconds=300):
    """Wait until the condition holds and give its value."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.05)
    raise AssertionError("it did not come to that")


def abandoned():
    """The shared memory of servers whose owner has ended, and of clients that nobody uses."""
    used = {Path(path).name for path in supervisor.shared_memory_users(servers=False)}
    owners = {
        name: name.removeprefix(owner.PREFIX).partition("-")[0] for name in os.listdir("/dev/shm")
    }
    return {
        name
        for name, holder in owners.items()
        if (owner.is_stale(holder) if name.startswith(owner.PREFIX) else name not in used)
    }


@pytest.fixture
def nothing_left(tmp_path):
    """After the test no process of ours is left, nor any shared memory that nobody needs."""
    before = abandoned()
    yield
    ours = str(tmp_path)
    try:
        wait_for(lambda: not processes(ours))
        wait_for(lambda: abandoned() <= before)
    finally:
        for pid in processes(ours):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def site(tmp_path):
    """Serve tmp_path: the address, and the paths asked for."""
    asked = []

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            asked.append(self.path)

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(tmp_path)))
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    thread.join()
    server.server_close()


MOUNT = 'mount -t tmpfs -o size="$2" tmpfs "$1" && shift 2 && exec "$@"'


@pytest.fixture
def on_a_small_disk():
    """Run a command that sees another, empty file system at the folder `place`: a small one."""

    def run(place, size, *command):
        if not MOUNTING:
            pytest.skip("root: a small file system cannot be mounted, not even in a namespace")
        inside = [*MOUNTING, MOUNT, "sh", str(place), size, *command]
        done = subprocess.run(inside, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        return done

    return run
