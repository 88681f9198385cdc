"""Makes a plain `dask worker --preload helpers.fleet.preload` one of a fleet, as other tools start
workers: dask-jobqueue under Slurm, an operator on Kubernetes.

Such a worker needs --nthreads 1, --no-nanny and --memory-limit 0; TRITON_NOTEBOOKS_OUTPUTS names
its outputs folder.
"""

from distributed import Worker

from helpers.fleet import capabilities
from helpers.fleet.access import configure
from helpers.fleet.tasks import Station, install, station_of
from helpers.store import outputs

configure()


async def dask_setup(worker: Worker) -> None:
    """Offer what this machine can run."""
    offered = capabilities.targets()
    install(worker, Station(outputs(), offered))
    await worker.set_resources(**capabilities.resources(offered))


async def dask_teardown(worker: Worker) -> None:
    """End what runs."""
    station_of(worker).close()
