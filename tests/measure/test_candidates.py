"""A comparison that stops early decides as seldom wrongly as one that does not."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from helpers.measure import Candidate, LoadSession, Window, analyzer, candidates, load_race


def test_equal_candidates_are_told_apart_in_one_race_of_twenty(monkeypatch):
    random, server = np.random.default_rng(0), SimpleNamespace(processes=())

    def load(*_):
        speed = random.lognormal(0, 0.02)
        run = SimpleNamespace(throughput=speed, latencies_ms=np.ones(3), others_cores=0.0)
        return SimpleNamespace(steady=run)

    monkeypatch.setattr(LoadSession, "load", load)
    monkeypatch.setattr(candidates.background, "monitor_background", lambda _: lambda: 0.0)
    candidate = SimpleNamespace(server=server, config=SimpleNamespace(device="cpu"))
    session = LoadSession({}, None)
    found = [session.compare(candidate, candidate, 4) for _ in range(2000)]

    assert sum(each.ratio.is_significant for each in found) <= 0.055 * len(found)
    assert {each.rounds for each in found} == {3, 4}


def test_a_race_has_the_cores_that_others_used_in_each_run(monkeypatch):
    run = Window(np.array([[0, 10**6], [1, 2 * 10**6]]), 1, 1)
    point = analyzer.LoadPoint("m", Path(), {})
    monkeypatch.setattr(candidates.sweep, "load_of", lambda *_: point)
    monkeypatch.setattr(LoadSession, "shared_memory", lambda *_: "none")
    monkeypatch.setattr(candidates.analyzer, "run", lambda *_: run)
    asked = []
    cores = nullcontext(lambda *between: asked.append(between) or 0.7)
    monkeypatch.setattr(candidates.background, "watch_others", lambda _: cores)
    config = SimpleNamespace(measurement_seconds=1, online_batch_size=1)
    candidate = Candidate(SimpleNamespace(processes=()), config, 1)

    found = LoadSession({}, Path()).load(candidate)

    assert load_race(1).others_cores(found.steady) == 0.7
    assert asked == [(0, 2 * 10**6)]
