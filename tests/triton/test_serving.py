"""What Triton counts under load, as the deploy notebook shows it."""

from types import SimpleNamespace

from helpers.config import resolve
from helpers.triton import count_requests, serving


def counted(requests, samples, executions):
    success = {"inference_stats": {"success": {"count": requests, "ns": 1}}}
    return success | {"inference_count": samples, "execution_count": executions}


def test_the_average_batch_is_of_the_block_alone(monkeypatch):
    monkeypatch.setattr(serving, "COUNTED_SECONDS", 0)
    counts = iter([counted(3, 5, 4), counted(11, 29, 10)])
    server = SimpleNamespace(statistics=lambda _: next(counts))
    config = resolve("resnet50", "deploy")

    with count_requests(config, server) as rows:
        assert rows == []

    expected = {"requests": 8, "samples": 24, "executions": 6, "average_batch_size": 4.0}
    assert rows == [{"model": "resnet50", **expected}]


def test_each_part_of_an_ensemble_has_its_own_batches(monkeypatch):
    monkeypatch.setattr(serving, "COUNTED_SECONDS", 0)
    server = SimpleNamespace(statistics=lambda _: counted(0, 0, 0))
    config = resolve("dlrm", "deploy")

    with count_requests(config, server) as rows:
        pass

    assert [row["model"] for row in rows] == ["dlrm_sparse", "dlrm_dense"]
    assert {row["average_batch_size"] for row in rows} == {0.0}
