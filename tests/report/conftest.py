"""What a notebook displays, as a list; a browser for the pages."""

import pytest

from tests.browser import BROWSER, started


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if not BROWSER:
        pytest.skip("chromium: none on PATH to open a page with")
    with started(tmp_path_factory.mktemp("browser") / "profile") as found:
        yield found


@pytest.fixture
def shown(monkeypatch):
    found = []
    monkeypatch.setattr("IPython.display.display", lambda each, **_: found.append(each))
    return found
