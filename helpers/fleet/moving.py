"""Sending artifacts from one machine to another, through the submitter, when that is quicker.

Data sets and checkpoints are content: a name holds the hash of all that decides them. What one
machine has made is the same file for every other, so it is made once. Sending is worth it where
the bytes, at the rate of what was sent before, take less time than making them took.
"""

import math
import re
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from helpers.config import DeployConfig, ExportConfig, artifact_folder
from helpers.display import Lines
from helpers.errors import DeploymentError, FleetError
from helpers.fleet import cargo
from helpers.fleet.access import Access, configure
from helpers.fleet.roster import Machine, Roster, joined, probed
from helpers.inference import checkpoint_place, dataset_place, recipe_folder
from helpers.pipeline import DATA_SECONDS, Job
from helpers.results import read
from helpers.store import display_path

End = Callable[..., Any]  # calls a function of `cargo` in one machine's outputs folder
FIRST_RATE = 100e6  # bytes/s, before anything was sent: of a network of 1 Gbit/s


@dataclass
class Road:
    """How quickly artifacts travel, as far as it is known."""

    rate: float = FIRST_RATE  # bytes/s

    def is_quicker(self, source: End, place: str, seconds: float) -> bool:
        """Whether sending an artifact takes less time than making it, which takes `seconds` unless
        its maker wrote down how long it took.
        """
        _, sizes, known = source(cargo.listed, place)
        sending: float = sum(sizes.values()) / self.rate
        return sending < float(known or seconds)

    def send(self, source: End, target: End, place: str) -> str:
        """Send an artifact from one machine to another, whole or not at all; say what it took."""
        began, total = time.monotonic(), 0
        manifest, sizes, _ = source(cargo.listed, place)
        token = target(cargo.begin, place)
        try:
            for name, size in sizes.items():
                for offset in range(0, max(size, 1), cargo.PIECE):
                    piece = source(cargo.read, place, name, offset)
                    target(cargo.write, place, token, name, offset, piece)
                    total += len(piece)
            target(cargo.finish, place, token, manifest)
        except BaseException:
            with suppress(DeploymentError):
                target(cargo.abandon, place, token)
            raise
        seconds = time.monotonic() - began
        if total > cargo.PIECE:  # less tells more of the delay than of the rate
            self.rate = total / seconds
        return f"{place}: sent {total / 1e6:,.1f} MB in {seconds:.1f} s"


def needed(jobs: Sequence[Job], before: Sequence[Job] = ()) -> dict[str, float]:
    """Name the places of data that jobs need and this package makes, and of the artifacts that
    they made before, with about how many seconds making each takes: those of jobs `before` them
    will not be made.
    """
    found: dict[str, float] = {}
    for job in (*before, *jobs):
        config = job.config
        if isinstance(config, ExportConfig):
            with suppress(DeploymentError):  # the user's files are on the worker only
                found |= {f"data/{name}": DATA_SECONDS for name in _data(config)}
        result = read(job.result)
        if result and result.state == "done" and result.artifact:
            place = f"{config.target}/artifacts/{result.artifact.folder}"
            found[place] = math.inf if job in before else result.seconds or DATA_SECONDS
    return found


def is_awaited(place: str) -> bool:
    """Whether what another machine makes now is waited for: data sets and fitted checkpoints, which
    are then the same everywhere, and not the outputs of a network, which take no longer here.
    """
    return re.match(r"data/\w+-(dataset|checkpoint)-", place) is not None


def _data(config: ExportConfig) -> Iterable[str]:
    places = (dataset_place(config), checkpoint_place(config))
    yield from (place.made.name for place in places if place.made)
    yield recipe_folder(config, "reference").name


def end_here(outputs: Path) -> End:
    """Give how `cargo` works in an outputs folder of this machine."""
    return lambda do, *arguments: do(outputs, *arguments)


def end_at(roster: Roster, machine: Machine) -> End:
    """Give how `cargo` works on a worker's machine."""
    from helpers.fleet.tasks import at_work

    return partial(roster.ask, machine.address, at_work)


def held(end: End, places: Sequence[str]) -> list[str]:
    """Ask which artifacts a machine has; none if it does not answer."""
    try:
        found: list[str] = end(cargo.held, list(places))
    except FleetError:
        return []
    return found


def fetch(roster: Roster, outputs: Path, places: Sequence[str], say: Lines) -> None:
    """Bring artifacts home that are not here, from whichever worker has them."""
    home, road = end_here(outputs), Road()
    missing = set(places) - {*held(home, places)}
    for machine in roster:
        for place in held(end_at(roster, machine), sorted(missing)):
            say(road.send(end_at(roster, machine), home, place))
            missing.discard(place)
    for place in sorted(missing):
        say(f"{display_path(outputs / place)}: not found on any worker")


def bring(config: DeployConfig, outputs: Path, access: Access, say: Lines) -> None:
    """Bring the model repository of an experiment home, from the workers of a fleet."""
    configure()
    place = str(artifact_folder(config, "deploy").relative_to(outputs))
    with joined(access) as client, probed(outputs) as probe:
        roster = Roster(client, access.address, probe)
        roster.refresh()
        fetch(roster, outputs, [place], say)
