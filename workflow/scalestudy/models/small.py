"""Models for CPUs, and the deep chain of linear layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from scalestudy.models.catalogue import MLP, SmallCNN


def small_cnn(options: SmallCNN, classes: int, channels: int) -> nn.Sequential:
    """Two convolutions and two linear layers, for images of any size from 2x2: [batch, channels, height, width]."""
    width, side, hidden = options.width, 4, 128
    return nn.Sequential(
        nn.Conv2d(channels, width, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(side),
        nn.Flatten(),
        nn.Linear(2 * width * side * side, hidden),
        nn.ReLU(),
        nn.Linear(hidden, classes),
    )


def mlp(options: MLP, classes: int, sample_shape: Sequence[int]) -> nn.Sequential:
    """`layers` linear layers with ReLU between them, for samples of any shape, which are flattened.

    Weights are drawn as He et al. (arXiv 1502.01852) derive for ReLU, with which also deep chains learn.
    """
    widths = [math.prod(sample_shape), *[options.hidden] * (options.layers - 1), classes]
    parts: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in pairwise(widths):
        linear = nn.Linear(inputs, outputs)
        nn.init.kaiming_normal_(linear.weight, nonlinearity="relu")
        nn.init.zeros_(linear.bias)
        parts += [linear, nn.ReLU()]
    return nn.Sequential(*parts[:-1])
