"""`new --before`: the function that the server runs on a request before the network."""

import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from helpers.errors import DataError, ParameterError
from helpers.models import Arrays
from helpers.models._own import TensorSpec, before
from helpers.models._own import data as samples_file
from helpers.models._own.huggingface import Encoder, contents
from helpers.models._own.networks import explained
from helpers.models._own.preprocessing import FOLDER
from helpers.pipeline.own.draft import InspectedModel
from helpers.pipeline.own.origin import ModelSource, check_type

OF_FOLDER = "preprocessor"  # the option's value for a folder's own tokenizer or image preprocessor
MEANINGS = {"text": "UTF-8 bytes padded with zeros", "image": "an image file padded with zeros"}


@dataclass(frozen=True)
class FirstStep:
    """The preprocessing of a model: its function, what a client sends, and what it makes of it."""

    function: str
    requests: tuple[TensorSpec, ...]
    samples: Path  # what a client sends
    prepared: Arrays  # what the network takes
    takes_zeros: bool

    def described(self, model: InspectedModel) -> InspectedModel:
        """Return the model with this step."""
        takes_zeros = self.takes_zeros and model.description.takes_zeros
        fields = {"preprocessing": self.function, "requests": self.requests}
        return model.described(**fields, takes_zeros=takes_zeros)


def first_step(origin: ModelSource, option: str, samples: Path, folder: Path) -> FirstStep:
    """Copy the module of the function to `folder`, and run it there on the samples.

    `option` is "module:function" of a file in the current folder, or "preprocessor" for the files
    of a Hugging Face folder. Raises ParameterError, CheckpointError or DataError.
    """
    target = folder / FOLDER
    target.mkdir()
    sent = samples_file.load(samples) if samples.suffix == ".npz" else contents(samples)
    counts = {len(array) if array.ndim else 0 for array in sent.values()}
    if len(counts) != 1 or not (count := max(counts)):
        raise DataError(f"{samples} needs arrays with one row per sample, as many in each.")
    sent = {name: a[:, np.newaxis] if a.ndim == 1 else a for name, a in sent.items()}
    for name, array in sent.items():
        check_type(samples, name, str(array.dtype), "input")
    function = option
    if option == OF_FOLDER and origin.kind == "huggingface":
        function = encoder_of(origin).write(" and ".join(sent), target)
    else:
        module, _, name = option.partition(":")
        if not module.isidentifier() or not name.isidentifier():
            raise ParameterError(f"Invalid --before {option}. Use module:function.")
        with explained(option, "cannot be copied"):
            shutil.copyfile(f"{module}.py", target / f"{module}.py")
    with explained(option, "cannot be loaded. It may import what is installed, no other files"):
        session = before.Preprocessing(target, function)
    with explained(option, f"failed for {samples}"):
        prepared = session.run(sent)
        one = session.run({name: array[:1] for name, array in sent.items()})
    for name, array in prepared.items():
        check_type(option, name, str(array.dtype), "output")
        if len(array) != count:
            fault = f"{len(array)} rows of '{name}' for {count} samples"
            raise DataError(f"{option} returns {fault}. Return one row per sample.")
    if {n: a.shape[1:] for n, a in prepared.items()} != {n: a.shape[1:] for n, a in one.items()}:
        fault = "other names or shapes for one sample than for all of them"
        raise DataError(f"{option} returns {fault}. Pad them to fixed shapes.")
    takes_zeros = False
    with suppress(Exception):  # the user's code raises anything
        session.run({name: np.zeros_like(array[:1]) for name, array in sent.items()})
        takes_zeros = True
    requests = tuple(
        TensorSpec(name, str(array.dtype), array.shape[1:], meaning=MEANINGS.get(name, ""))
        for name, array in sent.items()
    )
    return FirstStep(function, requests, kept(sent, samples, folder), prepared, takes_zeros)


def encoder_of(origin: ModelSource) -> Encoder:
    """Return what encodes texts or images for a model of a Hugging Face folder."""
    assert origin.example
    first = next(iter(origin.example.values()))
    return Encoder(origin.path, [*origin.example], first.shape[-1])


def kept(arrays: Arrays, samples: Path, folder: Path) -> Path:
    """Return the file of samples; of texts or images it is a new one in `folder`."""
    if samples.suffix == ".npz":
        return samples
    np.savez(folder / samples_file.FILE, allow_pickle=False, **arrays)
    return folder / samples_file.FILE
