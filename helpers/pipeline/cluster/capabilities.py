"""Describe what a machine offers a cluster: its hardware, and the targets that it can run."""

from collections.abc import Iterable
from contextlib import suppress

from helpers import machine
from helpers.config import FILES, Parameters, read_file
from helpers.errors import DeploymentError, ParameterError
from helpers.machine import provenance

WORKER_RESOURCE = "triton-notebooks"  # Dask resource of every worker: one group at a time
TARGET = "target:"  # prefix of a target as a Dask resource


def targets() -> list[str]:
    """Return the targets that this machine can run: those for its GPU, else those for a CPU."""
    name, matching = "", dict[str, None]()
    with suppress(DeploymentError):
        name = machine.this_gpu().name
    for path in sorted(FILES.glob("*.yaml")):
        with suppress(ParameterError):
            parameters = read_file(path)
            gpu, device = parameters.file.gpu, parameters.file.device
            if machine.matches_target(name, gpu) if name else device == "cpu":
                matching |= dict.fromkeys(names(parameters))
    return [*matching]


def names(parameters: Parameters) -> list[str]:
    """Return the names of which a worker must offer one to run a parameter file: target and GPU."""
    return [parameters.target, *([parameters.file.gpu] if parameters.file.device == "gpu" else [])]


def description() -> str:
    """Return a description of this machine's hardware, without its host name."""
    about = provenance.machine("", "gpu")
    processor, cores = about["host_processor_model_name"], about["host_processor_vcpu_count"]
    gpu = f"{about['accelerator_model_name']}, " if about["accelerators_per_node"] else ""
    return f"{gpu}{processor}, {cores} cores, {about['host_memory_capacity']}"


def resources(targets: Iterable[str]) -> dict[str, float]:
    """Return the Dask resources of a worker that offers targets."""
    return {WORKER_RESOURCE: 1.0, **{TARGET + name: 1.0 for name in targets}}


def offered(resources: Iterable[str]) -> tuple[str, ...]:
    """Return the targets among a worker's Dask resources."""
    return tuple(name.removeprefix(TARGET) for name in resources if name.startswith(TARGET))
