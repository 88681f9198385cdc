"""A comparison that stops early decides as seldom wrongly as one that does not."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from helpers.measure import LoadSession, candidates


def test_equal_candidates_are_told_apart_in_one_race_of_twenty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    random, server = np.random.default_rng(0), SimpleNamespace(processes=())

    def load(*_: object) -> Any:
        run = SimpleNamespace(throughput=random.lognormal(0, 0.02), latencies_ms=np.ones(3))
        return SimpleNamespace(steady=run)

    monkeypatch.setattr(LoadSession, "load", load)
    monkeypatch.setattr(candidates.background, "monitor_background", lambda _: lambda: 0.0)
    candidate: Any = SimpleNamespace(server=server)
    session: Any = LoadSession({}, None)  # type: ignore[arg-type]
    found = [session.compare(candidate, candidate, 4) for _ in range(2000)]

    assert sum(each.ratio.is_significant for each in found) <= 0.055 * len(found)
    assert {each.rounds for each in found} == {3, 4}
