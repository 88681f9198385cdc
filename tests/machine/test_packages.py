"""A package that cannot be imported is named before anything starts, with what mends it."""

import ast
import re
import subprocess
import sys
import zipfile

import pytest

from helpers import models
from helpers.__main__ import main
from helpers.config import configure, read_file
from helpers.errors import InstallationError, ServerError
from helpers.machine import packages, preflight
from helpers.machine.packages import COMMON, WITH, faults, needed, words
from helpers.pipeline.own import origin
from helpers.store import ROOT
from helpers.triton import binaries
from tests.conftest import run_time_code
from tests.machine.builders import config, knowing, told

CUDNN = "libcudnn.so.9: cannot open shared object file: No such file or directory"
REQUIREMENTS, TORCH = "docker/requirements.lock", "docker/torch.lock"
AGAIN = "pip install --force-reinstall --no-deps"
BROKE = "the installation is broken: "


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Install a stand-in of a package before all others, with its RECORD; give its folder."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def write(name, source="", module="", **more):
        folder = tmp_path / "site" / (module or name.partition("==")[0])
        record = tmp_path / f"site/{name.replace('-', '_').replace('==', '-')}.dist-info/RECORD"
        for path in (folder, record.parent):
            path.mkdir(parents=True, exist_ok=True)
        sources = {"__init__": source, **more}
        for each, text in sources.items():
            (folder / f"{each}.py").write_text(text)
        lines = [f"{folder.name}/{each}.py,sha256=,{len(sources[each])}\n" for each in sources]
        record.write_text("".join(lines))
        return folder

    packages._known.cache_clear()
    yield write
    packages._known.cache_clear()


def said(*names):
    """What another process would say of these modules."""
    packages._known.cache_clear()
    return [words(name, fault) for name, fault in faults(names).items()]


NO_CUDA = "is the CUDA build without its libraries"
LOST = "cannot be imported (ModuleNotFoundError: No module named '{}')"
KILL, ENDS = "import os; os.kill(os.getpid(),", "ends Python with {} when it is imported"
MANY_LINES = """
try:
    import pandas.lost
except ImportError as error:
    raise ImportError('A\\n\\nB') from error
"""
BROKEN = {  # how -> what is installed, its source, and what is said of it
    "PyTorch's CUDA build": ("torch==2.13.0", f"raise ImportError({CUDNN!r})", NO_CUDA),
    "a library that PyTorch looks for itself": (
        "torch==2.13.0",
        "raise ValueError('libcublas.so.*[0-9] not found in the system path')",
        NO_CUDA,
    ),
    "of PyTorch's build for CPUs": (
        "torch==2+cpu",
        "import torch._C",
        LOST.format("torch._C"),
    ),
    "a file that is missing": ("seaborn==0.13", "import seaborn.lost", LOST.format("seaborn.lost")),
    "an error with advice of many lines": ("pandas==3", MANY_LINES, LOST.format("pandas.lost")),
    "an instruction that the processor lacks": ("it==1", f"{KILL} 4)", ENDS.format("SIGILL")),
    "an end without a word": ("it==1", "import os; os._exit(3)", ENDS.format("exit code 3")),
}


@pytest.mark.parametrize(("pin", "source", "problem"), BROKEN.values(), ids=BROKEN.keys())
def test_an_import_that_fails_is_one_line_with_its_package_and_what_mends_it(
    install, pin, source, problem
):
    install(pin, source)

    name, _, version = pin.partition("==")
    mends = f"{AGAIN} -r {TORCH}" if name == "torch" else f"{AGAIN} {pin}"
    assert said(name) == [f"{BROKE}{name} {version} {problem}. Run: {mends}"]


def test_the_package_at_fault_may_be_another_one(install):
    install("needy==1", "import helpless")
    install("helpless==2.5", "raise RuntimeError('built for another Python')")

    (line,) = said("needy")
    assert "helpless 2.5 cannot be imported (RuntimeError: built for another Python)" in line
    assert line.endswith(f"{AGAIN} helpless==2.5")
    install("lonely==1", "import nowhere")
    line = f"{BROKE}nowhere is not installed. Run: pip install --no-deps -r {REQUIREMENTS}"
    assert said("lonely") == [line]
    install("torn==1", "import whole")
    (install("whole==1.2", late="x = 1") / "late.py").unlink()
    assert "whole 1.2 lacks whole/late.py" in said("torn")[0]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("tensorrt", "tensorrt is not installed. Run: docker/gpu.lock"),
        ("nowhere", f"nowhere is not installed. Run: {REQUIREMENTS}"),
        ("torch", f"torch is not installed. Run: {TORCH}"),
        ("nowhere.inside", f"nowhere is not installed. Run: {REQUIREMENTS}"),
        ("papermill", f"{BROKE}papermill is not installed. Run: {REQUIREMENTS}"),
    ],
)
def test_what_is_absent_is_needed_and_what_everything_needs_is_broken(name, line):
    found = words(name, packages.probe.fault(name.partition(".")[0]))

    assert found == line.replace("docker", "pip install --no-deps -r docker")


