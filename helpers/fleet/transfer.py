"""What travels between machines: artifacts in pieces, checked before they count, and results.

A place is an artifact's folder below the outputs folder, such as data/bert-dataset-0123456789ab. A
name holds the hash of all that decides its content, so a copy is as good as making it again.
"""

import hashlib
import json
import math
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import JsonValue

from helpers.config import STAGE, DeployConfig, ExportConfig, artifact_folder
from helpers.display import Lines
from helpers.errors import DeploymentError, FleetError
from helpers.fleet.access import Access, configure
from helpers.fleet.workers import Workers, joined, probed
from helpers.inference import checkpoint_place, dataset_place, recipe_folder
from helpers.pipeline import DATA_SECONDS, Job
from helpers.results import read as read_result
from helpers.store import (
    MANIFEST,
    Artifact,
    display_path,
    find_artifact,
    is_away,
    is_unchanged,
    making,
    write_atomic,
)

Ask = Callable[..., Any]  # calls a function of this module in another machine's outputs folder
PIECE = 2**24  # bytes
RATE = 100e6  # bytes/s: of a network of 1 Gbit/s
PLACE = re.compile(r"(data|[\w.-]+/artifacts)/[\w.-]+")
DATA = "data/"  # how the places of data sets and checkpoints begin
PAGE = ".html"  # is made again at home


def needed(jobs: Sequence[Job], before: Sequence[Job] = ()) -> dict[str, float]:
    """Return the places of data that jobs need and this package makes, and of the artifacts that
    they made before, with about how many seconds making each takes: those of jobs `before` them
    will not be made.
    """
    found: dict[str, float] = {}
    for job in (*before, *jobs):
        config = job.config
        if isinstance(config, ExportConfig):
            with suppress(DeploymentError):  # the user's files are on the worker only
                found |= {DATA + name: DATA_SECONDS for name in _data(config)}
        result = read_result(job.result)
        if result and result.state == "done" and result.artifact:
            place = f"{config.target}/artifacts/{result.artifact.folder}"
            found[place] = math.inf if job in before else result.seconds or DATA_SECONDS
    return found


def _data(config: ExportConfig) -> Iterable[str]:
    places = (dataset_place(config), checkpoint_place(config))
    yield from (place.made.name for place in places if place.made)
    yield recipe_folder(config, "reference").name


def held(outputs: Path, places: Sequence[str]) -> list[str]:
    """List the places whose artifact is here, with all its files as they were made."""
    found = ((place, find_artifact(_folder(outputs, place))) for place in places)
    return [place for place, artifact in found if artifact and is_unchanged(artifact)]


def listed(outputs: Path, place: str) -> tuple[dict[str, JsonValue], dict[str, tuple[int, str]]]:
    """Return an artifact's facts, and the bytes and SHA-256 of each of its files."""
    artifact = _required(outputs, place)
    files = {name: (file.size, file.sha256) for name, file in artifact.files.items()}
    return dict(artifact.facts), files


def read(outputs: Path, place: str, name: str, offset: int) -> bytes:
    """Read a piece of one of an artifact's files."""
    artifact = _required(outputs, place)
    if name not in artifact.files:
        raise FleetError(f"the artifact {place} has no file {name}")
    with (artifact.folder / name).open("rb") as file:
        file.seek(offset)
        return file.read(PIECE)


def _required(outputs: Path, place: str) -> Artifact:
    artifact = find_artifact(_folder(outputs, place))
    if artifact is None:
        raise FleetError(f"the artifact {place} is missing")
    return artifact


def _folder(outputs: Path, place: str) -> Path:
    if not PLACE.fullmatch(place) or ".." in PurePosixPath(place).parts:
        raise FleetError(f"{place} is not the folder of an artifact")
    return outputs / place


def is_quicker(ask: Ask, place: str, seconds: float) -> bool:
    """Return whether copying an artifact takes less time than making it, which takes `seconds`
    unless its maker wrote down how long it took.
    """
    facts, files = ask(listed, place)
    known = facts.get("fitted_seconds")
    sending: float = sum(size for size, _ in files.values()) / RATE
    return sending < (float(known) if isinstance(known, int | float) and known else seconds)


