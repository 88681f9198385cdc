"""Run a group of stages of a worker in a process of its own, in the worker's outputs folder.

The worker starts it with `run_process`. It reads the task as a line of JSON from its standard
input, and writes the events of the run as lines of JSON. If the input closes, or on SIGINT, the run
ends as by Ctrl-C, and so does the process.
"""

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from helpers.config import STAGE, LoadConfig, ServedConfig
from helpers.display import Lines
from helpers.errors import DeploymentError, WorkspaceError
from helpers.pipeline import Job, read_plans, run_plans
from helpers.store import LOCKED_VARIABLE, outputs, temporary_folder

END_SECONDS = 20.0  # the time limit for the end of a stage
POLL_SECONDS = 0.1
COMMAND = (sys.executable, "-W", "ignore", "-m", "helpers.pipeline.cluster.process")
KILLED = "The worker process was killed, probably out of memory. Run again."
LOCK_FOLDER = Path("/tmp")  # the same for all workers of a host, whatever their TMPDIR

Event = Mapping[str, object]  # of a run, or its task, as JSON


def run_process(task: Event, tell: Callable[[Event], None], is_wanted: Callable[[], bool]) -> None:
    """Run the group of a task in a process of its own, and pass its events to `tell`; the last one
    has the reason of its end. The process ends early once it is no longer wanted. In an outputs
    folder that it shares with the submitting machine, that machine holds the lock.
    """
    last: dict[str, object] = {"over": True, "error": KILLED}
    variables = {LOCKED_VARIABLE: "1"} if task["is_shared"] else {}

    def relay() -> None:
        assert process.stdout
        for line in process.stdout:
            event = json.loads(line)
            (last.update if "over" in event else tell)(event)

    with (
        suppress(BrokenPipeError),  # the process ended before it read the task
        subprocess.Popen(
            COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | variables,
            start_new_session=True,  # Ctrl-C ends the worker, which ends it
        ) as process,
    ):
        assert process.stdin
        print(json.dumps(task), file=process.stdin, flush=True)
        reader = threading.Thread(target=relay, daemon=True)
        reader.start()
        while process.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(POLL_SECONDS)
            if not is_wanted():
                _end(process)
        reader.join()
    tell(last)


def _end(process: "subprocess.Popen[str]") -> None:
    """End a process as Ctrl-C does, and kill it after `END_SECONDS`."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class Events(Lines):
    """Writes the events of the run as lines of JSON."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # other output is not an event
        self._line = ""

    def send(self, **event: object) -> None:
        """Write one event."""
        print(json.dumps(event), file=self._out, flush=True)

    def __call__(self, line: str) -> None:
        if line.startswith("["):  # the outcome of a stage, which `ended` sends with its state
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
        """Lock this host for a job: exclusively if it measures, else shared."""
        with host_lock(measures(job), lambda why: self.send(waits=job.name, why=why)):
            yield


def measures(job: Job) -> bool:
    """Return whether a job needs the machine to itself."""
    return issubclass(STAGE[job.config.stage].config, (LoadConfig, ServedConfig))


@contextmanager
def host_lock(alone: bool, tell: Callable[[str], None]) -> Iterator[None]:
    """Lock this host for the block, exclusively or shared; `tell` gets the reason of a wait.

    The lock ends with its process, and applies to all workers of a user.
    """
    kind = fcntl.LOCK_EX if alone else fcntl.LOCK_SH
    path = LOCK_FOLDER / f"triton-notebooks-{os.getuid()}.host"
    with open(path, "a", opener=partial(os.open, mode=0o600)) as file:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            tell(f"{'other stages are' if alone else 'a measurement is'} running on its host")
            fcntl.flock(file, kind)
        yield


def main() -> None:
    """Run the group of the task, and write the reason of its end as the last event."""
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
            how = {"command": task["command"], "guard": events.alone}
            run_plans(plans, outputs(), task["force"], task["cell_seconds"], events, **how)
        except DeploymentError as failure:
            place = "on the worker: " if isinstance(failure, WorkspaceError) else ""
            error = f"{place}{failure}"
        events.send(over=True, error=error)


def _end_with_input() -> None:
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGINT)
    threading.Event().wait(END_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    main()
