"""Read an untrusted YAML file: return plain data, or raise an error of one line.

PyYAML silently takes the last of two equal keys, recurses once per level and limits no aliases.
"""

from pathlib import Path

import yaml

from helpers.errors import ParameterError
from helpers.store import display_path

MAX_BYTES = 1_000_000
MAX_DEPTH = 20
MAX_VALUES = 50_000  # with all aliases expanded
MAX_CHARACTERS = 1_000  # of one key or value


def load(path: Path) -> object:
    """Read the plain data in a YAML file; raise `ParameterError` that names the file."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ParameterError(f"The file is larger than {MAX_BYTES / 1e6:.0f} MB. Shorten it.")
        text = content.decode()
        _check_events(text)
        loader = yaml.CSafeLoader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _check_node(node, {})
        return loader.construct_document(node)
    except FileNotFoundError:
        reason = "No such file. Check the path."
    except (OSError, UnicodeDecodeError) as error:
        reason = f"The file cannot be read as text ({error})."
    except (yaml.YAMLError, ValueError) as error:  # ValueError: no such date or number
        reason = f"The file is not valid YAML ({' '.join(str(error).split())})."
    except ParameterError as error:
        reason = str(error)
    raise ParameterError(f"{display_path(path)}: {reason}")


def _check_events(text: str) -> None:
    """Raise `ParameterError` for too many levels, and for tags, which a node does not show."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.CSafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise _error(event, f"The file has more than {MAX_DEPTH} levels. Use fewer.")
        if tag := getattr(event, "tag", None):
            raise _error(event, f"The tag '{tag}' is not allowed. Remove it.")


def _check_node(node: yaml.Node, sizes: dict[yaml.Node, tuple[int, int]]) -> tuple[int, int]:
    """Return the numbers of values and levels of `node`, with all aliases expanded."""
    if node in sizes:
        return sizes[node]
    sizes[node] = MAX_VALUES, MAX_DEPTH  # counts if the node holds an alias of itself
    children: list[yaml.Node] = []
    if isinstance(node, yaml.ScalarNode):
        if len(node.value) > MAX_CHARACTERS:
            raise _error(node, f"The text has more than {MAX_CHARACTERS:,} characters. Shorten it.")
        if wrong := [character for character in node.value if not character.isprintable()]:
            raise _error(node, f"The text has the unprintable character {wrong[0]!r}. Remove it.")
    elif isinstance(node, yaml.SequenceNode):
        children = node.value
    else:
        keys: set[str] = set()
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _error(key, f"A key is a {key.id}. Use a name.")
            if key.value in keys:
                raise _error(key, f"The key {key.value!r} is there twice. Remove one.")
            keys |= {key.value} - {"<<"}  # several mappings may be merged into one
            children += (key, value)
    counts = [_check_node(child, sizes) for child in children]
    values = 1 + sum(count for count, _ in counts)
    levels = 1 + max((level for _, level in counts), default=0)
    if values > MAX_VALUES or levels > MAX_DEPTH:
        raise _error(node, "The aliases expand to too many values. Use fewer aliases.")
    sizes[node] = values, levels
    return values, levels


def _error(where: yaml.Node | yaml.Event, message: str) -> ParameterError:
    line = where.start_mark.line + 1 if where.start_mark else "unknown"
    return ParameterError(f"line {line}: {message}")
