"""What travels between the submitter and a worker: the order for a stage, and what comes home."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from helpers.config import STAGE, CompareConfig, LoadConfig
from helpers.errors import FleetError
from helpers.pipeline import Job
from helpers.results import read
from helpers.store import MANIFEST, find_artifact, is_away, write_atomic

PAGE = ".html"  # is made again at home


@dataclass(frozen=True)
class Order:
    """One stage to run once, in one process of one worker and nowhere else."""

    ticket: str  # no two orders have the same
    run: str  # that it belongs to
    worker: str  # the identity of the worker's process
    target: str
    parameters: str  # the parameter file
    model: str
    experiment: str
    stage: str
    force: bool
    cell_seconds: int
    command: str  # that the result will name
    known: Mapping[str, bytes] = field(default_factory=dict, repr=False)  # what is at home of it

    @property
    def measures(self) -> bool:
        """Whether the stage needs the machine to itself."""
        return issubclass(STAGE[self.stage].config, (LoadConfig, CompareConfig))


@dataclass(frozen=True)
class Bundle:
    """What a stage left: its state, and the bytes and SHA-256 of its files, by their paths below
    the target's folder.
    """

    state: str  # as `Runner.settle` gives it, or "refused"
    reason: str = ""
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    hashes: Mapping[str, str] = field(default_factory=dict, repr=False)


def paths_of(job: Job) -> list[Path]:
    """List the files of a job that are on this machine, whose names begin with the stage's, the
    result last: what was written before it is whole.
    """
    stem, folder = job.result.stem, job.result.parent
    found = {path for mark in "._" for path in folder.glob(f"{stem}{mark}*")}
    found = {path for path in found if path.suffix != PAGE} - {job.result}
    return [*sorted(found), *([job.result] if job.result.exists() else [])]


def manifest_of(base: Path, job: Job) -> list[Path]:
    """List the manifest of the artifact that a job made, below the target's folder `base`."""
    result = read(job.result) if STAGE[job.config.stage].makes_artifact else None
    if result is None or result.artifact is None:
        return []
    path = base / "artifacts" / result.artifact.folder / MANIFEST
    return [path] if path.exists() else []


def hashed(contents: Mapping[str, bytes]) -> dict[str, str]:
    """Give the SHA-256 of each file."""
    return {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}


def contents(base: Path, paths: Sequence[Path]) -> dict[str, bytes]:
    """Read files by their paths below `base`."""
    return {str(path.relative_to(base)): path.read_bytes() for path in paths}


def receive(base: Path, job: Job, bundle: Bundle) -> None:
    """Write what came home below the target's folder `base`, if all of it came as it was sent; the
    result last, which makes it count. Raises `FleetError`.
    """
    own, manifest = job.result.parent.relative_to(base), ""
    if hashed(bundle.files) != dict(bundle.hashes):
        raise FleetError("The stage's files were damaged in transfer. Run again.")
    for name in bundle.files:
        path = PurePosixPath(name)
        is_own = path.parent == PurePosixPath(own) and path.name.startswith(job.result.stem)
        is_manifest = path.parts[0] == "artifacts" and len(path.parts) == 3
        if ".." in path.parts or not (is_own or (is_manifest and path.name == MANIFEST)):
            raise FleetError(f"the worker sent {name}, which is not a file of {job.name}")
        manifest = name if is_manifest else manifest
    for name, content in bundle.files.items():
        place = base / name
        if place.exists() and place.read_bytes() == content:
            continue  # a shared disk has brought it
        if name == manifest and _is_here(place.parent, content):
            continue
        write_atomic(place, content)


def _is_here(folder: Path, manifest: bytes) -> bool:
    """Whether the artifact itself is here, with the same content as a manifest says."""
    found = find_artifact(folder)
    if found is None or is_away(found):
        return False
    told = {name: file["sha256"] for name, file in json.loads(manifest)["files"].items()}
    return told == {name: file.sha256 for name, file in found.files.items()}


def known(base: Path, job: Job) -> dict[str, bytes]:
    """Read what is at home of a job whose result holds: a worker that knows nothing of it takes it
    over.
    """
    found = read(job.result)
    is_done = found is not None and found.state == "done"
    return contents(base, paths_of(job)) if is_done else {}