def pull(ask: Ask, place: str, outputs: Path) -> str:
    """Copy an artifact from another machine, whole or not at all; return what that took.

    Raises `FleetError` if a file is damaged.
    """
    began, total = time.monotonic(), 0
    given, files = ask(listed, place)
    with making(_folder(outputs, place)) as (folder, facts):
        facts.update(given)
        for name, (size, sha256) in files.items():
            if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
                raise FleetError(f"{name} is not a file of an artifact")
            path, digest = folder / name, hashlib.sha256()
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                for offset in range(0, size, PIECE):
                    piece = ask(read, place, name, offset)
                    file.write(piece)
                    digest.update(piece)
            if digest.hexdigest() != sha256:
                raise FleetError(f"{place}/{name} was damaged in transfer. Run again.")
            total += size
    return f"{place}: sent {total / 1e6:,.1f} MB in {time.monotonic() - began:.1f} s"


def fetch(workers: Workers, outputs: Path, places: Sequence[str], say: Lines) -> None:
    """Copy artifacts that are not here from whichever worker has them."""
    from helpers.fleet.tasks import at_work

    missing = set(places) - {*held(outputs, places)}
    for worker in workers:
        ask = partial(workers.ask, worker.address, at_work)
        found: list[str] = []
        with suppress(FleetError):  # it does not respond
            found = ask(held, sorted(missing))
        for place in found:
            say(pull(ask, place, outputs))
            missing.discard(place)
    for place in sorted(missing):
        say(f"{display_path(outputs / place)}: not found on any worker")


def bring(config: DeployConfig, outputs: Path, access: Access, say: Lines) -> None:
    """Copy the model repository of an experiment from the workers of a cluster."""
    configure()
    place = str(artifact_folder(config, "deploy").relative_to(outputs))
    with joined(access) as client, probed(outputs) as probe:
        workers = Workers(client, access.address, probe)
        workers.refresh()
        fetch(workers, outputs, [place], say)


# Results


def results_of(outputs: Path, target: str, result: str) -> dict[str, bytes]:
    """Read the files of a stage by their names, which begin with the stage's, and the manifest of
    the artifact that it made; the result last: what is written before it is whole.
    """
    path = outputs / target / result
    stage, found = path.stem, read_result(path)
    paths = {each for mark in "._" for each in path.parent.glob(f"{stage}{mark}*")}
    files = {each.name: each.read_bytes() for each in sorted(paths - {path}) if each.suffix != PAGE}
    if found and found.artifact and STAGE[stage].makes_artifact:
        manifest = outputs / target / "artifacts" / found.artifact.folder / MANIFEST
        files |= {MANIFEST: manifest.read_bytes()} if manifest.exists() else {}
    return files | ({path.name: path.read_bytes()} if path.exists() else {})


def lacking(outputs: Path, target: str, results: Sequence[str]) -> list[str]:
    """List the results that are not done here."""
    found = {name: read_result(outputs / target / name) for name in results}
    return [name for name, result in found.items() if result is None or result.state != "done"]


def take(outputs: Path, target: str, files: Mapping[str, Mapping[str, bytes]]) -> None:
    """Write the files of stages, each by the path of its result."""
    for result, content in files.items():
        receive(outputs / target, outputs / target / result, content)


def receive(base: Path, result: Path, files: Mapping[str, bytes]) -> None:
    """Write the files of a stage below the target's folder `base`, each by its bare name; the
    result last, which makes it count. Raises `FleetError` if one belongs to another stage.
    """
    for given, content in files.items():
        name = PurePosixPath(given).name
        if name == MANIFEST:
            artifact = json.loads(files[result.name])["artifact"]["folder"]
            place = base / "artifacts" / PurePosixPath(artifact).name / MANIFEST
            if _is_here(place.parent, content):
                continue
        elif re.match(rf"{result.stem}[._]", name):
            place = result.with_name(name)
        else:
            raise FleetError(f"the worker sent {name}, which is not a file of {result.stem}")
        if not (place.exists() and place.read_bytes() == content):  # a shared disk has it
            write_atomic(place, content)


def _is_here(folder: Path, manifest: bytes) -> bool:
    """Return whether the artifact itself is here, with the same content as a manifest says."""
    found = find_artifact(folder)
    if found is None or is_away(found):
        return False
    told = {name: file["sha256"] for name, file in json.loads(manifest)["files"].items()}
    return told == {name: file.sha256 for name, file in found.files.items()}
