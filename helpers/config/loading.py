"""Read parameter files, and resolve experiments to the configurations of their stages."""

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from helpers import formats, store
from helpers.config import overrides as overrides_file
from helpers.config import yaml_file
from helpers.config.checking import validated
from helpers.config.parameter_file import Experiment, ParameterFile, Value, unknown_key
from helpers.config.schema import STAGE, EngineConfig, StageConfig, fields_for
from helpers.errors import ParameterError

FILES = store.ROOT / "params"
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
    content, source = yaml_file.load(path), store.display_path(path)
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
    """Return the parameter file with this `gpu`, or that of an own model that it lacks, or None."""
    for path in sorted(FILES.glob("*.yaml")):
        with suppress(OSError, ParameterError):  # it was removed in the meantime, or is broken
            content = _content(path, store.known_digest(path))
            if isinstance(content, dict) and content.get("gpu") == gpu:
                own, models = FILES / f"{model}.yaml", content.get("models")
                has_model = isinstance(models, dict) and model in models
                return path if has_model or not own.exists() else own
    return None


@cache
def _content(path: Path, _: str) -> object:
    """Read a file; the second argument is its digest, so that a changed one is read again."""
    return yaml_file.load(path)


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
    one. `overrides` replaces single fields of an experiment, which then has another name, such as
    `onnx-fp32~threads=1`, and separate results. Raises `ParameterError`, and `WorkspaceError` while
    a run of the batch command that did not start this notebook holds the outputs folder.
    """
    store.require_unlocked(store.outputs())
    store.content_name.cache_clear()  # the user's files may have changed
    store.package_files()  # hashes them before the stage runs
    path = file_for(gpu, model)
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
    elif path:
        parameters = read_file(path)
    else:
        fault = f"No file in {store.display_path(FILES)} has gpu {gpu!r}."
        raise ParameterError(f"{fault} Use another gpu, or pass models.")
    target = path.stem if path else "-".join(re.findall(r"[^\W_]+", gpu))
    parameters = replace(parameters, target=os.environ.get(TARGET_VARIABLE) or target)
    return configure(parameters, model, experiment, stage, overrides)


def configure(
    parameters: Parameters,
    model: str,
    experiment: str,
    stage: str,
    overrides: Given = None,
    with_candidates: bool = True,
) -> StageConfig:
    """Return the configuration of `stage` for one experiment, by default the model's first.

    For `convert` the default is the first that changes the precision. The stage `compare` has the
    configurations of all experiments, unless `with_candidates` is false. Only the fields that the
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
    saved = overrides_file.load_overrides(parameters.target, model, experiment)
    combined = {**saved, **(overrides or {})}
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
    if stage == "compare" and with_candidates:
        chosen["candidates"] = tuple(
            configure(parameters, model, each, stage, overrides, with_candidates=False)
            for each in names
        )
    schema = STAGE[stage].config
    if stage == "convert" and formats.built_for(format_name):
        schema = EngineConfig
    return validated(schema, chosen, source, model)


def select(
    parameters: Parameters, models: Sequence[str], experiments: Sequence[str]
) -> list[tuple[str, str]]:
    """Return the selected pairs, by default all; raise `ParameterError` for an unknown name."""
    sections = parameters.file.models
    pairs = [
        (model, name)
        for model, section in sections.items()
        if not models or model in models
        for name in section.experiments
    ]
    for kind, requested, names in (
        ("model", models, list(sections)),
        ("experiment", experiments, sorted({name for _, name in pairs})),
    ):
        if unknown := [name for name in requested if name not in names]:
            known = f"Use one of {', '.join(names)}."
            raise ParameterError(f"{parameters.place} has no {kind} '{unknown[0]}'. {known}")
    return [pair for pair in pairs if not experiments or pair[1] in experiments]
