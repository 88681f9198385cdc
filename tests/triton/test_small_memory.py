"""Triton's processes share tensors in /dev/shm, of which a container has 64 MB by default."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from helpers.triton.process import FULL

pytestmark = pytest.mark.slow

MB = 1 << 17  # int64 values in a megabyte
SCRIPT = """
import json, sys
from pathlib import Path
import numpy as np
from helpers.errors import DeploymentError, MeasurementError
from helpers.measure import analyzer
from helpers.triton import embedded

said, folder = {}, sys.argv[1]
try:
    with embedded.serve(Path(folder), log=Path(folder).with_name("log")) as server:
        server.ready()
        for rows in (1, 8):
            inputs = {"ids": np.ones((rows, VALUES), np.int64)}
            try:
                said[rows] = server.infer("doubles", inputs)["doubled"].shape[0]
            except DeploymentError as error:
                said[rows] = str(error)
        patterns = analyzer.shared_memory_patterns(["ids"], ["doubled"])
        with analyzer.input_data(inputs) as data:
            for kind in ("none", "system"):
                more = {"interval_ms": 100, "shared_memory": kind}
                try:
                    point = analyzer.LoadPoint("doubles", data, patterns, 8, **more)
                    analyzer.run(point, server)
                except MeasurementError as error:
                    said[kind] = str(error)
except DeploymentError as error:
    said["start"] = str(error)
print(json.dumps(said))
"""


@pytest.fixture
def say(doubles, tmp_path, on_a_small_disk):
    """Serve a model with rows of a megabyte beside a small /dev/shm; return what went wrong."""
    folder = tmp_path / "repository"
    shutil.copytree(doubles, folder)
    path = folder / "doubles/config.pbtxt"
    path.write_text(path.read_text().replace("dims: 2", f"dims: {MB}"))
    script = SCRIPT.replace("VALUES", str(MB))

    def run(size):
        done = on_a_small_disk(Path("/dev/shm"), size, sys.executable, "-c", script, str(folder))
        return json.loads(done.stdout)

    return run


def test_tensors_that_do_not_fit_into_shared_memory_are_one_line_with_the_cure(say):
    said = say("12m")
    killed = said.pop("system")
    assert said == {
        "1": 1,  # one row has room
        "8": f"Triton rejected the request: {FULL}",
        "none": f"perf_analyzer failed (exit code 99): {FULL}",
    }
    assert killed.startswith(f"perf_analyzer was killed by signal 7 (SIGBUS). {FULL}")
    assert "\n" not in killed


def test_a_server_that_does_not_start_for_want_of_shared_memory_says_so(say):
    assert say("512k") == {
        "start": f"Triton ended while it started: it failed (exit code 1): {FULL}"
    }
