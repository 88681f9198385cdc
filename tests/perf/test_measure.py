"""Measuring a point: as many requests as were asked for, whatever the server's pace."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from helpers.config import OfflineConfig, resolve
from helpers.models import Arrays
from helpers.perf import analyzer, measure
from helpers.perf.gpu_monitor import Observer
from helpers.results import LATENCY_COMPONENTS

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

    def run(point: analyzer.Point, server: Any) -> analyzer.Load:
        seconds = CALL_SECONDS * slower
        count = int(3 * point.interval_ms / 1000 * analyzer.WINDOW_STRETCH / seconds)
        ends = (np.arange(1, count + 1) * seconds * 1e9).astype(np.int64)
        requests = np.stack([ends - int(seconds * 1e9), ends], axis=1)
        return analyzer.Load(requests, dict.fromkeys(LATENCY_COMPONENTS, 0.0))

    monkeypatch.setattr(analyzer, "run", run)
    monkeypatch.setattr(measure, "BARE_SECONDS", 0.02)
    config = resolve(
        "resnet50", "perf_offline", overrides={"pairs": pairs, "request_count": wanted}
    )
    assert isinstance(config, OfflineConfig)
    server: Any = SimpleNamespace(processes=(), infer=lambda model, inputs: inputs)
    samples = {"INPUT__0": np.zeros((2, 3), np.float32)}
    point = analyzer.Point("resnet50", data=None, regions=[])  # type: ignore[arg-type]

    row, requests = measure._offline_point(config, server, Bare(), point, samples, Observer(server))

    assert row.requests is not None
    assert row.requests >= wanted
    assert row.verdict != "few requests"
    assert len(requests) - 1 <= pairs + measure.EXTRA_PAIRS  # and the bare runs
