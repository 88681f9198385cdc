"""Running what a plan asks for, in order: what a failure blocks, and what is kept of each stage."""

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
    TARGET_VARIABLE,
    ConvertConfig,
    Parameters,
    notebook_file,
    read_file,
    select,
)
from helpers.display import Lines
from helpers.errors import DeploymentError, InstallationError, ParameterError, StageError
from helpers.machine import BROKEN, COMMAND_VARIABLE, obstacle
from helpers.pipeline.notebook import execute
from helpers.pipeline.planning import (
    Job,
    due,
    estimates,
    explain,
    framework,
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
RESERVED = ("data",)  # folders of outputs/ that are no target
EXECUTED_STATES = ("executed", "failed")
# what frameworks compute in, unless told otherwise
THREADS = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
BROKEN_INSTALLATION = "skipped because of the broken installation"  # an outcome that is a failure
MIN_REPORTED_LOSS_S = 10.0  # seconds
PATIENT_STAGES = 6  # that may spend all their patience for a quiet machine, in one run
REPORT_SECONDS = 180.0  # between two reports, each of which takes about five

Plan = tuple[Path, Parameters, list[Job]]  # a parameter file, what is in it, and its jobs


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
    """Run the stages of one or more parameter files, by default params/cpu.yaml, that are not up
    to date, and publish the pages as they come; count what became of them.

    A failed stage blocks what depends on it and everything else goes on. Raises `ParameterError`
    before anything runs, `InstallationError` if nothing can, and `WorkspaceError` if the outputs
    folder is in use.
    """
    say = say or Lines()
    plans = read_plans(files, models, experiments, stages)
    every = [job for _, _, jobs in plans for job in jobs if job.config.stage != "report"]
    kept = [job.obstacle for job in every if job.obstacle.startswith(BROKEN)]
    if kept and len(kept) == len(every):
        raise InstallationError("; ".join(dict.fromkeys(kept)))
    if dry_run:
        for path, _, jobs in plans:
            explain(path, jobs, due(jobs, force), say)
        return Counter()
    outcome = run_plans(plans, outputs, force, cell_seconds, say)
    outcome.update({"skipped": -len(kept), BROKEN_INSTALLATION: len(kept)})
    return outcome


def read_plans(
    files: Sequence[Path],
    models: Sequence[str],
    experiments: Sequence[str],
    stages: Sequence[str],
    ask: Callable[[ConvertConfig], str] = obstacle,
) -> list[Plan]:
    """Read parameter files, by default params/cpu.yaml, and list the jobs of what is chosen.

    `ask` says why an experiment cannot run. Raises `ParameterError`.
    """
    plans, files = [], files or [DEFAULT]
    names = [path.stem for path in files]  # of the targets' folders
    for path in files:
        if path.stem in RESERVED or names.count(path.stem) > 1:
            taken = f"{path}: its results folder outputs/{path.stem} is already in use"
            raise ParameterError(f"{taken}. Rename the file.")
        given = read_file(path)
        chosen = select(given, models, experiments)
        plans.append((path, given, plan(given, chosen, stages, ask)))
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
    """Run the jobs of each parameter file, whose content is kept, and publish the pages.

    `command` is what results say made them, by default this process' own. A worker of a cluster
    gives a `guard`, which is held while a job runs; it writes no pages.
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
    """Hold the outputs folder for a run of these plans, whose content is kept, and write the first
    pages; give what must run, as "waiting", and how many seconds each job will take, by results.

    `away` says that artifacts may lie on other machines. Raises `WorkspaceError` if the folder is
    in use.
    """
    is_locked = bool(os.environ.get(LOCKED_VARIABLE))  # by the submitter of a cluster's run
    with locked(outputs):
        if not is_locked:
            clear_leftovers(outputs)
        for path, given, _ in plans:
            content = yaml.safe_dump(given.file.model_dump(exclude_unset=True), sort_keys=False)
            write_atomic(outputs / path.stem / "parameters.yaml", content)
        every = [job for _, _, jobs in plans for job in jobs]
        reasons, expected = due(every, force, away), estimates(every)
        pending = dict.fromkeys(reasons, "waiting")
        if pages:
            publish_front(outputs)
        if pages and pending:
            for path, _, _ in plans:
                publish(outputs, path.stem, only_changed=True, pending=pending)
            say(f"pages: {display_path(outputs / 'index.html')} (updated after every stage)")
        with say.run(sum(expected[each] for each in reasons)):
            yield pending, expected


@dataclass(frozen=True)
class Runner:
    """Runs the jobs of a target in order, and writes the pages as they come."""

    outputs: Path
    pending: dict[Path, str]  # what is to run, by its result: see `stage_states`
    expected: Mapping[Path, float]  # seconds
    force: bool
    say: Lines
    kernels: "KernelServer | None"  # if anything is to run
    cell_seconds: int
    guard: Callable[[Job], AbstractContextManager[None]] | None = None  # on a cluster's worker
    lost: list[float] = field(default_factory=list)  # seconds of each stage, to an unquiet machine

    def run(self, target: str, jobs: Sequence[Job]) -> Counter[str]:
        """Run a target's jobs, and a model's report also after the run's first experiment and after
        others now and then; count what became of them. What there is then has its pages, also if
        the run is interrupted.
        """
        outcome = Counter[str]()
        reports = {job.config.model: job for job in jobs if job.config.stage == "report"}
        has_news = False  # whether the experiment has something to report
        last = -REPORT_SECONDS  # when the last report was written
        try:
            for turn, job in enumerate(jobs, 1):
                place = f"[{turn}/{len(jobs)}]"
                state = self.run_and_publish(target, job, f"{place} {job.name}")
                outcome[state] += 1
                if job.config.stage == "report" and state in EXECUTED_STATES:
                    last, has_news = time.monotonic(), False
                has_news |= state in EXECUTED_STATES and job.config.stage.startswith("perf")
                following = jobs[turn] if turn < len(jobs) else job
                if following.config.experiment == job.config.experiment:
                    continue
                report = reports.get(job.config.model)
                is_due = has_news and time.monotonic() > last + REPORT_SECONDS
                if report and is_due and following is not report:
                    if (
                        self.run_and_publish(target, report, f"{place} {report.name} so far")
                        == "executed"
                    ):
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
        """Return how many of a model's measurements are in a report that is written meanwhile."""
        measured = [
            job.result
            for job in jobs
            if job.config.model == model
            and job.config.stage.startswith("perf")
            and not job.obstacle
        ]
        known = [results.read(path) for path in measured if path not in self.pending]
        done = sum(result is not None and result.state == "done" for result in known)
        return f"so far: {done} of {len(measured)} performance stages are in this report"

    def run_and_publish(self, target: str, job: Job, name: str) -> str:
        """Run one job, if it must, and write the pages; return what became of it."""
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
        """Run one job, if it must, and write its state; return what became of it."""
        if job.obstacle:
            self.say(f"{name}: skipped: {job.obstacle}")
            write_status(job, "skipped", job.obstacle)
            return "skipped"
        if waits := missing_prerequisite(job):
            self.say(f"{name}: blocked: {waits}")
            write_status(job, "blocked", waits)
            return "blocked"
        try:
            why = "" if not is_due else "--force" if self.force else why_outdated(job)
            if not why:
                self.say(f"{name}: unchanged")
                write_status(job, "done", "")
                return "unchanged"
            with self.guard(job) if self.guard else nullcontext():
                started = time.monotonic()
                write_status(job, "failed", "the run was interrupted")  # until it has ended
                with self.say.stage(name, why, self.expected[job.result]):
                    result = self.execute(job)
        except (DeploymentError, OSError) as error:
            self.say(f"{name}: failed: {error}")
            write_status(job, "failed", str(error))
            return "failed"
        self.say(f"{name}: done in {time.monotonic() - started:.0f} s, {result.headline}")
        return "executed"

    def execute(self, job: Job) -> Result:
        """Run a job's notebook, pass on what it prints, and return its result.

        Raises `DeploymentError` with one line; the executed notebook stays, as far as it came.
        """
        config = job.config
        before, source = results.fingerprint(config), notebook_file(config.model, config.stage)
        assert self.kernels
        self.kernels.preload(*framework(config))
        with environment(**self._patience()):
            result = execute(
                source, job.result, parameters(job), self.cell_seconds, self.say.printed
            )
        if result.fingerprint and (changed := results.difference(before, result.fingerprint)):
            raise StageError(f"{changed} while it ran. Run again.")
        if result.measurement:
            self.lost.append(result.measurement.lost_seconds)
        return result

    def _patience(self) -> dict[str, str]:
        """Return a stage's patience for a quiet machine, no more than the run has left: where it is
        never quiet, waiting in each of fifty stages would double the time and help little.
        """
        from helpers.measure import RETRY_VARIABLE, retry_seconds

        left = max(0.0, PATIENT_STAGES * retry_seconds() - sum(self.lost))
        return {RETRY_VARIABLE: f"{min(retry_seconds(), left):.2f}"}


@contextmanager
def kernel_environment(target: str, command: str = "") -> Iterator[None]:
    """Set the environment variables of the kernels that the block starts; `command` is what their
    results say made them, by default this process' own.
    """
    from helpers.triton import SETTINGS

    command = command or shlex.join(["triton-notebooks", *sys.argv[1:]])
    variables = {TARGET_VARIABLE: target, LOCKED_VARIABLE: "1", COMMAND_VARIABLE: command}
    if core_quota() < (os.cpu_count() or 1):  # frameworks count the host's cores
        variables |= dict.fromkeys({*THREADS} - os.environ.keys(), str(usable_cores()))
    with environment(**variables, PYTHONWARNINGS="ignore", **SETTINGS):
        yield


def missing_prerequisite(job: Job) -> str:
    """Return which stage must be done first and is not; empty if none."""
    result = results.read(job.needs) if job.needs else None
    if job.needs is None or (result and result.state == "done"):
        return ""
    if result is None:
        return f"{job.needs.stem} has not run"
    return f"{job.needs.stem} {'' if result.state == 'failed' else 'was '}{result.state}"


def write_status(job: Job, state: results.State, reason: str) -> None:
    """Write the state of a stage that did not run; a result that is there keeps its figures."""
    config, result = job.config, results.read(job.result)
    if result and (result.state, result.reason) == (state, reason):
        return
    identity = config.model_dump(include={"model", "experiment", "stage", "gpu"})
    result = result or Result(**identity, state=state)
    finished = result.finished if state != "failed" and result.finished else results.timestamp()
    update = {"state": state, "reason": reason, "finished": finished}
    results.write(config, result.model_copy(update=update))
