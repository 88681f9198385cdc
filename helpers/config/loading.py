"""Reading a parameter file, choosing an experiment from it, and saying what is wrong with it.

Three ways lead to an experiment (JupyterLab, papermill, the batch command) and all meet in
`resolve`.
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from helpers import formats, models
from helpers.config.schema import (
    REQUIRED,
    STAGE,
    Experiment,
    ParameterFile,
    StageConfig,
    config_class,
    fields_for,
)
from helpers.errors import ParameterError
from helpers.store import ROOT, package_files, shown

FILES = ROOT / "params"
TARGET_VARIABLE = "TRITON_NOTEBOOKS_TARGET"  # set by the batch command: the parameter file's name

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
M = TypeVar("M", bound=BaseModel)


class _Loader(yaml.CSafeLoader):
    """YAML with duplicate keys as errors rather than the last one winning in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str | int | float | None):
                found = type(key).__name__
                raise ParameterError(f"line {key_node.start_mark.line + 1}: a key is a {found}")
            if key in seen:
                raise ParameterError(f"line {key_node.start_mark.line + 1}: duplicate key '{key}'")
            seen.add(key)
        return super().construct_mapping(node, deep)


def read_file(path: Path) -> dict[str, Any]:
    """Read a parameter file and check all of it; raise `ParameterError` with one line that names
    what is wrong.
    """
    try:
        content = yaml.load(path.read_text(), Loader=_Loader)
    except FileNotFoundError:
        raise ParameterError(f"{shown(path)}: there is no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ParameterError(f"{shown(path)}: cannot be read as text: {error}") from None
    except ParameterError as error:
        raise ParameterError(f"{shown(path)}: {error}") from None
    except yaml.YAMLError as error:
        raise ParameterError(
            f"{shown(path)}: is not YAML: {' '.join(str(error).split())}"
        ) from None
    if not isinstance(content, dict):
        found = "is empty" if content is None else f"holds a {type(content).__name__}"
        raise ParameterError(
            f"{shown(path)}: {found}; expected the keys {', '.join(ParameterFile.model_fields)}"
        )
    with_place = shown(path)
    parsed = _validated(ParameterFile, content, with_place)
    if not parsed.models:
        raise ParameterError(
            f"{with_place}: models: is empty; expected one of {', '.join(models.names())}"
        )
    for model, section in parsed.models.items():
        if model not in models.names():
            known = ", ".join(models.names())
            raise ParameterError(f"{with_place}: models.{model}: unknown model; there are {known}")
        if not section.experiments:
            raise ParameterError(f"{with_place}: models.{model}.experiments: there is none")
        for experiment in section.experiments:
            if not NAME.fullmatch(experiment):
                raise ParameterError(
                    f"{with_place}: models.{model}.experiments.{experiment}: is the name of a "
                    "folder too; use letters, digits, '.', '_' and '-'"
                )
            _experiment(content, model, experiment, {}, with_place, REQUIRED)
    return content


def _validated(schema: type[M], value: Any, place: str) -> M:
    try:
        return schema.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            known = ", ".join(sorted(schema.model_fields))
            raise ParameterError(f"{place}: {where}: unknown key; known here: {known}") from None
        hint = ""
        if first["type"] == "string_type" and isinstance(first["input"], int | float):
            hint = "; quote it as you wrote it, YAML drops a number's last zero"
        given = "" if first["type"] == "missing" else f" is {first['input']!r}"
        message = first["msg"][0].lower() + first["msg"][1:]
        raise ParameterError(f"{place}: {where}{given}: {message}{hint}") from None


def _experiment(
    content: dict[str, Any],
    model: str,
    experiment: str,
    overrides: dict[str, Any],
    place: str,
    required: tuple[str, ...],
) -> dict[str, Any]:
    """Merge defaults < model's defaults < experiment < overrides, check the outcome and give all
    its fields.
    """
    variants = models.get(model).VARIANTS
    section = content["models"][model]
    own = (section.get("experiments") or {}).get(experiment) or {}
    merged: dict[str, Any] = {}
    for level in (content.get("defaults"), section.get("defaults"), own, overrides):
        merged |= level or {}
    place = f"{place}: models.{model}.experiments.{experiment}"
    for name in required:
        if name not in merged:
            raise ParameterError(f"{place}.{name}: is missing")
    parsed = _validated(Experiment, merged, place)
    variant = parsed.variant or next(iter(variants), "")
    if variant and variant not in variants:
        known = f"known are {', '.join(variants)}" if variants else f"{model} has none"
        raise ParameterError(f"{place}.variant: unknown variant '{variant}': {known}")
    for name in ("export_format", "format"):
        value = getattr(parsed, name)
        if value and value not in formats.names():
            raise ParameterError(
                f"{place}.{name}: unknown format '{value}': known are {', '.join(formats.names())}"
            )
    if parsed.format and parsed.export_format:
        _require_path(parsed, place)
    for name in ("batch_sizes", "preferred_batch_sizes"):
        for size in getattr(parsed, name) if "max_batch_size" in merged else ():
            if size > parsed.max_batch_size:
                raise ParameterError(
                    f"{place}.{name}: {size} is above max_batch_size {parsed.max_batch_size}"
                )
    if "max_batch_size" in merged and parsed.online_batch_size > parsed.max_batch_size:
        size = parsed.online_batch_size
        raise ParameterError(
            f"{place}.online_batch_size: {size} is above max_batch_size {parsed.max_batch_size}"
        )
    return {**parsed.model_dump(), "variant": variant}


def _require_path(experiment: Experiment, place: str) -> None:
    """Check that the served format can be made from the exported one."""
    made_from = formats.get(experiment.format).SOURCES
    if experiment.format == experiment.export_format:
        if experiment.precision != experiment.export_precision:
            raise ParameterError(
                f"{place}.precision: {experiment.precision} differs from export_precision "
                f"{experiment.export_precision}, and {experiment.format} is served as exported"
            )
    elif experiment.export_format not in made_from:
        raise ParameterError(
            f"{place}.format: {experiment.format} is not made from {experiment.export_format} "
            f"but from {', '.join(made_from)}"
        )


def file_for(gpu: str) -> Path | None:
    """Find the parameter file of this package whose `gpu` is this one."""
    for path in sorted(FILES.glob("*.yaml")):
        try:
            content = yaml.load(path.read_text(), Loader=yaml.CSafeLoader)
        except (OSError, UnicodeDecodeError, yaml.YAMLError):
            continue
        if isinstance(content, dict) and content.get("gpu") == gpu:
            return path
    return None


def target_name(gpu: str) -> str:
    """Name a target's folder: as the parameter file is named, else after the GPU."""
    given = os.environ.get(TARGET_VARIABLE)
    if given:
        return given
    path = file_for(gpu)
    return path.stem if path else "-".join("".join(c if c.isalnum() else " " for c in gpu).split())


def resolve(
    model: str,
    stage: str,
    gpu: str = "CPU",
    device: str = "cpu",
    server: dict[str, Any] | None = None,
    defaults: dict[str, Any] | None = None,
    models: dict[str, Any] | None = None,
    experiment: str = "",
    overrides: dict[str, Any] | None = None,
    *,
    target: str = "",
) -> StageConfig:
    """Choose one experiment and give it as `stage` sees it.

    Without `models` the parameter file of `gpu` is read; without `experiment` its first is taken.
    `target` names the folder of results where it is known. `overrides` replaces single fields, for
    exploring. Raises `ParameterError`.
    """
    package_files()  # as they are now, before the stage runs
    place = "parameters"
    content: dict[str, Any] = {
        "gpu": gpu,
        "device": device,
        "server": server or {},
        "defaults": defaults or {},
    }
    if not models:
        for name, value in (("defaults", defaults), ("server", server)):
            if value:
                raise ParameterError(f"{name} is given without models: use overrides")
        path = file_for(gpu)
        if path is None:
            raise ParameterError(
                f"gpu is '{gpu}', which no file in {shown(FILES)} has: give models too"
            )
        content, place = read_file(path), shown(path)
    else:
        content["models"] = models
    parsed = _validated(ParameterFile, content, place)
    if model not in parsed.models:
        raise ParameterError(
            f"{place}: models.{model}: is missing; there are {', '.join(parsed.models)}"
        )
    experiments = tuple(parsed.models[model].experiments)
    chosen = experiment or next(iter(experiments), "")
    if chosen not in experiments:
        raise ParameterError(
            f"{place}: unknown experiment '{chosen}' of {model}: there are {', '.join(experiments)}"
        )
    required = tuple(name for name in REQUIRED if name in STAGE[stage].fields.model_fields)
    if isinstance(overrides, str):
        raise ParameterError(
            f"overrides is the text {overrides!r}: "
            "give a dict, with papermill by -y 'overrides: {...}'"
        )
    values = _experiment(content, model, chosen, overrides or {}, place, required)
    own = {"release": values["release"]} if values["release"] else {}
    return config_class(stage, values["format"]).model_validate(
        {
            **{name: values[name] for name in fields_for(stage, values["format"])},
            "model": model,
            "experiment": chosen,
            "stage": stage,
            "target": target or target_name(parsed.gpu),
            "gpu": parsed.gpu,
            "device": parsed.device,
            "server": parsed.server.model_copy(update=own),
            "experiments": experiments,
        }
    )


def select(
    content: dict[str, Any], models: Sequence[str], experiments: Sequence[str], place: str
) -> list[tuple[str, str]]:
    """Choose model and experiment names of a parameter file; raise `ParameterError` for a name that
    it has not.
    """
    sections = content["models"]
    for model in models:
        if model not in sections:
            raise ParameterError(f"--model {model}: {place} has {', '.join(sections)}")
    known = {name for model in models or sections for name in sections[model]["experiments"]}
    for experiment in experiments:
        if experiment not in known:
            raise ParameterError(
                f"--experiment {experiment}: {place} has {', '.join(sorted(known))}"
            )
    return [
        (model, name)
        for model, section in sections.items()
        if not models or model in models
        for name in section["experiments"]
        if not experiments or name in experiments
    ]


def configure(
    content: dict[str, Any], target: str, model: str, experiment: str, stage: str
) -> StageConfig:
    """Resolve one stage of one experiment of a parameter file."""
    names = ("gpu", "device", "server", "defaults", "models")
    given = {name: content[name] for name in names if name in content}
    return resolve(model, stage, experiment=experiment, target=target, **given)
