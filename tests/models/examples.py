"""Reading an answer as the client does that a model repository takes along."""

from contextlib import redirect_stdout
from io import StringIO
from types import SimpleNamespace

import numpy as np

from helpers.models import Arrays, Example


def said(example: Example, outputs: Arrays) -> list[str]:
    """The lines that the reading of an example prints of these outputs."""
    response = SimpleNamespace(as_numpy=outputs.__getitem__)
    printed = StringIO()
    with redirect_stdout(printed):
        exec(
            example.reading,
            {"np": np, "response": response, "sample": example.beside | example.batch},
        )
    return printed.getvalue().splitlines()
