"""Whether two machines have the same software: Python, the lock's packages, this package's source.

A stage's fingerprint has these versions and hashes, so that what one machine made with others would
be stale on the next.
"""

import platform
from collections.abc import Mapping
from importlib.metadata import distributions

from helpers import results
from helpers.store import ROOT, known_digest

LOCK = ROOT / "docker/requirements.lock"
GPU = "-gpu"  # a package's other build, such as onnxruntime-gpu, has the same version

Software = Mapping[str, Mapping[str, str]]  # kind -> name -> version or hash


def software() -> dict[str, dict[str, str]]:
    """Say what this machine has: versions, and the hashes of the source files and notebooks."""
    installed: dict[str, str] = {}
    for each in distributions():
        installed.setdefault(_canonical(each.name), _public(each.version))  # as an import finds it
    found = {name: installed.get(name) or installed.get(name + GPU, "") for name in _locked()}
    source = {
        str(path.relative_to(ROOT)): known_digest(path)
        for path in sorted((ROOT / "helpers").rglob("*.py"))
    }
    notebooks = {
        str(path.relative_to(ROOT)): results.notebook_digest(path)
        for path in sorted((ROOT / "notebooks").glob("*/*.ipynb"))
    }
    return {
        "version": {"python": platform.python_version(), **found},
        "source": {**source, **notebooks},
    }


def difference(ours: Software, theirs: Software) -> str:
    """Say in one line in what another machine's software differs from ours; empty if in nothing."""
    for kind, own in ours.items():
        other = theirs.get(kind, {})
        names = sorted(name for name in {**own, **other} if own.get(name) != other.get(name))
        if names:
            first, more = names[0], f" and {len(names) - 1} more" if len(names) > 1 else ""
            if kind == "source":
                return f"a different version of {first}{more}"
            has, wanted = other.get(first) or "none", own.get(first) or "none"
            return f"{first} {has} instead of {wanted}{more}"
    return ""


def _locked() -> list[str]:
    if not LOCK.exists():
        return []
    lines = LOCK.read_text().splitlines()
    return [_canonical(line.partition("==")[0]) for line in lines if "==" in line]


def _canonical(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


def _public(version: str) -> str:
    """Leave out the local part, such as +cpu: builds for a GPU have another."""
    return version.partition("+")[0]
