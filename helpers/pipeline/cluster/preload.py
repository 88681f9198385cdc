"""Makes a plain `dask worker --preload helpers.pipeline.cluster.preload` one of a cluster, as
other tools start workers: dask-jobqueue under Slurm, an operator on Kubernetes.

Such a worker needs --nthreads 1, --no-nanny and --memory-limit 0; TRITON_NOTEBOOKS_OUTPUTS names
its outputs folder.
"""

from distributed import Worker

from helpers.pipeline.cluster import capabilities
from helpers.pipeline.cluster.access import configure

configure()


async def dask_setup(worker: Worker) -> None:
    """Offer what this machine can run."""
    await worker.set_resources(**capabilities.resources(capabilities.targets()))
