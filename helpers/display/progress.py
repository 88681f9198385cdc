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
PLACE = re.compile(r":? ?\[\d+/\d+\] ")  # of a stage in its run
TAIL_LINES = 6  # of what the notebook printed last
TELLING_SECONDS = 30.0  # of stages that are done, to correct the estimates of the others


class Progress:
    """Prints a line every few seconds, with the seconds since it was made."""

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
        """Print a line at once. If nobody reads any more (`| head`), end the process quietly; where
        nothing can be written (a closed terminal, a full disk), go on and print nothing more.
        """
        try:
            self._print(line)
        except OSError as error:  # it must not reach a stage, which would be noted as failed
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
        """Print why something waits; nothing if it does no more."""
        if why:
            self(f"{name}: waiting: {why}")

    @contextmanager
    def run(self, seconds: float) -> Iterator[None]:
        """Follow a run: the stages of the block will probably take `seconds` together."""
        yield

    @contextmanager
    def stage(self, name: str, why: str, seconds: float) -> Iterator[None]:
        """Follow one stage of the run, and say why it runs; it will probably take `seconds`."""
        self(f"{name}: running ({why}, about {seconds:.0f} s)")
        yield

    def ended(self, name: str, state: str) -> None:
        """Note what became of a job."""


class LiveView(Lines):
    """Shows in a terminal, below the lines, how far the run is, the running stages, what their
    notebooks printed last and what waits.
    """

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(highlight=False, markup=False, soft_wrap=True)
        self._run = _Share(0.0)
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

        self._run = _Share(seconds)
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
        job, stage = PLACE.sub(" ", name).strip(), _Stage(f"{name} ({why})", seconds)
        self._stages[job] = stage
        try:
            yield
        finally:
            self._run.done += seconds
            self._run.took += stage.spent
            del self._stages[job]

    def _picture(self) -> "Group":
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        run, stages = self._run, [*self._stages.values()]  # at once: another thread changes them
        under_way = sum(min(stage.spent / run.pace, stage.seconds) for stage in stages)
        done = min(run.done + under_way, run.seconds)
        left = _clock((run.seconds - done) * run.pace / max(len(stages), 1))
        share = f"{done / max(run.seconds, 1):.0%}"
        bars = Table.grid(padding=(0, 1))
        bars.add_row("run", ProgressBar(run.seconds, done, 20), f"{share}, about {left} left")
        shown: list[str] = []
        for stage in stages:
            expected = stage.seconds * run.pace
            times = f"{_clock(stage.spent)} of about {_clock(expected)}"
            bars.add_row("stage", ProgressBar(expected, stage.spent, 20), times)
            shown += [stage.name, *[*stage.tail][-TAIL_LINES // len(stages) :]]
        shown += [f"{name}: waiting: {why}" for name, why in [*self._queued.items()]]
        lines = [Text(each, "dim", overflow="ellipsis", no_wrap=True) for each in shown]
        return Group(bars, *lines)


class _Share:
    """How much of what was expected is done."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds  # expected
        self.done = self.took = 0.0  # of its parts: the seconds that were expected, and real ones
        self._started = time.monotonic()

    @property
    def spent(self) -> float:
        return time.monotonic() - self._started

    @property
    def pace(self) -> float:
        """Return how many times as long as expected the parts took, once that tells something."""
        return self.took / self.done if self.done >= TELLING_SECONDS else 1.0


class _Stage(_Share):
    """A stage under way."""

    def __init__(self, name: str, seconds: float) -> None:
        super().__init__(seconds)
        self.name = name
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)  # what its notebook printed last


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02}"


def lines_or_live() -> Lines:
    """Return the live view in a terminal that can redraw lines, and plain lines elsewhere."""
    can_erase = os.environ.get("TERM", "") not in ("", "dumb", "unknown")
    return LiveView() if sys.stdout.isatty() and can_erase else Lines()
