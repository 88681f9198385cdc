"""The check that a checkpoint has each tensor of a network once, in its shape and type."""

from collections.abc import Mapping
from pathlib import Path

from helpers.errors import CheckpointError

NAMED = 5  # tensors that an error names; it counts the others


def check(path: Path, title: str, actual: Mapping[str, str], expected: Mapping[str, str]) -> None:
    """Raise CheckpointError, naming tensors, unless shapes and types are those of `title`."""
    faults = [
        *(f"missing {name} {expected[name]}" for name in expected if name not in actual),
        *(f"surplus {name} {actual[name]}" for name in actual if name not in expected),
        *(
            f"{name} is {actual[name]} and should be {expected[name]}"
            for name in actual
            if actual[name] != expected.get(name, actual[name])
        ),
    ]
    if faults:
        more = f"; and {len(faults) - NAMED} more" if len(faults) > NAMED else ""
        raise CheckpointError(f"{path} does not fit {title}: {'; '.join(faults[:NAMED])}{more}")
