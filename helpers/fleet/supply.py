"""What a machine needs before its stages run: the data and artifacts that others have or make."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Condition
from typing import TypeVar

from helpers.display import Lines
from helpers.errors import FleetError
from helpers.fleet.groups import Group
from helpers.fleet.moving import End, Road, end_at, end_here, held, is_awaited, needed
from helpers.fleet.roster import Machine, Roster

Answer = TypeVar("Answer")


class Turn(Condition):
    """The turns that the threads of a run take: who holds it may change what they share."""

    def outside(self, do: Callable[..., Answer], *arguments: object) -> Answer:
        """Do what takes long while others have their turn."""
        self.release()
        try:
            return do(*arguments)
        finally:
            self.acquire()


class Supply:
    """Brings machines what they need, each thing once."""

    def __init__(self, turn: Turn, roster: Roster, outputs: Path, say: Lines) -> None:
        self.turn, self._roster, self._outputs, self._say = turn, roster, outputs, say
        self._road = Road()
        self._making: dict[str, Machine] = {}  # place -> who makes it now

    def end_of(self, machine: Machine | None) -> End:
        """Give how `cargo` works on a machine, or here."""
        return end_at(self._roster, machine) if machine else end_here(self._outputs)

    def bring(self, group: Group, machine: Machine, wait: Callable[[str], None]) -> None:
        """Bring a worker the data and artifacts that others have, where that is quicker, and wait
        for what another one is making; `wait` is told why, and waits a while.
        """
        jobs = [job for _, job in group.jobs]
        seconds = needed(jobs, group.before)
        while True:
            missing = {*seconds} - {*self.turn.outside(held, self.end_of(machine), [*seconds])}
            for other in (None, *self._roster):
                if other is machine or not missing:
                    continue
                source, target = self.end_of(other), self.end_of(machine)
                for place in self.turn.outside(held, source, sorted(missing)):
                    with suppress(FleetError):  # of a machine that is lost meanwhile
                        if self.turn.outside(self._road.is_quicker, source, place, seconds[place]):
                            sent = self.turn.outside(self._road.send, source, target, place)
                            self._say(f"{group.name}: {sent}")
                        missing.discard(place)
            data = {place for place in missing if is_awaited(place)}
            if not (made := sorted(data & self._making.keys())):
                self._making |= dict.fromkeys(data, machine)
                return
            wait(f"{self._making[made[0]].words} is making {made[0]}")

    def made(self, machine: Machine) -> None:
        """Note that a machine makes no data any more: they are there, or failed."""
        for place in [place for place, maker in self._making.items() if maker is machine]:
            del self._making[place]
        self.turn.notify_all()
