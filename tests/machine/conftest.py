"""Shared by the tests of the machine: a GPU that is not there."""

import sys

import pytest

from helpers.machine import gpu, preflight
from helpers.store.paths import OUTPUTS_VARIABLE
from tests.machine.nvml import Card


@pytest.fixture
def asked_again():
    """What is known of a server is found anew, in this test and after it."""
    preflight.server_obstacle.cache_clear()
    yield
    preflight.server_obstacle.cache_clear()


@pytest.fixture
def card(monkeypatch, tmp_path):
    """A GPU with its driver, as far as the package can see."""
    made = Card()
    monkeypatch.setitem(sys.modules, "pynvml", made.module())
    monkeypatch.setattr(gpu, "has_driver", lambda: True)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv(OUTPUTS_VARIABLE, str(tmp_path / "outputs"))
    preflight._driver.cache_clear()
    return made
