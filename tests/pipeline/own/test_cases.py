"""Models like those of public bug reports, and files that are none: each is refused in one line, or
it is served with the answers of its own runtime, under the names that this reports.
"""

import re
from contextlib import nullcontext

import joblib
import numpy as np
import pytest

from helpers.__main__ import main
from helpers.errors import CheckpointError, FormatError
from helpers.pipeline.own import fitted as conversion
from helpers.pipeline.own import options, origin
from tests.pipeline.own import refusals, sources
from tests.pipeline.own.builders import MAKING, new, run, serving
from tests.pipeline.own.cases import FILE, REFUSED, TAKEN

SLOW = refusals.cases(refusals.SLOW) | {name: case[:3] for name, case in REFUSED.items()}
FAST = refusals.cases(refusals.FAST)
TRACED = (
    "ts-script-fp32, ts-script-bf16, ts-trace-fp32, ts-trace-bf16, openvino-fp32, openvino-bf16"
)
OF_TORCH = {
    "TorchScript": (sources.torch_files, ("--from", "net.pt", "--samples", "samples.npz"), TRACED),
    "branch": (sources.networks, ("--from", "nets:branch"), ": ts-script-fp32, ts-script-bf16\n"),
}
ALL_TAKEN = {**{name: case[:3] for name, case in TAKEN.items()}, **OF_TORCH}


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL_TAKEN)
def test_a_model_is_taken_and_its_limits_are_said(name, place, tmp_path, capsys):
    prepare, given, line = ALL_TAKEN[name]
    prepare(tmp_path)

    assert main(["new", name, *given]) == 0

    said, errors = capsys.readouterr()
    assert line in said
    assert not errors


@pytest.mark.parametrize(
    "name", [*(pytest.param(name, marks=pytest.mark.slow) for name in SLOW), *FAST]
)
def test_what_cannot_be_served_is_refused_in_one_line(name, place, capsys):
    prepare, given, line = (FAST | SLOW)[name]
    prepare(place.parent)
    capsys.readouterr()

    assert main(["new", "mine", *given]) in (1, 2)

    said = capsys.readouterr()
    assert said.out == ""
    assert re.fullmatch("error: .+\n", said.err)
    assert line in said.err
    assert "--before" not in given or "/tmp" not in said.err
    assert not place.exists()


def by_onnxruntime(path, inputs):
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_outputs() if each.type != "tensor(string)"]
    return dict(zip(names, session.run(names, inputs), strict=True))


def drawn_for(path):
    """Draw three samples for each input without a default."""
    import onnx

    graph = onnx.load(path).graph
    held = {each.name for each in graph.initializer}
    draw, found = np.random.default_rng(7), {}
    for value in (each for each in graph.input if each.name not in held):
        kind = value.type.tensor_type
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        shape = [3, *(dim.dim_value for dim in kind.shape.dim[1:])]
        found[value.name] = draw.standard_normal(shape).astype(dtype)
        if value.name == "length":
            found[value.name] = np.array([[1], [4], [2]])
    return found


@pytest.mark.slow
@pytest.mark.thorough
def test_served_answers_are_those_of_onnx_runtime_by_name(fresh, tmp_path):
    names = [name for name, case in TAKEN.items() if case.options == FILE]
    for name in names:
        (tmp_path / name).mkdir()
        TAKEN[name].prepare(tmp_path / name)
        new(fresh, name, "--from", str(tmp_path / name / "model.onnx"), keep=["onnx-fp32"])
    run(fresh, names, *MAKING)

    for name in names:
        path = tmp_path / name / "model.onnx"
        given = drawn_for(path)
        with serving(fresh, name) as ask:
            found = ask(given)
            for key, array in by_onnxruntime(path, given).items():
                if array.size:
                    assert np.allclose(found(key), array, rtol=1e-3, atol=1e-5), name


def fitted(kind, folder):
    """Fit and save a model of scikit-learn, XGBoost or LightGBM to a task with three classes."""
    from sklearn.datasets import load_iris
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    features, classes = load_iris(return_X_y=True)
    model = make_pipeline(StandardScaler(), LogisticRegression())
    if kind == "forest of names":
        from sklearn.ensemble import RandomForestClassifier

        model = RandomForestClassifier(10, random_state=0)
        classes = np.array(["setosa", "versicolor", "virginica"])[classes]
    elif kind == "xgboost":
        model = pytest.importorskip("xgboost").XGBClassifier(n_estimators=5)
    elif kind == "lightgbm":
        model = pytest.importorskip("lightgbm").LGBMRegressor(n_estimators=10, verbose=-1)
    model.fit(features.astype(np.float32), classes)
    joblib.dump(model, folder / "model.joblib")
    return folder / "model.joblib", model


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pipeline", "forest of names", "xgboost", "lightgbm"])
def test_a_fitted_model_becomes_an_onnx_file_that_predicts_the_same(kind, place, tmp_path, capsys):
    path, model = fitted(kind, tmp_path)

    assert main(["new", "iris", "--from", str(path)]) == 0

    assert "input features: float32, 4" in capsys.readouterr().out
    written = place / "helpers/models/iris/model.onnx"
    assert "helpers/models/iris/model.onnx\n" in (place / "params/iris.yaml").read_text()
    rows = np.random.default_rng(3).uniform(0, 8, (50, 4)).astype(np.float32)
    *_, found = by_onnxruntime(written, {"features": rows}).values()
    if kind == "lightgbm":
        assert np.allclose(found.ravel(), model.predict(rows), rtol=1e-4)
    else:
        assert np.allclose(found, model.predict_proba(rows), atol=1e-4)


@pytest.mark.parametrize(
    ("found", "precision", "is_right"),
    [
        ([1, 2.0001], "fp32", True),
        ([1, 2.01], "fp32", False),
        ([1, 2.01], "bf16", True),
        ([1, 2, 0], "bf16", False),
    ],
)
def test_a_format_that_computes_something_else_is_left_out(found, precision, is_right):
    expected = nullcontext() if is_right else pytest.raises(FormatError, match="the output 'y'")
    with expected:
        options._compare({"y": np.float32([found])}, {"y": np.float32([[1, 2]])}, precision)


def test_a_conversion_that_predicts_otherwise_is_refused(tmp_path, monkeypatch):
    from sklearn.linear_model import LogisticRegression

    path, _ = fitted("pipeline", tmp_path)
    rows = np.random.default_rng(0).standard_normal((90, 4))
    other, convert = LogisticRegression().fit(rows, np.arange(90) % 3), conversion._converted
    monkeypatch.setattr(conversion, "_converted", lambda _, columns: convert(other, columns))

    words = "predicts otherwise in ONNX for .* Convert it yoursel"
    with pytest.raises(CheckpointError, match=words):
        origin.read(str(path), tmp_path)


def test_a_pipeline_that_takes_columns_by_name_is_one_line(tmp_path):
    import pandas as pd
    from sklearn.compose import ColumnTransformer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    frame = pd.DataFrame({"size": np.arange(40.0), "weight": np.arange(40.0) ** 2})
    columns = ColumnTransformer([("scaled", StandardScaler(), ["size", "weight"])])
    model = make_pipeline(columns, LogisticRegression()).fit(frame, np.arange(40) % 2)
    joblib.dump(model, tmp_path / "model.joblib")

    with pytest.raises(CheckpointError, match="cannot be converted|cannot predict") as caught:
        origin.read(str(tmp_path / "model.joblib"), tmp_path)

    assert "\n" not in str(caught.value)
