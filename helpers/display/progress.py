"""How long work says how far it has come: lines in a pipe or a file, a live view in a terminal."""

import os
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Group

LINE_SECONDS = 5.0  # between two lines of one long step
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

    def printed(self, line: str) -> None:
        """Pass on a line that a notebook printed."""
        self(line)

    @contextmanager
    def run(self, seconds: float) -> Iterator[None]:
        """Follow a run: the stages of the block will probably take `seconds` together."""
        yield

    @contextmanager
    def stage(self, name: str, why: str, seconds: float) -> Iterator[None]:
        """Follow one stage of the run, and say why it runs; it will probably take `seconds`."""
        self(f"{name}: running ({why}, about {seconds:.0f} s)")
        yield


class LiveView(Lines):
    """Shows in a terminal, below the lines, how far the run is, the running stage and what its
    notebook printed last.
    """

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self._console = Console(highlight=False, markup=False, soft_wrap=True)
        columns = TextColumn("{task.description}"), BarColumn(20), TextColumn("{task.fields[left]}")
        self._bars = Progress(*columns, console=self._console)
        self._run = self._bars.add_task("run", left="")
        self._stage = self._bars.add_task("stage", visible=False, left="")
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._expected = self._took = 0.0  # the seconds of the stages that are done
        self._name = ""

    def _print(self, line: str) -> None:
        self._console.print(line)

    def printed(self, line: str) -> None:
        self._tail.append(line)

    @contextmanager
    def run(self, seconds: float) -> Iterator[None]:
        from rich.live import Live

        self._bars.update(self._run, total=seconds)
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
        self._bars.reset(self._stage, total=seconds, visible=True, left="")
        self._name = f"{name} ({why})"
        self._tail.clear()
        try:
            yield
        finally:
            self._took += self._bars.tasks[self._stage].elapsed or 0.0
            self._expected += seconds
            self._name = ""
            self._bars.reset(self._stage, visible=False)

    def _picture(self) -> "Group":
        from rich.console import Group
        from rich.text import Text

        run, stage = (self._bars.tasks[each] for each in (self._run, self._stage))
        total, expected = run.total or 0.0, (stage.total or 0.0) if self._name else 0.0
        # how many times as long as expected the stages took, once that tells something
        pace = self._took / self._expected if self._expected >= TELLING_SECONDS else 1.0
        spent = (stage.elapsed or 0.0) if self._name else 0.0
        done = min(self._expected + min(spent / pace, expected), total)
        left = f"{done / max(total, 1):.0%}, about {_clock((total - done) * pace)} left"
        self._bars.update(self._run, completed=done, left=left)
        if not self._name:
            return Group(self._bars)
        times = f"{_clock(spent)} of about {_clock(expected * pace)}"
        self._bars.update(self._stage, completed=spent / pace, left=times)
        tail = [self._name, *self._tail]  # at once: another thread appends
        lines = [Text(each, "dim", overflow="ellipsis", no_wrap=True) for each in tail]
        return Group(self._bars, *lines)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02}"


def lines_or_live() -> Lines:
    """Choose the live view in a terminal that can redraw lines, and plain lines elsewhere."""
    can_erase = os.environ.get("TERM", "") not in ("", "dumb", "unknown")
    return LiveView() if sys.stdout.isatty() and can_erase else Lines()
