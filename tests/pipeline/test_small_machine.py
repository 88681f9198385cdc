"""A machine with little of everything measures too."""

from dataclasses import replace

import pytest

from tests.conftest import OWN_MEMORY

pytestmark = pytest.mark.thorough

# One core, few open files, and as much shared memory as Docker gives a container
LITTLE = (
    *("unshare", "--mount", "sh", "-c"),
    'mount -t tmpfs -o size=64m none /dev/shm && ulimit -n 256 && exec taskset -c 0 "$@"',
    "sh",
)


@pytest.mark.skipif(not OWN_MEMORY, reason="nothing can be mounted here")
def test_every_stage_ends_well_where_there_is_little_of_everything(fresh):
    project = replace(fresh, prefix=LITTLE)
    answer = project.run("run", "params/dummy.yaml", "--experiment", "onnx-fp32")
    assert answer.code == 0, answer.output
    assert len(answer.executed()) == 7
    found = project.result("onnx-fp32", "perf_online").machine
    assert found["host_processor_vcpu_count"] == 1
