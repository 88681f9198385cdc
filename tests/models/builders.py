"""What the tests of several models build: settings, refusals, hostile files, a client's reading."""

import os
import re
from contextlib import redirect_stdout
from io import StringIO
from types import SimpleNamespace

import numpy as np
import pytest


class Fields(SimpleNamespace):
    """What a model reads of an experiment."""

    def model_copy(self, update):
        return Fields(**vars(self) | update)


def config_of(**fields):
    """Settings of an experiment with the generated small set."""
    defaults = {
        "dataset": "generated-small",
        "variant": "",
        "export_precision": "fp32",
        "crop_size": None,
        "max_seq_length": None,
        "opset": None,
        "lookup": "",
        "fused": True,
        "table_precision": "fp32",
    }
    return Fields(**defaults | fields)


def refusal(error, act, *arguments):
    """Return the message of the error that a call raises, which is one line."""
    with pytest.raises(error) as caught:
        act(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


class Command:
    """An object whose unpickling runs a shell command."""

    def __init__(self, text):
        self.text = text

    def __reduce__(self):
        return os.system, (self.text,)


def content(folder):
    """Read all files of a folder, by their paths in it."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def encrypt(path):
    """Set the flag of encryption in each header of a zip file."""
    changed = bytearray(path.read_bytes())
    for mark, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        for found in re.finditer(mark, bytes(changed)):
            changed[found.start() + place] |= 1
    path.write_bytes(changed)


def said(example, outputs):
    """The lines that the client in a model repository prints of these outputs."""
    response = SimpleNamespace(as_numpy=outputs.__getitem__)
    names = {"np": np, "response": response, "sample": example.beside | example.batch}
    with redirect_stdout(StringIO()) as printed:
        exec(example.reading, names)
    return printed.getvalue().splitlines()
