"""Removing the artifacts that nothing refers to any more."""

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
    """Remove every artifact that no result names and no experiment of a target would read, with a
    repository its databases, and say which; with `dry_run`, only say which. Nothing behind a link
    is removed.

    A file counts in equal parts for each artifact that shares it by a hard link. Raises
    `WorkspaceError` during a run, and `ParameterError` if a target's parameters cannot be read.
    """
    if not outputs.exists():
        raise WorkspaceError(f"the folder {outputs} does not exist")
    with locked(outputs):
        base = outputs.resolve()
        kept = set(_referenced(base))
        kept |= {path.parents[1] / "databases" / path.name for path in kept}
        found = [path for each in PLACES for path in base.glob(each)]
        ours = {path for path in found if NAME.fullmatch(path.name) and path.resolve() == path}
        sizes = {path: _size_mb(path) for path in sorted(ours - kept)}
        for path, size in sizes.items():
            if not dry_run:
                remove_artifact(path)
            say(f"{'would remove' if dry_run else 'removed'} {display_path(path)} ({size:,.1f} MB)")
        say(f"unused artifacts: {len(sizes)} ({sum(sizes.values()):,.1f} MB)")


def _size_mb(folder: Path) -> float:
    files = (path.lstat() for path in folder.rglob("*") if not path.is_dir())
    return sum(file.st_size / file.st_nlink for file in files) / 1e6


def _referenced(outputs: Path) -> Iterator[Path]:
    """Yield the artifacts that results name, and those that each target's parameters lead to."""
    for path in outputs.glob("*/*/*/*.json"):
        found = results.read(path)
        if found and found.artifact:
            yield path.parents[2] / "artifacts" / found.artifact.folder
        if found and found.fingerprint:
            yield from (outputs / "data" / name for name in found.fingerprint.inputs.values())
    for target in targets(outputs):
        given = last_parameters(outputs, target)
        for model in given.file.models:
            for (_, stage), config in shared_configs(given, model).items():
                yield outputs / target / "artifacts" / config.key(stage)
                if stage == "export" and isinstance(config, ExportConfig):
                    with suppress(DeploymentError):  # the user's files are gone
                        made = (recipe_folder(config, kind).name for kind in DATA)
                        yield from (outputs / "data" / name for name in made)
