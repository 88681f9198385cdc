"""The parity checks: reference -> exported -> converted -> served, each within its tolerances.

Each step is compared with the reference, the framework in fp32, on the same 64 real samples.
Differences are in standard deviations of the reference's output, so that one tolerance means the
same for every network. The served model is also compared with the converted model in this process,
and under load with the reference on the whole evaluation set. The task's metric over that set must
keep 99% of the reference's: the rule of MLPerf Inference (github.com/mlcommons/inference_policies).
"""

from collections.abc import Iterable
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np

from helpers import models
from helpers.config import ConvertConfig, DeployConfig, EngineConfig, ExportConfig
from helpers.errors import ArtifactError
from helpers.formats import Array, Arrays, Session
from helpers.inference import (
    Prepared,
    ensemble,
    framework_session,
    open_dataset,
    physical_cores,
    recipe_folder,
    requests,
    require,
    threads,
)
from helpers.results import Difference, ParityCheck, Score
from helpers.store import Artifact, create_artifact, find_artifact, outputs

if TYPE_CHECKING:
    from helpers.triton import Server

SAMPLES = 64
KEPT_SHARE = 0.99
MATCH_RATE = "match_rate"  # share of predictions equal to the reference's
MATCHED_SHARE = 0.98  # twice as many may differ: some that were wrong become right
BATCH = 8
MOST_REQUESTS = 8  # of a batch under load: more clients would take the CPU from the server
SAMPLES_FILE = "samples.npz"  # the reference's outputs for them
EVALUATION_FILE = "evaluation.npz"  # and for the whole evaluation set

_computed: dict[Path, Arrays] = {}  # by folder of an artifact: the outputs computed last


def difference(
    output: str, actual: Array, reference: Array, bounds: tuple[float, float]
) -> Difference:
    """Compare arrays of equal shape: max and mean of |actual - reference| / std(reference). Of
    truth values and whole numbers, which jump, the mean is the share of those that differ. A wrong
    shape or a value that is not finite has no difference, and so no bound holds.
    """
    fields: dict[str, object] = {"output": output}
    if reference.dtype.kind in "biu":
        bounds = 1.0, 1 - MATCHED_SHARE
    if actual.shape == reference.shape:
        apart = distances(actual, reference)
        index = np.unravel_index(apart.argmax(), apart.shape)  # a NaN counts as the largest
        fields |= {"sample": index[0], "value": actual[index], "reference_value": reference[index]}
        if np.isfinite(apart[index]):
            fields |= {"max_difference": apart[index], "mean_difference": apart.mean()}
    return Difference.model_validate({"max_bound": bounds[0], "mean_bound": bounds[1], **fields})


def distances(actual: Array, reference: Array) -> Array:
    """Return |actual - reference| / std(reference), or whether whole numbers differ."""
    if reference.dtype.kind in "biu":
        return np.asarray(actual != reference, dtype=np.float64)
    finite = reference[np.isfinite(reference)]
    scale = finite.std(dtype=np.float64) if finite.size else 1.0
    with np.errstate(invalid="ignore"):  # two infinities
        apart = np.abs(np.subtract(actual, reference, dtype=np.float64))
    apart[actual == reference] = 0
    return np.asarray(apart / (scale or np.abs(finite).max(initial=0) or 1))  # of a constant


def check(
    name: str,
    config: ExportConfig,
    precision: str,
    actual: Arrays,
    reference: Arrays,
    bounds: tuple[float, float] | None = None,
    against: str = "converted model",
) -> ParityCheck:
    """Compare `actual` with the reference's outputs, within the model's tolerances for `precision`;
    or with those of `against`, within `bounds`.
    """
    against = against if bounds else "reference"
    limits = bounds or models.get(config.model).TOLERANCES[precision]
    differences = tuple(
        difference(output, actual.get(output, np.empty(0)), reference[output], limits)
        for output in reference
    )
    count = len(next(iter(reference.values())))
    result = ParityCheck(
        name=name, precision=precision, reference=against, samples=count, differences=differences
    )
    if precision == "fp32" or bounds or check(name, config, "fp32", actual, reference).failure:
        return result
    note = "probably computed in fp32: it is within the tolerances of fp32"
    return result.model_copy(update={"note": note})


def match_rate(right: Array, got: Array, bound: float = MATCHED_SHARE) -> Score:
    """Return the match rate: the share of predictions equal to the reference's, at least `bound`.
    For numbers it is 1 less the relative difference, in the Euclidean norm.
    """
    if right.shape != got.shape:
        share = 0.0
    elif right.dtype.kind == "f":
        known = np.isfinite(right) | (got != right)  # equal infinities do not count
        apart = np.linalg.norm(np.subtract(got[known], right[known]))
        size = np.linalg.norm(right[known])
        share = max(0.0, 1 - float(apart / (size or 1))) if np.isfinite(apart) else 0.0
    else:
        share = float(np.mean(right == got))
    return Score(metric=MATCH_RATE, framework=1.0, served=share, bound=bound, better="higher")


