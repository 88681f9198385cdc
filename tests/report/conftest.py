"""What a notebook displays, as a list."""

import pytest


@pytest.fixture
def shown(monkeypatch):
    """What was displayed."""
    found = []
    monkeypatch.setattr("IPython.display.display", lambda each, **_: found.append(each))
    return found
