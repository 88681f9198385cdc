"""Reading a YAML file that anybody may have written: plain data, or one line on what is wrong.

The events of the file are checked before any data is built from them. PyYAML lets a duplicate key
win in silence, recurses once for each level, writes every alias out, and runs into errors of Python
on some tags and long numbers.
"""

from dataclasses import dataclass, field
from pathlib import Path

import yaml

from helpers.errors import ParameterError

MAX_BYTES = 1_000_000
MAX_DEPTH = 20
MAX_VALUES = 50_000  # once every alias is replaced by what it names
MAX_CHARACTERS = 1_000  # of one key or value


@dataclass
class _Collection:
    """A mapping or list that is not yet closed."""

    anchor: str | None
    values_before: int
    is_mapping: bool
    is_key_next: bool
    keys: set[str] = field(default_factory=set)


def load(path: Path) -> object:
    """Read the plain data in a YAML file; the text of a `ParameterError` does not name the file."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ParameterError(f"is larger than {MAX_BYTES / 1e6:.0f} MB")
        text = content.decode()
        _check(text)
        return yaml.load(text, Loader=yaml.CSafeLoader)
    except FileNotFoundError:
        raise ParameterError("there is no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ParameterError(f"cannot be read as text: {error}") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date or number that is none
        raise ParameterError(f"is not YAML: {' '.join(str(error).split())}") from None


def _check(text: str) -> None:
    """Raise `ParameterError` for YAML that is valid but must not become data."""
    sizes: dict[str, int] = {}  # how many values an anchor stands for
    opened: list[_Collection] = []
    values = 0
    for event in yaml.parse(text, Loader=yaml.CSafeLoader):
        line = f"line {event.start_mark.line + 1}" if event.start_mark else "unknown line"
        if isinstance(event, yaml.NodeEvent):
            parent = opened[-1] if opened else None
            if parent and parent.is_key_next:
                _check_key(event, parent.keys, line)
            if parent and parent.is_mapping:
                parent.is_key_next = not parent.is_key_next
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in sizes:
                raise ParameterError(f"{line}: alias '*{event.anchor}' names no finished value")
            values += sizes[event.anchor or ""]
        elif isinstance(event, yaml.ScalarEvent):
            values += 1
            sizes[event.anchor or ""] = 1
            _check_scalar(event.value, line)
        elif isinstance(event, yaml.CollectionStartEvent):
            is_mapping = isinstance(event, yaml.MappingStartEvent)
            opened.append(_Collection(event.anchor, values, is_mapping, is_mapping))
            values += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            closed = opened.pop()
            sizes[closed.anchor or ""] = values - closed.values_before
        if tag := getattr(event, "tag", None):
            raise ParameterError(f"{line}: holds the tag '{tag}': tags are not allowed")
        if len(opened) > MAX_DEPTH:
            raise ParameterError(f"{line}: is nested more than {MAX_DEPTH} levels deep")
        if values > MAX_VALUES:
            raise ParameterError(f"{line}: holds more than {MAX_VALUES:,} values up to here")


def _check_key(event: yaml.NodeEvent, seen: set[str], line: str) -> None:
    if not isinstance(event, yaml.ScalarEvent):
        kind = type(event).__name__.removesuffix("Event").removesuffix("Start").lower()
        raise ParameterError(f"{line}: a key is a {kind}: expected a name")
    if event.value in seen:
        raise ParameterError(f"{line}: duplicate key {event.value!r}")
    seen.update({event.value} - {"<<"})  # several mappings may be merged into one


def _check_scalar(value: str, line: str) -> None:
    if len(value) > MAX_CHARACTERS:
        raise ParameterError(
            f"{line}: a value has {len(value):,} characters; at most {MAX_CHARACTERS:,} are allowed"
        )
    if not value.isprintable():
        wrong = next(character for character in value if not character.isprintable())
        raise ParameterError(f"{line}: a value holds the unprintable character {wrong!r}")
