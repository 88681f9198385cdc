"""The layers of ResNet50 v1.5, under the tensor names that torchvision gave them.

He et al., "Deep Residual Learning for Image Recognition", table 1. "v1.5" puts a stage's stride on
the 3x3 convolution of its first block, not on the 1x1 before it.
"""

from pathlib import Path

import torch
from torch import Tensor, nn

from helpers.models._torch import state_dict

EXPANSION = 4  # a block's outputs per inner channel
BLOCKS = (3, 4, 6, 3)
WIDTHS = (64, 128, 256, 512)
OPTIONAL = ".num_batches_tracked"  # only training uses it; files of 2017 lack it


class Bottleneck(nn.Module):  # type: ignore[misc, unused-ignore]
    """1x1, 3x3 and 1x1 convolutions and a shortcut, projected where the shape changes."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = width * EXPANSION
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, out, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            projection = nn.Conv2d(channels, out, 1, stride=stride, bias=False)
            self.downsample = nn.Sequential(projection, nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        out: Tensor = self.relu(y + self.downsample(x))
        return out


class ResNet50(nn.Module):  # type: ignore[misc, unused-ignore]
    """Images [batch, 3, height, width] to logits [batch, classes]; there is no softmax."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1 = _stage(64, WIDTHS[0], BLOCKS[0], stride=1)
        self.layer2 = _stage(WIDTHS[0] * EXPANSION, WIDTHS[1], BLOCKS[1], stride=2)
        self.layer3 = _stage(WIDTHS[1] * EXPANSION, WIDTHS[2], BLOCKS[2], stride=2)
        self.layer4 = _stage(WIDTHS[2] * EXPANSION, WIDTHS[3], BLOCKS[3], stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(WIDTHS[3] * EXPANSION, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        logits: Tensor = self.fc(torch.flatten(self.avgpool(x), 1))
        return logits


def _stage(channels: int, width: int, blocks: int, stride: int) -> nn.Sequential:
    rest = [Bottleneck(width * EXPANSION, width, stride=1) for _ in range(blocks - 1)]
    return nn.Sequential(Bottleneck(channels, width, stride), *rest)


def load(path: Path, network: nn.Module) -> None:
    """Copy the tensors of the file `path` into `network`.

    The file is a state dict, or has one under "state_dict" or "model". The names are torchvision's
    and NVIDIA NGC's (`layer1.0.conv1.weight`) or those of NVIDIA's current code
    (`layers.0.0.conv1.weight`). Raises CheckpointError.
    """
    tensors = state_dict.unwrap(state_dict.read(path), path)
    tensors = state_dict.rename(
        tensors, r"^layers\.([0-3])\.", lambda match: f"layer{int(match[1]) + 1}.", path
    )
    state_dict.place(tensors, network, path, "ResNet50", OPTIONAL)
