"""Writes a parameter file for a GPU from the file of the most similar known one."""

import re
from dataclasses import dataclass
from pathlib import Path

import yaml

from helpers.config import loading
from helpers.config.parameter_file import NAME
from helpers.errors import ParameterError
from helpers.store import display_path, write_atomic


@dataclass(frozen=True)
class Gpu:
    """A GPU as its driver describes it; of a known one `name` is that of its parameter file."""

    name: str
    architecture: int  # NVML's number, nvmlDeviceArchitecture_t of nvml.h: the newer the larger
    memory_gib: float


VOLTA, TURING, AMPERE, HOPPER = 5, 6, 7, 9
KNOWN = (  # those of one architecture with rising memory
    Gpu("NVIDIA-DGX-1-V100-32GB", VOLTA, 32),
    Gpu("NVIDIA-T4", TURING, 15),
    Gpu("NVIDIA-A30", AMPERE, 24),
    Gpu("NVIDIA-A40", AMPERE, 45),
    Gpu("NVIDIA-DGX-A100-80GB", AMPERE, 80),
    Gpu("NVIDIA-H100", HOPPER, 80),
    Gpu("NVIDIA-H200", HOPPER, 140),
)
SHARE = 0.9  # of a known GPU's memory is enough: ECC and drivers reserve different parts


def nearest(gpu: Gpu) -> Gpu:
    """Return the known GPU whose experiments are the most likely to run on `gpu`.

    It has the same architecture, else the next newer one, whose releases support older GPUs too,
    else the newest. Of these it is the largest with no more memory than `gpu`, else the smallest.
    """
    newer = [known.architecture for known in KNOWN if known.architecture >= gpu.architecture]
    architecture = min(newer, default=max(known.architecture for known in KNOWN))
    alike = [known for known in KNOWN if known.architecture == architecture]
    fitting = [known for known in alike if known.memory_gib * SHARE <= gpu.memory_gib]
    return fitting[-1] if fitting else alike[0]


def write_new(name: str, found: Gpu) -> Path:
    """Write the parameter file `name`, by default named after the GPU, for the GPU `found`.

    It is a copy of the most similar GPU's file with another `gpu`. No file is overwritten. Raises
    `ParameterError` for an invalid or existing name.
    """
    stem = name.removesuffix(".yaml") or "-".join(re.findall(r"[A-Za-z0-9._]+", found.name))
    if not NAME.fullmatch(stem):
        raise ParameterError(f"Invalid NAME '{name}'. Use letters, digits, '.', '_' and '-'.")
    path = loading.FILES / f"{stem}.yaml"
    if path.exists():
        taken = display_path(path)
        raise ParameterError(f"{taken} already exists. Choose another NAME than {stem}.")
    source = loading.FILES / f"{nearest(found).name}.yaml"
    loading.read_file(source)
    # the notebooks find a file by its GPU, so no two files may have the same
    spelled = f"{found.name} ({stem})" if loading.file_for(found.name) else found.name
    text = (
        f"# {spelled}, {found.memory_gib:.0f} GiB. Written by `triton-notebooks params new` from\n"
        f"# {display_path(source)}, the file of the most similar known GPU. Adapt it: large\n"
        "# batches may not fit into less memory, and an old release may not support a new GPU.\n"
    )
    # the source's text without its first comment, with another `gpu`
    line = yaml.safe_dump({"gpu": spelled}, width=1000).strip()
    text += re.sub(r"(?ms)\A.*?^gpu:[^\n]*", lambda _: line, source.read_text(), count=1)
    loading.parse(yaml.safe_load(text), stem, display_path(path))
    return write_atomic(path, text)
