"""Saying now and then how far long work has come."""

import time

SAY_EVERY = 5.0  # seconds


class Progress:
    """Prints a line every few seconds, with the seconds since it was made."""

    def __init__(self) -> None:
        self._start = self._last = time.monotonic()

    def say(self, text: str) -> None:
        """Print `text` if the last line is old enough."""
        now = time.monotonic()
        if now - self._last >= SAY_EVERY:
            self._last = now
            print(f"{text}, {now - self._start:.0f} s")
