"""The dense graphs of DLRM and DCNv2, without tables; they differ in the interaction alone.

Layers have the names of their weights in NVIDIA's checkpoints, with a dot for a slash: `top_mlp.0`
is `top_mlp/0`.
"""

from functools import partial
from typing import Any

import numpy as np

from helpers.models import Network
from helpers.models._criteo.tables import CATEGORICAL, DIMENSION, NUMERICAL
from helpers.models._keras import keras as import_keras

BOTTOM, TOP = (512, 256, 128), (1024, 1024, 512, 256, 1)
CROSS_LAYERS, PROJECTION = 3, 512
EMBEDDINGS = CATEGORICAL * DIMENSION
MULTIPLE = 8  # both MLPs pad their inputs to a multiple of it, for tensor cores


def network(model: str, seed: int = 0) -> Network:
    """Build the Keras model of "dlrm" or "dcnv2" with random weights.

    It takes a dict of float32: `args_0` [batch, 13], the numerical features, and `args_1`
    [batch, 3328], the 26 embeddings in the order of their tables. It gives logits [batch, 1].
    """
    keras = import_keras()
    draws = keras.random.SeedGenerator(seed)  # each initializer's draws are its own
    numerical = keras.Input((NUMERICAL,), name="args_0")
    embeddings = keras.Input((EMBEDDINGS,), name="args_1")
    bottom = _mlp(keras, numerical, BOTTOM, "bottom_mlp_layers", "relu", draws)
    vectors = keras.layers.Concatenate()([bottom, embeddings])
    interaction = {"dlrm": _dot, "dcnv2": _cross}[model]
    x = interaction(keras, bottom, vectors, draws)
    logit = _mlp(keras, x, TOP, "top_mlp", "linear", draws)
    return keras.Model({"args_0": numerical, "args_1": embeddings}, logit)


def flat(dense: Network) -> Network:
    """Return `dense` on tensors without a batch dimension, as NVIDIA's: `args_0` [13 x samples]
    sample by sample, and `args_1` [26 x samples x 128] table by table. It gives logits
    [samples, 1].
    """
    keras = import_keras()
    numerical = keras.Input(batch_shape=(None,), name="args_0")
    embeddings = keras.Input(batch_shape=(None,), name="args_1")
    by_table = keras.ops.reshape(embeddings, (CATEGORICAL, -1, DIMENSION))
    by_sample = keras.ops.reshape(keras.ops.transpose(by_table, (1, 0, 2)), (-1, EMBEDDINGS))
    inputs = {"args_0": keras.ops.reshape(numerical, (-1, NUMERICAL)), "args_1": by_sample}
    return keras.Model({"args_0": numerical, "args_1": embeddings}, dense(inputs))


def _dot(keras: Any, bottom: Any, vectors: Any, _: Any) -> Any:
    """Return the bottom vector, [128], and the 351 dot products of its and the embeddings' pairs.

    The products are the Gram matrix [27, 27] below its diagonal, row by row (Naumov et al., arXiv
    1906.00091, section 2.1).
    """
    count = CATEGORICAL + 1
    stack = keras.layers.Reshape((count, DIMENSION))(vectors)
    gram = keras.ops.matmul(stack, keras.ops.transpose(stack, (0, 2, 1)))
    rows, columns = np.tril_indices(count, -1)
    flat = keras.layers.Reshape((count * count,))(gram)
    products = keras.ops.take(flat, (rows * count + columns).astype(np.int32), axis=1)
    return keras.layers.Concatenate()([bottom, products])


def _cross(keras: Any, _: Any, vectors: Any, draws: Any) -> Any:
    """Return [3456] after three low-rank cross layers, x0 * (V(U x) + b) + x each.

    Wang et al., "DCN V2", arXiv 2008.13535, equation 2.
    """
    x = vectors
    for layer in range(CROSS_LAYERS):
        name = f"interact_op.cross_layers.{layer}"
        normal = keras.initializers.TruncatedNormal(stddev=0.05, seed=draws)
        dense = partial(keras.layers.Dense, kernel_initializer=normal)
        x_u = dense(PROJECTION, use_bias=False, name=f"{name}._dense_u")(x)
        x_v = dense(vectors.shape[-1], name=f"{name}._dense_v")(x_u)
        x = keras.layers.Add()([keras.layers.Multiply()([vectors, x_v]), x])
    return x


def _mlp(keras: Any, x: Any, widths: tuple[int, ...], name: str, last: str, draws: Any) -> Any:
    """Pad `x` and stack dense layers with ReLU on it, the last one with the activation `last`."""
    if missing := -x.shape[-1] % MULTIPLE:
        x = keras.ops.pad(x, ((0, 0), (0, missing)))
    for layer, width in enumerate(widths):
        x = keras.layers.Dense(
            width,
            activation="relu" if layer < len(widths) - 1 else last,
            kernel_initializer=keras.initializers.GlorotNormal(draws),
            bias_initializer=keras.initializers.RandomNormal(stddev=width**-0.5, seed=draws),
            name=f"{name}.{layer}",
        )(x)
    return x
