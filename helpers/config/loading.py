"""Choosing an experiment from a parameter file and giving each stage its configuration.

A parameter file comes from disk (the batch command) or from a notebook's seven parameters
(JupyterLab, papermill), and all meet in `configure`.
"""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from helpers import models as known_models
from helpers.config import yaml_file
from helpers.config.parameter_file import Experiment, ParameterFile, Value, unknown_key
from helpers.config.schema import StageConfig, config_class, fields_for
from helpers.config.validation import validated
from helpers.errors import ParameterError
from helpers.store import ROOT, content_name, display_path, outputs, package_files, require_unlocked

FILES = ROOT / "params"
TARGET_VARIABLE = "TRITON_NOTEBOOKS_TARGET"  # set by the batch command: the parameter file's name

Fields = dict[str, Value]


@dataclass(frozen=True)
class Parameters:
    """The content of a parameter file, the name of its folder under outputs/, and how an error
    names it.
    """

    file: ParameterFile
    target: str
    place: str

    def experiments(self, model: str) -> tuple[str, ...]:
        """Name the experiments of a model; none if the file does not have the model."""
        return tuple(self.file.models[model].experiments) if model in self.file.models else ()

    def experiment(self, model: str, name: str) -> Experiment:
        """Check an experiment with all its defaults; raise `ParameterError`."""
        place = f"{self.place}: models.{model}.experiments.{name}"
        return validated(Experiment, self.merged(model, name), place, _context(model))

    def merged(self, model: str, name: str) -> Fields:
        """Merge the fields of an experiment over those of its model and of the file."""
        section = self.file.models[model]
        return self.file.defaults | section.defaults | (section.experiments[name] or {})


def _context(model: str) -> dict[str, tuple[str, ...]]:
    return {"variants": known_models.get(model).VARIANTS}


def read_file(path: Path) -> Parameters:
    """Read a parameter file and check all of it; raise `ParameterError` with one line that names
    the file, the key, its value and what was expected.
    """
    try:
        content = yaml_file.load(path)
        if not isinstance(content, dict):
            found = "is empty" if content is None else f"holds a {type(content).__name__}"
            keys = ", ".join(ParameterFile.model_fields)
            raise ParameterError(f"{found}; expected the keys {keys}")
    except ParameterError as error:
        raise ParameterError(f"{display_path(path)}: {error}") from None
    parameters = parse(content, path.stem, display_path(path))
    for model in parameters.file.models:
        for name in parameters.experiments(model):
            parameters.experiment(model, name)
    return parameters


def parse(content: object, target: str, place: str) -> Parameters:
    """Check the five keys, but not yet the fields of each experiment."""
    return Parameters(validated(ParameterFile, content, place), target, place)


def file_for(gpu: str) -> Path | None:
    """Find the parameter file of this package whose `gpu` is this one."""
    for path in sorted(FILES.glob("*.yaml")):
        try:
            content = yaml_file.load(path)
        except ParameterError:
            continue
        if isinstance(content, dict) and content.get("gpu") == gpu:
            return path
    return None


def target_name(gpu: str) -> str:
    """Name a target's folder: as the parameter file is named, else after the GPU."""
    if given := os.environ.get(TARGET_VARIABLE):
        return given
    path = file_for(gpu)
    return path.stem if path else "-".join(re.findall(r"[^\W_]+", gpu))


def resolve(
    model: str,
    stage: str,
    gpu: str = "CPU",
    device: str = "cpu",
    server: Mapping[str, Value] | None = None,
    defaults: Mapping[str, Value] | None = None,
    models: Mapping[str, Value] | None = None,
    experiment: str = "",
    overrides: Mapping[str, Value] | None = None,
    *,
    target: str = "",
) -> StageConfig:
    """Give `stage` its configuration of one experiment: the first call of every notebook.

    Without `models` the parameter file of `gpu` is read; without `experiment` its first is taken.
    `target` names the folder of results where it is known. `overrides` replaces single fields, for
    exploring. Raises `ParameterError`, and `WorkspaceError` while a run of the batch command that
    did not start this notebook holds the outputs folder.
    """
    require_unlocked(outputs())
    content_name.cache_clear()  # the user's files may be others than an hour ago
    package_files()  # as they are now, before the stage runs
    if isinstance(overrides, str):
        raise ParameterError(
            f"overrides is the text {overrides!r}: "
            "give a dict, with papermill by -y 'overrides: {...}'"
        )
    if models:
        content: dict[str, object] = {"gpu": gpu, "device": device, "models": models}
        content |= {"server": server or {}, "defaults": defaults or {}}
        parameters = parse(content, target or target_name(gpu), "parameters")
        return configure(parameters, model, experiment, stage, overrides)
    for name, value in (("defaults", defaults), ("server", server)):
        if value:
            raise ParameterError(f"{name} is given without models: use overrides")
    path = file_for(gpu)
    if path is None:
        raise ParameterError(
            f"gpu is {gpu!r}, which no file in {display_path(FILES)} has: give models too"
        )
    parameters = replace(read_file(path), target=target or target_name(gpu))
    return configure(parameters, model, experiment, stage, overrides)


def configure(
    parameters: Parameters,
    model: str,
    experiment: str,
    stage: str,
    overrides: Mapping[str, Value] | None = None,
) -> StageConfig:
    """Give `stage` its configuration of one experiment, the first of the model if `experiment` is
    empty.

    Only the fields that the stage reads are checked, and must be there; the others must be known.
    Raises `ParameterError`.
    """
    file, place, names = parameters.file, parameters.place, parameters.experiments(model)
    if not names:
        raise ParameterError(f"{place}: models.{model}: is missing; there are {_list(file.models)}")
    name = experiment or names[0]
    if name not in names:
        raise ParameterError(
            f"{place}: unknown experiment '{name}' of {model}: there are {_list(names)}"
        )
    place += f": models.{model}.experiments.{name}"
    fields = parameters.merged(model, name) | dict(overrides or {})
    if unknown := set(fields) - set(Experiment.model_fields):
        raise ParameterError(f"{place}: {unknown_key(Experiment, min(unknown))}")
    release = fields.get("release")
    format_name = str(fields.get("format", ""))
    chosen: dict[str, object] = {
        field: fields[field] for field in fields_for(stage, format_name) if field in fields
    }
    chosen |= {
        "model": model,
        "experiment": name,
        "stage": stage,
        "target": parameters.target,
        "gpu": file.gpu,
        "device": file.device,
        "server": file.server.model_dump() | ({"release": release} if release else {}),
        "experiments": names,
    }
    return validated(config_class(stage, format_name), chosen, place, _context(model))


def select(
    parameters: Parameters, models: Sequence[str], experiments: Sequence[str]
) -> list[tuple[str, str]]:
    """Choose model and experiment names of a parameter file; raise `ParameterError` for a name that
    it does not have.
    """
    sections = parameters.file.models
    for model in models:
        if model not in sections:
            raise ParameterError(f"--model {model}: {parameters.place} has {_list(sections)}")
    known = {name for model in models or sections for name in sections[model].experiments}
    for name in experiments:
        if name not in known:
            raise ParameterError(
                f"--experiment {name}: {parameters.place} has {_list(sorted(known))}"
            )
    return [
        (model, name)
        for model, section in sections.items()
        if not models or model in models
        for name in section.experiments
        if not experiments or name in experiments
    ]


def _list(names: Iterable[str]) -> str:
    return ", ".join(names)