def scores(
    config: ExportConfig, framework: dict[str, float], served: dict[str, float]
) -> tuple[Score, ...]:
    """Compare the served metrics with the reference's: 99% of them must be kept."""
    task_scores = []
    for name, better in models.get(config.model).METRICS.items():
        right, got = framework[name], served[name]
        bound = right * KEPT_SHARE if better == "higher" else right / KEPT_SHARE
        score = Score(metric=name, framework=right, served=got, bound=bound, better=better)
        task_scores.append(score)
    return tuple(task_scores)


def _run(session: Session, batches: Iterable[Arrays]) -> Arrays:
    """Compute batch after batch, and return the outputs of all samples in order."""
    per_batch = [session.run(batch) for batch in batches]
    return {name: np.concatenate([arrays[name] for arrays in per_batch]) for name in per_batch[0]}


def compute_reference(config: ExportConfig, prepared: Prepared) -> Artifact:
    """Run the fp32 network in its framework over the whole evaluation set, once, and store it."""
    folder, dataset = recipe_folder(config, "reference"), prepared.dataset
    artifact = find_artifact(folder)
    if artifact is None or EVALUATION_FILE not in artifact.files:
        session = framework_session(config, prepared.checkpoint)
        with create_artifact(folder) as (temporary, metadata):
            size = models.at_once(config.model, models.get(config.model).BATCH)
            everything = _run(session, dataset.batches(size))
            np.savez(temporary / EVALUATION_FILE, allow_pickle=False, **everything)
            batches = dataset.batches(models.at_once(config.model, BATCH), SAMPLES)
            np.savez(temporary / SAMPLES_FILE, allow_pickle=False, **_run(session, batches))
            # without labels there is no score, and a table of something
            metadata.update(dataset.score(everything) or {"samples": len(dataset)})
    artifact = find_artifact(folder)
    assert artifact is not None
    return artifact


def served_precision(config: DeployConfig) -> str:
    """Return the precision whose tolerances hold for what is served."""
    # an accelerator computes in a precision of its own: "amp" is fp16 within an fp32 graph
    precision = "fp16" if config.accelerator == "amp" else config.precision
    return _coarsest(config, config.accelerator_precision or precision)


def _coarsest(config: ExportConfig, precision: str) -> str:
    """Return the coarser precision of a graph and of the tables before it, by their tolerances."""
    bounds = models.get(config.model).TOLERANCES
    return max(precision, config.table_precision, key=lambda name: bounds[name])


def reference_outputs(config: ExportConfig) -> Arrays:
    """Load the reference's outputs for the 64 samples; `ArtifactError` if there are none."""
    return _reference(config)[0]


def evaluation_outputs(config: ExportConfig) -> Arrays:
    """Load the reference's outputs for the whole evaluation set, in its order, as above."""
    return _reference(config, EVALUATION_FILE)[0]


def _reference(config: ExportConfig, file: str = SAMPLES_FILE) -> tuple[Arrays, dict[str, float]]:
    """Load the reference's outputs for the samples of `file`, and its metrics."""
    artifact = find_artifact(recipe_folder(config, "reference"))
    if artifact is None or file not in artifact.files:
        raise ArtifactError(f"{config.model} has no reference outputs. Run its export stage first.")
    metrics = {name: value for name, value in artifact.facts.items() if isinstance(value, float)}
    with np.load(artifact.folder / file) as arrays:
        return dict(arrays), metrics


def outputs_of(config: ExportConfig, artifact: Artifact, device: str) -> Arrays:
    """Compute the 64 samples by an export or a conversion in this process."""
    name = str(artifact.facts["format"])
    session = ensemble.load(config, name, lambda _: artifact.folder, physical_cores(), device)
    size = models.at_once(config.model, BATCH)
    return _run(session, requests(config, open_dataset(config), size, SAMPLES))


def compare(config: ExportConfig, artifact: Artifact) -> ParityCheck:
    """Run an export or a conversion on the 64 samples: here, or by Triton's native backend. A
    conversion to the exported file itself is not run again on the CPU, where that was compared.
    """
    precision = _coarsest(config, str(artifact.facts["precision"]))
    actual = _outputs(config, artifact)
    if not actual:
        empty = ParityCheck(name="converted", precision=precision, samples=0, differences=())
        return empty.model_copy(update={"note": "same file as the export, not compared again"})
    _computed[artifact.folder] = actual
    step = "exported" if config.stage == "export" else "converted"
    return check(step, config, precision, actual, _reference(config)[0])


