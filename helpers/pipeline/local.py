"""Running one stage on this machine: its notebook, with a kernel that starts at once."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from helpers import results
from helpers.config import notebook_file
from helpers.errors import StageError
from helpers.pipeline.notebook import execute
from helpers.pipeline.planning import Job, framework, parameters, stale
from helpers.results import Result
from helpers.store import environment

PATIENT_STAGES = 6  # that may spend all their patience for a quiet machine, in one run


@dataclass(frozen=True)
class Here:
    """This machine, as a place where stages run."""

    preload: Callable[[str, bool], None]  # says which framework the next kernels have imported
    cell_seconds: int
    lost: list[float] = field(default_factory=list)  # seconds of each stage, to an unquiet machine

    def stale(self, job: Job) -> str:
        """Say why the stage must run; empty if its result holds."""
        return stale(job)

    def execute(self, job: Job, said: Callable[[str], None]) -> Result:
        """Run the stage's notebook, pass on what it prints, and return its result.

        Raises `DeploymentError` with one line; the executed notebook stays, as far as it came.
        """
        before, source = (
            results.fingerprint(job.config),
            notebook_file(job.config.model, job.config.stage),
        )
        self.preload(*framework(job.config))
        with environment(**self._patience()):
            found = execute(source, job.result, parameters(job), self.cell_seconds, said)
        if found.fingerprint and (changed := results.difference(before, found.fingerprint)):
            raise StageError(f"{changed} while it ran. Run again.")
        if found.measurement:
            self.lost.append(found.measurement.lost_seconds)
        return found

    def _patience(self) -> dict[str, str]:
        """Return a stage's patience for a quiet machine, no more than the run has left: where it is
        never quiet, waiting in each of fifty stages would double the time and help little.
        """
        from helpers.perf import PATIENCE_VARIABLE, patience

        left = max(0.0, PATIENT_STAGES * patience() - sum(self.lost))
        return {PATIENCE_VARIABLE: f"{min(patience(), left):.2f}"}


@contextmanager
def here(cell_seconds: int) -> Iterator[Here]:
    """Run stages on this machine: a cell may take `cell_seconds`."""
    from helpers.pipeline.kernels import forked  # slow to import

    with forked() as nursery:
        yield Here(nursery.preload, cell_seconds)
