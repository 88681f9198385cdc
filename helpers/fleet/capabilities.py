"""What a machine offers a cluster: the targets that it can run, and what it is."""

from collections.abc import Sequence

from helpers import machine
from helpers.config import FILES, Parameters, read_file
from helpers.errors import DeploymentError, ParameterError
from helpers.machine import provenance


def targets() -> list[str]:
    """Return the targets that this machine can run: of the parameter files here those for its GPU,
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
    """Return what a worker must offer to run a parameter file: its target, or its GPU."""
    return [given.target, *([given.file.gpu] if given.file.device == "gpu" else [])]


def description() -> str:
    """Return what this machine is in words, not what it is called."""
    found = provenance.machine("", "gpu")
    processor, cores = found["host_processor_model_name"], found["host_processor_vcpu_count"]
    gpu = f"{found['accelerator_model_name']}, " if found["accelerators_per_node"] else ""
    return f"{gpu}{processor}, {cores} cores, {found['host_memory_capacity']}"


def resources(offered: Sequence[str]) -> dict[str, float]:
    """Return what is offered as Dask resources: one group at a time of each."""
    return {resource(name): 1.0 for name in offered}


def resource(name: str) -> str:
    """Return a target as a Dask resource."""
    return f"target:{name}"
