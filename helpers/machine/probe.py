"""A process that imports modules in turn, and says of each what is wrong with its package.

It is started as a script, with their names, and imports nothing of this package. It answers each
with a line of JSON: a `Fault` or null, and the folders that were read, with their times of change.
Where an import ends the process, there is no answer.
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

# What this package keeps from being imported: one reports its use, the other takes a second
UNWANTED = ("openvino_telemetry", "rfc3987_syntax")
CODE = re.compile(r"(?!.*\btests?/)\w.*\.(py|so(\.\d+)*)")  # an image may have lost the tests
CUDA = re.compile(r"\blib(cu|nv|nccl)\S*\.so")
LOCKS = {"torch": "-r docker/torch.lock", "tensorrt": "-r docker/gpu.lock"}


class Fault(NamedTuple):
    """What is wrong with a package: "torch", "2.13.0 lacks torch/nn.py", and what mends it."""

    package: str
    found: str
    fix: str


class Distribution(NamedTuple):
    """An installed distribution, and the size in bytes of each file of its code, as RECORD says."""

    name: str
    version: str
    folder: str
    code: dict[str, str]


def fault(name: str, version: str = "", found: str = "is not installed") -> Fault:
    """Return what is wrong with a package, and the command that installs it (again)."""
    lock, pin = LOCKS.get(name, "-r docker/requirements.lock"), f"{name}=={version}"
    if name == "torch" and CUDA.search(found):
        pin, found = lock, "is the CUDA build without its libraries"
    pin = lock if not version or (name == "torch" and "+" in version) else pin
    again = "--force-reinstall " if version else ""
    return Fault(name, f"{version} {found}".strip(), f"pip install {again}--no-deps {pin}")


def owners() -> dict[str, list[Distribution]]:
    """Find whose each module at the top is; of two with one name it is the first on the path."""
    found: dict[str, dict[str, Distribution]] = {}
    for record in (each for path in sys.path for each in Path(path).glob("*.dist-info/RECORD")):
        rows = (line.rsplit(",", 2) for line in record.read_text(encoding="utf-8").splitlines())
        code = {row[0]: row[-1] for row in rows if CODE.fullmatch(row[0])}
        name, _, version = record.parent.stem.partition("-")
        own = Distribution(name.replace("_", "-"), version, str(record.parents[1]), code)
        for root in {re.split(r"[/.]", path)[0] for path in code}:
            found.setdefault(root, {}).setdefault(own.name, own)
    return {root: list(named.values()) for root, named in found.items()}


def faults(name: str, known: dict[str, list[Distribution]]) -> Iterator[Fault]:
    """Import a module, and look for the files of its package and of those that it imports."""
    root, before = name.partition(".")[0], set(sys.modules)
    same = sorted(each for each in known.get(root, ()) if f"{root}/__init__.py" in each.code)
    if len(same) > 1:
        (own, version, *_), other = same[0], same[1].name
        fix = f"pip uninstall -y {own} {other} && pip install --no-deps {own}=={version}"
        yield Fault(own, f"and {other} are both installed, in one folder", fix)
    yield from lost(root, known)
    try:
        if not getattr(import_module(name), "__file__", None):  # a folder without a package
            yield fault(root)
    except (Exception, SystemExit) as error:
        yield diagnose(error, root, known)
    for other in {each.partition(".")[0] for each in set(sys.modules) - before}:
        yield from lost(other, known)


def lost(root: str, known: dict[str, list[Distribution]]) -> Iterator[Fault]:
    """Look for files of code that are gone, or empty though they were not when installed."""
    for own in known.get(root, ()):
        for path, size in own.code.items():
            place = f"{own.folder}/{path}"
            if not os.path.exists(place) or (size > "0" and not os.stat(place).st_size):
                yield fault(own.name, own.version, f"lacks {path}")


def diagnose(
    error: BaseException,
    root: str = "a package",
    known: dict[str, list[Distribution]] | None = None,
) -> Fault:
    """Return what an error of the import of `root` means, and for which package."""
    known = known or owners()
    while error.__cause__:
        error = error.__cause__
    name = str(getattr(error, "name", None) or "")
    if isinstance(error, ModuleNotFoundError) and name not in known and "." not in name:
        return fault(name)
    files = [frame.f_code.co_filename for frame, _ in walk_tb(error.__traceback__)]
    sites = {f"{own.folder}/" for found in known.values() for own in found}
    inner = (file.removeprefix(s) for file in files[::-1] for s in sites if file.startswith(s))
    roots = (re.split(r"[/.]", each)[0] for each in (name, *inner))
    root = next((each for each in roots if each in known), root)
    reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return blamed(root, f"cannot be imported ({reason})", known)


def blamed(name: str, found: str, known: dict[str, list[Distribution]] | None = None) -> Fault:
    """Return what is wrong with the package of a module."""
    root = name.partition(".")[0]
    own = (known or owners()).get(root, [Distribution(root, "", "", {})])[0]
    return fault(own.name, own.version, found)


def folders(known: dict[str, list[Distribution]]) -> dict[str, int]:
    """List from where this process has loaded modules and libraries, with the times of change."""
    files = (getattr(module, "__dict__", {}).get("__file__") for module in sys.modules.values())
    found = {os.path.dirname(file) for file in files if file}
    with open("/proc/self/maps", encoding="utf-8") as maps:
        found |= {os.path.dirname(line[line.find("/") :]) for line in maps if ".so" in line}
    found |= {own.folder for owns in known.values() for own in owns}
    return {each: os.stat(each).st_mtime_ns for each in found if os.path.isdir(each)}


def main() -> None:
    """Answer the names that the process was given, in turn."""
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what packages print when they are imported
    sys.modules.update(dict.fromkeys(UNWANTED))  # type: ignore[arg-type]  # as if not installed
    known = owners()
    for name in sys.argv[1:]:
        answer = next(faults(name, known), None), folders(known)
        print(json.dumps(answer), file=channel, flush=True)
    os._exit(0)  # what frameworks do at an end is slow


if __name__ == "__main__":
    main()
