"""Generated click logs, each fixed by its seed, and the model that draws their clicks.

Ids follow the power law of NVIDIA's synthetic sets, of exponent 1.45, so that a few rows of a table
get most lookups. Numbers are logarithms of counts, some of them missing. A click is drawn from a
logit: the sum of an effect of each number and of each id, and products of the effects of two ids.
An effect is a hash of the feature and the id, so none is stored.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from helpers.errors import ParameterError
from helpers.models import Config
from helpers.models._arrays import GOLDEN, mix
from helpers.models._criteo import spec
from helpers.models._criteo.data import Samples, write_part
from helpers.models._criteo.tables import CATEGORICAL, NUMERICAL, TABLES
from helpers.models._synthetic import lookup_size

SEED = 1
ALPHA = 1.45
CHUNK = 65_536  # samples drawn at a time
# samples of each part; the last batch of a test set is to be a short one
SIZES = {
    "generated": {"train": 500_000, "test": 16_384 + 77},
    "generated-small": {"train": 8_000, "test": 2_048 + 77},
}
LEVELS = np.linspace(0.5, 4, NUMERICAL)  # mean logarithms of the counts
MISSING = np.linspace(0, 0.3, NUMERICAL)  # shares
PAIRS = ((0, 9), (1, 13), (2, 24), (4, 8), (6, 22), (11, 17), (14, 20), (19, 25))
# Weights of the parts of a logit. 26% of the samples are clicks. The area under its ROC curve is
# 0.85. The area of the numbers alone is 0.69, of single ids 0.75, of pairs 0.63.
BIAS, OF_NUMBERS, OF_IDS, OF_PAIRS = -1.0, 0.7, 1.4, 0.7

Floats = NDArray[np.float64]
Ids = NDArray[np.int32] | NDArray[np.int64]


def write(config: Config, folder: Path) -> None:
    """Write the set `config.dataset`; raise ParameterError if the variant has no tables here."""
    name, variant = config.dataset, config.variant
    counts = lookup_size(name, SIZES, ", a split-binary folder or the public day files")
    if variant not in TABLES:
        raise ParameterError(f"Unknown tables '{variant}'. Known tables: {', '.join(TABLES)}.")
    tables = TABLES[variant]
    for index, (part, count) in enumerate(counts.items()):
        rng = np.random.default_rng([SEED, index, count])
        sizes = (min(CHUNK, count - start) for start in range(0, count, CHUNK))
        write_part(folder / part, tables, (draw(rng, size, tables) for size in sizes))
    metadata = {"origin": "generated", "name": name, "variant": variant, "seed": SEED}
    spec.write(folder, tables, metadata)


def draw(rng: np.random.Generator, count: int, tables: tuple[int, ...]) -> Samples:
    """Draw `count` samples."""
    ids = [power_law(rows, rng.random(count)) for rows in tables]
    categorical = np.stack(ids, axis=1).astype(np.int32)
    counts = np.floor(np.exp(LEVELS + 1.2 * rng.standard_normal((count, NUMERICAL)))) - 1
    numerical = np.log(counts + 3).astype(np.float16).astype(np.float32)
    numerical[rng.random((count, NUMERICAL)) < MISSING] = 0
    clicks = rng.random(count) < 1 / (1 + np.exp(-logits(categorical, numerical)))
    return Samples(categorical, numerical, clicks)


def power_law(rows: int, uniform: Floats) -> NDArray[np.int64]:
    """Turn numbers of [0, 1) into ids of 0 to `rows` - 1, the lower the more frequent.

    An id is floor(x) - 1 for a real x of [1, rows + 1), whose density falls as x^-ALPHA. x comes
    from the inverted distribution function, (1 - x^g) / (1 - (rows + 1)^g), g = 1 - ALPHA.
    """
    power = 1 - ALPHA
    real = (1 - uniform * (1 - (rows + 1.0) ** power)) ** (1 / power)
    return np.asarray(np.clip(real.astype(np.int64), 1, rows) - 1)


def logits(categorical: Ids, numerical: NDArray[np.float32]) -> Floats:
    """Return the true logit of samples, [samples, 26] and [samples, 13]; no network beats it."""
    effects = [effect(feature, categorical[:, feature]) for feature in range(CATEGORICAL)]
    products = sum(effects[first] * effects[second] for first, second in PAIRS)
    weights = effect(CATEGORICAL, np.arange(NUMERICAL))
    numbers = (numerical - np.log(np.exp(LEVELS) + 2)) @ weights
    return np.asarray(
        BIAS
        + OF_NUMBERS * numbers / NUMERICAL**0.5
        + OF_IDS * sum(effects) / CATEGORICAL**0.5
        + OF_PAIRS * products / len(PAIRS) ** 0.5
    )


def effect(feature: int, ids: Ids) -> Floats:
    """Assign each id of a feature a number of variance 1, as if drawn from (-√3, √3)."""
    bits = mix((ids.astype(np.uint64) + (np.uint64(feature + 1) << np.uint64(40))) * GOLDEN)
    return np.asarray((2 * (bits >> np.uint64(11)) / 2.0**53 - 1) * 3**0.5)
