"""Shared by the tests of measuring."""

import time
from itertools import chain, repeat

import pytest


@pytest.fixture
def step(monkeypatch):
    """Have the system's clock be off by these seconds at each time that it is asked."""
    now = time.time

    def apply(*seconds, then=0.0):
        off = chain(seconds, repeat(then))
        monkeypatch.setattr(time, "time", lambda: now() + next(off))

    return apply
