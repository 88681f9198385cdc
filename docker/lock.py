"""Resolve pyproject.toml to the lock files in this folder: python docker/lock.py

It needs `uv` and PyPI. One resolution serves every Python that the project supports: a package that
only some of them need has a marker. Only wheels are used, so that nobody needs a compiler. Locked
versions stay as long as they fit; to resolve a package again, remove its line.
"""

import re
import subprocess
from pathlib import Path

FOLDER = Path(__file__).parent
LOCK = FOLDER / "requirements.lock"
EXTRAS = ("cpu", "hps", "kafka", "tune", "loadgen", "cluster", "test")
CUDA = re.compile(r"(triton|cuda-[a-z]+|nvidia-(?!ml-py)[a-z0-9-]+)==")  # needed by PyPI's torch
SAME = re.compile(  # true for all users: Linux on x86-64, CPython
    r"platform_machine == 'x86_64'|sys_platform == 'linux'|python_full_version < '3\.14'"
    r"|platform_python_implementation != 'PyPy'|implementation_name != 'PyPy'"
)
HEADS = {
    "requirements.lock": "# All but PyTorch and Triton's binaries, for Python 3.11 to 3.13.",
    "torch.lock": "# PyTorch's CPU build, the only package from this index.\n"
    "--index-url https://download.pytorch.org/whl/cpu",
    "gpu.lock": "# For a machine with an NVIDIA GPU, instead of torch.lock and onnxruntime.\n"
    "--extra-index-url https://pypi.nvidia.com",
}
TENSORRT = [  # not resolved: only NVIDIA's index has its libraries
    f"tensorrt-cu13{part}==10.16.1.11" for part in ("", "-bindings", "-libs")
]


def resolve() -> list[str]:
    """Return lines `name==version` for all supported Pythons, with a marker if necessary."""
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
