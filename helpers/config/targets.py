"""Write a parameter file for a GPU from the file of the most similar known GPU."""

import re
from pathlib import Path
from typing import NamedTuple

import yaml

from helpers.config import loading
from helpers.config.parameter_file import NAME
from helpers.errors import ParameterError
from helpers.store import display_path, write_atomic


class Gpu(NamedTuple):
    """A GPU as its driver describes it; of a known one `name` is that of its parameter file."""

    name: str
    architecture: int  # NVML's number, nvmlDeviceArchitecture_t of nvml.h: the newer the larger
    memory_gib: float


VOLTA, TURING, AMPERE, HOPPER = 5, 6, 7, 9
KNOWN = (  # within an architecture by increasing memory
    Gpu("NVIDIA-DGX-1-V100-32GB", VOLTA, 32),
    Gpu("NVIDIA-T4", TURING, 15),
    Gpu("NVIDIA-A30", AMPERE, 24),
    Gpu("NVIDIA-A40", AMPERE, 45),
    Gpu("NVIDIA-DGX-A100-80GB", AMPERE, 80),
    Gpu("NVIDIA-H100", HOPPER, 80),
    Gpu("NVIDIA-H200", HOPPER, 140),
)
SHARE = 0.9  # of a known GPU's memory, which suffices: ECC and drivers reserve different parts


def nearest(gpu: Gpu) -> Gpu:
    """Return the known GPU whose experiments are the most likely to run on `gpu`.

    It has the same architecture, else the next newer one, whose releases support older GPUs too,
    else the newest. Of these it is the largest with no more memory than `gpu`, else the smallest.
    """
    known = {candidate.architecture for candidate in KNOWN}
    architecture = min((a for a in known if a >= gpu.architecture), default=max(known))
    alike = [candidate for candidate in KNOWN if candidate.architecture == architecture]
    fitting = [candidate for candidate in alike if candidate.memory_gib * SHARE <= gpu.memory_gib]
    return fitting[-1] if fitting else alike[0]


def write_new(name: str, gpu: Gpu) -> Path:
    """Copy the most similar GPU's parameter file to `name`, by default that of the GPU.

    Raises `ParameterError` for an invalid or existing name.
    """
    stem = name.removesuffix(".yaml") or "-".join(re.findall(r"[A-Za-z0-9._]+", gpu.name))
    if not NAME.fullmatch(stem):
        raise ParameterError(f"Invalid NAME '{name}'. Use letters, digits, '.', '_' and '-'.")
    path = loading.FILES / f"{stem}.yaml"
    if path.exists():
        found = f"{display_path(path)} already exists."
        raise ParameterError(f"{found} Choose another NAME than {stem}.")
    source = loading.FILES / f"{nearest(gpu).name}.yaml"
    loading.read_file(source)
    # the notebooks find a file by its GPU, so no two files may have the same
    spelled = f"{gpu.name} ({stem})" if loading.file_for(gpu.name) else gpu.name
    text = (
        f"# {spelled}, {gpu.memory_gib:.0f} GiB. Written by `triton-notebooks params new` from\n"
        f"# {display_path(source)}, the file of the most similar known GPU. Adapt it: large\n"
        "# batches may not fit into less memory, and an old release may not support a new GPU.\n"
    )
    # the source's text without its first comment, with another `gpu`
    line = yaml.safe_dump({"gpu": spelled}, width=1000).strip()
    text += re.sub(r"(?ms)\A.*?^gpu:[^\n]*", lambda _: line, source.read_text(), count=1)
    loading.parse(yaml.safe_load(text), stem, display_path(path))
    return write_atomic(path, text)
