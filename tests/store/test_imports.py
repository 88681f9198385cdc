"""Imports that leave a package out."""

import importlib
import sys

import pytest

from helpers.store import block_import


def test_a_package_is_missing_meanwhile_and_can_be_imported_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)

    with block_import("colorsys"), pytest.raises(ModuleNotFoundError):
        importlib.import_module("colorsys")

    assert importlib.import_module("colorsys").rgb_to_hls(0, 0, 0) == (0, 0, 0)


def test_a_package_that_has_been_imported_stays() -> None:
    import json

    with block_import("json"):
        assert importlib.import_module("json") is json
