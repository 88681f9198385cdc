"""The batch command on the smoke target, for experiments that no other test takes through all
stages: those start from the first one of each model.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, apart


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("model", "experiment"),
    [apart("tft", "traffic-ts-script-fp32"), apart("dcnv2", "hps-onnx-fp32")],
)
def test_all_stages_are_green_and_published(model: str, experiment: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "helpers", "run", "params/smoke.yaml", "--model", model]
    command += ["--experiment", experiment, "--outputs", str(tmp_path)]
    env = {**os.environ, "PYTHONWARNINGS": "ignore"}

    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)

    assert done.returncode == 0, done.stdout + done.stderr
    report = (tmp_path / "smoke" / model / "report.html").read_text()
    assert experiment in report
    assert f"smoke/{model}/report.html" in (tmp_path / "index.html").read_text()
    assert (tmp_path / "published.html").exists()