@pytest.mark.parametrize("is_inside", [False, True], ids=["elsewhere", "in the clone"])
def test_a_file_that_is_lost_is_noticed_though_it_was_there_before(
    is_inside, install, tmp_path, monkeypatch
):
    if is_inside:  # as the README installs it
        monkeypatch.setattr(packages, "ROOT", tmp_path)
        monkeypatch.setattr(sys, "prefix", str(tmp_path / "site"))
    folder = install("whole==1.2", "print('loud')", late="x = 1")
    assert said("whole") == []

    (folder / "late.py").unlink()  # which no import reads

    line = f"{BROKE}whole 1.2 lacks whole/late.py. Run: {AGAIN} whole==1.2"
    assert said("whole") == [line]
    (folder / "late.py").touch()  # written as far as the disk had space
    assert said("whole") == [line]
    (folder / "late.py").write_text("x = 1")
    assert said("whole") == []


def test_tests_of_a_package_may_be_left_out_and_a_folder_left_behind_is_none(install, tmp_path):
    folder = install("whole==1.2")
    record = folder.with_name("whole-1.2.dist-info") / "RECORD"
    record.write_text("whole/__init__.py,,0\nwhole/tests/test_all.py,sha256=,9\n../../bin/it,,1\n")
    (tmp_path / "site/leftover/__pycache__").mkdir(parents=True)

    assert said("whole", "leftover") == [words("leftover", packages.probe.fault("leftover"))]


def test_two_builds_of_one_package_are_told_apart(install):
    for name in ("onnxruntime", "onnxruntime-gpu"):
        install(f"{name}==1.31.1", module="onnxruntime")

    assert said("onnxruntime") == [
        f"{BROKE}onnxruntime and onnxruntime-gpu are both installed, in one folder. Run: pip "
        "uninstall -y onnxruntime onnxruntime-gpu && pip install --no-deps onnxruntime==1.31.1"
    ]


def counted(monkeypatch):
    """The names that each process is given from here on."""
    given = []
    start = subprocess.run

    def run(command, **options):
        given.append(command[3:])
        return start(command, **options)

    monkeypatch.setattr(packages.subprocess, "run", run)
    return given


@pytest.mark.slow
def test_what_can_be_imported_is_imported_once_and_what_cannot_again(install, monkeypatch):
    install("whole==1")
    install("other==1")
    folder = install("torn==1", "raise OSError")
    started = counted(monkeypatch)

    names = ["whole", "torn", "other"]
    assert [len(said(*names)) for _ in range(2)] == [1, 1]
    assert len(faults(["whole", "torn"])) == 1
    assert started == [names, ["torn"]]
    (folder / "__init__.py").write_text("it_is_mended = True")
    assert said(*names) == said(*names) == []
    assert started[2:] == [["torn"]]


@pytest.mark.slow
def test_an_import_that_ends_the_process_hides_no_other(install, monkeypatch):
    for name in ("first", "last"):
        install(f"{name}==1")
    install("deadly==1", "import os\nos.abort()")
    install("upset==1", "import os, sys\n'first' in sys.modules and os.abort()")
    started = counted(monkeypatch)

    (line,) = said("first", "upset", "deadly", "last")

    assert "deadly 1 ends Python with SIGABRT" in line
    names = ["first", "upset", "deadly", "last"]
    assert started == [names[place:] for place in range(4)]


def test_a_home_that_cannot_be_written_costs_only_time(install, monkeypatch, tmp_path):
    install("whole==1")
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))

    assert said("whole") == said("whole") == []


def imported(paths):
    """The packages of others that these files import, but for the types that they name."""
    found = set()
    for path in paths:
        for node in ast.walk(run_time_code(path)):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found.add((node.module or "").partition(".")[0])
    return found - sys.stdlib_module_names - {"helpers", ""}


# imported by the command itself, or by something of COMMON
ALWAYS = {"numpy", "pydantic", "psutil", "yaml", "google", "IPython", "matplotlib"}
ALWAYS |= {name.partition(".")[0] for name in COMMON}


@pytest.mark.parametrize("name", models.names())
def test_a_model_names_the_packages_that_it_imports(name):
    model = models.get(name)
    folders = {path.parent for path in models.sources(name)} - {ROOT / "helpers/models"}
    files = [path for each in folders for path in each.rglob("*.py") if "raw" not in str(path)]

    own = {each.partition(".")[0] for each in model.PACKAGES}
    beside = {model.FRAMEWORK, *WITH.get(model.FRAMEWORK, ()), *own}
    assert imported(files) - ALWAYS <= beside
    assert own <= imported(files)


