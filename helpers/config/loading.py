"""Read parameter files, and resolve experiments to the configurations of their stages.

Parameters come from a file (the batch command) or from the seven parameters of a notebook
(JupyterLab, papermill). `configure` resolves both.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from helpers import formats
from helpers.config import overrides as overrides_file
from helpers.config import yaml_file
from helpers.config.checking import validated
from helpers.config.parameter_file import Experiment, ParameterFile, Value, unknown_key
from helpers.config.schema import STAGE, EngineConfig, StageConfig, fields_for
from helpers.errors import ParameterError
from helpers.store import ROOT, content_name, display_path, outputs, package_files, require_unlocked

FILES = ROOT / "params"
TARGET_VARIABLE = "TRITON_NOTEBOOKS_TARGET"  # set by the batch command: the parameter file's name

Fields = dict[str, Value]
Given = Mapping[str, Value] | None  # a parameter of a notebook


@dataclass(frozen=True)
class Parameters:
    """A parameter file."""

    file: ParameterFile
    target: str  # the folder under outputs/
    place: str  # the name of the file in errors

    def experiments(self, model: str) -> tuple[str, ...]:
        """Return the names of a model's experiments; none if the file does not have the model."""
        return tuple(self.file.models[model].experiments) if model in self.file.models else ()

    def lessons(self, model: str) -> tuple[str, ...]:
        """Return the names of the lessons that a run adds to the experiments of a model."""
        return tuple(self.file.models[model].lessons)

    def experiment(self, model: str, name: str) -> Experiment:
        """Return an experiment with all its defaults; raise `ParameterError` if it is invalid."""
        source = f"{self.place}: models.{model}.experiments.{name}"
        return validated(Experiment, self.merged(model, name), source, model)

    def merged(self, model: str, name: str) -> Fields:
        """Merge the fields of an experiment over those of its model and of the file."""
        section = self.file.models[model]
        return self.file.defaults | section.defaults | (section.experiments[name] or {})


def read_file(path: Path) -> Parameters:
    """Read and validate a parameter file; a `ParameterError` names file, key, value and reason."""
    content, source = yaml_file.load(path), display_path(path)
    if not isinstance(content, dict):
        fault = "is empty" if content is None else f"holds a {type(content).__name__}"
        keys = ", ".join(ParameterFile.model_fields)
        raise ParameterError(f"{source}: The file {fault}. It should be a mapping of {keys}.")
    parameters = parse(content, path.stem, source)
    for model in parameters.file.models:
        for name in parameters.experiments(model):
            parameters.experiment(model, name)
    return parameters


def parse(content: object, target: str, source: str) -> Parameters:
    """Return parameters with validated top-level keys; the fields of experiments are not."""
    return Parameters(validated(ParameterFile, content, source), target, source)


def file_for(gpu: str, model: str = "") -> Path | None:
    """Return the parameter file of this package with this `gpu`, or None.

    A model that this file lacks, as your own model, may have a file of its own name.
    """
    for path in sorted(FILES.glob("*.yaml")):
        try:
            status = path.stat()
        except FileNotFoundError:  # removed in the meantime
            continue
        file_gpu, models = _named(path, status.st_ino, status.st_mtime_ns, status.st_size)
        if file_gpu == gpu:
            model_file = FILES / f"{model}.yaml"
            return model_file if model not in models and model_file.exists() else path
    return None


@cache
def _named(path: Path, *_: int) -> tuple[object, frozenset[str]]:
    """Return the `gpu` and the models of a parameter file; neither if it cannot be read.

    They are cached until its inode, time or size changes.
    """
    try:
        content = yaml_file.load(path)
    except ParameterError:
        content = None
    if not isinstance(content, dict):
        return None, frozenset()
    models = content.get("models")
    return content.get("gpu"), frozenset(models if isinstance(models, dict) else ())


def _target(gpu: str, model: str) -> str:
    """Return the name of a target's folder: that of the parameter file, else of the GPU."""
    if target := os.environ.get(TARGET_VARIABLE):
        return target
    path = file_for(gpu, model)
    return path.stem if path else "-".join(re.findall(r"[^\W_]+", gpu))


