"""Name and save an experiment with overrides. Its results are separate, from its stage on."""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from helpers.config.parameter_file import Value
from helpers.errors import ParameterError
from helpers.store import digest, display_path, outputs, write_atomic

SEPARATOR = "~"  # between an experiment's name and its overrides; names do not contain it
NAME = re.compile(r"[\w.,=~-]+")  # not the path of another folder
PLAIN = re.compile(r"[\w.-]{1,24}")
LONGEST = 80  # characters: the name is also that of a folder
FILE = "overrides.json"


def name_of(experiment: str, overrides: Mapping[str, Value]) -> str:
    """Return the name of an experiment with these overrides: `onnx-fp32~threads=1`."""
    suffix = ",".join(f"{key}={_spelled(value)}" for key, value in sorted(overrides.items()))
    if len(suffix) > LONGEST:
        suffix = digest(dict(overrides))[:12]
    return f"{experiment}{SEPARATOR}{suffix}"


def _spelled(value: Value) -> str:
    items = value if isinstance(value, list) else [value]
    text = "-".join(str(item) for item in items)
    return text if PLAIN.fullmatch(text) else digest(value)[:6]


def experiment_of(name: str) -> str:
    """Return the name without its overrides; `name` itself if it has none."""
    return name.partition(SEPARATOR)[0]


def save_overrides(target: str, model: str, name: str, overrides: Mapping[str, Value]) -> None:
    """Save the overrides for later stages, which get only the name."""
    write_atomic(_path(target, model, name), json.dumps(dict(overrides), indent=1) + "\n")


def load_overrides(target: str, model: str, name: str) -> dict[str, Value]:
    """Return the overrides of a name, if any; raise `ParameterError` if no stage saved them."""
    if SEPARATOR not in name:
        return {}
    path = _path(target, model, name)
    with suppress(OSError, ValueError):
        if NAME.fullmatch(name) and isinstance(content := json.loads(path.read_text()), dict):
            return content
    advice = f"Set experiment to '{experiment_of(name)}', and set overrides."
    raise ParameterError(f"{display_path(path)} of experiment {name} is missing. {advice}")


def _path(target: str, model: str, name: str) -> Path:
    return outputs() / target / model / name / FILE
