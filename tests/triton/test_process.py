"""A process that computes gets the same settings as the server, however it was started."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from helpers.triton.process import OPENMP, SETTINGS, SPIN

HELD = """
import ctypes
class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks".split()]
    _fields_ += [(f"other{i}", ctypes.c_size_t) for i in range(6)]
libc = ctypes.CDLL(None)
libc.mallinfo2.restype, libc.malloc.restype = Info, ctypes.c_void_p
def mapped():
    before = libc.mallinfo2().hblks
    assert libc.malloc(ctypes.c_size_t(16 << 20))
    return libc.mallinfo2().hblks - before
"""


def said(code, **settings):
    """Run code in a process that was started with these settings only."""
    env = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    command = [sys.executable, "-c", f"from helpers.triton.process import *\n{code}"]
    done = subprocess.run(command, env=env | settings, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize(("settings", "before"), [({}, 1), (SETTINGS, 0)])
def test_a_process_has_the_settings_however_it_was_started(settings, before):
    """16 MB are mapped anew for each array, until malloc is told to keep them."""
    code = f"{HELD}print(mapped(), repr(apply_settings()), mapped(), os.environ['OMP_WAIT_POLICY'])"

    assert said(code, **settings) == f"{before} '' 0 PASSIVE"


@pytest.mark.parametrize(
    ("told", "lacks"),
    [
        ({}, "OMP_WAIT_POLICY=PASSIVE GOMP_SPINCOUNT=1000"),
        ({"OMP_WAIT_POLICY": "PASSIVE"}, "GOMP_SPINCOUNT=1000"),
        (OPENMP | {SPIN: "7"}, ""),
    ],
)
def test_openmp_that_was_loaded_before_keeps_its_own(told, lacks):
    library = Path(find_spec("torch").origin).parent / "lib/libgomp.so.1"
    code = f"ctypes.CDLL({str(library)!r})\nprint(apply_settings())"

    reason = f"OpenMP was loaded without {lacks}. Set it before Jupyter starts."
    assert said(code, **told) == (reason if lacks else "")
