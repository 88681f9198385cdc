"""Convert a fitted model of scikit-learn, XGBoost or LightGBM to ONNX."""

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from helpers.errors import CheckpointError
from helpers.machine import require
from helpers.models._own.graph import OnnxRuntime
from helpers.models._own.networks import explained

if TYPE_CHECKING:
    import onnx

OPSETS = {"": 17, "ai.onnx.ml": 3}
ROWS, SAME = 256, 0.99  # random rows, and the share whose predictions must be equal
CLOSE = 1e-3  # relative difference of predicted numbers


def convert(path: Path, target: Path) -> None:
    """Write the ONNX file of a model that joblib or pickle saved. Its one input is `features`, in
    the order of the columns; a classifier has the outputs of its classes and probabilities.

    Reading such a file runs code that it contains. Raises CheckpointError if it is no fitted model,
    if there is no converter, or if ONNX Runtime predicts something else for random rows.
    """
    require("joblib", "skl2onnx", "onnxmltools")
    import joblib

    with explained(path, "is not a model that joblib can read"):
        fitted = joblib.load(path)
    columns = getattr(fitted, "n_features_in_", None)
    if not columns or not hasattr(fitted, "predict"):
        what = f"holds a {type(fitted).__name__} and not a fitted model of scikit-learn"
        raise CheckpointError(f"{path} {what}, XGBoost or LightGBM. Save the model itself.")
    with explained(path, "cannot be converted to ONNX"):
        model = _converted(fitted, int(columns))
    _require_same(path, fitted, model, int(columns))
    target.write_bytes(model.SerializeToString())


def _converted(fitted: Any, columns: int) -> "onnx.ModelProto":
    library = type(fitted).__module__.partition(".")[0]
    if library in ("xgboost", "lightgbm"):
        import onnxmltools
        from onnxmltools.convert.common.data_types import FloatTensorType

        write: Any = getattr(onnxmltools, f"convert_{library}")
        options: dict[str, Any] = {"target_opset": 15} | (
            {"zipmap": False} if library == "lightgbm" else {}
        )
    else:
        import skl2onnx
        from skl2onnx.common.data_types import FloatTensorType

        write = skl2onnx.convert_sklearn
        zipmap = {"options": {"zipmap": False}} if hasattr(fitted, "classes_") else {}
        options = {"target_opset": OPSETS, **zipmap}
    given = [("features", FloatTensorType([None, columns]))]
    return cast("onnx.ModelProto", write(fitted, initial_types=given, **options))


def _require_same(path: Path, fitted: Any, model: "onnx.ModelProto", columns: int) -> None:
    """Raise CheckpointError if the graph predicts other classes or numbers than the model."""
    rows = np.random.default_rng(0).standard_normal((ROWS, columns)).astype(np.float32)
    ignored = warnings.catch_warnings(action="ignore")  # scikit-learn misses the names of columns
    with explained(path, "cannot predict from an array of numbers"), ignored:
        found = next(iter(OnnxRuntime(model).run({"features": rows}).values())).reshape(ROWS, -1)
        right = np.asarray(fitted.predict(rows)).reshape(ROWS, -1)
    if right.dtype.kind == "f" and not hasattr(fitted, "classes_"):
        equal = np.isclose(found, right, rtol=CLOSE, atol=CLOSE * float(np.abs(right).max()))
    else:  # classes, perhaps as text
        equal = np.char.mod("%s", found) == np.char.mod("%s", right)
    if equal.mean() < SAME:
        what = f"predicts otherwise in ONNX for {1 - equal.mean():.0%} of {ROWS} random rows"
        raise CheckpointError(f"{path} {what}. Convert it yourself, and use the .onnx file.")
