"""The check that a checkpoint has each tensor of a network once, in its shape and type."""

from collections.abc import Mapping
from pathlib import Path

from helpers.errors import CheckpointError

NAMED = 5  # tensors that an error names; it counts the others


def check(path: Path, title: str, actual: Mapping[str, str], expected: Mapping[str, str]) -> None:
    """Compare the shapes and types of a checkpoint's tensors with those of the network `title`.

    Raises CheckpointError naming the tensors that are missing, surplus or of another shape or type.
    """
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
