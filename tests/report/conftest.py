"""What a notebook displays, as a list."""

from typing import Any

import pytest


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was displayed."""
    found: list[Any] = []
    monkeypatch.setattr("IPython.display.display", lambda each, **_: found.append(each))
    return found
