"""An experiment with overrides: what it is called, and where its overrides are kept for the stages
after it, so that exploring never touches the experiment's own results.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path

from helpers.config.parameter_file import Value
from helpers.errors import ParameterError
from helpers.store import digest, display_path, outputs, write_atomic

MARK = "~"  # between the experiment's name and its overrides; no experiment has it in its name
NAME = re.compile(r"[\w.,=~-]+")  # no folder
PLAIN = re.compile(r"[\w.-]{1,24}")
LONGEST = 80  # characters: the name is that of a folder too
FILE = "overrides.json"


def name_of(experiment: str, overrides: Mapping[str, Value]) -> str:
    """Name an experiment with these overrides: `onnx-fp32~threads=1`."""
    said = ",".join(f"{key}={_spelled(value)}" for key, value in sorted(overrides.items()))
    if len(said) > LONGEST:
        said = digest(dict(overrides))[:12]
    return f"{experiment}{MARK}{said}"


def _spelled(value: Value) -> str:
    items = value if isinstance(value, list) else [value]
    text = "-".join(str(item) for item in items)
    return text if PLAIN.fullmatch(text) else digest(value)[:6]


def experiment_of(name: str) -> str:
    """Name the experiment that the overrides belong to; `name` itself if it has none."""
    return name.partition(MARK)[0]


def keep(target: str, model: str, name: str, overrides: Mapping[str, Value]) -> None:
    """Keep the overrides by which later stages, given the name alone, know them."""
    write_atomic(_path(target, model, name), json.dumps(dict(overrides), indent=1) + "\n")


def kept(target: str, model: str, name: str) -> dict[str, Value]:
    """Read the overrides of a name; empty for one without. Raises `ParameterError` if no stage has
    left any.
    """
    if MARK not in name:
        return {}
    path = _path(target, model, name)
    try:
        found = json.loads(path.read_text()) if NAME.fullmatch(name) else None
    except (OSError, ValueError):
        found = None
    if not isinstance(found, dict):
        advice = f"set experiment to '{experiment_of(name)}', and overrides"
        raise ParameterError(f"experiment {name}: there is no {display_path(path)}: {advice}")
    return found


def _path(target: str, model: str, name: str) -> Path:
    return outputs() / target / model / name / FILE
