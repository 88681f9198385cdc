"""Reading scalers out of scikit-learn's pickles, without scikit-learn and without running other
code.
"""

import pickle
import re
from pathlib import Path
from typing import Any

from helpers.errors import DataError, one_line

NUMPY = {  # the names in numpy's own pickles of arrays and scalars
    "_codecs": ("encode",),
    "numpy": ("ndarray", "dtype"),
    "numpy._core.multiarray": ("_reconstruct", "scalar"),
    "numpy._core.numeric": ("_frombuffer",),
}
SKLEARN = r"sklearn\.preprocessing\._?(data\.StandardScaler|label\.LabelEncoder)"


class Estimator:
    """The fitted attributes of a scaler or an encoder of scikit-learn, without methods."""


class _Restricted(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if re.fullmatch(SKLEARN, f"{module}.{name}"):
            return Estimator
        current = module.replace("numpy.core", "numpy._core")  # as NumPy 1 called it
        if name not in NUMPY.get(current, ()):
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return super().find_class(current, name)


def read(path: Path) -> Any:
    """Read a pickle of numpy arrays, StandardScaler and LabelEncoder objects in plain containers.

    Its protocol is 2 or later, as Python 3 writes it. The two classes come back as `Estimator`.
    Raises DataError for a file that is damaged or names anything else; nothing else is imported.
    """
    try:
        with path.open("rb") as file:
            return _Restricted(file).load()
    except FileNotFoundError:
        raise DataError(f"{path} is missing") from None
    except Exception as error:  # damaged bytes can fail in any way inside the unpickler
        reason = one_line(error, 120) or type(error).__name__
        raise DataError(f"{path} was rejected: {reason}") from None
