"""What a machine offers a fleet: the targets that it can run, and what it is."""

from collections.abc import Sequence

from helpers import machine
from helpers.config import FILES, Parameters, read_file
from helpers.errors import DeploymentError, ParameterError
from helpers.machine import provenance


def targets() -> list[str]:
    """Name the targets that this machine can run: of the parameter files here those for its GPU,
    else those for a CPU.
    """
    try:
        name = machine.this_gpu().name
    except DeploymentError:
        name = ""
    found = []
    for path in sorted(FILES.glob("*.yaml")):
        try:
            given = read_file(path)
        except ParameterError:
            continue
        fits = machine.matches_target(name, given.file.gpu) if name else given.file.device == "cpu"
        if fits:
            found += names(given)
    return list(dict.fromkeys(found))


def names(given: Parameters) -> list[str]:
    """Name what a worker must offer to run a parameter file: its target, or its GPU."""
    return [given.target, *([given.file.gpu] if given.file.device == "gpu" else [])]


def description() -> str:
    """Say in words what this machine is, not what it is called."""
    found = provenance.machine("", "gpu")
    processor, cores = found["host_processor_model_name"], found["host_processor_vcpu_count"]
    gpu = f"{found['accelerator_model_name']}, " if found["accelerators_per_node"] else ""
    return f"{gpu}{processor}, {cores} cores, {found['host_memory_capacity']}"


def resources(offered: Sequence[str]) -> dict[str, float]:
    """Spell what is offered as Dask resources: one stage at a time of each."""
    return {resource(name): 1.0 for name in offered}


def resource(name: str) -> str:
    """Spell a target as a Dask resource."""
    return f"target:{name}"