def cached_outputs(config: ExportConfig, artifact: Artifact) -> Arrays:
    """Return the outputs that `compare` computed, or compute them now; none for the export."""
    return _computed.get(artifact.folder) or _outputs(config, artifact)


def _outputs(config: ExportConfig, artifact: Artifact) -> Arrays:
    name, is_export = str(artifact.facts["format"]), config.stage == "export"
    if isinstance(config, ConvertConfig) and ensemble.needs_native_backend(config, name):
        return _by_server(config, artifact)
    on_cpu = config.device == "cpu"
    if not is_export and on_cpu and artifact.sha256 == require(config, "export").sha256:
        return {}
    return outputs_of(config, artifact, "cpu" if is_export else config.device)


def _by_server(config: ConvertConfig, artifact: Artifact) -> Arrays:
    """Compute the 64 samples by one instance of an artifact on Triton, without a batcher."""
    from helpers.triton import serve, write_repository

    largest = models.at_once(config.model, BATCH)
    largest = config.max_batch_size if isinstance(config, EngineConfig) else largest
    plain = {"stage": "deploy", "accelerator": "none", "threads": 1, "max_batch_size": largest}
    alone = DeployConfig.model_validate(
        {name: getattr(config, name) for name in ConvertConfig.model_fields} | plain,
        context={"model": config.model},
    )
    with TemporaryDirectory(dir=outputs(), prefix=".served-") as folder:
        write_repository(Path(folder), alone, artifact)
        repository = Artifact(Path(folder), {}, artifact.facts)
        batches = requests(alone, open_dataset(config), min(BATCH, largest), SAMPLES)
        with serve(alone, repository, "offline") as server:
            return server.infer_all(config.model, batches)


def evaluate(
    config: DeployConfig, server: "Server"
) -> tuple[tuple[ParityCheck, ...], tuple[Score, ...]]:
    """Compare and score Triton's outputs, for one request at a time and under load."""
    alone = evaluate_alone(config, server)
    loaded, task_scores = evaluate_under_load(config, server)
    return (*alone, loaded), task_scores


def evaluate_alone(config: DeployConfig, server: "Server") -> tuple[ParityCheck, ...]:
    """Send the 64 samples one request at a time, and compare them with the reference; where this
    process has the serving runtime, with the converted model too. Nothing without a reference.
    """
    if models.get(config.model).BACKEND:
        return ()
    precision, size = served_precision(config), min(BATCH, config.max_batch_size)
    alone = list(requests(config, open_dataset(config), size, SAMPLES))
    expected = None
    if ensemble.runs_in_process(config):  # it computes while the server starts
        folder, cores = require(config, "convert").folder, threads(config, "online")
        session = ensemble.load(config, config.format, lambda _: folder, cores, config.device)
        expected = _run(session, alone)
    actual = server.infer_all(config.model, alone)
    checks = [check("served", config, precision, actual, _reference(config)[0])]
    if expected:
        # another host has other versions, and on a GPU every process chooses its kernels anew
        is_same = config.server.kind == "embedded" and config.device == "cpu"
        bounds = (0.0, 0.0) if is_same else models.get(config.model).TOLERANCES[precision]
        checks.append(check("served", config, precision, actual, expected, bounds))
    return tuple(checks)


def evaluate_under_load(
    config: DeployConfig, server: "Server"
) -> tuple[ParityCheck, tuple[Score, ...]]:
    """Send the whole evaluation set from many clients at once, compare it with the reference, and
    score it. Without a reference, many clients must get the outputs that one client gets.
    """
    model, dataset, precision = config.model, open_dataset(config), served_precision(config)
    # twice as many clients as fill the largest preferred batch: while one runs, the next one fills
    filled = max(config.preferred_batch_sizes, default=config.max_batch_size)
    if models.get(model).BACKEND:
        size, limits = 1, models.get(model).TOLERANCES[precision]
        right = server.infer_all(model, requests(config, dataset, size))
        metrics = dataset.score(right)
    else:
        size, limits = ceil(filled / MOST_REQUESTS), None
        right, metrics = _reference(config, EVALUATION_FILE)
    actual = server.infer_all(model, requests(config, dataset, size), 2 * ceil(filled / size))
    against = "same model, one client"
    result = check("served under load", config, precision, actual, right, limits, against)
    task_scores = scores(config, metrics, dataset.score(actual))
    # without a metric of the task, the rule of the metrics is that of the decisions
    share = MATCHED_SHARE if task_scores or limits else KEPT_SHARE
    decided = match_rate(dataset.decisions(right), dataset.decisions(actual), share)
    return result, (*task_scores, decided)
