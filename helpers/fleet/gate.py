"""The gate of a host: who measures is alone there, and others go in together.

It is two locked files, so that it opens when a process dies, and holds for all workers of a user
and whatever runs they belong to. Who waits to be alone keeps the door: those who come later wait
behind.
"""

import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

PAUSE_SECONDS = 0.05
TELL_SECONDS = 1.0  # after which a wait is worth telling


@contextmanager
def entered(
    alone: bool, is_wanted: Callable[[], bool], tell: Callable[[str], None]
) -> Iterator[bool]:
    """Be inside for the time of the block, alone or with others; yield whether that came true: it
    did not if the stage `is_wanted` no more. `tell` is told once why it takes long.
    """
    why = f"{'other stages are' if alone else 'a measurement is'} running on its host"
    told, began = False, time.monotonic()

    def taken(descriptor: int, kind: int) -> bool:
        nonlocal told
        while is_wanted():
            try:
                fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                if not told and time.monotonic() - began > TELL_SECONDS:
                    told = True
                    tell(why)
                time.sleep(PAUSE_SECONDS)
        return False

    door, room = (_open(name) for name in ("door", "room"))
    try:
        inside = taken(door, fcntl.LOCK_EX)
        inside = inside and taken(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(door, fcntl.LOCK_UN)
        yield inside
    finally:
        os.close(door)
        os.close(room)


def _open(name: str) -> int:
    path = Path(tempfile.gettempdir()) / f"triton-notebooks-{os.getuid()}.{name}"
    return os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
