"""Generated series, each fixed by its seed."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from helpers.models import Config
from helpers.models._synthetic import lookup_size
from helpers.models._tables import GENERATED
from helpers.models.tft.prepare import prepare
from helpers.models.tft.variants import HISTORY, ID, VARIANTS, Variant

SEED = 1
DAY, WEEK = 24, 168
# Of the logarithm of a series' level, which drifts and returns to its mean: deviation and time.
# In a week it changes by 0.36 on average, in half a day by 0.1, so last week is a poor forecast.
DRIFT, RETURN_HOURS = 0.4, 336.0
NOISE = 0.05  # of the logarithm of a single hour
SIZES = {  # days to train, and windows to test of each series
    "generated": {"electricity": (35, 4), "traffic": (21, 2)},
    "generated-small": {"electricity": (10, 1), "traffic": (10, 1)},
}


def write(config: Config, folder: Path) -> None:
    """Write the set `config.dataset` as a processed folder with the ids of `config.variant`.

    The hours that are forecast in `valid` and `test` come after all those of `train`.
    """
    name, kind = config.dataset, config.variant
    sizes = lookup_size(name, SIZES, ", NVIDIA's processed folder or a public raw file")
    (train, windows), variant, history = sizes[kind], VARIANTS[kind], HISTORY // DAY
    days = ((0, train), (train - history, train + 1), (train + 1 - history, train + 3))
    table = _table(kind, variant, (train + 2) * DAY + windows - 1)
    prepare(table, variant, days, folder)
    marker = {"name": name, "variant": kind, "seed": SEED}
    (folder / GENERATED).write_text(json.dumps(marker) + "\n")


def _table(kind: str, variant: Variant, hours: int) -> pl.DataFrame:
    """Return the hours of every series, one series after the other."""
    count, clock = variant.cardinality, np.arange(hours)
    values = _values(count, hours, np.random.default_rng([SEED, count]))
    if kind == "electricity":
        names: Any = [f"MT_{number:03d}" for number in range(1, count + 1)]
        values = 300 * values
    else:
        names = 400_000 + 7 * np.arange(count)
        values = np.minimum(0.05 * values, 1)
    time, weekday, since = variant.known
    return pl.DataFrame(
        {
            ID: np.repeat(np.array(names), hours),
            time: np.tile(clock % DAY, count),
            weekday: np.tile(clock // DAY % 7, count),
            since: np.tile(clock, count),
            variant.split_column: np.tile(clock // DAY, count),
            variant.target: values.ravel(),
        }
    )


def _values(count: int, hours: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Draw [count, hours] of about 1: a day, a week, a level that drifts, and noise, multiplied."""
    clock = np.arange(hours)
    ranges = ((-1, 1), (0.3, 0.8), (0, 0.6), (8, 20), (0, 0.4))
    size, depth, weekend, peak, second = (rng.uniform(a, b, (count, 1)) for a, b in ranges)
    turn = 2 * np.pi * (clock - peak) / DAY
    day = depth * np.cos(turn) + second * np.cos(2 * turn)
    week = -weekend * (clock % WEEK >= 5 * DAY)
    decay = np.exp(-1 / RETURN_HOURS)
    step = DRIFT * np.sqrt(1 - decay**2)
    level = np.empty((count, hours))
    level[:, 0] = DRIFT * rng.standard_normal(count)
    for hour in range(1, hours):
        level[:, hour] = decay * level[:, hour - 1] + step * rng.standard_normal(count)
    noise = NOISE * rng.standard_normal((count, hours))
    return np.asarray(np.exp(size + day + week + level + noise))
