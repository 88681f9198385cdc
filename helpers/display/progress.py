"""How long work says how far it has come: lines in a pipe or a file, a live view in a terminal."""

import os
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Group

LINE_SECONDS = 5.0  # between two lines of one long step
TAIL_LINES = 6  # of what the notebook printed last


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
        """Print a line at once; if nobody reads any more (`| head`), end the process quietly."""
        try:
            print(line, flush=True)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise SystemExit(1) from None  # no OSError: a stage must not be noted as failed

    def printed(self, line: str) -> None:
        """Pass on a line that a notebook printed."""
        self(line)

    @contextmanager
    def stage(self, seconds: float) -> Iterator[None]:
        """Follow the stage that the last line names: the block will probably take `seconds`."""
        yield


class LiveView(Lines):
    """Shows in a terminal, below the line that names the running stage, its time and output."""

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(highlight=False, markup=False, soft_wrap=True)
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._started = self._stage_started = time.monotonic()
        self._seconds = 0.0

    def __call__(self, line: str) -> None:
        self._console.print(line)

    def printed(self, line: str) -> None:
        self._tail.append(line)

    @contextmanager
    def stage(self, seconds: float) -> Iterator[None]:
        from rich.live import Live

        self._seconds, self._stage_started = seconds, time.monotonic()
        self._tail.clear()
        # one picture a second: a server may be measured on the same cores
        with Live(
            console=self._console,
            get_renderable=self._picture,
            refresh_per_second=1,
            transient=True,
            redirect_stderr=sys.stderr.isatty(),
        ):
            yield

    def _picture(self) -> "Group":
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        now = time.monotonic()
        spent, head = now - self._stage_started, Table.grid(padding=(0, 1))
        times = f"{_clock(spent)} of about {_clock(self._seconds)}"
        total = f"(run: {_clock(now - self._started)})"
        head.add_row("     ", ProgressBar(self._seconds, spent, width=20), times, total)
        tail = list(self._tail)  # at once: another thread appends
        return Group(head, *(Text(each, "dim", overflow="ellipsis", no_wrap=True) for each in tail))


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02}"


def lines_or_live() -> Lines:
    """Choose the live view in a terminal that can redraw lines, and plain lines elsewhere."""
    can_erase = os.environ.get("TERM", "") not in ("", "dumb", "unknown")
    return LiveView() if sys.stdout.isatty() and can_erase else Lines()
