"""List the differences between two parameter files, with all their experiments resolved."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from helpers.config.loading import Fields, Parameters, read_file
from helpers.config.parameter_file import ParameterFile, Value


def differences(first: Path, second: Path) -> list[str]:
    """List the differences of `second` from `first`, one line each; empty if both are equal.

    The fields of the file come first, then each model with its experiments, wherever a value is
    set. Raises `ParameterError` for an invalid file.
    """
    before, after = read_file(first), read_file(second)
    lines = list(field_changes(_machine(before.file), _machine(after.file)))
    for model in dict.fromkeys([*before.file.models, *after.file.models]):
        lines += [f"{model} {line}" for line in _model_changes(before, after, model)]
    return lines


def _machine(file: ParameterFile) -> Fields:
    """Return a file's fields of the machine, without the release: a model may have its own."""
    return file.model_dump(exclude={"defaults": True, "models": True, "server": {"release"}})


def resolved(parameters: Parameters, model: str, name: str) -> Fields:
    """Return all fields of an experiment with their values, for every stage."""
    fields: Fields = parameters.experiment(model, name).model_dump()
    return fields | {"release": fields["release"] or parameters.file.server.release}


def _model_changes(first: Parameters, second: Parameters, model: str) -> Iterator[str]:
    """Yield a line per difference; a difference that all experiments share has one line."""
    before, after = first.experiments(model), second.experiments(model)
    for names, others, source in ((before, after, first.place), (after, before, second.place)):
        if not others:
            yield f"(all {len(names)}): only in {source}"
            return
        yield from (f"{name}: only in {source}" for name in names if name not in others)
    changes = {
        name: list(field_changes(resolved(first, model, name), resolved(second, model, name)))
        for name in before
        if name in after
    }
    counts = Counter(line for lines in changes.values() for line in lines)
    shared = [line for line, count in counts.items() if count == len(changes) > 1]
    yield from (f"(all {len(changes)}) {line}" for line in shared)
    for name, lines in changes.items():
        yield from (f"{name} {line}" for line in lines if line not in shared)


def field_changes(before: Value, after: Value, name: str = "") -> Iterator[str]:
    """Yield a line for each field that differs, nested ones with their whole name."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in {**before, **after}:
            field_name = f"{name}.{key}" if name else key
            yield from field_changes(before.get(key), after.get(key), field_name)
    elif before != after:
        yield f"{name}: {_text(before)} -> {_text(after)}"


def _text(value: Value) -> str:
    if value is None or value == "":
        return "unset"
    return value if isinstance(value, str) else json.dumps(value)
