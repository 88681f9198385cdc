"""Run the jobs of plans in order: block what needs a failed stage, and write each stage's state."""

import os
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from helpers import results
from helpers.config import (
    STAGE,
    TARGET_VARIABLE,
    Parameters,
    configure,
    notebook_file,
    read_file,
    select,
)
from helpers.display import Lines
from helpers.errors import DeploymentError, InstallationError, ParameterError, StageError
from helpers.machine import BROKEN, COMMAND_VARIABLE, why_unavailable
from helpers.pipeline.notebook import execute
from helpers.pipeline.planning import (
    NOT_PLANNED,
    Ask,
    Job,
    Plan,
    due,
    estimates,
    explain,
    framework,
    is_planned,
    parameters,
    plan,
    why_outdated,
)
from helpers.pipeline.publishing import publish, publish_front, publish_indexes
from helpers.results import Result
from helpers.store import (
    LOCKED_VARIABLE,
    ROOT,
    clear_leftovers,
    core_quota,
    display_path,
    environment,
    locked,
    usable_cores,
    write_atomic,
)

if TYPE_CHECKING:
    from helpers.pipeline.kernels import KernelServer

DEFAULT = ROOT / "params/cpu.yaml"
RESERVED = "data"  # a folder of outputs/ that is not a target's
EXECUTED_STATES = ("executed", "failed")
# numbers of threads in which frameworks compute
THREADS = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
BROKEN_INSTALLATION = "skipped because of the broken installation"  # counts as a failure
MIN_REPORTED_LOSS_S = 10.0  # seconds
RETRY_STAGES = 6  # stages of a run that may spend their whole retry budget
REPORT_SECONDS = 180.0  # between two reports of a model, each of which takes about 5 s


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
    """Run the outdated stages of parameter files, publish pages as stages end, and count states.

    The file is params/cpu.yaml by default. A failed stage blocks only the stages that need it.
    Raises `ParameterError` before anything runs, `InstallationError` if no stage can run, and
    `WorkspaceError` if the outputs folder is in use.
    """
    say, plans = say or Lines(), read_plans(files, models, experiments, stages)
    every = [job for _, _, jobs in plans for job in jobs if job.config.stage != "report"]
    obstacles = [job.why_unavailable for job in every if job.why_unavailable.startswith(BROKEN)]
    if obstacles and len(obstacles) == len(every):
        raise InstallationError("; ".join(dict.fromkeys(obstacles)))
    if dry_run:
        explain(plans, force, say)
        return Counter()
    outcome = run_plans(plans, outputs, force, cell_seconds, say)
    outcome.update({"skipped": -len(obstacles), BROKEN_INSTALLATION: len(obstacles)})
    return outcome


def read_plans(
    files: Sequence[Path],
    models: Sequence[str],
    experiments: Sequence[str],
    stages: Sequence[str],
    ask: Ask = why_unavailable,
) -> list[Plan]:
    """Read parameter files, by default params/cpu.yaml, and list the jobs of the chosen stages.

    Raises `ParameterError`.
    """
    plans, files = [], files or [DEFAULT]
    names = Counter({RESERVED: 1}) + Counter(path.stem for path in files)  # of folders
    for path in files:
        if names[path.stem] > 1:
            taken = f"{path}: its results folder outputs/{path.stem} is already in use"
            raise ParameterError(f"{taken}. Rename the file.")
        params = read_file(path)
        plans.append((path, params, plan(params, select(params, models, experiments), stages, ask)))
    return plans


def run_plans(
    plans: Sequence[Plan],
    outputs: Path,
    force: bool,
    cell_seconds: int,
    say: Lines,
    *,
    command: str = "",
    guard: Callable[[Job], AbstractContextManager[None]] | None = None,
) -> Counter[str]:
    """Run the jobs of each parameter file, save its content, and publish the pages.

    Results name `command` as their origin, by default that of this process. A cluster's worker
    passes a `guard`, which is held while a job runs; it writes no pages.
    """
    outcome = Counter(executed=0, unchanged=0, skipped=0, failed=0, blocked=0)
    with (
        open_run(plans, outputs, force, say, pages=guard is None) as (pending, expected),
        kernel_server(bool(pending)) as server,
    ):
        runner = Runner(outputs, pending, expected, force, say, server, cell_seconds, guard)
        for path, _, jobs in plans:
            with kernel_environment(path.stem, command):
                outcome += runner.run(path.stem, jobs)
        if (lost := sum(runner.lost)) >= MIN_REPORTED_LOSS_S:
            spent = f"{lost:.0f} s were spent waiting and measuring again"
            say(f"Other load disturbed the measurements: {spent}.")
    return outcome


