"""Reading scalers out of scikit-learn's pickles, without scikit-learn and without trust."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np

from helpers.errors import DataError


class Estimator:
    """Holds what a scaler or an encoder of scikit-learn had learned: its attributes, no methods."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


def _encoded(text: str, _: str) -> bytes:
    """Give the bytes that a pickle of protocol 2 spells as Latin-1 text."""
    return text.encode("latin1")


_ARRAY, _SCALAR = np.zeros(1), np.float64(0)
_NUMPY = {  # what numpy's own pickles of arrays and scalars need
    "multiarray._reconstruct": _ARRAY.__reduce__()[0],
    "multiarray.scalar": _SCALAR.__reduce__()[0],
    "numeric._frombuffer": _ARRAY.__reduce_ex__(5)[0],
}
_SKLEARN = {"_data": "StandardScaler", "_label": "LabelEncoder"}
_SKLEARN |= {"data": "StandardScaler", "label": "LabelEncoder"}  # of releases before 0.22
ALLOWED: dict[str, Any] = {
    "_codecs.encode": _encoded,
    "numpy.ndarray": np.ndarray,
    "numpy.dtype": np.dtype,
    **{f"numpy.core.{name}": found for name, found in _NUMPY.items()},
    **{f"numpy._core.{name}": found for name, found in _NUMPY.items()},
    **{f"sklearn.preprocessing.{module}.{kind}": Estimator for module, kind in _SKLEARN.items()},
}


class _Restricted(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (full := f"{module}.{name}") not in ALLOWED:
            raise pickle.UnpicklingError(f"it names {full}")
        return ALLOWED[full]


def read(path: Path) -> Any:
    """Read a pickle of numpy arrays, StandardScaler and LabelEncoder objects in plain containers.

    Its protocol is 2 or later, as Python 3 writes it. The two classes come back as `Estimator`.
    Raises DataError for a file that is damaged or names anything else; nothing is imported.
    """
    try:
        with path.open("rb") as file:
            return _Restricted(file).load()
    except FileNotFoundError:
        raise DataError(f"{path} is missing") from None
    except Exception as error:  # damaged bytes can fail in any way inside the unpickler
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        raise DataError(f"{path} was refused: {reason}") from None
