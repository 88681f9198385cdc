"""Which packages an experiment imports, and which of them cannot be imported here.

A separate process imports each package once. A success is cached until one of the folders changes
from which the package was loaded. A failure is tried again.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from signal import Signals

from helpers import formats, models
from helpers.config import ConvertConfig, DeployConfig
from helpers.errors import InstallationError, WorkspaceError
from helpers.machine import probe
from helpers.machine.probe import Fault
from helpers.store import ROOT, digest, write_atomic
from helpers.triton import before_exec

# packages that every experiment imports: to run a notebook, serve, measure and write the pages
COMMON = (
    *("ipykernel.kernelapp", "papermill", "nbconvert", "pandas", "seaborn", "scipy.stats"),
    *("tritonclient.grpc", "tritonclient.http", "prometheus_client", "openvino"),
)
DATABASES = {"redis_cluster": "redis", "rocks_db": "rocksdict"}  # of the extra `hps`
WITH = {"tensorflow": ("keras",), "onnxruntime": ("onnx",)}  # packages used with a framework
BROKEN = "the installation is broken: "  # how a reason begins, unless a framework is only absent
SETTINGS = {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"}


def needed(config: ConvertConfig) -> tuple[str, ...]:
    """List the modules that the stages of an experiment import, the server's adapter included."""
    model, kinds = models.get(config.model), (config.export_format, config.precision)
    exported, served = formats.get(config.export_format), formats.get(config.format)
    names = [*COMMON]  # then the framework: without it, what imports it would be called broken
    names += () if model.BACKEND else (model.FRAMEWORK, *WITH.get(model.FRAMEWORK, ()))
    names += (*exported.RUNTIME, *model.PACKAGES)
    names += exported.TOOLS.get(model.FRAMEWORK, ())
    names += () if config.server.is_native else served.RUNTIME
    names += (tool for kind in kinds for tool in served.TOOLS.get(kind, ()))
    sections = config.hps.values() if isinstance(config, DeployConfig) else ()
    databases = (str(section.get("type")) for section in sections if isinstance(section, dict))
    names += (DATABASES[database] for database in databases if database in DATABASES)
    return tuple(dict.fromkeys(names))


def why_unavailable(config: ConvertConfig) -> str:
    """Return which package of an experiment cannot be imported, in one line; empty if all can."""
    return next((words(name, fault) for name, fault in faults(needed(config)).items()), "")


def require(*names: str) -> None:
    """Raise `InstallationError` if one of these modules, or what is used with it, has a fault."""
    every = [module for name in names for module in (name, *WITH.get(name, ()))]
    for name, fault in faults(every).items():
        raise InstallationError(words(name, fault))


def words(name: str, fault: Fault) -> str:
    """Return one line that says what is wrong with a module, and how to fix it."""
    is_absent = name not in COMMON and fault == probe.fault(name.partition(".")[0])
    return f"{'' if is_absent else BROKEN}{fault.package} {fault.found}. Run: {fault.fix}"


def faults(names: Sequence[str]) -> dict[str, Fault]:
    """Return what is wrong with these modules, by name."""
    folders, results = _known()
    if new := [name for name in names if name not in results]:
        if sys.stderr.isatty():
            print("checking that each package can be imported", file=sys.stderr)
        for name, fault, read in _imported(new):
            results[name] = fault
            folders |= {path: time for path, time in read.items() if not _is_own(path)}
        sound = [name for name, fault in results.items() if not fault]
        with suppress(OSError, RuntimeError, WorkspaceError):  # no home, or one to read only
            write_atomic(_file(), json.dumps([folders, sound]))
    return {name: fault for name in names if (fault := results[name])}


@cache
def _known() -> tuple[dict[str, int], dict[str, Fault | None]]:
    """Return the results of this process, which begin with the cached ones that are still valid."""
    with suppress(OSError, RuntimeError, ValueError):
        folders, sound = json.loads(_file().read_text())
        if all(os.stat(path).st_mtime_ns == time for path, time in folders.items()):
            return folders, dict.fromkeys(sound)
    return {}, {}


def _file() -> Path:
    """Return the file that keeps what can be imported in this environment."""
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(":") if not _is_own(path)]
    environment = [sys.prefix, sys.version, paths, os.environ.get("LD_LIBRARY_PATH")]
    folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return folder / f"triton-notebooks/{digest(environment)[:16]}.json"


def _is_own(path: str) -> bool:
    """Return whether a folder is the project's, but for an environment in it."""
    return Path(path).is_relative_to(ROOT) and not Path(path).is_relative_to(sys.prefix)


def _imported(names: Sequence[str]) -> Iterator[tuple[str, Fault | None, dict[str, int]]]:
    """Import modules in a process; if an import ends it, import the rest in another process."""
    left = list(names)
    while left:
        done = subprocess.run(
            [sys.executable, "-P", probe.__file__, *left],
            env=os.environ | SETTINGS,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            preexec_fn=before_exec,  # it ends with this process, however that ends
        )
        answers = [json.loads(line) for line in done.stdout.splitlines()]
        for name, (fault, folders) in zip(left, answers, strict=False):
            yield name, Fault(*fault) if fault else None, folders
        left = left[len(answers) :]
        if left and not answers:  # it is this one, and not what was imported before it
            name, code = left.pop(0), done.returncode
            how = Signals(-code).name if code < 0 else f"exit code {code}"
            yield name, probe.blamed(name, f"ends Python with {how} when it is imported"), {}