def kernel_server(are_needed: bool) -> "AbstractContextManager[KernelServer | None]":
    """Return a context with a process that forks kernels, if any are needed."""
    if not are_needed:
        return nullcontext()
    from helpers.pipeline.kernels import kernel_server_context  # slow to import

    return kernel_server_context()


@contextmanager
def open_run(
    plans: Sequence[Plan],
    outputs: Path,
    force: bool,
    say: Lines,
    away: bool = False,
    pages: bool = True,
) -> Iterator[tuple[dict[Path, str], dict[Path, float]]]:
    """Lock the outputs folder for a run of these plans, save their content, and write first pages.

    Yields the results of the jobs that must run, as "waiting", and each job's estimated seconds.
    With `away`, artifacts may be on other machines. Raises `WorkspaceError` for a folder in use.
    """
    is_locked = bool(os.environ.get(LOCKED_VARIABLE))  # by the machine that submitted the run
    with locked(outputs):
        if not is_locked:
            clear_leftovers(outputs)
        for path, params, _ in plans:
            content = yaml.safe_dump(params.file.model_dump(exclude_unset=True), sort_keys=False)
            write_atomic(outputs / path.stem / "parameters.yaml", content)
            remove_unplanned(params)
        every = [job for _, _, jobs in plans for job in jobs]
        reasons, expected = due(every, force, away), estimates(every)
        pending = dict.fromkeys(reasons, "waiting")
        if pages:
            publish_front(outputs)
        if pages and pending:
            for path, _, _ in plans:
                publish(outputs, path.stem, only_changed=True, pending=pending)
            say(f"pages: {display_path(outputs / 'index.html')} (updated after every stage)")
        with say.run(sum(expected[result] for result in reasons)):
            yield pending, expected


def remove_unplanned(params: Parameters) -> None:
    """Remove earlier results of stages that are no longer planned. Their pages stay, and say so."""
    for model, experiment in select(params, [], []):
        job = Job(configure(params, model, experiment, "perf_online"))
        result = None if is_planned(job.config) else results.read(job.result)
        if result and result.measurement:
            job.result.unlink()
            write_status(job, "skipped", NOT_PLANNED)


