"""Why a command ended: what its exit code means, and the last lines of its log that tell."""

import re
import signal
from pathlib import Path

ERROR = re.compile(r"[EF]\d+ ")  # Triton's severities, followed by the date
# Tables, information, warnings, stack frames, and what Triton says at every start without a GPU
# and at every ordinary end.
NOISE = re.compile(
    r"[+|]|[IW]\d+ |\d+# |E\d+ .*CudaDriverHelper has not been initialized"
    r"|Error: Failed to initialize NVML|Signal \((2|15)\) received"
)
MEANING = {
    signal.SIGBUS: " because /dev/shm is full or too small",
    signal.SIGKILL: " by another process, or because memory ran out",
}


def exit_reason(code: int) -> str:
    """Say what a command with this exit code did: "was killed by signal 9 (SIGKILL)", for one.

    Codes above 128 and below 0 stand for signals.
    """
    number = -code if code < 0 else code - 128
    if number not in set(signal.Signals):
        return f"{'failed' if code else 'ended'} (exit code {code})"
    name = signal.Signals(number)
    return f"was killed by signal {number} ({name.name}){MEANING.get(name, '')}"


def last_lines(log: Path, count: int = 6) -> str:
    """Join the lines of a log that tell why its command ended, at most `count`, for an error.

    Lines of severity "error" or "fatal" come first. A log of nothing but information and warnings
    is shown with its last two.
    """
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
    lines = [line for line in lines if line]
    telling = [line for line in lines if not NOISE.match(line)]
    errors = [line for line in telling if ERROR.match(line)][-count:]
    others = [line for line in telling if not ERROR.match(line)]
    chosen = errors + others[len(others) - (count - len(errors)) :] if telling else lines[-2:]
    return " / ".join(chosen) or "its log is empty"
