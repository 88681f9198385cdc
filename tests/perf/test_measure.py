"""Measuring a point: as many requests as were asked for, whatever the server's pace."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from helpers.config import OfflineConfig, resolve
from helpers.models import Arrays
from helpers.perf import analyzer, measure
from helpers.perf.statistics import Window

CALL_SECONDS = 0.002


class Bare:
    """A session that takes two milliseconds."""

    def run(self, inputs: Arrays) -> Arrays:
        import time

        time.sleep(CALL_SECONDS)
        return inputs


@pytest.mark.parametrize("slower", [0.8, 1.0, 1.25, 3.0])
@pytest.mark.parametrize("pairs", [1, 3])
def test_a_server_slower_than_the_bare_runtime_still_gets_its_requests(
    slower: float, pairs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The load generator is a stand-in, so that the server's pace is known exactly: it answers
    whole requests within three windows of the length that it is given.
    """
    wanted = 2000  # long enough for the shortest interval to have no say

    def load(point: analyzer.LoadPoint) -> Window:
        seconds = CALL_SECONDS * slower
        count = int(3 * point.interval_ms / 1000 * analyzer.WINDOW_STRETCH / seconds)
        ends = (np.arange(1, count + 1) * seconds * 1e9).astype(np.int64)
        requests = np.stack([ends - int(seconds * 1e9), ends], axis=1)
        return Window(requests, 1, 1)

    monkeypatch.setattr(measure, "BARE_SECONDS", 0.02)
    config = resolve(
        "resnet50", "perf_offline", overrides={"pairs": pairs, "request_count": wanted}
    )
    assert isinstance(config, OfflineConfig)
    server: Any = SimpleNamespace(processes=(), infer=lambda model, inputs: inputs)
    samples = {"INPUT__0": np.zeros((2, 3), np.float32)}
    point = analyzer.LoadPoint("resnet50", Path("inputs.json"), [])

    runs, bare = measure._offline_runs(config, server, Bare(), samples, point, load)

    assert sum(len(run.requests) for run in runs) >= wanted
    assert pairs <= len(runs) <= pairs + measure.EXTRA_PAIRS
    assert len(bare) == len(runs) + 1
