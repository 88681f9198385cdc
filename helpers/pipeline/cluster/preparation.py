"""Prepare large public raw files on the workers of a cluster, which see them on a shared disk.

Unlike stages, Dask may run these calls on any worker, and again if a worker is lost. Each writes
its files atomically, with the same bytes on any machine.
"""

import shutil
import time
from asyncio import CancelledError
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from helpers import models
from helpers.config import ExportConfig, configure, read_file, select
from helpers.display import Lines
from helpers.errors import ClusterError, ParameterError
from helpers.inference import dataset_place
from helpers.models import Answer
from helpers.pipeline.cluster.access import Access
from helpers.pipeline.cluster.workers import Workers, ask_all, joined
from helpers.store import create_artifact, display_path, from_root, locked

AGAIN = 3  # retries of a call whose worker was lost


@dataclass
class ParallelMap:
    """Makes calls on the workers that see the required paths."""

    workers: Workers
    addresses: list[str]
    say: Lines

    def __call__(
        self, do: Callable[..., Answer], calls: Sequence[Sequence[Any]]
    ) -> Sequence[Answer]:
        """Make the calls, and return their answers in order; raise the error of one that failed."""
        from helpers.pipeline.cluster.tasks import call

        began, client = time.monotonic(), self.workers.client
        options = {"workers": self.addresses, "allow_other_workers": False, "pure": False}
        futures = client.map(partial(call, do), [*map(list, calls)], retries=AGAIN, **options)
        try:
            answers: list[Answer] = client.gather(futures)
        except CancelledError:
            self.workers.refresh()  # it raises if the scheduler is lost
            raise
        finally:
            client.cancel(futures)
        self.say(f"{do.__name__}: {len(calls)} parts in {time.monotonic() - began:.1f} s")
        return answers


def prepare(
    path: Path, outputs: Path, model: str, *, access: Access, experiment: str = "", say: Lines
) -> None:
    """Prepare the raw files of an experiment's `dataset` in the outputs folder for all targets.

    The experiment is by default the model's first. Raises `ParameterError` for a data set without
    such a preparation, and `ClusterError` if no worker sees the outputs folder under the same path.
    """
    parameters = read_file(path)
    select(parameters, [model], [experiment] if experiment else [])
    config = configure(parameters, model, experiment, "export")
    assert isinstance(config, ExportConfig)
    parts, source = models.get(model).raw_parts, from_root(config.dataset)
    raw, dataset = models.raw(model), dataset_place(config)
    if parts is None or raw is None or dataset.made is None or not raw.is_raw(source):
        known = ", ".join(name for name in models.names() if models.get(name).raw_parts)
        raise ParameterError(
            f"The dataset '{config.dataset}' of {model} has no raw files to prepare on a cluster. "
            f"Set the dataset to a folder of raw files; the models are {known}."
        )
    if not dataset.is_missing:
        say(f"{display_path(dataset.made)} is already prepared")
        return
    scratch = dataset.made.with_name(f"{dataset.made.name}.parts")
    made = scratch / "result"
    with joined(access, outputs) as workers, locked(outputs):
        workers.refuse_others([worker.targets for worker in workers])
        spread = ParallelMap(workers, _seeing(workers, [workers.probe, source]), say)
        made.mkdir(parents=True, exist_ok=True)
        parts.prepare_parts(config, source, made, scratch, spread)
        for left in made.rglob(".*"):  # of killed workers
            left.unlink()
        with create_artifact(dataset.made) as (folder, _):
            for part in made.iterdir():
                part.rename(folder / part.name)
        shutil.rmtree(scratch)
    say(f"{display_path(dataset.made)} is prepared")


def _seeing(workers: Workers, paths: Sequence[Path]) -> list[str]:
    """Return the workers that see all of the paths."""
    names = [str(path) for path in paths]
    visible = ask_all(workers.client, workers.addresses, _exist, names)
    if addresses := [address for address in visible if visible[address]]:
        return addresses
    text = " and ".join(names)
    raise ClusterError(f"No worker can read {text}. Put both on a disk that all machines share.")


def _exist(paths: Sequence[str]) -> bool:
    return all(Path(path).exists() for path in paths)