def test_an_experiment_needs_what_makes_its_formats_too():
    def wanted(chosen):
        return set(needed(chosen)) - set(COMMON)

    onnx = {"torch", "PIL", "onnxruntime", "onnx", "onnxscript"}
    assert wanted(config()) == onnx
    assert wanted(config(format="openvino", precision="int8")) == {*onnx, "nncf"}
    assert wanted(config(export_format="ts-trace", format="ts-trace")) == {"torch", "PIL"}
    dlrm = configure(read_file(ROOT / "params/cpu.yaml"), "dlrm", "onnx-fp32", "convert")
    assert wanted(dlrm) == {"tensorflow", "keras", "sklearn", "tf2onnx", "onnx", "onnxruntime"}


def test_a_parameter_server_needs_the_packages_of_its_databases():
    given = read_file(ROOT / "params/cpu-hps.yaml")

    def wanted(experiment):
        return set(needed(configure(given, "dlrm", experiment, "deploy"))) & {"redis", "rocksdict"}

    assert wanted("cache-0.1") == set()
    assert wanted("redis-0.1") == {"redis"}
    assert wanted("rocksdb-0.1") == {"rocksdict"}
    assert wanted("redis-rocksdb-0.01") == {"redis", "rocksdict"}


def test_doctor_names_each_package_once_and_what_it_keeps_from_running(monkeypatch, capsys):
    knowing(monkeypatch, torch=packages.probe.fault("torch", "2.13.0", CUDNN))

    code = main(["doctor"])

    lines = told(capsys)
    assert code == 1
    line = f"2.13.0 {NO_CUDA}. Run: {AGAIN} -r {TORCH}"
    assert lines["torch"] == ("FIX", line)
    assert lines["bert onnx-fp32"] == ("FIX", f"{BROKE}torch {line}")
    assert lines["dlrm onnx-fp32"] == ("ok", "can run here")
    assert "packages" not in lines


def test_doctor_says_how_many_packages_can_be_imported(monkeypatch, capsys):
    knowing(monkeypatch)

    main(["doctor"])

    assert told(capsys)["packages"] == ("ok", f"{len(packages._known()[1])} can be imported")


@pytest.mark.usefixtures("asked_again")
@pytest.mark.parametrize("name", binaries.BINARIES)
def test_each_of_tritons_binaries_is_looked_for(name, tmp_path, monkeypatch, capsys):
    knowing(monkeypatch)
    others = {each: path for each, path in binaries.BINARIES.items() if each != name}
    for path in others.values():
        (tmp_path / path).mkdir(parents=True)
    monkeypatch.setattr(binaries, "binaries", lambda: tmp_path)

    main(["doctor"])

    lines = told(capsys)
    line = f"{name} is not installed. Run: {binaries.INSTALL}"
    assert (lines[name], lines["bert onnx-fp32"]) == (("FIX", line), ("FIX", BROKE + line))
    assert [each for each in binaries.BINARIES if lines[each][0] == "ok"] == [*others]


@pytest.mark.usefixtures("asked_again")
def test_without_pythons_library_nothing_can_run(monkeypatch):
    def missing():
        raise ServerError("Triton's Python backend needs libpython: install it")

    monkeypatch.setattr(binaries, "python_library", missing)

    reason = f"{BROKE}Triton's Python backend needs libpython: install it"
    assert preflight.why_unavailable(config()) == reason


READERS = {"keras": "tensorflow", "pt": "torch", "pt2": "torch", "onnx": "onnx"}


@pytest.mark.parametrize("kind", READERS)
def test_new_names_the_package_that_reads_a_file_and_is_not_there(tmp_path, monkeypatch, kind):
    file, package = f"net.{kind}", READERS[kind]
    lock = TORCH if package == "torch" else REQUIREMENTS
    knowing(monkeypatch, **{package: packages.probe.fault(package)})
    with zipfile.ZipFile(tmp_path / file, "w") as archive:
        archive.writestr("any", "thing")
    line = f"{package} is not installed. Run: pip install --no-deps -r {lock}"

    with pytest.raises(InstallationError, match=f"^{line}$"):
        origin.read(str(tmp_path / file))


def test_a_package_that_a_command_lacks_is_one_line(monkeypatch, capsys):
    def fails(_):
        raise ModuleNotFoundError("No module named 'nowhere'", name="nowhere")

    monkeypatch.setattr("helpers.pipeline.targets", fails)

    assert main(["status"]) == 1
    line = f"error: nowhere is not installed. Run: pip install --no-deps -r {REQUIREMENTS}\n"
    assert capsys.readouterr().err == line


def test_a_package_that_the_command_line_itself_lacks_is_one_line():
    code = "import sys; sys.modules['typer'] = None; import helpers.__main__"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)

    assert done.returncode == 1
    assert re.fullmatch(f"error: .*: pip install --no-deps -r {REQUIREMENTS}\n", done.stderr)
