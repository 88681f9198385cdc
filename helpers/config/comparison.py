"""In what two parameter files differ once every experiment is resolved, as lines to read."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from helpers.config.loading import configure, read_file
from helpers.config.schema import STAGE, STAGES
from helpers.store import shown

Fields = dict[str, Any]


def differences(first: Path, second: Path) -> list[str]:
    """List in what `second` differs from `first`, one line each; empty if all resolves to the same.

    What holds for the whole file comes first, then one model after the other, then its experiments.
    Their order does not count, nor who says a thing: an experiment, its model or the file. Raises
    ParameterError for a file that is wrong.
    """
    before, after = read_file(first), read_file(second)
    mine, theirs = (shown(path.absolute()) for path in (first, second))
    found = list(_changes(_machine(before), _machine(after)))
    for model in dict.fromkeys([*before["models"], *after["models"]]):
        sides = (_experiments(before, model), _experiments(after, model))
        found += [f"{model} {line}" for line in _compared(*sides, mine, theirs)]
    return found


def _machine(content: Fields) -> Fields:
    """Give what a file says of the machine, without the release: a model may have its own."""
    config = configure(content, "compared", next(iter(content["models"])), "", "report")
    server = config.server.model_dump(exclude={"release"})
    return {"gpu": config.gpu, "device": config.device} | {
        f"server.{name}": value for name, value in server.items()
    }


def _experiments(content: Fields, model: str) -> dict[str, Fields]:
    """Resolve all experiments of a model; empty where the file does not have the model."""
    section = content["models"].get(model, {"experiments": {}})
    return {name: resolved(content, model, name) for name in section["experiments"]}


def resolved(content: Fields, model: str, experiment: str) -> Fields:
    """Give every field of an experiment with its value, whatever stage reads it."""
    found: Fields = {}
    for stage in STAGES:
        config = configure(content, "compared", model, experiment, stage)
        found |= {
            "release": config.server.release,
            **config.model_dump(include=set(STAGE[stage].fields.model_fields)),
        }
    instances = found.pop("instances")
    return found | {f"instances.{scenario}": count for scenario, count in instances.items()}


def _compared(
    before: dict[str, Fields], after: dict[str, Fields], first: str, second: str
) -> Iterator[str]:
    """Give a line for each difference of one model; one that all experiments share is one line."""
    for mine, others, place in ((before, after, first), (after, before, second)):
        if not others:
            yield f"(all {len(mine)}): only in {place}"
            return
        yield from (f"{name}: only in {place}" for name in mine if name not in others)
    changes = {name: list(_changes(before[name], after[name])) for name in before if name in after}
    shared: list[str] = []
    if len(changes) > 1:
        one, *rest = changes.values()
        shared = [line for line in one if all(line in lines for lines in rest)]
        yield from (f"(all {len(changes)}) {line}" for line in shared)
    for name, lines in changes.items():
        yield from (f"{name} {line}" for line in lines if line not in shared)


def _changes(before: Fields, after: Fields) -> Iterator[str]:
    for name, value in before.items():
        if value != after[name]:
            yield f"{name}: {_text(value)} -> {_text(after[name])}"


def _text(value: Any) -> str:
    if value is None or value == "":
        return "unset"
    return value if isinstance(value, str) else json.dumps(value)
