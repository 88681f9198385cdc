"""What an error says of a server's or a command's end."""

import signal

import pytest

from helpers.triton.process import FULL, exit_reason, last_lines

START = """\
W1122 07:32:30.228209 30269 pinned_memory_manager.cc:273] "Unable to allocate pinned memory"
I1122 07:32:30.228297 30269 cuda_memory_manager.cc:117] "CUDA memory pool disabled"
E1122 07:32:30.228447 30269 server.cc:241] "CudaDriverHelper has not been initialized."
I1122 07:32:30.229484 30269 model_lifecycle.cc:472] "loading: doubles:1"
+---------+---------+
| doubles | READY   |
+---------+---------+
Error: Failed to initialize NVML
W1122 07:32:30.349118 30269 metrics.cc:798] "DCGM unable to start"
"""
FATAL = "".join(f"F1 {number}\n" for number in range(9))


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "ended (exit code 0)"),
        (1, "failed (exit code 1)"),
        (255, "failed (exit code 255)"),
        (128 + signal.SIGSEGV, "was killed by signal 11 (SIGSEGV)"),
        (-signal.SIGBUS, f"was killed by signal 7 (SIGBUS). {FULL}"),
        (128 + 9, "was killed by signal 9 (SIGKILL), by another process or because memory ran out"),
    ],
)
def test_an_exit_code_is_explained(code, words):
    assert exit_reason(code) == words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("\n\n", "its log is empty"),
        ("I1 one\nW1 two\nI1 three\n", "W1 two / I1 three"),
        (
            START + "E1122 1 a.cc:1] failed\nat the end\nW1122 1 b.cc:1] careful\n",
            "E1122 1 a.cc:1] failed / at the end",
        ),
        (
            START + "terminate called after throwing\n  what():  std::bad_alloc\n"
            "Signal (6) received.\n 0# 0x000056 in tritonserver\n14# 0x007f in libc.so.6\n",
            "terminate called after throwing / what():  std::bad_alloc / Signal (6) received.",
        ),
        ("E1 early\n1\n2\n3\n4\n5\n6\n7\n8\n", "E1 early / 4 / 5 / 6 / 7 / 8"),
        (FATAL + "after\n", "F1 3 / F1 4 / F1 5 / F1 6 / F1 7 / F1 8"),
    ],
)
def test_errors_come_first_and_noise_is_left_out(text, words, tmp_path):
    (tmp_path / "log").write_text(text)
    assert last_lines(tmp_path / "log") == words
