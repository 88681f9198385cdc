"""Running what a plan asks for, in order: what a failure blocks, and what is kept of each stage."""

import os
import shlex
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import yaml

from helpers import results
from helpers.config import TARGET_VARIABLE, Parameters, notebook_file, read_file, select
from helpers.display import Lines
from helpers.errors import DeploymentError, ParameterError, StageError
from helpers.machine import COMMAND_VARIABLE
from helpers.pipeline.notebook import execute
from helpers.pipeline.planning import Job, explain, parameters, plan, seconds, stale
from helpers.pipeline.publishing import publish
from helpers.results import Result
from helpers.store import LOCKED_VARIABLE, clear_leftovers, locked, write_atomic

RESERVED = ("data",)  # folders of outputs/ that are no target


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
    say: Lines | None = None,
) -> Counter[str]:
    """Run the stages of one or more parameter files that are not up to date, and publish the pages;
    count what became of them.

    A failed stage blocks what depends on it and everything else goes on. Raises `ParameterError`
    before anything runs, and `WorkspaceError` if the outputs folder is in use.
    """
    plans, say = [], say or Lines()
    names = [path.stem for path in files]  # of the targets' folders
    for path in files:
        if path.stem in RESERVED or names.count(path.stem) > 1:
            taken = f"outputs/{path.stem} is taken: give the file another name"
            raise ParameterError(f"{path}: {taken}")
        given = read_file(path)
        plans.append((path, given, plan(given, select(given, models, experiments), stages)))
    if dry_run:
        for path, _, jobs in plans:
            explain(path, jobs, force, say)
        return Counter()
    return run_plans(plans, outputs, force, cell_seconds, say)


def run_plans(
    plans: Sequence[tuple[Path, Parameters, list[Job]]],
    outputs: Path,
    force: bool,
    cell_seconds: int,
    say: Lines,
) -> Counter[str]:
    """Run the jobs of each parameter file, whose content is kept, and publish the pages."""
    outcome = Counter(executed=0, unchanged=0, skipped=0, failed=0, blocked=0)
    with locked(outputs):
        clear_leftovers(outputs)
        for path, given, jobs in plans:
            content = yaml.safe_dump(given.file.model_dump(exclude_unset=True), sort_keys=False)
            write_atomic(outputs / path.stem / "parameters.yaml", content)
            with _kernel_environment(path.stem):
                for turn, job in enumerate(jobs, 1):
                    name = f"[{turn}/{len(jobs)}] {job.name}"
                    outcome[run_job(job, name, force, cell_seconds, say)] += 1
            publish(outputs, path.stem, only_changed=True)
    return outcome


@contextmanager
def _kernel_environment(target: str) -> Iterator[None]:
    """Set the environment variables of the kernels that the block starts."""
    from helpers.triton import SETTINGS

    before, command = dict(os.environ), shlex.join(["triton-notebooks", *sys.argv[1:]])
    variables = {TARGET_VARIABLE: target, LOCKED_VARIABLE: "1", COMMAND_VARIABLE: command}
    os.environ.update(variables, PYTHONWARNINGS="ignore", **SETTINGS)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def run_job(job: Job, name: str, force: bool, cell_seconds: int, say: Lines) -> str:
    """Run one job, or say why not; return what became of it, a key of `run`'s answer."""
    if job.obstacle:
        say(f"{name}: skipped, {job.obstacle}")
        write_status(job, "skipped", job.obstacle)
        return "skipped"
    if waits := blocker(job):
        say(f"{name}: {waits}")
        write_status(job, "blocked", waits)
        return "blocked"
    try:
        why = "--force" if force else stale(job)
        if not why:
            say(f"{name}: unchanged, skipped")
            write_status(job, "done", "")
            return "unchanged"
        expected = seconds(job)
        say(f"{name}: running, because {why} (about {expected:.0f} s)")
        started, before = time.monotonic(), results.fingerprint(job.config)
        write_status(job, "failed", "the run was interrupted")  # until it has ended otherwise
        source = notebook_file(job.config.model, job.config.stage)
        with say.stage(expected):
            found = execute(source, job.result, parameters(job), cell_seconds, say.printed)
        if found.fingerprint and (changed := results.difference(before, found.fingerprint)):
            raise StageError(f"{changed} while it ran: run it again")
    except (DeploymentError, OSError) as error:
        say(f"{name}: failed, {error}")
        write_status(job, "failed", str(error))
        return "failed"
    say(f"{name}: done in {time.monotonic() - started:.0f} s, {found.headline}")
    return "executed"


def blocker(job: Job) -> str:
    """Say which stage must be done first and is not; empty if none."""
    found = results.read(job.needs) if job.needs else None
    if job.needs is None or (found and found.state == "done"):
        return ""
    return f"blocked by {job.needs.stem}, which {'is ' + found.state if found else 'has not run'}"


def write_status(job: Job, state: results.State, reason: str) -> None:
    """Write the state of a stage that did not run; a result that is there keeps its figures."""
    config, found = job.config, results.read(job.result)
    if found and (found.state, found.reason) == (state, reason):
        return
    identity = config.model_dump(include={"model", "experiment", "stage", "gpu"})
    found = found or Result(**identity, state=state)
    finished = found.finished if state != "failed" and found.finished else results.timestamp()
    update = {"state": state, "reason": reason, "finished": finished}
    results.write(config, found.model_copy(update=update))
