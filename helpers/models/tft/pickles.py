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


def _arrays() -> dict[tuple[str, str], Any]:
    """Name what numpy's own pickles of arrays and scalars need, under the names of 1.x and 2.x."""
    array, scalar = np.zeros(1), np.float64(0)
    allowed: dict[tuple[str, str], Any] = {("_codecs", "encode"): _encoded}
    allowed |= {("numpy", kind.__name__): kind for kind in (np.ndarray, np.dtype)}
    for package in ("numpy.core", "numpy._core"):
        allowed[f"{package}.multiarray", "_reconstruct"] = array.__reduce__()[0]
        allowed[f"{package}.multiarray", "scalar"] = scalar.__reduce__()[0]
        allowed[f"{package}.numeric", "_frombuffer"] = array.__reduce_ex__(5)[0]
    return allowed


ALLOWED = {
    **_arrays(),
    **{
        (f"sklearn.preprocessing.{module}", kind): Estimator
        for kind, modules in (
            ("StandardScaler", ("_data", "data")),
            ("LabelEncoder", ("_label", "label")),
        )
        for module in modules  # the second is that of releases before 0.22
    },
}


class _Restricted(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it names {module}.{name}") from None


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
