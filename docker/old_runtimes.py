"""Install the runtimes of Triton's releases from PyPI, each in a Python environment of its own.

    python docker/old_runtimes.py [RELEASE[/RUNTIME] ...]

The tests marked `old` use them to load the exports for a release. Without a release, the script
installs the runtimes of all parameter files: 20 GB in a few minutes. With a release, it installs
those that the files need. A RELEASE/RUNTIME needs no installed package except lazy_loader.
The environments are in $OLD_RUNTIMES, by default in the user's cache. Their versions come from
helpers/config/releases.csv; if PyPI has another build or Python, the environment's line says so.
TensorRT needs a GPU and is not included. PyTorch from 1.13 on brings gigabytes of CUDA, unless
PIP_EXTRA_INDEX_URL is https://download.pytorch.org/whl/cpu.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from helpers.config import releases
from helpers.store import ROOT

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
FOLDER = Path(os.environ.get("OLD_RUNTIMES") or CACHE / "triton-notebooks/old-runtimes")

# What loads the file of a format. TensorRT reads ONNX files, and ONNX Runtime stands in for it.
RUNTIMES = {
    "onnx": ("onnxruntime",),
    "openvino": ("openvino",),
    "trt": ("onnxruntime",),
    "tf-savedmodel": ("tensorflow", "tensorflow2"),
    "ts-script": ("torch",),
    "ts-trace": ("torch",),
}
OTHER_VERSIONS = {
    ("torch", "1.14.0"): ("1.13.1", "PyTorch 1.14 became 2.0 and was never on PyPI"),
}
OTHER_PYTHONS = {
    ("tensorflow", "1.15.5"): ("3.7", "PyPI has it for Python 3.7 at most, NVIDIA for 3.8"),
}
CHECK = "import {0}, platform; print({0}.__version__, platform.python_version())"


class Unavailable(Exception):
    """An environment cannot be made on this machine; the message has the reason."""


@dataclass(frozen=True)
class Environment:
    """A runtime of a release's image, or the nearest that PyPI has."""

    release: str
    runtime: str
    version: str
    python: str
    note: str

    @property
    def folder(self) -> Path:
        return FOLDER / f"{self.runtime.rstrip('2')}-{self.version}"

    @property
    def interpreter(self) -> Path:
        return self.folder / "bin/python"

    @property
    def module(self) -> str:
        return self.runtime.rstrip("2")

    def __str__(self) -> str:
        note = f" ({self.note})" if self.note else ""
        return f"{self.release}: {self.module} {self.version}, Python {self.python}{note}"


def files() -> list[Path]:
    """List the parameter files of GPUs, and of the processor, which Docker can serve too."""
    return [*sorted((ROOT / "params").glob("NVIDIA-*.yaml")), ROOT / "params/cpu.yaml"]


def needed() -> dict[str, set[str]]:
    """Name the runtimes that load what the parameter files export and serve, by release."""
    from helpers.config import read_file  # needs the package's environment

    found: dict[str, set[str]] = {}
    for path in files():
        parameters = read_file(path)
        for model in parameters.file.models:
            for name in parameters.experiments(model):
                experiment = parameters.experiment(model, name)
                release = experiment.release or parameters.file.server.release
                for each in (experiment.export_format, experiment.format):
                    found.setdefault(release, set()).update(RUNTIMES[each])
    return found


def environment(release: str, runtime: str) -> Environment | None:
    """Describe the environment for a runtime of a release; None if its image has none."""
    held = {each.part: each.version for each in releases.table() if each.release == release}
    if runtime not in held:
        return None
    built, notes = held[runtime], []
    version, python = re.split(r"[a+]", built)[0], held["python"]
    if (runtime, version) in OTHER_VERSIONS:
        version, why = OTHER_VERSIONS[runtime, version]
        notes.append(why)
    if version != built:
        notes.append(f"for NVIDIA's {built}")
    if (runtime, version) in OTHER_PYTHONS:
        python, why = OTHER_PYTHONS[runtime, version]
        notes.append(why)
    return Environment(release, runtime, version, python, "; ".join(notes))


def environments(chosen: str) -> list[Environment]:
    """Describe the environments of a `RELEASE`, or the one of a `RELEASE/RUNTIME`."""
    release, _, only = chosen.partition("/")
    runtimes = {only} if only else needed().get(release, set())
    found = (environment(release, runtime) for runtime in sorted(runtimes))
    return [each for each in found if each]


def interpreters(version: str) -> Iterator[str]:
    """Yield the commands that may be a Python of this version: of PATH, pyenv and uv."""
    yield f"python{version}"
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from (str(path / "bin/python") for path in pyenv.glob(f"versions/{version}.*"))
    if uv := shutil.which("uv"):
        for arguments in (["find"], ["install", "--quiet"], ["find"]):
            done = subprocess.run(
                [uv, "python", *arguments, version], capture_output=True, text=True
            )
            if done.returncode == 0 and arguments == ["find"]:
                yield done.stdout.strip()


def find_python(version: str) -> str:
    """Find a Python that runs; raise `Unavailable`."""
    for command in interpreters(version):
        with suppress(OSError):
            code = "import sys, venv; print('%d.%d' % sys.version_info[:2])"
            done = subprocess.run([command, "-c", code], capture_output=True, text=True)
            if done.stdout.strip() == version:
                return command
    raise Unavailable(f"Python {version} is missing. Run pyenv install {version}, or install uv.")


def packages(wanted: Environment) -> list[str]:
    """Name what pip installs: the newest numpy and protobuf are too new for old runtimes."""
    is_old = wanted.python in ("3.7", "3.8")
    numpy = "numpy<1.24" if is_old else "numpy<2"
    cpu = "-cpu" if wanted.module == "tensorflow" and wanted.version[0] != "1" else ""
    return [f"{wanted.module}{cpu}=={wanted.version}", numpy, *(["protobuf<3.21"] * is_old)]


def make(wanted: Environment) -> None:
    """Make an environment that is not there yet; raise `Unavailable`."""
    if wanted.interpreter.exists():
        return
    python, temporary = (
        find_python(wanted.python),
        wanted.folder.with_name(f"{wanted.folder.name}.making"),
    )
    shutil.rmtree(temporary, ignore_errors=True)
    install = [str(temporary / "bin/python"), "-m", "pip", "install", "--quiet", "--no-compile"]
    steps = [[python, "-m", "venv", str(temporary)], [*install, *packages(wanted)]]
    steps.append([str(temporary / "bin/python"), "-c", CHECK.format(wanted.module)])
    for step in steps:
        done = subprocess.run(step, capture_output=True, text=True)
        if done.returncode:
            shutil.rmtree(temporary, ignore_errors=True)
            lines = [line for line in done.stderr.splitlines() if "WARNING" not in line]
            raise Unavailable(f"{' '.join(step[-3:])}: {' '.join(lines)[-300:]}")
    temporary.rename(wanted.folder)


def main(chosen: list[str]) -> int:
    """Make the environments of the chosen releases, and say of each what it is."""
    failed = False
    if unknown := [each for each in chosen if not environments(each)]:
        print(f"Unknown release {unknown[0]}. Use one of {', '.join(sorted(needed()))}.")
        return 2
    FOLDER.mkdir(parents=True, exist_ok=True)
    print(f"environments: {FOLDER}")
    for choice in chosen or sorted(needed()):
        for each in environments(choice):
            started = time.monotonic()
            try:
                make(each)
                print(f"{each}: {time.monotonic() - started:.0f} s", flush=True)
            except Unavailable as reason:
                failed = True
                print(f"{each}: not installed. {reason}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
