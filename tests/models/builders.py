"""What the tests of several models build: settings, refusals, hostile files, a client's reading."""

import json
import os
import re
import subprocess
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from helpers import formats
from helpers.formats import Build
from helpers.measure.checks import difference


class Fields(SimpleNamespace):
    """What a model reads of an experiment."""

    def model_copy(self, update):
        return Fields(**vars(self) | update)


def config_of(**fields):
    """Settings of an experiment with the generated small set."""
    defaults = {
        **{"dataset": "generated-small", "variant": "", "export_precision": "fp32", "lookup": ""},
        **{"opset": None, "crop_size": None, "max_seq_length": None},
        **{"fused": True, "table_precision": "fp32"},
    }
    return Fields(**defaults | fields)


def published(table):
    """The types and shapes of the tensors of NVIDIA's checkpoint, by name."""
    lines = (Path(__file__).parent / "data" / f"{table}.tsv").read_text().splitlines()
    rows = [line.split("\t") for line in lines]
    return {name: (dtype, json.loads(shape)) for name, shape, dtype in rows}


def tensors(state):
    """Those of a state dict of PyTorch."""
    return {
        name: (str(tensor.dtype).removeprefix("torch."), [*tensor.shape])
        for name, tensor in state.items()
    }


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


def assert_formats_equal(model, network, run, sources, outputs, folder, *batches):
    """Make formats ("onnx", "onnx bf16"), each of the one named beside it or of the network, with
    the first batch: they answer the others as `run` does, which gives an output or a list of them.
    """
    paths = {"": network}
    for made, source in sources.items():
        name, _, precision = made.partition(" ")
        fmt, precision = formats.get(name), precision or "fp32"
        paths[made] = folder / f"{precision}-{fmt.FILE}"
        fmt.make(paths[source], paths[made], Build(precision, batches[0], outputs))
        session = fmt.load(paths[made], 2, "cpu")
        for batch in batches[1:]:
            found, expected = session.run(batch), run(network, batch)
            expected = expected if isinstance(expected, list) else [expected]
            for output, right in zip(outputs, expected, strict=True):
                held = difference(output, found[output], right, model.TOLERANCES[precision])
                assert held.ok, (made, held)


def assert_bounds_tell(tolerances, expected, wrong, near_in_int8=None):
    """Random outputs, zeros, two samples in each other's place and what else is `wrong` exceed the
    bounds of every precision; of int8, those with `near_in_int8` in their name may be within.
    """
    rng = np.random.default_rng(4)
    every = {"random": [rng.normal(x.mean(), x.std(), x.shape) for x in expected], **wrong}
    every["zero"] = [np.zeros_like(x) for x in expected]
    last = len(expected[0]) - 1
    for first, second in ((0, 1), (0, last), (last // 2, last // 2 + 1)):
        order = np.arange(last + 1)
        order[[first, second]] = second, first
        every[f"{first} and {second} swapped"] = [x[order] for x in expected]
    for precision, bounds in tolerances.items():
        passed = [
            name
            for name, found in every.items()
            if all(difference("", *pair, bounds).ok for pair in zip(found, expected, strict=True))
        ]
        if precision == "int8" and near_in_int8:
            passed = [name for name in passed if near_in_int8 not in name]
        assert passed == [], precision


PEAK = r"""
import re, sys
from pathlib import Path
def peak():
    return int(re.search(r"VmHWM:\s*(\d+)", Path("/proc/self/status").read_text())[1]) / 1024
"""


def grown(before, code, *arguments):
    """Run code in another process: its lines, and the megabytes by which its memory peaks above
    what it has reached `before`.
    """
    text = f"{PEAK}{before}\nleast = peak()\n{code}\nprint(peak() - least)"
    command = [sys.executable, "-c", text, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    *lines, megabytes = done.stdout.splitlines()
    return lines, float(megabytes)
