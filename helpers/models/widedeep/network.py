"""The Wide & Deep network of NVIDIA's deployment: the probability that an ad is clicked.

The sigmoid takes the sum of a linear model over ids and numbers, and of a network over the
embeddings and the same numbers (Cheng et al., arXiv 1606.07792, equation 3).
"""

from typing import Any

from helpers.models import Network
from helpers.models._keras import Tensor, tensorflow
from helpers.models._keras import keras as load_keras
from helpers.models.widedeep.features import HOTNESS, MULTI_HOT, NAMES, NUMERIC, TABLES

keras, tf = load_keras(), tensorflow()
Layer: Any = keras.layers.Layer

LAYERS, UNITS, DROPOUT = 5, 1024, 0.1
OUTPUT = "wide_deep_model"

WIDTHS = {name: HOTNESS if name in MULTI_HOT else 1 for name in NAMES}
# NVIDIA's layers sort their columns by name, and an embedding's name is `<feature>_embedding`.
COLUMNS = tuple(sorted([*NUMERIC, *(f"{name}_embedding" for name in TABLES)]))


class Known(Layer):  # type: ignore[misc]
    """Tell ids that have a row in their table from others: padding, and numbers beyond its end.

    On a GPU TensorFlow's gather gives zeros for the others and on a CPU it fails. Here they become
    id 0 and a mask of zero, which is the GPU's outcome everywhere.
    """

    def call(self, ids: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Turn int32 [batch, 1 or 3] of each table into ids inside it and their float32 masks."""
        widths = [WIDTHS[name] for name in TABLES]
        rows = [count for name, (count, _) in TABLES.items() for _ in range(WIDTHS[name])]
        everything = tf.concat(ids, axis=1)
        inside = (everything >= 0) & (everything < tf.constant(rows))
        safe = tf.where(inside, everything, 0)
        return tf.split(safe, widths, axis=1), tf.split(tf.cast(inside, "float32"), widths, axis=1)


class Wide(Layer):  # type: ignore[misc]
    """The linear model: a bias, one weight for each id and one for each number."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.tables = {
            name: self.add_weight(shape=(rows, 1), initializer="zeros", name=name)
            for name, (rows, _) in TABLES.items()
        }
        self.numeric = self.add_weight(shape=(len(NUMERIC), 1), initializer="zeros", name="numeric")
        self.bias = self.add_weight(shape=(1,), initializer="zeros", name="bias")

    def call(self, numbers: dict[str, Tensor], ids: list[Tensor], masks: list[Tensor]) -> Tensor:
        """Turn numbers [batch, 1] and the ids and masks of `Known` into [batch, 1]."""
        parts = zip(self.tables.values(), ids, strict=True)
        weights = tf.concat([tf.gather(table.value, i)[..., 0] for table, i in parts], axis=1)
        linear = tf.reduce_sum(weights * tf.concat(masks, axis=1), axis=1, keepdims=True)
        sorted_numbers = tf.concat([numbers[name] for name in sorted(NUMERIC)], axis=1)
        return linear + tf.matmul(sorted_numbers, self.numeric.value) + self.bias.value


class Columns(Layer):  # type: ignore[misc]
    """The input of the deep network: numbers and embeddings, concatenated by sorted names."""

    def __init__(self, initializer: Any, **options: Any) -> None:
        super().__init__(**options)
        self.tables = {
            name: self.add_weight(shape=shape, initializer=initializer, name=name)
            for name, shape in TABLES.items()
        }

    def call(self, numbers: dict[str, Tensor], ids: list[Tensor], masks: list[Tensor]) -> Tensor:
        """Turn numbers [batch, 1] and the ids and masks of `Known` into [batch, 1248].

        The embeddings of a list are added up.
        """
        columns = dict(numbers)
        for (name, table), i, mask in zip(self.tables.items(), ids, masks, strict=True):
            if WIDTHS[name] == 1:
                column = tf.gather(table.value, i[:, 0]) * mask
            else:
                column = tf.reduce_sum(tf.gather(table.value, i) * mask[..., None], axis=1)
            columns[f"{name}_embedding"] = column
        return tf.concat([columns[name] for name in COLUMNS], axis=1)


def wide_and_deep(seed: int | None = None) -> Network:
    """Build the Keras model: a dict of 29 inputs by name to the probability, float32 [batch, 1].

    Numbers are float32 [batch, 1], ids int32 [batch, 1], lists of ids int32 [batch, 3] padded with
    -1. Without a seed every parameter is zero, to be loaded; with one the network can be fitted.
    """
    inputs = {
        name: keras.Input((width,), name=name, dtype="float32" if name in NUMERIC else "int32")
        for name, width in WIDTHS.items()
    }
    numbers = {name: inputs[name] for name in NUMERIC}
    ids, masks = Known(name="known")([inputs[name] for name in TABLES])
    draws = keras.random.SeedGenerator(seed or 0)  # no two layers draw the same numbers
    tables = "zeros" if seed is None else keras.initializers.RandomUniform(-0.05, 0.05, draws)
    kernels = "zeros" if seed is None else keras.initializers.HeNormal(draws)
    wide = Wide(name="wide")(numbers, ids, masks)
    x = Columns(tables, name="columns")(numbers, ids, masks)
    for layer in range(1, LAYERS + 1):
        x = keras.layers.Dense(UNITS, "relu", kernel_initializer=kernels, name=f"dense_{layer}")(x)
        x = keras.layers.Dropout(DROPOUT, seed=layer, name=f"dropout_{layer}")(x)
    deep = keras.layers.Dense(1, kernel_initializer=kernels, name=f"dense_{LAYERS + 1}")(x)
    clicked = keras.layers.Activation("sigmoid", name=OUTPUT)(wide + deep)
    return keras.Model(inputs, clicked, name="widedeep")
