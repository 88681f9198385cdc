"""Show the progress of work: lines in a pipe or a file, a live view in a terminal."""

import os
import re
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Group

LINE_SECONDS = 5.0  # between two lines of one long step
POSITION = re.compile(r":? ?\[\d+/\d+\] ")  # of a stage in its run
TAIL_LINES = 6  # the last lines of a notebook's output
TELLING_SECONDS = 30.0  # of finished stages, after which they correct the estimates of others


class Progress:
    """Prints a line every few seconds, with the seconds since its creation."""

    def __init__(self) -> None:
        self._start = self._last = time.monotonic()

    def say(self, text: str) -> None:
        """Print `text` if the last line is old enough."""
        now = time.monotonic()
        if now - self._last >= LINE_SECONDS:
            self._last = now
            print(f"{text}, {now - self._start:.0f} s")


class Lines:
    """Prints each line when it comes: for pipes, files and captured output."""

    def __call__(self, line: str) -> None:
        """Print a line at once. If the reader has closed the pipe (`| head`), end the process
        quietly. If nothing can be written (a closed terminal, a full disk), print nothing more.
        """
        try:
            self._print(line)
        except OSError as error:  # a stage that got it would be recorded as failed
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            if isinstance(error, BrokenPipeError):
                raise SystemExit(1) from None
            with suppress(OSError):
                print(f"cannot print any more: {error.strerror}", file=sys.stderr)

    def _print(self, line: str) -> None:
        print(line, flush=True)

    def printed(self, line: str, job: str = "") -> None:
        """Pass on a line that a notebook printed, of a `job` if several run at the same time."""
        self(f"{job}: {line}" if job else line)

    def queued(self, name: str, why: str) -> None:
        """Print why something waits; print nothing if it no longer does."""
        if why:
            self(f"{name}: waiting: {why}")

    @contextmanager
    def run(self, seconds: float) -> Iterator[None]:
        """Show the progress of a run, whose stages will probably take `seconds` together."""
        yield

    @contextmanager
    def stage(self, name: str, why: str, seconds: float) -> Iterator[None]:
        """Show the progress of a stage and why it runs; it will probably take `seconds`."""
        self(f"{name}: running ({why}, about {seconds:.0f} s)")
        yield

    def ended(self, name: str, state: str) -> None:
        """Handle the end of a job, with its state."""


class LiveView(Lines):
    """Shows running stages, the last output of their notebooks and waiting jobs below the lines."""

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(highlight=False, markup=False, soft_wrap=True)
        # seconds: expected of the run; expected and actual ones of its finished stages
        self._expected = self._done = self._took = 0.0
        self._stages: dict[str, _Stage] = {}  # by target and job
        self._queued: dict[str, str] = {}

    def _print(self, line: str) -> None:
        self._console.print(line)

    def printed(self, line: str, job: str = "") -> None:
        for name, stage in [*self._stages.items()]:
            if job in ("", name):
                stage.tail.append(line)

    def queued(self, name: str, why: str) -> None:
        super().queued(name, why)
        self._queued.pop(name, None)
        self._queued |= {name: why} if why else {}

    @contextmanager
    def run(self, seconds: float) -> Iterator[None]:
        from rich.live import Live

        self._expected, self._done, self._took = seconds, 0.0, 0.0
        # one picture a second: a server may be measured on the same cores
        with Live(
            console=self._console,
            get_renderable=self._picture,
            refresh_per_second=1,
            transient=True,
            redirect_stderr=sys.stderr.isatty(),
        ):
            yield

    @contextmanager
    def stage(self, name: str, why: str, seconds: float) -> Iterator[None]:
        job, stage = POSITION.sub(" ", name).strip(), _Stage(f"{name} ({why})", seconds)
        self._stages[job] = stage
        try:
            yield
        finally:
            self._done += seconds
            self._took += stage.spent
            del self._stages[job]

    def _picture(self) -> "Group":
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        stages = [*self._stages.values()]  # at once: another thread changes them
        slowdown = self._took / self._done if self._done >= TELLING_SECONDS else 1.0
        running = sum(min(stage.spent / slowdown, stage.seconds) for stage in stages)
        done = min(self._done + running, self._expected)
        left = _clock((self._expected - done) * slowdown / max(len(stages), 1))
        share = f"{done / max(self._expected, 1):.0%}"
        bars = Table.grid(padding=(0, 1))
        bars.add_row("run", ProgressBar(self._expected, done, 20), f"{share}, about {left} left")
        shown: list[str] = []
        for stage in stages:
            expected = stage.seconds * slowdown
            times = f"{_clock(stage.spent)} of about {_clock(expected)}"
            bars.add_row("stage", ProgressBar(expected, stage.spent, 20), times)
            shown += [stage.name, *[*stage.tail][-TAIL_LINES // len(stages) :]]
        shown += [f"{name}: waiting: {why}" for name, why in [*self._queued.items()]]
        lines = [Text(line, "dim", overflow="ellipsis", no_wrap=True) for line in shown]
        return Group(bars, *lines)


class _Stage:
    """A running stage."""

    def __init__(self, name: str, seconds: float) -> None:
        self.name, self.seconds = name, seconds  # expected
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)  # the last output of its notebook
        self._started = time.monotonic()

    @property
    def spent(self) -> float:
        return time.monotonic() - self._started


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02}"


def lines_or_live() -> Lines:
    """Return the live view in a terminal that can redraw lines, and plain lines elsewhere."""
    can_erase = os.environ.get("TERM", "") not in ("", "dumb", "unknown")
    return LiveView() if sys.stdout.isatty() and can_erase else Lines()
