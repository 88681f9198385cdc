"""Where a result comes from: the machine, installed versions, the source's commit, the command."""

import os
import platform
import subprocess
from functools import cache
from math import ceil
from pathlib import Path

from pydantic import JsonValue

from helpers import formats, models
from helpers.config import ConvertConfig, DeployConfig, ExportConfig, LessonConfig, StageConfig
from helpers.formats import PRODUCTS, cpuinfo, instructions
from helpers.store import ROOT, physical_cores, usable_cores, usable_memory

COMMAND_VARIABLE = "TRITON_NOTEBOOKS_COMMAND"  # set by the batch command for its kernels
CPUINFO = Path("/proc/cpuinfo")
REPORTING = ("matplotlib", "seaborn", "pandas", "nbconvert")
NO_ACCELERATOR: dict[str, JsonValue] = {"accelerators_per_node": 0, "accelerator_model_name": ""}

# Cached: a run needs them for each of its stages, and reading a package's metadata takes long
_distribution, _installed = cache(formats.distribution), cache(formats.installed_version)


def versions(config: StageConfig) -> dict[str, str]:
    """Return the versions that affect what this stage computes, Python's first."""
    names: tuple[str, ...] = REPORTING
    serving: dict[str, str] = {}
    if isinstance(config, ExportConfig):
        model = models.get(config.model)
        used = [config.export_format]
        used += [config.format] if isinstance(config, ConvertConfig) else []
        if isinstance(config, LessonConfig) and config.stage == "precision":  # it converts too
            used.append(formats.most_precisions(config.export_format, config.device))
        modules = ["numpy", *([] if model.BACKEND else [model.FRAMEWORK])]
        modules += [module for name in used for module in formats.get(name).RUNTIME]
        if ensemble := models.ensemble(config.model, config.lookup):
            modules += ensemble.RUNTIME
        names = tuple(map(_distribution, modules))
        if isinstance(config, DeployConfig):
            names += ("tritonclient",)
            from helpers.triton import binaries  # stages that serve nothing do not depend on it

            serving = binaries.versions()
    installed = {name: _installed(name) or "not installed" for name in names} | serving
    for one in getattr(config, "candidates", ()):
        installed |= versions(one)
    return {"python": platform.python_version(), **installed}


def git_commit() -> str:
    """Return the source's commit, with "-dirty" if files differ from it; "unknown" without git."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return answer.stdout.strip() or "unknown"


def machine(gpu: str, device: str = "cpu") -> dict[str, JsonValue]:
    """Describe this machine, without a host or user name, in the fields of MLPerf's "System
    description". Source: github.com/mlcommons/policies, submission_rules.adoc.
    """
    sockets = _sockets()
    return {
        "system_name": gpu,
        "number_of_nodes": 1,
        "host_processor_model_name": cpuinfo("model name") or "unknown",
        "host_processors_per_node": sockets,
        "host_processor_core_count": ceil(physical_cores() / sockets),
        "host_processor_vcpu_count": usable_cores(),
        "host_processor_instruction_sets": [
            name for precision in PRODUCTS for name in instructions(precision)
        ],
        "host_memory_capacity": f"{usable_memory() / 2**30:.0f} GiB",
        **(_accelerator() if device == "gpu" else NO_ACCELERATOR),
        "operating_system": _system(),
    }


def _sockets() -> int:
    """Count the processors, each of which has a number of its own; 1 if they have none."""
    lines = CPUINFO.read_text().splitlines()
    return len({line for line in lines if line.startswith("physical id")}) or 1


def _accelerator() -> dict[str, JsonValue]:
    """Describe the one GPU that is used, in the same fields."""
    from helpers.machine import gpu

    with gpu.opened() as opened:
        record = opened.record()
    if "reason" in record:
        return {**NO_ACCELERATOR, "accelerator_notes": record["reason"]}
    return {
        "accelerators_per_node": 1,
        "accelerator_model_name": record["name"],
        "accelerator_memory_capacity": f"{record['memory_total_mb']} MB",
        "accelerator_notes": f"compute capability {record['compute_capability']}",
        "other_software_stack": f"driver {record['driver']}, CUDA {record['cuda']}",
    }


def _system() -> str:
    try:
        name = platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        name = platform.system()
    return f"{name}, Linux {platform.release()}, {' '.join(platform.libc_ver())}"


def source() -> dict[str, str]:
    """Return the commit and the command that make a result."""
    return {
        "git_commit": git_commit(),
        "command": os.environ.get(COMMAND_VARIABLE, "run in JupyterLab"),
    }
