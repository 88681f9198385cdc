"""Running what a plan asks for, in order: what a failure blocks, and what is kept of each stage."""

import os
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from helpers import results
from helpers.config import TARGET_VARIABLE, Parameters, notebook_file, read_file, select
from helpers.display import Lines
from helpers.errors import DeploymentError, ParameterError, StageError
from helpers.machine import COMMAND_VARIABLE
from helpers.pipeline.notebook import execute
from helpers.pipeline.planning import (
    Job,
    due,
    estimates,
    explain,
    framework,
    parameters,
    plan,
    stale,
)
from helpers.pipeline.publishing import publish, publish_front, publish_indexes
from helpers.results import Result
from helpers.store import (
    LOCKED_VARIABLE,
    ROOT,
    clear_leftovers,
    display_path,
    locked,
    write_atomic,
)

DEFAULT = ROOT / "params/cpu.yaml"
RESERVED = ("data",)  # folders of outputs/ that are no target
RAN = ("executed", "failed")
TELLING_LOSS = 10.0  # seconds
PATIENT_STAGES = 6  # that may spend all their patience for a quiet machine, in one run
REPORT_SECONDS = 180.0  # between two reports, each of which takes about five


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
    before anything runs, and `WorkspaceError` if the outputs folder is in use.
    """
    plans, say, files = [], say or Lines(), files or [DEFAULT]
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
        for path, given, _ in plans:
            content = yaml.safe_dump(given.file.model_dump(exclude_unset=True), sort_keys=False)
            write_atomic(outputs / path.stem / "parameters.yaml", content)
        every = [job for _, _, jobs in plans for job in jobs]
        reasons, expected = due(every, force), estimates(every)
        pending = dict.fromkeys(reasons, "waiting")
        publish_front(outputs)
        if pending:
            for path, _, _ in plans:
                publish(outputs, path.stem, only_changed=True, pending=pending)
            say(f"pages: {display_path(outputs / 'index.html')}, written again after every stage")
        with ExitStack() as stack:
            preload = stack.enter_context(_kernels()) if pending else None
            runner = Runner(outputs, pending, expected, force, cell_seconds, say, preload)
            stack.enter_context(say.run(sum(expected[each] for each in reasons)))
            for path, _, jobs in plans:
                with _kernel_environment(path.stem):
                    outcome += runner.run(path.stem, jobs)
        if (lost := sum(runner.lost)) >= TELLING_LOSS:
            say(f"the machine was not quiet: waiting and measuring again took {lost:.0f} s of it")
    return outcome


@contextmanager
def _kernels() -> Iterator[Callable[[str, bool], None]]:
    """Start kernels quickly; what is given says which framework the next ones have imported."""
    from helpers.pipeline.kernels import forked  # slow to import

    with forked() as nursery:
        yield nursery.preload


@dataclass(frozen=True)
class Runner:
    """Runs the jobs of a target in order, and writes the pages as they come."""

    outputs: Path
    pending: dict[Path, str]  # what is to run, by its result: "waiting" or "running"
    expected: Mapping[Path, float]  # seconds
    force: bool
    cell_seconds: int
    say: Lines
    preload: Callable[[str, bool], None] | None  # if anything is to run
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
                state = self.step(target, job, f"{place} {job.name}")
                outcome[state] += 1
                if job.config.stage == "report" and state in RAN:
                    last, has_news = time.monotonic(), False
                has_news |= state in RAN and job.config.stage.startswith("perf")
                following = jobs[turn] if turn < len(jobs) else job
                if following.config.experiment == job.config.experiment:
                    continue
                report = reports.get(job.config.model)
                is_due = has_news and time.monotonic() > last + REPORT_SECONDS
                if report and is_due and following is not report:
                    if self.step(target, report, f"{place} {report.name} so far") == "executed":
                        write_status(report, "done", self.share(jobs, report.config.model))
                        publish(self.outputs, target, only_changed=True, pending=self.pending)
                    self.pending[report.result] = "waiting"
                    last, has_news = time.monotonic(), False
        finally:
            for job in jobs:
                self.pending.pop(job.result, None)
            publish(self.outputs, target, only_changed=True)
        return outcome

    def share(self, jobs: Sequence[Job], model: str) -> str:
        """Say how many of a model's measurements are in a report that is written meanwhile."""
        measured = [
            job.result
            for job in jobs
            if job.config.model == model
            and job.config.stage.startswith("perf")
            and not job.obstacle
        ]
        found = [results.read(path) for path in measured if path not in self.pending]
        done = sum(each is not None and each.state == "done" for each in found)
        return f"so far: {done} of {len(measured)} measurements are in this report"

    def step(self, target: str, job: Job, name: str) -> str:
        """Run one job, if it must, and write the pages; return what became of it."""
        if is_due := job.result in self.pending:
            self.pending[job.result] = "running"
            publish_indexes(self.outputs, target, self.pending)
        state = self._step(job, name, is_due)
        self.pending.pop(job.result, None)
        if state in RAN:
            publish(self.outputs, target, only_changed=True, pending=self.pending)
        return state

    def _step(self, job: Job, name: str, is_due: bool) -> str:
        if job.obstacle:
            self.say(f"{name}: skipped, {job.obstacle}")
            write_status(job, "skipped", job.obstacle)
            return "skipped"
        if waits := blocker(job):
            self.say(f"{name}: {waits}")
            write_status(job, "blocked", waits)
            return "blocked"
        try:
            why = "--force" if self.force else stale(job) if is_due else ""
            if not why:
                self.say(f"{name}: unchanged, skipped")
                write_status(job, "done", "")
                return "unchanged"
            started, before = time.monotonic(), results.fingerprint(job.config)
            write_status(job, "failed", "the run was interrupted")  # until it has ended otherwise
            source = notebook_file(job.config.model, job.config.stage)
            given, said = parameters(job), self.say.printed
            assert self.preload
            self.preload(*framework(job.config))
            with self.say.stage(name, why, self.expected[job.result]), self._patience():
                found = execute(source, job.result, given, self.cell_seconds, said)
            if found.fingerprint and (changed := results.difference(before, found.fingerprint)):
                raise StageError(f"{changed} while it ran: run it again")
        except (DeploymentError, OSError) as error:
            self.say(f"{name}: failed, {error}")
            write_status(job, "failed", str(error))
            return "failed"
        if found.measurement:
            self.lost.append(found.measurement.lost_seconds)
        self.say(f"{name}: done in {time.monotonic() - started:.0f} s, {found.headline}")
        return "executed"

    @contextmanager
    def _patience(self) -> Iterator[None]:
        """Give a stage its patience for a quiet machine, but no more than the run has left: where
        it is never quiet, waiting in each of fifty stages would double the time and help little.
        """
        from helpers.perf import PATIENCE_VARIABLE, patience

        before, usual = os.environ.get(PATIENCE_VARIABLE), patience()
        left = max(0.0, PATIENT_STAGES * usual - sum(self.lost))
        os.environ[PATIENCE_VARIABLE] = f"{min(usual, left):.2f}"
        try:
            yield
        finally:
            os.environ.pop(PATIENCE_VARIABLE)
            if before is not None:
                os.environ[PATIENCE_VARIABLE] = before


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
