"""Compare the software of two machines: Python, the lock's packages, and this package's source.

A stage's fingerprint has these versions and hashes: with other ones, a result of one machine would
be outdated on the next.
"""

import platform
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

from helpers.results import notebook_digest
from helpers.store import ROOT, known_digest

LOCK = ROOT / "docker/requirements.lock"


def software() -> dict[str, str]:
    """Return the versions of this machine's packages, and the hash of each source file."""
    lines = LOCK.read_text().splitlines() if LOCK.exists() else []
    names = [line.partition("==")[0] for line in lines if "==" in line]
    hashed = {path: known_digest(path) for path in (ROOT / "helpers").rglob("*.py")}
    hashed |= {path: notebook_digest(path) for path in (ROOT / "notebooks").glob("*/*.ipynb")}
    versions = {"python": platform.python_version()} | {name: _version(name) for name in names}
    return versions | {str(path.relative_to(ROOT)): digest for path, digest in hashed.items()}


def difference(ours: Mapping[str, str], theirs: Mapping[str, str]) -> str:
    """Return how another machine's software differs from ours, in one line; empty if equal."""
    names = [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]
    if not names:
        return ""
    named = sorted([name for name in names if "/" not in name] or names)  # packages first
    first, more = named[0], f" and {len(named) - 1} more" if len(named) > 1 else ""
    if "/" in first:
        return f"a different version of {first}{more}"
    has, expected = theirs.get(first) or "none", ours.get(first) or "none"
    return f"{first} {has} instead of {expected}{more}"


def _version(name: str) -> str:
    """Return a package's version without its local part, such as +cpu, which other builds lack."""
    for candidate in (name, f"{name}-gpu"):  # a package's other build has the same version
        with suppress(PackageNotFoundError):
            return version(candidate).partition("+")[0]
    return ""
