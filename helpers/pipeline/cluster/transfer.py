"""What travels between machines: artifacts in pieces, checked before they count, and results.

A place is an artifact's folder below the outputs folder, such as data/bert-dataset-0123456789ab. A
name holds the hash of all that decides its content, so a copy is as good as making it again.
"""

import hashlib
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from helpers.config import STAGE, DeployConfig, ExportConfig, artifact_folder
from helpers.display import Lines
from helpers.errors import ClusterError, DeploymentError
from helpers.inference import checkpoint_place, dataset_place, recipe_folder
from helpers.pipeline import Job
from helpers.pipeline.cluster.access import Access
from helpers.pipeline.cluster.workers import Workers, ask, ask_all, joined
from helpers.results import read as read_result
from helpers.store import (
    MANIFEST,
    Artifact,
    create_artifact,
    display_path,
    find_artifact,
    is_remote,
    is_unchanged,
    write_atomic,
)

if TYPE_CHECKING:
    from distributed import Client

Ask = Callable[..., Any]  # calls a function of this module in another machine's outputs folder
PIECE = 2**24  # bytes
PLACE = re.compile(r"(data|[\w.-]+/artifacts)/[\w.-]+")
PAGE = ".html"  # is made again at home


# Artifacts


def artifacts_of(jobs: Iterable[Job]) -> list[str]:
    """Return the places of the artifacts that jobs have made."""
    results = ((job.config.target, read_result(job.result)) for job in jobs)
    return [
        f"{target}/artifacts/{result.artifact.folder}"
        for target, result in results
        if result and result.state == "done" and result.artifact
    ]


def data_of(jobs: Iterable[Job]) -> list[str]:
    """Return the places of the data that jobs need and this package makes."""
    places: dict[str, None] = {}
    for config in (job.config for job in jobs if isinstance(job.config, ExportConfig)):
        with suppress(DeploymentError):  # the user's files are on the worker only
            made = (dataset_place(config).made, checkpoint_place(config).made)
            folders = (*filter(None, made), recipe_folder(config, "reference"))
            places |= dict.fromkeys(f"data/{folder.name}" for folder in folders)
    return [*places]


def held(outputs: Path, places: Sequence[str]) -> list[str]:
    """List the places whose artifact is here, with all its files as they were made."""
    found = ((place, find_artifact(_folder(outputs, place))) for place in places)
    return [place for place, artifact in found if artifact and is_unchanged(artifact)]


def lacking(outputs: Path, places: Sequence[str]) -> list[str]:
    """List the places whose artifact is not here."""
    return sorted({*places} - {*held(outputs, places)})


def artifact_at(outputs: Path, place: str) -> Artifact:
    """Return the artifact at a place; raise `ClusterError` if there is none."""
    if artifact := find_artifact(_folder(outputs, place)):
        return artifact
    raise ClusterError(f"the artifact {place} is missing")


def read(outputs: Path, place: str, name: str, offset: int) -> bytes:
    """Read a piece of one of an artifact's files."""
    artifact = artifact_at(outputs, place)
    if name not in artifact.files:
        raise ClusterError(f"the artifact {place} has no file {name}")
    with (artifact.folder / name).open("rb") as file:
        file.seek(offset)
        return file.read(PIECE)


def _folder(outputs: Path, place: str) -> Path:
    if not PLACE.fullmatch(place) or ".." in PurePosixPath(place).parts:
        raise ClusterError(f"{place} is not the folder of an artifact")
    return outputs / place


def pull(ask: Ask, place: str, outputs: Path) -> str:
    """Copy an artifact from another machine, whole or not at all; return what that took.

    Raises `ClusterError` if a file is damaged.
    """
    began, source = time.monotonic(), ask(artifact_at, place)
    with create_artifact(_folder(outputs, place)) as (folder, facts):
        facts.update(source.facts)
        for name, record in source.files.items():
            if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
                raise ClusterError(f"{name} is not a file of an artifact")
            path, digest = folder / name, hashlib.sha256()
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                for offset in range(0, record.size, PIECE):
                    piece = ask(read, place, name, offset)
                    file.write(piece)
                    digest.update(piece)
            if digest.hexdigest() != record.sha256:
                raise ClusterError(f"{place}/{name} was damaged in transfer. Run again.")
    return f"{place}: sent {source.size_mb:,.1f} MB in {time.monotonic() - began:.1f} s"


