"""`triton-notebooks new`: write the files of a model from its source, all of them or none."""

import keyword
import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from helpers import models
from helpers.errors import DataError, ParameterError
from helpers.measure import KEPT_SHARE, MATCH_RATE, MATCHED_SHARE
from helpers.models._own import MIN_FOR_CALIBRATION, Own, metrics
from helpers.models._own import data as samples_file
from helpers.pipeline.own import origin as origins
from helpers.pipeline.own import writing
from helpers.pipeline.own.draft import InspectedModel, draft, fields
from helpers.pipeline.own.inputs import sizes_of
from helpers.pipeline.own.options import options
from helpers.store import ROOT, display_path, write_atomic

RESERVED = ("lessons", "data", "published")  # folders beside those of models
MOST_CALIBRATED = 128
LONGEST_NAME = 40


@dataclass(frozen=True)
class NewOptions:
    """The options of the command line, without name and source."""

    samples: Path | None = None
    labels: Path | None = None
    metric: str = ""
    batch: str = ""
    dimensions: Sequence[str] = ()
    device: str = "cpu"


def create(name: str, source: str, choices: NewOptions, say: Callable[[str], None]) -> None:
    """Write the package, the notebooks and the parameter file of the model `name`.

    Nothing is overwritten, and no file remains after an error. Raises a `DeploymentError` of one
    line for an invalid name, source or sample, and for an option that is missing.
    """
    _check_name(name)
    _check_metric(choices)
    if choices.device not in ("cpu", "gpu"):
        raise ParameterError(f"Invalid --device {choices.device}. Use cpu or gpu.")
    if choices.samples:
        try:
            origins.require_memory(choices.samples, choices.samples.stat().st_size, "samples")
        except OSError as error:
            raise DataError(f"{choices.samples}: {error.strerror}. Use an .npz file.") from None
    origin = origins.read(source)
    precisions = {"fp32", "bf16" if choices.device == "cpu" else "fp16"}
    precisions |= {"int8"} if choices.samples else set()
    sizes = sizes_of(choices.dimensions)
    model = draft(name, origin, choices.samples, choices.batch, sizes, precisions)
    calibration_count = _calibration_count(name, model, choices)
    metric = "" if choices.metric == MATCH_RATE else choices.metric
    min_match_rate = MATCHED_SHARE if metric else KEPT_SHARE
    chosen, left_out = options(model, choices.device, calibration_count, min_match_rate)
    better = "lower" if metric in metrics.LOWER else "higher"
    scored = writing.Scored(metric, bool(metric) and metric not in metrics.NAMES, better)
    files = writing.Files(choices.samples, choices.labels)
    parameters = writing.parameter_file(
        name, model, chosen, files, min(calibration_count, MOST_CALIBRATED), choices.device
    )
    notebooks = writing.notebooks(name, model, chosen, files, metric)
    paths = {ROOT / f"notebooks/{name}/{stage}.ipynb": text for stage, text in notebooks.items()}
    package = writing.package(name, model, scored)
    paths |= {ROOT / f"helpers/models/{name}/{file}": text for file, text in package.items()}
    paths[ROOT / f"params/{name}.yaml"] = parameters
    _write(paths)
    _tell(name, model, [option.name for option in chosen], left_out, choices, say)


def _check_name(name: str) -> None:
    """Raise ParameterError for a name that is not an identifier, or that is in use."""
    if (
        len(name) > LONGEST_NAME
        or not name.isidentifier()
        or not name.isascii()
        or keyword.iskeyword(name)
        or name[0] == "_"
    ):
        how = f"Use letters, digits and _ (at most {LONGEST_NAME}), starting with a letter. "
        how += "Python keywords are not allowed."
        raise ParameterError(f"Invalid name '{name}'. {how}")
    if name in RESERVED:
        raise ParameterError(f"Invalid name '{name}'. Another folder has it.")
    paths = (f"helpers/models/{name}", f"notebooks/{name}", f"params/{name}.yaml")
    if taken := [path for path in paths if (ROOT / path).exists()]:
        raise ParameterError(f"{taken[0]} already exists. Choose another name.")


def _check_metric(choices: NewOptions) -> None:
    names = ", ".join(metrics.NAMES)
    if choices.metric and choices.metric != MATCH_RATE and not choices.labels:
        need = "--labels: an .npz file with one label per sample"
        raise ParameterError(f"--metric {choices.metric} also needs {need}.")
    if choices.labels and not choices.metric:
        raise ParameterError(f"--labels also needs --metric: {names}, or a name for your own.")
    if choices.labels and not choices.samples:
        raise ParameterError("--labels also needs --samples: labels belong to its rows.")
    if choices.metric and not choices.metric.isidentifier():
        raise ParameterError(
            f"Invalid --metric {choices.metric}. Use {names}, or a name for your own."
        )


def _calibration_count(name: str, model: InspectedModel, choices: NewOptions) -> int:
    """Count the samples that calibrate int8; raise DataError for labels that do not fit."""
    if not choices.samples:
        return 0
    own_model, config = Own(name, model.description), fields(model)
    rows = len(next(iter(samples_file.read(choices.samples, own_model.inputs(config)).values())))
    if choices.labels:
        samples_file.read_labels(choices.labels, rows)
    return rows // samples_file.SHARE if rows >= MIN_FOR_CALIBRATION else 0


def _write(files: dict[Path, str]) -> None:
    """Write every file, or none of them."""
    with ExitStack() as undo:
        for path, text in files.items():
            if not path.parent.exists():
                undo.callback(shutil.rmtree, path.parent, ignore_errors=True)
            undo.callback(path.unlink, missing_ok=True)
            write_atomic(path, text)
        models.names.cache_clear()
        undo.pop_all()


def _tell(
    name: str,
    model: InspectedModel,
    chosen: Sequence[str],
    left_out: dict[str, str],
    choices: NewOptions,
    say: Callable[[str], None],
) -> None:
    for kind, axes in (("input", model.description.inputs), ("output", model.description.outputs)):
        for tensor in axes:
            shape = " x ".join(map(str, tensor.shape)) or "one number"
            say(f"{kind} {tensor.name}: {tensor.dtype}, {shape}")
    for dimension, size in model.dimensions.items():
        say(f"dimension {dimension}: {size}")
    if not model.description.is_batched:
        say("batch: one sample per request")
    say(f"samples: {choices.samples or 'random inputs'}")
    say(f"experiments: {', '.join(chosen)}")
    for option, reason in left_out.items():
        say(f"left out: {option}: {reason}")
    path = display_path(ROOT / f"params/{name}.yaml")
    say(f"wrote: helpers/models/{name}, notebooks/{name}, {path}")
    say(f"next: triton-notebooks run {path}")
