"""The process in which a worker runs a group of stages: the ordinary run, in the worker's folder.

The task comes as a line of JSON on its standard input; what the run does goes out as lines of JSON.
If the input closes, or SIGINT comes, the run ends as by Ctrl-C and so does this process.
"""

import fcntl
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from helpers.config import STAGE, CompareConfig, LoadConfig
from helpers.display import Lines
from helpers.errors import DeploymentError, WorkspaceError
from helpers.pipeline import Job, read_plans, run_plans
from helpers.store import outputs, temporary_folder

END_SECONDS = 20.0  # that ending a stage may take
LOCK_FOLDER = Path("/tmp")  # the same for all workers of a host, whatever their TMPDIR


class Events(Lines):
    """Writes what the run does as lines of JSON."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # anything else that is printed is no event
        self._line = ""

    def send(self, **event: object) -> None:
        """Write one event."""
        print(json.dumps(event), file=self._out, flush=True)

    def __call__(self, line: str) -> None:
        if line.startswith("["):  # what became of a stage, which is told when its state is
            self._line = line
        else:
            self.send(line=line)

    def printed(self, line: str, job: str = "") -> None:
        self.send(printed=line)

    @contextmanager
    def stage(self, name: str, why: str, seconds: float) -> Iterator[None]:
        self.send(began=name, why=why, seconds=seconds)
        yield

    def ended(self, name: str, state: str) -> None:
        self.send(ended=name, state=state, line=self._line)

    @contextmanager
    def alone(self, job: Job) -> Iterator[None]:
        """Hold this host for a job: alone if it measures, with others if not."""
        with host_lock(measures(job), lambda why: self.send(waits=job.name, why=why)):
            yield


def measures(job: Job) -> bool:
    """Return whether a job needs the machine to itself."""
    return issubclass(STAGE[job.config.stage].config, (LoadConfig, CompareConfig))


@contextmanager
def host_lock(alone: bool, tell: Callable[[str], None]) -> Iterator[None]:
    """Hold this host for the block, alone or with others; `tell` is told why that must wait.

    The lock ends with its process, and holds for all workers of a user.
    """
    kind = fcntl.LOCK_EX if alone else fcntl.LOCK_SH
    path = LOCK_FOLDER / f"triton-notebooks-{os.getuid()}.host"
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            tell(f"{'other stages are' if alone else 'a measurement is'} running on its host")
            fcntl.flock(descriptor, kind)
        yield
    finally:
        os.close(descriptor)


def main() -> None:
    """Run the group of the task, and write at last why nothing more will come."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also as a background process
    events, task = Events(), json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_input, daemon=True).start()
    error = ""
    with suppress(KeyboardInterrupt):
        try:
            with temporary_folder() as folder:
                path = folder / f"{task['target']}.yaml"
                path.write_text(task["parameters"])
                plans = read_plans([path], [task["model"]], task["experiments"], task["stages"])
            run_plans(
                plans,
                outputs(),
                task["force"],
                task["cell_seconds"],
                events,
                command=task["command"],
                guard=events.alone,
            )
        except WorkspaceError as found:
            error = f"on the worker: {found}"
        except DeploymentError as found:
            error = str(found)
        events.send(over=True, error=error)


def _end_with_input() -> None:
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGINT)
    threading.Event().wait(END_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    main()
