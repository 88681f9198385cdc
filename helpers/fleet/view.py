"""How a run over a fleet says how far it is: lines, or in a terminal one view of all targets."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from helpers.display import Lines
from helpers.display import lines_or_live as usual

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass
class Running:
    """A stage under way."""

    name: str
    seconds: float  # that it will probably take
    began: float = field(default_factory=time.monotonic)
    last: str = ""  # that its notebook printed

    @property
    def job(self) -> str:
        """Its target and job, without its place in the run."""
        target, _, rest = self.name.partition(": ")
        return f"{target} {rest.partition('] ')[2]}"


class FleetView(Lines):
    """Shows in a terminal, below the lines, the stages that run now, and what waits and why."""

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(highlight=False, markup=False, soft_wrap=True)
        self._running: dict[
            int, Running
        ] = {}  # by thread: each target's stages are one after another
        self._waits: dict[str, str] = {}  # target and model -> why
        self._seconds = self._done = 0.0

    def __call__(self, line: str) -> None:
        name, _, reason = line.partition(": waiting: ")
        if reason:
            self._waits[name] = reason
        elif ": assigned to " in line:
            self._waits.pop(line.partition(": assigned to ")[0], None)
        self._console.print(line)

    def printed(self, line: str) -> None:
        name, _, text = line.partition(": ")
        for each in self._running.values():
            if each.job == name:
                each.last = text

    @contextmanager
    def run(self, seconds: float) -> Iterator[None]:
        from rich.live import Live

        self._seconds = seconds
        with Live(
            console=self._console,
            get_renderable=self._picture,
            refresh_per_second=1,
            transient=True,
        ):
            yield

    @contextmanager
    def stage(self, name: str, why: str, seconds: float) -> Iterator[None]:
        thread = threading.get_ident()
        self._running[thread] = Running(name, seconds)
        try:
            yield
        finally:
            self._running.pop(thread)
            self._done += seconds

    def _picture(self) -> "RenderableType":
        from rich.table import Table

        share = min(1.0, self._done / max(self._seconds, 1.0))
        table = Table.grid(padding=(0, 1))
        table.add_row("run", f"{share:.0%} of the expected time")
        for each in [*self._running.values()]:
            spent = time.monotonic() - each.began
            table.add_row(each.name, f"{spent:.0f} of about {each.seconds:.0f} s  {each.last}")
        for name, reason in [*self._waits.items()]:
            table.add_row(name, f"waiting: {reason}")
        return table


def lines_or_live() -> Lines:
    """Choose the view of all targets in a terminal that can redraw lines, and lines elsewhere."""
    found = usual()
    return found if type(found) is Lines else FleetView()
