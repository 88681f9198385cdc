"""Running what a plan asks for, in order: what a failure blocks, and what is kept of each stage."""

import shlex
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import yaml

from helpers import results
from helpers.config import TARGET_VARIABLE, notebook_file, read_file, select
from helpers.errors import DeploymentError, ParameterError
from helpers.machine import COMMAND_VARIABLE
from helpers.pipeline import status
from helpers.pipeline.planning import Job, explain, parameters, plan, seconds, stale
from helpers.store import LOCKED_VARIABLE, clear_leftovers, locked, write_atomic

RESERVED = ("data",)  # folders of outputs/ that are no target

Say = Callable[[str], None]


@dataclass
class Outcome:
    """What a run did."""

    executed: int = 0
    unchanged: int = 0
    skipped: int = 0
    failed: int = 0
    blocked: int = 0


def run(
    files: Sequence[Path],
    outputs: Path,
    *,
    models: Sequence[str] = (),
    experiments: Sequence[str] = (),
    stages: Sequence[str] = (),
    force: bool = False,
    dry_run: bool = False,
    cell_seconds: int = 7200,
    say: Say = print,
) -> Outcome:
    """Run the stages of one or more parameter files that are not up to date, and publish the pages.

    A failed stage blocks what depends on it and everything else goes on. Raises `ParameterError`
    before anything runs, and `WorkspaceError` if the outputs folder is in use.
    """
    outcome, plans = Outcome(), []
    for path in files:
        _require_own_folder(path, files)
        given = read_file(path)
        plans.append((path, given, plan(given, select(given, models, experiments), stages)))
    if dry_run:
        for path, _, jobs in plans:
            explain(path, jobs, force, say)
        return outcome
    with locked(outputs):
        clear_leftovers(outputs)
        for path, given, jobs in plans:
            content = yaml.safe_dump(given.file.model_dump(exclude_unset=True), sort_keys=False)
            write_atomic(outputs / path.stem / "parameters.yaml", content)
            with _kernel_environment(path.stem):
                for job, turn in zip(jobs, range(1, len(jobs) + 1), strict=True):
                    _one(job, f"[{turn}/{len(jobs)}]", force, cell_seconds, outcome, say)
            status.publish(outputs, path.stem, {job.result for job in jobs})
    return outcome


def _require_own_folder(path: Path, files: Sequence[Path]) -> None:
    """A target's folder is named after its file: two files must not share one."""
    if path.stem in RESERVED or [other.stem for other in files].count(path.stem) > 1:
        raise ParameterError(f"{path}: outputs/{path.stem} is taken: give the file another name")


def _kernel_environment(target: str) -> AbstractContextManager[None]:
    from helpers.pipeline.notebook import environment
    from helpers.triton import SETTINGS

    command = shlex.join(["triton-notebooks", *sys.argv[1:]])
    variables = {TARGET_VARIABLE: target, LOCKED_VARIABLE: "1", COMMAND_VARIABLE: command}
    return environment(**variables, PYTHONWARNINGS="ignore", **SETTINGS)


def _one(job: Job, turn: str, force: bool, cell_seconds: int, outcome: Outcome, say: Say) -> None:
    """Run one job, or say why not."""
    from helpers.pipeline.notebook import execute

    name = f"{turn} {job.name}"
    if job.obstacle:
        outcome.skipped += 1
        say(f"{name}: skipped, {job.obstacle}")
        if not job.result.exists():
            _note(job, "skipped", job.obstacle)
        return
    if waits := blocker(job):
        outcome.blocked += 1
        say(f"{name}: {waits}")
        _note(job, "blocked", waits)
        return
    try:
        why = "--force" if force else stale(job)
        if not why:
            outcome.unchanged += 1
            say(f"{name}: unchanged, skipped")
            return
        say(f"{name}: running, because {why} (about {seconds(job):.0f} s)")
        started = time.monotonic()
        executed = job.result.with_suffix(".ipynb")
        source = notebook_file(job.config.model, job.config.stage)
        found = execute(source, executed, job.result, parameters(job), cell_seconds, say)
    except (DeploymentError, OSError) as error:
        outcome.failed += 1
        say(f"{name}: failed, {error}")
        _note(job, "failed", str(error))
    else:
        outcome.executed += 1
        say(f"{name}: done in {time.monotonic() - started:.0f} s, {found['headline']}")


def blocker(job: Job) -> str:
    """Say which stage must be done first and is not; empty if none."""
    if job.needs is None:
        return ""
    found = results.read(job.needs)
    if found and found["state"] == "done":
        return ""
    return (
        f"blocked by {job.needs.stem}, which {'is ' + found['state'] if found else 'has not run'}"
    )


def _note(job: Job, state: str, reason: str) -> None:
    """Write a result for a stage that could not write its own; one that it did write keeps its
    figures.
    """
    found = results.read(job.result) or {}
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    empty = {"schema": results.SCHEMA, "headline": "", "seconds": None, "gpu": job.config.gpu}
    identity = {name: getattr(job.config, name) for name in ("model", "experiment", "stage")}
    write_atomic(
        job.result,
        status.dump(
            {**empty, **found, **identity, "state": state, "reason": reason, "finished": now}
        ),
    )
