"""How a TFT is fitted to generated series in about a minute on two cores."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from helpers.models._synthetic import FitProgress, recipe_of
from helpers.models._torch import state_dict
from helpers.models._torch.descent import descend
from helpers.models.tft.data import Windows
from helpers.models.tft.network import TemporalFusionTransformer
from helpers.models.tft.variants import HISTORY, QUANTILES, Variant

SEED = 0
WARM_UP = 20  # steps in which the learning rate rises


@dataclass(frozen=True)
class Recipe:
    """How long to fit, and how fast."""

    steps: int
    batch_size: int
    learning_rate: float


RECIPES = {
    "generated": Recipe(steps=140, batch_size=32, learning_rate=4e-3),
    "generated-small": Recipe(steps=100, batch_size=8, learning_rate=3e-3),
}


def fit(name: str, variant: Variant, dataset: Path, path: Path) -> None:
    """Fit to `train.csv` of the set `name` in `dataset` and write the state dict to `path`.

    Prints a line every 20 steps. Raises DataError if there is no recipe for the set.
    """
    recipe = recipe_of(name, RECIPES)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        network = TemporalFusionTransformer(variant.cardinality, dropout=0)  # no window comes twice
        _train(network, variant, dataset, recipe)
    state_dict.save(network, path)


def quantile_loss(forecast: Tensor, target: Tensor) -> Tensor:
    """Sum the mean losses of the quantiles (arXiv 1912.09363, equations 24 and 25).

    `forecast` is [batch, 24, 3] and `target` [batch, 24, 1].
    """
    q = torch.tensor(QUANTILES)
    above = target - forecast
    return torch.maximum(q * above, (q - 1) * above).mean(dim=(0, 1)).sum()


def _train(
    network: TemporalFusionTransformer, variant: Variant, dataset: Path, recipe: Recipe
) -> None:
    windows, rng = Windows(dataset, variant, (), "train"), np.random.default_rng(SEED)
    optimizer = torch.optim.AdamW(network.parameters(), lr=recipe.learning_rate, fused=True)
    network.train()
    progress = FitProgress(recipe.steps)
    for step in range(1, recipe.steps + 1):
        chosen = rng.integers(0, len(windows), recipe.batch_size)
        s_cat, k_cont, target = map(torch.from_numpy, windows.cut(chosen))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            forecast = network(s_cat, k_cont, target)
        loss = quantile_loss(forecast.float(), target[:, HISTORY:])
        cooling = 0.5 * (1 + np.cos(np.pi * step / recipe.steps))
        descend(optimizer, loss, recipe.learning_rate * min(step / WARM_UP, cooling))
        progress.say(step, loss.detach())
