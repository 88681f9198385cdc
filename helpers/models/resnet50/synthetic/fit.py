"""Training of ResNet50 on the generated textures, in a minute on two cores.

Only the first blocks of each layer are fitted. The others are near to their shortcut alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy, one_hot

from helpers.models import Config
from helpers.models._synthetic import TrainingLog, lookup_recipe
from helpers.models._torch import state_dict
from helpers.models._torch.descent import mixed_precision, optimizer_step
from helpers.models.resnet50.data import normalise
from helpers.models.resnet50.network import Bottleneck, ResNet50
from helpers.models.resnet50.synthetic.generate import CLASSES, training_batch

SEED = 0
FIRST_SOLVED, FIRST_AVERAGED = 10_000, 20_000  # numbers of batches: no step has them
LEARNING_RATE = 2e-3
BETAS = 0.9, 0.99  # of AdamW: few steps need a short memory
BATCH_SIZE = 32
WARM_UP, COOL_DOWN = 10, 0.4  # steps in which the learning rate rises, last part in which it falls
FITTED = 2, 2, 1, 1  # first blocks of each layer; the textures need no more
DAMPED = 0.1  # gain of the others, which change the features a little
AVERAGED = 4  # batches, over which the final statistics of the batch norms are taken
UNUSED = -7.0  # of the outputs that no texture has, so that no step is spent on learning that
LOGIT, RIDGE = 8.0, 100.0  # target of the right class, the others' is 0; penalty of the weights


@dataclass(frozen=True)
class Recipe:
    """The numbers of batches, each with the side of their crops in pixels."""

    steps: tuple[tuple[int, int], ...]  # of gradient descent, small crops first: half the time
    solved: tuple[int, int]  # of those that solve the last layer


RECIPES = {
    "generated": Recipe(steps=((60, 40), (40, 64)), solved=(40, 112)),
    "generated-small": Recipe(steps=((16, 40),), solved=(8, 112)),
}


def fit(config: Config, dataset: Path, path: Path) -> None:
    """Fit the network to the set `config.dataset` and write its state dict to `path`."""
    recipe = lookup_recipe(config.dataset, RECIPES)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        network = _fresh_network()
    layers = network.layer1, network.layer2, network.layer3, network.layer4
    others = [layer[first:] for layer, first in zip(layers, FITTED, strict=True)]
    for layer, first in zip(layers, FITTED, strict=True):
        del layer[first:]
    _train(network, [side for count, side in recipe.steps for _ in range(count)])
    for layer, blocks in zip(layers, others, strict=True):
        for block in blocks:
            nn.init.constant_(block.bn3.weight, DAMPED)
            layer.append(block)
    _average(network, recipe.solved[1])
    _solve(network.eval(), *recipe.solved)
    state_dict.save(network, path)


def _fresh_network() -> ResNet50:
    """Initialise as He et al. (2015), with each block its shortcut alone (Goyal et al., 2017)."""
    network = ResNet50()
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_in", nonlinearity="relu")
        elif isinstance(module, Bottleneck):
            nn.init.zeros_(module.bn3.weight)
    network.fc.bias.data[CLASSES:] = UNUSED
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload, unused-ignore]
    return network


def _train(network: ResNet50, sides: Sequence[int]) -> None:
    steps = len(sides)
    optimizer = torch.optim.AdamW(network.parameters(), lr=LEARNING_RATE, betas=BETAS, fused=True)
    network.train()
    progress = TrainingLog(steps)
    for step in range(1, steps + 1):
        inputs, labels = _batch(step, sides[step - 1])
        with mixed_precision():
            logits = network(inputs)
        loss = cross_entropy(logits.float(), labels)
        left = (steps - step + 1) / steps
        optimizer_step(optimizer, loss, LEARNING_RATE * min(1.0, step / WARM_UP, left / COOL_DOWN))
        progress.say(step, loss.detach())


def _batch(number: int, side: int) -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = training_batch(number, BATCH_SIZE, side)
    inputs = torch.from_numpy(normalise(images)).to(memory_format=torch.channels_last)
    return inputs, torch.from_numpy(labels)


def _average(network: ResNet50, side: int) -> None:
    """Set the batch norms to the mean statistics of a few batches with crops of `side` pixels."""
    norms = [module for module in network.modules() if isinstance(module, nn.BatchNorm2d)]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a plain average, of every batch since
    with torch.no_grad(), mixed_precision():
        for number in range(AVERAGED):
            network(_batch(FIRST_AVERAGED + number, side)[0])


def _solve(network: ResNet50, count: int, side: int) -> None:
    """Solve the last layer for other images by ridge regression (Hoerl and Kennard, 1970)."""
    layer, network.fc = network.fc, nn.Identity()
    features, labels = [], []
    with torch.inference_mode(), mixed_precision():
        for number in range(count):
            inputs, right = _batch(FIRST_SOLVED + number, side)
            features.append(network(inputs).double())
            labels.append(right)
    network.fc = layer
    stacked, right = torch.cat(features), torch.cat(labels)
    mean, scale = stacked.mean(0), stacked.std()
    centred = (stacked - mean) / scale
    target = LOGIT * one_hot(right, CLASSES).double()
    kernel = centred @ centred.T + RIDGE * torch.eye(len(stacked))  # fewer images than features
    weights = centred.T @ torch.linalg.solve(kernel, target - target.mean(0)) / scale
    layer.weight.data[:CLASSES] = weights.T.float()
    layer.bias.data[:CLASSES] = (target.mean(0) - mean @ weights).float()
    layer.bias.data[CLASSES:] = UNUSED - layer.weight.data[CLASSES:] @ mean.float()
