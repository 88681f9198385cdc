"""Remove the artifacts that no result or experiment refers to."""

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from helpers import results
from helpers.config import ExportConfig
from helpers.display import Lines
from helpers.errors import DeploymentError, WorkspaceError
from helpers.inference import recipe_folder
from helpers.pipeline.planning import shared_configs
from helpers.pipeline.publishing import last_parameters, targets
from helpers.store import display_path, locked, remove_artifact

PLACES = ("data/*", "*/artifacts/*", "*/databases/*")
DATA = ("dataset", "checkpoint", "reference")
NAME = re.compile(rf"\w+-({'|'.join(DATA)}|export|convert|deploy)-[0-9a-f]{{12}}")


def clear(outputs: Path, dry_run: bool, say: Lines) -> None:
    """Remove and print every artifact that no result names and no experiment of a target reads.

    A repository is removed with its databases, and nothing behind a link. With `dry_run`, only
    print them. The size of a file is divided among the artifacts that share it by a hard link.
    Raises `WorkspaceError` during a run, and `ParameterError` if parameters cannot be read.
    """
    if not outputs.exists():
        raise WorkspaceError(f"the folder {outputs} does not exist")
    with locked(outputs):
        base = outputs.resolve()
        referenced = set(_referenced(base))
        referenced |= {path.parents[1] / "databases" / path.name for path in referenced}
        found = [path for place in PLACES for path in base.glob(place) if path.resolve() == path]
        artifacts = {path for path in found if NAME.fullmatch(path.name)}
        sizes = {path: _size_mb(path) for path in sorted(artifacts - referenced)}
        for path, size in sizes.items():
            if not dry_run:
                remove_artifact(path)
            say(f"{'would remove' if dry_run else 'removed'} {display_path(path)} ({size:,.1f} MB)")
        say(f"unused artifacts: {len(sizes)} ({sum(sizes.values()):,.1f} MB)")


def _size_mb(folder: Path) -> float:
    files = (path.lstat() for path in folder.rglob("*") if not path.is_dir())
    return sum(file.st_size / file.st_nlink for file in files) / 1e6


def _referenced(outputs: Path) -> Iterator[Path]:
    """Yield the artifacts that results name, and those that the parameters of targets need."""
    for path in outputs.glob("*/*/*/*.json"):
        result = results.read(path)
        if result and result.artifact:
            yield path.parents[2] / "artifacts" / result.artifact.folder
        if result and result.fingerprint:
            yield from (outputs / "data" / name for name in result.fingerprint.inputs.values())
    for target in targets(outputs):
        parameters = last_parameters(outputs, target)
        for model in parameters.file.models:
            for (_, stage), config in shared_configs(parameters, model).items():
                yield outputs / target / "artifacts" / config.key(stage)
                if stage == "export" and isinstance(config, ExportConfig):
                    with suppress(DeploymentError):  # the user's files are gone
                        folders = (recipe_folder(config, kind).name for kind in DATA)
                        yield from (outputs / "data" / name for name in folders)
