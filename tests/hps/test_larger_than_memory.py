"""A table of more bytes than its server may use, served from RocksDB: LARGE_TABLE_GB=8 pytest
tests/hps/test_larger_than_memory.py takes three times as much disk, and some minutes.
"""

import os
import time

import numpy as np
import psutil
import pytest

from helpers.hps import files
from helpers.inference import open_dataset
from helpers.models._criteo import checkpoint, network
from helpers.triton import embedded, serve
from tests.hps.builders import ROCKS, Deployed, criteo_samples

SIZE = float(os.environ.get("LARGE_TABLE_GB", 0))
LIMIT = 2**30  # bytes of private memory for each process of the Python backend
SAMPLES = 20_000
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not SIZE, reason="LARGE_TABLE_GB is not set")]
WRAPPER = """#!/bin/sh
exec prlimit --data={limit} {stub} "$@"
"""


def test_a_table_of_gigabytes_is_served_within_one(tmp_path, monkeypatch, capsys):
    rows = (int(SIZE * 2**30 / 512 / 26),) * 26
    draws = np.random.default_rng(0)
    path = tmp_path / "checkpoint"
    checkpoint.save("dlrm", network.network("dlrm", seed=1), rows, path)
    for place, count in enumerate(rows):
        name = path / f"sparse/feature_{place}.npy"
        table = np.lib.format.open_memmap(name, "w+", "<f4", (count, 128))
        for start in range(0, count, 2**16):
            part = table[start : start + 2**16]
            part[:] = draws.standard_normal(part.shape, dtype=np.float32) / 10
        table.flush()
    databases = {"volatile_db": {"type": "disabled"}, "persistent_db": ROCKS}
    hps = {"gpucacheper": 0.01, **databases}
    samples = criteo_samples(rows, SAMPLES)
    made = Deployed("dlrm", tmp_path, path, rows, samples, max_batch_size=2048, hps=hps)
    repository, reference = made.repository, made.reference
    folder = repository.folder / "dlrm_sparse/1/hps/0"
    assert files.rows(folder, 128) == sum(rows)
    link = embedded.link_backend

    def limited(target):
        link(target)
        stub = target / "python/triton_python_backend_stub"
        real = stub.resolve()
        stub.unlink()
        stub.write_text(WRAPPER.format(limit=LIMIT, stub=real))
        stub.chmod(0o755)

    monkeypatch.setattr(embedded, "link_backend", limited)
    monkeypatch.setattr(embedded, "READY_SECONDS", 1800)
    started = time.monotonic()
    with serve(made.config_of_deploy, repository, log=tmp_path / "log") as server:
        ready = time.monotonic() - started
        data = open_dataset(made.config_of_deploy)
        started = time.monotonic()
        found = server.infer_all("dlrm", data.batches(2048))
        took = time.monotonic() - started
        (supervisor,) = server.processes
        stubs = psutil.Process(supervisor).children(recursive=True)
        (store,) = [each for each in stubs if "dlrm_sparse" in " ".join(each.cmdline())]
        used = store.memory_full_info().uss
        counted = server.counters("hps_")
    score = data.score(found)
    with capsys.disabled():
        print(
            f"\n{SIZE:g} GiB: loaded and ready in {ready:.0f} s; {SAMPLES / took:,.0f} samples/s; "
            f"the store's own memory {used / 2**20:,.0f} MB of {LIMIT / 2**20:,.0f}; AUC "
            f"{score['auc']:.6f}, the framework's {reference.facts['auc']:.6f}; "
            f"{counted['hps_defaults']:.0f} defaults of {counted['hps_keys']:.0f} keys"
        )
    assert counted["hps_defaults"] == 0
    assert used < LIMIT
    assert score["auc"] == pytest.approx(reference.facts["auc"], abs=1e-5)
