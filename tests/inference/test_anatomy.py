"""What a reader sees of a network and its graph: layers, tensors and operators."""

from pathlib import Path

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


def counts(network):
    return {row["layer"]: (row["count"], row["parameters"]) for row in layers(network)}


def test_the_layers_of_resnet50_are_those_of_the_paper():
    """He et al., table 1: 53 convolutions (four of them on shortcuts), one dense layer."""
    found = counts(ResNet50())

    without = "ReLU, MaxPool2d, AdaptiveAvgPool2d"
    assert [*found] == ["Conv2d", "Linear", "BatchNorm2d", without, "all"]
    assert found["all"][1] == 25_557_032  # as published
    assert found["Conv2d"][0] == 1 + 3 * (3 + 4 + 6 + 3) + 4
    assert found["BatchNorm2d"] == (53, 2 * 26_560)
    assert found["Linear"] == (1, 2048 * 1000 + 1000)
    assert found[without] == (19, 0)


def test_parameters_of_a_module_with_layers_inside_are_its_own():
    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(5))
            self.inner = torch.nn.Linear(3, 2)

    assert counts(Scaled()) == {"Linear": (1, 8), "Scaled": (1, 5), "all": (2, 13)}


@pytest.mark.slow
def test_the_layers_of_a_keras_model_inside_another_are_counted():
    keras = import_keras()
    first = keras.Input((4,))
    inner = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dropout(0.1)])
    network = keras.Model(first, keras.layers.Dense(2)(inner(first)))

    dense = 4 * 3 + 3 + 3 * 2 + 2
    assert counts(network) == {"Dense": (2, dense), "Dropout": (1, 0), "all": (3, dense)}


def test_tensors_have_type_shape_and_meaning():
    colours = "red, green and blue of an image, normalised"
    assert [tuple(row.values()) for row in signature(resolve("resnet50", "export"))] == [
        ("input", "INPUT__0", "float32", "batch x 3 x 224 x 224", colours),
        ("output", "OUTPUT__0", "float32", "batch x 1000", "a logit for each class"),
    ]


def test_tensors_that_differ_only_by_name_share_a_row():
    rows = signature(resolve("widedeep", "export"))

    assert [str(row["name"]).count(",") + 1 for row in rows] == [13, 13, 3, 1]


def test_an_ensemble_has_the_tensors_of_each_of_its_models():
    rows = signature(resolve("dlrm", "export"))
    flat = signature(resolve("dlrm", "export", overrides={"lookup": "hps"}))

    sparse, dense = "dlrm_sparse", "dlrm_dense"
    assert [row["model"] for row in rows] == [sparse, sparse, dense, dense, dense]
    assert [row["tensor"] for row in rows] == ["input", "output", "input", "input", "output"]
    assert rows[2]["name"] == "numerical_features (args_0 in its graph)"
    sizes = ["any", "any", "any", "13 of each sample", "3328 of each sample", "any x 1"]
    assert [row["shape"] for row in flat] == sizes


@pytest.mark.parametrize("model", ["resnet50", "bert", "tft", "widedeep", "dlrm", "dcnv2"])
def test_every_tensor_of_every_model_says_what_it_is(model):
    for overrides in ({}, {"lookup": "hps"})[: 1 + (model in ("dlrm", "dcnv2"))]:
        rows = signature(resolve(model, "export", overrides=overrides))
        assert all(row["what it is"] for row in rows)


def test_operators_are_listed_by_how_many_there_are_or_why_not():
    def listed(counts):
        made = Artifact(Path("made"), {}, {"operators": counts} if counts else {})
        return [(row["operator"], row["count"]) for row in operators(made)]

    assert listed({"Relu": 2, "Conv": 3}) == [("Conv", 3), ("Relu", 2), ("all", 5)]
    many = {f"Op{place}": 100 - place for place in range(MOST + 2)}
    assert listed(many)[-2:] == [("2 other kinds", 199 - 2 * MOST), ("all", sum(many.values()))]
    assert listed("not counted: x") == [("not counted: x", None)]
    assert listed(None) == [("not listed by this format", None)]


def test_what_an_artifact_holds_is_told_or_why_not(tmp_path):
    path, inputs = tmp_path / onnx.FILE, {"x": np.ones((2, 2), np.float32)}
    onnx.make(torch.nn.Linear(2, 2), path, Build("fp32", inputs, ("y",), 17))
    fmt = artifacts.formats.get("onnx")

    assert artifacts._described(path, fmt) == {"operators": {"Gemm": 1}, "opset": 17}
    path.write_bytes(b"no protobuf")
    assert str(artifacts._described(path, fmt)["operators"]).startswith("not counted: ")
