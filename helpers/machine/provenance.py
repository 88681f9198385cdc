"""Where a result comes from: the machine in MLPerf's words, versions, the state of the source, the
command.
"""

import os
import platform
import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from helpers import formats, models
from helpers.config import ConvertConfig, DeployConfig, ExportConfig, StageConfig
from helpers.store import ROOT, file_digest

COMMAND_VARIABLE = "TRITON_NOTEBOOKS_COMMAND"  # set by the batch command for its kernels
SERVING = ("nvidia-pytriton", "tritonclient")
REPORTING = ("matplotlib", "seaborn", "pandas", "nbconvert")
NO_ACCELERATOR = {"accelerators_per_node": 0, "accelerator_model_name": ""}


def runtimes(config: StageConfig) -> tuple[str, ...]:
    """Name the distributions whose versions decide what this stage computes."""
    if not isinstance(config, ExportConfig):
        return REPORTING
    modules = ["numpy", models.get(config.model).FRAMEWORK]
    modules += formats.get(config.export_format).RUNTIME
    if isinstance(config, ConvertConfig):
        modules += formats.get(config.format).RUNTIME
    if ensemble := models.ensemble(config.model):
        modules += ensemble.RUNTIME
    chosen = [formats.distribution(module) for module in modules]
    if isinstance(config, DeployConfig):
        chosen += SERVING
    return tuple(dict.fromkeys(chosen))


def versions(names: Iterable[str]) -> dict[str, str]:
    """Look up installed versions, Python's first."""
    found = {"python": platform.python_version()}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def loaded_modules() -> dict[str, str]:
    """Hash the source of every module of this package that is loaded now."""
    found = {}
    for name, module in sorted(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if name.partition(".")[0] == "helpers" and path:
            found[str(Path(path).relative_to(ROOT))] = file_digest(Path(path))
    return found


def git_commit() -> str:
    """Give the commit of the source, marked when files differ from it; 'unknown' without git."""
    try:
        answer = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return answer.stdout.strip() or "unknown"


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        "unknown",
    )


def _processor_flags() -> list[str]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), [])
    return [
        flag
        for flag in ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")
        if flag in flags
    ]


def machine(gpu: str, device: str = "cpu") -> dict[str, Any]:
    """Describe this machine in the fields of MLPerf's system description; no host or user name is
    in it.

    Source of the field names: github.com/mlcommons/policies, submission_rules.adoc, "System
    description".
    """
    import psutil

    return {
        "system_name": gpu,
        "number_of_nodes": 1,
        "host_processor_model_name": _processor(),
        "host_processors_per_node": 1,
        "host_processor_core_count": psutil.cpu_count(logical=False)
        or len(os.sched_getaffinity(0)),
        "host_processor_vcpu_count": len(os.sched_getaffinity(0)),
        "host_processor_instruction_sets": _processor_flags(),
        "host_memory_capacity": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        **(_accelerator() if device == "gpu" else NO_ACCELERATOR),
        "operating_system": _system(),
    }


def _accelerator() -> dict[str, Any]:
    """Describe the GPU that is used, which is one, in the same words."""
    from helpers.machine import gpu

    with gpu.opened() as opened:
        found = opened.record()
    if "reason" in found:
        return {**NO_ACCELERATOR, "accelerator_notes": found["reason"]}
    return {
        "accelerators_per_node": 1,
        "accelerator_model_name": found["name"],
        "accelerator_memory_capacity": f"{found['memory_total_mb']} MB",
        "accelerator_notes": f"compute capability {found['compute_capability']}",
        "other_software_stack": f"driver {found['driver']}, CUDA {found['cuda']}",
    }


def _system() -> str:
    try:
        name = platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        name = platform.system()
    return f"{name}, Linux {platform.release()}, {' '.join(platform.libc_ver())}"


def source() -> dict[str, str]:
    """Say which source and which command made a result."""
    return {
        "git_commit": git_commit(),
        "command": os.environ.get(COMMAND_VARIABLE, "a notebook run by hand"),
    }
