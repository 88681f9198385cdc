"""Failures on purpose, with the real server: one line, nothing left, the same command completes."""

import os
import re
import signal
import socket
import time
import urllib.request
from dataclasses import replace

import pytest

from helpers.results import read
from tests.conftest import MOUNTING, Answer, kernels, processes, wait_for

pytestmark = pytest.mark.usefixtures("nothing_left")

OFFLINE = ("run", "params/dummy.yaml", "--experiment", "onnx-fp32", "--stage", "perf_offline")


def edit(project, old, new):
    project.params.write_text(project.params.read_text().replace(old, new))


def measuring(project):
    """Start measuring, slowly enough to be disturbed, and return once perf_analyzer runs."""
    edit(project, "request_count: 5", "request_count: 4000")
    process = project.start(*OFFLINE, "--force")
    wait_for(lambda: analyzer(project) or process.poll() is not None)
    assert process.poll() is None, process.communicate()[0]
    time.sleep(0.5)
    return process


def require_to_be_run(project):
    """Undo the slowness; the same command has that one stage to run."""
    edit(project, "request_count: 4000", "request_count: 5")
    output = project.run(*OFFLINE, "--dry-run").output
    assert re.findall("(.*): would run", output) == ["dummy onnx-fp32 perf_offline"], output


def kill(pids):
    assert pids
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def ended(process, code):
    """Wait for the end of a command and return what it printed."""
    output, _ = process.communicate(timeout=600)
    assert process.returncode == code, output
    return output


def unguarded(project, words):
    """The processes of the project, not their supervisors; one may end meanwhile."""
    supervisors = processes(str(project.root), words, "supervisor.py")
    return [pid for pid in processes(str(project.root), words) if pid not in supervisors]


def server(project):
    return unguarded(project, "tritonserver --model-repository")


def analyzer(project):
    return unguarded(project, "/perf_analyzer -m")


def test_triton_killed_at_the_second_of_three_batches_leaves_the_row_of_the_first(project):
    edit(project, "batch_sizes: [1, 4]", "batch_sizes: [1, 2, 4]")
    process = project.start(*OFFLINE)
    wait_for(lambda: processes(str(project.root), "/perf_analyzer -m", "-b 2"))
    kill(server(project))
    output = ended(process, 1)

    line = "perf_offline: failed: batch size 2, 1 client: Triton ended during the measurement: it "
    assert f"{line}was killed by signal 9 (SIGKILL), by another process or because" in output
    first, second, third = project.rows("onnx-fp32", "perf_offline")
    assert first.throughput > 0
    assert (second.quality, third.quality) == ("failed", "failed")
    assert third.reason == "the server ended in an earlier measurement"
    assert (project.target / "dummy/onnx-fp32/perf_offline.ipynb").exists()
    require_to_be_run(project)


def test_a_server_killed_in_a_comparison_is_shown_as_failed_and_the_others_go_on(project):
    edit(project, "compare_seconds: 2", "compare_seconds: 12")
    process = project.start("run", "params/dummy.yaml", "--stage", "compare", "--force")
    wait_for(lambda: analyzer(project) or process.poll() is not None)
    kill(server(project)[-1:])
    ended(process, 0)

    (comparison,) = read(project.target / "dummy/compare.json").comparisons
    lost = [one for one in comparison.experiments if one.reason]
    assert [one.throughput for one in lost] == [None]
    assert "Triton ended during the measurement" in lost[0].reason
    assert comparison.recommended.experiment != lost[0].experiment
    report = project.run("run", "params/dummy.yaml", "--stage", "report")
    assert report.code == 0, report.output
    page = (project.target / "dummy/report.html").read_text()
    assert f"Left out: {lost[0].experiment} (Triton ended" in page


def test_perf_analyzer_killed(project):
    process = measuring(project)
    first, second = wait_for(lambda: analyzer(project)), set()
    kill(first)

    def begun():
        second.update({*analyzer(project)} - {*first})  # the killed one may be seen once more
        return bool(second) or process.poll() is not None

    wait_for(begun)
    kill([*second])  # the second batch size
    output = ended(process, 1)
    assert "failed: batch size 1, 1 client: perf_analyzer was killed by signal 9" in output
    rows = project.rows("onnx-fp32", "perf_offline")
    assert [row.quality for row in rows] == ["failed", "failed"]
    require_to_be_run(project)


def test_the_kernel_killed_takes_its_server_along(project):
    process = measuring(project)
    kill(kernels(project.root))
    wait_for(lambda: not server(project) and not analyzer(project))
    output = ended(process, 1)
    assert "perf_offline: failed: The kernel was killed, probably out of memory. " in output
    require_to_be_run(project)


