"""Copy artifacts and results between machines: artifacts in pieces, with their hashes checked.

A location is an artifact's folder below the outputs folder, such as data/bert-dataset-0123456789ab.
Its name has the hash of all that decides its content, so a copy equals a new artifact.
"""

import asyncio
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
    outputs,
    write_atomic,
)

if TYPE_CHECKING:
    from distributed import Client

Ask = Callable[..., Any]  # calls a function of this module in another machine's outputs folder
PIECE = 2**24  # bytes
LOCATION = re.compile(r"(data|[\w.-]+/artifacts)/[\w.-]+")
PAGE = ".html"  # the submitting machine writes it again


async def in_outputs(do: Callable[..., object], *arguments: object) -> object:
    """Call a function below in this worker's outputs folder, in a thread beside its stage."""
    return await asyncio.to_thread(do, outputs(), *arguments)


def artifacts_of(jobs: Iterable[Job]) -> list[str]:
    """Return the locations of the artifacts that jobs have made."""
    return [
        f"{job.config.target}/artifacts/{result.artifact.folder}"
        for job in jobs
        if (result := read_result(job.result)) and result.state == "done" and result.artifact
    ]


def data_of(jobs: Iterable[Job]) -> list[str]:
    """Return the locations of the data that jobs need and this package generates."""
    folders: dict[Path | None, None] = {}
    for config in (job.config for job in jobs if isinstance(job.config, ExportConfig)):
        with suppress(DeploymentError):  # the user's files are on the worker only
            generated = (dataset_place(config).made, checkpoint_place(config).made)
            folders |= dict.fromkeys((*generated, recipe_folder(config, "reference")))
    return [f"data/{folder.name}" for folder in folders if folder]


def held(outputs: Path, locations: Sequence[str]) -> list[str]:
    """List the locations whose artifact is on this machine, with all files unchanged."""
    return [
        location
        for location in locations
        if (artifact := find_artifact(_folder(outputs, location))) and is_unchanged(artifact)
    ]


def lacking(outputs: Path, locations: Sequence[str]) -> list[str]:
    """List the locations whose artifact is not on this machine."""
    return sorted({*locations} - {*held(outputs, locations)})


def artifact_at(outputs: Path, location: str) -> Artifact:
    """Return the artifact at a location; raise `ClusterError` if there is none."""
    if artifact := find_artifact(_folder(outputs, location)):
        return artifact
    raise ClusterError(f"the artifact {location} is missing")


def read(outputs: Path, location: str, name: str, offset: int) -> bytes:
    """Read a piece of one of an artifact's files."""
    artifact = artifact_at(outputs, location)
    if name not in artifact.files:
        raise ClusterError(f"the artifact {location} has no file {name}")
    with (artifact.folder / name).open("rb") as file:
        file.seek(offset)
        return file.read(PIECE)


def _folder(outputs: Path, location: str) -> Path:
    if not LOCATION.fullmatch(location) or ".." in PurePosixPath(location).parts:
        raise ClusterError(f"{location} is not the folder of an artifact")
    return outputs / location


def pull(ask: Ask, location: str, outputs: Path) -> str:
    """Copy a complete artifact from another machine; return a line with its size and time.

    Raises `ClusterError` if a file is damaged, and then keeps nothing.
    """
    began, source = time.monotonic(), ask(artifact_at, location)
    with create_artifact(_folder(outputs, location)) as (folder, metadata):
        metadata.update(source.facts)
        for name, record in source.files.items():
            if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
                raise ClusterError(f"{name} is not a file of an artifact")
            path, digest = folder / name, hashlib.sha256()
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                for offset in range(0, record.size, PIECE):
                    piece = ask(read, location, name, offset)
                    file.write(piece)
                    digest.update(piece)
            if digest.hexdigest() != record.sha256:
                raise ClusterError(f"{location}/{name} was damaged in transfer. Run again.")
    return f"{location}: sent {source.size_mb:,.1f} MB in {time.monotonic() - began:.1f} s"


def pull_missing(
    client: "Client", sources: Sequence[str], outputs: Path, locations: Sequence[str]
) -> Iterator[str]:
    """Copy the artifacts that the workers `sources` have; yield a line for each."""
    for address, stored in ask_all(client, sources, in_outputs, held, locations).items():
        for location in lacking(outputs, [one for one in locations if one in stored]):
            yield pull(partial(ask, client, address, in_outputs), location, outputs)


def fetch(workers: Workers, outputs: Path, locations: Sequence[str], say: Lines) -> None:
    """Copy the artifacts that this machine lacks from a worker that has them."""
    missing = lacking(outputs, locations)
    for line in pull_missing(workers.client, workers.addresses, outputs, missing):
        say(line)
    for location in lacking(outputs, locations):
        say(f"{display_path(outputs / location)}: not found on any worker")


def fetch_repository(config: DeployConfig, outputs: Path, access: Access, say: Lines) -> None:
    """Copy the model repository of an experiment from the workers of a cluster."""
    location = str(artifact_folder(config, "deploy").relative_to(outputs))
    with joined(access, outputs) as workers:
        fetch(workers, outputs, [location], say)


def results_of(outputs: Path, name: str) -> dict[str, bytes]:
    """Read the files of a stage by name, and the manifest of the artifact that it made.

    Their names begin with the stage's. Its result, of this `name`, is last, so that all other files
    are complete when a reader finds it.
    """
    path = outputs / name
    result = read_result(path)
    paths = sorted(path.parent.glob(f"{path.stem}[._]*"))
    paths = [sibling for sibling in paths if sibling.suffix != PAGE and sibling != path]
    if result and result.artifact and STAGE[path.stem].makes_artifact:
        paths.append(path.parents[2] / "artifacts" / result.artifact.folder / MANIFEST)
    return {file.name: file.read_bytes() for file in (*paths, path) if file.exists()}


def receive(result: Path, files: Mapping[str, bytes]) -> None:
    """Write the files of a stage next to its result; the result is last, as it completes the stage.

    Raises `ClusterError` if a file belongs to another stage.
    """
    for sent_name, content in files.items():
        name = PurePosixPath(sent_name).name
        if name == MANIFEST:
            artifact = json.loads(files[result.name])["artifact"]
            folder = PurePosixPath(artifact["folder"]).name
            path = result.parents[2] / "artifacts" / folder / MANIFEST
            local = find_artifact(path.parent)
            if local and not is_remote(local) and local.sha256 == artifact["sha256"]:
                continue
        elif re.match(rf"{result.stem}[._]", name):
            path = result.with_name(name)
        else:
            raise ClusterError(f"the worker sent {name}, which is not a file of {result.stem}")
        if not (path.exists() and path.read_bytes() == content):  # it exists on a shared disk
            write_atomic(path, content)


def done_files(outputs: Path, jobs: Iterable[Job]) -> dict[str, bytes]:
    """Read the notebook and then the result of each job that is done."""
    done = [job.result for job in jobs if _is_done(job.result)]
    paths = (file for path in done for file in (path.with_suffix(".ipynb"), path))
    return {str(path.relative_to(outputs)): path.read_bytes() for path in paths if path.exists()}


def take(outputs: Path, files: Mapping[str, bytes]) -> None:
    """Write the files of stages that other machines finished, unless this one did so too."""
    for name, content in files.items():
        if not _is_done((outputs / name).with_suffix(".json")):
            write_atomic(outputs / name, content)


def _is_done(path: Path) -> bool:
    result = read_result(path)
    return result is not None and result.state == "done"