def resolve(
    model: str,
    stage: str,
    gpu: str = "CPU",
    device: str = "cpu",
    server: Given = None,
    defaults: Given = None,
    models: Given = None,
    experiment: str = "",
    overrides: Given = None,
) -> StageConfig:
    """Return the configuration of `stage` for one experiment: the first call of every notebook.

    Without `models` it reads the parameter file of `gpu`; without `experiment`, `configure` chooses
    one. `overrides` replaces single fields. The experiment then has another name, such as
    `onnx-fp32~threads=1`: its results are separate, and later stages find its overrides.
    Raises `ParameterError`, and `WorkspaceError` while a run of the batch command that did not
    start this notebook holds the outputs folder.
    """
    require_unlocked(outputs())
    content_name.cache_clear()  # the user's files may have changed
    package_files()  # hashes them before the stage runs
    if isinstance(overrides, str):
        how = "Pass a dict; with papermill, use -y 'overrides: {...}'."
        raise ParameterError(f"overrides is the text {overrides!r}. {how}")
    if models:
        content: dict[str, object] = {"gpu": gpu, "device": device, "models": models}
        content |= {"server": server or {}, "defaults": defaults or {}}
        parameters = parse(content, "", "parameters")
    elif defaults or server:
        key = "defaults" if defaults else "server"
        raise ParameterError(f"{key} needs models too. To change single fields, use overrides.")
    elif path := file_for(gpu, model):
        parameters = read_file(path)
    else:
        files = display_path(FILES)
        raise ParameterError(
            f"No file in {files} has gpu {gpu!r}. Use another gpu, or pass models."
        )
    parameters = replace(parameters, target=_target(gpu, model))
    return configure(parameters, model, experiment, stage, overrides)


def configure(
    parameters: Parameters, model: str, experiment: str, stage: str, overrides: Given = None
) -> StageConfig:
    """Return the configuration of `stage` for one experiment, by default the model's first.

    For `convert` the default is the first that changes the precision. Only the fields that the
    stage reads are validated; the others must have known names. Raises `ParameterError`.
    """
    file, source, names = parameters.file, parameters.place, parameters.experiments(model)

    def converts(name: str) -> bool:
        fields = parameters.merged(model, name)
        return fields.get("precision") != fields.get("export_precision")

    if not names:
        known = ", ".join(file.models)
        raise ParameterError(f"{source} has no model '{model}'. Use one of {known}.")
    if not experiment:
        experiment = next(filter(converts, names), names[0]) if stage == "convert" else names[0]
    name = overrides_file.experiment_of(experiment)
    if name not in names:
        known = ", ".join(names)
        raise ParameterError(f"{source}: {model} has no experiment '{name}'. Use one of {known}.")
    source += f": models.{model}.experiments.{name}"
    fields = parameters.merged(model, name)
    combined = overrides_file.load_overrides(parameters.target, model, experiment) | dict(
        overrides or {}
    )
    changed = {key: value for key, value in combined.items() if fields.get(key) != value}
    if changed:
        name = overrides_file.name_of(name, changed)
    fields |= changed
    if unknown := set(fields) - set(Experiment.model_fields):
        raise ParameterError(f"{source}: {unknown_key(Experiment, min(unknown))}")
    release, format_name = fields.get("release"), str(fields.get("format", ""))
    read = fields_for(stage, format_name)
    chosen: dict[str, object] = {key: value for key, value in fields.items() if key in read}
    chosen |= {
        "model": model,
        "experiment": name,
        "overrides": changed,
        "stage": stage,
        "target": parameters.target,
        "gpu": file.gpu,
        "device": file.device,
        "server": file.server.model_dump() | ({"release": release} if release else {}),
        "experiments": names,
    }
    schema = STAGE[stage].config
    if stage == "convert" and formats.built_for(format_name):
        schema = EngineConfig
    return validated(schema, chosen, source, model)


def select(
    parameters: Parameters, models: Sequence[str], experiments: Sequence[str]
) -> list[tuple[str, str]]:
    """Return the selected models and experiments, by default all.

    Raises `ParameterError` for an unknown name.
    """
    sections = parameters.file.models
    pairs = [
        (model, name)
        for model, section in sections.items()
        if not models or model in models
        for name in section.experiments
    ]
    for option, requested, names in (
        ("--model", models, list(sections)),
        ("--experiment", experiments, sorted({name for _, name in pairs})),
    ):
        for name in requested:
            if name not in names:
                known = ", ".join(names)
                raise ParameterError(
                    f"{parameters.place} has no {option[2:]} '{name}'. Use one of {known}."
                )
    return [pair for pair in pairs if not experiments or pair[1] in experiments]