def test_the_command_killed_takes_everything_along(project):
    process = measuring(project)
    process.kill()
    wait_for(lambda: not server(project) and not analyzer(project))
    wait_for(lambda: not processes(str(project.root), "fork_server.py"))
    process.communicate()
    page = (project.target / "index.html").read_text()
    assert "A run is in progress" in page
    assert page.count('"state state-running"') == 2  # the count, and the stage
    assert 'href="dummy/onnx-fp32/deploy.html"' in page
    assert project.run("publish").code == 0
    page = (project.target / "index.html").read_text()
    assert "the run was interrupted" in page
    assert '"state state-running"' not in page
    require_to_be_run(project)


def test_a_report_that_was_written_meanwhile_says_how_much_is_in_it(project):
    text, page = project.params.read_text(), project.target / "dummy/report.html"
    text = text.replace("batch_sizes: [1, 4]", "batch_sizes: [4]")
    slowly = "openvino-fp32: {request_count: 40000, "  # until it is killed
    project.params.write_text(text.replace("openvino-fp32: {", slowly))
    command = ("run", "params/dummy.yaml", "--stage", "perf_offline", "--stage", "report")
    process = project.start(*command)
    said = "so far: 1 of 2 performance stages are in this report"
    wait_for(lambda: said in page.read_text() or process.poll() is not None)
    process.kill()
    process.communicate()
    wait_for(lambda: not server(project) and not analyzer(project))
    assert project.run("publish").code == 0
    assert said in page.read_text()
    assert said in (project.target / "index.html").read_text()

    project.params.write_text(text)
    answer = project.run(*command)
    assert answer.executed() == ["dummy openvino-fp32 perf_offline", "dummy report"], answer.output
    assert "so far" not in page.read_text()
    assert "so far" not in (project.target / "index.html").read_text()


@pytest.mark.parametrize(
    ("send", "number", "code"),
    [
        (os.killpg, signal.SIGINT, 130),
        (os.kill, signal.SIGTERM, 143),
        (os.killpg, signal.SIGHUP, 129),
    ],
    ids=["Ctrl-C", "SIGTERM", "a closed connection"],
)
def test_a_second_run_is_refused_and_a_signal_ends_the_first(project, send, number, code):
    process = measuring(project)
    line = "error: outputs is in use by another run. Wait, or use another --outputs.\n"
    assert project.run("run", "params/dummy.yaml") == Answer(1, line)
    send(process.pid, number)
    output = ended(process, code)
    assert output.splitlines()[-1].startswith("Interrupted. Run the same command again")
    assert "Traceback" not in output
    assert not server(project)
    assert project.result("onnx-fp32", "perf_offline").reason == "the run was interrupted"
    page = (project.target / "index.html").read_text()
    assert "the run was interrupted" in page
    assert "A run is in progress" not in page
    require_to_be_run(project)


def test_an_artifact_changed_on_disk_is_noticed_and_made_again(project):
    (path,) = (project.target / "artifacts").glob("dummy-export-*/model.onnx")
    status = path.stat()
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.unlink()  # the conversion shares its blocks
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    only = ("run", "params/dummy.yaml", "--experiment", "openvino-fp32", "--stage", "convert")
    answer = project.run(*only, "--force")
    assert answer.code == 1
    assert "model.onnx changed on disk: SHA-256 is" in answer.output
    everything = ("run", "params/dummy.yaml", "--stage", "export", "--stage", "convert")
    answer = project.run(*everything)
    assert answer.code == 0, answer.output
    assert "dummy onnx-fp32 export" in answer.executed()
    assert "dummy openvino-fp32 convert" in answer.executed()


FULL_AT_FIRST = """
mount -t tmpfs -o size=50m tmpfs small && fallocate -l $((50 * 1024 - 150))k small/mine && "$@"
echo the code was $?
rm small/mine && "$@"
"""


def test_a_disk_that_is_full_is_one_line_and_the_same_command_completes(project):
    if not MOUNTING:
        pytest.skip("root: a small file system cannot be mounted, not even in a namespace")
    (project.root / "small").mkdir()
    command = ("run", "params/dummy.yaml", "--experiment", "onnx-fp32", "--outputs", "small")
    only = ("--stage", "export", "--stage", "convert", "--stage", "deploy")

    answer = replace(project, prefix=(*MOUNTING, FULL_AT_FIRST, "sh")).run(*command, *only)

    full, mark, enough = answer.output.partition("the code was 1\n")
    assert mark, answer.output
    assert "no space left on device" in full.lower()
    assert "Traceback" not in full
    assert answer.code == 0, enough


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_serve_answers_until_it_is_ended_and_a_taken_port_is_one_line(project, number, code):
    serve = ("serve", "params/dummy.yaml", "--model", "dummy", "--port")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        answer = project.run(*serve, port)
        assert (answer.code, answer.output.count("\n")) == (1, 1)
        assert answer.output.startswith(f"error: Port {port} of 127.0.0.1 is taken")
    process = project.start(*serve, port)
    line = process.stdout.readline()
    assert line == f"dummy (onnx-fp32) at http://127.0.0.1:{port}; press Ctrl-C to stop\n"
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/models/dummy/ready") as answered:
        assert answered.status == 200
    os.kill(process.pid, number)
    ended(process, code)
