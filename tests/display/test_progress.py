"""Long work says how far it has come: in lines through a pipe, in a live view in a terminal."""

import io
import os
import pty
import re
import subprocess
import sys
import termios

import pytest
from rich.console import Console

from helpers.display import progress
from helpers.display.progress import LiveView, Progress

RUN = """
import time
from helpers.display import lines_or_live
say = lines_or_live()
with say.run(120):
    with say.stage("[1/2] a [b] export", "it is new", 90):
        for number in range(9):
            say.printed(f"      line {number}")
        time.sleep(1.3)
    say("[1/2] a [b] export: done " + "in time " * 20)
    time.sleep(1.2)
"""
CONTROL = r"\x1b\[[0-9;?]*[a-zA-Z]"
DONE = "[1/2] a [b] export: done " + "in time " * 20


def in_terminal(script, **variables):
    """Run a script in a terminal of 80 columns and return all that it wrote there."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    environment = {**os.environ, "TERM": "xterm", **variables}
    environment.pop("COLUMNS", None)
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    )
    os.close(theirs)
    written = b""
    try:
        while part := os.read(ours, 65536):
            written += part
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    assert process.wait() == 0, written
    return written.decode().replace("\r\n", "\n")


def test_a_pipe_gets_every_line_and_no_control_characters():
    script = f"import time\ntime.sleep = abs\n{RUN}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)

    printed = "".join(f"      line {number}\n" for number in range(9))
    assert done.stderr == ""
    running = "[1/2] a [b] export: running (it is new, about 90 s)"
    assert done.stdout == f"{running}\n{printed}{DONE}\n"


@pytest.mark.slow
def test_a_terminal_shows_the_run_the_stage_and_its_last_lines_and_then_keeps_what_is_done():
    written = in_terminal(RUN)

    plain = re.sub(CONTROL, "", written)
    assert re.search(r"run +\S+ +1%, about 1:59 left\n", plain)
    assert re.search(r"stage +\S+ +0:01 of about 1:30 *\n", plain)
    assert "[1/2] a [b] export (it is new)\n" in plain
    assert ("line 8" in plain, "line 2" in plain) == (True, False)  # the last six lines only
    assert "75%, about 0:00 left" in plain  # at its pace: 90 seconds took one
    assert plain.count(f"{DONE}\n") == 1
    left = written.rpartition("\x1b[2K")[2]  # what is written after the view is erased
    assert re.sub(CONTROL, "", left).strip() == ""
    assert written.count("\x1b[?25l") == written.count("\x1b[?25h") == 1  # the cursor is back


@pytest.mark.parametrize("terminal", ["dumb", ""])
def test_a_terminal_that_cannot_erase_gets_lines(terminal):
    script = "from helpers.display import lines_or_live; lines_or_live()('a line')"

    assert in_terminal(script, TERM=terminal) == "a line\n"


def printing_to(output, script):
    done = subprocess.run([sys.executable, "-c", script], stdout=output, stderr=subprocess.PIPE)
    os.close(output)
    return done.returncode, done.stderr


def test_a_reader_that_goes_away_is_no_fault_of_the_stage():
    script = "from helpers.display import Lines\ntry:\n Lines()('x')\nexcept OSError:\n exit(9)"
    read, write = os.pipe()
    os.close(read)

    assert printing_to(write, script) == (1, b"")


def closed_terminal():
    window, end = os.openpty()
    os.close(window)
    return end


@pytest.mark.parametrize("view", ["Lines", "LiveView"])
@pytest.mark.parametrize(
    ("opened", "why"),
    [
        (lambda: os.open("/dev/full", os.O_WRONLY), b"No space left on device"),
        (closed_terminal, b"Input/output error"),
    ],
    ids=["full", "closed"],
)
def test_work_goes_on_where_nothing_can_be_printed(opened, why, view):
    script = f"from helpers.display.progress import {view}\nsay = {view}()\nsay('a')\nsay('b')"

    assert printing_to(opened(), script) == (0, b"cannot print any more: %s\n" % why)


def test_a_long_step_prints_a_line_only_now_and_then(monkeypatch, capsys):
    times = iter([0.0, 1.0, 6.0, 7.0, 12.5])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(times))
    step = Progress()

    for number in range(4):
        step.say(f"{number} of 4 files")

    assert capsys.readouterr().out == "1 of 4 files, 6 s\n3 of 4 files, 12 s\n"


def test_one_view_has_what_runs_on_all_machines_and_what_waits_for_what():
    view = LiveView()
    view._console = Console(file=io.StringIO(), width=120)
    waits = ("NVIDIA-T4 bert", "no worker offers NVIDIA-T4 or NVIDIA T4")
    view.queued(*waits)
    view.queued("cpu bert", "the worker is running smoke bert")
    view.queued("cpu bert", "")
    one, two = "cpu: [1/6] bert onnx-fp32 export", "smoke: [2/3] dlrm onnx-fp32 deploy"
    with view.stage(one, "--force", 40.0), view.stage(two, "new", 20.0):
        view.printed("fitting a small checkpoint", "cpu bert onnx-fp32 export")
        view.printed("of another target", "smoke bert onnx-fp32 export")
        view._console.print(view._picture())

    said = view._console.file.getvalue().splitlines()
    waiting = ": waiting: ".join(waits)
    assert said[:2] == [waiting, "cpu bert: waiting: the worker is running smoke bert"]
    assert [line.split()[0] for line in said[2:5]] == ["run", "stage", "stage"]
    assert ("of about 0:40" in said[3], "of about 0:20" in said[4]) == (True, True)
    jobs = [f"{one} (--force)", "fitting a small checkpoint", f"{two} (new)"]
    assert said[5:] == [*jobs, waiting]
