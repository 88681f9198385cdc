"""Validate the content of a file by a schema, with errors of one line."""

from typing import TYPE_CHECKING, TypeVar

import pydantic

from helpers.errors import ParameterError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

M = TypeVar("M", bound=pydantic.BaseModel)
MESSAGES = {  # kinds of pydantic's errors whose own message mentions Python or JSON
    "missing": "is missing. Add it.",
    "too_short": "is empty. Add at least one entry.",
    "model_type": "It should be a mapping of keys to values.",
    "dict_type": "It should be a mapping of keys to values.",
    "invalid-json-value": "It should be text in quotes, a number, true, false, a list or mapping.",
}
MAX_SHOWN_CHARACTERS = 100  # of an invalid value


def validated(schema: type[M], value: object, source: str, model: str = "") -> M:
    """Validate `value`, a file or its part on `model`; a `ParameterError` begins with `source`."""
    try:
        return schema.model_validate(value, context={"model": model})
    except pydantic.ValidationError as error:
        raise ParameterError(_line(source, error.errors()[0])) from None


def _line(source: str, error: "ErrorDetails") -> str:
    kind, value = error["type"], error["input"]
    keys = [str(key) for key in error["loc"] if key != "[key]"]
    # a colon separates keys from the file's name, a dot from other keys
    where = f"{source}{'.' if ': ' in source else ': '}{'.'.join(keys)}" if keys else source
    message = MESSAGES.get(kind) or error["msg"].removeprefix("Value error, ")
    message = message.replace("Input should", "It should").rstrip(".") + "."
    if kind == "string_type" and isinstance(value, int | float):
        message += " Write it in quotes: YAML drops a number's last zero."
    if kind in ("missing", "too_short"):
        return f"{where} {message}"
    if isinstance(value, dict) or error["loc"][-1:] == ("[key]",):
        return f"{where}: {message}"
    shown = repr(value)
    ending = "..." if len(shown) > MAX_SHOWN_CHARACTERS else ""
    return f"{where} is {shown[:MAX_SHOWN_CHARACTERS]}{ending}. {message}"
