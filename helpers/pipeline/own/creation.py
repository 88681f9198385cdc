"""`triton-notebooks new`: write the files of a model from its source, all of them or none."""

import keyword
import shutil
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from helpers import models
from helpers.errors import DataError, DeploymentError, ParameterError
from helpers.measure import KEPT_SHARE, MATCH_RATE, MATCHED_SHARE
from helpers.models._own import MIN_FOR_CALIBRATION, metrics
from helpers.models._own import data as samples_file
from helpers.models._own.huggingface import contents
from helpers.pipeline.own import origin as origins
from helpers.pipeline.own import writing
from helpers.pipeline.own.draft import draft
from helpers.pipeline.own.inputs import NewOptions, sizes_of
from helpers.pipeline.own.options import options
from helpers.pipeline.own.preprocessing import encoder_of, first_step, kept
from helpers.pipeline.own.writing import NewModel
from helpers.store import ROOT, display_path, write_atomic

RESERVED = ("lessons", "data", "published")  # folders beside those of models
MOST_CALIBRATED = 128
LONGEST_NAME = 40


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
    precisions = {"fp32", "bf16" if choices.device == "cpu" else "fp16"}
    precisions |= {"int8"} if choices.samples else set()
    metric = "" if choices.metric == MATCH_RATE else choices.metric
    min_match_rate = MATCHED_SHARE if metric else KEPT_SHARE
    package = ROOT / f"helpers/models/{name}"
    files: dict[Path, str | bytes] = {}
    with TemporaryDirectory() as temporary:  # for files that become a part of the package
        folder, prepared = Path(temporary) / "package", Path(temporary) / "prepared.npz"
        folder.mkdir()
        origin = origins.read(source, folder)
        sizes = sizes_of(choices.dimensions)
        if choices.before and choices.samples:
            step = first_step(origin, choices.before, choices.samples, folder)
            choices = replace(choices, samples=step.samples)
            np.savez(prepared, allow_pickle=False, **step.prepared)
            try:
                model = draft(name, origin, prepared, choices.batch, sizes, precisions)
            except DeploymentError as error:  # the user knows no such file
                fault = str(error).replace(str(prepared), f"--before {choices.before}")
                raise type(error)(fault) from None
            model = step.described(model)
        else:
            choices = replace(choices, samples=_encoded(origin, choices.samples, folder))
            model = draft(name, origin, choices.samples, choices.batch, sizes, precisions)
        if choices.labels:
            samples_file.read_labels(choices.labels, model.rows)
        are_enough = model.rows >= MIN_FOR_CALIBRATION
        calibrating = model.rows // samples_file.SHARE if are_enough else 0
        chosen, left_out = options(model, choices.device, calibrating, min_match_rate)
        for path in (each for each in folder.rglob("*") if each.is_file()):
            kept = package / path.relative_to(folder)
            files[kept] = path.read_bytes()
            if choices.samples == path:
                choices = replace(choices, samples=kept)
            if origin.path == path:
                model = replace(model, origin=origin._replace(path=kept))
    new = NewModel(
        name, model, chosen, left_out, choices, metric, min(calibrating, MOST_CALIBRATED)
    )
    for file, text in writing.package(new).items():
        files[package / file] = text
    for stage, text in writing.notebooks(new).items():
        files[ROOT / f"notebooks/{name}/{stage}.ipynb"] = text
    files[ROOT / f"params/{name}.yaml"] = writing.parameter_file(new)
    _write(files)
    _tell(new, say)


def _encoded(origin: origins.ModelSource, samples: Path | None, folder: Path) -> Path | None:
    """Return the file of samples; texts or images are encoded as the model takes them."""
    if not samples or origin.kind != "huggingface" or samples.suffix == ".npz":
        return samples
    return kept(encoder_of(origin).encode(contents(samples), samples), samples, folder)


def _check_name(name: str) -> None:
    """Raise ParameterError for a name that is not an identifier, or that is in use."""
    is_python = name.isidentifier() and name.isascii() and not keyword.iskeyword(name)
    if not is_python or name[0] == "_" or len(name) > LONGEST_NAME:
        how = f"Use letters, digits and _ (at most {LONGEST_NAME}), starting with a letter. "
        how += "Python keywords are not allowed."
        raise ParameterError(f"Invalid name '{name}'. {how}")
    paths = (f"helpers/models/{name}", f"notebooks/{name}", f"params/{name}.yaml")
    if taken := [path for path in paths if (ROOT / path).exists()]:
        raise ParameterError(f"{taken[0]} already exists. Choose another name.")
    if name in RESERVED or hasattr(models, name):
        raise ParameterError(f"Invalid name '{name}'. The package uses it.")


def _check_metric(choices: NewOptions) -> None:
    names = f"{', '.join(metrics.NAMES)}, or a name for your own"
    metric, labels = choices.metric, choices.labels
    if metric and metric != MATCH_RATE and not labels:
        need = "--labels: an .npz file with one label per sample"
        raise ParameterError(f"--metric {metric} also needs {need}.")
    if choices.before and not choices.samples:
        raise ParameterError("--before also needs --samples: what a client sends.")
    if labels and not metric:
        raise ParameterError(f"--labels also needs --metric: {names}.")
    if labels and not choices.samples:
        raise ParameterError("--labels also needs --samples: labels belong to its rows.")
    if metric and not metric.isidentifier():
        raise ParameterError(f"Invalid --metric {metric}. Use {names}.")


def _write(files: Mapping[Path, str | bytes]) -> None:
    """Write every file, or none of them."""
    with ExitStack() as undo:
        for path, text in files.items():
            if not path.parent.exists():
                undo.callback(shutil.rmtree, path.parent, ignore_errors=True)
            undo.callback(path.unlink, missing_ok=True)
            write_atomic(path, text)
        models.names.cache_clear()
        undo.pop_all()


def _tell(new: NewModel, say: Callable[[str], None]) -> None:
    model, samples = new.inspected, new.choices.samples
    for kind in ("requests", "inputs", "outputs"):
        for tensor in getattr(model.description, kind):
            say(f"{kind[:-1]} {tensor.name}: {tensor.dtype}, {samples_file.spell(tensor.shape)}")
    for dimension, size in model.dimensions.items():
        say(f"dimension {dimension}: {size}")
    if not model.description.is_batched:
        say("batch: one sample per request")
    say(f"samples: {display_path(samples) if samples else 'random inputs'}")
    say(f"experiments: {', '.join(option.name for option in new.options)}")
    for note in model.origin.notes:
        say(note)
    if not (model.effects or model.origin.backend):
        say("tolerances: by the sizes of sums alone, as rounding errors could not be added")
    for option, reason in new.left_out.items():
        say(f"left out: {option}: {reason}")
    path = display_path(ROOT / f"params/{new.title}.yaml")
    say(f"wrote: helpers/models/{new.title}, notebooks/{new.title}, {path}")
    say(f"next: triton-notebooks run {path}")
