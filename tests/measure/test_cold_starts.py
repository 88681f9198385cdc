"""Starts of a server are timed with warm-up and without, and only if somebody asks for it."""

from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest

from helpers.config import resolve
from helpers.measure import cold_starts
from helpers.store import Artifact
from helpers.triton.repository import read_configuration

random = np.random.default_rng(0)
WARM = 'name: "m" max_batch_size: 8 model_warmup { name: "batch_1" batch_size: 1 }'
SECONDS = {True: (0.3, 0.01), False: (0.1, 0.2)}  # with warm-up: until ready, of the first request


@pytest.fixture
def timed(monkeypatch, tmp_path):
    """Time starts of servers that take as long as planted; give the rows and the order."""
    order, clock = [], [0.0]

    def pass_time(seconds):
        clock[0] += seconds * random.lognormal(0, 0.02)

    monkeypatch.setattr(cold_starts.time, "perf_counter", lambda: clock[0])
    monkeypatch.setenv("TRITON_NOTEBOOKS_OUTPUTS", str(tmp_path / "outputs"))

    @contextmanager
    def serve(config, repository, scenario, *, log):
        is_warm = bool(read_configuration(repository.folder / "m").model_warmup)
        assert (repository.folder / "m/1/weights").read_text() == "w"
        assert (repository.folder / "ensemble/1").is_dir()
        until_ready, first = SECONDS[is_warm]
        left = [first]

        def infer(model, batch):
            pass_time(left.pop() if left else 0.01)

        order.append(is_warm)
        yield SimpleNamespace(ready=lambda: pass_time(until_ready), infer=infer)

    samples = SimpleNamespace(batches=lambda size, limit: iter([{"x": np.zeros((1, 2))}]))
    monkeypatch.setattr(cold_starts, "serve", serve)
    monkeypatch.setattr(cold_starts, "open_dataset", lambda _: samples)
    monkeypatch.setattr(cold_starts, "request", lambda _, batch: batch)

    def call(text, count):
        config = resolve("resnet50", "deploy", overrides={"cold_starts": count})
        cold_starts.artifact_folder(config, "deploy").parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "repository/m/1").mkdir(parents=True)
        (tmp_path / "repository/ensemble/1").mkdir(parents=True)
        (tmp_path / "repository/m/config.pbtxt").write_text(text)
        (tmp_path / "repository/m/1/weights").write_text("w")
        return cold_starts.time_starts(config, Artifact(tmp_path / "repository", {}, {})), order

    return call


def test_starts_with_and_without_warm_up_take_turns_and_have_intervals(timed):
    (warm, bare), order = timed(WARM, 3)

    assert order == [True, False, False, True, True, False]
    assert [warm["warm-up"], bare["warm-up"]] == ["with", "without"]
    for row, right in ((warm, SECONDS[True]), (bare, SECONDS[False])):
        ready, first, second = (row[column].split(" (")[0] for column in cold_starts.COLUMNS)
        assert float(ready) == pytest.approx(right[0], rel=0.05)
        assert float(first) == pytest.approx(1000 * right[1], rel=0.05)
        assert float(second) == pytest.approx(10, rel=0.05)
        assert row["seconds until ready"].endswith(")")
        assert row["starts"] == 3


def test_a_model_that_has_no_warm_up_is_timed_as_it_is(timed):
    (row,), order = timed('name: "m" max_batch_size: 8', 3)

    assert (row["warm-up"], order) == ("none", [False] * 3)


def test_nothing_is_started_unless_it_is_asked_for(timed):
    assert timed(WARM, 0) == ([], [])
