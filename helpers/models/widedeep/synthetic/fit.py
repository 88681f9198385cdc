"""Training of Wide & Deep on the generated displays, in about a minute on two cores.

Of 91.8 million parameters a batch touches the rows of its ids alone, so Adagrad updates the tables
sparsely. It takes longer steps for rare ids (Duchi et al., 2011).
"""

from pathlib import Path

import numpy as np

from helpers.models import Config, Network
from helpers.models._arrays import take
from helpers.models._keras import Tensor, tensorflow
from helpers.models._keras import keras as load_keras
from helpers.models._synthetic import TrainingLog, lookup_recipe
from helpers.models.widedeep import checkpoint
from helpers.models.widedeep.data import Displays
from helpers.models.widedeep.network import OUTPUT, wide_and_deep

SEED = 1
TABLE_RATE, DENSE_RATE = 0.02, 1e-3  # learning rates of the tables and of everything else
FLOOR = 1e-8  # that Adagrad's sum of squares starts from; a gradient here is about 1e-5
RECIPES = {"generated": (60, 1024), "generated-small": (40, 256)}  # steps, and batch size


def fit(config: Config, dataset: Path, path: Path) -> None:
    """Fit to `train/*.parquet` of the set in `dataset`; write to the new folder `path`."""
    steps, batch_size = lookup_recipe(config.dataset, RECIPES)
    network = wide_and_deep(SEED)
    _train(network, Displays(dataset, OUTPUT, "train"), steps, batch_size)
    checkpoint.save(network, path)


def _train(network: Network, displays: Displays, steps: int, batch_size: int) -> None:
    features = displays.take(np.arange(len(displays)))
    clicked = displays.clicked[:, None].astype(np.float32)
    tf, cross_entropy = tensorflow(), load_keras().losses.binary_crossentropy
    variables = [variable.value for variable in network.trainable_variables]
    rate = tf.Variable(1.0)
    # Only the first version's optimizers update a table's rows without reading all of it.
    optimizers = tf.compat.v1.train
    adagrad = optimizers.AdagradOptimizer(lambda: TABLE_RATE * rate, FLOOR)
    adam = optimizers.AdamOptimizer(lambda: DENSE_RATE * rate)

    @tf.function(autograph=False)  # type: ignore[untyped-decorator, unused-ignore]
    def step(batch: dict[str, Tensor], labels: Tensor) -> Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(cross_entropy(labels, network(batch, training=True)))
        pairs = list(zip(tape.gradient(loss, variables), variables, strict=True))
        sparse = [pair for pair in pairs if isinstance(pair[0], tf.IndexedSlices)]
        adagrad.apply_gradients(sparse)
        adam.apply_gradients([pair for pair in pairs if not isinstance(pair[0], tf.IndexedSlices)])
        return loss

    rng, progress = np.random.default_rng(SEED), TrainingLog(steps)
    times = -(-steps * batch_size // len(clicked))
    order = np.concatenate([rng.permutation(len(clicked)) for _ in range(times)])
    for number in range(steps):
        chosen = order[number * batch_size :][:batch_size]
        rate.assign(min(1.0, 2 * (steps - number) / steps))
        loss = step(take(features, chosen), clicked[chosen])
        progress.say(number + 1, loss)
