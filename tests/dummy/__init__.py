"""A model of one small layer, for a copy of the project: what a new model must offer."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from helpers.models import Arrays, Config, Dataset, Model, Tensor

FEATURES, CLASSES, COUNT = 16, 4, 96


class Points:
    def __init__(self, folder: Path) -> None:
        with np.load(folder / "points.npz") as arrays:
            self.x, self.y = arrays["x"], arrays["y"]

    @property
    def facts(self) -> dict[str, str | int]:
        return {"points": len(self.x)}

    def __len__(self) -> int:
        return len(self.x)

    def batches(self, batch_size: int, limit: int | None = None) -> Iterator[Arrays]:
        chosen = np.linspace(0, len(self.x) - 1, limit or len(self.x)).astype(int)
        for start in range(0, len(chosen), batch_size):
            yield {"features": self.x[chosen[start : start + batch_size]]}

    def score(self, outputs: Arrays) -> dict[str, float]:
        return {"accuracy": float((outputs["logits"].argmax(1) == self.y).mean())}

    def decisions(self, outputs: Arrays) -> NDArray[np.int64]:
        return outputs["logits"].argmax(1)


def weights() -> NDArray[np.float32]:
    return np.random.default_rng(0).standard_normal((CLASSES, FEATURES)).astype(np.float32)


class Dummy(Model):
    TITLE = "Dummy"
    FRAMEWORK = "torch"
    METRICS: ClassVar = {"accuracy": "higher"}
    GENERATED = ("generated",)
    RECIPE = ()
    BATCH = 8
    BOUNDS: ClassVar = {"fp32": (1e-4, 1e-5), "bf16": (0.2, 0.05)}

    def inputs(self, config: Config) -> tuple[Tensor, ...]:
        return (Tensor("features", "float32", (FEATURES,)),)

    def outputs(self, config: Config) -> tuple[Tensor, ...]:
        return (Tensor("logits", "float32", (CLASSES,)),)

    def prepare_dataset(self, config: Config, folder: Path) -> None:
        x = np.random.default_rng(1).standard_normal((COUNT, FEATURES)).astype(np.float32)
        np.savez(folder / "points.npz", x=x, y=(x @ weights().T).argmax(1))

    def open_dataset(self, config: Config, folder: Path) -> Dataset:
        return Points(folder)

    def prepare_checkpoint(self, config: Config, dataset: Path, path: Path) -> None:
        path.write_text(json.dumps(weights().tolist()))

    def build(self, config: Config, checkpoint: Path) -> Any:
        import torch

        layer = torch.nn.Linear(FEATURES, CLASSES, bias=False)
        layer.weight.data = torch.tensor(json.loads(checkpoint.read_text()))
        # the older exporter, which takes this, writes a file in 0.1 s, the dynamo exporter in 3 s
        return torch.jit.script(layer.eval())  # type: ignore[no-untyped-call]


MODEL = Dummy()