def pull_missing(
    client: "Client", sources: Sequence[str], outputs: Path, places: Sequence[str]
) -> Iterator[str]:
    """Copy the artifacts that the workers `sources` have; yield a line for each."""
    from helpers.pipeline.cluster.tasks import in_outputs

    missing = {*places}
    for address, found in ask_all(client, sources, in_outputs, held, places).items():
        for place in sorted(missing & {*found}):
            yield pull(partial(ask, client, address, in_outputs), place, outputs)
            missing.discard(place)


def fetch(workers: Workers, outputs: Path, places: Sequence[str], say: Lines) -> None:
    """Copy artifacts that are not here from whichever worker has them."""
    for line in pull_missing(workers.client, workers.addresses, outputs, lacking(outputs, places)):
        say(line)
    for place in lacking(outputs, places):
        say(f"{display_path(outputs / place)}: not found on any worker")


def fetch_repository(config: DeployConfig, outputs: Path, access: Access, say: Lines) -> None:
    """Copy the model repository of an experiment from the workers of a cluster."""
    place = str(artifact_folder(config, "deploy").relative_to(outputs))
    with joined(access, outputs) as workers:
        fetch(workers, outputs, [place], say)


# Results


def results_of(outputs: Path, name: str) -> dict[str, bytes]:
    """Read the files of a stage by their names, which begin with the stage's, and the manifest of
    the artifact that it made; its result, of this `name`, last: what is written before is whole.
    """
    path = outputs / name
    stage, result = path.stem, read_result(path)
    paths = {beside for mark in "._" for beside in path.parent.glob(f"{stage}{mark}*")}
    chosen = sorted(beside for beside in paths - {path} if beside.suffix != PAGE)
    files = {beside.name: beside.read_bytes() for beside in chosen}
    if result and result.artifact and STAGE[stage].makes_artifact:
        manifest = path.parents[2] / "artifacts" / result.artifact.folder / MANIFEST
        files |= {MANIFEST: manifest.read_bytes()} if manifest.exists() else {}
    return files | ({path.name: path.read_bytes()} if path.exists() else {})


def receive(result: Path, files: Mapping[str, bytes]) -> None:
    """Write the files of a stage, each by its bare name; the result last, which makes it count.

    Raises `ClusterError` if one belongs to another stage.
    """
    for given, content in files.items():
        name = PurePosixPath(given).name
        if name == MANIFEST:
            made = json.loads(files[result.name])["artifact"]
            path = result.parents[2] / "artifacts" / PurePosixPath(made["folder"]).name / MANIFEST
            here = find_artifact(path.parent)
            if here and not is_remote(here) and here.sha256 == made["sha256"]:
                continue
        elif re.match(rf"{result.stem}[._]", name):
            path = result.with_name(name)
        else:
            raise ClusterError(f"the worker sent {name}, which is not a file of {result.stem}")
        if not (path.exists() and path.read_bytes() == content):  # a shared disk has it
            write_atomic(path, content)


def done_files(outputs: Path, jobs: Iterable[Job]) -> dict[str, bytes]:
    """Read notebook and result of each job that is done; a result comes after its notebook."""
    results = ((job.result, read_result(job.result)) for job in jobs)
    done = [path for path, result in results if result and result.state == "done"]
    paths = (each for path in done for each in (path.with_suffix(".ipynb"), path))
    return {str(path.relative_to(outputs)): path.read_bytes() for path in paths if path.exists()}


def take(outputs: Path, files: Mapping[str, bytes]) -> None:
    """Write the files of stages that are done elsewhere, unless they are done here too."""
    for name, content in files.items():
        path = outputs / name
        known = read_result(path.with_suffix(".json"))
        if known is None or known.state != "done":
            write_atomic(path, content)
