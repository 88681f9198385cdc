"""Compare the software of two machines: Python, the lock's packages, and this package's source.

A stage's fingerprint has these versions and hashes: with other ones, a result of one machine would
be outdated on the next.
"""

import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

from helpers import results
from helpers.store import ROOT, known_digest

LOCK = ROOT / "docker/requirements.lock"


def software() -> dict[str, str]:
    """Return the versions of this machine's packages, and the hash of each source file."""
    lines = LOCK.read_text().splitlines() if LOCK.exists() else []
    names = [line.partition("==")[0] for line in lines if "==" in line]
    source = sorted((ROOT / "helpers").rglob("*.py"))
    notebooks = sorted((ROOT / "notebooks").glob("*/*.ipynb"))
    return {
        "python": platform.python_version(),
        **{name: _version(name) for name in names},
        **{str(path.relative_to(ROOT)): known_digest(path) for path in source},
        **{str(path.relative_to(ROOT)): results.notebook_digest(path) for path in notebooks},
    }


def difference(ours: Mapping[str, str], theirs: Mapping[str, str]) -> str:
    """Return how another machine's software differs from ours, in one line; empty if equal."""
    names = [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]
    packages = [name for name in names if "/" not in name]
    if not names:
        return ""
    named = sorted(packages or names)
    first, more = named[0], f" and {len(named) - 1} more" if len(named) > 1 else ""
    if not packages:
        return f"a different version of {first}{more}"
    has, expected = theirs.get(first) or "none", ours.get(first) or "none"
    return f"{first} {has} instead of {expected}{more}"


def _version(name: str) -> str:
    """Return a package's version without its local part, such as +cpu, which other builds lack."""
    for candidate in (name, f"{name}-gpu"):  # a package's other build has the same version
        try:
            return version(candidate).partition("+")[0]
        except PackageNotFoundError:
            continue
    return ""
