"""Training of a TFT on generated series, in about a minute on two cores."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from helpers.models import Config
from helpers.models._synthetic import TrainingLog, lookup_recipe
from helpers.models._torch import state_dict
from helpers.models._torch.descent import mixed_precision, optimizer_step
from helpers.models.tft.data import Windows
from helpers.models.tft.network import TemporalFusionTransformer
from helpers.models.tft.variants import HISTORY, QUANTILES, VARIANTS

SEED = 0
WARM_UP = 20  # steps in which the learning rate rises
# steps, batch size and learning rate
RECIPES = {"generated": (140, 32, 4e-3), "generated-small": (50, 8, 3e-3)}


def fit(config: Config, dataset: Path, path: Path) -> None:
    """Fit to `train.csv` of the generated set in `dataset`; write the state dict to `path`."""
    steps, batch_size, learning_rate = lookup_recipe(config.dataset, RECIPES)
    variant = VARIANTS[config.variant]
    windows, rng = Windows(dataset, variant, (), "train"), np.random.default_rng(SEED)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        network = TemporalFusionTransformer(variant.cardinality, dropout=0)  # no window comes twice
        optimizer = torch.optim.AdamW(network.parameters(), lr=learning_rate, fused=True)
        network.train()
        progress = TrainingLog(steps)
        for step in range(1, steps + 1):
            chosen = rng.integers(0, len(windows), batch_size)
            s_cat, k_cont, target = map(torch.from_numpy, windows.gather(chosen))
            with mixed_precision():
                forecast = network(s_cat, k_cont, target)
            loss = quantile_loss(forecast.float(), target[:, HISTORY:])
            cooling = 0.5 * (1 + np.cos(np.pi * step / steps))
            optimizer_step(optimizer, loss, learning_rate * min(step / WARM_UP, cooling))
            progress.say(step, loss.detach())
    state_dict.save(network, path)


def quantile_loss(forecast: Tensor, target: Tensor) -> Tensor:
    """Sum the mean losses of the quantiles (arXiv 1912.09363, equations 24 and 25).

    `forecast` is [batch, 24, 3] and `target` [batch, 24, 1].
    """
    q = torch.tensor(QUANTILES)
    above = target - forecast
    return torch.maximum(q * above, (q - 1) * above).mean(dim=(0, 1)).sum()
