"""Reading scalers out of scikit-learn's pickles, without scikit-learn and without trust."""

import pickle
from pathlib import Path

from helpers.errors import DataError

NUMPY = {  # what numpy's pickles of arrays and scalars name; numpy.core is numpy._core since 2.0
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy.core.multiarray", "scalar"),
    ("numpy.core.numeric", "_frombuffer"),
}
SCIKIT_LEARN = {  # data and label are the modules of releases before 0.22
    ("sklearn.preprocessing._data", "StandardScaler"),
    ("sklearn.preprocessing.data", "StandardScaler"),
    ("sklearn.preprocessing._label", "LabelEncoder"),
    ("sklearn.preprocessing.label", "LabelEncoder"),
}


class Estimator:
    """Holds what a scaler or an encoder of scikit-learn has learned: its attributes, no methods."""


def _encode(text: str, _: str) -> bytes:
    """Give the bytes that a pickle of protocol 2 spells as Latin-1 text."""
    return text.encode("latin1")


class _Restricted(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> object:
        old = module.replace("numpy._core", "numpy.core")
        if (old, name) in NUMPY:
            return super().find_class(old, name)
        if (module, name) in SCIKIT_LEARN:
            return Estimator
        if (module, name) == ("_codecs", "encode"):
            return _encode
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def read(path: Path) -> object:
    """Read a pickle of numpy arrays, StandardScaler and LabelEncoder objects in plain containers.

    Its protocol is 2 or later, as Python 3 writes it. The two classes come back as `Estimator`.
    Raises DataError for a file that is damaged or names anything else, of which nothing is
    imported.
    """
    try:
        with path.open("rb") as file:
            return _Restricted(file).load()
    except FileNotFoundError:
        raise DataError(f"{path} is missing") from None
    except Exception as error:  # damaged bytes can fail in any way inside the unpickler
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        raise DataError(f"{path} was refused: {reason}") from None
