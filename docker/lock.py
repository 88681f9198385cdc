"""Resolve pyproject.toml to the lock files beside this script: python docker/lock.py

It needs `uv` and PyPI. One resolution serves every Python that the project supports: a line that
only some of them need has a marker. Only wheels are taken, so that nobody needs a compiler. Locked
versions stay as long as they fit; remove a line to have it resolved again.
"""

import re
import subprocess
from pathlib import Path

FOLDER = Path(__file__).parent
LOCK = FOLDER / "requirements.lock"
EXTRAS = ("cpu", "hps", "kafka", "tune", "loadgen", "fleet", "test")
CUDA = re.compile(r"(triton|cuda-[a-z]+|nvidia-(?!ml-py)[a-z0-9-]+)==")  # what PyPI's torch brings
SAME = re.compile(  # true for all whom the locks serve: Linux on x86-64, CPython
    r"platform_machine == 'x86_64'|sys_platform == 'linux'|python_full_version < '3\.14'"
    r"|platform_python_implementation != 'PyPy'|implementation_name != 'PyPy'"
)
HEADS = {
    "requirements.lock": "# All but PyTorch and Triton's binaries, for Python 3.11 to 3.13.",
    "torch.lock": "# PyTorch's CPU build. Nothing else is looked for on this index.\n"
    "--index-url https://download.pytorch.org/whl/cpu",
    "gpu.lock": "# Instead of torch.lock and of onnxruntime, on a machine with an NVIDIA GPU.\n"
    "--extra-index-url https://pypi.nvidia.com",
}
TENSORRT = [  # not resolved: its libraries are on NVIDIA's index alone
    f"tensorrt-cu13{part}==10.16.1.11" for part in ("", "-bindings", "-libs")
]


def resolve() -> list[str]:
    """Resolve the project for all its Pythons: lines `name==version` with a marker if need be."""
    command = ["uv", "pip", "compile", "--universal", "--python-version=3.11", "--no-build"]
    command += ["--no-header", "--no-annotate", *(f"--extra={extra}" for extra in EXTRAS)]
    command += [f"--output-file={LOCK}", "pyproject.toml"]
    subprocess.run(command, check=True, cwd=FOLDER.parent, stdout=subprocess.DEVNULL)
    lines = []
    for line in LOCK.read_text(encoding="utf-8").splitlines():
        pin, *marker = line.split(" ; ")
        parts = [part for part in "".join(marker).split(" and ") if not SAME.fullmatch(part)]
        lines.append(" ; ".join(filter(None, (pin, " and ".join(parts)))))
    return lines


def write(name: str, lines: list[str]) -> None:
    (FOLDER / name).write_text("\n".join([HEADS[name], *lines]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    pins = resolve()
    torch = [pin for pin in pins if pin.startswith("torch==")]
    cuda = [pin for pin in pins if CUDA.match(pin)]
    runtime = [pin.replace("==", "-gpu==") for pin in pins if pin.startswith("onnxruntime==")]
    write("requirements.lock", [pin for pin in pins if pin not in (*torch, *cuda)])
    write("torch.lock", torch)
    write("gpu.lock", sorted([*torch, *cuda, *runtime, *TENSORRT]))
