"""A process that imports modules one by one, and reports what is wrong with each one's package.

It runs as a script whose arguments are the modules, and imports nothing of this package. It prints
one line of JSON per module: a `Fault` or null, and the folders that it read, with their mtimes. An
import that ends the process has no line.
"""

import json
import os
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from traceback import walk_tb
from typing import NamedTuple

# Packages that this process does not import: the first reports its use, the second takes a second
UNWANTED = ("openvino_telemetry", "rfc3987_syntax")
CODE = re.compile(r"(?!.*\btests?/)\w.*\.(py|so(\.\d+)*)")  # an image may have lost the tests
CUDA = re.compile(r"\blib(cu|nv|nccl)\S*\.so")
LOCKS = {"torch": "-r docker/torch.lock", "tensorrt": "-r docker/gpu.lock"}


class Fault(NamedTuple):
    """What is wrong with a package: "torch", "2.13.0 lacks torch/nn.py", and the fix."""

    package: str
    found: str
    fix: str


class Distribution(NamedTuple):
    """An installed distribution, with the size in bytes of each code file, from its RECORD."""

    name: str
    version: str
    folder: str
    code: dict[str, str]


Installed = dict[str, list[Distribution]]  # by top-level module


def fault(name: str, version: str = "", problem: str = "is not installed") -> Fault:
    """Return what is wrong with a package, and the command that installs it (again)."""
    lock, pin = LOCKS.get(name, "-r docker/requirements.lock"), f"{name}=={version}"
    if name == "torch" and CUDA.search(problem):
        pin, problem = lock, "is the CUDA build without its libraries"
    pin = lock if not version or (name == "torch" and "+" in version) else pin
    again = "--force-reinstall " if version else ""
    return Fault(name, f"{version} {problem}".strip(), f"pip install {again}--no-deps {pin}")


def owners() -> Installed:
    """Map each top-level module to its distributions, each the first of its name on the path."""
    distributions: dict[str, dict[str, Distribution]] = {}
    for record in (file for path in sys.path for file in Path(path).glob("*.dist-info/RECORD")):
        rows = (line.rsplit(",", 2) for line in record.read_text(encoding="utf-8").splitlines())
        code = {row[0]: row[-1] for row in rows if CODE.fullmatch(row[0])}
        name, _, version = record.parent.stem.partition("-")
        distribution = Distribution(name.replace("_", "-"), version, str(record.parents[1]), code)
        for root in {re.split(r"[/.]", path)[0] for path in code}:
            distributions.setdefault(root, {}).setdefault(distribution.name, distribution)
    return {root: list(named.values()) for root, named in distributions.items()}


def faults(name: str, installed: Installed) -> Iterator[Fault]:
    """Import a module, and check the files of its package and of the packages that it imports."""
    root, before = name.partition(".")[0], set(sys.modules)
    same = sorted(dist for dist in installed.get(root, ()) if f"{root}/__init__.py" in dist.code)
    if len(same) > 1:
        (package, version, *_), other = same[0], same[1].name
        fix = f"pip uninstall -y {package} {other} && pip install --no-deps {package}=={version}"
        yield Fault(package, f"and {other} are both installed, in one folder", fix)
    yield from lost(root, installed)
    try:
        if not getattr(import_module(name), "__file__", None):  # a folder without a package
            yield fault(root)
    except (Exception, SystemExit) as error:
        yield diagnose(error, root, installed)
    for other in {module.partition(".")[0] for module in set(sys.modules) - before}:
        yield from lost(other, installed)


def lost(root: str, installed: Installed) -> Iterator[Fault]:
    """Yield a fault for each code file that is missing, or empty although it had content."""
    for dist in installed.get(root, ()):
        for path, size in dist.code.items():
            file = f"{dist.folder}/{path}"
            if not os.path.exists(file) or (size > "0" and not os.stat(file).st_size):
                yield fault(dist.name, dist.version, f"lacks {path}")


def diagnose(
    error: BaseException, root: str = "a package", installed: Installed | None = None
) -> Fault:
    """Return what an error of the import of `root` means, and for which package."""
    installed = installed or owners()
    while error.__cause__:
        error = error.__cause__
    name = str(getattr(error, "name", None) or "")
    if isinstance(error, ModuleNotFoundError) and name not in installed and "." not in name:
        return fault(name)
    files = [frame.f_code.co_filename for frame, _ in walk_tb(error.__traceback__)]
    sites = {f"{dist.folder}/" for named in installed.values() for dist in named}
    inner = (file.removeprefix(s) for file in files[::-1] for s in sites if file.startswith(s))
    roots = (re.split(r"[/.]", path)[0] for path in (name, *inner))
    root = next((candidate for candidate in roots if candidate in installed), root)
    reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return blamed(root, f"cannot be imported ({reason})", installed)


def blamed(name: str, problem: str, installed: Installed | None = None) -> Fault:
    """Return what is wrong with the package of a module."""
    root = name.partition(".")[0]
    dist = (installed or owners()).get(root, [Distribution(root, "", "", {})])[0]
    return fault(dist.name, dist.version, problem)


def folders(installed: Installed) -> dict[str, int]:
    """Return the folders of the modules and libraries that this process loaded, with mtimes."""
    files = (getattr(module, "__dict__", {}).get("__file__") for module in sys.modules.values())
    paths = {os.path.dirname(file) for file in files if file}
    with open("/proc/self/maps", encoding="utf-8") as maps:
        paths |= {os.path.dirname(line[line.find("/") :]) for line in maps if ".so" in line}
    paths |= {dist.folder for named in installed.values() for dist in named}
    return {path: os.stat(path).st_mtime_ns for path in paths if os.path.isdir(path)}


def main() -> None:
    """Import each module that the arguments name, and print its result."""
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what packages print when they are imported
    sys.modules.update(dict.fromkeys(UNWANTED))  # type: ignore[arg-type]  # as if not installed
    installed = owners()
    for name in sys.argv[1:]:
        answer = next(faults(name, installed), None), folders(installed)
        print(json.dumps(answer), file=channel, flush=True)
    os._exit(0)  # exit handlers of frameworks are slow


if __name__ == "__main__":
    main()
