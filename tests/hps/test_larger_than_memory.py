"""A table of more bytes than its server may use, served from RocksDB: LARGE_TABLE_GB=8 pytest
tests/hps/test_larger_than_memory.py takes three times as much disk, and some minutes.
"""

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from helpers.config import resolve
from helpers.hps import files
from helpers.inference import convert, export, open_dataset, prepare
from helpers.measure import compute_reference
from helpers.models._criteo import checkpoint, network, spec
from helpers.models._criteo.data import Samples, write_part
from helpers.store import OUTPUTS_VARIABLE
from helpers.triton import deploy, embedded, serve

SIZE = float(os.environ.get("LARGE_TABLE_GB", 0))
LIMIT = 2**30  # bytes of private memory for each process of the Python backend
SAMPLES = 20_000
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not SIZE, reason="LARGE_TABLE_GB is not set"),
]
WRAPPER = """#!/bin/sh
exec prlimit --data={limit} {stub} "$@"
"""


def test_a_table_of_gigabytes_is_served_within_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv(OUTPUTS_VARIABLE, str(tmp_path / "outputs"))
    rows = (int(SIZE * 2**30 / 512 / 26),) * 26
    draws = np.random.default_rng(0)
    path = tmp_path / "checkpoint"
    checkpoint.save("dlrm", network.network("dlrm", seed=1), rows, path)
    for place, count in enumerate(rows):
        shape = {"descr": "<f4", "fortran_order": False, "shape": (count, 128)}
        with (path / f"sparse/feature_{place}.npy").open("wb") as file:
            checkpoint.NPY.write_array_header_1_0(file, shape)
            for start in range(0, count, 2**16):
                some = draws.standard_normal((min(2**16, count - start), 128), dtype=np.float32)
                (some / 10).tofile(file)
    dataset = tmp_path / "dataset"
    dataset.mkdir()
    ids = draws.integers(0, rows[0], (SAMPLES, 26)).astype(np.int32)
    numbers = draws.standard_normal((SAMPLES, 13)).astype(np.float16).astype(np.float32)
    samples = Samples(ids, numbers, draws.random(SAMPLES) < 0.3)
    for part in spec.PARTS:
        write_part(dataset / part, rows, [samples])
    spec.write(dataset, rows, {})
    fields: dict[str, Any] = {
        "dataset": str(dataset),
        "checkpoint": str(path),
        "variant": "own",
        "export_format": "tf-savedmodel",
        "export_precision": "fp32",
        "format": "onnx",
        "precision": "fp32",
        "lookup": "hps",
        "max_batch_size": 2048,
        "hps": {
            "gpucacheper": 0.01,
            "volatile_db": {"type": "disabled"},
            "persistent_db": {"type": "rocks_db", "path": "rocks"},
        },
    }

    def config(stage: str) -> Any:
        section = {"dlrm": {"experiments": {"hps": fields}}}
        return resolve("dlrm", stage, "test", "cpu", {}, {}, section, "hps", {})

    prepared = prepare(config("export"))
    reference = compute_reference(config("export"), prepared)
    export(config("export"), prepared)
    convert(config("convert"), lambda *_: None)
    repository = deploy(config("deploy"))
    folder = repository.folder / "dlrm_sparse/1/hps/0"
    assert files.rows(folder, 128) == sum(rows)
    link = embedded.link_backend

    def limited(target: Path) -> None:
        link(target)
        stub = target / "python/triton_python_backend_stub"
        real = stub.resolve()
        stub.unlink()
        stub.write_text(WRAPPER.format(limit=LIMIT, stub=real))
        stub.chmod(0o755)

    monkeypatch.setattr(embedded, "link_backend", limited)
    monkeypatch.setattr(embedded, "READY_SECONDS", 1800)
    started = time.monotonic()
    deploying = config("deploy")
    with serve(deploying, repository, log=tmp_path / "log") as server:
        ready = time.monotonic() - started
        data = open_dataset(deploying)
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