@dataclass(frozen=True)
class Runner:
    """Runs the jobs of a target in order, and writes the pages as jobs end."""

    outputs: Path
    pending: dict[Path, str]  # the states of jobs to run, by result: see `stage_states`
    expected: Mapping[Path, float]  # seconds
    force: bool
    say: Lines
    kernels: "KernelServer | None"  # None if no job must run
    cell_seconds: int
    guard: Callable[[Job], AbstractContextManager[None]] | None = None  # on a cluster's worker
    lost: list[float] = field(default_factory=list)  # seconds that each stage waited or retried

    def run(self, target: str, jobs: Sequence[Job]) -> Counter[str]:
        """Run a target's jobs, publish their pages, and count the states.

        A model's report also runs after the first experiment, and after later ones once
        `REPORT_SECONDS` have passed. An interrupted run has its pages too.
        """
        outcome = Counter[str]()
        reports = {job.config.model: job for job in jobs if job.config.stage == "report"}
        has_news = False  # whether the last report lacks a measurement
        last = -REPORT_SECONDS  # the time of the last report
        try:
            for turn, job in enumerate(jobs, 1):
                position = f"[{turn}/{len(jobs)}]"
                following = (jobs[turn] if turn < len(jobs) else job).config
                state = self.run_and_publish(target, job, f"{position} {job.name}")
                outcome[state] += 1
                if job.config.stage == "report" and state in EXECUTED_STATES:
                    last, has_news = time.monotonic(), False
                has_news |= state in EXECUTED_STATES and job.config.stage.startswith("perf")
                is_between = following.experiment != job.config.experiment
                is_between &= not STAGE[following.stage].of_model
                is_due = is_between and has_news and time.monotonic() > last + REPORT_SECONDS
                if is_due and (report := reports.get(job.config.model)):
                    name = f"{position} {report.name} so far"
                    if self.run_and_publish(target, report, name) == "executed":
                        write_status(report, "done", self.share(jobs, report.config.model))
                        self._publish(target)
                    self.pending[report.result] = "waiting"
                    last, has_news = time.monotonic(), False
        finally:
            for job in jobs:
                self.pending.pop(job.result, None)
            self._publish(target)
        return outcome

    def share(self, jobs: Sequence[Job], model: str) -> str:
        """Return how many of a model's performance stages are in a report during the run."""
        ours = [job for job in jobs if job.config.model == model and not job.why_unavailable]
        measured = [job.result for job in ours if job.config.stage.startswith("perf")]
        finished = [results.read(path) for path in measured if path not in self.pending]
        done = sum(result is not None and result.state == "done" for result in finished)
        return f"so far: {done} of {len(measured)} performance stages are in this report"

    def run_and_publish(self, target: str, job: Job, name: str) -> str:
        """Run one job if it is due, write the pages, and return its state."""
        if is_due := job.result in self.pending:
            self.pending[job.result] = "running"
            if self.guard is None:
                publish_indexes(self.outputs, target, self.pending)
        state = self.run_job(job, name, is_due)
        self.pending.pop(job.result, None)
        if state in EXECUTED_STATES:
            self._publish(target)
        self.say.ended(job.name, state)
        return state

    def _publish(self, target: str) -> None:
        if self.guard is None:
            publish(self.outputs, target, only_changed=True, pending=self.pending)

    def run_job(self, job: Job, name: str, is_due: bool) -> str:
        """Run one job if it is due, write its state and return it."""

        def ended(state: results.State, reason: str) -> str:
            self.say(f"{name}: {state}: {reason}")
            write_status(job, state, reason)
            return state

        if job.why_unavailable:
            return ended("skipped", job.why_unavailable)
        if waits := missing_prerequisite(job):
            return ended("blocked", waits)
        try:
            why = "" if not is_due else "--force" if self.force else why_outdated(job)
            if not why:
                self.say(f"{name}: unchanged")
                write_status(job, "done", "")
                return "unchanged"
            with self.guard(job) if self.guard else nullcontext():
                started = time.monotonic()
                write_status(job, "failed", "the run was interrupted")  # until it ends
                with self.say.stage(name, why, self.expected[job.result]):
                    result = self.execute(job)
        except (DeploymentError, OSError) as error:
            return ended("failed", str(error))
        self.say(f"{name}: done in {time.monotonic() - started:.0f} s, {result.headline}")
        return "executed"

    def execute(self, job: Job) -> Result:
        """Run a job's notebook, pass its output on, and return its result.

        Raises `DeploymentError` with one line; the executed part of the notebook remains.
        """
        config = job.config
        before, source = results.fingerprint(config), notebook_file(config.model, config.stage)
        assert self.kernels
        self.kernels.preload(*framework(config))
        given = parameters(job), self.cell_seconds, self.say.printed
        with environment(**self._retry_budget()):
            result = execute(source, job.result, *given)
        if result.fingerprint and (changed := results.difference(before, result.fingerprint)):
            raise StageError(f"{changed} while it ran. Run again.")
        if measured := result.measurement:
            self.lost.append(measured.again_seconds + measured.waited_seconds)
        return result

    def _retry_budget(self) -> dict[str, str]:
        """Return a stage's retry budget, at most what the run has left.

        On a machine that is never idle, waiting in every stage would double the time and not help.
        """
        from helpers.measure import RETRY_VARIABLE, retry_seconds

        left = max(0.0, RETRY_STAGES * retry_seconds() - sum(self.lost))
        return {RETRY_VARIABLE: f"{min(retry_seconds(), left):.2f}"}


@contextmanager
def kernel_environment(target: str, command: str = "") -> Iterator[None]:
    """Set the environment variables of the kernels that the block starts: see `run_plans`."""
    from helpers.triton import SETTINGS

    command = command or shlex.join(["triton-notebooks", *sys.argv[1:]])
    variables = {TARGET_VARIABLE: target, LOCKED_VARIABLE: "1", COMMAND_VARIABLE: command}
    if core_quota() < (os.cpu_count() or 1):  # frameworks count the host's cores
        variables |= dict.fromkeys({*THREADS} - os.environ.keys(), str(usable_cores()))
    with environment(**variables, PYTHONWARNINGS="ignore", **SETTINGS):
        yield


def missing_prerequisite(job: Job) -> str:
    """Return what state the needed results have; empty if one of them is done or none is needed."""
    lacking: dict[str, None] = {}
    for path in job.needs:
        result = results.read(path)
        state = result.state if result else "has not run"
        if state == "done":
            return ""
        lacking[f"{path.stem} {'was ' if state in ('blocked', 'skipped') else ''}{state}"] = None
    return ", ".join(lacking)


def write_status(job: Job, state: results.State, reason: str) -> None:
    """Write the state of a stage that did not run; an existing result keeps its numbers."""
    config, result = job.config, results.read(job.result)
    if result and (result.state, result.reason) == (state, reason):
        return
    identity = config.model_dump(include={"model", "experiment", "stage", "gpu"})
    result = result or Result(**identity, state=state)
    finished = result.finished if state != "failed" and result.finished else results.timestamp()
    update = {"state": state, "reason": reason, "finished": finished}
    results.write(config, result.model_copy(update=update))
