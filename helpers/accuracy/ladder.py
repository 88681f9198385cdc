"""The accuracy ladder: framework -> exported -> converted -> served, and what each rung must hold.

Each rung is compared with the fp32 framework on the same 64 real samples. Differences are given in
units of the reference output's own standard deviation, so that one bound means the same for every
network. The task's metric, over the whole evaluation set through Triton, must keep 99 % of the
framework's: the rule of MLPerf Inference (github.com/mlcommons/inference_policies).
"""

from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np

from helpers import models
from helpers.config import ConvertConfig, DeployConfig, EngineConfig, ExportConfig
from helpers.errors import ArtefactError
from helpers.formats import Array, Arrays, Session
from helpers.inference import (
    Prepared,
    ensemble,
    framework_session,
    open_dataset,
    physical_cores,
    recipe_folder,
    requests,
)
from helpers.results import Difference, Rung, Score
from helpers.store import Artefact, find_artefact, making, outputs

if TYPE_CHECKING:
    from helpers.triton import Server

SAMPLES = 64
KEPT_SHARE = 0.99
BATCH = 8
SAMPLES_FILE = "samples.npz"  # what the framework computed of them


def difference(
    output: str, found: Array, reference: Array, bounds: tuple[float, float]
) -> Difference:
    """Compare arrays of equal shape: max and mean of |found - reference| / std(reference).

    A wrong shape or a value that is not finite has no difference, and so no bound holds.
    """
    largest = mean = None
    if found.shape == reference.shape and np.isfinite(found).all():
        apart = np.abs(found.astype(np.float64) - reference.astype(np.float64))
        apart /= reference.std(dtype=np.float64)
        largest, mean = float(apart.max()), float(apart.mean())
    return Difference(
        output=output,
        max_difference=largest,
        mean_difference=mean,
        max_bound=bounds[0],
        mean_bound=bounds[1],
    )


def rung(name: str, config: ExportConfig, precision: str, found: Arrays, reference: Arrays) -> Rung:
    """Hold `found` against the framework's outputs, with the model's bounds for `precision`."""
    bounds = models.get(config.model).BOUNDS[precision]
    differences = tuple(
        difference(output, found.get(output, np.empty(0)), reference[output], bounds)
        for output in reference
    )
    samples = len(next(iter(reference.values())))
    return Rung(name=name, precision=precision, samples=samples, differences=differences)


def scores(
    config: ExportConfig, framework: dict[str, float], served: dict[str, float]
) -> tuple[Score, ...]:
    """Hold the served metrics against the framework's: 99 % of them must be kept."""
    found = []
    for name, better in models.get(config.model).METRICS.items():
        right, got = framework[name], served[name]
        bound = right * KEPT_SHARE if better == "higher" else right / KEPT_SHARE
        score = Score(metric=name, framework=right, served=got, bound=bound, better=better)
        found.append(score)
    return tuple(found)


def _run(session: Session, batches: Iterable[Arrays]) -> Arrays:
    """Compute batch after batch; give the outputs of all samples, in order."""
    found = [session.run(batch) for batch in batches]
    return {name: np.concatenate([each[name] for each in found]) for name in found[0]}


def framework_reference(config: ExportConfig, prepared: Prepared) -> Artefact:
    """Run the fp32 network in its framework over the whole evaluation set, once, and keep it."""
    folder, dataset = recipe_folder(config, "reference"), prepared.dataset
    if find_artefact(folder) is None:
        session = framework_session(config, prepared.checkpoint)
        with making(folder) as (temporary, facts):
            everything = _run(session, dataset.batches(models.get(config.model).BATCH))
            np.savez(temporary / SAMPLES_FILE, **_run(session, dataset.batches(BATCH, SAMPLES)))
            facts.update(dataset.score(everything))
    found = find_artefact(folder)
    assert found is not None
    return found


def served_precision(config: DeployConfig) -> str:
    """Name the precision whose bounds hold for what is served."""
    # an accelerator computes in a precision of its own: "amp" is fp16 within an fp32 graph
    precision = "fp16" if config.accelerator == "amp" else config.precision
    return config.accelerator_precision or precision


def reference_outputs(config: ExportConfig) -> Arrays:
    """Load what the framework computed of the ladder's samples; `ArtefactError` if it has not."""
    return _reference(config)[0]


def _reference(config: ExportConfig) -> tuple[Arrays, dict[str, float]]:
    """Load what the framework computed: the outputs on the ladder's samples, and the metrics."""
    artefact = find_artefact(recipe_folder(config, "reference"))
    if artefact is None:
        raise ArtefactError(f"{config.model} has no framework reference yet: run its export stage")
    metrics = {name: value for name, value in artefact.facts.items() if isinstance(value, float)}
    with np.load(artefact.folder / SAMPLES_FILE) as arrays:
        return dict(arrays), metrics


def compare(config: ExportConfig, artefact: Artefact) -> Rung:
    """Run an export or a conversion on the ladder's samples: here, or by a server's own backend."""
    name, precision = (str(artefact.facts[fact]) for fact in ("format", "precision"))
    is_export = config.stage == "export"
    if isinstance(config, ConvertConfig) and ensemble.requires_native_backend(config, name):
        found = _by_server(config, artefact)
    else:
        device, cores = "cpu" if is_export else config.device, physical_cores()
        session = ensemble.load(config, name, lambda _: artefact.folder, cores, device)
        found = _run(session, requests(config, open_dataset(config), BATCH, SAMPLES))
    step = "exported" if is_export else "converted"
    return rung(step, config, precision, found, _reference(config)[0])


def _by_server(config: ConvertConfig, artefact: Artefact) -> Arrays:
    """Serve an artefact just as it is, one instance without a batcher, for the ladder's samples."""
    from helpers.triton import serve, write_repository

    largest = config.max_batch_size if isinstance(config, EngineConfig) else BATCH
    plain = {"stage": "deploy", "accelerator": "none", "threads": 1, "max_batch_size": largest}
    alone = DeployConfig.model_validate(
        {name: getattr(config, name) for name in ConvertConfig.model_fields} | plain
    )
    with TemporaryDirectory(dir=outputs(), prefix=".served-") as folder:
        write_repository(Path(folder), alone, artefact)
        repository = Artefact(Path(folder), {}, artefact.facts)
        batches = requests(alone, open_dataset(config), min(BATCH, largest), SAMPLES)
        with serve(alone, repository, "offline") as server:
            return server.infer_all(config.model, batches)


def compare_served(config: DeployConfig, server: "Server") -> Rung:
    """Send the ladder's samples through Triton."""
    size = min(BATCH, config.max_batch_size)
    found = server.infer_all(config.model, requests(config, open_dataset(config), size, SAMPLES))
    return rung("served", config, served_precision(config), found, _reference(config)[0])


def evaluate(config: DeployConfig, server: "Server") -> tuple[Score, ...]:
    """Send the whole evaluation set through Triton and score it with the task's metrics."""
    dataset = open_dataset(config)
    found = server.infer_all(config.model, requests(config, dataset, config.max_batch_size))
    return scores(config, _reference(config)[1], dataset.score(found))
