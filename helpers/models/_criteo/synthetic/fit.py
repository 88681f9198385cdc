"""Training of DLRM and DCNv2 on generated clicks, in about a minute on two cores.

The tables are the checkpoint's own files, mapped to memory. A step touches only the rows of its
samples, and never copies a table or computes its whole gradient.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from helpers.models import Config
from helpers.models._criteo import checkpoint
from helpers.models._criteo.data import Samples, SplitBinary
from helpers.models._criteo.lookup import Lookup
from helpers.models._criteo.network import network
from helpers.models._criteo.tables import DIMENSION
from helpers.models._keras import Tensor, keras, tensorflow
from helpers.models._synthetic import TrainingLog, lookup_recipe

SEED = 0
CHUNK = 2**17  # rows of a table that are drawn at once


@dataclass(frozen=True)
class Recipe:
    """The number of steps, their batch size and learning rates."""

    steps: int
    batch_size: int
    learning_rate: float  # of the dense network, by Adam
    table_rate: float  # of the tables, by row-wise Adagrad


RECIPES = {
    "generated": {
        "dlrm": Recipe(steps=60, batch_size=2048, learning_rate=2e-3, table_rate=0.03),
        "dcnv2": Recipe(steps=40, batch_size=1024, learning_rate=1.5e-3, table_rate=0.03),
    },
    "generated-small": {
        "dlrm": Recipe(steps=20, batch_size=512, learning_rate=1e-3, table_rate=0.02),
        "dcnv2": Recipe(steps=16, batch_size=512, learning_rate=5e-4, table_rate=0.05),
    },
}


class Tables(Lookup):
    """The 26 tables in the files of a checkpoint, each row with a step size of its own.

    Row-wise Adagrad divides a row's gradient by the root of the sum of its mean squares so far
    (Duchi et al., JMLR 12, 2011). It has one sum per row (Gupta et al., JMLR 15, 2014).
    """

    def __init__(self, rows: tuple[int, ...], folder: Path) -> None:
        folder.mkdir(parents=True)
        rng = np.random.default_rng(SEED)
        paths = [folder / f"feature_{feature}.npy" for feature in range(len(rows))]
        super().__init__([_drawn(path, n, rng) for path, n in zip(paths, rows, strict=True)])
        self._squares = [np.zeros(count, dtype=np.float32) for count in rows]

    def descend(self, ids: NDArray[np.int32], gradient: NDArray[np.float32], rate: float) -> None:
        """Update the rows `ids` by the `gradient`, [batch, 3328], of what `rows_of` returned."""
        parts = np.split(gradient, len(self._tables), axis=1)
        for table, squares, column, part in zip(
            self._tables, self._squares, ids.T, parts, strict=True
        ):
            order = np.argsort(column, kind="stable")
            rows, starts = np.unique(column[order], return_index=True)
            slope = np.add.reduceat(part[order], starts, axis=0)
            squares[rows] += np.square(slope).mean(axis=1)
            table[rows] -= rate * slope / np.sqrt(squares[rows, None] + np.float32(1e-20))


class Recommender:
    """A network that is being fitted: its dense part by Adam, its tables by row-wise Adagrad."""

    def __init__(self, model: str, rows: tuple[int, ...], folder: Path) -> None:
        self.dense = network(model, SEED)
        self.tables = Tables(rows, folder / "sparse")
        self._optimizer = keras().optimizers.Adam()
        self._optimizer.build(self.dense.trainable_variables)
        self._step = tensorflow().function(self._descend_dense, autograph=False)

    def take(self, samples: Samples, rate: float, table_rate: float) -> float:
        """Take one training step; return the loss before it."""
        self._optimizer.learning_rate = rate
        embeddings = self.tables.rows_of(samples.categorical)
        clicks = samples.clicks[:, None].astype(np.float32)
        tensors = map(tensorflow().constant, (samples.numerical, embeddings, clicks))
        loss, slope = self._step(*tensors)
        self.tables.descend(samples.categorical, slope.numpy(), table_rate)
        return float(loss)

    def _descend_dense(
        self, numerical: Tensor, embeddings: Tensor, clicks: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Take the dense network's step; return the loss and its gradient by the embeddings."""
        tf, weights = tensorflow(), self.dense.trainable_variables
        with tf.GradientTape() as tape:
            tape.watch(embeddings)
            logits = self.dense({"args_0": numerical, "args_1": embeddings}, training=True)
            loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(clicks, logits))
        *gradients, slope = tape.gradient(loss, [*weights, embeddings])
        self._optimizer.apply(gradients, weights)
        return loss, slope


def fit(config: Config, dataset: Path, path: Path) -> None:
    """Fit to the part `train` of the set in `dataset`; write to the new folder `path`."""
    recipe = lookup_recipe(config.dataset, RECIPES)[config.model]
    part = SplitBinary(dataset, part="train")
    fitted = train(config.model, part, recipe, path)
    checkpoint.save(config.model, fitted.dense, part.spec.cardinalities, path)


def train(model: str, part: SplitBinary, recipe: Recipe, folder: Path) -> Recommender:
    """Fit to samples of `part`, drawn at random, with the tables in the new folder `folder`."""
    recommender = Recommender(model, part.spec.cardinalities, folder)
    progress, rng = TrainingLog(recipe.steps), np.random.default_rng(SEED)
    for step in range(1, recipe.steps + 1):
        samples = part.read(rng.integers(0, len(part), recipe.batch_size))
        cooling = float(0.5 * (1 + np.cos(np.pi * (step - 1) / recipe.steps)))
        rates = recipe.learning_rate * cooling, recipe.table_rate * cooling
        progress.say(step, recommender.take(samples, *rates))
    return recommender


def _drawn(path: Path, rows: int, rng: np.random.Generator) -> checkpoint.Table:
    """Write the file of a table, drawn uniformly from -sqrt(1 / rows) to sqrt(1 / rows)."""
    shape = (rows, DIMENSION)
    table: checkpoint.Table = checkpoint.NPY.open_memmap(path, "w+", np.float32, shape)
    for start in range(0, rows, CHUNK):
        part = table[start : start + CHUNK]
        part[:] = (2 * rng.random(part.shape, dtype=np.float32) - 1) * rows**-0.5
    return table
