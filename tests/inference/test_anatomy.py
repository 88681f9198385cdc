"""What a reader sees of a network and its graph: layers, tensors and operators."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers.config import resolve
from helpers.formats import Build, onnx
from helpers.inference import artifacts, layers, operators, signature
from helpers.inference.anatomy import MOST
from helpers.models._keras import keras as import_keras
from helpers.models.resnet50.network import ResNet50
from helpers.store import Artifact


def artifact(counts: Any) -> Artifact:
    return Artifact(Path("made"), {}, {"operators": counts} if counts else {})


def test_the_layers_of_resnet50_are_those_of_the_paper() -> None:
    """He et al., table 1: 53 convolutions (four of them on shortcuts), one dense layer."""
    found = {row["layer"]: (row["count"], row["parameters"]) for row in layers(ResNet50())}

    assert found["all"][1] == 25_557_032  # as published
    assert found["Conv2d"][0] == 1 + 3 * (3 + 4 + 6 + 3) + 4
    assert found["BatchNorm2d"] == (53, 2 * 26_560)
    assert found["Linear"] == (1, 2048 * 1000 + 1000)
    assert found["ReLU, MaxPool2d, AdaptiveAvgPool2d"] == (19, 0)
    assert list(found) == [
        "Conv2d",
        "Linear",
        "BatchNorm2d",
        "ReLU, MaxPool2d, AdaptiveAvgPool2d",
        "all",
    ]


def test_parameters_of_a_module_with_layers_inside_are_its_own() -> None:
    class Scaled(torch.nn.Module):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(5))
            self.inner = torch.nn.Linear(3, 2)

    found = {row["layer"]: (row["count"], row["parameters"]) for row in layers(Scaled())}

    assert found == {"Linear": (1, 8), "Scaled": (1, 5), "all": (2, 13)}


@pytest.mark.slow
def test_the_layers_of_a_keras_model_inside_another_are_counted() -> None:
    keras = import_keras()
    first = keras.Input((4,))
    inner = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dropout(0.1)])
    network = keras.Model(first, keras.layers.Dense(2)(inner(first)))

    found = layers(network)

    assert [(row["layer"], row["count"], row["parameters"]) for row in found] == [
        ("Dense", 2, 4 * 3 + 3 + 3 * 2 + 2),
        ("Dropout", 1, 0),
        ("all", 3, network.count_params()),
    ]


def test_tensors_have_type_shape_and_meaning() -> None:
    assert signature(resolve("resnet50", "export")) == [
        {
            "tensor": "input",
            "name": "INPUT__0",
            "dtype": "float32",
            "shape": "batch x 3 x 224 x 224",
            "what it is": "red, green and blue of an image, normalised",
        },
        {
            "tensor": "output",
            "name": "OUTPUT__0",
            "dtype": "float32",
            "shape": "batch x 1000",
            "what it is": "a logit for each class",
        },
    ]


def test_tensors_that_differ_only_by_name_share_a_row() -> None:
    rows = signature(resolve("widedeep", "export"))

    assert [str(row["name"]).count(",") + 1 for row in rows] == [13, 13, 3, 1]


def test_an_ensemble_has_the_tensors_of_each_of_its_models() -> None:
    rows = signature(resolve("dlrm", "export"))
    flat = signature(resolve("dlrm", "export", overrides={"lookup": "hps"}))

    assert [(row["model"], row["tensor"]) for row in rows] == [
        ("dlrm_sparse", "input"),
        ("dlrm_sparse", "output"),
        *[("dlrm_dense", "input")] * 2,
        ("dlrm_dense", "output"),
    ]
    assert rows[2]["name"] == "numerical_features (args_0 in its graph)"
    assert rows[2]["shape"] == "batch x 13"
    assert [row["shape"] for row in flat] == [
        *["any"] * 3,
        "13 of each sample",
        "3328 of each sample",
        "any x 1",
    ]


@pytest.mark.parametrize("model", ["resnet50", "bert", "tft", "widedeep", "dlrm", "dcnv2"])
def test_every_tensor_of_every_model_says_what_it_is(model: str) -> None:
    given: list[dict[str, Any]] = [{}, {"lookup": "hps"}] if model in ("dlrm", "dcnv2") else [{}]

    for overrides in given:
        assert all(
            row["what it is"]
            for row in signature(resolve(model, "export", **{"overrides": overrides}))
        )


def test_operators_are_listed_by_how_many_there_are() -> None:
    few = operators(artifact({"Relu": 2, "Conv": 3}))
    many = operators(artifact({f"Op{place}": 100 - place for place in range(MOST + 2)}))

    assert few == [
        {"operator": "Conv", "count": 3},
        {"operator": "Relu", "count": 2},
        {"operator": "all", "count": 5},
    ]
    assert [row["operator"] for row in many[-2:]] == ["2 other kinds", "all"]
    assert many[-2]["count"] == 100 - MOST + 100 - MOST - 1


def test_why_operators_are_not_counted_is_said() -> None:
    assert operators(artifact("not counted: x")) == [{"operator": "not counted: x", "count": None}]
    assert operators(artifact(None))[0]["operator"] == "not listed by this format"


def test_what_an_artifact_holds_is_told_or_why_not(tmp_path: Path) -> None:
    path = tmp_path / onnx.FILE
    onnx.make(
        torch.nn.Linear(2, 2), path, Build("fp32", {"x": np.ones((2, 2), np.float32)}, ("y",), 17)
    )
    fmt = artifacts.formats.get("onnx")

    assert artifacts._described(path, fmt) == {"operators": {"Gemm": 1}, "opset": 17}
    path.write_bytes(b"no protobuf")
    assert str(artifacts._described(path, fmt)["operators"]).startswith("not counted: ")
