"""A model of one small layer, for a copy of the project: what a new model must offer."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from helpers.models import Arrays, Config, Dataset, Graph, Model, Split, Tensor

FEATURES, CLASSES, COUNT = 16, 4, 96


class Points(Dataset):
    def __init__(self, folder: Path) -> None:
        with np.load(folder / "points.npz") as arrays:
            self.x, self.y = arrays["x"], arrays["y"]

    @property
    def facts(self) -> dict[str, str | int]:
        return {"points": len(self.x)}

    def __len__(self) -> int:
        return len(self.x)

    def take(self, places: NDArray[np.int64]) -> Arrays:
        return {"features": self.x[places]}

    def score(self, outputs: Arrays) -> dict[str, float]:
        return {"accuracy": float((outputs["logits"].argmax(1) == self.y).mean())}

    def decisions(self, outputs: Arrays) -> NDArray[np.int64]:
        return outputs["logits"].argmax(1)


def weights() -> NDArray[np.float32]:
    return np.random.default_rng(0).standard_normal((CLASSES, FEATURES)).astype(np.float32)


@dataclass(frozen=True)
class Product:
    layer: NDArray[np.float32]

    def run(self, inputs: Arrays) -> Arrays:
        return {"logits": inputs["features"] @ self.layer.T}


class Dummy(Model):
    TITLE = "Dummy"
    FRAMEWORK = "onnxruntime"  # no import that takes seconds
    METRICS: ClassVar = {"accuracy": "higher"}
    GENERATED = ("generated",)
    BATCH = 8
    TOLERANCES: ClassVar = {"fp32": (1e-4, 1e-5), "bf16": (0.2, 0.05)}

    def inputs(self, config: Config) -> tuple[Tensor, ...]:
        return (Tensor("features", "float32", (FEATURES,)),)

    def outputs(self, config: Config) -> tuple[Tensor, ...]:
        return (Tensor("logits", "float32", (CLASSES,)),)

    def prepare_dataset(self, config: Config, folder: Path) -> None:
        x = np.random.default_rng(1).standard_normal((COUNT, FEATURES)).astype(np.float32)
        np.savez(folder / "points.npz", x=x, y=(x @ weights().T).argmax(1))

    def open_dataset(self, config: Config, folder: Path, split: Split = "test") -> Dataset:
        return Points(folder)

    def prepare_checkpoint(self, config: Config, dataset: Path, path: Path) -> None:
        path.write_text(json.dumps(weights().tolist()))

    def build(self, config: Config, checkpoint: Path) -> Graph:
        import onnx
        from onnx.helper import make_graph, make_model, make_node, make_tensor_value_info

        layer = np.array(json.loads(checkpoint.read_text()), np.float32)
        features, logits = (
            make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["batch", size])
            for name, size in (("features", FEATURES), ("logits", CLASSES))
        )
        node = make_node("MatMul", ["features", "weights"], ["logits"])
        held = onnx.numpy_helper.from_array(layer.T, "weights")
        graph = make_graph([node], "dummy", [features], [logits], [held])
        opset = onnx.helper.make_opsetid("", 17)
        model = make_model(graph, opset_imports=[opset], ir_version=8)
        return Graph(model, Product(layer), (("MatMul", layer.size),))


MODEL = Dummy()
