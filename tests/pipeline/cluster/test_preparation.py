"""Criteo's days on two workers give the bytes of one machine, and go on where they stopped."""

import signal
from pathlib import Path

import pytest

from tests.conftest import wait_for
from tests.models.test_criteo_raw import days_of, prepared, written
from tests.models.test_raw_parts import content

pytestmark = pytest.mark.usefixtures("nothing_left")

PARAMS = """
gpu: CPU (raw)
device: cpu
models:
  dlrm:
    defaults: {{export_format: onnx, export_precision: fp32, format: onnx, precision: fp32}}
    experiments:
      own: {{dataset: "{days}", variant: own, checkpoint: "{days}", max_batch_size: 4}}
"""


def test_days_prepared_by_two_workers_are_those_of_one_machine(cluster):
    days = written(cluster.folder / "days", days_of((3000, 2000, 1000)), zipped=(1,))
    whole = prepared(days, cluster.folder / "whole")
    path = cluster.home.root / "params/raw.yaml"
    path.write_text(PARAMS.format(days=days))
    cluster.schedule()
    cluster.work_each("first", "second")
    command = ("prepare", "params/raw.yaml", "--model", "dlrm", "--scheduler", cluster.address)
    outputs = cluster.home.root / "outputs"
    running = cluster.start(*command)
    running.wait_to_say("count: 2 parts in ")
    running.end(signal.SIGKILL)
    (scratch,) = (outputs / "data").glob("*.parts")
    before = {path: path.stat().st_mtime_ns for path in (scratch / "counts").rglob("*.parquet")}
    assert len(before) == 2 * 26

    (scratch / "result/train").mkdir(parents=True)
    (scratch / "result/train/.label.bin.0").write_text("of a worker that was killed")

    answer = cluster.start(*command).answer()

    assert answer.code == 0, answer.output
    (made,) = (path for path in (outputs / "data").glob("dlrm-dataset-*") if path != scratch)
    found = {name: data for name, data in content(made).items() if name != "manifest.json"}
    assert found == content(whole)
    assert not scratch.exists()
    again = cluster.start(*command).answer()
    assert (again.code, "is already prepared" in again.output) == (0, True)
    generated = cluster.start("prepare", "params/smoke.yaml", *command[2:]).answer()
    assert generated.code == 2
    assert "has no raw files to prepare on a cluster. Set the dataset to a " in generated.output
    assert "; the models are dcnv2, dlrm, widedeep." in generated.output
    assert wait_for(lambda: Path(made / "manifest.json").exists())
