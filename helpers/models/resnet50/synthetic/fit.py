"""How a ResNet50 is fitted to the generated textures in about a minute on two cores."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from helpers.models._synthetic import FitProgress, recipe_of
from helpers.models._torch import state_dict
from helpers.models._torch.descent import descend
from helpers.models.resnet50.data import normalise
from helpers.models.resnet50.network import Bottleneck, ResNet50
from helpers.models.resnet50.synthetic.generate import CLASSES, training_batch

SEED = 0
LEARNING_RATE = 1e-3
BATCH_SIZE = 32
COOL_DOWN = 0.4  # last part of the steps, in which the learning rate falls to 0
UNUSED_BIAS = -7.0  # of the outputs that no texture has, so that no step is spent on learning that


# Steps and the side of their crops in pixels, small ones first: they take half the time
RECIPES = {"generated": ((100, 40), (70, 64)), "generated-small": ((24, 48),)}


def fit(name: str, path: Path) -> None:
    """Fit the network to the set `name` and write its state dict to `path`.

    Prints a line every 20 steps. Raises DataError if there is no recipe for the set.
    """
    parts = recipe_of(name, RECIPES)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        network = _fresh_network()
    _train(network, [side for count, side in parts for _ in range(count)])
    state_dict.save(network, path)


def _fresh_network() -> ResNet50:
    """Initialise as He et al. (2015), with each block its shortcut alone (Goyal et al., 2017)."""
    network = ResNet50()
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_in", nonlinearity="relu")
        elif isinstance(module, Bottleneck):
            nn.init.zeros_(module.bn3.weight)
    network.fc.bias.data[CLASSES:] = UNUSED_BIAS
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload, unused-ignore]
    return network


def _train(network: ResNet50, sides: Sequence[int]) -> None:
    steps = len(sides)
    optimizer = torch.optim.AdamW(network.parameters(), lr=LEARNING_RATE, fused=True)
    network.train()
    progress = FitProgress(steps)
    for step in range(1, steps + 1):
        images, labels = training_batch(step, BATCH_SIZE, sides[step - 1])
        inputs = torch.from_numpy(normalise(images)).to(memory_format=torch.channels_last)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = network(inputs)
        loss = cross_entropy(logits.float(), torch.from_numpy(labels))
        left = (steps - step + 1) / steps
        descend(optimizer, loss, LEARNING_RATE * min(1.0, left / COOL_DOWN))
        progress.say(step, loss.detach())
