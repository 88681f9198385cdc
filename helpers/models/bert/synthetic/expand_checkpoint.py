"""How a small BERT becomes a larger one that computes the same.

The idea is that of Chen et al., "Net2Net: Accelerating Learning via Knowledge Transfer" (2016): a
wider and deeper network that preserves the function. Here the hidden state of the large network is
that of the small one, `tiles` times side by side.
"""

from copy import deepcopy

import torch
from torch import Tensor, nn

from helpers.models.bert.network import QuestionAnswering
from helpers.models.bert.sizes import SIZES

SEED = 0
NOISE = 0.01  # deviation of what is added to every weight and cancels over the tiles


def expanded(small: QuestionAnswering, variant: str) -> QuestionAnswering:
    """Give a network of the size `variant` that has the logits of `small`.

    `small` must have layer normalisation of gain 1 and bias 0: a layer that adds nothing is then
    the identity, and such layers are the surplus ones. No weight matrix is zero, though: all have
    random parts whose contributions cancel.
    """
    large = QuestionAnswering(variant)
    random = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        _grow(small.bert.embeddings, large.bert.embeddings, random)
        for place, layer in enumerate(large.bert.encoder.layer):
            source = small.bert.encoder.layer[place % SIZES["small"].layers]
            if place >= SIZES["small"].layers:
                source = _silent(source)
            _grow(source, layer, random)
        _grow(small.qa_outputs, large.qa_outputs, random)
    return large


def _silent(layer: nn.Module) -> nn.Module:
    """Copy a layer whose attention and feed-forward parts add nothing to the hidden state."""
    copy = deepcopy(layer)
    for linear in (copy.attention.output.dense, copy.output.dense):
        nn.init.zeros_(linear.weight)
        nn.init.zeros_(linear.bias)
    return copy


def _grow(small: nn.Module, large: nn.Module, random: torch.Generator) -> None:
    """Fill every tensor of `large` from the one of the same name in `small`."""
    linear = {name for name, each in small.named_modules() if isinstance(each, nn.Linear)}
    sources = dict(small.named_parameters())
    for name, target in large.named_parameters():
        owner, _, kind = name.rpartition(".")
        if owner in linear and kind == "weight":
            target.copy_(_tiled_linear(sources[name], target, random))
        else:
            target.zero_()  # rows that the small vocabulary lacks
            source = sources[name]
            tiles = target.shape[-1] // source.shape[-1]
            tiled = source.repeat(*[1] * (source.dim() - 1), tiles)
            target[: len(tiled)] = tiled


def _tiled_linear(source: Tensor, target: Tensor, random: torch.Generator) -> Tensor:
    """Spread a weight [out, in] over equal tiles of the input, so that equal tiles come out.

    To tile i of the input the noise comes times c_i, and the sum of all c_i is 0: 1, -1, 1, -1 or
    1, -1/2, -1/2, which rounding to a lower precision does not change. All tiles of the output get
    the same numbers, for a difference between them would grow from layer to layer.
    """
    tiles = target.shape[1] // source.shape[1]
    noise = torch.randn(source.shape, generator=random) * NOISE
    coefficients = {3: (1.0, -0.5, -0.5), 4: (1.0, -1.0, 1.0, -1.0)}[tiles]
    wide = torch.cat([source / tiles + noise * each for each in coefficients], dim=1)
    return wide.repeat(target.shape[0] // source.shape[0], 1)
